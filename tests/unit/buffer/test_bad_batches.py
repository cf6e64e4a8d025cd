"""Batches that cannot be read or are gone: they are set aside with their reason, and the queue moves on."""

import asyncio
from collections.abc import Collection
from dataclasses import replace

import pytest

from lakehead.buffer.consumer import Mode
from lakehead.buffer.errors import Fenced
from lakehead.buffer.inspection import notes
from lakehead.buffer.layout import quarantine_folder
from lakehead.buffer.producer import Producer
from lakehead.buffer.quarantine import Quarantine
from lakehead.wire.batch import Limits, encode_json
from lakehead.wire.compact import encode_compact
from lakehead.wire.errors import NewerFormat, Unreadable
from tests.unit.buffer.scene import DOWN, LOST, MANIFEST, PAIR, Scene, entries, in_both_modes, play, values


@in_both_modes
def test_a_batch_that_a_successor_has_finished_is_not_taken_for_a_bad_one(mode: Mode) -> None:
    async def story(scene: Scene) -> None:
        await scene.fill("a", "b")
        old = scene.collector(mode=mode, read_ahead_bytes=1)
        assert values(await old.next_batch()) == ["a"]
        scene.store.hold(lambda call: call[0] == "get" and call[1].endswith(".batch"))
        waiting = asyncio.create_task(old.next_batch())
        await scene.later(1)
        assert old._beating is not None
        old._beating.cancel()
        await scene.later(31)
        scene.store.release()
        first_get = [call for call in scene.store.calls if call[0] == "get" and call[1].endswith(".batch")][-1]
        await scene.store.inner.delete(first_get[1])
        manifest = await scene.consumer()
        gone = replace(manifest, epoch=manifest.epoch + 1, owner="another", claimed={}, owners={})
        await scene.store.inner.put(PAIR.consumer, gone.encode())
        with pytest.raises(Fenced):
            await waiting
        assert await scene.keys(quarantine_folder(MANIFEST)) == []
        await old.close()

    play(story)


@in_both_modes
@pytest.mark.parametrize("damage", ["garbage", "gone", "too large", "illegal"])
def test_a_bad_batch_is_set_aside_with_its_reason_and_the_queue_moves_on(
    mode: Mode, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(scene: Scene) -> None:
        await scene.fill("a", "bad", "c")
        manifest = await scene.producer()
        bad = manifest.pending[1]
        limits = Limits(stored_bytes=300)
        body = {"garbage": b"LKB1 garbage", "too large": encode_json(entries("x" * 300))}.get(damage)
        if damage == "gone":
            await scene.store.inner.delete(bad)
        elif damage == "illegal":
            bad = "../no/key/"
            pending = (manifest.pending[0], bad, manifest.pending[2])
            await scene.store.inner.put(
                PAIR.producer, type(manifest)(pending=pending, data_path_prefix="ingest").encode()
            )
        else:
            assert body is not None
            await scene.store.inner.put(bad, body)
        async with scene.collector(mode=mode, done_cleanup_threshold=3, limits=limits) as collector:
            assert await scene.all_of(collector) == ["a", "c"]
            await scene.later(1)
            assert collector.counts.quarantined == 1
        assert (await scene.producer()).pending == ()
        means = scene.means()
        [note] = (await notes(MANIFEST, means)).read.values()
        assert note.location == bad
        assert note.reason.endswith(".")
        kept = [await scene.store.inner.get(key) for key in note.keys]
        assert [each.body for each in kept if each] == ([body] if body else [])
        [record] = caplog.records
        assert f"{bad} was set aside: {note.reason}" in record.getMessage()
        caplog.clear()

    play(story)


def test_what_was_set_aside_can_be_replayed_once_it_can_be_read() -> None:
    async def story(scene: Scene) -> None:
        await scene.fill("x" * 200)
        async with scene.collector(limits=Limits(stored_bytes=100), done_cleanup_threshold=1) as collector:
            assert await scene.all_of(collector) == []
            await scene.later(1)
        assert await scene.batch_keys() == []
        means = scene.means()
        quarantine = Quarantine(MANIFEST, means)
        [note] = (await notes(MANIFEST, means)).read.values()
        producer = Producer(scene.collector()._readers.all[0].consumer.files.producer, means, data_path_prefix="ingest")
        for _ in range(2):
            await quarantine.replay(note.location, producer)
        async with scene.collector(done_cleanup_threshold=1) as collector:
            assert await scene.all_of(collector) == ["x" * 200] * 2
        assert note.keys[0] in await scene.keys(quarantine_folder(MANIFEST)), "the copy stays"

    play(story)


def test_a_bad_batch_behind_one_that_is_open_waits_for_its_turn() -> None:
    async def story(scene: Scene) -> None:
        await scene.fill("a", "bad")
        bad = (await scene.producer()).pending[1]
        await scene.store.inner.put(bad, b"garbage")
        async with scene.collector() as collector:
            batch = await collector.next_batch()
            assert await collector.next_batch() is None
            assert (await scene.consumer()).done == ()
            assert batch is not None
            await collector.ack(batch)
            await scene.later(1)
            assert (await scene.consumer()).done == (batch.location, bad)

    play(story)


NEWER = b"LKB2" + bytes(40)


async def overwrite(scene: Scene, which: Collection[int], body: bytes) -> None:
    """Put something else in the place of some of the batches that are queued."""
    for number, location in enumerate((await scene.producer()).pending):
        if number in which:
            await scene.store.inner.put(location, body)


@in_both_modes
def test_a_newer_batch_stops_the_collector_and_is_never_set_aside(mode: Mode) -> None:
    async def story(scene: Scene) -> None:
        await scene.fill("a", "newer", "c")
        await overwrite(scene, [1], NEWER)
        newer = (await scene.producer()).pending[1]
        async with scene.collector(mode=mode) as collector:
            first = await collector.next_batch()
            assert first is not None
            await collector.ack(first)
            for _ in range(3):
                with pytest.raises(NewerFormat, match="update the reader"):
                    await collector.next_batch()
            assert newer in (await scene.consumer()).claimed
            assert collector.counts.quarantined == 0
        assert newer not in (await scene.consumer()).claimed
        assert await scene.keys(quarantine_folder(MANIFEST)) == []
        await scene.store.inner.put(newer, encode_compact(entries("b")))
        async with scene.collector(mode=mode) as updated:
            assert await scene.all_of(updated) == ["b", "c"]

    play(story)


@in_both_modes
def test_bad_batches_in_a_row_stop_the_collector_and_those_that_are_started_after_it(mode: Mode) -> None:
    async def story(scene: Scene) -> None:
        await scene.fill(*"abcdefghij")
        await overwrite(scene, range(1, 9), b"garbage")
        pending = (await scene.producer()).pending
        for attempt in range(3):
            async with scene.collector(mode=mode, max_bad_batches_in_a_row=3) as collector:
                if attempt == 0:
                    first = await collector.next_batch()
                    assert values(first) == ["a"]
                    assert first is not None
                    await collector.ack(first)
                for _ in range(2):
                    with pytest.raises(Unreadable, match=r"3 batches in a row.*max_bad_batches_in_a_row"):
                        await collector.next_batch()
                await scene.later(1)
            assert (await scene.consumer()).bad_in_a_row == 3
            assert set((await scene.consumer()).done) == set(pending[:4])
        assert len((await notes(MANIFEST, scene.means())).read) == 3
        async with scene.collector(mode=mode, max_bad_batches_in_a_row=8) as patient:
            assert await scene.all_of(patient) == ["j"]
        assert (await scene.consumer()).bad_in_a_row == 0

    play(story)


@in_both_modes
def test_a_good_batch_between_bad_ones_begins_the_count_anew(mode: Mode) -> None:
    async def story(scene: Scene) -> None:
        await scene.fill(*"abcdefg")
        await overwrite(scene, [0, 1, 3, 4, 6], b"garbage")
        async with scene.collector(mode=mode, max_bad_batches_in_a_row=2) as collector:
            assert await scene.all_of(collector) == ["c", "f"]
            await scene.later(1)
            assert (await scene.consumer()).bad_in_a_row == 1

    play(story)


@in_both_modes
def test_a_good_batch_between_bad_ones_begins_the_count_anew_before_it_is_acknowledged(mode: Mode) -> None:
    async def story(scene: Scene) -> None:
        await scene.fill(*"abcdefghijkl")
        await overwrite(scene, [1, 2, 4, 5, 7, 9, 10, 11], b"garbage")
        async with scene.collector(mode=mode, max_bad_batches_in_a_row=2) as collector:
            good = [await collector.next_batch() for _ in range(4)]
            assert [values(batch) for batch in good] == [["a"], ["d"], ["g"], ["i"]]
            for _ in range(2):
                with pytest.raises(Unreadable, match="2 batches in a row"):
                    await collector.next_batch()
                await scene.later(1)
            assert collector.counts.quarantined == 7

    play(story)


@in_both_modes
def test_a_bad_batch_whose_acknowledgement_was_in_doubt_is_counted_once(mode: Mode) -> None:
    async def story(scene: Scene) -> None:
        await scene.fill(*"abc")
        await overwrite(scene, [0, 1], b"garbage")
        second = (await scene.producer()).pending[1]
        acks, reads = ("replace", PAIR.consumer), ("get", PAIR.consumer)
        async with scene.collector(mode=mode, max_bad_batches_in_a_row=2) as collector:
            scene.store.break_(lambda call: call == acks, LOST, times=1, applied=True)
            scene.store.break_(lambda call: call == reads and acks in scene.store.calls, DOWN, times=1)
            scene.store.hold(lambda call: call == ("get", second))
            waiting = asyncio.create_task(collector.next_batch())
            await scene.later(1)
            await collector.heartbeat()
            scene.store.release()
            assert values(await waiting) == ["c"]

    play(story)


def test_no_bad_batch_is_set_aside_where_the_limit_is_none() -> None:
    async def story(scene: Scene) -> None:
        await scene.fill("bad")
        await overwrite(scene, [0], b"garbage")
        async with scene.collector(max_bad_batches_in_a_row=0) as collector:
            with pytest.raises(Unreadable):
                await collector.next_batch()
        assert await scene.keys(quarantine_folder(MANIFEST)) == []

    play(story)
