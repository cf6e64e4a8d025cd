"""Parts of the consume benchmark that are about queues: many small messages, freshness, and memory."""

import asyncio
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from bench.buffer_support import percentile
from bench.consume_support import CLOCK, Lakehouse, json_rows
from bench.figures import figure
from bench.table_watch import TableWatch
from lakehead.buffer.config import BatchFormat, IngestorConfig, ObjectStoreConfig
from lakehead.buffer.ingestor import Ingestor
from lakehead.consume.coordinator import QueueCoordinator
from lakehead.consume.dead_letters import QueueDeadLetters
from lakehead.consume.local_state import UnitKey, Work
from lakehead.consume.message_reader import MessageReader
from lakehead.consume.objects import MessageFormat
from lakehead.consume.ports import LandingReport, ReadUnit
from lakehead.consume.queues.memory_queue import MemoryMessages, MemoryQueue
from lakehead.consume.routes import Route
from lakehead.consume.settings import PipelineSettings
from lakehead.consume.shared_state import QueueSharedState
from lakehead.ids import RandomIds, system_random
from lakehead.lake.dead_letters import DeadLetters
from lakehead.state.model import StoredLanding, StoredPointer
from lakehead.state.opening import open_state
from lakehead.state.state import State
from lakehead.storage.memory_store import MemoryStore
from lakehead.wire.batch import KeyValueEntry

MESSAGES, BATCH_ROWS, TURNS = 5_000, 10, 3
BATCHES_A_SECOND, FRESH_SECONDS, LOOK_SECONDS = 20, 40, 0.05
HELD_MESSAGES, IN_MEMORY = 1_000, 100_000


def messages(lakehouse: Lakehouse) -> None:
    """Batches of ten rows, by the manifest queue of the ingestor that wrote them."""
    rows = json_rows(0, BATCH_ROWS)
    rates = []
    for turn in range(TURNS + 1):
        url = f"file://{lakehouse.folder}/messages-{turn}"
        count = MESSAGES if turn else 100  # in the first turn the workers have to start
        asyncio.run(_ingest(url, rows, count))
        pipeline = lakehouse.pipeline(
            {"type": "manifest", "store": url},
            {"table": "bench.messages", "format": "key_value", "value": "json"},
            commit_timeout_seconds=1,
        )
        began = time.perf_counter()
        pipeline.run(lambda coordinator, _, count=count: coordinator.counts.acknowledged >= count)  # type: ignore[misc]
        rates.append(count / (time.perf_counter() - began))
        print(f"{count:,} messages of {BATCH_ROWS} rows: {rates[-1]:.0f} a second", flush=True)
    lakehouse.check_rows("bench.messages", BATCH_ROWS * (100 + TURNS * MESSAGES))
    figure("consume.messages_per_second", statistics.median(rates[1:]), ">=", 400)


async def _ingest(url: str, rows: Sequence[bytes], count: int) -> None:
    async with _ingestor(url) as ingestor:
        for _ in range(count):
            await ingestor.ingest([KeyValueEntry(b"", row) for row in rows])


def _ingestor(url: str) -> Ingestor:
    """An ingestor that stores each call as a batch."""
    return Ingestor(
        IngestorConfig(
            object_store_config=ObjectStoreConfig(url=url),
            flush_size_bytes=0,
            flush_interval=timedelta(milliseconds=10),
            batch_format=BatchFormat.COMPACT,
        )
    )


def freshness(lakehouse: Lakehouse) -> None:
    """From `ingest` until a reader sees the rows, with a steady stream of small batches."""
    url = f"file://{lakehouse.folder}/fresh"
    pipeline = lakehouse.pipeline(
        {"type": "manifest", "store": url},
        {"table": "bench.fresh", "format": "key_value", "columns": [{"name": "key", "type": "string"}]},
        commit_timeout_seconds=1,
    )
    ingested: dict[str, float] = {}
    watch = TableWatch(lakehouse.folder / "lakehouse", "bench.fresh", "key")

    async def feed() -> None:
        async with _ingestor(url) as ingestor:
            started = time.perf_counter()
            for number in range(BATCHES_A_SECOND * FRESH_SECONDS):
                await asyncio.sleep(started + number / BATCHES_A_SECOND - time.perf_counter())
                key = f"{number}"
                ingested[key] = time.perf_counter()
                await ingestor.ingest([KeyValueEntry(key.encode(), b"")])

    async def run() -> None:
        feeding = asyncio.ensure_future(feed())
        await pipeline.run_until(lambda *_: feeding.done() and len(watch.seen) == len(ingested))
        await feeding

    with watch:
        asyncio.run(run())
    took = [watch.seen[key] - at for key, at in ingested.items() if int(key) >= 10 * BATCHES_A_SECOND]
    print(f"{len(took)} batches were visible after {percentile(took, 50):.2f} s in the median")
    figure("consume.freshness_p99_seconds", percentile(took, 99), "<=", 5)


def memory(folder: Path) -> None:
    """Messages with their content in them, through everything but Spark and Iceberg: what is held must not grow."""
    with open_state(f"sqlite:///{folder}/memory.sqlite", CLOCK, RandomIds()) as state:
        sizes = asyncio.run(_consume_in_memory(state))
    half = len(sizes) // 2
    first, second = statistics.median(sizes[:half]), statistics.median(sizes[half:])
    print(f"{IN_MEMORY:,} messages: {first / 2**20:.0f} MiB in the first half, {second / 2**20:.0f} MiB in the second")
    figure("consume.memory_growth", second / first, "<=", 1.1)


async def _consume_in_memory(state: State) -> list[int]:
    sent = MemoryMessages(CLOCK)
    settings = PipelineSettings(
        name="memory",
        max_messages=HELD_MESSAGES,
        max_held=2 * HELD_MESSAGES,
        commit_timeout=timedelta(seconds=1),
        deduplication_max=HELD_MESSAGES,
        cleanup_interval=timedelta(seconds=1),
    )
    coordinator = QueueCoordinator(
        settings,
        MemoryQueue(sent),
        MessageReader(format=MessageFormat.INLINE, routes=[Route(table="memory")]),
        shared=QueueSharedState(state, "bench", settings),
        landings=_StateOnly(state),
        dead_letters=QueueDeadLetters(DeadLetters(MemoryStore(clock=CLOCK)), state, "bench", sent.name),
        clock=CLOCK,
        random=system_random(),
    )
    running = asyncio.ensure_future(coordinator.run())
    sizes, number = list[int](), 0
    while coordinator.counts.acknowledged < IN_MEMORY and not running.done():
        missing = min(number, IN_MEMORY) - coordinator.counts.acknowledged
        if number < IN_MEMORY and missing < 2 * HELD_MESSAGES:
            sent.send([b'{"id": %d}' % (number + each) for each in range(HELD_MESSAGES)])
            number += HELD_MESSAGES
        sizes.append(_resident_bytes())
        await asyncio.sleep(0.05)
    coordinator.stop()
    await running
    return sizes


@dataclass
class _StateOnly:
    """Lands units in the state alone, as if a snapshot had been published."""

    state: State
    pointer: StoredPointer | None = None

    async def uuid(self, table: str) -> str:
        return table

    async def land(
        self,
        table: str,
        works: Sequence[Work],
        *,
        is_held: Callable[[UnitKey], bool],
        read: Callable[[Sequence[UnitKey]], None],
    ) -> LandingReport:
        keys = [work.key for work in works if is_held(work.key)]
        read(keys)
        snapshot = 1 if self.pointer is None else self.pointer.snapshot + 1
        moved = StoredPointer(snapshot, snapshot)
        landing = StoredLanding(snapshot=snapshot, units=tuple(key.unit for key in keys))
        if not await asyncio.to_thread(self.state.landings.settle, table, self.pointer, moved, [landing]):
            raise AssertionError("somebody else has moved the pointer")
        self.pointer = moved
        return LandingReport(landed={key: ReadUnit(rows=1) for key in keys}, snapshot=snapshot)


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
