"""Heartbeats and take-overs: whose a batch is, and that whoever lost it does nothing more."""

import gc

import pytest

from lakehead.buffer.collector import CollectedBatch, Collector
from lakehead.buffer.config import CollectorMode
from lakehead.buffer.errors import Fenced
from tests.support.simulation import SimulatedClock
from tests.unit.buffer.support import DOWN, LOST, PAIR, QueueFixture, in_both_modes, values, virtual_time, writes


@virtual_time
async def test_a_batch_that_is_held_for_long_is_kept_alive(queue: QueueFixture) -> None:
    await queue.fill("a")
    collector, other = (queue.collector(mode=CollectorMode.COMPETING) for _ in range(2))
    batch = await collector.next_batch()
    assert batch is not None
    for _ in range(30):
        await queue.sleep(10)
        assert await other.next_batch() is None
    await collector.ack(batch)
    assert await other.next_batch() is None
    await collector.close()
    await other.close()


@in_both_modes
@virtual_time
async def test_a_claim_is_stale_after_the_timeout_and_not_at_it(queue: QueueFixture, mode: CollectorMode) -> None:
    await queue.fill("a")
    dead = queue.collector(mode=mode)
    assert values(await dead.next_batch()) == ["a"]
    del dead
    gc.collect()
    async with queue.collector(mode=mode) as other:
        await queue.sleep(30)
        assert await other.next_batch() is None
        await queue.sleep(0.001)
        assert values(await other.next_batch()) == ["a"]


@virtual_time
async def test_a_collector_that_is_dropped_sends_no_heartbeats(queue: QueueFixture) -> None:
    await queue.fill("a")
    collector = queue.collector()
    await collector.next_batch()
    before = await queue.consumer_manifest()
    del collector
    gc.collect()
    await queue.sleep(100)
    assert await queue.consumer_manifest() == before


@virtual_time
async def test_one_write_refreshes_all_claims(queue: QueueFixture) -> None:
    await queue.fill("a", "b", "c")
    async with queue.collector(mode=CollectorMode.COMPETING) as collector:
        await collector.next_batch()
        before = queue.store.count(writes(PAIR.consumer))
        await queue.sleep(10.01)
        assert queue.store.count(writes(PAIR.consumer)) == before + 1
        now = queue.clock.now_ns() // 10**6
        assert {now - at for at in (await queue.consumer_manifest()).claimed.values()} == {10}


async def stalled(
    queue: QueueFixture, mode: CollectorMode
) -> tuple[Collector, CollectedBatch, Collector, CollectedBatch]:
    """A collector whose heartbeats do not get through, and another that has taken over its batch."""
    await queue.fill("a", "b")
    old = queue.collector(mode=mode, read_ahead=1)
    batch = await old.next_batch()
    assert batch is not None
    assert old._heartbeats is not None
    old._heartbeats.cancel()
    await queue.sleep(31)
    new = queue.collector(mode=mode, read_ahead=1)
    taken = await new.next_batch()
    assert taken is not None
    assert values(taken) == values(batch)
    return old, batch, new, taken


@in_both_modes
@virtual_time
async def test_a_fenced_collector_acknowledges_nothing_and_hands_out_nothing(
    queue: QueueFixture, mode: CollectorMode
) -> None:
    old, batch, new, taken = await stalled(queue, mode)
    before = await queue.consumer_manifest()
    with pytest.raises(Fenced):
        await old.ack(batch)
    with pytest.raises(Fenced):
        await old.next_batch()
    with pytest.raises(Fenced):
        await old.ack(batch)
    assert await queue.consumer_manifest() == before
    await new.ack(taken)
    assert await queue.collect_all(new) == ["b"]
    assert old.counts.claims_lost == 1
    await old.close()
    await new.close()


@in_both_modes
@virtual_time
async def test_a_fenced_collector_cannot_acknowledge_what_its_successor_has_cleaned_up(
    queue: QueueFixture, mode: CollectorMode
) -> None:
    old, batch, new, taken = await stalled(queue, mode)
    await new.ack(taken)
    with pytest.raises(Fenced):
        await old.ack(batch)
    await old.close()
    await new.close()


@in_both_modes
@virtual_time
async def test_a_heartbeat_finds_out_that_the_collector_is_fenced(queue: QueueFixture, mode: CollectorMode) -> None:
    old, _, new, _ = await stalled(queue, mode)
    before = await queue.consumer_manifest()
    await old.heartbeat()
    assert await queue.consumer_manifest() == before
    with pytest.raises(Fenced):
        await old.next_batch()
    await old.close()
    await new.close()


@virtual_time
async def test_what_was_read_ahead_is_not_handed_out_after_a_long_stall(queue: QueueFixture) -> None:
    await queue.fill("a", "b")
    old = queue.collector()
    assert values(await old.next_batch()) == ["a"]
    assert old._heartbeats is not None
    old._heartbeats.cancel()
    await queue.sleep(31)
    async with queue.collector() as new:
        assert await queue.collect_all(new) == ["a", "b"]
        with pytest.raises(Fenced):
            await old.next_batch()
    await old.close()


@virtual_time
async def test_order_survives_fail_over(queue: QueueFixture) -> None:
    await queue.fill(*"abcdef")
    first = queue.collector(read_ahead=4)
    for expected in "abc":
        batch = await first.next_batch()
        assert values(batch) == [expected]
        assert batch is not None
        if expected != "c":
            await first.ack(batch)
    assert batch is not None
    epoch = batch.epoch
    del first
    gc.collect()
    async with queue.collector() as second:
        assert await second.next_batch() is None
        await queue.sleep(31)
        batch = await second.next_batch()
        assert values(batch) == ["c"]
        assert batch is not None
        assert batch.epoch > epoch
        await second.ack(batch)
        assert await queue.collect_all(second) == ["d", "e", "f"]


@virtual_time
async def test_a_successor_need_not_wait_for_a_collector_that_closed_with_nothing_open(queue: QueueFixture) -> None:
    await queue.fill("a", "b", "c")
    async with queue.collector() as first:
        batch = await first.next_batch()
        assert batch is not None
        await first.ack(batch)
    async with queue.collector() as second:
        assert await queue.collect_all(second) == ["b", "c"]


@in_both_modes
@virtual_time
async def test_what_was_open_when_a_collector_closed_is_handed_out_at_once(
    queue: QueueFixture, mode: CollectorMode
) -> None:
    await queue.fill("a", "b", "c")
    async with queue.collector(mode=mode) as first:
        await first.next_batch()
        before = queue.store.count(writes(PAIR.consumer))
    assert queue.store.count(writes(PAIR.consumer)) == before + 1, "one write gives everything back"
    manifest = await queue.consumer_manifest()
    assert (manifest.claimed, manifest.owners, manifest.owner) == ({}, {}, None)
    async with queue.collector(mode=mode) as second:
        assert await queue.collect_all(second) == ["a", "b", "c"]


@in_both_modes
@virtual_time
async def test_a_close_whose_answer_is_lost_has_given_everything_back(
    queue: QueueFixture, mode: CollectorMode, caplog: pytest.LogCaptureFixture
) -> None:
    await queue.fill("a", "b")
    first = queue.collector(mode=mode)
    await first.next_batch()
    queue.store.fail_calls(writes(PAIR.consumer), LOST, times=1, applied=True)
    await first.close()
    assert first.counts.claims_lost == 0
    async with queue.collector(mode=mode) as second:
        assert await queue.collect_all(second) == ["a", "b"]
    assert not caplog.records


@virtual_time(seeds=1)
async def test_a_close_that_fails_says_what_follows(queue: QueueFixture, caplog: pytest.LogCaptureFixture) -> None:
    await queue.fill("a")
    first = queue.collector()
    await first.next_batch()
    queue.store.fail_calls(writes(PAIR.consumer), DOWN)
    await first.close()
    queue.store.stop_failing()
    async with queue.collector() as second:
        assert await second.next_batch() is None
        await queue.sleep(31)
        assert await queue.collect_all(second) == ["a"]
    [record] = caplog.records
    assert "heartbeat_timeout_ms" in record.getMessage()


@pytest.mark.slow
@pytest.mark.parametrize("off_by", [-3600.0, 3600.0])
@in_both_modes
@virtual_time
async def test_clocks_that_are_off_by_an_hour_delay_at_most(
    queue: QueueFixture, mode: CollectorMode, off_by: float
) -> None:
    await queue.fill("a")
    wrong = SimulatedClock(queue.world.loop, off_by=off_by)
    dead = queue.collector(mode=mode, clock=wrong)
    assert values(await dead.next_batch()) == ["a"]
    del dead
    gc.collect()
    async with queue.collector(mode=mode) as other:
        batch = await other.next_batch()
        if off_by > 0:
            assert batch is None
            await queue.sleep(31)
            batch = await other.next_batch()
        assert values(batch) == ["a"]
