"""`lakehead consume backfill` on Spark: what landed and was forgotten lands no second time, what is new lands."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from lakehead.clock import SystemClock
from lakehead.consume.coordinator import QueueCoordinator
from lakehead.consume.counts import ConsumeCounts
from lakehead.consume.queue import Message
from lakehead.consume.queues.file_list_queue import FileListQueue
from lakehead.consume.queues.memory_queue import MemoryMessages, MemoryQueue
from lakehead.ids import RandomIds, system_random
from lakehead.run.consume_wiring import Backfill, PipelineDeps, pipeline_settings
from lakehead.run.stopping import StopSignal
from lakehead.spark.jobs import ThreadSessions
from lakehead.state.model import PruneLimits
from lakehead.state.state import State
from tests.integration.consume_support import Pipeline
from tests.support.async_tests import async_test


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    return Pipeline(tmp_path)


def forget(pipeline: Pipeline) -> int:
    """Prune every landed unit, as when the deduplication window is over."""
    with pipeline.state() as state:
        units = [shard.unit for shard in state.shards.page(pipeline.uuid, limit=100)]
        state.shards.acknowledge(pipeline.uuid, units)
        limits = PruneLimits(timedelta(microseconds=1), most_shards=0)
        state.pruning.record(pipeline.uuid, "files", limits)
        pruned = state.pruning.prune(
            pipeline.uuid, owner="test", pipeline="files", limits=limits, every=timedelta(microseconds=1)
        )
        assert not state.shards.page(pipeline.uuid, limit=100)
    return pruned.expired + pruned.over_limit if pruned else 0


def test_a_backfill_lands_what_is_new_and_nothing_that_has_landed_however_long_ago(pipeline: Pipeline) -> None:
    pipeline.configure([pipeline.write("a.json", {"n": 1}), pipeline.write("b.json", {"n": 2}, {"n": 3})])
    assert pipeline.run() == 0
    assert forget(pipeline) == 2
    pipeline.write("c d.json", {"n": 4})
    pipeline.write("half.json.tmp", {"n": 5})

    codes = [pipeline.run(Backfill(url=str(pipeline.inbox))) for _ in range(2)]

    assert codes == [0, 0]
    assert pipeline.files() == ["a.json", "b.json", "b.json", "c%20d.json"]
    with pipeline.state() as state:
        acknowledged = [shard.acknowledged_at for shard in state.shards.page(pipeline.uuid, limit=100)]
    assert len(acknowledged) == 3
    assert None not in acknowledged  # they are pruned when the window is over


def test_a_backfill_can_be_of_files_that_were_modified_lately(pipeline: Pipeline) -> None:
    pipeline.write("a.json", {"n": 1})

    nothing = pipeline.run(Backfill(url=str(pipeline.inbox), modified_after=datetime(2100, 1, 1, tzinfo=UTC)))
    before = [path.name for path in (pipeline.folder / "lakehouse").rglob("*.parquet")]
    some = pipeline.run(Backfill(url=pipeline.inbox.as_uri(), modified_after=datetime(2000, 1, 1, tzinfo=UTC)))

    assert (nothing, before, some) == (0, [], 0)
    assert pipeline.files() == ["a.json"]


class GatedQueue(MemoryQueue):
    """Delivers nothing before its gate is open."""

    def __init__(self, messages: MemoryMessages, gate: asyncio.Event) -> None:
        super().__init__(messages)
        self._gate = gate

    async def receive(self, most: int, *, visibility: timedelta, wait: timedelta) -> Sequence[Message]:
        await self._gate.wait()
        return await super().receive(most, visibility=visibility, wait=wait)


def open_gate_when_received(listing: FileListQueue, gate: asyncio.Event) -> None:
    """Open a gate when files of the listing are received, and before their units are opened."""
    receive = listing.receive

    async def received(most: int, *, visibility: timedelta, wait: timedelta) -> Sequence[Message]:
        found = await receive(most, visibility=visibility, wait=wait)
        gate.set()
        return found

    listing.receive = received  # type: ignore[method-assign]


async def run_until(is_done: Callable[[], bool], coordinator: QueueCoordinator) -> ConsumeCounts:
    """Run a pipeline until it is done, as the command does."""
    running = asyncio.ensure_future(coordinator.run())
    while not is_done() and not running.done():  # noqa: ASYNC110 - as the command does it
        await asyncio.sleep(0.05)
    coordinator.stop()
    await running
    return coordinator.counts


async def land_beside(pipeline: Pipeline, state: State, uris: Sequence[str]) -> tuple[ConsumeCounts, ConsumeCounts]:
    """Land announced files, and a backfill of their folder at the same time. Returns what each of the two did."""
    clock, ids, random, wiring = SystemClock(), RandomIds(), system_random(), pipeline.wiring
    sessions, config, gate = ThreadSessions(pipeline.session), wiring.config.pipelines["files"], asyncio.Event()
    deps = PipelineDeps(
        state=state,
        sessions=sessions,
        run="run",
        clock=clock,
        ids=ids,
        random=random,
        stop=StopSignal(),
        waiting=lambda _: None,
    )
    settings, backfill = pipeline_settings("files", config), Backfill(url=str(pipeline.inbox))
    messages = MemoryMessages(clock)
    messages.send([uri.encode() for uri in uris for _ in range(2)])
    announced, listing = GatedQueue(messages, gate), wiring.open_listing(backfill, clock, ids, random)
    listing.forgets = True
    open_gate_when_received(listing, gate)
    async with AsyncExitStack() as opened:
        notified = wiring.coordinator(settings, config, announced, deps, opened)
        filled = wiring.coordinator(settings, config, listing, deps, opened, backfill=backfill)
        counts = await asyncio.gather(
            run_until(lambda: not len(messages.table), notified), run_until(lambda: listing.drained, filled)
        )
    await announced.close()
    await listing.close()
    return counts


@async_test
async def test_a_file_that_is_announced_while_a_backfill_finds_it_lands_once(pipeline: Pipeline) -> None:
    uris = [pipeline.write(f"{number}.json", {"n": number}) for number in range(8)]
    pipeline.configure([], visibility_seconds=2)  # after which a file that the other has comes again

    with pipeline.state() as state:
        notified, filled = await land_beside(pipeline, state, uris)

    assert pipeline.files() == [f"{number}.json" for number in range(8)]
    assert notified.landed + filled.landed == 8
    assert filled.busy + filled.duplicates >= notified.landed
    assert notified.busy + notified.duplicates >= filled.landed
