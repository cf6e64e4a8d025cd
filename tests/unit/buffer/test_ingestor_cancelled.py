"""Whichever task of an ingestor somebody cancels, every watcher learns its outcome, and every call returns."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from lakehead.buffer.config import IngestorConfig
from lakehead.buffer.errors import InvalidCall
from lakehead.buffer.ingestor import Ingestor
from lakehead.buffer.watcher import Durable
from lakehead.clock import SystemClock
from lakehead.errors import LakeheadError, OutcomeUnknown, Unavailable
from lakehead.storage.memory_store import MemoryStore
from lakehead.storage.port import Created, Exists
from tests.unit.buffer.support import (
    PAIR,
    WHERE,
    Call,
    ControlledStore,
    QueueFixture,
    batches,
    entries,
    seconds,
    virtual_time,
    writes,
)

REQUEST = 0.01
MOMENTS = [0.0, 0.001, 0.004, 0.012, 0.022, 0.032, 0.034, 0.044, 0.054, 0.064]


class SlowStore(ControlledStore):
    """Every request takes a while before it is carried out, and a while after."""

    async def _pass(self, call: Call, work: Callable[[], Awaitable[Any]]) -> Any:
        async def slow() -> Any:
            await self._clock.sleep(REQUEST / 2)
            answer = await work()
            await self._clock.sleep(REQUEST / 2)
            return answer

        return await super()._pass(call, slow)


def slow(queue: QueueFixture) -> QueueFixture:
    return replace(queue, store=SlowStore(queue.world))


def tasks_of_the_ingestor(queue: QueueFixture, *others: "asyncio.Task[Any]") -> "list[asyncio.Task[Any]]":
    ours = {asyncio.current_task(), *others}
    return [task for task in queue.world.loop._tasks if not task.done() and task not in ours]


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("which", [0, 1, 2, -1, None])
@virtual_time
async def test_whichever_task_is_cancelled_every_watcher_resolves_and_every_call_returns(
    queue: QueueFixture, moment: float, which: int | None
) -> None:
    queue = slow(queue)
    ingestor = queue.ingestor(flush_interval=seconds(0.003), max_unflushed_bytes=12)
    watchers = {}
    for value in ("a", "b"):
        watchers[value] = await ingestor.ingest(entries(value))
        await queue.sleep(0.004)
    watchers["c"] = await ingestor.ingest(entries("c" * 10))
    blocked = asyncio.create_task(ingestor.ingest(entries("d")))
    await queue.sleep(moment)
    running = tasks_of_the_ingestor(queue, blocked)
    for task in running if which is None else running[which : which + 1 or None]:
        task.cancel()
    with suppress(Unavailable, OutcomeUnknown):
        watchers["d"] = await blocked
    with suppress(Unavailable, OutcomeUnknown):
        await ingestor.close()
    await queue.sleep(60)
    stored = dict(await queued(queue))
    for value, watcher in watchers.items():
        outcome = watcher.result()
        is_queued = any(entry.startswith(value) for values in stored.values() for entry in values)
        assert outcome is not None
        if isinstance(outcome, Durable):
            assert set(outcome.locations) <= set(stored)
        elif isinstance(outcome, Unavailable):
            assert not is_queued, "it was reported as never to be queued"
        else:
            assert isinstance(outcome, OutcomeUnknown)
    assert ingestor.counts.bytes_unflushed == 0
    assert tasks_of_the_ingestor(queue) == []


async def queued(queue: QueueFixture) -> list[tuple[str, list[str]]]:
    """What is queued, read as a collector reads it."""
    found = []
    async with queue.collector() as collector:
        while (batch := await collector.next_batch()) is not None:
            found.append((batch.location, [entry.value.decode() for entry in batch.entries]))
    return found


@virtual_time
async def test_an_ingestor_goes_on_after_all_its_tasks_were_cancelled(queue: QueueFixture) -> None:
    queue = slow(queue)
    ingestor = queue.ingestor()
    await ingestor.ingest(entries("a"))
    await queue.sleep(0.105)
    for task in tasks_of_the_ingestor(queue):
        task.cancel()
    await (await ingestor.ingest(entries("b"))).await_durable()
    await ingestor.close()
    assert "b" in await queue.collect_all(queue.collector())


@virtual_time
async def test_a_batch_whose_timer_was_cancelled_is_flushed_at_once(queue: QueueFixture) -> None:
    ingestor = queue.ingestor(flush_interval=seconds(3600))
    watcher = await ingestor.ingest(entries("a"))
    for task in tasks_of_the_ingestor(queue):
        task.cancel()
    await watcher.await_durable()
    await ingestor.close()


@pytest.mark.parametrize(
    ("held", "expected"),
    [(batches, Unavailable), (writes(PAIR.producer), OutcomeUnknown)],
    ids=["storing", "appending"],
)
@virtual_time
async def test_only_what_may_be_queued_is_told_as_unknown_when_everything_is_cancelled(
    queue: QueueFixture, held: Callable[[Call], bool], expected: type[LakeheadError]
) -> None:
    queue.store.hold_calls(held)
    ingestor = queue.ingestor()
    watcher = await ingestor.ingest(entries("a"))
    await queue.sleep(1)
    for task in tasks_of_the_ingestor(queue):
        task.cancel()
    with pytest.raises(expected):
        await watcher.await_durable()
    with suppress(LakeheadError):
        await ingestor.close()


@virtual_time
async def test_a_store_that_fails_in_a_way_nobody_foresaw_fails_the_watchers_and_nothing_else(
    queue: QueueFixture,
) -> None:
    queue.store.fail_calls(writes(PAIR.producer), ValueError("a bug"), times=1)
    ingestor = queue.ingestor()
    watcher = await ingestor.ingest(entries("a"))
    with pytest.raises(OutcomeUnknown, match="a bug"):
        await watcher.await_durable()
    await (await ingestor.ingest(entries("b"))).await_durable()
    await ingestor.close()


@virtual_time
async def test_callers_that_wait_for_room_are_sent_away_when_the_ingestor_is_closed(queue: QueueFixture) -> None:
    queue.store.hold_calls(batches)
    ingestor = queue.ingestor(max_unflushed_bytes=1)
    await ingestor.ingest(entries("a"))
    blocked = asyncio.create_task(ingestor.ingest(entries("b")))
    await queue.sleep(1)
    closing = asyncio.create_task(ingestor.close())
    with pytest.raises(InvalidCall):
        await blocked
    queue.store.release_calls()
    await closing


@pytest.mark.parametrize("interrupted", [batches, writes(PAIR.producer)], ids=["storing", "appending"])
def test_a_task_that_ctrl_c_ends_leaves_no_call_waiting(interrupted: Callable[[Call], bool]) -> None:
    """Where an event loop is not run by `asyncio.run`, whichever task is at work gets the `KeyboardInterrupt`."""
    clock = SystemClock()
    loop = asyncio.new_event_loop()

    class Interrupted(MemoryStore):
        left = 1

        async def create(self, key: str, body: bytes) -> Created | Exists:
            if self.left and interrupted(("create", key)):
                self.left -= 1
                raise KeyboardInterrupt
            return await super().create(key, body)

    async def ingest_one(ingestor: Ingestor) -> None:
        await (await ingestor.ingest(entries("a"))).await_durable()

    async def rest(ingestor: Ingestor) -> None:
        async with asyncio.timeout(10):
            with pytest.raises((Unavailable, OutcomeUnknown)):
                await waiting
            await ingest_one(ingestor)
            await ingestor.close()

    ingestor = Ingestor(IngestorConfig(object_store_config=WHERE), clock, store=Interrupted(clock=clock))
    waiting = loop.create_task(ingest_one(ingestor))
    try:
        with pytest.raises(KeyboardInterrupt):
            loop.run_until_complete(waiting)
        loop.run_until_complete(rest(ingestor))
        assert ingestor.counts.bytes_unflushed == 0
    finally:
        loop.close()


@pytest.mark.parametrize("call", ["ingest", "flush", "close"])
def test_an_event_loop_that_ended_before_the_flush_leaves_no_call_of_the_next_one_waiting(call: str) -> None:
    class Remote(MemoryStore):
        async def create(self, key: str, body: bytes) -> Created | Exists:
            await asyncio.get_running_loop().create_future()  # the answer never comes
            return await super().create(key, body)

    clock = SystemClock()
    ingestor = Ingestor(IngestorConfig(object_store_config=WHERE), clock, store=Remote(clock=clock))

    async def first() -> None:
        await ingestor.ingest(entries("a"))

    async def second() -> None:
        async with asyncio.timeout(10):
            match call:
                case "ingest":
                    await (await ingestor.ingest(entries("b"))).await_durable()
                case "flush":
                    await ingestor.flush()
                case _:
                    await ingestor.close()

    asyncio.run(first())
    with pytest.raises(InvalidCall, match="event loop"):
        asyncio.run(second())


def test_an_ingestor_can_be_used_by_one_event_loop_after_another_if_each_waits_for_its_entries() -> None:
    clock = SystemClock()
    ingestor = Ingestor(IngestorConfig(object_store_config=WHERE), clock, store=MemoryStore(clock=clock))

    async def ingest_one() -> None:
        await (await ingestor.ingest(entries("a"))).await_durable()

    for _ in range(2):
        asyncio.run(ingest_one())
    asyncio.run(ingestor.close())
