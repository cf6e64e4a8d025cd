"""The batches of one partition on their way: one is open, others are being stored, and they are queued in order."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from lakehead.buffer.batches import Batches, StoredBatch, store_for
from lakehead.buffer.byte_budget import ByteBudget
from lakehead.buffer.flush_failures import FlushFailures
from lakehead.buffer.means import Means
from lakehead.buffer.producer import Producer, StoreAgain
from lakehead.errors import LakeheadError, OutcomeUnknown, Unavailable
from lakehead.wire.batch import KeyValueEntry

PUTS_AT_ONCE = 4
MOST_ENTRIES = 1_000_000
"""A batch with this many entries is flushed whatever their size."""

Encode = Callable[[Sequence[KeyValueEntry]], bytes]


@dataclass(eq=False, slots=True)
class Batch:
    """Entries that are flushed together."""

    outcome: "asyncio.Future[str]"
    opened: float
    entries: list[KeyValueEntry] = field(default_factory=list)
    size: int = 0
    """Bytes of keys and values."""
    taken: int = 0
    """What it counts for against the limit: an entry without a byte takes memory too."""
    count: int = 0
    body: bytes = b""
    timer: "asyncio.Task[None] | None" = None
    storing: "asyncio.Task[StoredBatch | LakeheadError] | None" = None


class PartitionWriter:
    """Takes entries, and flushes them by size, by time, or when it is told to."""

    def __init__(
        self,
        producer: Producer,
        batches: Batches,
        means: Means,
        budget: ByteBudget,
        failures: FlushFailures,
        *,
        encode: Encode,
        flush_seconds: float,
        flush_bytes: int,
    ) -> None:
        self._producer = producer
        self._batches = batches
        self._means = means
        self._budget = budget
        self._failures = failures
        self._encode = encode
        self._flush_seconds = flush_seconds
        self._flush_bytes = flush_bytes
        self._open: Batch | None = None
        self._line: deque[Batch] = deque()
        self._puts = asyncio.Semaphore(PUTS_AT_ONCE)
        self._unresolved: dict[asyncio.Future[str], None] = {}

    def add(self, entries: Sequence[KeyValueEntry], size: int) -> "asyncio.Future[str]":
        """Put entries into the open batch; what becomes of that batch."""
        batch = self._open or self._opened()
        batch.entries.extend(entries)
        batch.size += size
        taken = max(size, len(entries))
        batch.taken += taken
        self._budget.take(taken)
        if batch.size > self._flush_bytes or len(batch.entries) >= MOST_ENTRIES:
            self.flush()
        return batch.outcome

    def flush(self) -> None:
        """Begin to flush the open batch, if there is one."""
        batch, self._open = self._open, None
        if batch is None:
            return
        if batch.timer is not None:
            batch.timer.cancel()
        batch.storing = asyncio.create_task(self._store(batch))
        self._line.append(batch)
        batch.storing.add_done_callback(self._queue_in_order)

    @property
    def unresolved(self) -> "list[asyncio.Future[str]]":
        """What becomes of each batch that is neither durable nor given up, the oldest first."""
        return [each for each in self._unresolved if not each.done()]

    async def stopped(self) -> None:
        """Wait until no task is left, once everything is resolved."""
        await self._producer.drained()

    def _opened(self) -> Batch:
        outcome: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._unresolved[outcome] = None
        outcome.add_done_callback(self._unresolved.pop)
        self._open = batch = Batch(outcome, self._means.clock.monotonic())
        batch.timer = asyncio.create_task(self._flush_interval())
        batch.timer.add_done_callback(partial(self._flush_in_time, batch))
        return batch

    async def _flush_interval(self) -> None:
        await self._means.clock.sleep(self._flush_seconds)

    def _flush_in_time(self, batch: Batch, _: "asyncio.Task[None]") -> None:
        """Flush a batch whose time has come, or whose timer somebody has cancelled."""
        if self._open is batch:
            self.flush()

    async def _store(self, batch: Batch) -> StoredBatch | LakeheadError:
        try:
            batch.body, batch.count = self._encode(batch.entries), len(batch.entries)
            batch.entries.clear()  # a batch is in memory once
            async with self._puts:
                return await store_for(self._producer, self._batches, batch.body)
        except LakeheadError as error:
            return error
        except Exception as error:  # noqa: BLE001 - whatever it is, its watchers must hear of it
            return Unavailable(f"A batch could not be stored, and is not queued ({error!r}).")

    def _queue_in_order(self, _: object) -> None:
        """Queue what is stored, but nothing before what was filled earlier."""
        while self._line and (storing := self._line[0].storing) is not None and storing.done():
            batch = self._line.popleft()
            if storing.cancelled():
                self._resolve(batch, Unavailable("Storing a batch was cancelled. It is not queued; ingest it again."))
                continue
            match storing.exception() or storing.result():
                case StoredBatch(location, gc):
                    queued = self._producer.enqueue(location, gc=gc, again=self._again(batch))
                    queued.add_done_callback(partial(self._queued, batch))
                case LakeheadError() as error:
                    self._resolve(batch, error)
                case other:  # Ctrl-C, which the event loop has raised to its caller
                    self._resolve(batch, Unavailable(f"Storing a batch was interrupted ({other!r}). It is not queued."))

    def _again(self, batch: Batch) -> StoreAgain:
        return lambda _: self._batches.store(batch.body)

    def _queued(self, batch: Batch, queued: "asyncio.Future[str]") -> None:
        if queued.cancelled():
            self._resolve(batch, OutcomeUnknown("The append was interrupted. Look before ingesting again."))
        else:
            self._resolve(batch, queued.exception() or queued.result())

    def _resolve(self, batch: Batch, outcome: str | BaseException) -> None:
        counts = self._means.counts
        batch.body = b""
        self._budget.give_back(batch.taken)
        if batch.outcome.done():
            return
        if isinstance(outcome, str):
            seconds = self._means.clock.monotonic() - batch.opened
            counts.flushed(entries=batch.count, size=batch.size, seconds=seconds)
            self._failures.succeeded(self._producer.file.key)
            batch.outcome.set_result(outcome)
        else:
            counts.flushes_failed += 1
            self._failures.failed(self._producer.file.key, outcome)
            batch.outcome.set_exception(_without_frames(outcome))
            batch.outcome.exception()  # it is no fault that nobody watches


def _without_frames(error: BaseException) -> BaseException:
    """Whoever keeps the watcher of a failed batch must not keep what the frames held: whole batches and manifests."""
    seen: set[int] = set()
    left: list[BaseException | None] = [error]
    while left:
        each = left.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            each.__traceback__ = None
            left += [each.__cause__, each.__context__]
    return error
