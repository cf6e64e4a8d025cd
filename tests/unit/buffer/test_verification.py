"""A queue in use is looked at in several reads, and what only seems wrong between them is no fault."""

from collections.abc import AsyncIterator, Sequence

import pytest

from lakehead.buffer.collector import Collector
from lakehead.buffer.means import Means
from lakehead.buffer.verification import verify
from lakehead.storage.port import Entry, Object
from tests.unit.buffer.scene import PAIR, Call, GateStore, Scene, play, seconds


class Overtaken(GateStore):
    """A store in which everything is collected and cleaned up right before certain calls."""

    def __init__(self, scene: Scene, call: Call) -> None:
        super().__init__(scene.world)
        self.inner = scene.store.inner
        self._scene = scene
        self._call = call
        self.times = 0

    async def get(self, key: str, *, start: int = 0, end: int | None = None) -> Object | None:
        await self._overtake(("get", key))
        return await super().get(key, start=start, end=end)

    async def list(self, folder: str = "", *, start_after: str = "") -> AsyncIterator[Sequence[Entry]]:
        if not start_after:
            await self._overtake(("list", folder))
        async for page in super().list(folder, start_after=start_after):
            yield page

    async def _overtake(self, call: Call) -> None:
        if call == self._call:
            self.times += 1
            await self._scene.later(3600)
            async with self._scene.collector(done_cleanup_threshold=1) as collector:
                await self._scene.all_of(collector)
            await self._scene.fill("more")
            await crash_with_a_batch(self._scene.collector(heartbeat_timeout_ms=seconds(1)))


async def crash_with_a_batch(collector: Collector) -> None:
    """Leave a claim behind, as a process does that dies."""
    await collector.next_batch()
    assert collector._beating is not None
    collector._beating.cancel()


@pytest.mark.parametrize("call", [("list", "ingest"), ("get", PAIR.producer)])
def test_what_was_cleaned_up_between_two_reads_is_no_fault(call: Call) -> None:
    async def story(scene: Scene) -> None:
        await scene.fill("one", "two")
        await crash_with_a_batch(scene.collector())
        store = Overtaken(scene, call)
        means = Means(store=store, clock=scene.clock, ids=scene.world.ids, random=scene.world.random)

        verdict = await verify(PAIR.producer, means)

        assert verdict.faults == ()
        assert store.times == 2, "there was something to look at twice"

    play(story)


def test_a_batch_that_is_gone_is_missing() -> None:
    async def story(scene: Scene) -> None:
        await scene.fill("one", "two")
        await scene.store.inner.delete((await scene.producer()).pending[1])
        means = Means(store=scene.store, clock=scene.clock, ids=scene.world.ids, random=scene.world.random)

        verdict = await verify(PAIR.producer, means)

        assert [fault.kind for fault in verdict.faults] == ["missing"]

    play(story)
