"""What a collector acknowledges: in which order, how often, and when an answer is lost."""

import asyncio
import gc

import pytest

from lakehead.buffer.collector import Collector
from lakehead.buffer.config import CollectorMode
from lakehead.buffer.errors import AckOutOfOrder, InvalidCall
from lakehead.errors import OutcomeUnknown, Unavailable
from tests.unit.buffer.partition_support import fill_partition
from tests.unit.buffer.support import DOWN, LOST, PAIR, QueueFixture, in_both_modes, values, virtual_time, writes


@in_both_modes
@virtual_time
async def test_claim_and_ack_leave_the_producer_manifest_alone(queue: QueueFixture, mode: CollectorMode) -> None:
    await queue.fill("a", "b")
    before = await queue.store.inner.head(PAIR.producer)
    async with queue.collector(mode=mode) as collector:
        batch = await collector.next_batch()
        assert batch is not None
        manifest = await queue.consumer_manifest()
        assert manifest.claimed[batch.location] == queue.clock.now_ns() // 10**6
        await collector.ack(batch)
        manifest = await queue.consumer_manifest()
        assert manifest.done == (batch.location,)
        assert batch.location not in manifest.claimed
        assert batch.location not in manifest.owners
    assert await queue.store.inner.head(PAIR.producer) == before


@virtual_time
async def test_in_order_means_acknowledged_in_order(queue: QueueFixture) -> None:
    await queue.fill("a", "b")
    async with queue.collector() as collector:
        first, second = await queue.next_two(collector)
        with pytest.raises(AckOutOfOrder):
            await collector.ack(second)
        assert (await queue.consumer_manifest()).done == ()
        queue.store.hold_calls(writes(PAIR.consumer))
        earlier = asyncio.create_task(collector.ack(first))
        await queue.sleep(1)
        later = asyncio.create_task(collector.ack(second))
        await queue.sleep(1)
        queue.store.release_calls()
        await earlier
        await later
        assert (await queue.consumer_manifest()).done == (first.location, second.location)


@virtual_time
async def test_competing_collectors_acknowledge_in_any_order(queue: QueueFixture) -> None:
    await queue.fill("a", "b")
    async with queue.collector(mode=CollectorMode.COMPETING) as collector:
        first, second = await queue.next_two(collector)
        await collector.ack(second)
        await collector.ack(first)
        assert (await queue.consumer_manifest()).done == (second.location, first.location)


@virtual_time
async def test_four_competing_collectors_share_the_work_and_each_batch_is_acknowledged_once(
    queue: QueueFixture,
) -> None:
    await queue.fill(*(str(number) for number in range(40)))
    collectors = [queue.collector(mode=CollectorMode.COMPETING, read_ahead=2) for _ in range(4)]
    dead = queue.collector(mode=CollectorMode.COMPETING, read_ahead=2)
    await dead.next_batch()
    del dead
    gc.collect()

    async def work(collector: Collector) -> list[str]:
        got = []
        for patience in (0, 31):
            await queue.sleep(patience)
            while (batch := await collector.next_batch()) is not None:
                got += values(batch)
                await queue.sleep(0.1)
                await collector.ack(batch)
        return got

    shares = await asyncio.gather(*map(work, collectors))
    assert sorted(int(each) for share in shares for each in share) == list(range(40))
    assert sum(map(bool, shares)) > 1
    for collector in collectors:
        await collector.close()


@virtual_time
async def test_a_lost_answer_to_an_ack_is_found_out(queue: QueueFixture) -> None:
    await queue.fill("a")
    async with queue.collector() as collector:
        batch = await collector.next_batch()
        assert batch is not None
        queue.store.fail_calls(writes(PAIR.consumer), LOST, times=1, applied=True)
        await collector.ack(batch)
        assert (await queue.consumer_manifest()).done == (batch.location,)
        assert collector.counts.acks == 1


@virtual_time
async def test_an_ack_that_failed_leaves_the_claim_alive_and_can_be_repeated(queue: QueueFixture) -> None:
    await queue.fill("a")
    async with queue.collector() as collector:
        batch = await collector.next_batch()
        assert batch is not None
        queue.store.fail_calls(writes(PAIR.consumer), DOWN, times=1)
        with pytest.raises(Unavailable):
            await collector.ack(batch)
        await queue.sleep(100)
        assert batch.location in (await queue.consumer_manifest()).claimed
        await collector.ack(batch)
        await collector.ack(batch)
        assert (await queue.consumer_manifest()).done == (batch.location,)


@virtual_time
async def test_an_ack_that_stayed_in_doubt_and_landed_does_not_fence_its_collector(queue: QueueFixture) -> None:
    await queue.fill("a", "b")
    async with queue.collector(mode=CollectorMode.COMPETING) as collector:
        batch = await collector.next_batch()
        assert batch is not None
        queue.store.fail_calls(writes(PAIR.consumer), LOST, times=1, applied=True)
        queue.store.fail_calls(lambda call: call == ("get", PAIR.consumer), DOWN, times=1)
        with pytest.raises(OutcomeUnknown):
            await collector.ack(batch)
        await queue.sleep(11)
        await collector.ack(batch)
        assert await queue.collect_all(collector) == ["b"]


@virtual_time
async def test_of_two_acks_in_doubt_only_the_one_that_landed_counts(queue: QueueFixture) -> None:
    await queue.fill("a", "b")
    async with queue.collector(mode=CollectorMode.COMPETING) as collector:
        first, second = await queue.next_two(collector)
        queue.store.fail_calls(writes(PAIR.consumer), LOST, times=1)
        queue.store.fail_calls(lambda call: call == ("get", PAIR.consumer), DOWN, times=1)
        with pytest.raises(OutcomeUnknown):
            await collector.ack(first)
        queue.store.fail_calls(writes(PAIR.consumer), LOST, times=1, applied=True)
        await collector.ack(second)
        assert (await queue.consumer_manifest()).done == (second.location,)
        await collector.ack(first)
        assert (await queue.consumer_manifest()).done == (second.location, first.location)


@virtual_time
async def test_an_ack_that_is_cancelled_is_not_taken_back(queue: QueueFixture) -> None:
    await queue.fill("a")
    async with queue.collector() as collector:
        batch = await collector.next_batch()
        assert batch is not None
        queue.store.hold_calls(writes(PAIR.consumer))
        waiting = asyncio.create_task(collector.ack(batch))
        await queue.sleep(1)
        waiting.cancel()
        await asyncio.wait([waiting])
        queue.store.release_calls()
        await collector.ack(batch)
        assert (await queue.consumer_manifest()).done == (batch.location,)


@virtual_time
async def test_a_collector_takes_back_only_what_it_has_handed_out(queue: QueueFixture) -> None:
    await queue.fill("a")
    async with queue.collector() as collector, queue.collector() as other:
        batch = await collector.next_batch()
        assert batch is not None
        with pytest.raises(InvalidCall):
            await other.ack(batch)


@in_both_modes
@virtual_time
async def test_an_ack_of_several_partitions_that_is_cancelled_is_taken_back_in_none(
    queue: QueueFixture, mode: CollectorMode
) -> None:
    await fill_partition(queue, 0, "a", partitions=2)
    await fill_partition(queue, 1, "b", partitions=2)
    async with queue.collector(mode=mode) as collector:
        both = await queue.next_two(collector)
        queue.store.hold_calls(lambda call: call[0] == "replace")
        acking = asyncio.create_task(collector.ack(*both))
        await queue.sleep(1)
        acking.cancel()
        await queue.sleep(1)
        queue.store.release_calls()
        await queue.sleep(1)
        assert collector.held == ()


@virtual_time
async def test_an_ack_of_several_partitions_that_is_out_of_turn_in_one_acknowledges_nothing(
    queue: QueueFixture,
) -> None:
    await fill_partition(queue, 0, "a", partitions=2)
    await fill_partition(queue, 1, "b", "c", partitions=2)
    async with queue.collector() as collector:
        got = {}
        while (batch := await collector.next_batch()) is not None:
            got[values(batch)[0]] = batch
        with pytest.raises(AckOutOfOrder):
            await collector.ack(got["a"], got["c"])
        assert set(collector.held) == {batch.location for batch in got.values()}
        await collector.ack(got["c"], got["a"], got["b"])
        assert not collector.held
