"""Heartbeats get through beside slow requests and survive what goes wrong, and each cause is logged once."""

import asyncio

import pytest

from lakehead.buffer.collector import Collector
from lakehead.buffer.config import CollectorConfig, CollectorMode, ObjectStoreConfig
from lakehead.buffer.layout import ManifestKeys
from lakehead.errors import Misconfigured
from lakehead.storage import probed_store
from lakehead.storage.connect import StoreSettings
from lakehead.storage.memory_store import MemoryStore
from lakehead.storage.port import Store
from lakehead.wire.batch import KeyValueEntry
from tests.support.simulation import World
from tests.unit.buffer.support import (
    DOWN,
    MANIFEST,
    PAIR,
    QueueFixture,
    in_both_modes,
    seconds,
    values,
    virtual_time,
    writes,
)


def age(queue: QueueFixture, at_ms: int) -> float:
    return queue.clock.now_ns() / 10**9 - at_ms / 1000


@in_both_modes
@virtual_time
async def test_a_heartbeat_does_not_wait_for_a_slow_claim(queue: QueueFixture, mode: CollectorMode) -> None:
    await queue.fill("a")
    async with queue.collector(mode=mode) as collector:
        batch = await collector.next_batch()
        assert batch is not None
        await queue.fill("b")
        queue.store.hold_calls(lambda call: call == ("get", PAIR.producer))
        waiting = asyncio.create_task(collector.next_batch())
        await queue.sleep(25)
        assert age(queue, (await queue.consumer_manifest()).claimed[batch.location]) < 11
        queue.store.release_calls()
        assert values(await waiting) == ["b"]
        await collector.ack(batch)


@virtual_time
async def test_a_partition_whose_manifest_hangs_does_not_hold_up_the_heartbeats_of_others(queue: QueueFixture) -> None:
    async with queue.ingestor(partitions=4) as ingestor:
        await ingestor.ingest([KeyValueEntry(str(number).encode(), b"x") for number in range(40)])
    async with queue.collector() as collector:
        for _ in range(4):
            assert await collector.next_batch() is not None
        hangs = ManifestKeys.of(MANIFEST, 0).consumer
        queue.store.hold_calls(writes(hangs))
        await queue.sleep(25)
        ages = [
            age(queue, (await queue.consumer_manifest(ManifestKeys.of(MANIFEST, each).consumer)).heartbeat)
            for each in range(4)
        ]
        assert ages[0] > 20
        assert max(ages[1:]) < 16
        queue.store.release_calls()


@virtual_time(seeds=1)
async def test_heartbeats_survive_an_exception_that_nobody_expected(
    queue: QueueFixture, caplog: pytest.LogCaptureFixture
) -> None:
    await queue.fill("a")
    async with queue.collector() as collector:
        batch = await collector.next_batch()
        assert batch is not None
        queue.store.fail_calls(writes(PAIR.consumer), ZeroDivisionError("a bug"))
        await queue.sleep(21)
        queue.store.stop_failing()
        await queue.sleep(10)
        assert age(queue, (await queue.consumer_manifest()).claimed[batch.location]) < 11
        assert collector.counts.heartbeats_failed == 2
        await collector.ack(batch)
    [record] = caplog.records
    assert record.name == "lakehead.buffer"
    assert record.exc_info is not None
    assert "a bug" in record.getMessage()


@virtual_time(seeds=1)
async def test_a_heartbeat_that_fails_is_logged_once_until_one_succeeds(
    queue: QueueFixture, caplog: pytest.LogCaptureFixture
) -> None:
    await queue.fill("a")
    async with queue.collector() as collector:
        await collector.next_batch()
        for _ in range(2):
            queue.store.fail_calls(writes(PAIR.consumer), DOWN)
            await queue.sleep(21)
            queue.store.stop_failing()
            await queue.sleep(10)
        assert collector.counts.heartbeats_failed == 4
    assert len(caplog.records) == 2
    assert all("Check that the store" in record.getMessage() for record in caplog.records)


# --- how long requests for manifests may take


def test_manifests_are_read_and_written_with_a_third_of_the_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[StoreSettings] = []

    def open_(url: str, settings: StoreSettings, **_: object) -> Store:
        del url
        opened.append(settings)
        return MemoryStore(clock=World(0).clock)

    monkeypatch.setattr(probed_store, "open_store", open_)
    where = ObjectStoreConfig(url="s3://bucket/prefix")

    collector = Collector(CollectorConfig(object_store_config=where))

    assert [each.request_timeout for each in opened] == [60, 10]
    [reader] = collector._readers.all
    assert reader.consumer._deps.store is not collector._deps.store
    opened.clear()
    Collector(CollectorConfig(object_store_config=where), store=MemoryStore(clock=World(0).clock))
    Collector(CollectorConfig(object_store_config=ObjectStoreConfig(url="file:///lake")))
    Collector(CollectorConfig(object_store_config=where, heartbeat_timeout_ms=seconds(200)))
    assert [each.request_timeout for each in opened] == [60, 60], "one store where its requests are short enough"


def test_a_timeout_that_one_connection_outlives_is_refused() -> None:
    where = ObjectStoreConfig(url="s3://bucket/prefix", settings=StoreSettings(connect_timeout=11))

    with pytest.raises(Misconfigured, match=r"connect_timeout .* 11 s.* a third of heartbeat_timeout_ms"):
        CollectorConfig(object_store_config=where)
    CollectorConfig(object_store_config=where, heartbeat_timeout_ms=seconds(33))
