"""The buffer on every kind of store, and on a real S3 server behind a network that does everything wrong."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from itertools import count
from typing import Any
from uuid import uuid4

import pytest

from lakehead.buffer.collector import CollectedBatch, Collector
from lakehead.buffer.config import BatchFormat, CollectorConfig, CollectorMode, IngestorConfig, ObjectStoreConfig
from lakehead.buffer.deps import BufferDeps
from lakehead.buffer.errors import Fenced
from lakehead.buffer.ingestor import Ingestor
from lakehead.buffer.inspection import inspect_partitions
from lakehead.buffer.layout import ManifestKeys, new_batch_key, owner_key
from lakehead.buffer.manifests import ManifestPair
from lakehead.buffer.orphan_gc import OrphanGc
from lakehead.buffer.repartition import Repartition
from lakehead.buffer.watcher import Durable, WriteWatcher
from lakehead.clock import SystemClock
from lakehead.errors import Unavailable
from lakehead.ids import RandomIds, system_random
from lakehead.storage.open_store import open_store
from lakehead.storage.port import Store
from lakehead.wire.batch import KeyValueEntry
from tests.contract.remote_support import hardly_any_pause
from tests.faults.proxy import Fault, Weather, proxy
from tests.servers.seaweed import BUCKET, Seaweed
from tests.support.async_tests import async_test

MANIFEST = "ingest/manifest.json"
WHERE = ObjectStoreConfig(url="memory://")
QUICK = timedelta(milliseconds=5)
ROUGH = Weather(seed=7, chances=dict.fromkeys(Fault, 0.02), typical_seconds=0.001, longest_seconds=0.1)


class ClockAhead(SystemClock):
    """A clock by which everybody else has been silent for an hour."""

    def now_ns(self) -> int:
        return super().now_ns() + 3_600 * 10**9


def ingestor(store: Store, **settings: Any) -> Ingestor:
    settings = {"flush_interval": QUICK, **settings}
    return Ingestor(IngestorConfig(object_store_config=WHERE, **settings), SystemClock(), store=store)


def collector(store: Store, *, ahead: bool = False, **settings: Any) -> Collector:
    clock = ClockAhead() if ahead else SystemClock()
    return Collector(CollectorConfig(object_store_config=WHERE, **settings), clock, store=store)


def deps(store: Store) -> BufferDeps:
    return BufferDeps(store=store, clock=SystemClock(), ids=RandomIds(), random=system_random())


def entries(*values: object) -> list[KeyValueEntry]:
    return [KeyValueEntry(b"key", str(value).encode()) for value in values]


def values(batch: CollectedBatch | None) -> list[str]:
    assert batch is not None
    return [entry.value.decode() for entry in batch.entries]


async def fill(store: Store, *all_values: object, **settings: Any) -> None:
    async with ingestor(store, **settings) as filling:
        for value in all_values:
            await (await filling.ingest(entries(value))).await_durable()


async def drain(collecting: Collector) -> list[str]:
    found = []
    while (batch := await collecting.next_batch()) is not None:
        found += values(batch)
        await collecting.ack(batch)
    return found


async def keys(store: Store, folder: str = "ingest") -> list[str]:
    return [entry.key async for page in store.list(folder) for entry in page]


@pytest.mark.parametrize("batch_format", list(BatchFormat))
@pytest.mark.parametrize("mode", list(CollectorMode))
@async_test
async def test_what_goes_in_comes_out_in_order_and_leaves_nothing_behind(
    store: Store, mode: CollectorMode, batch_format: BatchFormat
) -> None:
    async with ingestor(store, flush_size_bytes=200, batch_format=batch_format) as filling:
        watchers = [await filling.ingest(entries(number)) for number in range(200)]
    assert all(isinstance(watcher.result(), Durable) for watcher in watchers)
    async with collector(store, mode=mode, done_cleanup_threshold=1) as collecting:
        assert await drain(collecting) == [str(number) for number in range(200)]
    assert sorted(await keys(store)) == [owner_key("ingest"), "ingest/manifest.consumer.json", MANIFEST]


@async_test
async def test_ingestors_that_meet_lose_and_double_nothing(store: Store) -> None:
    await asyncio.gather(*(fill(store, *(f"{name}.{number}" for number in range(5))) for name in "abcd"))
    async with collector(store) as collecting:
        found = await drain(collecting)
    assert sorted(found) == sorted(f"{name}.{number}" for name in "abcd" for number in range(5))
    for name in "abcd":
        ours = [value for value in found if value.startswith(name)]
        assert ours == sorted(ours)


@pytest.mark.parametrize("mode", list(CollectorMode))
@async_test
async def test_a_collector_that_was_overtaken_is_fenced(store: Store, mode: CollectorMode) -> None:
    await fill(store, "a", "b")
    async with collector(store, mode=mode) as old, collector(store, mode=mode, ahead=True) as new:
        batch = await old.next_batch()
        assert batch is not None
        assert await drain(new) == ["a", "b"]
        with pytest.raises(Fenced):
            await old.ack(batch)
        with pytest.raises(Fenced):
            await old.next_batch()


@async_test
async def test_competing_collectors_share_a_queue(store: Store) -> None:
    await fill(store, *range(12))
    async with (
        collector(store, mode=CollectorMode.COMPETING, read_ahead=1) as one,
        collector(store, mode=CollectorMode.COMPETING, read_ahead=1) as other,
    ):
        first, second = await one.next_batch(), await other.next_batch()
        assert (values(first), values(second)) == (["0"], ["1"])
        assert first is not None
        assert second is not None
        await one.ack(first)
        await other.ack(second)
        shares = await asyncio.gather(drain(one), drain(other))
    assert sorted(int(value) for share in shares for value in share) == list(range(2, 12))


@async_test
async def test_orphans_are_collected_and_what_is_queued_is_not(store: Store) -> None:
    await fill(store, "queued")
    orphan = new_batch_key("ingest", RandomIds())
    await store.create(orphan, b"[]")
    gc = OrphanGc(data_path_prefix="ingest", manifest_path=MANIFEST, deps=deps(store), grace_seconds=0)
    assert await gc.run() == [orphan]
    async with collector(store) as collecting:
        assert await drain(collecting) == ["queued"]


@async_test
async def test_a_bad_batch_is_set_aside(store: Store) -> None:
    await fill(store, "a", "bad", "c")
    [now] = await inspect_partitions(MANIFEST, deps(store))
    await store.put(now.waiting[1], b"LKB1 and then nothing that makes sense")
    async with collector(store, done_cleanup_threshold=1) as collecting:
        assert await drain(collecting) == ["a", "c"]
    assert len(await keys(store, "ingest/manifest.quarantine")) == 2


@async_test
async def test_partitions_grow_when_a_queue_is_drained(store: Store) -> None:
    await fill(store, "one")
    async with collector(store) as collecting:
        assert await drain(collecting) == ["one"]
        await Repartition(manifest_path=MANIFEST, deps=deps(store)).run(3)
        async with ingestor(store, partitions=3) as filling:
            for number in range(10):
                await filling.ingest([KeyValueEntry(str(number).encode(), b"many")])
        assert await drain(collecting) == ["many"] * 10


# --- over a network that does everything wrong


@asynccontextmanager
async def rough_store(seaweed: Seaweed) -> AsyncIterator[tuple[Store, Store]]:
    """A store through rough weather, and the same one through none."""
    url = f"s3://{BUCKET}/{uuid4()}"
    async with proxy(seaweed.endpoint, weather=ROUGH) as between:
        settings = seaweed.settings(endpoint=between.endpoint, request_timeout=1.0)
        yield open_store(url, replace(settings, backoff=hardly_any_pause(4))), open_store(url, seaweed.settings())


async def ingest_stubbornly(name: str, store: Store, told: dict[str, Sequence[str]]) -> None:
    """Ingest numbered values, and note what the watchers say."""
    watchers: list[tuple[str, WriteWatcher]] = []
    filling = ingestor(store, flush_size_bytes=0)
    for number in range(8):
        value = f"{name}.{number}"
        watchers.append((value, await filling.ingest(entries(value))))
        if number % 3 == 0:
            await asyncio.wait([asyncio.create_task(until_known(watchers[-1][1]))])
    try:
        await filling.close()
    finally:
        told["durable"] = [*told["durable"], *(each for each, by in watchers if isinstance(by.result(), Durable))]
        told["refused"] = [*told["refused"], *(each for each, by in watchers if isinstance(by.result(), Unavailable))]


async def until_known(watcher: WriteWatcher) -> None:
    try:
        await watcher.await_durable()
    except Exception:  # noqa: BLE001 - the watcher tells it again
        return


async def collect_stubbornly(store: Store, found: list[str], acknowledged: list[str], enough: asyncio.Event) -> None:
    """Collect through whatever happens, with a new collector after each fencing, until nothing more will come."""
    while not enough.is_set():
        async with collector(store, mode=CollectorMode.COMPETING, done_cleanup_threshold=3, read_ahead=3) as collecting:
            for _ in count():
                try:
                    batch = await collecting.next_batch()
                    if batch is not None:
                        found += values(batch)
                        await collecting.ack(batch)
                        acknowledged += values(batch)
                    elif enough.is_set():
                        return
                except Fenced:
                    break
                except Exception:  # noqa: BLE001, S112 - not acknowledged, as far as we know: it comes again
                    continue


@pytest.mark.slow
@async_test
async def test_in_rough_weather_what_is_durable_arrives_and_what_is_refused_does_not(seaweed: Seaweed) -> None:
    told: dict[str, Sequence[str]] = {"durable": [], "refused": []}
    found: list[str] = []
    acknowledged: list[str] = []
    enough = asyncio.Event()
    async with rough_store(seaweed) as (rough, calm):
        collecting = [asyncio.create_task(collect_stubbornly(rough, found, acknowledged, enough)) for _ in range(2)]
        await asyncio.gather(*(ingest_stubbornly(name, rough, told) for name in "abc"), return_exceptions=True)
        enough.set()
        await asyncio.gather(*collecting)
        async with collector(calm, mode=CollectorMode.COMPETING, ahead=True) as last:
            found += await drain(last)
        files = ManifestPair.of(ManifestKeys.of(MANIFEST), deps(calm))
        assert set((await files.producer.read()).manifest.pending) <= set((await files.consumer.read()).manifest.done)
    assert told["durable"], "the weather was too rough to show anything"
    assert set(told["durable"]) - set(found) == set()
    assert set(told["refused"]) & set(found) == set()
    assert len(acknowledged) == len(set(acknowledged))
