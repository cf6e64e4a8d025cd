"""Batches that are handed out again: how often, what goes back to the queue, and what an application sets aside."""

import asyncio
import gc

import pytest

from lakehead.buffer.collector import CollectedBatch, Collector
from lakehead.buffer.config import CollectorMode
from lakehead.buffer.errors import AckOutOfOrder, InvalidCall
from lakehead.buffer.inspection import quarantine_notes
from lakehead.errors import OutcomeUnknown, Unavailable
from lakehead.wire.batch import encode_json
from lakehead.wire.errors import NewerFormat
from tests.unit.buffer.support import (
    DOWN,
    LOST,
    MANIFEST,
    PAIR,
    QueueFixture,
    entries,
    in_both_modes,
    values,
    virtual_time,
    writes,
)


async def some_of(collector: Collector, count: int) -> list[CollectedBatch]:
    found = [await collector.next_batch() for _ in range(count)]
    return [batch for batch in found if batch is not None]


async def crash(queue: QueueFixture, collector: Collector) -> None:
    """Stop without giving anything back, and wait until that is noticed."""
    assert collector._heartbeats is not None
    collector._heartbeats.cancel()
    gc.collect()
    await queue.sleep(31)


# --- how often


@pytest.mark.slow
@in_both_modes
@virtual_time
async def test_a_batch_tells_how_often_it_was_handed_out(queue: QueueFixture, mode: CollectorMode) -> None:
    await queue.fill("a", "b")
    for times in (1, 2, 3):
        collector = queue.collector(mode=mode)
        first, second = await queue.next_two(collector)
        assert (values(first), first.deliveries) == (["a"], times)
        assert (values(second), second.deliveries) == (["b"], times)
        await crash(queue, collector)
    async with queue.collector(mode=mode) as collector:
        assert await queue.collect_all(collector) == ["a", "b"]
        assert (await queue.consumer_manifest()).deliveries == {}


@in_both_modes
@virtual_time
async def test_what_was_only_claimed_ahead_is_not_counted_when_its_collector_is_closed(
    queue: QueueFixture, mode: CollectorMode
) -> None:
    await queue.fill("a", "b", "c")
    async with queue.collector(mode=mode) as first:
        held = await first.next_batch()
        assert held is not None
        assert len((await queue.consumer_manifest()).deliveries) == 3
    assert (await queue.consumer_manifest()).deliveries == {held.location: 1}
    async with queue.collector(mode=mode) as second:
        assert [batch.deliveries for batch in await some_of(second, 3)] == [2, 1, 1]


@in_both_modes
@virtual_time
async def test_a_claim_whose_answer_is_lost_is_counted_once(queue: QueueFixture, mode: CollectorMode) -> None:
    await queue.fill("a", "b")
    queue.store.fail_calls(writes(PAIR.consumer), LOST, times=1, applied=True)
    async with queue.collector(mode=mode) as collector:
        assert [batch.deliveries for batch in await some_of(collector, 2)] == [1, 1]
        assert set((await queue.consumer_manifest()).deliveries.values()) == {1}


@pytest.mark.slow
@in_both_modes
@virtual_time
async def test_a_batch_that_crashes_its_reader_takes_no_neighbours_along(
    queue: QueueFixture, mode: CollectorMode
) -> None:
    await queue.fill("good", "poison", "fine", "also fine")
    got = []
    for _ in range(10):
        collector = queue.collector(mode=mode, max_deliveries=3)
        while (batch := await collector.next_batch()) is not None:
            if values(batch) == ["poison"]:
                break
            got += values(batch)
            await collector.ack(batch)
        if batch is None:
            break
        await crash(queue, collector)
    await queue.sleep(1)
    await collector.close()
    assert sorted(got) == ["also fine", "fine", "good"]
    [note] = (await quarantine_notes(MANIFEST, queue.deps())).readable.values()
    assert note.reason == "It was handed out 3 times and never acknowledged."
    [key] = note.keys
    kept = await queue.store.inner.get(key)
    assert kept is not None
    assert kept.body == encode_json(entries("poison"))
    assert (await queue.consumer_manifest()).bad_in_a_row == 0


@virtual_time(seeds=1)
async def test_a_newer_batch_is_not_set_aside_however_often_it_was_claimed(queue: QueueFixture) -> None:
    await queue.fill("newer")
    [location] = (await queue.producer_manifest()).pending
    await queue.store.inner.put(location, b"LKB2" + bytes(40))
    for _ in range(4):
        collector = queue.collector(max_deliveries=2)
        with pytest.raises(NewerFormat):
            await collector.next_batch()
        assert collector._heartbeats is not None
        await crash(queue, collector)
    assert (await quarantine_notes(MANIFEST, queue.deps())).readable == {}


# --- back to the queue


@virtual_time
async def test_a_released_batch_goes_to_another_collector_at_once(queue: QueueFixture) -> None:
    await queue.fill("a", "b")
    async with (
        queue.collector(mode=CollectorMode.COMPETING) as one,
        queue.collector(mode=CollectorMode.COMPETING) as other,
    ):
        first, second = await queue.next_two(one)
        await one.release(first)
        again = await other.next_batch()
        assert again is not None
        assert (values(again), again.deliveries) == (["a"], 2)
        with pytest.raises(InvalidCall, match="released"):
            await one.ack(first)
        await one.ack(second)
        await other.ack(again)
        assert len((await queue.consumer_manifest()).done) == 2


@virtual_time
async def test_a_collector_may_take_what_it_has_released(queue: QueueFixture) -> None:
    await queue.fill("a")
    async with queue.collector(mode=CollectorMode.COMPETING) as collector:
        first = await collector.next_batch()
        assert first is not None
        await collector.release(first)
        await collector.release(first)
        again = await collector.next_batch()
        assert again is not None
        with pytest.raises(InvalidCall):
            await collector.ack(first)
        assert (await queue.consumer_manifest()).done == ()
        await collector.ack(again)
        await collector.ack(again)
        assert (await queue.consumer_manifest()).done == (first.location,)
        with pytest.raises(InvalidCall, match="acknowledged"):
            await collector.release(again)


@virtual_time
async def test_in_order_what_was_handed_out_behind_a_released_batch_goes_back_too(queue: QueueFixture) -> None:
    await queue.fill(*"abcde")
    async with queue.collector() as collector, queue.collector() as standby:
        first, second, third = await some_of(collector, 3)
        await collector.ack(first)
        await collector.release(second)
        manifest = await queue.consumer_manifest()
        assert manifest.claimed == {}
        assert manifest.owner is not None
        assert sorted(manifest.deliveries.values()) == [1, 1]
        with pytest.raises(InvalidCall):
            await collector.ack(third)
        assert await standby.next_batch() is None
        assert collector.held == ()
        assert await queue.collect_all(collector) == ["b", "c", "d", "e"]


@in_both_modes
@virtual_time
async def test_an_ack_that_is_under_way_comes_before_a_release(queue: QueueFixture, mode: CollectorMode) -> None:
    await queue.fill("a", "b")
    async with queue.collector(mode=mode) as collector:
        first, second = await queue.next_two(collector)
        queue.store.hold_calls(writes(PAIR.consumer))
        acking = asyncio.create_task(collector.ack(first))
        await queue.sleep(1)
        releasing = asyncio.create_task(collector.release(first))
        other = asyncio.create_task(collector.release(second))
        await queue.sleep(1)
        queue.store.release_calls()
        await acking
        with pytest.raises(InvalidCall, match="acknowledged"):
            await releasing
        await other
        assert (await queue.consumer_manifest()).done == (first.location,)
        assert await queue.collect_all(collector) == ["b"]


@in_both_modes
@virtual_time
async def test_an_ack_that_comes_while_a_release_is_under_way_is_refused(
    queue: QueueFixture, mode: CollectorMode
) -> None:
    await queue.fill("a")
    async with queue.collector(mode=mode) as collector:
        batch = await collector.next_batch()
        assert batch is not None
        queue.store.hold_calls(writes(PAIR.consumer))
        releasing = asyncio.create_task(collector.release(batch))
        await queue.sleep(1)
        acking = asyncio.create_task(collector.ack(batch))
        await queue.sleep(1)
        queue.store.release_calls()
        await releasing
        with pytest.raises(InvalidCall):
            await acking
        assert await queue.collect_all(collector) == ["a"]


@in_both_modes
@pytest.mark.parametrize("applied", [True, False])
@virtual_time
async def test_a_release_in_doubt_can_be_repeated_and_fences_nobody(
    queue: QueueFixture, mode: CollectorMode, *, applied: bool
) -> None:
    await queue.fill("a", "b")
    async with queue.collector(mode=mode) as collector:
        batch = await collector.next_batch()
        assert batch is not None
        queue.store.fail_calls(writes(PAIR.consumer), LOST, times=1, applied=applied)
        queue.store.fail_calls(lambda call: call == ("get", PAIR.consumer), DOWN, times=1)
        with pytest.raises(OutcomeUnknown):
            await collector.release(batch)
        await queue.sleep(11)
        await collector.release(batch)
        assert sorted(await queue.collect_all(collector)) == ["a", "b"]
        assert collector.counts.claims_lost == 0


@virtual_time
async def test_a_release_finds_out_that_an_acknowledgement_in_doubt_has_landed(queue: QueueFixture) -> None:
    await queue.fill("a")
    async with queue.collector(mode=CollectorMode.COMPETING) as collector:
        batch = await collector.next_batch()
        assert batch is not None
        queue.store.fail_calls(writes(PAIR.consumer), LOST, times=1, applied=True)
        queue.store.fail_calls(lambda call: call == ("get", PAIR.consumer), DOWN, times=1)
        with pytest.raises(OutcomeUnknown):
            await collector.ack(batch)
        with pytest.raises(InvalidCall, match="acknowledged"):
            await collector.release(batch)


@virtual_time
async def test_a_release_that_failed_can_be_repeated(queue: QueueFixture) -> None:
    await queue.fill("a")
    async with queue.collector() as collector:
        batch = await collector.next_batch()
        assert batch is not None
        queue.store.fail_calls(writes(PAIR.consumer), DOWN, times=1)
        with pytest.raises(Unavailable):
            await collector.release(batch)
        await collector.ack(batch)
        assert (await queue.consumer_manifest()).done == (batch.location,)


@virtual_time
async def test_a_batch_object_that_was_lost_can_be_released_by_its_location(queue: QueueFixture) -> None:
    await queue.fill("a", "b")
    async with queue.collector(mode=CollectorMode.COMPETING) as collector:
        await collector.next_batch()
        [lost] = collector.held
        with pytest.raises(InvalidCall, match="not held"):
            await collector.release("ingest/other.batch")
        await collector.release(lost)
        assert collector.held == ()
        assert sorted(await queue.collect_all(collector)) == ["a", "b"]


# --- set aside by the application


@in_both_modes
@pytest.mark.parametrize("by_location", [True, False])
@virtual_time
async def test_an_application_sets_aside_what_it_cannot_process(
    queue: QueueFixture, mode: CollectorMode, *, by_location: bool
) -> None:
    await queue.fill("a", "b")
    async with queue.collector(mode=mode) as collector:
        batch = await collector.next_batch()
        assert batch is not None
        await collector.quarantine(batch.location if by_location else batch, "The row is too wide.")
        assert (await queue.consumer_manifest()).done == (batch.location,)
        [note] = (await quarantine_notes(MANIFEST, queue.deps())).readable.values()
        assert (note.location, note.reason, len(note.keys)) == (batch.location, "The row is too wide.", 1)
        assert await queue.collect_all(collector) == ["b"]


@virtual_time
async def test_in_order_what_is_set_aside_waits_for_what_is_open_before_it(queue: QueueFixture) -> None:
    await queue.fill("a", "b")
    async with queue.collector() as collector:
        first, second = await queue.next_two(collector)
        with pytest.raises(AckOutOfOrder):
            await collector.quarantine(second, "No.")
        assert (await quarantine_notes(MANIFEST, queue.deps())).readable == {}
        await collector.ack(first)
        await collector.quarantine(second, "No.")
        assert len((await queue.consumer_manifest()).done) == 2
