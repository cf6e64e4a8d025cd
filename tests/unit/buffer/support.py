"""Tests in virtual time, a store whose calls a test can delay or break, and a queue in it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial, wraps
from inspect import Signature, signature
from typing import Any, Concatenate, ParamSpec, overload

import pytest

from lakehead.buffer.collector import CollectedBatch, Collector
from lakehead.buffer.config import CollectorConfig, CollectorMode, IngestorConfig, ObjectStoreConfig
from lakehead.buffer.deps import BufferDeps
from lakehead.buffer.ingestor import Ingestor
from lakehead.buffer.layout import ManifestKeys
from lakehead.errors import OutcomeUnknown, Unavailable
from lakehead.storage.memory_store import MemoryStore
from lakehead.storage.port import Created, Exists, ListedObject, Object, ObjectMeta, Replaced, Stale, Version
from lakehead.wire.batch import BatchLimits, KeyValueEntry
from lakehead.wire.queue_manifests import ConsumerManifest, ProducerManifest
from tests.support.simulation import SimulatedClock, World

MANIFEST = "ingest/manifest.json"
PAIR = ManifestKeys.of(MANIFEST)
WHERE = ObjectStoreConfig(url="memory://")
P = ParamSpec("P")
Call = tuple[str, str]
"""The method of a store that is called, and the key."""

NEWER = b"LKB2" + bytes(40)
"""A batch of a newer format."""

LOST = OutcomeUnknown("no answer")
DOWN = Unavailable("the store is down")
in_both_modes = pytest.mark.parametrize("mode", list(CollectorMode))


def anything(_: Call) -> bool:
    return True


def batches(call: Call) -> bool:
    return call[1].endswith(".batch")


def writes(key: str) -> Callable[[Call], bool]:
    return lambda call: call[1] == key and call[0] in ("create", "replace")


class ControlledStore:
    """A store in memory whose calls a test can count, delay and let fail."""

    def __init__(self, world: World, inner: MemoryStore | None = None) -> None:
        self.inner = inner or MemoryStore(clock=world.clock)
        self.calls: list[Call] = []
        self._clock = world.clock
        self._held: Callable[[Call], bool] | None = None
        self._released: asyncio.Future[None] | None = None
        self._broken: list[tuple[Callable[[Call], bool], Exception, bool, list[int]]] = []

    def hold_calls(self, which: Callable[[Call], bool]) -> None:
        """Let calls of a kind wait until `release_calls`."""
        self._held, self._released = which, asyncio.get_running_loop().create_future()

    def release_calls(self) -> None:
        assert self._released is not None
        self._held = None
        self._released.set_result(None)

    def fail_calls(
        self, which: Callable[[Call], bool], error: Exception, *, times: int = 10**9, applied: bool = False
    ) -> None:
        """Let the next calls of a kind fail; `applied` if only after they were carried out."""
        self._broken.append((which, error, applied, [times]))

    def stop_failing(self) -> None:
        self._broken.clear()

    def count(self, which: Callable[[Call], bool]) -> int:
        return sum(map(which, self.calls))

    async def _pass(self, call: Call, work: Callable[[], Awaitable[Any]]) -> Any:
        self.calls.append(call)
        await self._clock.sleep(0)
        while self._held is not None and self._held(call):
            assert self._released is not None
            await asyncio.shield(self._released)
        for which, error, applied, left in self._broken:
            if left[0] and which(call):
                left[0] -= 1
                if applied:
                    await work()
                raise error
        return await work()

    async def create(self, key: str, body: bytes) -> Created | Exists:
        return await self._pass(("create", key), lambda: self.inner.create(key, body))  # type: ignore[no-any-return]  # passed on

    async def replace(self, key: str, body: bytes, version: Version) -> Replaced | Stale:
        return await self._pass(("replace", key), lambda: self.inner.replace(key, body, version))  # type: ignore[no-any-return]  # passed on

    async def put(self, key: str, body: bytes) -> Version:
        return await self._pass(("put", key), lambda: self.inner.put(key, body))  # type: ignore[no-any-return]  # passed on

    async def get(self, key: str, *, start: int = 0, end: int | None = None) -> Object | None:
        return await self._pass(("get", key), lambda: self.inner.get(key, start=start, end=end))  # type: ignore[no-any-return]  # passed on

    async def head(self, key: str) -> ObjectMeta | None:
        return await self._pass(("head", key), lambda: self.inner.head(key))  # type: ignore[no-any-return]  # passed on

    async def delete(self, key: str) -> None:
        await self._pass(("delete", key), lambda: self.inner.delete(key))

    async def list(self, folder: str = "", *, start_after: str = "") -> AsyncIterator[Sequence[ListedObject]]:
        async for page in self.inner.list(folder, start_after=start_after):
            yield page


@dataclass
class QueueFixture:
    """A queue in a controlled store, and ingestors and collectors for it."""

    world: World
    store: ControlledStore

    @property
    def clock(self) -> SimulatedClock:
        return self.world.clock

    def deps(self) -> BufferDeps:
        return BufferDeps(store=self.store, clock=self.clock, ids=self.world.ids, random=self.world.random)

    async def sleep(self, seconds: float) -> None:
        await self.world.clock.sleep(seconds)

    def ingestor(self, **settings: Any) -> Ingestor:
        return Ingestor(
            IngestorConfig(object_store_config=WHERE, **settings),
            self.clock,
            store=self.store,
            ids=self.world.ids,
            random=self.world.random,
        )

    def collector(
        self, *, clock: SimulatedClock | None = None, limits: BatchLimits | None = None, **settings: Any
    ) -> Collector:
        return Collector(
            CollectorConfig(object_store_config=WHERE, **settings),
            clock or self.clock,
            store=self.store,
            ids=self.world.ids,
            random=self.world.random,
            limits=limits,
        )

    async def fill(self, *values: str, **settings: Any) -> None:
        """Flush one batch for each value."""
        async with self.ingestor(**settings) as ingestor:
            for value in values:
                await (await ingestor.ingest(entries(value))).await_durable()

    async def keys(self, folder: str = "") -> list[str]:
        return [entry.key async for page in self.store.inner.list(folder) for entry in page]

    async def batch_keys(self) -> list[str]:
        return [key for key in await self.keys("ingest") if key.endswith(".batch") and key.count("/") == 1]

    async def producer_manifest(self, key: str = PAIR.producer) -> ProducerManifest:
        there = await self.store.inner.get(key)
        return ProducerManifest.decode(there.body if there else b"{}", key)

    async def consumer_manifest(self, key: str = PAIR.consumer) -> ConsumerManifest:
        there = await self.store.inner.get(key)
        return ConsumerManifest.decode(there.body if there else b"{}", key)

    async def next_two(self, collector: Collector) -> tuple[CollectedBatch, CollectedBatch]:
        """Return the next two batches that a collector hands out."""
        first, second = await collector.next_batch(), await collector.next_batch()
        assert first is not None
        assert second is not None
        return first, second

    async def collect_all(self, collector: Collector) -> list[str]:
        """Acknowledge everything that a collector hands out; return the values."""
        found = []
        while (batch := await collector.next_batch()) is not None:
            found += values(batch)
            await collector.ack(batch)
        return found


def entries(*values: str) -> list[KeyValueEntry]:
    return [KeyValueEntry(b"key", value.encode()) for value in values]


def values(batch: CollectedBatch | None) -> list[str]:
    assert batch is not None
    return [entry.value.decode() for entry in batch.entries]


QueueTest = Callable[Concatenate[QueueFixture, P], Coroutine[Any, Any, None]]


@overload
def virtual_time(test: QueueTest[P]) -> Callable[P, None]: ...
@overload
def virtual_time(*, seeds: int) -> Callable[[QueueTest[P]], Callable[P, None]]: ...
def virtual_time(test: Any = None, *, seeds: int = 3) -> Any:
    """Run a coroutine test in virtual time, with a new queue for each of a few orders that its awaits allow."""
    if test is None:
        return partial(virtual_time, seeds=seeds)

    @wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        for seed in range(seeds):
            world = World(seed)
            world.loop.simulate(test(QueueFixture(world, ControlledStore(world)), *args, **kwargs))

    first, *others = signature(test).parameters.values()
    del first  # the queue is ours, not a fixture of pytest
    run.__signature__ = Signature(others)  # type: ignore[attr-defined]  # what pytest reads
    return run


def seconds(number: float) -> timedelta:
    return timedelta(seconds=number)


async def overwrite(queue: QueueFixture, which: Collection[int], body: bytes) -> None:
    """Put something else in the place of some of the batches that are queued."""
    for number, location in enumerate((await queue.producer_manifest()).pending):
        if number in which:
            await queue.store.inner.put(location, body)
