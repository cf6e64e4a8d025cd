"""The ingestor when its store fails, a caller gives up, or it is closed: nothing is lost without a word."""

import asyncio
from typing import Any

import pytest

from lakehead.buffer.errors import InvalidCall, QueueContended
from lakehead.buffer.retry_policies import BufferRetries
from lakehead.buffer.watcher import Durable
from lakehead.errors import Misconfigured, OutcomeUnknown, Unavailable
from lakehead.wire.batch import MIB, KeyValueEntry
from lakehead.wire.compact import decode_batch
from tests.unit.buffer.support import (
    DOWN,
    LOST,
    PAIR,
    QueueFixture,
    anything,
    batches,
    entries,
    seconds,
    virtual_time,
    writes,
)


@virtual_time
async def test_a_caller_that_is_cancelled_while_it_waits_for_room_has_ingested_nothing(queue: QueueFixture) -> None:
    ingestor = queue.ingestor(max_unflushed_bytes=1)
    queue.store.hold_calls(batches)
    await ingestor.ingest(entries("first"))
    given_up, patient = (asyncio.create_task(ingestor.ingest(entries(name))) for name in ("given up", "patient"))
    await queue.sleep(1)
    given_up.cancel()
    await asyncio.wait([given_up])
    queue.store.release_calls()
    await patient
    await ingestor.close()
    assert await queue.collect_all(queue.collector()) == ["first", "patient"]


@virtual_time
async def test_cancelling_a_watcher_cancels_nothing_else(queue: QueueFixture) -> None:
    ingestor = queue.ingestor()
    queue.store.hold_calls(anything)
    watcher = await ingestor.ingest(entries("a"))
    first, second = (asyncio.create_task(watcher.await_durable()) for _ in range(2))
    await queue.sleep(1)
    first.cancel()
    await asyncio.wait([first])
    queue.store.release_calls()
    await second
    assert isinstance(watcher.result(), Durable)
    await ingestor.close()


@virtual_time
async def test_a_dead_store_fails_every_watcher_of_the_batch_with_an_error_that_allows_a_retry(
    queue: QueueFixture,
) -> None:
    queue.store.fail_calls(batches, DOWN)
    ingestor = queue.ingestor()
    watchers = [await ingestor.ingest(entries(value)) for value in "ab"]
    await queue.sleep(60)
    for watcher in watchers:
        assert isinstance(watcher.result(), Unavailable)
        with pytest.raises(Unavailable):
            await watcher.await_durable()
    queue.store.stop_failing()
    await (await ingestor.ingest(entries("again"))).await_durable()
    await ingestor.close()
    assert await queue.collect_all(queue.collector()) == ["again"]
    assert ingestor.counts.bytes_unflushed == 0
    assert ingestor.counts.flushes_failed == 1


@virtual_time
async def test_a_lost_answer_of_the_batch_is_no_loss(queue: QueueFixture) -> None:
    queue.store.fail_calls(batches, LOST, times=1, applied=True)
    await queue.fill("a")
    assert await queue.collect_all(queue.collector()) == ["a"]
    assert len(await queue.batch_keys()) == 1


@virtual_time
async def test_an_append_that_stays_in_doubt_is_told_as_unknown(queue: QueueFixture) -> None:
    queue.store.fail_calls(writes(PAIR.producer), LOST)
    ingestor = queue.ingestor()
    watcher = await ingestor.ingest(entries("a"))
    await queue.sleep(600)
    assert isinstance(watcher.result(), OutcomeUnknown)
    await ingestor.close()


@virtual_time
async def test_endless_conflicts_end_in_an_error_after_a_bounded_number_of_tries(queue: QueueFixture) -> None:
    await queue.fill("first")

    honest = queue.store.replace

    async def replace(key: str, body: bytes, version: Any) -> Any:
        there = await queue.store.inner.get(key)
        assert there is not None
        await queue.store.inner.put(key, there.body)  # somebody else was quicker
        return await honest(key, body, version)

    queue.store.replace = replace  # type: ignore[method-assign]  # for this test only
    before = queue.store.count(writes(PAIR.producer))
    ingestor = queue.ingestor()
    watcher = await ingestor.ingest(entries("a"))
    with pytest.raises(QueueContended):
        await watcher.await_durable()
    assert queue.store.count(writes(PAIR.producer)) - before == BufferRetries().appends.attempts
    assert ingestor.counts.manifest_conflicts["producer"] == BufferRetries().appends.attempts
    await ingestor.close()


@virtual_time
async def test_close_flushes_what_is_left_and_leaves_no_task(queue: QueueFixture) -> None:
    ingestor = queue.ingestor(flush_interval=seconds(3600))
    watcher = await ingestor.ingest(entries("a", "b"))
    await ingestor.close()
    assert isinstance(watcher.result(), Durable)
    with pytest.raises(InvalidCall):
        await ingestor.ingest(entries("c"))
    await ingestor.close()
    [batch] = await queue.batch_keys()
    there = await queue.store.get(batch)
    assert there is not None
    assert decode_batch(there.body) == entries("a", "b")


@virtual_time
async def test_close_leaves_no_task_behind(queue: QueueFixture) -> None:
    async with queue.ingestor() as ingestor, queue.collector() as collector:
        await (await ingestor.ingest(entries("a"))).await_durable()
        await collector.next_batch()
    await queue.sleep(0)
    left = [task for task in queue.world.loop._tasks if not task.done()]
    assert left == [asyncio.current_task()]


@virtual_time
async def test_close_tells_of_what_could_not_be_flushed(queue: QueueFixture) -> None:
    queue.store.fail_calls(batches, DOWN)
    ingestor = queue.ingestor()
    await ingestor.ingest(entries("a"))
    with pytest.raises(Unavailable):
        await ingestor.close()


@virtual_time
async def test_a_close_that_is_cancelled_can_be_repeated(queue: QueueFixture) -> None:
    queue.store.hold_calls(anything)
    ingestor = queue.ingestor()
    watcher = await ingestor.ingest(entries("a"))
    closing = asyncio.create_task(ingestor.close())
    await queue.sleep(1)
    closing.cancel()
    await asyncio.wait([closing])
    queue.store.release_calls()
    await ingestor.close()
    assert isinstance(watcher.result(), Durable)


@virtual_time(seeds=10)
async def test_a_location_whose_append_was_in_doubt_is_not_queued_again_after_it_was_cleaned_up(
    queue: QueueFixture,
) -> None:
    await queue.fill("first")
    queue.store.fail_calls(writes(PAIR.producer), LOST, times=1, applied=True)
    ingestor = queue.ingestor()
    watcher = await ingestor.ingest(entries("a"))
    await queue.sleep(0.1001)
    assert len((await queue.producer_manifest()).pending) == 2
    collector = queue.collector(done_cleanup_threshold=1)
    got = await queue.collect_all(collector)
    await watcher.await_durable()
    got += await queue.collect_all(collector)
    assert got == ["first", "a"]
    assert (await queue.producer_manifest()).pending == ()
    await ingestor.close()
    await collector.close()


@virtual_time
async def test_a_manifest_that_cannot_be_read_is_an_error_and_stays_as_it_is(queue: QueueFixture) -> None:
    await queue.store.inner.put(PAIR.producer, b"garbage")
    ingestor = queue.ingestor()
    watcher = await ingestor.ingest(entries("a"))
    with pytest.raises(Exception, match="repair it by hand"):
        await watcher.await_durable()
    there = await queue.store.inner.get(PAIR.producer)
    assert there is not None
    assert there.body == b"garbage"
    await ingestor.close()


@pytest.mark.parametrize(
    "bad",
    [
        [KeyValueEntry(b"", bytes(129 * MIB))],
        [KeyValueEntry("text", b"")],  # type: ignore[arg-type]  # what a caller may do all the same
        ["no entry"],
        [None],
    ],
    ids=["too large", "text", "string", "none"],
)
@virtual_time(seeds=1)
async def test_what_can_never_be_stored_is_refused_at_once(queue: QueueFixture, bad: list[Any]) -> None:
    async with queue.ingestor() as ingestor:
        with pytest.raises(InvalidCall):
            await ingestor.ingest([*entries("good"), *bad])
    assert await queue.keys() == []


@virtual_time
async def test_a_queue_keeps_to_one_prefix(queue: QueueFixture) -> None:
    await queue.fill("a")
    ingestor = queue.ingestor(data_path_prefix="elsewhere")
    watcher = await ingestor.ingest(entries("b"))
    with pytest.raises(Misconfigured, match="elsewhere"):
        await watcher.await_durable()
    await ingestor.close()
