"""Virtual time, a store that a test can hold up or break, and a queue in it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest

from lakehead.buffer.collector import CollectedBatch, Collector
from lakehead.buffer.config import CollectorConfig, IngestorConfig, ObjectStoreConfig
from lakehead.buffer.consumer import Mode
from lakehead.buffer.ingestor import Ingestor
from lakehead.buffer.layout import Pair
from lakehead.buffer.means import Means
from lakehead.errors import OutcomeUnknown, Unavailable
from lakehead.storage.memory import MemoryStore
from lakehead.storage.port import Created, Entry, Exists, Meta, Object, Replaced, Stale, Version
from lakehead.wire.batch import KeyValueEntry, Limits
from lakehead.wire.queue_manifests import ConsumerManifest, ProducerManifest
from tests.sim.world import SimulatedClock, World

MANIFEST = "ingest/manifest.json"
PAIR = Pair.of(MANIFEST)
WHERE = ObjectStoreConfig(url="memory://")
Call = tuple[str, str]
"""What is asked of a store, and for which key."""

LOST = OutcomeUnknown("no answer")
DOWN = Unavailable("the store is down")
in_both_modes = pytest.mark.parametrize("mode", list(Mode))


def anything(_: Call) -> bool:
    return True


def batches(call: Call) -> bool:
    return call[1].endswith(".batch")


def writes(key: str) -> Callable[[Call], bool]:
    return lambda call: call[1] == key and call[0] in ("create", "replace")


class GateStore:
    """A store in memory whose calls a test sees, holds up and breaks."""

    def __init__(self, world: World, inner: MemoryStore | None = None) -> None:
        self.inner = inner or MemoryStore(clock=world.clock)
        self.calls: list[Call] = []
        self._clock = world.clock
        self._held: Callable[[Call], bool] | None = None
        self._opened: asyncio.Future[None] | None = None
        self._broken: list[tuple[Callable[[Call], bool], Exception, bool, list[int]]] = []

    def hold(self, which: Callable[[Call], bool]) -> None:
        self._held, self._opened = which, asyncio.get_running_loop().create_future()

    def release(self) -> None:
        assert self._opened is not None
        self._held = None
        self._opened.set_result(None)

    def break_(
        self, which: Callable[[Call], bool], error: Exception, *, times: int = 10**9, applied: bool = False
    ) -> None:
        """The next calls of a kind fail, after they were carried out or instead of that."""
        self._broken.append((which, error, applied, [times]))

    def mend(self) -> None:
        self._broken.clear()

    def count(self, which: Callable[[Call], bool]) -> int:
        return sum(map(which, self.calls))

    async def _pass(self, call: Call, work: Callable[[], Awaitable[Any]]) -> Any:
        self.calls.append(call)
        await self._clock.sleep(0)
        while self._held is not None and self._held(call):
            assert self._opened is not None
            await asyncio.shield(self._opened)
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

    async def head(self, key: str) -> Meta | None:
        return await self._pass(("head", key), lambda: self.inner.head(key))  # type: ignore[no-any-return]  # passed on

    async def delete(self, key: str) -> None:
        await self._pass(("delete", key), lambda: self.inner.delete(key))

    async def list(self, folder: str = "", *, start_after: str = "") -> AsyncIterator[Sequence[Entry]]:
        async for page in self.inner.list(folder, start_after=start_after):
            yield page


@dataclass
class Scene:
    world: World
    store: GateStore
    opened: list[Ingestor | Collector] = field(default_factory=list)

    @property
    def clock(self) -> SimulatedClock:
        return self.world.clock

    def means(self) -> Means:
        return Means(store=self.store, clock=self.clock, ids=self.world.ids, random=self.world.random)

    async def later(self, seconds: float) -> None:
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
        self, *, clock: SimulatedClock | None = None, limits: Limits | None = None, **settings: Any
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
        """One batch for each value."""
        async with self.ingestor(**settings) as ingestor:
            for value in values:
                await (await ingestor.ingest(entries(value))).await_durable()

    async def keys(self, folder: str = "") -> list[str]:
        return [entry.key async for page in self.store.inner.list(folder) for entry in page]

    async def batch_keys(self) -> list[str]:
        return [key for key in await self.keys("ingest") if key.endswith(".batch") and key.count("/") == 1]

    async def producer(self, key: str = PAIR.producer) -> ProducerManifest:
        there = await self.store.inner.get(key)
        return ProducerManifest.decode(there.body if there else b"{}", key)

    async def consumer(self, key: str = PAIR.consumer) -> ConsumerManifest:
        there = await self.store.inner.get(key)
        return ConsumerManifest.decode(there.body if there else b"{}", key)

    async def two_of(self, collector: Collector) -> tuple[CollectedBatch, CollectedBatch]:
        """The next two batches that a collector hands out."""
        first, second = await collector.next_batch(), await collector.next_batch()
        assert first is not None
        assert second is not None
        return first, second

    async def all_of(self, collector: Collector) -> list[str]:
        """Everything that a collector hands out, acknowledged; the values."""
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


def play(story: Callable[[Scene], Coroutine[Any, Any, None]], *, seeds: int = 3) -> None:
    """Tell a story in virtual time, in a few of the orders that its awaits allow."""
    for seed in range(seeds):
        world = World(seed)
        world.loop.simulate(story(Scene(world, GateStore(world))))


def seconds(number: float) -> timedelta:
    return timedelta(seconds=number)
