"""Batches that cannot be read or are gone: they are set aside with their reason, and the queue moves on."""

import asyncio
from dataclasses import replace

import pytest

from lakehead.buffer.config import CollectorMode
from lakehead.buffer.errors import Fenced
from lakehead.buffer.inspection import quarantine_notes
from lakehead.buffer.layout import quarantine_folder
from lakehead.buffer.producer import Producer
from lakehead.buffer.quarantine import Quarantine
from lakehead.wire.batch import BatchLimits, encode_json
from lakehead.wire.compact import encode_compact
from lakehead.wire.errors import NewerFormat, Unreadable
from tests.unit.buffer.support import (
    DOWN,
    LOST,
    MANIFEST,
    NEWER,
    PAIR,
    QueueFixture,
    entries,
    in_both_modes,
    overwrite,
    values,
    virtual_time,
)


@in_both_modes
@virtual_time
async def test_a_batch_that_a_successor_has_finished_is_not_taken_for_a_bad_one(
    queue: QueueFixture, mode: CollectorMode
) -> None:
    await queue.fill("a", "b")
    old = queue.collector(mode=mode, read_ahead_bytes=1)
    assert values(await old.next_batch()) == ["a"]
    queue.store.hold_calls(lambda call: call[0] == "get" and call[1].endswith(".batch"))
    waiting = asyncio.create_task(old.next_batch())
    await queue.sleep(1)
    assert old._heartbeats is not None
    old._heartbeats.cancel()
    await queue.sleep(31)
    queue.store.release_calls()
    first_get = [call for call in queue.store.calls if call[0] == "get" and call[1].endswith(".batch")][-1]
    await queue.store.inner.delete(first_get[1])
    manifest = await queue.consumer_manifest()
    gone = replace(manifest, epoch=manifest.epoch + 1, owner="another", claimed={}, owners={})
    await queue.store.inner.put(PAIR.consumer, gone.encode())
    with pytest.raises(Fenced):
        await waiting
    assert await queue.keys(quarantine_folder(MANIFEST)) == []
    await old.close()


@in_both_modes
@pytest.mark.parametrize("damage", ["garbage", "gone", "too large", "illegal"])
@virtual_time
async def test_a_bad_batch_is_set_aside_with_its_reason_and_the_queue_moves_on(
    queue: QueueFixture, mode: CollectorMode, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    await queue.fill("a", "bad", "c")
    manifest = await queue.producer_manifest()
    bad = manifest.pending[1]
    limits = BatchLimits(stored_bytes=300)
    body = {"garbage": b"LKB1 garbage", "too large": encode_json(entries("x" * 300))}.get(damage)
    if damage == "gone":
        await queue.store.inner.delete(bad)
    elif damage == "illegal":
        bad = "../no/key/"
        pending = (manifest.pending[0], bad, manifest.pending[2])
        await queue.store.inner.put(PAIR.producer, type(manifest)(pending=pending, data_path_prefix="ingest").encode())
    else:
        assert body is not None
        await queue.store.inner.put(bad, body)
    async with queue.collector(mode=mode, done_cleanup_threshold=3, limits=limits) as collector:
        assert await queue.collect_all(collector) == ["a", "c"]
        await queue.sleep(1)
        assert collector.counts.quarantined == 1
    assert (await queue.producer_manifest()).pending == ()
    deps = queue.deps()
    [note] = (await quarantine_notes(MANIFEST, deps)).readable.values()
    assert note.location == bad
    assert note.reason.endswith(".")
    kept = [await queue.store.inner.get(key) for key in note.keys]
    assert [each.body for each in kept if each] == ([body] if body else [])
    [record] = caplog.records
    assert f"{bad} was moved to quarantine: {note.reason}" in record.getMessage()
    caplog.clear()


@virtual_time
async def test_what_was_set_aside_can_be_replayed_once_it_can_be_read(queue: QueueFixture) -> None:
    await queue.fill("x" * 200)
    async with queue.collector(limits=BatchLimits(stored_bytes=100), done_cleanup_threshold=1) as collector:
        assert await queue.collect_all(collector) == []
        await queue.sleep(1)
    assert await queue.batch_keys() == []
    deps = queue.deps()
    quarantine = Quarantine(MANIFEST, deps)
    [note] = (await quarantine_notes(MANIFEST, deps)).readable.values()
    producer = Producer(queue.collector()._readers.all[0].consumer.pair.producer, deps, data_path_prefix="ingest")
    for _ in range(2):
        await quarantine.replay(note.location, producer)
    async with queue.collector(done_cleanup_threshold=1) as collector:
        assert await queue.collect_all(collector) == ["x" * 200] * 2
    assert note.keys[0] in await queue.keys(quarantine_folder(MANIFEST)), "the copy stays"


@virtual_time
async def test_a_bad_batch_behind_one_that_is_open_waits_for_its_turn(queue: QueueFixture) -> None:
    await queue.fill("a", "bad")
    bad = (await queue.producer_manifest()).pending[1]
    await queue.store.inner.put(bad, b"garbage")
    async with queue.collector() as collector:
        batch = await collector.next_batch()
        assert await collector.next_batch() is None
        assert (await queue.consumer_manifest()).done == ()
        assert batch is not None
        await collector.ack(batch)
        await queue.sleep(1)
        assert (await queue.consumer_manifest()).done == (batch.location, bad)


@in_both_modes
@virtual_time
async def test_a_newer_batch_stops_the_collector_and_is_never_set_aside(
    queue: QueueFixture, mode: CollectorMode
) -> None:
    await queue.fill("a", "newer", "c")
    await overwrite(queue, [1], NEWER)
    newer = (await queue.producer_manifest()).pending[1]
    async with queue.collector(mode=mode) as collector:
        first = await collector.next_batch()
        assert first is not None
        await collector.ack(first)
        for _ in range(3):
            with pytest.raises(NewerFormat, match="Update this reader"):
                await collector.next_batch()
        assert newer in (await queue.consumer_manifest()).claimed
        assert collector.counts.quarantined == 0
    assert newer not in (await queue.consumer_manifest()).claimed
    assert await queue.keys(quarantine_folder(MANIFEST)) == []
    await queue.store.inner.put(newer, encode_compact(entries("b")))
    async with queue.collector(mode=mode) as updated:
        assert await queue.collect_all(updated) == ["b", "c"]


@in_both_modes
@virtual_time
async def test_bad_batches_in_a_row_stop_the_collector_and_those_that_are_started_after_it(
    queue: QueueFixture, mode: CollectorMode
) -> None:
    await queue.fill(*"abcdefghij")
    await overwrite(queue, range(1, 9), b"garbage")
    pending = (await queue.producer_manifest()).pending
    for attempt in range(3):
        async with queue.collector(mode=mode, max_bad_batches_in_a_row=3) as collector:
            if attempt == 0:
                first = await collector.next_batch()
                assert values(first) == ["a"]
                assert first is not None
                await collector.ack(first)
            for _ in range(2):
                with pytest.raises(Unreadable, match=r"3 batches in a row.*max_bad_batches_in_a_row"):
                    await collector.next_batch()
            await queue.sleep(1)
        assert (await queue.consumer_manifest()).bad_in_a_row == 3
        assert set((await queue.consumer_manifest()).done) == set(pending[:4])
    assert len((await quarantine_notes(MANIFEST, queue.deps())).readable) == 3
    async with queue.collector(mode=mode, max_bad_batches_in_a_row=8) as patient:
        assert await queue.collect_all(patient) == ["j"]
    assert (await queue.consumer_manifest()).bad_in_a_row == 0


@in_both_modes
@virtual_time
async def test_a_good_batch_between_bad_ones_begins_the_count_anew(queue: QueueFixture, mode: CollectorMode) -> None:
    await queue.fill(*"abcdefg")
    await overwrite(queue, [0, 1, 3, 4, 6], b"garbage")
    async with queue.collector(mode=mode, max_bad_batches_in_a_row=2) as collector:
        assert await queue.collect_all(collector) == ["c", "f"]
        await queue.sleep(1)
        assert (await queue.consumer_manifest()).bad_in_a_row == 1


@in_both_modes
@virtual_time
async def test_a_good_batch_between_bad_ones_begins_the_count_anew_before_it_is_acknowledged(
    queue: QueueFixture, mode: CollectorMode
) -> None:
    await queue.fill(*"abcdefghijkl")
    await overwrite(queue, [1, 2, 4, 5, 7, 9, 10, 11], b"garbage")
    async with queue.collector(mode=mode, max_bad_batches_in_a_row=2) as collector:
        good = [await collector.next_batch() for _ in range(4)]
        assert [values(batch) for batch in good] == [["a"], ["d"], ["g"], ["i"]]
        for _ in range(2):
            with pytest.raises(Unreadable, match="2 batches in a row"):
                await collector.next_batch()
            await queue.sleep(1)
        assert collector.counts.quarantined == 7


@in_both_modes
@virtual_time
async def test_a_bad_batch_whose_acknowledgement_was_in_doubt_is_counted_once(
    queue: QueueFixture, mode: CollectorMode
) -> None:
    await queue.fill(*"abc")
    await overwrite(queue, [0, 1], b"garbage")
    second = (await queue.producer_manifest()).pending[1]
    acks, reads = ("replace", PAIR.consumer), ("get", PAIR.consumer)
    async with queue.collector(mode=mode, max_bad_batches_in_a_row=2) as collector:
        queue.store.fail_calls(lambda call: call == acks, LOST, times=1, applied=True)
        queue.store.fail_calls(lambda call: call == reads and acks in queue.store.calls, DOWN, times=1)
        queue.store.hold_calls(lambda call: call == ("get", second))
        waiting = asyncio.create_task(collector.next_batch())
        await queue.sleep(1)
        await collector.heartbeat()
        queue.store.release_calls()
        assert values(await waiting) == ["c"]


@virtual_time
async def test_no_bad_batch_is_set_aside_where_the_limit_is_none(queue: QueueFixture) -> None:
    await queue.fill("bad")
    await overwrite(queue, [0], b"garbage")
    async with queue.collector(max_bad_batches_in_a_row=0) as collector:
        with pytest.raises(Unreadable):
            await collector.next_batch()
    assert await queue.keys(quarantine_folder(MANIFEST)) == []
