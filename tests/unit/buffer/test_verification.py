"""A queue in use is looked at in several reads, and what only seems wrong between them is no fault."""

from collections.abc import AsyncIterator, Sequence

import pytest

from lakehead.buffer.collector import Collector
from lakehead.buffer.deps import BufferDeps
from lakehead.buffer.verification import verify
from lakehead.storage.port import ListedObject, Object
from tests.unit.buffer.support import PAIR, Call, ControlledStore, QueueFixture, seconds, virtual_time


class Overtaken(ControlledStore):
    """A store in which everything is collected and cleaned up right before certain calls."""

    def __init__(self, queue: QueueFixture, call: Call) -> None:
        super().__init__(queue.world)
        self.inner = queue.store.inner
        self._queue = queue
        self._call = call
        self.times = 0

    async def get(self, key: str, *, start: int = 0, end: int | None = None) -> Object | None:
        await self._overtake(("get", key))
        return await super().get(key, start=start, end=end)

    async def list(self, folder: str = "", *, start_after: str = "") -> AsyncIterator[Sequence[ListedObject]]:
        if not start_after:
            await self._overtake(("list", folder))
        async for page in super().list(folder, start_after=start_after):
            yield page

    async def _overtake(self, call: Call) -> None:
        if call == self._call:
            self.times += 1
            await self._queue.sleep(3600)
            async with self._queue.collector(done_cleanup_threshold=1) as collector:
                await self._queue.collect_all(collector)
            await self._queue.fill("more")
            await crash_with_a_batch(self._queue.collector(heartbeat_timeout_ms=seconds(1)))


async def crash_with_a_batch(collector: Collector) -> None:
    """Leave a claim behind, as a process does that dies."""
    await collector.next_batch()
    assert collector._heartbeats is not None
    collector._heartbeats.cancel()


@pytest.mark.parametrize("call", [("list", "ingest"), ("get", PAIR.producer)])
@virtual_time
async def test_what_was_cleaned_up_between_two_reads_is_no_fault(queue: QueueFixture, call: Call) -> None:
    await queue.fill("one", "two")
    await crash_with_a_batch(queue.collector())
    store = Overtaken(queue, call)
    deps = BufferDeps(store=store, clock=queue.clock, ids=queue.world.ids, random=queue.world.random)

    verdict = await verify(PAIR.producer, deps)

    assert verdict.faults == ()
    assert store.times == 2, "there was something to look at twice"


@virtual_time
async def test_a_batch_that_is_gone_is_missing(queue: QueueFixture) -> None:
    await queue.fill("one", "two")
    await queue.store.inner.delete((await queue.producer_manifest()).pending[1])
    deps = BufferDeps(store=queue.store, clock=queue.clock, ids=queue.world.ids, random=queue.world.random)

    verdict = await verify(PAIR.producer, deps)

    assert [fault.kind for fault in verdict.faults] == ["missing"]
