"""Producers of one manifest take turns: who has been silent for longest goes next, and nobody waits for who is gone."""

import asyncio

from lakehead.buffer.turns import Turns
from lakehead.storage.memory import MemoryStore
from lakehead.wire.queue_manifests import ProducerManifest, remember
from tests.faults.store import NO_FAULTS
from tests.sim.world import SimulatedClock, World
from tests.unit.buffer.scene import PAIR, Scene, entries, play, writes

REQUEST = 0.03


class Rotation:
    """Some producers that write one after the other, seen by one of them."""

    def __init__(self, scene: Scene) -> None:
        self.clock: SimulatedClock = scene.clock
        self.turns = Turns(scene.clock, scene.world.random)
        self.turns.took(REQUEST)
        self.manifest = ProducerManifest()
        self.count = 0

    def write(self, *names: str) -> None:
        for name in names:
            self.count += 1
            producers, _ = remember(self.manifest.producers, name, self.count, most=256)
            self.manifest = ProducerManifest(producers=producers, version=self.count)
            if name == "we":
                self.turns.wrote("we", self.manifest)

    def is_ours(self) -> bool:
        return self.turns.before_write("we", self.manifest) == 0


def test_a_producer_that_is_alone_waits_for_nobody() -> None:
    async def story(scene: Scene) -> None:
        rotation = Rotation(scene)
        assert rotation.is_ours()
        rotation.write("we", "we")
        assert rotation.turns.are_ours_alone
        assert rotation.turns.before_first() == 0
        assert rotation.is_ours()

    play(story)


def test_it_is_our_turn_when_all_who_take_part_have_written_since_we_did() -> None:
    async def story(scene: Scene) -> None:
        rotation = Rotation(scene)
        rotation.write("a", "b", "we", "a", "b", "we")
        assert not rotation.turns.are_ours_alone
        both = rotation.turns.before_write("we", rotation.manifest)
        rotation.write("a")
        one = rotation.turns.before_write("we", rotation.manifest)
        assert both > one > 0, "the nearer our turn is, the sooner we look again"
        rotation.write("b")
        assert rotation.is_ours()

    play(story)


def test_a_producer_that_has_stopped_is_waited_for_once() -> None:
    async def story(scene: Scene) -> None:
        rotation = Rotation(scene)
        rotation.write("gone", "a", "we", "gone", "a", "we", "a")
        assert not rotation.is_ours(), "its turn is now"
        rotation.write("we", "a")
        assert rotation.is_ours()

    play(story)


def test_nobody_is_waited_for_who_has_had_time_enough() -> None:
    async def story(scene: Scene) -> None:
        rotation = Rotation(scene)
        rotation.write("a", "we", "a", "we")
        assert not rotation.is_ours()
        await scene.later(5 * REQUEST)
        assert rotation.is_ours()
        assert rotation.turns.before_first() == 0
        rotation.turns.before_retry(1)
        assert not rotation.is_ours(), "a refused write shows that the others are at it"

    play(story)


def test_a_newcomer_and_one_whom_the_manifest_has_forgotten_go_at_once() -> None:
    async def story(scene: Scene) -> None:
        rotation = Rotation(scene)
        rotation.write("a", "b", "a", "b")
        assert rotation.is_ours()
        rotation.write("we", "a", "we")
        rotation.manifest = ProducerManifest(producers={"a": 5, "b": 6})
        assert rotation.is_ours()

    play(story)


def test_many_producers_at_once_hardly_ever_refuse_each_other() -> None:
    """In virtual time, so that the counts are the same on every machine."""
    world = World(1)
    shared = MemoryStore(clock=world.clock)

    async def story() -> None:
        ingestors = []
        for _ in range(8):
            scene = Scene(world, world.faulty(shared, NO_FAULTS))  # type: ignore[arg-type]  # not held up here
            ingestors.append(scene.ingestor())

        async def fill(number: int) -> None:
            for value in range(300):
                await ingestors[number].ingest(entries(str(value)))
                await world.clock.sleep(0.02)
            await ingestors[number].close()

        await asyncio.gather(*map(fill, range(8)))
        tries = sum(each.counts.manifest_writes["producer"] for each in ingestors)
        refused = sum(each.counts.manifest_conflicts["producer"] for each in ingestors)
        assert tries - refused > 50
        assert refused < (tries - refused) / 2

    world.loop.simulate(story())


def test_what_comes_while_a_write_is_refused_goes_along_with_the_next_try() -> None:
    async def story(scene: Scene) -> None:
        ours = scene.ingestor()
        await (await ours.ingest(entries("1"))).await_durable()
        scene.store.hold(writes(PAIR.producer))
        first = await ours.ingest(entries("2"))
        ours._writers[0].flush()
        while scene.store.count(writes(PAIR.producer)) < 2:
            await scene.later(0.001)
        there = await scene.store.inner.get(PAIR.producer)
        assert there is not None
        await scene.store.inner.replace(PAIR.producer, there.body + b" ", there.meta.version)
        second = await ours.ingest(entries("3"))
        ours._writers[0].flush()
        await scene.later(0.01)
        scene.store.release()

        await asyncio.gather(first.await_durable(), second.await_durable())

        assert scene.store.count(writes(PAIR.producer)) == 3, "one that was refused, and one for both"

    play(story)


def waits(rotation: Rotation) -> list[float]:
    """Every wait that is answered now, the longest that chance allows."""
    return [
        rotation.turns.before_first(),
        rotation.turns.before_write("we", rotation.manifest),
        max(rotation.turns.before_retry(conflicts) for conflicts in (1, 5, 100)),
    ]


def test_one_slow_answer_hardly_delays_the_next_turns() -> None:
    async def story(scene: Scene) -> None:
        rotation = Rotation(scene)
        rotation.write("a", "we", "a", "we")
        usual = rotation.turns.before_write("we", rotation.manifest)
        rotation.turns.took(50)
        rotation.write("a", "we")
        assert 0 < rotation.turns.before_write("we", rotation.manifest) < 1.5 * usual
        assert rotation.turns.before_first() < 2 * REQUEST

    play(story)


def test_a_store_that_has_become_slow_is_learned_within_some_requests_and_so_is_one_that_is_quick_again() -> None:
    async def story(scene: Scene) -> None:
        rotation = Rotation(scene)
        rotation.write("a", "we", "a", "we")
        usual = rotation.turns.before_write("we", rotation.manifest)
        for _ in range(12):
            rotation.turns.took(10 * REQUEST)
        assert rotation.turns.before_write("we", rotation.manifest) > 6 * usual
        for _ in range(12):
            rotation.turns.took(REQUEST)
        assert rotation.turns.before_write("we", rotation.manifest) < 1.5 * usual

    play(story)


def test_no_wait_is_longer_than_two_seconds_whatever_was_learned_first_and_however_many_take_part() -> None:
    async def story(scene: Scene) -> None:
        rotation = Rotation(scene)
        rotation.turns = Turns(scene.clock, scene.world.random)
        for _ in range(20):
            rotation.turns.took(50)
        names = [f"producer-{number}" for number in range(200)]
        rotation.write(*names, "we", *names, "we")
        assert 0 < max(waits(rotation)) <= 2

    play(story)


def test_those_who_are_gone_are_waited_for_ten_seconds_in_all_whatever_was_learned() -> None:
    async def story(scene: Scene) -> None:
        rotation = Rotation(scene)
        for _ in range(50):
            rotation.turns.took(50)
        names = [f"producer-{number}" for number in range(200)]
        rotation.write(*names, "we", *names, "we")
        began = scene.clock.monotonic()
        while pause := rotation.turns.before_write("we", rotation.manifest):
            await scene.later(pause)
        assert scene.clock.monotonic() - began < 12.5

    play(story)


def test_a_hung_request_does_not_hold_up_the_appends_after_it() -> None:
    async def story(scene: Scene) -> None:
        ours, theirs = scene.ingestor(), scene.ingestor()
        for _ in range(5):
            for each in (ours, theirs):
                await (await each.ingest(entries("x"))).await_durable()
        scene.store.hold(writes(PAIR.producer))
        hung = await ours.ingest(entries("hung"))
        await scene.later(50)
        scene.store.release()
        await hung.await_durable()
        began = scene.clock.monotonic()
        for _ in range(3):
            await (await ours.ingest(entries("x"))).await_durable()
        assert scene.clock.monotonic() - began < 1
        await ours.close()
        await theirs.close()

    play(story)
