"""Producers and collectors of one queue under everything that happens to them; and each shorter protocol, which must
be caught."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import ClassVar

from lakehead.buffer.batches import Batches, store_for
from lakehead.buffer.claims import Claim
from lakehead.buffer.cleanup import CleanUp
from lakehead.buffer.consumer import Consumer, Mode
from lakehead.buffer.errors import Fenced
from lakehead.buffer.layout import entry_for, object_key
from lakehead.buffer.manifests import ManifestFile, PairFiles, Stored
from lakehead.buffer.means import Means
from lakehead.buffer.orphans import OrphanCollector
from lakehead.buffer.ownership import PrefixOwner
from lakehead.buffer.producer import Group, Producer, StoreAgain, Waiting, fail
from lakehead.errors import OutcomeUnknown, Unavailable
from lakehead.storage.backoff import Backoff
from lakehead.wire.batch import KeyValueEntry, encode_json
from lakehead.wire.queue_manifests import ConsumerManifest, ProducerManifest
from tests.faults.store import NO_FAULTS, Fault, Faults
from tests.sim.buffer_model import PAIR, PREFIX, WatchedStore
from tests.sim.world import Process, Scenario, SimulatedClock, Violation, World

TIMEOUT = 30.0
THRESHOLD = 3
BATCHES = 3
ROUGH = Faults.all(0.02)
LATE = Faults({Fault.TIMEOUT_LANDS_LATER: 0.3, Fault.PRECONDITION: 0.2, Fault.UNAVAILABLE: 0.3})
"""A store that leaves most writes in doubt, and lets many of them land later."""
QUICK = Backoff(attempts=12, first_seconds=0.02, cap_seconds=0.5)
FOREIGN = "accepted/v1/batch"
"""The key of an object that is not the queue's own, and is queued more than once."""


@dataclass(frozen=True)
class Variant:
    """The protocol as it is, or with one of its rules left out."""

    producer: type[Producer] = Producer
    consumer: type[Consumer] = Consumer
    remembers: bool = False
    """Whether a clean-up takes what its collector has been told to acknowledge for done."""

    clean_up: type[CleanUp] = CleanUp
    orphans: type[OrphanCollector] = OrphanCollector
    entry: Callable[[str, Means], str] = lambda key, means: entry_for(key, means.ids)
    most_producers: int = 256


@dataclass
class Scene:
    """Everything that a scenario is about."""

    world: World
    variant: Variant
    mode: Mode
    shared: WatchedStore
    faults: Faults = ROUGH
    producers: list[Process] = field(default_factory=list)
    collectors: list[Process] = field(default_factory=list)
    ending: bool = False
    names: int = 0

    def means(self, *, faults: Faults | None = None) -> Means:
        """What a process works with: its own view of the store, and its own clock, which may be off by an hour."""
        world = self.world
        clock = SimulatedClock(world.loop, off_by=world.random.choice([0, 0, 0, -3600, 3600]))
        store = world.faulty(self.shared, self.faults if faults is None else faults)
        return Means(store=store, clock=clock, ids=world.ids, random=world.random)

    def files(self, means: Means) -> PairFiles:
        return PairFiles.of(PAIR, means)

    def producer(self, means: Means) -> Producer:
        return self.variant.producer(
            self.files(means).producer,
            means,
            data_path_prefix=PREFIX,
            backoff=QUICK,
            most_producers=self.variant.most_producers,
        )

    async def clean_up(self, means: Means, told: Collection[str]) -> None:
        kind = self.variant.clean_up
        if self.variant.remembers:
            kind = type("CleansUpFromMemory", (CleansUpFromMemory,), {"told": list(told)})
        with suppress(Unavailable, OutcomeUnknown):
            await kind(files=self.files(means), means=means, backoff=QUICK).run()

    def start_producer(self) -> None:
        process = self._process("producer")
        process.spawn(self.produce(process.name))
        self.producers.append(process)

    def start_collector(self) -> None:
        process = self._process("collector")
        process.spawn(self.collect())
        self.collectors.append(process)

    async def produce(self, name: str) -> None:
        await produce(name, self)

    async def collect(self) -> None:
        await collect(self)

    def _process(self, kind: str) -> Process:
        self.names += 1
        return self.world.process(f"{kind}{self.names}")


# --- what processes do


async def produce(name: str, scene: Scene) -> None:
    """Store and queue a few batches, some while others are still on their way; and now and then a foreign key."""
    world, history, means = scene.world, scene.shared.history, scene.means()
    producer = scene.producer(means)
    batches = Batches(PREFIX, means, PrefixOwner(PREFIX, PAIR.producer, means))

    async def outcome(entry: str, queued: Awaitable[str]) -> None:
        try:
            location = await queued
        except OutcomeUnknown as error:
            world.note(f"{entry}: {error}")
        except Unavailable:
            history.refused.add(entry)
            world.note(f"{entry} is refused")
        else:
            history.confirmed.update(scene.shared.entries(location))
            world.note(f"{entry} is confirmed")

    under_way = []
    for number in range(BATCHES):
        entry = f"{name}.{number}"
        if world.random.random() < 0.2:
            location = scene.variant.entry(FOREIGN, means)
            under_way.append(asyncio.create_task(outcome(location, producer.append(location))))
            continue
        body = encode_json([KeyValueEntry(b"", entry.encode())])
        try:
            stored = await store_for(producer, batches, body)
        except Unavailable:
            history.refused.add(entry)
            continue
        queued = producer.enqueue(stored.location, gc=stored.gc, again=again(batches, body))
        under_way.append(asyncio.create_task(outcome(entry, queued)))
        if world.random.random() < 0.6:
            await under_way[-1]
    for each in under_way:
        await each


def again(batches: Batches, body: bytes) -> Callable[[int], Awaitable[str]]:
    return lambda _: batches.store(body)


async def collect(scene: Scene) -> None:
    """Collectors of one process, one after the other: whoever is fenced makes a new one."""
    while not scene.ending:
        with suppress(Fenced):
            await collect_until_fenced(scene)
        scene.world.note("is fenced, or is done")


async def collect_until_fenced(scene: Scene) -> None:
    world, means = scene.world, scene.means()
    consumer = scene.variant.consumer(scene.files(means), means, mode=scene.mode, timeout=TIMEOUT, backoff=QUICK)
    beating = asyncio.create_task(beat(consumer, means))
    idle = 0.3
    try:
        while not scene.ending:
            try:
                claims = await consumer.claim(world.random.randint(1, 3))
                await process(claims, consumer, scene, means)
            except (Unavailable, OutcomeUnknown):
                claims = []
            idle = 0.3 if claims else min(10.0, idle * 4)
            if not claims:
                await means.clock.sleep(world.random.uniform(0, idle))
    except Fenced:
        scene.shared.fence(consumer.held, consumer.id, consumer.epoch)
        raise
    finally:
        beating.cancel()


async def beat(consumer: Consumer, means: Means) -> None:
    while True:
        await means.clock.sleep(TIMEOUT / 3)
        try:
            await consumer.heartbeat()
        except Fenced:
            return
        except (Unavailable, OutcomeUnknown):
            continue


async def process(claims: Sequence[Claim], consumer: Consumer, scene: Scene, means: Means) -> None:
    """Hand out, process for a while, acknowledge one by one or all at once, and clean up."""
    world = scene.world
    handed = []
    for claim in claims:
        await fetch(claim, consumer, scene, means)
        scene.shared.hand_out(claim.location, consumer.id, claim.epoch)
        world.note(f"hands out {scene.shared.name(claim.location)}")
        handed.append(claim.location)
        await means.clock.sleep(world.random.uniform(0, 0.05))
    while handed:
        some = handed[: world.random.randint(1, len(handed))]
        if scene.mode is Mode.COMPETING:
            some = world.random.sample(handed, len(some))
        try:
            waiting = await consumer.ack(some)
        except (Unavailable, OutcomeUnknown):
            waiting = THRESHOLD  # a clean-up at an odd moment must do no harm
        else:
            scene.shared.acknowledge(some, consumer.id)
            handed = [location for location in handed if location not in some]
        if waiting >= THRESHOLD:
            await scene.clean_up(means, some)


async def fetch(claim: Claim, consumer: Consumer, scene: Scene, means: Means) -> None:
    """Get what a claim stands for: where it is gone, the claim must be gone too."""
    if object_key(claim.location) == FOREIGN:
        return
    while True:
        with suppress(Unavailable):
            if await means.store.get(claim.location) is not None:
                return
            await consumer.check()
            raise Violation(f"{scene.shared.name(claim.location)} is ours, and gone")


async def drain(scene: Scene) -> None:
    """When faults have stopped: one last collector, one clean-up, one GC, and nothing is left."""
    world = scene.world
    means = Means(store=world.faulty(scene.shared, NO_FAULTS), clock=world.clock, ids=world.ids, random=world.random)
    consumer = Consumer(scene.files(means), means, mode=scene.mode, timeout=TIMEOUT)
    await means.clock.sleep(600)  # what was given up and lands late has landed
    for _ in range(10):
        claims = await consumer.claim(100)
        for claim in claims:
            await fetch(claim, consumer, scene, means)
            scene.shared.hand_out(claim.location, consumer.id, claim.epoch)
        await consumer.ack([claim.location for claim in claims])
        if set(scene.shared.pending) <= set(scene.shared.consumer["done"]):
            break
        await means.clock.sleep(3_700)  # whoever wrote a time that lies in the future is given up now
    await CleanUp(files=scene.files(means), means=means, backoff=QUICK).run()
    with suppress(Unavailable):  # where nothing was ever queued, nobody can say whose batches they are
        await orphans(OrphanCollector, means, grace=0).run()
    scene.shared.check_end()


def orphans(kind: type[OrphanCollector], means: Means, *, grace: float) -> OrphanCollector:
    return kind(
        data_path_prefix=PREFIX,
        manifest_path=PAIR.producer,
        means=means,
        backoff=QUICK,
        grace_seconds=grace,
    )


# --- troubles

Trouble = Callable[[Scene], Awaitable[None]]


async def crash(scene: Scene) -> None:
    """A process dies; a collector is started again."""
    victim = scene.world.random.choice([*scene.producers, *scene.collectors])
    if not victim.done:
        victim.crash()
        if victim in scene.collectors:
            scene.start_collector()


async def pause(scene: Scene) -> None:
    """A process stands still, perhaps for longer than its claims hold."""
    victim = scene.world.random.choice([*scene.producers, *scene.collectors])
    victim.pause(scene.world.random.choice([0.3, 3, 90]))


async def collect_orphans(scene: Scene) -> None:
    """Orphan GC with hardly any grace, by a process that may crash in the middle of it."""
    process = scene.world.process("gc")
    means = scene.means()

    async def work() -> None:
        with suppress(Unavailable, OutcomeUnknown):
            gone = await orphans(scene.variant.orphans, means, grace=0.01).run()
            scene.world.note(f"deletes {[scene.shared.name(key) for key in gone]}")

    process.spawn(work())
    if scene.world.random.random() < 0.2:
        await scene.world.clock.sleep(scene.world.random.uniform(0, 0.3))
        process.crash()


async def newcomer(scene: Scene) -> None:
    """One more collector."""
    if len(scene.collectors) < 4:
        scene.start_collector()


ALL: tuple[Trouble, ...] = (crash, pause, pause, collect_orphans, newcomer)


def buffer(
    variant: Variant, mode: Mode, *troubles: Trouble, faults: Faults = ROUGH, kind: type[Scene] = Scene
) -> Scenario:
    """Some producers and collectors on one queue, with troubles at random moments; then everything comes to rest."""

    async def scenario(world: World) -> None:
        shared = WatchedStore(world, ordered=mode is Mode.ORDERED, most_done=100)
        scene = kind(world, variant, mode, shared, faults)
        for _ in range(world.random.randint(1, 3)):
            scene.start_producer()
        for _ in range(world.random.randint(1, 2)):
            scene.start_collector()
        for _ in range(world.random.randrange(5)):
            await world.clock.sleep(world.random.expovariate(4))
            await world.random.choice(troubles)(scene)
        await world.until(*scene.producers)
        await world.clock.sleep(world.random.choice([1, 1, 40]))
        scene.ending = True
        await world.until(*scene.collectors)
        await drain(scene)

    return scenario


# --- shorter protocols


class AppendsAgain(Producer):
    """Broken on purpose: takes whatever is not a success for a conflict, and appends again."""

    def _has_landed(self, group: Group, now: ProducerManifest) -> bool:
        del group, now
        return False


class GrowsInDoubt(Producer):
    """Broken on purpose: lets more go along with a try whose first version may land yet."""

    def _can_grow(self, group: Group, seen: Stored[ProducerManifest]) -> bool:
        del group, seen
        return True


class AppendsOutOfOrder(Producer):
    """Broken on purpose: appends each location as soon as it comes, so that numbers reach the manifest in any order."""

    def enqueue(
        self, location: str, *, gc: int | None = None, again: StoreAgain | None = None
    ) -> "asyncio.Future[str]":
        outcome: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._number += 1
        group = Group([Waiting(location, gc, again, outcome)], self._number, tried=Stored(ProducerManifest(), None))
        asyncio.create_task(self._append_alone(group))  # noqa: RUF006 - the loop of a simulation holds its tasks
        return outcome

    async def _append_alone(self, group: Group) -> None:
        for pause in self._backoff.pauses(self._means.random):
            await self._wait(pause)
            with suppress(OutcomeUnknown, Unavailable):
                if await self._try(group):
                    return
        fail(group.waiting, OutcomeUnknown("gave up"))


class ClaimsFromACachedManifest(Consumer):
    """Broken on purpose: claims from what the producer manifest held a while ago."""

    async def _pending(self) -> tuple[str, ...]:
        known = self.files.producer.latest
        fresh = [each for each in known.manifest.pending if each not in self.held] if known else []
        return tuple(fresh) if fresh else await super()._pending()


class SkipsFreshClaims(Consumer):
    """Broken on purpose: reads in order, and passes over what its predecessor has claimed and may still be at."""

    def _entered(self, now: ConsumerManifest) -> ConsumerManifest | None:
        entered = super()._entered(now)
        if entered is None or entered is now:
            return entered
        fresh = {each: at for each, at in now.claimed.items() if not self._staleness.is_stale(each, at)}
        return ConsumerManifest(
            claimed=fresh, done=now.done, version=now.version, epoch=entered.epoch, owner=entered.owner, acks=now.acks,
            owners={each: owner for each, owner in now.owners.items() if each in fresh},
        )  # fmt: skip

    def _alive(self, now: ConsumerManifest) -> dict[str, int]:
        return {"": now.heartbeat} if now.owner is not None else {}

    def _chosen(self, pending: Sequence[str], now: ConsumerManifest) -> list[str]:
        return [each for each in super()._chosen(pending, now) if each not in now.claimed]


class TrustsNoEpoch(Consumer):
    """Broken on purpose: never asks whether what it holds is still its own."""

    def _check(self, now: ConsumerManifest) -> None:
        del now


class DeletesLast(CleanUp):
    """Broken on purpose: forgets what is done, and deletes its data after that."""

    async def run(self) -> int:
        done = await self.stored_done()
        await self.forget_pending(done)
        await self.forget_done(done)
        await self.delete_data(sorted(done))
        return len(done)


class CleansUpFromMemory(CleanUp):
    """Broken on purpose: takes what it was told to acknowledge for done, not what is stored as done."""

    told: ClassVar[list[str]]

    async def stored_done(self) -> Collection[str]:
        return self.told


class CollectsByAge(OrphanCollector):
    """Broken on purpose: what is old and not pending is an orphan."""

    async def raise_number(self, file: ManifestFile[ProducerManifest]) -> Sequence[str]:
        return (await file.read()).manifest.pending


SOUND_QUEUE = Variant()

BUFFER_SOUND: dict[str, Scenario] = {
    "buffer_ordered": buffer(SOUND_QUEUE, Mode.ORDERED, *ALL),
    "buffer_competing": buffer(SOUND_QUEUE, Mode.COMPETING, *ALL),
    "buffer_late": buffer(Variant(), Mode.COMPETING, pause, faults=LATE),
    "buffer_forgetful": buffer(Variant(most_producers=1), Mode.COMPETING, *ALL, faults=Faults.all(0.04)),
}
BUFFER_BROKEN: dict[str, Scenario] = {
    "buffer_append_again": buffer(Variant(producer=AppendsAgain), Mode.COMPETING, *ALL),
    "buffer_grown_in_doubt": buffer(Variant(producer=GrowsInDoubt), Mode.COMPETING, pause, faults=LATE),
    "buffer_numbers_out_of_order": buffer(Variant(producer=AppendsOutOfOrder), Mode.COMPETING, *ALL),
    "buffer_cached_claims": buffer(Variant(consumer=ClaimsFromACachedManifest), Mode.COMPETING, *ALL),
    "buffer_fresh_claims_skipped": buffer(Variant(consumer=SkipsFreshClaims), Mode.ORDERED, crash, pause),
    "buffer_no_epoch": buffer(Variant(consumer=TrustsNoEpoch), Mode.ORDERED, pause, newcomer),
    "buffer_no_owner": buffer(Variant(consumer=TrustsNoEpoch), Mode.COMPETING, pause, newcomer),
    "buffer_data_deleted_last": buffer(Variant(clean_up=DeletesLast), Mode.COMPETING, *ALL),
    "buffer_clean_up_from_memory": buffer(Variant(remembers=True), Mode.COMPETING, *ALL),
    "buffer_orphans_by_age": buffer(Variant(orphans=CollectsByAge), Mode.COMPETING, collect_orphans, pause),
    "buffer_one_entry_per_key": buffer(Variant(entry=lambda key, _: key), Mode.COMPETING, *ALL),
}
