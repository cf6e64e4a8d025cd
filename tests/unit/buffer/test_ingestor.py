"""The ingestor: when it flushes, when it waits, and what its watchers are told."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from lakehead.buffer.config import BatchFormat, IngestorConfig
from lakehead.buffer.errors import InvalidCall
from lakehead.buffer.ingestor import Ingestor
from lakehead.buffer.watcher import Durable
from lakehead.clock import SystemClock
from lakehead.errors import Misconfigured, Unavailable
from lakehead.storage.memory_store import MemoryStore
from lakehead.wire.batch import MIB, KeyValueEntry
from tests.support.async_tests import async_test
from tests.unit.buffer.support import (
    DOWN,
    PAIR,
    WHERE,
    QueueFixture,
    anything,
    batches,
    entries,
    seconds,
    virtual_time,
    writes,
)


def test_the_defaults_are_those_of_the_specification() -> None:
    config = IngestorConfig(object_store_config=WHERE)

    assert config.data_path_prefix == "ingest"
    assert config.manifest_path == "ingest/manifest.json"
    assert config.flush_interval == timedelta(milliseconds=100)
    assert config.flush_size_bytes == 64 * MIB
    assert config.max_unflushed_bytes == 2**63 - 1
    assert config.batch_format is BatchFormat.JSON


@pytest.mark.parametrize(
    "settings",
    [
        {"flush_size_bytes": -1},
        {"flush_interval": timedelta(0)},
        {"max_unflushed_bytes": -1},
        {"data_path_prefix": ""},
        {"data_path_prefix": "a//b"},
        {"manifest_path": "/x"},
        {"partitions": 0},
    ],
)
def test_a_bad_setting_is_named_at_construction(settings: dict[str, Any]) -> None:
    with pytest.raises(Misconfigured, match=next(iter(settings))):
        IngestorConfig(object_store_config=WHERE, **settings)


def test_all_bad_settings_are_named_at_once() -> None:
    with pytest.raises(Misconfigured, match=r"flush_size_bytes.*partitions"):
        IngestorConfig(object_store_config=WHERE, flush_size_bytes=-1, partitions=-1)


@virtual_time
async def test_a_batch_is_flushed_when_its_time_has_come_and_not_before(queue: QueueFixture) -> None:
    ingestor = queue.ingestor()
    watcher = await ingestor.ingest(entries("a"))
    await queue.sleep(0.099)
    assert await queue.keys() == []
    assert watcher.result() is None
    await queue.sleep(0.002)
    [batch] = await queue.batch_keys()
    assert watcher.result() == Durable((batch,))
    assert (await queue.producer_manifest()).pending == (batch,)
    await ingestor.close()


@virtual_time
async def test_only_a_batch_that_exceeds_the_size_is_flushed_at_once(queue: QueueFixture) -> None:
    ingestor = queue.ingestor(flush_size_bytes=8, flush_interval=seconds(60))
    watcher = await ingestor.ingest(entries("12345"))
    await queue.sleep(1)
    assert watcher.result() is None
    more = await ingestor.ingest(entries(""))
    await queue.sleep(1)
    assert isinstance(watcher.result(), Durable)
    assert watcher.result() == more.result()
    await ingestor.close()


@virtual_time
async def test_ingest_returns_while_the_store_hangs_and_never_waits_by_default(queue: QueueFixture) -> None:
    queue.store.hold_calls(anything)
    ingestor = queue.ingestor(flush_size_bytes=0)
    watchers = [await ingestor.ingest(entries("x" * 1000)) for _ in range(50)]
    await queue.sleep(3600)
    assert {watcher.result() for watcher in watchers} == {None}
    queue.store.release_calls()
    await ingestor.close()
    assert all(isinstance(watcher.result(), Durable) for watcher in watchers)


@pytest.mark.parametrize("held", [batches, writes(PAIR.producer)], ids=["batch", "manifest"])
@virtual_time
async def test_nothing_is_durable_before_batch_and_location_are_stored(queue: QueueFixture, held: Any) -> None:
    queue.store.hold_calls(held)
    ingestor = queue.ingestor()
    watcher = await ingestor.ingest(entries("a"))
    waiting = asyncio.create_task(watcher.await_durable())
    await queue.sleep(60)
    assert not waiting.done()
    assert watcher.result() is None
    queue.store.release_calls()
    await waiting
    assert (await queue.producer_manifest()).pending == tuple(await queue.batch_keys())
    await ingestor.close()


@virtual_time
async def test_above_the_limit_ingest_waits_until_less_is_unflushed_and_another_ingestor_goes_on(
    queue: QueueFixture,
) -> None:
    ingestor = queue.ingestor(max_unflushed_bytes=10, flush_interval=seconds(3600))
    queue.store.hold_calls(batches)
    await ingestor.ingest(entries("12345678"))  # 11 bytes with its key
    blocked = asyncio.create_task(ingestor.ingest(entries("later")))
    await queue.sleep(600)
    assert not blocked.done()
    other = queue.ingestor(max_unflushed_bytes=10)
    await other.ingest(entries("a"))
    queue.store.release_calls()
    await blocked
    await ingestor.close()
    await other.close()
    assert sorted(await queue.collect_all(queue.collector())) == ["12345678", "a", "later"]
    assert ingestor.counts.bytes_unflushed == 0


@virtual_time
async def test_a_caller_that_waits_makes_the_flush_begin_that_it_waits_for(queue: QueueFixture) -> None:
    ingestor = queue.ingestor(max_unflushed_bytes=10, flush_interval=seconds(3600))
    await ingestor.ingest(entries("12345678"))
    await ingestor.ingest(entries("later"))
    assert queue.clock.monotonic() < 1, "the interval was not waited for"
    assert len((await queue.producer_manifest()).pending) == 1
    await ingestor.close()


@virtual_time
async def test_at_the_limit_ingest_does_not_wait(queue: QueueFixture) -> None:
    queue.store.hold_calls(anything)
    ingestor = queue.ingestor(max_unflushed_bytes=10)
    await ingestor.ingest(entries("1234567"))
    await ingestor.ingest(entries("not held up"))
    queue.store.release_calls()
    await ingestor.close()


@virtual_time
async def test_callers_that_wait_for_room_are_let_in_one_by_one(queue: QueueFixture) -> None:
    ingestor = queue.ingestor(max_unflushed_bytes=20, flush_size_bytes=0)
    queue.store.hold_calls(batches)
    await ingestor.ingest(entries("x" * 30))
    waiting = [asyncio.create_task(ingestor.ingest(entries("y" * 30))) for _ in range(5)]
    await queue.sleep(1)
    queue.store.release_calls()
    queue.store.hold_calls(batches)
    await queue.sleep(1)
    assert sum(each.done() for each in waiting) <= 1
    assert ingestor.counts.bytes_unflushed <= 20 + 33
    queue.store.release_calls()
    for each in waiting:
        await each
    await ingestor.close()


@virtual_time
async def test_an_empty_list_and_an_idle_ingestor_store_nothing(queue: QueueFixture) -> None:
    async with queue.ingestor() as ingestor:
        watcher = await ingestor.ingest([])
        assert watcher.result() == Durable(())
        await watcher.await_durable()
        await queue.sleep(60)
    assert queue.store.calls == []


@virtual_time(seeds=1)
async def test_ten_thousand_entries_come_out_in_order_whatever_is_slow(queue: QueueFixture) -> None:
    slow = queue.store.create

    async def create(key: str, body: bytes) -> Any:
        await queue.sleep(queue.world.random.uniform(0, 0.5))
        return await slow(key, body)

    queue.store.create = create  # type: ignore[method-assign]  # batches overtake each other
    async with queue.ingestor(flush_size_bytes=500) as ingestor:
        for number in range(10_000):
            await ingestor.ingest(entries(str(number)))
    assert await queue.collect_all(queue.collector()) == [str(number) for number in range(10_000)]


@virtual_time
async def test_flushes_that_wait_for_one_slow_write_share_the_next(queue: QueueFixture) -> None:
    queue.store.hold_calls(writes(PAIR.producer))
    async with queue.ingestor(flush_size_bytes=0) as ingestor:
        await ingestor.ingest(entries("first"))
        await queue.sleep(1)
        for number in range(50):
            await ingestor.ingest(entries(str(number)))
        await queue.sleep(1)
        queue.store.release_calls()
    assert queue.store.count(writes(PAIR.producer)) == 2
    assert len((await queue.producer_manifest()).pending) == 51


@virtual_time
async def test_a_lone_ingestor_reads_the_manifest_once(queue: QueueFixture) -> None:
    await queue.fill(*"abcdef")
    assert queue.store.count(lambda call: call == ("get", PAIR.producer)) == 1
    assert queue.store.count(writes(PAIR.producer)) == 6


@pytest.mark.slow
@virtual_time(seeds=1)
async def test_ingestors_that_meet_all_the_time_share_the_manifest_fairly(queue: QueueFixture) -> None:
    ingestors = [queue.ingestor() for _ in range(8)]
    slow_get, slow_replace = queue.store.get, queue.store.replace

    async def get(key: str, *, start: int = 0, end: int | None = None) -> Any:
        await queue.sleep(0.02)
        return await slow_get(key, start=start, end=end)

    async def replace(key: str, body: bytes, version: Any) -> Any:
        await queue.sleep(0.02)
        return await slow_replace(key, body, version)

    queue.store.get, queue.store.replace = get, replace  # type: ignore[method-assign]  # a network's time

    async def ingest(ingestor: Any) -> None:
        while queue.clock.monotonic() < 60:
            await (await ingestor.ingest(entries("x"))).await_durable()
        await ingestor.close()

    await asyncio.gather(*map(ingest, ingestors))
    flushed = [ingestor.counts.batches_flushed for ingestor in ingestors]
    writes_, conflicts = (
        sum(count["producer"] for count in counts)
        for counts in zip(*((i.counts.manifest_writes, i.counts.manifest_conflicts) for i in ingestors), strict=True)
    )
    assert min(flushed) > 0.5 * max(flushed), flushed
    assert conflicts < 2 * (writes_ - conflicts)


@virtual_time
async def test_a_foreign_key_of_a_manifest_survives_a_flush(queue: QueueFixture) -> None:
    await queue.store.inner.put(PAIR.producer, b'{"pending": ["old"], "theirs": [1.50]}')
    await queue.fill("a")
    manifest = await queue.producer_manifest()
    assert manifest.pending[0] == "old"
    assert len(manifest.pending) == 2
    assert bytes(manifest.unknown["theirs"]) == b"[1.50]"


@virtual_time
async def test_a_compact_ingestor_and_a_json_one_share_a_queue(queue: QueueFixture) -> None:
    await queue.fill("a")
    await queue.fill("b", batch_format=BatchFormat.COMPACT)
    first_bytes = []
    for key in (await queue.producer_manifest()).pending:
        there = await queue.store.get(key)
        assert there is not None
        first_bytes.append(there.body[:1])
    assert first_bytes == [b"[", b"L"]
    assert await queue.collect_all(queue.collector()) == ["a", "b"]


@virtual_time
async def test_the_settings_say_where_things_go(queue: QueueFixture) -> None:
    await queue.fill("a", data_path_prefix="deep/data", manifest_path="q/m")
    keys = await queue.keys()
    assert "q/m" in keys
    assert [key for key in keys if key.startswith("deep/data/") and key.endswith(".batch")]
    collector = queue.collector(manifest_path="q/m")
    assert await queue.collect_all(collector) == ["a"]
    assert "q/m.consumer" in await queue.keys()
    await collector.close()


@virtual_time
async def test_flush_makes_everything_durable_that_was_taken_and_the_ingestor_goes_on(queue: QueueFixture) -> None:
    ingestor = queue.ingestor(flush_interval=seconds(3600), partitions=3)
    watchers = [await ingestor.ingest([KeyValueEntry(str(number).encode(), b"")]) for number in range(20)]
    await ingestor.flush()
    assert all(isinstance(each.result(), Durable) for each in watchers)
    later = await ingestor.ingest(entries("later"))
    assert later.result() is None
    await ingestor.flush()
    assert isinstance(later.result(), Durable)
    await ingestor.flush()
    await ingestor.close()
    await ingestor.flush()


@virtual_time(seeds=10)
async def test_flush_does_not_wait_for_what_is_taken_after_it_was_called(queue: QueueFixture) -> None:
    ingestor = queue.ingestor(flush_interval=seconds(3600))
    before = await ingestor.ingest(entries("before"))
    queue.store.hold_calls(batches)
    flushing = asyncio.create_task(ingestor.flush())
    await queue.sleep(1)
    after = await ingestor.ingest(entries("after"))
    queue.store.release_calls()
    await flushing
    assert isinstance(before.result(), Durable)
    assert after.result() is None
    await ingestor.close()


@virtual_time
async def test_flush_raises_the_first_error_and_the_ingestor_goes_on(queue: QueueFixture) -> None:
    queue.store.fail_calls(batches, DOWN)
    ingestor = queue.ingestor(flush_interval=seconds(3600))
    await ingestor.ingest(entries("a"))
    with pytest.raises(Unavailable, match="the store is down"):
        await ingestor.flush()
    queue.store.stop_failing()
    await ingestor.ingest(entries("b"))
    await ingestor.flush()
    await ingestor.close()
    assert await queue.collect_all(queue.collector()) == ["b"]


@virtual_time
async def test_a_flush_that_is_cancelled_takes_nothing_back(queue: QueueFixture) -> None:
    queue.store.hold_calls(anything)
    ingestor = queue.ingestor()
    watcher = await ingestor.ingest(entries("a"))
    flushing = asyncio.create_task(ingestor.flush())
    await queue.sleep(1)
    flushing.cancel()
    await asyncio.wait([flushing])
    queue.store.release_calls()
    await watcher.await_durable()
    await ingestor.close()


@async_test
async def test_without_a_clock_it_is_the_machines() -> None:
    config = IngestorConfig(object_store_config=WHERE, flush_interval=timedelta(milliseconds=1))
    async with Ingestor(config, store=MemoryStore(clock=SystemClock())) as ingestor:
        await (await ingestor.ingest(entries("a"))).await_durable()


@virtual_time
async def test_an_entry_of_a_class_that_may_be_stored_in_another_form_is_refused(queue: QueueFixture) -> None:
    """It would be confirmed, and set aside by every reader."""

    class Short(KeyValueEntry, frozen=True, array_like=True):
        pass

    async with queue.ingestor() as ingestor:
        with pytest.raises(InvalidCall, match="Short"):
            await ingestor.ingest([Short(b"a", b"b")])
