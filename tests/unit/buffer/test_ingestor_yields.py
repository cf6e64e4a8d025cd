"""On a real event loop: a program that does nothing but ingest leaves time for everything else."""

import asyncio
from typing import Any

from lakehead.buffer.config import IngestorConfig
from lakehead.buffer.ingestor import Ingestor
from lakehead.clock import SystemClock
from lakehead.storage.memory_store import MemoryStore
from tests.support.async_tests import async_test
from tests.unit.buffer.support import WHERE, entries

CLOCK = SystemClock()


def ingestor(**settings: Any) -> Ingestor:
    return Ingestor(IngestorConfig(object_store_config=WHERE, **settings), CLOCK, store=MemoryStore(clock=CLOCK))


@async_test
async def test_a_loop_of_calls_lets_other_tasks_run_and_flushes_begin() -> None:
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await CLOCK.sleep(0)

    running = asyncio.create_task(other())
    writer = ingestor(flush_size_bytes=1000)
    for _ in range(10_000):
        await writer.ingest(entries("x"))
    assert turns > 20
    assert writer.counts.batches_flushed > 0
    running.cancel()
    await writer.close()


@async_test
async def test_large_calls_let_other_tasks_run_each_time() -> None:
    writer = ingestor()
    many = entries(*"x" * 1000)
    first = asyncio.ensure_future(CLOCK.sleep(0))
    await writer.ingest(many)
    await writer.ingest(many)
    assert first.done()
    await writer.close()


@async_test
async def test_a_call_that_is_cancelled_while_others_run_has_taken_nothing() -> None:
    writer = ingestor()
    taken = cancelled = 0
    for _ in range(1_000):
        call = asyncio.create_task(writer.ingest(entries("x")))
        await CLOCK.sleep(0)
        if call.done():
            taken += 1
            continue
        call.cancel()
        await asyncio.wait([call])
        assert call.cancelled()
        cancelled += 1
    await writer.close()
    assert cancelled > 0
    assert writer.counts.entries_flushed == taken


@async_test
async def test_a_call_that_lets_others_run_is_refused_if_they_close_the_ingestor() -> None:
    writer = ingestor()
    calls = []
    for _ in range(1_000):
        call = asyncio.create_task(writer.ingest(entries("x")))
        calls.append(call)
        await CLOCK.sleep(0)
        if not call.done():
            break
    await writer.close()
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    refused = [each for each in outcomes if isinstance(each, Exception)]
    assert len(refused) == 1
    assert writer.counts.entries_flushed == len(calls) - 1
