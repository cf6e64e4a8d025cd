"""A queue whose number of partitions changes, again and again, while ingestors for the old and the new number write."""

import json
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta

from lakehead.buffer.config import CollectorMode, IngestorConfig
from lakehead.buffer.deps import BufferDeps
from lakehead.buffer.errors import InvalidCall
from lakehead.buffer.ingestor import Ingestor
from lakehead.buffer.layout import ManifestKeys
from lakehead.buffer.manifests import ManifestPair
from lakehead.buffer.orphan_gc import OrphanGc
from lakehead.buffer.queue_cleanup import QueueCleanup
from lakehead.buffer.repartition import Repartition
from lakehead.buffer.watcher import Durable, WriteWatcher
from lakehead.errors import Misconfigured, OutcomeUnknown, Unavailable
from lakehead.storage.port import Object, Replaced, Stale, Store, Version
from lakehead.wire.batch import KeyValueEntry
from tests.faults.store import Fault, Faults
from tests.sim.buffer_disruptions import Disruption, collect_orphans, crash
from tests.sim.buffer_model import MANIFEST, WatchedStore
from tests.sim.buffer_pipelines import WHERE, Pipeline, read_all, tell
from tests.sim.buffer_support import LATEST_WRITE, QUICK, QueueSimulation, Variant, finish, orphans
from tests.support.simulation import Scenario, Violation, World

MOST = 4
CALLS = 2
KEYS = (b"a", b"b", b"c", b"g")
"""With two, three and four partitions they go to different ones."""

SLOW = 80
"""How much longer every request of some ingestors takes: a queue may change several times while they store a batch."""

MILD = Faults(dict.fromkeys(Fault, 0.008))


@dataclass
class Partitioned(Pipeline):
    """A queue of several pairs, written by ingestors that are made for some number of them."""

    repartition: type[Repartition] = Repartition

    @property
    def partitions(self) -> int:
        """How many there are now, as the first pair says."""
        return self.shared.pairs[0].producer.get("partitions") or 1

    async def produce(self, name: str) -> None:
        await ingest_into_partitions(name, self)

    async def drain(self) -> None:
        await drain_all(self)


async def ingest_into_partitions(name: str, sim: Partitioned) -> None:
    """Ingest with one ingestor after the other: each is made for a number that is, was, or may come to be."""
    world = sim.world
    deps = sim.deps(slowness=world.random.choice([1, SLOW]))
    left = CALLS
    while left:
        partitions = world.random.choice([sim.partitions, sim.partitions, MOST, world.random.randint(1, MOST)])
        config = ingestor_config(partitions)
        ingestor = Ingestor(config, deps.clock, store=deps.store, ids=deps.ids, random=deps.random)
        world.note(f"ingests into {partitions} partitions")
        watchers: list[tuple[str, WriteWatcher]] = []
        for _ in range(world.random.randint(1, left)):
            key = world.random.choice(KEYS)
            entry = f"{name}{key.decode()}.{CALLS - left}"
            left -= 1
            watchers.append((entry, await ingestor.ingest([KeyValueEntry(key, entry.encode())])))
            if world.random.random() < 0.5:
                with suppress(Unavailable, OutcomeUnknown, Misconfigured):
                    await watchers[-1][1].await_durable()
        with suppress(Unavailable, OutcomeUnknown, Misconfigured):
            await ingestor.close()
        tell(sim, watchers)


def ingestor_config(partitions: int) -> IngestorConfig:
    return IngestorConfig(
        object_store_config=WHERE, flush_interval=timedelta(milliseconds=1), flush_size_bytes=0, partitions=partitions
    )


async def drain_all(sim: Partitioned) -> None:
    """Change the number once more, which makes up for whoever died over it; then all pairs work, and all come empty."""
    world, deps = sim.world, sim.calm_deps()
    await deps.clock.sleep(LATEST_WRITE)
    await read_all(sim, deps)
    partitions = world.random.randint(1, MOST)
    await Repartition(manifest_path=MANIFEST, deps=deps).run(partitions)
    config = ingestor_config(partitions)
    async with Ingestor(config, deps.clock, store=deps.store, ids=deps.ids, random=deps.random) as ingestor:
        entries = [KeyValueEntry(key, f"last{key.decode()}.0".encode()) for key in KEYS]
        watcher = await ingestor.ingest(entries)
    if not isinstance(watcher.result(), Durable):
        raise Violation(f"the queue was given {partitions} partitions, and does not take entries: {watcher.result()!r}")
    sim.shared.history.confirmed.update(entry.value.decode() for entry in entries)
    await read_all(sim, deps)
    for watched in sim.shared.pairs:
        await QueueCleanup(pair=ManifestPair.of(watched.pair, deps), deps=deps, backoff=QUICK).run()
    await orphans(OrphanGc, deps, grace=0).run()


# --- disruptions


async def change_partitions(sim: QueueSimulation) -> None:
    """Somebody changes the number of partitions, and may crash in the middle of it."""
    assert isinstance(sim, Partitioned)
    world = sim.world
    process = sim.process("operator")
    process.spawn(repartition(sim, sim.deps(), world.random.randint(1, MOST)))
    if world.random.random() < 0.2:
        await world.clock.sleep(world.random.uniform(0, 2))
        process.crash()


async def change_twice(sim: QueueSimulation) -> None:
    """Two change it at the same time."""
    await change_partitions(sim)
    await change_partitions(sim)


async def shrink_and_grow_back(sim: QueueSimulation) -> None:
    """Somebody takes partitions away, deletes orphans, and gives the queue its partitions back."""
    assert isinstance(sim, Partitioned)
    few = sim.world.random.randint(1, 2)

    async def work() -> None:
        deps = sim.deps()
        await repartition(sim, deps, few)
        with sim.tried():
            await orphans(sim.variant.orphans, deps, grace=0.01).run()
        await repartition(sim, deps, MOST)

    sim.process("operator").spawn(work())


async def hold_up(sim: QueueSimulation) -> None:
    """Somebody stands still for a while, and not long enough to be taken for gone."""
    victim = sim.world.random.choice([*sim.producers, *sim.collectors])
    victim.pause(sim.world.random.uniform(0.1, 10))


async def repartition(sim: Partitioned, deps: BufferDeps, partitions: int) -> None:
    """Try for a while: it is refused as long as something is left in the queue."""
    for _ in range(4):
        try:
            await sim.repartition(manifest_path=MANIFEST, deps=deps).run(partitions)
        except (InvalidCall, Unavailable, OutcomeUnknown):
            await deps.clock.sleep(sim.world.random.uniform(0, 3))
        else:
            sim.world.note(f"there are {partitions} partitions")
            return


# --- shorter protocols


class KeepsGcNumber:
    """A store through which no `gc` number changes."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._seen: dict[str, int] = {}

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    async def get(self, key: str, *, start: int = 0, end: int | None = None) -> Object | None:
        there = await self._store.get(key, start=start, end=end)
        if there is not None:
            self._seen[key] = json.loads(there.body).get("gc", 0)
        return there

    async def replace(self, key: str, body: bytes, version: Version) -> Replaced | Stale:
        manifest = {**json.loads(body), "gc": self._seen[key]}
        return await self._store.replace(key, json.dumps(manifest).encode(), version)


class RepartitionKeepsGc(Repartition):
    """Broken on purpose: seals and opens pairs, and leaves their `gc` numbers as they are."""

    async def run(self, partitions: int) -> None:
        store: Store = KeepsGcNumber(self.deps.store)  # type: ignore[assignment]  # the rest is passed on
        deps = replace(self.deps, store=store)
        await Repartition(manifest_path=self.manifest_path, deps=deps).run(partitions)


class RepartitionWhenDrained(Repartition):
    """Broken on purpose: sees that everything is acknowledged, and then writes the new number, without sealing."""

    async def run(self, partitions: int) -> None:
        pairs = [ManifestPair.of(ManifestKeys.of(self.manifest_path, number), self.deps) for number in range(MOST)]
        for pair in pairs:
            done = (await pair.consumer.read()).manifest.done
            if set((await pair.producer.read()).manifest.pending) - set(done):
                raise InvalidCall("not drained")
        for pair in pairs[: max(partitions, 1)]:
            seen = await pair.producer.read()
            with suppress(OutcomeUnknown):
                await pair.producer.write(seen, replace(seen.manifest, partitions=partitions, gc=seen.manifest.gc + 1))


TROUBLES: tuple[Disruption, ...] = (
    change_partitions,
    change_twice,
    shrink_and_grow_back,
    shrink_and_grow_back,
    collect_orphans,
    collect_orphans,
    hold_up,
    crash,
)


def partitions(kind: type[Repartition] = Repartition) -> Scenario:
    """Ingestors and collectors on a queue of 1 to 4 partitions, whose number changes meanwhile."""

    async def scenario(world: World) -> None:
        mode = world.random.choice(list(CollectorMode))
        shared = WatchedStore(world, ordered=mode is CollectorMode.ORDERED, most_pairs=MOST)
        sim = Partitioned(world, Variant(), mode, shared, MILD, repartition=kind)
        sim.start_collector()
        sim.start_producer()
        if world.random.random() < 0.4:  # while nobody has said yet how many partitions there are
            await world.clock.sleep(world.random.uniform(0, 8))
            await collect_orphans(sim, slowness=SLOW)
        for _ in range(world.random.randrange(2, 6)):
            await world.clock.sleep(world.random.expovariate(1))
            if world.random.random() < 0.4:
                sim.start_producer()
            await world.random.choice(TROUBLES)(sim)
        await finish(sim)

    return scenario


PARTITIONS_SOUND: dict[str, Scenario] = {"buffer_partitions": partitions()}
PARTITIONS_BROKEN: dict[str, Scenario] = {
    "buffer_partitions_keep_gc": partitions(RepartitionKeepsGc),
    "buffer_partitions_when_drained": partitions(RepartitionWhenDrained),
}
