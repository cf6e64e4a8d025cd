"""Producers of one manifest take turns: who has been silent for longest goes next, and nobody waits for who is gone."""

import asyncio

from lakehead.buffer.append_turns import AppendTurns
from lakehead.storage.memory_store import MemoryStore
from lakehead.wire.queue_manifests import ProducerManifest, record_last_number
from tests.faults.store import NO_FAULTS
from tests.support.simulation import SimulatedClock, World
from tests.unit.buffer.support import PAIR, QueueFixture, entries, virtual_time, writes

REQUEST = 0.03


class Rotation:
    """Some producers that write one after the other, seen by one of them."""

    def __init__(self, queue: QueueFixture) -> None:
        self.clock: SimulatedClock = queue.clock
        self.turns = AppendTurns(queue.clock, queue.world.random)
        self.turns.measured(REQUEST)
        self.manifest = ProducerManifest()
        self.count = 0

    def write(self, *names: str) -> None:
        for name in names:
            self.count += 1
            producers, _ = record_last_number(self.manifest.producers, name, self.count, limit=256)
            self.manifest = ProducerManifest(producers=producers, version=self.count)
            if name == "we":
                self.turns.wrote("we", self.manifest)

    def is_ours(self) -> bool:
        return self.turns.before_write("we", self.manifest) == 0


@virtual_time
async def test_a_producer_that_is_alone_waits_for_nobody(queue: QueueFixture) -> None:
    rotation = Rotation(queue)
    assert rotation.is_ours()
    rotation.write("we", "we")
    assert rotation.turns.is_alone
    assert rotation.turns.before_first() == 0
    assert rotation.is_ours()


@virtual_time
async def test_it_is_our_turn_when_all_who_take_part_have_written_since_we_did(queue: QueueFixture) -> None:
    rotation = Rotation(queue)
    rotation.write("a", "b", "we", "a", "b", "we")
    assert not rotation.turns.is_alone
    both = rotation.turns.before_write("we", rotation.manifest)
    rotation.write("a")
    one = rotation.turns.before_write("we", rotation.manifest)
    assert both > one > 0, "the nearer our turn is, the sooner we look again"
    rotation.write("b")
    assert rotation.is_ours()


@virtual_time
async def test_a_producer_that_has_stopped_is_waited_for_once(queue: QueueFixture) -> None:
    rotation = Rotation(queue)
    rotation.write("gone", "a", "we", "gone", "a", "we", "a")
    assert not rotation.is_ours(), "its turn is now"
    rotation.write("we", "a")
    assert rotation.is_ours()


@virtual_time
async def test_nobody_is_waited_for_who_has_had_time_enough(queue: QueueFixture) -> None:
    rotation = Rotation(queue)
    rotation.write("a", "we", "a", "we")
    assert not rotation.is_ours()
    await queue.sleep(5 * REQUEST)
    assert rotation.is_ours()
    assert rotation.turns.before_first() == 0
    rotation.turns.before_retry(1)
    assert not rotation.is_ours(), "a refused write shows that the others are at it"


@virtual_time
async def test_a_newcomer_and_one_whom_the_manifest_has_forgotten_go_at_once(queue: QueueFixture) -> None:
    rotation = Rotation(queue)
    rotation.write("a", "b", "a", "b")
    assert rotation.is_ours()
    rotation.write("we", "a", "we")
    rotation.manifest = ProducerManifest(producers={"a": 5, "b": 6})
    assert rotation.is_ours()


def test_many_producers_at_once_hardly_ever_refuse_each_other() -> None:
    """In virtual time, so that the counts are the same on every machine."""
    world = World(1)
    shared = MemoryStore(clock=world.clock)

    async def contend() -> None:
        ingestors = []
        for _ in range(8):
            queue = QueueFixture(world, world.faulty(shared, NO_FAULTS))  # type: ignore[arg-type]  # not held up here
            ingestors.append(queue.ingestor())

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

    world.loop.simulate(contend())


@virtual_time
async def test_what_comes_while_a_write_is_refused_goes_along_with_the_next_try(queue: QueueFixture) -> None:
    ours = queue.ingestor()
    await (await ours.ingest(entries("1"))).await_durable()
    queue.store.hold_calls(writes(PAIR.producer))
    first = await ours.ingest(entries("2"))
    ours._writers[0].flush()
    while queue.store.count(writes(PAIR.producer)) < 2:
        await queue.sleep(0.001)
    there = await queue.store.inner.get(PAIR.producer)
    assert there is not None
    await queue.store.inner.replace(PAIR.producer, there.body + b" ", there.meta.version)
    second = await ours.ingest(entries("3"))
    ours._writers[0].flush()
    await queue.sleep(0.01)
    queue.store.release_calls()

    await asyncio.gather(first.await_durable(), second.await_durable())

    assert queue.store.count(writes(PAIR.producer)) == 3, "one that was refused, and one for both"


def waits(rotation: Rotation) -> list[float]:
    """Every wait that is answered now, the longest that chance allows."""
    return [
        rotation.turns.before_first(),
        rotation.turns.before_write("we", rotation.manifest),
        max(rotation.turns.before_retry(conflicts) for conflicts in (1, 5, 100)),
    ]


@virtual_time
async def test_one_slow_answer_hardly_delays_the_next_turns(queue: QueueFixture) -> None:
    rotation = Rotation(queue)
    rotation.write("a", "we", "a", "we")
    usual = rotation.turns.before_write("we", rotation.manifest)
    rotation.turns.measured(50)
    rotation.write("a", "we")
    assert 0 < rotation.turns.before_write("we", rotation.manifest) < 1.5 * usual
    assert rotation.turns.before_first() < 2 * REQUEST


@virtual_time
async def test_a_store_that_has_become_slow_is_learned_within_some_requests_and_so_is_one_that_is_quick_again(
    queue: QueueFixture,
) -> None:
    rotation = Rotation(queue)
    rotation.write("a", "we", "a", "we")
    usual = rotation.turns.before_write("we", rotation.manifest)
    for _ in range(12):
        rotation.turns.measured(10 * REQUEST)
    assert rotation.turns.before_write("we", rotation.manifest) > 6 * usual
    for _ in range(12):
        rotation.turns.measured(REQUEST)
    assert rotation.turns.before_write("we", rotation.manifest) < 1.5 * usual


@virtual_time
async def test_no_wait_is_longer_than_two_seconds_whatever_was_learned_first_and_however_many_take_part(
    queue: QueueFixture,
) -> None:
    rotation = Rotation(queue)
    rotation.turns = AppendTurns(queue.clock, queue.world.random)
    for _ in range(20):
        rotation.turns.measured(50)
    names = [f"producer-{number}" for number in range(200)]
    rotation.write(*names, "we", *names, "we")
    assert 0 < max(waits(rotation)) <= 2


@virtual_time
async def test_those_who_are_gone_are_waited_for_ten_seconds_in_all_whatever_was_learned(queue: QueueFixture) -> None:
    rotation = Rotation(queue)
    for _ in range(50):
        rotation.turns.measured(50)
    names = [f"producer-{number}" for number in range(200)]
    rotation.write(*names, "we", *names, "we")
    began = queue.clock.monotonic()
    while pause := rotation.turns.before_write("we", rotation.manifest):
        await queue.sleep(pause)
    assert queue.clock.monotonic() - began < 12.5


@virtual_time
async def test_a_hung_request_does_not_hold_up_the_appends_after_it(queue: QueueFixture) -> None:
    ours, theirs = queue.ingestor(), queue.ingestor()
    for _ in range(5):
        for each in (ours, theirs):
            await (await each.ingest(entries("x"))).await_durable()
    queue.store.hold_calls(writes(PAIR.producer))
    hung = await ours.ingest(entries("hung"))
    await queue.sleep(50)
    queue.store.release_calls()
    await hung.await_durable()
    began = queue.clock.monotonic()
    for _ in range(3):
        await (await ours.ingest(entries("x"))).await_durable()
    assert queue.clock.monotonic() - began < 1
    await ours.close()
    await theirs.close()
