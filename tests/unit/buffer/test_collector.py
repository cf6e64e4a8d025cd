"""The collector: what it hands out, how far it reads ahead, and what it says when it cannot."""

import asyncio
from typing import Any

import pytest

from lakehead.buffer.config import CollectorConfig, CollectorMode
from lakehead.buffer.errors import InvalidCall
from lakehead.errors import Misconfigured, Unavailable
from lakehead.wire.batch import encode_json
from tests.unit.buffer.support import (
    DOWN,
    MANIFEST,
    PAIR,
    WHERE,
    QueueFixture,
    entries,
    in_both_modes,
    seconds,
    values,
    virtual_time,
    writes,
)


def test_the_defaults_are_those_of_the_specification() -> None:
    config = CollectorConfig(object_store_config=WHERE)

    assert config.manifest_path == MANIFEST
    assert config.heartbeat_timeout_ms == seconds(30)
    assert config.done_cleanup_threshold == 100
    assert config.mode is CollectorMode.ORDERED


@pytest.mark.parametrize("name", ["heartbeat_timeout_ms", "done_cleanup_threshold", "read_ahead", "manifest_path"])
def test_a_bad_setting_is_named_at_construction(name: str) -> None:
    bad: Any = {"heartbeat_timeout_ms": seconds(0), "manifest_path": "a/"}.get(name, 0)

    with pytest.raises(Misconfigured, match=name):
        CollectorConfig(object_store_config=WHERE, **{name: bad})


@in_both_modes
@virtual_time
async def test_batches_come_out_in_the_order_of_the_queue_and_then_none(
    queue: QueueFixture, mode: CollectorMode
) -> None:
    async with queue.collector(mode=mode) as collector:
        assert await collector.next_batch() is None
        await queue.fill("a", "b", "c")
        assert await queue.collect_all(collector) == ["a", "b", "c"]
        assert await collector.next_batch() is None


@virtual_time
async def test_a_hand_made_queue_of_the_specification_is_read(queue: QueueFixture) -> None:
    first, second = "data/f47ac10b-58cc-4372-a567-0e02b2c3d479.json", "data/other.batch"
    await queue.store.inner.put(first, encode_json(entries("a")))
    await queue.store.inner.put(second, encode_json(entries("b")))
    await queue.store.inner.put(PAIR.producer, f'{{"pending": ["{first}", "{second}"]}}'.encode())
    await queue.store.inner.put(PAIR.consumer, f'{{"claimed": {{}}, "done": ["{first}"]}}'.encode())
    async with queue.collector(done_cleanup_threshold=1) as collector:
        assert await queue.collect_all(collector) == ["b"]
    assert (await queue.producer_manifest()).pending == ()
    assert {first, second} <= set(await queue.keys()), "what no ingestor of the queue stored is never deleted"


@pytest.mark.slow
@virtual_time(seeds=1)
async def test_hours_without_a_collector_hold_nobody_up(queue: QueueFixture) -> None:
    async with queue.ingestor() as ingestor:
        for number in range(1_000):
            await ingestor.ingest(entries(str(number)))
            await queue.sleep(20)
    async with queue.collector() as collector:
        assert await queue.collect_all(collector) == [str(number) for number in range(1_000)]


@virtual_time(seeds=1)
async def test_a_hundred_batches_cost_far_fewer_reads_of_manifests(queue: QueueFixture) -> None:
    await queue.fill(*(str(number) for number in range(100)))
    queue.store.calls.clear()
    async with queue.collector() as collector:
        got = []
        while (batch := await collector.next_batch()) is not None:
            got.append(batch)
        assert [values(each) for each in got] == [[str(number)] for number in range(100)]
        await collector.ack(*got)
    reads = queue.store.count(lambda call: call[0] == "get" and call[1] in (PAIR.producer, PAIR.consumer))
    assert reads <= 20
    assert queue.store.count(writes(PAIR.consumer)) <= 20


@virtual_time
async def test_batches_are_fetched_side_by_side_within_the_limit_of_bytes(queue: QueueFixture) -> None:
    await queue.fill(*("x" * 1000 for _ in range(10)))
    size = len(encode_json(entries("x" * 1000)))
    async with queue.collector(read_ahead_bytes=4 * size) as collector:
        queue.store.calls.clear()
        await collector.next_batch()
        await collector.next_batch()
        await queue.sleep(1)
        fetched = queue.store.count(lambda call: call[0] == "get" and call[1].endswith(".batch"))
        assert 4 <= fetched <= 6


@virtual_time(seeds=10)
async def test_a_next_batch_that_is_cancelled_loses_nothing(queue: QueueFixture) -> None:
    await queue.fill("a", "b")
    async with queue.collector() as collector:
        got = []
        for held in ("get", "create", "replace"):
            queue.store.hold_calls(lambda call, held=held: call[0] == held)  # type: ignore[misc]  # a default binds it
            waiting = asyncio.create_task(collector.next_batch())
            await queue.sleep(1)
            if not waiting.done():
                waiting.cancel()
                await asyncio.wait([waiting])
                queue.store.release_calls()
                await queue.sleep(1)
            else:
                got += values(waiting.result())
                queue.store.release_calls()
        while (batch := await collector.next_batch()) is not None:
            got += values(batch)
        assert got == ["a", "b"]


@virtual_time
async def test_a_store_that_is_down_for_a_while_is_an_error_that_can_be_waited_out(queue: QueueFixture) -> None:
    await queue.fill("a")
    async with queue.collector() as collector:
        queue.store.fail_calls(lambda call: call[1].endswith(".batch"), DOWN, times=1)
        with pytest.raises(Unavailable):
            await collector.next_batch()
        assert values(await collector.next_batch()) == ["a"]


@pytest.mark.parametrize("manifest", [PAIR.producer, PAIR.consumer])
@virtual_time
async def test_a_manifest_that_cannot_be_read_is_an_error_and_stays_as_it_is(
    queue: QueueFixture, manifest: str
) -> None:
    await queue.store.inner.put(manifest, b'{"pending": 1, "done": 1}')
    async with queue.collector() as collector:
        with pytest.raises(Exception, match="repair it by hand"):
            await collector.next_batch()
    there = await queue.store.inner.get(manifest)
    assert there is not None
    assert there.body == b'{"pending": 1, "done": 1}'


@virtual_time
async def test_a_closed_collector_hands_out_nothing(queue: QueueFixture) -> None:
    collector = queue.collector()
    await collector.close()
    with pytest.raises(InvalidCall):
        await collector.next_batch()
