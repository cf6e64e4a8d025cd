"""Producers and collectors of one queue, and what they do until the end of a simulation."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace

from lakehead.buffer.batch_store import BatchStore, store_for_producer
from lakehead.buffer.claims import Claim, check_outcome_known
from lakehead.buffer.config import CollectorMode
from lakehead.buffer.consumer import Consumer
from lakehead.buffer.deps import BufferDeps
from lakehead.buffer.errors import Fenced, OutcomeLost
from lakehead.buffer.layout import entry_location, object_key
from lakehead.buffer.manifests import ManifestPair
from lakehead.buffer.orphan_gc import OrphanGc
from lakehead.buffer.ownership import PrefixOwner
from lakehead.buffer.producer import Producer
from lakehead.buffer.queue_cleanup import QueueCleanup
from lakehead.buffer.retry_policies import BufferRetries
from lakehead.errors import OutcomeUnknown, Unavailable
from lakehead.retry import Backoff
from lakehead.wire.batch import KeyValueEntry, encode_json
from tests.faults.store import NO_FAULTS, Fault, Faults, FaultStore
from tests.sim.buffer_model import MANIFEST, PREFIX, WatchedStore
from tests.support.simulation import Process, SimulatedClock, Violation, World

TIMEOUT = 30.0
THRESHOLD = 3
BATCHES = 3
ROUGH = Faults.all(0.015)
CALM = Faults({}, longest_seconds=1.0)
QUICK = Backoff(attempts=12, first_seconds=0.02, cap_seconds=0.5)
QUICK_RETRIES = BufferRetries(appends=QUICK, consumer=QUICK, commands=QUICK)
FOREIGN = "accepted/v1/batch"
"""The key of an object that is not the queue's own, and is queued more than once."""

LATEST_WRITE = 1_500.0
"""After this many seconds every late write has been applied."""

CONFIRMED_WITHIN = 200.0
DELIVERED_WITHIN = 200.0
"""Seconds after which, once faults have stopped, all is confirmed or failed, and what is queued is handed out: time for
a pause of 90 seconds, for a request that takes as long, and until a collector is considered dead."""


@dataclass(frozen=True)
class Variant:
    """The protocol as it is, or without one of its rules."""

    producer: type[Producer] = Producer
    consumer: type[Consumer] = Consumer
    clean_up: type[QueueCleanup] = QueueCleanup
    cleanup_after: Callable[[type[QueueCleanup], Collection[str]], type[QueueCleanup]] = lambda kind, _: kind
    """Chooses the cleanup of a collector that has just acknowledged some locations."""

    orphans: type[OrphanGc] = OrphanGc
    entry: Callable[[str, BufferDeps], str] = lambda key, deps: entry_location(key, deps.ids)
    any_order: bool = False
    """Whether collectors acknowledge in any order, whatever the mode."""

    max_producers: int = 256
    max_collectors: int = 64


@dataclass
class QueueSimulation:
    """One queue with its producers, collectors and faults."""

    world: World
    variant: Variant
    mode: CollectorMode
    shared: WatchedStore
    faults: Faults = ROUGH
    batches: int = BATCHES
    """How many batches each producer makes."""

    producers: list[Process] = field(default_factory=list)
    collectors: list[Process] = field(default_factory=list)
    stores: list[FaultStore] = field(default_factory=list)
    clocks: list[SimulatedClock] = field(default_factory=list)
    ending: bool = False
    names: int = 0
    leaves_no_doubt: bool = False
    """Whether the store always reports the outcome of a write."""

    def __post_init__(self) -> None:
        self.leaves_no_doubt = not self.faults.probability.keys() - {Fault.CONFLICT, Fault.PRECONDITION}

    def deps(self, *, slowness: float = 1.0) -> BufferDeps:
        """Return a process's dependencies: a view of the store, and a clock, which may be off by an hour."""
        world = self.world
        clock = SimulatedClock(world.loop, off_by=world.random.choice([0, 0, 0, -3600, 3600]))
        faults = replace(self.faults, median_seconds=slowness * self.faults.median_seconds)
        store = world.faulty(self.shared, faults)
        self.stores.append(store)
        self.clocks.append(clock)
        return BufferDeps(store=store, clock=clock, ids=world.ids, random=world.random, retries=QUICK_RETRIES)

    def calm_deps(self) -> BufferDeps:
        """Return dependencies without faults, for the end of a run."""
        world = self.world
        store = world.faulty(self.shared, NO_FAULTS)
        return BufferDeps(store=store, clock=world.clock, ids=world.ids, random=world.random)

    def stop_faults(self) -> None:
        """Inject no more faults. Writes that are to be applied later still are."""
        self.faults = CALM
        for store in self.stores:
            store.change_faults(CALM)

    @contextmanager
    def tried(self) -> Iterator[None]:
        """Run something that may fail; its outcome may be unknown only if the store can leave it open."""
        try:
            yield
        except Unavailable:
            return
        except OutcomeUnknown as error:
            if self.leaves_no_doubt:
                raise Violation(f"the store reports all outcomes, but a caller got: {error}") from error
            self.world.note(f"unknown: {error}")

    def files(self, deps: BufferDeps) -> ManifestPair:
        return ManifestPair.of(self.shared.pairs[0].pair, deps)

    def producer(self, deps: BufferDeps) -> Producer:
        return self.variant.producer(
            self.files(deps).producer,
            deps,
            data_path_prefix=PREFIX,
            max_producers=self.variant.max_producers,
        )

    def consumer(self, deps: BufferDeps) -> Consumer:
        return self.variant.consumer(
            self.files(deps),
            deps,
            mode=self.mode,
            timeout=TIMEOUT,
            max_collectors=self.variant.max_collectors,
        )

    async def clean_up(self, deps: BufferDeps, acknowledged: Collection[str]) -> None:
        kind = self.variant.cleanup_after(self.variant.clean_up, acknowledged)
        with self.tried():
            try:
                await kind(pair=self.files(deps), deps=deps, backoff=QUICK).run()
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


async def produce(name: str, sim: QueueSimulation) -> None:
    """Store and queue a few batches, some while others are still on their way; and now and then a foreign key."""
    world, history, deps = sim.world, sim.shared.history, sim.deps()
    producer = sim.producer(deps)
    batches = BatchStore(PREFIX, deps, PrefixOwner(PREFIX, MANIFEST, deps))

    async def outcome(entry: str, queued: Awaitable[str]) -> None:
        with sim.tried():
            try:
                location = await queued
            except Unavailable:
                history.refused.add(entry)
                world.note(f"{entry} is refused")
            else:
                history.confirmed.update(sim.shared.entries(location))
                world.note(f"{entry} is confirmed")

    under_way = []
    for number in range(sim.batches):
        entry = f"{name}.{number}"
        if world.random.random() < 0.2:
            location = sim.variant.entry(FOREIGN, deps)
            under_way.append(asyncio.create_task(outcome(location, producer.append(location))))
            continue
        body = encode_json([KeyValueEntry(b"", entry.encode())])
        try:
            stored = await store_for_producer(producer, batches, body)
        except Unavailable:
            history.refused.add(entry)
            continue
        queued = producer.enqueue(stored.location, gc=stored.gc, store_again=again(batches, body))
        under_way.append(asyncio.create_task(outcome(entry, queued)))
        if world.random.random() < 0.6:
            await under_way[-1]
    for each in under_way:
        await each


def again(batches: BatchStore, body: bytes) -> Callable[[], Awaitable[str]]:
    return lambda: batches.store(body)


async def collect(sim: QueueSimulation) -> None:
    """Run collectors of one process, one after the other: a fenced one is replaced."""
    while not sim.ending:
        with suppress(Fenced):
            await collect_until_fenced(sim)
        sim.world.note("is fenced, or is done")


async def collect_until_fenced(sim: QueueSimulation) -> None:
    world, deps = sim.world, sim.deps()
    consumer = sim.consumer(deps)
    beating = asyncio.create_task(beat(consumer, sim, deps))
    idle = 0.3
    try:
        while not sim.ending:
            claims: Sequence[Claim] = ()
            with sim.tried():
                claims = await consumer.claim(world.random.randint(1, 3))
                await process(claims, consumer, sim, deps)
            idle = 0.3 if claims else min(10.0, idle * 4)
            if not claims:
                await deps.clock.sleep(world.random.uniform(0, idle))
    except Fenced:
        sim.shared.pairs[0].fence(consumer.held, consumer.id, consumer.epoch)
        raise
    finally:
        beating.cancel()


async def beat(consumer: Consumer, sim: QueueSimulation, deps: BufferDeps) -> None:
    while True:
        await deps.clock.sleep(TIMEOUT / 3)
        try:
            with sim.tried():
                await consumer.heartbeat()
        except Fenced:
            return


async def process(claims: Sequence[Claim], consumer: Consumer, sim: QueueSimulation, deps: BufferDeps) -> None:
    """Hand out, process for a while, acknowledge one by one or all at once, and clean up."""
    world = sim.world
    handed = []
    for claim in claims:
        await fetch(claim, consumer, sim, deps)
        sim.shared.hand_out(claim.location, consumer.id, claim.epoch)
        world.note(f"hands out {sim.shared.name(claim.location)}")
        handed.append(claim.location)
        await deps.clock.sleep(world.random.uniform(0, 0.05))
    while handed:
        some = handed[: world.random.randint(1, len(handed))]
        if sim.mode is CollectorMode.COMPETING or sim.variant.any_order:
            some = world.random.sample(handed, len(some))
        waiting = THRESHOLD  # a clean-up at an odd moment must do no harm
        with sim.tried():
            try:
                for claim in claims:  # as a reader does: a heartbeat may have found that its ack is lost
                    if claim.location in some:
                        check_outcome_known(claim)
                waiting = await consumer.ack(some)
            except OutcomeLost:
                handed = [location for location in handed if location in consumer.held]
                raise
            sim.shared.acknowledge(some, consumer.id)
            handed = [location for location in handed if location not in some]
        if waiting >= THRESHOLD:
            await sim.clean_up(deps, some)


async def fetch(claim: Claim, consumer: Consumer, sim: QueueSimulation, deps: BufferDeps) -> None:
    """Get a claimed batch; if it is gone, the claim must be gone too."""
    if object_key(claim.location) == FOREIGN:
        return
    while True:
        with suppress(Unavailable):
            if await deps.store.get(claim.location) is not None:
                return
            await consumer.verify_not_fenced()
            raise Violation(f"{sim.shared.name(claim.location)} is ours, and gone")


# --- the end


async def finish(sim: QueueSimulation) -> None:
    """Check that everything ends in time once faults have stopped, and that nothing is left."""
    world = sim.world
    at_most = 3_600.0
    if world.random.random() < 0.5:
        sim.stop_faults()
        at_most = CONFIRMED_WITHIN
    await world.until(*sim.producers, at_most=at_most)
    if world.random.random() < 0.3:
        await world.clock.sleep(world.random.choice([1, 40]))  # what is queued is left to the last collector
    else:
        sim.stop_faults()
        await confirmed_in_time(sim)
        await delivered_in_time(sim)
    sim.ending = True
    await world.until(*sim.collectors, at_most=DELIVERED_WITHIN)
    await sim.drain()
    sim.shared.check_end()


async def confirmed_in_time(sim: QueueSimulation) -> None:
    """Start one more producer after faults have stopped: everything that it queues must be confirmed."""
    if type(sim) is not QueueSimulation:
        return  # in other kinds of simulation producers may be refused, or cancel calls
    sim.start_producer()
    name = sim.producers[-1].name
    await sim.world.until(sim.producers[-1], at_most=CONFIRMED_WITHIN)
    history = sim.shared.history
    stored = {entry for entries in history.entries.values() for entry in entries if entry.startswith(f"{name}.")}
    if late := (stored | {entry for entry in history.refused if entry.startswith(f"{name}.")}) - history.confirmed:
        raise Violation(f"{sorted(late)} are not confirmed, and nothing has failed")


async def delivered_in_time(sim: QueueSimulation) -> None:
    """Wait until what is queued now is handed out by the running collectors."""
    world, delivered = sim.world, sim.shared.history.delivered
    deadline = world.clock.monotonic() + DELIVERED_WITHIN
    queued = sim.shared.undelivered()
    while world.failure is None and (late := queued - delivered):
        if world.clock.monotonic() > deadline:
            raise Violation(f"{sorted(late)} are not handed out after {DELIVERED_WITHIN} s without faults")
        await world.clock.sleep(1)


async def drain(sim: QueueSimulation) -> None:
    """After faults have stopped, run a last collector, a cleanup and a GC, which must leave nothing."""
    deps = sim.calm_deps()
    consumer = Consumer(
        sim.files(deps),
        deps,
        mode=sim.mode,
        timeout=TIMEOUT,
        max_collectors=sim.variant.max_collectors,
    )
    await deps.clock.sleep(LATEST_WRITE)
    clean_up = QueueCleanup(pair=sim.files(deps), deps=deps, backoff=QUICK)
    for _ in range(10):
        while claims := await consumer.claim(THRESHOLD):
            for claim in claims:
                await fetch(claim, consumer, sim, deps)
                sim.shared.hand_out(claim.location, consumer.id, claim.epoch)
            await consumer.ack([claim.location for claim in claims])
            await clean_up.run()
        if not sim.shared.open:
            break
        await deps.clock.sleep(7_300)  # heartbeats with a time in the future are stale by now
    await clean_up.run()
    with suppress(Unavailable):  # if nothing was ever queued, the owner of the batches is unknown
        await orphans(OrphanGc, deps, grace=0).run()


def orphans(kind: type[OrphanGc], deps: BufferDeps, *, grace: float, manifest_path: str = MANIFEST) -> OrphanGc:
    return kind(
        data_path_prefix=PREFIX,
        manifest_path=manifest_path,
        deps=deps,
        grace_seconds=grace,
    )
