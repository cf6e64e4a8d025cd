"""What the parts of the buffer benchmark share: a remote store, processes, and figures printed beside their targets."""

import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, TypeVar
from uuid import uuid4

from lakehead.buffer.collector import Collector
from lakehead.buffer.config import BatchFormat, CollectorConfig, IngestorConfig, ObjectStoreConfig
from lakehead.buffer.ingestor import Ingestor
from lakehead.clock import Clock, SystemClock
from lakehead.errors import LakeheadError
from lakehead.ids import RandomIds
from lakehead.storage.memory_store import MemoryStore
from lakehead.storage.open_store import open_store
from lakehead.storage.port import Store
from lakehead.wire.batch import KeyValueEntry
from tests.faults.store import Faults, FaultStore
from tests.servers.seaweed import BUCKET, Seaweed
from tests.support import simulated_loop
from tests.support.simulation import World

T = TypeVar("T")

KIB = 1024
MIB = 1024 * KIB
ONE_WAY = 0.0145
"""Median seconds each way, such that half of the round trips take 30 ms or longer."""

NO_WATERMARK = ObjectStoreConfig(url="memory://")  # every store is passed in
CLOCK = SystemClock()
WORDS = ["GET", "POST", "/api/v1/orders", "status=200", "status=404", "region=eu", "user=", "took", "INFO", "retry"]

Open = Callable[[], Store]
"""Opens another client of one and the same place, which is empty at first."""


def text(random: Random, size: int) -> bytes:
    """Bytes like those of logs, which zstd makes a third of."""
    line = b" ".join(f"{random.choice(WORDS)}{random.getrandbits(20)}".encode() for _ in range(size // 10 + 1))
    return line[:size]


def some_entries(size: int, count: int, make: Callable[[Random, int], bytes] = text) -> list[KeyValueEntry]:
    """Entries with values of that size, of which as many differ as make up more than zstd looks back on."""
    random = Random(size)
    values = [make(random, size) for _ in range(min(count, 12 * MIB // size))]
    return [KeyValueEntry(b"host-%d" % (number % 97), values[number % len(values)]) for number in range(count)]


def far(store: Store, seed: int, clock: Clock = CLOCK) -> FaultStore:
    """A store over a network without faults, whose slowest hundredth takes two or three times as long as most.

    The fault store's own delays have no such bound, so that every order of events can happen.
    """
    random = Random(seed)
    latency = partial(_one_way, random)
    return FaultStore(store, Faults({}), random=random, clock=clock, ids=RandomIds(), latency=latency)


def _one_way(random: Random) -> float:
    return ONE_WAY * random.lognormvariate(0, 0.4)


def in_virtual_time(measure: Callable[[Open, Clock], Coroutine[Any, Any, T]]) -> T:
    """Run a measurement in virtual time, in which only the store takes time, so that a busy machine changes nothing."""
    simulated_loop.MAX_STEPS = 10**9  # for tests, which may go on for ever; what is measured ends by itself
    world = World(1)
    inner = MemoryStore(clock=world.clock)
    return world.loop.simulate(measure(lambda: inner, world.clock))


@contextmanager
def local_places() -> Iterator[Callable[[], Open]]:
    """New places on a real disk; the usual place for temporary files may be memory."""
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:

        def new() -> Open:
            url = f"file://{folder}/{uuid4()}"
            return lambda: open_store(url)

        yield new


@contextmanager
def seaweed_places() -> Iterator[Callable[[], Open]]:
    """New places on a real S3 server."""
    with ExitStack() as stack:
        server = Seaweed(Path(stack.enter_context(tempfile.TemporaryDirectory())))
        stack.callback(server.stop)
        server.start()

        def new() -> Open:
            url = f"s3://{BUCKET}/{uuid4()}"
            return lambda: open_store(url, server.settings())

        yield new


def ingestor(store: Store, *, interval: float = 0.1, clock: Clock = CLOCK, **settings: Any) -> Ingestor:
    config = IngestorConfig(object_store_config=NO_WATERMARK, flush_interval=timedelta(seconds=interval), **settings)
    return Ingestor(config, clock, store=store)


async def pour(store: Store, entries: Sequence[KeyValueEntry], batch_format: BatchFormat, call: int) -> float:
    """Seconds until all of them are durable, so many in one call, flushed by size."""
    writer = ingestor(store, batch_format=batch_format, flush_size_bytes=8 * MIB, max_unflushed_bytes=64 * MIB)
    began = time.perf_counter()
    async with writer:
        for start in range(0, len(entries), call):
            await writer.ingest(entries[start : start + call])
    return time.perf_counter() - began


async def drain(store: Store) -> tuple[float, int]:
    """Seconds until all is read and acknowledged, and how many entries that were."""
    began, count = time.perf_counter(), 0
    async with Collector(CollectorConfig(object_store_config=NO_WATERMARK), CLOCK, store=store) as collector:
        while (batch := await collector.next_batch()) is not None:
            count += len(batch.entries)
            await collector.ack(batch)
    return time.perf_counter() - began, count


async def paced(writers: Sequence[Ingestor], *, seconds: float, every: float, clock: Clock = CLOCK) -> list[float]:
    """Seconds from `ingest` to durable, of an entry every so often into each ingestor; then they are closed.

    What fails is not among them: the ingestors count it.
    """
    entry = [KeyValueEntry(b"key", bytes(KIB))]
    took: list[float] = []

    async def one(writer: Ingestor) -> None:
        began = clock.monotonic()
        with suppress(LakeheadError):
            await (await writer.ingest(entry)).await_durable()
            took.append(clock.monotonic() - began)

    async def feed(writer: Ingestor) -> None:
        end, calls = clock.monotonic() + seconds, []
        while clock.monotonic() < end:
            calls.append(asyncio.create_task(one(writer)))
            await clock.sleep(every)
        with suppress(LakeheadError):
            await writer.close()
        await asyncio.gather(*calls)

    await asyncio.gather(*map(feed, writers))
    return took


async def round_trips(store: Store, *, clock: Clock = CLOCK) -> list[float]:
    """Seconds that single small requests take, a few at a time."""
    names, took = iter(range(1_000)), []

    async def worker() -> None:
        for number in names:
            began = clock.monotonic()
            await store.create(f"trips/{number}", b"x")
            took.append(clock.monotonic() - began)

    await asyncio.gather(*(worker() for _ in range(4)))
    return took


def percentile(values: Sequence[float], percent: int) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]
