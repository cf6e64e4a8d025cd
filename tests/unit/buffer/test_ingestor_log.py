"""Flushes that fail in the background reach the log: once for each cause, and once more when they work again."""

import logging

import pytest

from lakehead.errors import LakeheadError
from lakehead.wire.batch import KeyValueEntry
from tests.unit.buffer.support import DOWN, LOST, PAIR, QueueFixture, batches, entries, virtual_time, writes


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.DEBUG, logger="lakehead")
    return caplog


def lines(log: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in log.records if record.name == "lakehead.buffer"]


@virtual_time
async def test_a_long_outage_is_logged_once_and_its_end_with_how_many_batches_it_cost(
    queue: QueueFixture,
    log: pytest.LogCaptureFixture,
) -> None:
    log.clear()
    ingestor = queue.ingestor()
    queue.store.fail_calls(batches, DOWN)
    for _ in range(20):
        await ingestor.ingest(entries("x"))
        await queue.sleep(10)
    [first] = lines(log)
    assert PAIR.producer in first
    assert "the store is down" in first
    assert "ingest the failed entries again" in first
    queue.store.stop_failing()
    for _ in range(3):
        await ingestor.ingest(entries("x"))
        await queue.sleep(10)
    [_, over] = lines(log)
    assert "meanwhile: 20." in over
    await ingestor.close()
    assert len(lines(log)) == 2


@virtual_time
async def test_the_next_outage_is_logged_again(queue: QueueFixture, log: pytest.LogCaptureFixture) -> None:
    log.clear()
    ingestor = queue.ingestor()
    for times in (1, 2):
        queue.store.fail_calls(batches, DOWN)
        await ingestor.ingest(entries("x"))
        await queue.sleep(10)
        queue.store.stop_failing()
        await ingestor.ingest(entries("x"))
        await queue.sleep(10)
        assert len(lines(log)) == 2 * times
    await ingestor.close()


@virtual_time
async def test_another_cause_in_one_outage_is_logged_too(queue: QueueFixture, log: pytest.LogCaptureFixture) -> None:
    log.clear()
    ingestor = queue.ingestor()
    for which, error in ((batches, DOWN), (writes(PAIR.producer), LOST)):
        queue.store.fail_calls(which, error)
        for _ in range(3):
            await ingestor.ingest(entries("x"))
            await queue.sleep(600)
        queue.store.stop_failing()
    first, second = lines(log)
    assert "the store is down" in first
    assert "may be queued" in second
    await ingestor.close()
    assert "failed: 6." in lines(log)[-1], "it was not over when the ingestor was closed"


@virtual_time
async def test_partitions_that_fail_together_are_one_outage(queue: QueueFixture, log: pytest.LogCaptureFixture) -> None:
    log.clear()
    ingestor = queue.ingestor(partitions=8)
    queue.store.fail_calls(batches, DOWN)
    for number in range(40):
        await ingestor.ingest([KeyValueEntry(str(number).encode(), b"")])
    with pytest.raises(LakeheadError):
        await ingestor.flush()
    assert len(lines(log)) == 1
    await ingestor.close()


@virtual_time
async def test_what_works_is_not_logged(queue: QueueFixture, log: pytest.LogCaptureFixture) -> None:
    await queue.fill(*"abc")
    assert lines(log) == []
