"""Heartbeats and take-overs: whose a batch is, and that whoever lost it does nothing more."""

import gc

import pytest

from lakehead.buffer.collector import CollectedBatch, Collector
from lakehead.buffer.consumer import Mode
from lakehead.buffer.errors import Fenced
from tests.sim.world import SimulatedClock
from tests.unit.buffer.scene import DOWN, LOST, PAIR, Scene, in_both_modes, play, values, writes


def test_a_batch_that_is_held_for_long_is_kept_alive() -> None:
    async def story(scene: Scene) -> None:
        await scene.fill("a")
        collector, other = (scene.collector(mode=Mode.COMPETING) for _ in range(2))
        batch = await collector.next_batch()
        assert batch is not None
        for _ in range(30):
            await scene.later(10)
            assert await other.next_batch() is None
        await collector.ack(batch)
        assert await other.next_batch() is None
        await collector.close()
        await other.close()

    play(story)


@in_both_modes
def test_a_claim_is_stale_after_the_timeout_and_not_at_it(mode: Mode) -> None:
    async def story(scene: Scene) -> None:
        await scene.fill("a")
        dead = scene.collector(mode=mode)
        assert values(await dead.next_batch()) == ["a"]
        del dead
        gc.collect()
        async with scene.collector(mode=mode) as other:
            await scene.later(30)
            assert await other.next_batch() is None
            await scene.later(0.001)
            assert values(await other.next_batch()) == ["a"]

    play(story)


def test_a_collector_that_is_dropped_sends_no_heartbeats() -> None:
    async def story(scene: Scene) -> None:
        await scene.fill("a")
        collector = scene.collector()
        await collector.next_batch()
        before = await scene.consumer()
        del collector
        gc.collect()
        await scene.later(100)
        assert await scene.consumer() == before

    play(story)


def test_one_write_refreshes_all_claims() -> None:
    async def story(scene: Scene) -> None:
        await scene.fill("a", "b", "c")
        async with scene.collector(mode=Mode.COMPETING) as collector:
            await collector.next_batch()
            before = scene.store.count(writes(PAIR.consumer))
            await scene.later(10.01)
            assert scene.store.count(writes(PAIR.consumer)) == before + 1
            now = scene.clock.now_ns() // 10**6
            assert {now - at for at in (await scene.consumer()).claimed.values()} == {10}

    play(story)


async def stalled(scene: Scene, mode: Mode) -> tuple[Collector, CollectedBatch, Collector, CollectedBatch]:
    """A collector whose heartbeats do not get through, and another that has taken over its batch."""
    await scene.fill("a", "b")
    old = scene.collector(mode=mode, read_ahead=1)
    batch = await old.next_batch()
    assert batch is not None
    assert old._beating is not None
    old._beating.cancel()
    await scene.later(31)
    new = scene.collector(mode=mode, read_ahead=1)
    taken = await new.next_batch()
    assert taken is not None
    assert values(taken) == values(batch)
    return old, batch, new, taken


@in_both_modes
def test_a_fenced_collector_acknowledges_nothing_and_hands_out_nothing(mode: Mode) -> None:
    async def story(scene: Scene) -> None:
        old, batch, new, taken = await stalled(scene, mode)
        before = await scene.consumer()
        with pytest.raises(Fenced):
            await old.ack(batch)
        with pytest.raises(Fenced):
            await old.next_batch()
        with pytest.raises(Fenced):
            await old.ack(batch)
        assert await scene.consumer() == before
        await new.ack(taken)
        assert await scene.all_of(new) == ["b"]
        assert old.counts.claims_lost == 1
        await old.close()
        await new.close()

    play(story)


@in_both_modes
def test_a_fenced_collector_cannot_acknowledge_what_its_successor_has_cleaned_up(mode: Mode) -> None:
    async def story(scene: Scene) -> None:
        old, batch, new, taken = await stalled(scene, mode)
        await new.ack(taken)
        with pytest.raises(Fenced):
            await old.ack(batch)
        await old.close()
        await new.close()

    play(story)


@in_both_modes
def test_a_heartbeat_finds_out_that_the_collector_is_fenced(mode: Mode) -> None:
    async def story(scene: Scene) -> None:
        old, _, new, _ = await stalled(scene, mode)
        before = await scene.consumer()
        await old.heartbeat()
        assert await scene.consumer() == before
        with pytest.raises(Fenced):
            await old.next_batch()
        await old.close()
        await new.close()

    play(story)


def test_what_was_read_ahead_is_not_handed_out_after_a_long_stall() -> None:
    async def story(scene: Scene) -> None:
        await scene.fill("a", "b")
        old = scene.collector()
        assert values(await old.next_batch()) == ["a"]
        assert old._beating is not None
        old._beating.cancel()
        await scene.later(31)
        async with scene.collector() as new:
            assert await scene.all_of(new) == ["a", "b"]
            with pytest.raises(Fenced):
                await old.next_batch()
        await old.close()

    play(story)


def test_order_survives_fail_over() -> None:
    async def story(scene: Scene) -> None:
        await scene.fill(*"abcdef")
        first = scene.collector(read_ahead=4)
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
        async with scene.collector() as second:
            assert await second.next_batch() is None
            await scene.later(31)
            batch = await second.next_batch()
            assert values(batch) == ["c"]
            assert batch is not None
            assert batch.epoch > epoch
            await second.ack(batch)
            assert await scene.all_of(second) == ["d", "e", "f"]

    play(story)


def test_a_successor_need_not_wait_for_a_collector_that_closed_with_nothing_open() -> None:
    async def story(scene: Scene) -> None:
        await scene.fill("a", "b", "c")
        async with scene.collector() as first:
            batch = await first.next_batch()
            assert batch is not None
            await first.ack(batch)
        async with scene.collector() as second:
            assert await scene.all_of(second) == ["b", "c"]

    play(story)


@in_both_modes
def test_what_was_open_when_a_collector_closed_is_handed_out_at_once(mode: Mode) -> None:
    async def story(scene: Scene) -> None:
        await scene.fill("a", "b", "c")
        async with scene.collector(mode=mode) as first:
            await first.next_batch()
            before = scene.store.count(writes(PAIR.consumer))
        assert scene.store.count(writes(PAIR.consumer)) == before + 1, "one write gives everything back"
        manifest = await scene.consumer()
        assert (manifest.claimed, manifest.owners, manifest.owner) == ({}, {}, None)
        async with scene.collector(mode=mode) as second:
            assert await scene.all_of(second) == ["a", "b", "c"]

    play(story)


@in_both_modes
def test_a_close_whose_answer_is_lost_has_given_everything_back(mode: Mode, caplog: pytest.LogCaptureFixture) -> None:
    async def story(scene: Scene) -> None:
        await scene.fill("a", "b")
        first = scene.collector(mode=mode)
        await first.next_batch()
        scene.store.break_(writes(PAIR.consumer), LOST, times=1, applied=True)
        await first.close()
        assert first.counts.claims_lost == 0
        async with scene.collector(mode=mode) as second:
            assert await scene.all_of(second) == ["a", "b"]

    play(story)
    assert not caplog.records


def test_a_close_that_fails_says_what_follows(caplog: pytest.LogCaptureFixture) -> None:
    async def story(scene: Scene) -> None:
        await scene.fill("a")
        first = scene.collector()
        await first.next_batch()
        scene.store.break_(writes(PAIR.consumer), DOWN)
        await first.close()
        scene.store.mend()
        async with scene.collector() as second:
            assert await second.next_batch() is None
            await scene.later(31)
            assert await scene.all_of(second) == ["a"]

    play(story, seeds=1)
    [record] = caplog.records
    assert "heartbeat_timeout_ms" in record.getMessage()


@pytest.mark.parametrize("off_by", [-3600.0, 3600.0])
@in_both_modes
def test_clocks_that_are_off_by_an_hour_delay_at_most(mode: Mode, off_by: float) -> None:
    async def story(scene: Scene) -> None:
        await scene.fill("a")
        wrong = SimulatedClock(scene.world.loop, off_by=off_by)
        dead = scene.collector(mode=mode, clock=wrong)
        assert values(await dead.next_batch()) == ["a"]
        del dead
        gc.collect()
        async with scene.collector(mode=mode) as other:
            batch = await other.next_batch()
            if off_by > 0:
                assert batch is None
                await scene.later(31)
                batch = await other.next_batch()
            assert values(batch) == ["a"]

    play(story)
