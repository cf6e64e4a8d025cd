"""Producers and collectors of one queue, and what they do until everything has come to rest."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace

from lakehead.buffer.batches import Batches, store_for
from lakehead.buffer.claims import Claim, check_not_forgotten
from lakehead.buffer.cleanup import CleanUp
from lakehead.buffer.consumer import Consumer, Mode
from lakehead.buffer.errors import Fenced, Forgotten
from lakehead.buffer.layout import entry_for, object_key
from lakehead.buffer.manifests import PairFiles
from lakehead.buffer.means import Means
from lakehead.buffer.orphans import OrphanCollector
from lakehead.buffer.ownership import PrefixOwner
from lakehead.buffer.producer import Producer
from lakehead.errors import OutcomeUnknown, Unavailable
from lakehead.storage.backoff import Backoff
from lakehead.wire.batch import KeyValueEntry, encode_json
from tests.faults.store import NO_FAULTS, Fault, Faults, FaultStore
from tests.sim.buffer_model import MANIFEST, PREFIX, WatchedStore
from tests.sim.world import Process, SimulatedClock, Violation, World

TIMEOUT = 30.0
THRESHOLD = 3
BATCHES = 3
ROUGH = Faults.all(0.015)
CALM = Faults({}, longest_seconds=1.0)
QUICK = Backoff(attempts=12, first_seconds=0.02, cap_seconds=0.5)
FOREIGN = "accepted/v1/batch"
"""The key of an object that is not the queue's own, and is queued more than once."""

LATEST_WRITE = 1_500.0
"""After this many seconds every write has landed that was left to land later."""

CONFIRMED_WITHIN = 200.0
DELIVERED_WITHIN = 200.0
"""Seconds after which, once faults have stopped, all is confirmed or given up, and what is queued is handed out: time
for a pause of 90 seconds, for a request that takes as long, and until a collector is taken for gone."""


@dataclass(frozen=True)
class Variant:
    """The protocol as it is, or with one of its rules left out."""

    producer: type[Producer] = Producer
    consumer: type[Consumer] = Consumer
    clean_up: type[CleanUp] = CleanUp
    told: Callable[[type[CleanUp], Collection[str]], type[CleanUp]] = lambda kind, _: kind
    """The clean-up of a collector that has just been told to acknowledge something."""

    orphans: type[OrphanCollector] = OrphanCollector
    entry: Callable[[str, Means], str] = lambda key, means: entry_for(key, means.ids)
    any_order: bool = False
    """Whether collectors acknowledge in any order, whatever the mode."""

    most_producers: int = 256
    most_collectors: int = 64


@dataclass
class Scene:
    """Everything that a scenario is about."""

    world: World
    variant: Variant
    mode: Mode
    shared: WatchedStore
    faults: Faults = ROUGH
    batches: int = BATCHES
    """How many each producer makes."""

    producers: list[Process] = field(default_factory=list)
    collectors: list[Process] = field(default_factory=list)
    stores: list[FaultStore] = field(default_factory=list)
    clocks: list[SimulatedClock] = field(default_factory=list)
    ending: bool = False
    names: int = 0
    leaves_no_doubt: bool = False
    """Whether the store always says what became of a write."""

    def __post_init__(self) -> None:
        self.leaves_no_doubt = not self.faults.probability.keys() - {Fault.CONFLICT, Fault.PRECONDITION}

    def means(self, *, slowness: float = 1.0) -> Means:
        """What a process works with: its own view of the store, and its own clock, which may be off by an hour."""
        world = self.world
        clock = SimulatedClock(world.loop, off_by=world.random.choice([0, 0, 0, -3600, 3600]))
        faults = replace(self.faults, median_seconds=slowness * self.faults.median_seconds)
        store = world.faulty(self.shared, faults)
        self.stores.append(store)
        self.clocks.append(clock)
        return Means(store=store, clock=clock, ids=world.ids, random=world.random)

    def calm_means(self) -> Means:
        """Those of somebody who comes when everything has come to rest."""
        world = self.world
        store = world.faulty(self.shared, NO_FAULTS)
        return Means(store=store, clock=world.clock, ids=world.ids, random=world.random)

    def stop_faults(self) -> None:
        """From now on every request is answered soon. What is to land later still does."""
        self.faults = CALM
        for store in self.stores:
            store.change_faults(CALM)

    @contextmanager
    def tried(self) -> Iterator[None]:
        """Something that may fail; it may be unknown what became of it only where the store leaves that open."""
        try:
            yield
        except Unavailable:
            return
        except OutcomeUnknown as error:
            if self.leaves_no_doubt:
                raise Violation(f"the store leaves no doubt, and somebody is told: {error}") from error
            self.world.note(f"unknown: {error}")

    def files(self, means: Means) -> PairFiles:
        return PairFiles.of(self.shared.pairs[0].pair, means)

    def producer(self, means: Means) -> Producer:
        return self.variant.producer(
            self.files(means).producer,
            means,
            data_path_prefix=PREFIX,
            backoff=QUICK,
            most_producers=self.variant.most_producers,
        )

    def consumer(self, means: Means) -> Consumer:
        return self.variant.consumer(
            self.files(means),
            means,
            mode=self.mode,
            timeout=TIMEOUT,
            backoff=QUICK,
            most_collectors=self.variant.most_collectors,
        )

    async def clean_up(self, means: Means, told: Collection[str]) -> None:
        kind = self.variant.told(self.variant.clean_up, told)
        with self.tried():
            try:
                await kind(files=self.files(means), means=means, backoff=QUICK).run()
            except (Unavailable, OutcomeUnknown):
                self.shared.pairs[0].failed_clean_ups += 1
                raise

    def start_producer(self) -> None:
        process = self.process("producer")
        process.spawn(self.produce(process.name))
        self.producers.append(process)

    def start_collector(self) -> None:
        process = self.process("collector")
        process.spawn(self.collect())
        self.collectors.append(process)

    async def produce(self, name: str) -> None:
        await produce(name, self)

    async def collect(self) -> None:
        await collect(self)

    async def drain(self) -> None:
        await drain(self)

    def process(self, kind: str) -> Process:
        self.names += 1
        return self.world.process(f"{kind}{self.names}")


# --- what processes do


async def produce(name: str, scene: Scene) -> None:
    """Store and queue a few batches, some while others are still on their way; and now and then a foreign key."""
    world, history, means = scene.world, scene.shared.history, scene.means()
    producer = scene.producer(means)
    batches = Batches(PREFIX, means, PrefixOwner(PREFIX, MANIFEST, means))

    async def outcome(entry: str, queued: Awaitable[str]) -> None:
        with scene.tried():
            try:
                location = await queued
            except Unavailable:
                history.refused.add(entry)
                world.note(f"{entry} is refused")
            else:
                history.confirmed.update(scene.shared.entries(location))
                world.note(f"{entry} is confirmed")

    under_way = []
    for number in range(scene.batches):
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
    consumer = scene.consumer(means)
    beating = asyncio.create_task(beat(consumer, scene, means))
    idle = 0.3
    try:
        while not scene.ending:
            claims: Sequence[Claim] = ()
            with scene.tried():
                claims = await consumer.claim(world.random.randint(1, 3))
                await process(claims, consumer, scene, means)
            idle = 0.3 if claims else min(10.0, idle * 4)
            if not claims:
                await means.clock.sleep(world.random.uniform(0, idle))
    except Fenced:
        scene.shared.pairs[0].fence(consumer.held, consumer.id, consumer.epoch)
        raise
    finally:
        beating.cancel()


async def beat(consumer: Consumer, scene: Scene, means: Means) -> None:
    while True:
        await means.clock.sleep(TIMEOUT / 3)
        try:
            with scene.tried():
                await consumer.heartbeat()
        except Fenced:
            return


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
        if scene.mode is Mode.COMPETING or scene.variant.any_order:
            some = world.random.sample(handed, len(some))
        waiting = THRESHOLD  # a clean-up at an odd moment must do no harm
        with scene.tried():
            try:
                for claim in claims:  # as a reader does: a heartbeat may have found it forgotten
                    if claim.location in some:
                        check_not_forgotten(claim)
                waiting = await consumer.ack(some)
            except Forgotten:
                handed = [location for location in handed if location in consumer.held]
                raise
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


# --- the end


async def come_to_rest(scene: Scene) -> None:
    """Everything ends in time once faults have stopped, and then nothing is left of it."""
    world = scene.world
    at_most = 3_600.0
    if world.random.random() < 0.5:
        scene.stop_faults()
        at_most = CONFIRMED_WITHIN
    await world.until(*scene.producers, at_most=at_most)
    if world.random.random() < 0.3:
        await world.clock.sleep(world.random.choice([1, 40]))  # what is queued is left to whoever comes last
    else:
        scene.stop_faults()
        await confirmed_in_time(scene)
        await delivered_in_time(scene)
    scene.ending = True
    await world.until(*scene.collectors, at_most=DELIVERED_WITHIN)
    await scene.drain()
    scene.shared.check_end()


async def confirmed_in_time(scene: Scene) -> None:
    """One more producer, which comes when faults have stopped: everything that it queues is confirmed."""
    if type(scene) is not Scene:
        return  # its producers are refused for reasons of their own, or cancel what they do
    scene.start_producer()
    name = scene.producers[-1].name
    await scene.world.until(scene.producers[-1], at_most=CONFIRMED_WITHIN)
    history = scene.shared.history
    stored = {entry for entries in history.entries.values() for entry in entries if entry.startswith(f"{name}.")}
    if late := (stored | {entry for entry in history.refused if entry.startswith(f"{name}.")}) - history.confirmed:
        raise Violation(f"{sorted(late)} are not confirmed, and nothing has failed")


async def delivered_in_time(scene: Scene) -> None:
    """Wait until what is queued now is handed out by the collectors that there are."""
    world, delivered = scene.world, scene.shared.history.delivered
    deadline = world.clock.monotonic() + DELIVERED_WITHIN
    queued = scene.shared.undelivered()
    while world.failure is None and (late := queued - delivered):
        if world.clock.monotonic() > deadline:
            raise Violation(f"{sorted(late)} are not handed out after {DELIVERED_WITHIN} s without faults")
        await world.clock.sleep(1)


async def drain(scene: Scene) -> None:
    """When faults have stopped: one last collector, one clean-up, one GC, and nothing is left."""
    means = scene.calm_means()
    consumer = Consumer(
        scene.files(means),
        means,
        mode=scene.mode,
        timeout=TIMEOUT,
        most_collectors=scene.variant.most_collectors,
    )
    await means.clock.sleep(LATEST_WRITE)
    clean_up = CleanUp(files=scene.files(means), means=means, backoff=QUICK)
    for _ in range(10):
        while claims := await consumer.claim(THRESHOLD):
            for claim in claims:
                await fetch(claim, consumer, scene, means)
                scene.shared.hand_out(claim.location, consumer.id, claim.epoch)
            await consumer.ack([claim.location for claim in claims])
            await clean_up.run()
        if not scene.shared.open:
            break
        await means.clock.sleep(7_300)  # whoever wrote a time that lies in the future is given up now
    await clean_up.run()
    with suppress(Unavailable):  # where nothing was ever queued, nobody can say whose batches they are
        await orphans(OrphanCollector, means, grace=0).run()


def orphans(
    kind: type[OrphanCollector], means: Means, *, grace: float, manifest_path: str = MANIFEST
) -> OrphanCollector:
    return kind(
        data_path_prefix=PREFIX,
        manifest_path=manifest_path,
        means=means,
        backoff=QUICK,
        grace_seconds=grace,
    )
