"""What a collector acknowledges: in which order, how often, and when an answer is lost."""

import asyncio
import gc

import pytest

from lakehead.buffer.collector import Collector
from lakehead.buffer.consumer import Mode
from lakehead.buffer.errors import OutOfTurn, Refused
from lakehead.errors import OutcomeUnknown, Unavailable
from tests.unit.buffer.scene import DOWN, LOST, PAIR, Scene, in_both_modes, play, values, writes
from tests.unit.buffer.test_waiting import fill_partition


@in_both_modes
def test_claim_and_ack_leave_the_producer_manifest_alone(mode: Mode) -> None:
    async def story(scene: Scene) -> None:
        await scene.fill("a", "b")
        before = await scene.store.inner.head(PAIR.producer)
        async with scene.collector(mode=mode) as collector:
            batch = await collector.next_batch()
            assert batch is not None
            manifest = await scene.consumer()
            assert manifest.claimed[batch.location] == scene.clock.now_ns() // 10**6
            await collector.ack(batch)
            manifest = await scene.consumer()
            assert manifest.done == (batch.location,)
            assert batch.location not in manifest.claimed
            assert batch.location not in manifest.owners
        assert await scene.store.inner.head(PAIR.producer) == before

    play(story)


def test_in_order_means_acknowledged_in_order() -> None:
    async def story(scene: Scene) -> None:
        await scene.fill("a", "b")
        async with scene.collector() as collector:
            first, second = await scene.two_of(collector)
            with pytest.raises(OutOfTurn):
                await collector.ack(second)
            assert (await scene.consumer()).done == ()
            scene.store.hold(writes(PAIR.consumer))
            earlier = asyncio.create_task(collector.ack(first))
            await scene.later(1)
            later = asyncio.create_task(collector.ack(second))
            await scene.later(1)
            scene.store.release()
            await earlier
            await later
            assert (await scene.consumer()).done == (first.location, second.location)

    play(story)


def test_competing_collectors_acknowledge_in_any_order() -> None:
    async def story(scene: Scene) -> None:
        await scene.fill("a", "b")
        async with scene.collector(mode=Mode.COMPETING) as collector:
            first, second = await scene.two_of(collector)
            await collector.ack(second)
            await collector.ack(first)
            assert (await scene.consumer()).done == (second.location, first.location)

    play(story)


def test_four_competing_collectors_share_the_work_and_each_batch_is_acknowledged_once() -> None:
    async def story(scene: Scene) -> None:
        await scene.fill(*(str(number) for number in range(40)))
        collectors = [scene.collector(mode=Mode.COMPETING, read_ahead=2) for _ in range(4)]
        dead = scene.collector(mode=Mode.COMPETING, read_ahead=2)
        await dead.next_batch()
        del dead
        gc.collect()

        async def work(collector: Collector) -> list[str]:
            got = []
            for patience in (0, 31):
                await scene.later(patience)
                while (batch := await collector.next_batch()) is not None:
                    got += values(batch)
                    await scene.later(0.1)
                    await collector.ack(batch)
            return got

        shares = await asyncio.gather(*map(work, collectors))
        assert sorted(int(each) for share in shares for each in share) == list(range(40))
        assert sum(map(bool, shares)) > 1
        for collector in collectors:
            await collector.close()

    play(story)


def test_a_lost_answer_to_an_ack_is_found_out() -> None:
    async def story(scene: Scene) -> None:
        await scene.fill("a")
        async with scene.collector() as collector:
            batch = await collector.next_batch()
            assert batch is not None
            scene.store.break_(writes(PAIR.consumer), LOST, times=1, applied=True)
            await collector.ack(batch)
            assert (await scene.consumer()).done == (batch.location,)
            assert collector.counts.acks == 1

    play(story)


def test_an_ack_that_failed_leaves_the_claim_alive_and_can_be_repeated() -> None:
    async def story(scene: Scene) -> None:
        await scene.fill("a")
        async with scene.collector() as collector:
            batch = await collector.next_batch()
            assert batch is not None
            scene.store.break_(writes(PAIR.consumer), DOWN, times=1)
            with pytest.raises(Unavailable):
                await collector.ack(batch)
            await scene.later(100)
            assert batch.location in (await scene.consumer()).claimed
            await collector.ack(batch)
            await collector.ack(batch)
            assert (await scene.consumer()).done == (batch.location,)

    play(story)


def test_an_ack_that_stayed_in_doubt_and_landed_does_not_fence_its_collector() -> None:
    async def story(scene: Scene) -> None:
        await scene.fill("a", "b")
        async with scene.collector(mode=Mode.COMPETING) as collector:
            batch = await collector.next_batch()
            assert batch is not None
            scene.store.break_(writes(PAIR.consumer), LOST, times=1, applied=True)
            scene.store.break_(lambda call: call == ("get", PAIR.consumer), DOWN, times=1)
            with pytest.raises(OutcomeUnknown):
                await collector.ack(batch)
            await scene.later(11)
            await collector.ack(batch)
            assert await scene.all_of(collector) == ["b"]

    play(story)


def test_of_two_acks_in_doubt_only_the_one_that_landed_counts() -> None:
    async def story(scene: Scene) -> None:
        await scene.fill("a", "b")
        async with scene.collector(mode=Mode.COMPETING) as collector:
            first, second = await scene.two_of(collector)
            scene.store.break_(writes(PAIR.consumer), LOST, times=1)
            scene.store.break_(lambda call: call == ("get", PAIR.consumer), DOWN, times=1)
            with pytest.raises(OutcomeUnknown):
                await collector.ack(first)
            scene.store.break_(writes(PAIR.consumer), LOST, times=1, applied=True)
            await collector.ack(second)
            assert (await scene.consumer()).done == (second.location,)
            await collector.ack(first)
            assert (await scene.consumer()).done == (second.location, first.location)

    play(story)


def test_an_ack_that_is_cancelled_is_not_taken_back() -> None:
    async def story(scene: Scene) -> None:
        await scene.fill("a")
        async with scene.collector() as collector:
            batch = await collector.next_batch()
            assert batch is not None
            scene.store.hold(writes(PAIR.consumer))
            waiting = asyncio.create_task(collector.ack(batch))
            await scene.later(1)
            waiting.cancel()
            await asyncio.wait([waiting])
            scene.store.release()
            await collector.ack(batch)
            assert (await scene.consumer()).done == (batch.location,)

    play(story)


def test_a_collector_takes_back_only_what_it_has_handed_out() -> None:
    async def story(scene: Scene) -> None:
        await scene.fill("a")
        async with scene.collector() as collector, scene.collector() as other:
            batch = await collector.next_batch()
            assert batch is not None
            with pytest.raises(Refused):
                await other.ack(batch)

    play(story)


@in_both_modes
def test_an_ack_of_several_partitions_that_is_cancelled_is_taken_back_in_none(mode: Mode) -> None:
    async def story(scene: Scene) -> None:
        await fill_partition(scene, 0, "a", partitions=2)
        await fill_partition(scene, 1, "b", partitions=2)
        async with scene.collector(mode=mode) as collector:
            both = await scene.two_of(collector)
            scene.store.hold(lambda call: call[0] == "replace")
            acking = asyncio.create_task(collector.ack(*both))
            await scene.later(1)
            acking.cancel()
            await scene.later(1)
            scene.store.release()
            await scene.later(1)
            assert collector.held == ()

    play(story)


def test_an_ack_of_several_partitions_that_is_out_of_turn_in_one_acknowledges_nothing() -> None:
    async def story(scene: Scene) -> None:
        await fill_partition(scene, 0, "a", partitions=2)
        await fill_partition(scene, 1, "b", "c", partitions=2)
        async with scene.collector() as collector:
            got = {}
            while (batch := await collector.next_batch()) is not None:
                got[values(batch)[0]] = batch
            with pytest.raises(OutOfTurn):
                await collector.ack(got["a"], got["c"])
            assert set(collector.held) == {batch.location for batch in got.values()}
            await collector.ack(got["c"], got["a"], got["b"])
            assert not collector.held

    play(story)
