"""What an ingestor keeps in memory while its store does not answer, and after it has given up."""

import asyncio
from typing import Any

import pytest

from lakehead.errors import LakeheadError, OutcomeUnknown, Unavailable
from lakehead.wire.batch import KeyValueEntry
from tests.unit.buffer.support import DOWN, LOST, PAIR, QueueFixture, anything, batches, entries, virtual_time, writes


def chain(error: BaseException | None) -> list[BaseException]:
    """An error and what it came from."""
    return [error, *chain(error.__cause__), *chain(error.__context__)] if error else []


@pytest.mark.parametrize(
    ("which", "error"),
    [(batches, DOWN), (writes(PAIR.producer), DOWN), (writes(PAIR.producer), LOST)],
    ids=["not stored", "not queued", "unknown"],
)
@virtual_time(seeds=1)
async def test_the_watcher_of_a_batch_that_failed_does_not_keep_its_body(
    queue: QueueFixture, which: Any, error: LakeheadError
) -> None:
    queue.store.fail_calls(which, type(error)("broken"))
    ingestor = queue.ingestor()
    watcher = await ingestor.ingest(entries("x"))
    await queue.sleep(600)
    outcome = watcher.result()
    assert isinstance(outcome, Unavailable | OutcomeUnknown)
    kept = [*chain(outcome), *ingestor._writers[0]._producer._group.failures]
    assert [each.__traceback__ for each in kept if each.__traceback__] == [], "a frame keeps what it works with"
    await ingestor.close()


@virtual_time
async def test_entries_without_bytes_fill_an_ingestor_too(queue: QueueFixture) -> None:
    queue.store.hold_calls(anything)
    ingestor = queue.ingestor(max_unflushed_bytes=100)
    nothing = [KeyValueEntry(b"", b"")] * 10
    filling = asyncio.create_task(ingest_for_ever(ingestor, nothing, 1_000))
    await queue.sleep(60)
    assert not filling.done()
    assert ingestor.counts.bytes_unflushed <= 110
    filling.cancel()
    queue.store.release_calls()
    await ingestor.close()
    assert ingestor.counts.bytes_unflushed == 0


async def ingest_for_ever(ingestor: Any, what: list[KeyValueEntry], calls: int) -> None:
    for _ in range(calls):
        await ingestor.ingest(what)


@virtual_time
async def test_an_outage_keeps_no_more_than_the_limit_and_one_call(queue: QueueFixture) -> None:
    queue.store.hold_calls(anything)
    ingestor = queue.ingestor(max_unflushed_bytes=100, flush_size_bytes=10)
    filling = asyncio.create_task(ingest_for_ever(ingestor, entries("x" * 20), 1_000))
    await queue.sleep(3600)
    assert not filling.done()
    assert ingestor.counts.bytes_unflushed <= 100 + 23
    filling.cancel()
    queue.store.release_calls()
    await ingestor.close()
