"""Batches that are handed out again: how often, what goes back to the queue, and what an application sets aside."""

import asyncio
import gc

import pytest

from lakehead.buffer.collector import CollectedBatch, Collector
from lakehead.buffer.consumer import Mode
from lakehead.buffer.errors import OutOfTurn, Refused
from lakehead.buffer.inspection import notes
from lakehead.errors import OutcomeUnknown, Unavailable
from lakehead.wire.batch import encode_json
from lakehead.wire.errors import NewerFormat
from tests.unit.buffer.scene import DOWN, LOST, MANIFEST, PAIR, Scene, entries, in_both_modes, play, values, writes


async def some_of(collector: Collector, count: int) -> list[CollectedBatch]:
    found = [await collector.next_batch() for _ in range(count)]
    return [batch for batch in found if batch is not None]


async def crash(scene: Scene, collector: Collector) -> None:
    """Stop without giving anything back, and wait until that is noticed."""
    assert collector._beating is not None
    collector._beating.cancel()
    gc.collect()
    await scene.later(31)


# --- how often


@in_both_modes
def test_a_batch_tells_how_often_it_was_handed_out(mode: Mode) -> None:
    async def story(scene: Scene) -> None:
        await scene.fill("a", "b")
        for times in (1, 2, 3):
            collector = scene.collector(mode=mode)
            first, second = await scene.two_of(collector)
            assert (values(first), first.deliveries) == (["a"], times)
            assert (values(second), second.deliveries) == (["b"], times)
            await crash(scene, collector)
        async with scene.collector(mode=mode) as collector:
            assert await scene.all_of(collector) == ["a", "b"]
            assert (await scene.consumer()).deliveries == {}

    play(story)


@in_both_modes
def test_what_was_only_claimed_ahead_is_not_counted_when_its_collector_is_closed(mode: Mode) -> None:
    async def story(scene: Scene) -> None:
        await scene.fill("a", "b", "c")
        async with scene.collector(mode=mode) as first:
            held = await first.next_batch()
            assert held is not None
            assert len((await scene.consumer()).deliveries) == 3
        assert (await scene.consumer()).deliveries == {held.location: 1}
        async with scene.collector(mode=mode) as second:
            assert [batch.deliveries for batch in await some_of(second, 3)] == [2, 1, 1]

    play(story)


@in_both_modes
def test_a_claim_whose_answer_is_lost_is_counted_once(mode: Mode) -> None:
    async def story(scene: Scene) -> None:
        await scene.fill("a", "b")
        scene.store.break_(writes(PAIR.consumer), LOST, times=1, applied=True)
        async with scene.collector(mode=mode) as collector:
            assert [batch.deliveries for batch in await some_of(collector, 2)] == [1, 1]
            assert set((await scene.consumer()).deliveries.values()) == {1}

    play(story)


@in_both_modes
def test_a_batch_that_crashes_its_reader_takes_no_neighbours_along(mode: Mode) -> None:
    async def story(scene: Scene) -> None:
        await scene.fill("good", "poison", "fine", "also fine")
        got = []
        for _ in range(10):
            collector = scene.collector(mode=mode, max_deliveries=3)
            while (batch := await collector.next_batch()) is not None:
                if values(batch) == ["poison"]:
                    break
                got += values(batch)
                await collector.ack(batch)
            if batch is None:
                break
            await crash(scene, collector)
        await scene.later(1)
        await collector.close()
        assert sorted(got) == ["also fine", "fine", "good"]
        [note] = (await notes(MANIFEST, scene.means())).read.values()
        assert note.reason == "It was handed out 3 times and never acknowledged."
        [key] = note.keys
        kept = await scene.store.inner.get(key)
        assert kept is not None
        assert kept.body == encode_json(entries("poison"))
        assert (await scene.consumer()).bad_in_a_row == 0

    play(story)


def test_a_newer_batch_is_not_set_aside_however_often_it_was_claimed() -> None:
    async def story(scene: Scene) -> None:
        await scene.fill("newer")
        [location] = (await scene.producer()).pending
        await scene.store.inner.put(location, b"LKB2" + bytes(40))
        for _ in range(4):
            collector = scene.collector(max_deliveries=2)
            with pytest.raises(NewerFormat):
                await collector.next_batch()
            assert collector._beating is not None
            await crash(scene, collector)
        assert (await notes(MANIFEST, scene.means())).read == {}

    play(story, seeds=1)


# --- back to the queue


def test_a_released_batch_goes_to_another_collector_at_once() -> None:
    async def story(scene: Scene) -> None:
        await scene.fill("a", "b")
        async with scene.collector(mode=Mode.COMPETING) as one, scene.collector(mode=Mode.COMPETING) as other:
            first, second = await scene.two_of(one)
            await one.release(first)
            again = await other.next_batch()
            assert again is not None
            assert (values(again), again.deliveries) == (["a"], 2)
            with pytest.raises(Refused, match="released"):
                await one.ack(first)
            await one.ack(second)
            await other.ack(again)
            assert len((await scene.consumer()).done) == 2

    play(story)


def test_a_collector_may_take_what_it_has_released() -> None:
    async def story(scene: Scene) -> None:
        await scene.fill("a")
        async with scene.collector(mode=Mode.COMPETING) as collector:
            first = await collector.next_batch()
            assert first is not None
            await collector.release(first)
            await collector.release(first)
            again = await collector.next_batch()
            assert again is not None
            with pytest.raises(Refused):
                await collector.ack(first)
            assert (await scene.consumer()).done == ()
            await collector.ack(again)
            await collector.ack(again)
            assert (await scene.consumer()).done == (first.location,)
            with pytest.raises(Refused, match="acknowledged"):
                await collector.release(again)

    play(story)


def test_in_order_what_was_handed_out_behind_a_released_batch_goes_back_too() -> None:
    async def story(scene: Scene) -> None:
        await scene.fill(*"abcde")
        async with scene.collector() as collector, scene.collector() as standby:
            first, second, third = await some_of(collector, 3)
            await collector.ack(first)
            await collector.release(second)
            manifest = await scene.consumer()
            assert manifest.claimed == {}
            assert manifest.owner is not None
            assert sorted(manifest.deliveries.values()) == [1, 1]
            with pytest.raises(Refused):
                await collector.ack(third)
            assert await standby.next_batch() is None
            assert collector.held == ()
            assert await scene.all_of(collector) == ["b", "c", "d", "e"]

    play(story)


@in_both_modes
def test_an_ack_that_is_under_way_comes_before_a_release(mode: Mode) -> None:
    async def story(scene: Scene) -> None:
        await scene.fill("a", "b")
        async with scene.collector(mode=mode) as collector:
            first, second = await scene.two_of(collector)
            scene.store.hold(writes(PAIR.consumer))
            acking = asyncio.create_task(collector.ack(first))
            await scene.later(1)
            releasing = asyncio.create_task(collector.release(first))
            other = asyncio.create_task(collector.release(second))
            await scene.later(1)
            scene.store.release()
            await acking
            with pytest.raises(Refused, match="acknowledged"):
                await releasing
            await other
            assert (await scene.consumer()).done == (first.location,)
            assert await scene.all_of(collector) == ["b"]

    play(story)


@in_both_modes
def test_an_ack_that_comes_while_a_release_is_under_way_is_refused(mode: Mode) -> None:
    async def story(scene: Scene) -> None:
        await scene.fill("a")
        async with scene.collector(mode=mode) as collector:
            batch = await collector.next_batch()
            assert batch is not None
            scene.store.hold(writes(PAIR.consumer))
            releasing = asyncio.create_task(collector.release(batch))
            await scene.later(1)
            acking = asyncio.create_task(collector.ack(batch))
            await scene.later(1)
            scene.store.release()
            await releasing
            with pytest.raises(Refused):
                await acking
            assert await scene.all_of(collector) == ["a"]

    play(story)


@in_both_modes
@pytest.mark.parametrize("applied", [True, False])
def test_a_release_in_doubt_can_be_repeated_and_fences_nobody(mode: Mode, *, applied: bool) -> None:
    async def story(scene: Scene) -> None:
        await scene.fill("a", "b")
        async with scene.collector(mode=mode) as collector:
            batch = await collector.next_batch()
            assert batch is not None
            scene.store.break_(writes(PAIR.consumer), LOST, times=1, applied=applied)
            scene.store.break_(lambda call: call == ("get", PAIR.consumer), DOWN, times=1)
            with pytest.raises(OutcomeUnknown):
                await collector.release(batch)
            await scene.later(11)
            await collector.release(batch)
            assert sorted(await scene.all_of(collector)) == ["a", "b"]
            assert collector.counts.claims_lost == 0

    play(story)


def test_a_release_finds_out_that_an_acknowledgement_in_doubt_has_landed() -> None:
    async def story(scene: Scene) -> None:
        await scene.fill("a")
        async with scene.collector(mode=Mode.COMPETING) as collector:
            batch = await collector.next_batch()
            assert batch is not None
            scene.store.break_(writes(PAIR.consumer), LOST, times=1, applied=True)
            scene.store.break_(lambda call: call == ("get", PAIR.consumer), DOWN, times=1)
            with pytest.raises(OutcomeUnknown):
                await collector.ack(batch)
            with pytest.raises(Refused, match="acknowledged"):
                await collector.release(batch)

    play(story)


def test_a_release_that_failed_can_be_repeated() -> None:
    async def story(scene: Scene) -> None:
        await scene.fill("a")
        async with scene.collector() as collector:
            batch = await collector.next_batch()
            assert batch is not None
            scene.store.break_(writes(PAIR.consumer), DOWN, times=1)
            with pytest.raises(Unavailable):
                await collector.release(batch)
            await collector.ack(batch)
            assert (await scene.consumer()).done == (batch.location,)

    play(story)


def test_a_batch_object_that_was_lost_can_be_released_by_its_location() -> None:
    async def story(scene: Scene) -> None:
        await scene.fill("a", "b")
        async with scene.collector(mode=Mode.COMPETING) as collector:
            await collector.next_batch()
            [lost] = collector.held
            with pytest.raises(Refused, match="not held"):
                await collector.release("ingest/other.batch")
            await collector.release(lost)
            assert collector.held == ()
            assert sorted(await scene.all_of(collector)) == ["a", "b"]

    play(story)


# --- set aside by the application


@in_both_modes
@pytest.mark.parametrize("by_location", [True, False])
def test_an_application_sets_aside_what_it_cannot_process(mode: Mode, *, by_location: bool) -> None:
    async def story(scene: Scene) -> None:
        await scene.fill("a", "b")
        async with scene.collector(mode=mode) as collector:
            batch = await collector.next_batch()
            assert batch is not None
            await collector.set_aside(batch.location if by_location else batch, "The row is too wide.")
            assert (await scene.consumer()).done == (batch.location,)
            [note] = (await notes(MANIFEST, scene.means())).read.values()
            assert (note.location, note.reason, len(note.keys)) == (batch.location, "The row is too wide.", 1)
            assert await scene.all_of(collector) == ["b"]

    play(story)


def test_in_order_what_is_set_aside_waits_for_what_is_open_before_it() -> None:
    async def story(scene: Scene) -> None:
        await scene.fill("a", "b")
        async with scene.collector() as collector:
            first, second = await scene.two_of(collector)
            with pytest.raises(OutOfTurn):
                await collector.set_aside(second, "No.")
            assert (await notes(MANIFEST, scene.means())).read == {}
            await collector.ack(first)
            await collector.set_aside(second, "No.")
            assert len((await scene.consumer()).done) == 2

    play(story)
