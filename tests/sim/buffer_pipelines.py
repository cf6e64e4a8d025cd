"""Whole pipelines: ingestors and collectors, with every disruption of the queue between them."""

import asyncio
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from datetime import timedelta

from lakehead.buffer.collector import CollectedBatch, Collector
from lakehead.buffer.config import BatchFormat, CollectorConfig, CollectorMode, IngestorConfig, ObjectStoreConfig
from lakehead.buffer.deps import BufferDeps
from lakehead.buffer.errors import Fenced, InvalidCall
from lakehead.buffer.ingestor import Ingestor
from lakehead.buffer.watcher import Durable, WriteWatcher
from lakehead.errors import Misconfigured, OutcomeUnknown, Unavailable
from lakehead.wire.batch import KeyValueEntry
from tests.sim.buffer_disruptions import ALL, buffer
from tests.sim.buffer_model import MANIFEST
from tests.sim.buffer_support import THRESHOLD, TIMEOUT, QueueSimulation, Variant
from tests.support.simulation import Scenario, Violation

WHERE = ObjectStoreConfig(url="memory://")
CALLS = 3


class Pipeline(QueueSimulation):
    """A simulation with real ingestors and collectors."""

    async def produce(self, name: str) -> None:
        await ingest(name, self)

    async def collect(self) -> None:
        await collect(self)


async def ingest(name: str, sim: QueueSimulation, *, manifest_path: str = MANIFEST) -> None:
    """Ingest some entries, wait for some of them, cancel some of the waiting, and close."""
    world, deps = sim.world, sim.deps()
    config = IngestorConfig(
        object_store_config=WHERE,
        manifest_path=manifest_path,
        flush_interval=timedelta(milliseconds=world.random.choice([1, 100])),
        flush_size_bytes=world.random.choice([0, 20]),
        max_unflushed_bytes=world.random.choice([0, 40, 10**6]),
        batch_format=world.random.choice([BatchFormat.JSON, BatchFormat.COMPACT]),
    )
    ingestor = Ingestor(config, deps.clock, store=deps.store, ids=deps.ids, random=deps.random)
    watchers: list[tuple[str, WriteWatcher]] = []
    for number in range(CALLS):
        entry = f"{name}.{number}"
        call = asyncio.create_task(ingestor.ingest([KeyValueEntry(b"", entry.encode())]))
        if world.random.random() < 0.1:
            await deps.clock.sleep(world.random.uniform(0, 0.1))
            call.cancel()
            await asyncio.wait([call])
        else:
            await asyncio.wait([call])
        if call.cancelled() or isinstance(call.exception(), Misconfigured):
            sim.shared.history.refused.add(entry)
            continue
        watchers.append((entry, call.result()))
        if world.random.random() < 0.4:
            await wait_or_lose_patience(watchers[-1][1], deps.clock.sleep(world.random.uniform(0, 1)))
        tell(sim, watchers)
    with suppress(Unavailable, OutcomeUnknown, Misconfigured):
        await ingestor.close()
    tell(sim, watchers)
    if open_ones := [entry for entry, watcher in watchers if watcher.result() is None]:
        raise Violation(f"the ingestor is closed, and nobody knows what became of {open_ones}")


async def wait_or_lose_patience(watcher: WriteWatcher, patience: Awaitable[None]) -> None:
    async def wait() -> None:
        with suppress(Unavailable, OutcomeUnknown, Misconfigured):
            await watcher.await_durable()

    waiting = asyncio.create_task(wait())
    await patience
    waiting.cancel()
    with suppress(asyncio.CancelledError):
        await waiting


def tell(sim: QueueSimulation, watchers: Sequence[tuple[str, WriteWatcher]]) -> None:
    """Record what watchers report in the history, which is checked at the end."""
    history = sim.shared.history
    for entry, watcher in watchers:
        match watcher.result():
            case Durable((location,)):
                if entry not in sim.shared.entries(location):
                    raise Violation(f"{entry} is said to be in {location}")
                if location not in sim.shared.pair_of:
                    raise Violation(f"{entry} is said to be durable, and is not queued")
                history.confirmed.add(entry)
            case Unavailable() | Misconfigured():
                history.refused.add(entry)
            case _:
                continue


async def collect(sim: QueueSimulation, *, manifest_path: str = MANIFEST) -> None:
    """Run collectors of one process, one after the other: a fenced one is replaced."""
    while not sim.ending:
        deps = sim.deps()
        config = collector_config(sim, manifest_path)
        async with Collector(config, deps.clock, store=deps.store, ids=deps.ids, random=deps.random) as collector:
            with suppress(Fenced):
                await collect_until_fenced(collector, sim)


def collector_config(sim: QueueSimulation, manifest_path: str) -> CollectorConfig:
    """Return settings for one more collector."""
    return CollectorConfig(
        object_store_config=WHERE,
        manifest_path=manifest_path,
        heartbeat_timeout_ms=timedelta(seconds=TIMEOUT),
        done_cleanup_threshold=THRESHOLD,
        mode=sim.mode,
        read_ahead=sim.world.random.randint(1, 3),
        read_ahead_bytes=sim.world.random.choice([1, 10**6]),
    )


async def collect_until_fenced(collector: Collector, sim: QueueSimulation) -> None:
    world = sim.world
    held: list[CollectedBatch] = []
    idle = 0.3
    while not sim.ending:
        try:
            batch = await collector.next_batch()
        except (Unavailable, OutcomeUnknown):
            continue
        if batch is not None:
            sim.shared.hand_out(batch.location, batch.collector, batch.epoch)
            if [entry.value.decode() for entry in batch.entries] != sim.shared.entries(batch.location):
                raise Violation(f"{batch.location} is not what was stored")
            held.append(batch)
            idle = 0.3
        if held and world.random.random() < 0.1:
            held = await release(collector, held, sim)
        if held and (batch is None or world.random.random() < 0.6):
            some = held if sim.mode is CollectorMode.ORDERED else world.random.sample(held, len(held))
            try:
                with suppress(Unavailable, OutcomeUnknown):
                    await collector.ack(*some)
                    for each in some:
                        sim.shared.acknowledge([each.location], each.collector)
                    held = []
            except InvalidCall:
                held = []  # a release that was in doubt has landed; what is still ours goes back when it is closed
                return
        if batch is None:
            idle = min(10.0, idle * 4)
            await world.clock.sleep(world.random.uniform(0, idle))


async def release(collector: Collector, held: list[CollectedBatch], sim: QueueSimulation) -> list[CollectedBatch]:
    """Release one batch, and in ordered mode all behind it in its partition; return what is left."""
    number = sim.world.random.randrange(len(held))
    chosen = held[number]
    behind = [each for each in held[number:] if each.partition == chosen.partition]
    gone = behind if sim.mode is CollectorMode.ORDERED else [chosen]
    sim.world.note(f"releases {sim.shared.name(chosen.location)}")
    try:
        await collector.release(chosen)
    except (Unavailable, OutcomeUnknown):
        return held  # it may be released, or be released yet, and then a refusal tells
    except InvalidCall:  # an acknowledgement that was cut off has landed
        sim.shared.acknowledge([chosen.location], chosen.collector)
        return [each for each in held if each is not chosen]
    for each in gone:
        try:
            await collector.ack(each)
        except InvalidCall:
            continue
        raise Violation(f"{sim.shared.name(each.location)} was released, and then acknowledged")
    return [each for each in held if each not in gone]


async def read_all(sim: QueueSimulation, deps: BufferDeps, *, manifest_path: str = MANIFEST) -> None:
    """Collect until nothing is left, with one collector after the other."""
    config = collector_config(sim, manifest_path)
    for _ in range(10):
        async with Collector(config, deps.clock, store=deps.store, ids=deps.ids, random=deps.random) as collector:
            while (batch := await collector.next_batch()) is not None:
                sim.shared.hand_out(batch.location, batch.collector, batch.epoch)
                await collector.ack(batch)
        if not sim.shared.open:
            return
        await deps.clock.sleep(7_300)  # whoever wrote a time that lies in the future is given up now


PIPELINES: dict[str, Scenario] = {"buffer_pipeline": buffer(Variant(), None, *ALL, kind=Pipeline)}
