"""Waiting for batches: for a while, for ever, until the collector is closed; and in which partitions they are."""

import asyncio
from dataclasses import replace

import pytest

from lakehead.buffer.collector import CollectedBatch, Collector
from lakehead.buffer.config import CollectorConfig, CollectorMode
from lakehead.buffer.errors import Fenced, InvalidCall
from lakehead.buffer.layout import ManifestKeys
from lakehead.clock import SystemClock
from lakehead.errors import Unavailable
from lakehead.wire.batch import encode_json
from tests.unit.buffer.partition_support import fill_partition
from tests.unit.buffer.support import DOWN, MANIFEST, PAIR, WHERE, Call, QueueFixture, entries, values, virtual_time


def reads(call: Call) -> bool:
    return call[0] == "get" and call[1].endswith(".json")


def of_partition(number: int) -> tuple[str, str]:
    pair = ManifestKeys.of(MANIFEST, number)
    return pair.producer, pair.consumer


# --- time


@virtual_time
async def test_next_batch_waits_for_what_comes_within_its_timeout(queue: QueueFixture) -> None:
    async with queue.collector() as collector:
        began = queue.clock.monotonic()
        assert await collector.next_batch() is None
        assert queue.clock.monotonic() == began
        assert await collector.next_batch(timeout=5) is None
        assert queue.clock.monotonic() == pytest.approx(began + 5)
        waiting = asyncio.create_task(collector.next_batch(timeout=5))
        await queue.sleep(3)
        await queue.fill("a")
        assert values(await waiting) == ["a"]
        assert queue.clock.monotonic() < began + 9.5


@virtual_time
async def test_a_long_wait_looks_about_once_a_second(queue: QueueFixture) -> None:
    async with queue.collector() as collector:
        await collector.next_batch(timeout=100)
        assert 90 <= queue.store.count(lambda call: call == ("get", PAIR.producer)) <= 220


@virtual_time
async def test_a_loop_over_the_collector_waits_for_batches_and_ends_when_it_is_closed(queue: QueueFixture) -> None:
    collector = queue.collector()
    got = []

    async def consume() -> None:
        async for batch in collector:
            got.append(values(batch))
            await collector.ack(batch)

    consuming = asyncio.create_task(consume())
    for value in "abc":
        await queue.fill(value)
        await queue.sleep(100)
    assert got == [["a"], ["b"], ["c"]]
    before = queue.clock.monotonic()
    await collector.close()
    await consuming
    assert queue.clock.monotonic() == before
    assert [batch async for batch in collector] == []


@pytest.mark.parametrize("held", [None, "get"])
@virtual_time
async def test_a_wait_ends_at_once_when_the_collector_is_closed(queue: QueueFixture, held: str | None) -> None:
    collector = queue.collector()
    if held:
        queue.store.hold_calls(lambda call: call[0] == held)
    waiting = asyncio.create_task(collector.next_batch(timeout=None))
    await queue.sleep(20)
    before = queue.clock.monotonic()
    closing = asyncio.create_task(collector.close())
    with pytest.raises(InvalidCall):
        await waiting
    assert queue.clock.monotonic() == before
    if held:
        assert not closing.done(), "a request that is under way is waited for"
        queue.store.release_calls()
    await closing


def test_the_machines_clock_is_the_default() -> None:
    assert isinstance(Collector(CollectorConfig(object_store_config=WHERE))._deps.clock, SystemClock)


# --- partitions


@virtual_time(seeds=2)
async def test_many_idle_partitions_do_not_slow_down_a_busy_one(queue: QueueFixture) -> None:
    batches = [str(number) for number in range(160)]
    await fill_partition(queue, 7, *batches, partitions=64)
    async with queue.collector() as collector:
        assert values(await collector.next_batch()) == ["0"]
        await queue.sleep(0.1)
        queue.store.calls.clear()
        got = []
        for _ in range(159):
            batch = await collector.next_batch()
            got += values(batch)
        assert got == batches[1:]
        assert queue.store.count(reads) <= 2 * 10, "no look at idle ones within half a second"


@virtual_time
async def test_idle_partitions_are_looked_at_while_another_is_busy(queue: QueueFixture) -> None:
    await fill_partition(queue, 7, *(str(number) for number in range(200)), partitions=8)
    async with queue.collector() as collector:
        for _ in range(20):
            await collector.next_batch()
        await fill_partition(queue, 3, "late", partitions=8)
        queue.store.calls.clear()
        got: list[str] = []
        while "late" not in got:
            batch = await collector.next_batch()
            assert batch is not None
            got += values(batch)
            await collector.ack(batch) if batch.partition == 3 else None
            await queue.sleep(0.1)
        assert len(got) < 15
        for _ in range(100):
            await collector.next_batch()
            await queue.sleep(0.1)
        looks = queue.store.count(lambda call: call == ("get", ManifestKeys.of(MANIFEST, 0).producer))
        assert 10 <= looks <= 35, "in ten seconds and some, about twice a second"


@virtual_time
async def test_all_partitions_are_served_in_turn(queue: QueueFixture) -> None:
    for number in range(8):
        await fill_partition(queue, number, *(f"{number}.{each}" for each in range(20)), partitions=8)
    async with queue.collector(mode=CollectorMode.COMPETING) as collector:
        seen = []
        for _ in range(80):
            batch = await collector.next_batch()
            assert batch is not None
            seen.append(batch.partition)
            await queue.sleep(0.01)
        assert min(seen.count(number) for number in range(8)) >= 5


@virtual_time
async def test_bytes_read_ahead_are_limited_for_all_partitions_together(queue: QueueFixture) -> None:
    for number in range(8):
        await fill_partition(queue, number, *("x" * 1000 for _ in range(10)), partitions=8)
    size = len(encode_json(entries("x" * 1000)))
    async with queue.collector(read_ahead_bytes=6 * size) as collector:
        await collector.next_batch()
        await queue.sleep(1)
        queue.store.calls.clear()
        got: list[CollectedBatch] = []
        for _ in range(30):
            batch = await collector.next_batch()
            assert batch is not None
            got.append(batch)
            await queue.sleep(0.1)
            fetched = queue.store.count(lambda call: call[0] == "get" and call[1].endswith(".batch"))
            assert fetched <= len(got) + 8
        while batch := await collector.next_batch():
            got.append(batch)
        assert len(got) == 79


@pytest.mark.slow
@virtual_time
async def test_nothing_is_said_only_after_every_partition_was_looked_at_in_this_call(queue: QueueFixture) -> None:
    await fill_partition(queue, 0, partitions=32)
    async with queue.collector() as collector:
        assert await collector.next_batch() is None
        for number in range(32):
            await fill_partition(queue, number, str(number), partitions=32)
            assert values(await collector.next_batch()) == [str(number)]
            assert await collector.next_batch() is None


@virtual_time
async def test_a_partition_that_cannot_be_read_says_so_and_the_others_go_on(queue: QueueFixture) -> None:
    for number in range(4):
        await fill_partition(queue, number, *(f"{number}.{each}" for each in range(3)), partitions=4)
    broken = of_partition(2)
    queue.store.fail_calls(lambda call: call[1] in broken, DOWN)
    async with queue.collector() as collector:
        got: list[str] = []
        errors = 0
        while len(got) < 9:
            try:
                got += values(await collector.next_batch())
            except Unavailable:
                errors += 1
                assert errors < 20
        assert errors
        assert not any(value.startswith("2.") for value in got)
        queue.store.stop_failing()
        while len(got) < 12:
            try:
                got += values(await collector.next_batch())
            except Unavailable:
                continue


@virtual_time
async def test_a_look_in_the_background_that_is_fenced_is_told_by_the_next_call(queue: QueueFixture) -> None:
    await fill_partition(queue, 0, *(str(each) for each in range(10)), partitions=2)
    await fill_partition(queue, 1, "x", partitions=2)
    async with queue.collector() as collector:
        batch = None
        while batch is None or batch.partition == 0:
            batch = await collector.next_batch()
        await collector.ack(batch)
        await queue.sleep(0.6)
        key = ManifestKeys.of(MANIFEST, 1).consumer
        manifest = await queue.consumer_manifest(key)
        taken = replace(manifest, owner="another", epoch=manifest.epoch + 1)
        await queue.store.inner.put(key, taken.encode())
        with pytest.raises(Fenced):
            await some_more(collector, queue)


async def some_more(collector: Collector, queue: QueueFixture) -> None:
    for _ in range(6):
        assert await collector.next_batch() is not None
        await queue.sleep(0.6)
