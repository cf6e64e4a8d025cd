"""The clean-up after acknowledgements: what it deletes, and that it is made up for where it fails."""

import pytest

from lakehead.buffer.collector import CollectedBatch, Collector
from lakehead.buffer.layout import entry_location
from lakehead.buffer.producer import Producer
from lakehead.errors import Unavailable
from lakehead.wire.batch import encode_json
from tests.unit.buffer.support import DOWN, PAIR, Call, QueueFixture, entries, values, virtual_time


def deletes(call: Call) -> bool:
    return call[0] == "delete"


@virtual_time(seeds=1)
async def test_the_hundredth_ack_cleans_up_and_the_ninety_ninth_does_not(queue: QueueFixture) -> None:
    async with queue.ingestor(flush_size_bytes=0) as ingestor:
        for number in range(101):
            await ingestor.ingest(entries(str(number)))
    async with queue.collector() as collector:
        for number in range(100):
            assert len((await queue.producer_manifest()).pending) == 101
            assert len((await queue.consumer_manifest()).done) == number
            batch = await collector.next_batch()
            assert values(batch) == [str(number)]
            assert batch is not None
            await collector.ack(batch)
        assert len((await queue.producer_manifest()).pending) == 1
        assert (await queue.consumer_manifest()).done == ()
        assert len(await queue.batch_keys()) == 1


@virtual_time
async def test_a_clean_up_that_fails_does_not_fail_the_ack_and_is_made_up_for(queue: QueueFixture) -> None:
    await queue.fill("a", "b")
    queue.store.fail_calls(deletes, DOWN, times=1)
    async with queue.collector(done_cleanup_threshold=1) as collector:
        assert await queue.collect_all(collector) == ["a", "b"]
        assert collector.counts.cleanups_failed == 1
    assert await queue.batch_keys() == []
    assert (await queue.consumer_manifest()).done == ()


@virtual_time(seeds=1)
async def test_a_clean_up_that_keeps_failing_is_tried_now_and_then_and_logged_once(
    queue: QueueFixture, caplog: pytest.LogCaptureFixture
) -> None:
    await queue.fill(*(str(number) for number in range(100)))
    queue.store.fail_calls(deletes, DOWN)
    async with queue.collector(done_cleanup_threshold=1, read_ahead=200) as collector:
        got = [await collector.next_batch() for _ in range(99)]
        for batch in got:
            assert batch is not None
            await collector.ack(batch)
        assert 3 <= collector.counts.cleanups_failed <= 7, "each time as many again have gathered"
        queue.store.stop_failing()
        await queue.sleep(31)
        last = await collector.next_batch()
        assert last is not None
        await collector.ack(last)
        assert (await queue.consumer_manifest()).done == (), "after a while it is tried again"
    [record] = caplog.records
    assert "Check that the store" in record.getMessage()


@virtual_time
async def test_an_ack_counts_even_if_the_clean_up_after_it_finds_a_manifest_that_cannot_be_read(
    queue: QueueFixture,
) -> None:
    await queue.fill("a")
    async with queue.collector(done_cleanup_threshold=1) as collector:
        batch = await collector.next_batch()
        assert batch is not None
        await queue.store.inner.put(PAIR.producer, b"garbage")
        await collector.ack(batch)
        assert (await queue.consumer_manifest()).done == (batch.location,)
        assert collector.counts.cleanups_failed == 1


@virtual_time
async def test_clean_up_deletes_only_batches_of_the_queue(queue: QueueFixture) -> None:
    foreign = ["accepted/v1/manifest", "ingest/notes.batch", "elsewhere/f47ac10b-58cc-4372-a567-0e02b2c3d479.batch"]
    for key in foreign:
        await queue.store.inner.put(key, encode_json(entries(key)))
    await queue.fill("ours")
    deps = queue.deps()
    producer = Producer(queue.collector()._readers.all[0].consumer.pair.producer, deps, data_path_prefix="ingest")
    for key in foreign:
        await producer.append(entry_location(key, deps.ids))
        await producer.append(key)
    async with queue.collector(done_cleanup_threshold=1) as collector:
        assert sorted(await queue.collect_all(collector)) == sorted(["ours", *foreign, *foreign])
    assert (await queue.producer_manifest()).pending == ()
    assert set(foreign) <= set(await queue.keys())
    assert await queue.batch_keys() == ["ingest/notes.batch"]


@virtual_time(seeds=1)
async def test_a_clean_up_that_is_cut_off_anywhere_is_made_up_for(queue: QueueFixture) -> None:
    for step in range(40):
        fresh = QueueFixture(queue.world, type(queue.store)(queue.world))
        await fresh.fill(*"abcd")
        first = fresh.collector(done_cleanup_threshold=2, read_ahead=2)
        got = [values(batch) for _ in range(2) if (batch := await first.next_batch())]
        left = [step]

        def next_call(_: Call, left: list[int] = left) -> bool:
            left[0] -= 1
            return left[0] < 0

        fresh.store.fail_calls(next_call, DOWN)
        acknowledged = True
        try:
            await first.ack(*first_two(first))
        except Unavailable:
            acknowledged = False
        fresh.store.stop_failing()
        assert first._heartbeats is not None
        first._heartbeats.cancel()
        await fresh.sleep(31)
        async with fresh.collector(done_cleanup_threshold=1) as second:
            again = await fresh.collect_all(second)
        assert again == (["c", "d"] if acknowledged else ["a", "b", "c", "d"])
        assert got == [["a"], ["b"]]
        assert await fresh.batch_keys() == []
        assert (await fresh.producer_manifest()).pending == (await fresh.consumer_manifest()).done == ()


def first_two(collector: Collector) -> list[CollectedBatch]:
    """What a collector has handed out and holds, as it would hand it out."""
    held = collector._readers.all[0].consumer.held.values()
    reader = collector._readers.all[0]
    return [CollectedBatch([], claim.location, claim.epoch, 0, reader.consumer.id, 1, claim) for claim in held]


@pytest.mark.slow
@virtual_time(seeds=1)
async def test_manifests_stay_bounded_while_a_collector_keeps_up(queue: QueueFixture) -> None:
    async with (
        queue.ingestor(flush_size_bytes=0) as ingestor,
        queue.collector(done_cleanup_threshold=10) as collector,
    ):
        for number in range(1_000):
            await (await ingestor.ingest(entries(str(number)))).await_durable()
            batch = await collector.next_batch()
            assert batch is not None
            await collector.ack(batch)
            assert len((await queue.producer_manifest()).pending) <= 1 + 10
            assert len((await queue.consumer_manifest()).done) <= 10
    assert len(await queue.batch_keys()) <= 10
