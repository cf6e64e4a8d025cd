"""Writing the batches of one partition: one is filled, others are being stored, and they are queued in order."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from lakehead.buffer.append_group import StoreAgain
from lakehead.buffer.batch_store import BatchStore, StoredBatch, store_for_producer
from lakehead.buffer.byte_budget import ByteBudget
from lakehead.buffer.deps import BufferDeps
from lakehead.buffer.flush_failures import FlushFailures
from lakehead.buffer.producer import Producer
from lakehead.errors import LakeheadError, OutcomeUnknown, Unavailable
from lakehead.wire.batch import KeyValueEntry

PUTS_AT_ONCE = 4
MAX_ENTRIES = 1_000_000
"""A batch with this many entries is flushed whatever its size."""

Encode = Callable[[Sequence[KeyValueEntry]], bytes]


@dataclass(eq=False, slots=True)
class PendingBatch:
    """Entries that are flushed together, until they are durable."""

    outcome: "asyncio.Future[str]"
    opened: float
    entries: list[KeyValueEntry] = field(default_factory=list)
    size: int = 0
    """Bytes of keys and values."""
    budgeted: int = 0
    """What it counts for against `max_unflushed_bytes`: an empty entry counts as 1."""
    count: int = 0
    body: bytes = b""
    timer: "asyncio.Task[None] | None" = None
    storing: "asyncio.Task[StoredBatch | LakeheadError] | None" = None


class PartitionWriter:
    """Buffers entries, and flushes them by size, by time, or on request."""

    def __init__(
        self,
        producer: Producer,
        batches: BatchStore,
        deps: BufferDeps,
        budget: ByteBudget,
        failures: FlushFailures,
        *,
        encode: Encode,
        flush_seconds: float,
        flush_bytes: int,
    ) -> None:
        self._producer = producer
        self._batches = batches
        self._deps = deps
        self._budget = budget
        self._failures = failures
        self._encode = encode
        self._flush_seconds = flush_seconds
        self._flush_bytes = flush_bytes
        self._open: PendingBatch | None = None
        self._storing: deque[PendingBatch] = deque()
        """Batches that are being stored or wait to be queued, in the order of the queue."""
        self._puts = asyncio.Semaphore(PUTS_AT_ONCE)
        self._unresolved: dict[asyncio.Future[str], None] = {}

    def add(self, entries: Sequence[KeyValueEntry], size: int) -> "asyncio.Future[str]":
        """Add entries to the open batch; the future resolves to the batch's location."""
        batch = self._open or self._new_batch()
        batch.entries.extend(entries)
        batch.size += size
        budgeted = max(size, len(entries))
        batch.budgeted += budgeted
        self._budget.take(budgeted)
        if batch.size > self._flush_bytes or len(batch.entries) >= MAX_ENTRIES:
            self.flush()
        return batch.outcome

    def flush(self) -> None:
        """Start to flush the open batch, if there is one."""
        batch, self._open = self._open, None
        if batch is None:
            return
        if batch.timer is not None:
            batch.timer.cancel()
        batch.storing = asyncio.create_task(self._store(batch))
        self._storing.append(batch)
        batch.storing.add_done_callback(self._queue_in_order)

    @property
    def unresolved(self) -> "list[asyncio.Future[str]]":
        """The futures of all batches that are neither durable nor failed, the oldest first."""
        return [each for each in self._unresolved if not each.done()]

    async def wait_stopped(self) -> None:
        """Wait until the producer's task has ended, after all batches are resolved."""
        await self._producer.drained()

    def _new_batch(self) -> PendingBatch:
        outcome: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._unresolved[outcome] = None
        outcome.add_done_callback(self._unresolved.pop)
        self._open = batch = PendingBatch(outcome, self._deps.clock.monotonic())
        batch.timer = asyncio.create_task(self._flush_timer())
        batch.timer.add_done_callback(partial(self._timer_ended, batch))
        return batch

    async def _flush_timer(self) -> None:
        await self._deps.clock.sleep(self._flush_seconds)

    def _timer_ended(self, batch: PendingBatch, _: "asyncio.Task[None]") -> None:
        """Flush a batch when its timer has expired or was cancelled."""
        if self._open is batch:
            self.flush()

    async def _store(self, batch: PendingBatch) -> StoredBatch | LakeheadError:
        try:
            batch.body, batch.count = self._encode(batch.entries), len(batch.entries)
            batch.entries.clear()  # keep only the encoded form in memory
            async with self._puts:
                return await store_for_producer(self._producer, self._batches, batch.body)
        except LakeheadError as error:
            return error
        except Exception as error:  # noqa: BLE001 - whatever it is, the watchers must report it
            return Unavailable(f"Storing a batch failed unexpectedly ({error!r}). It is not queued; ingest it again.")

    def _queue_in_order(self, _: object) -> None:
        """Queue stored batches in the order in which they were filled."""
        while self._storing and (storing := self._storing[0].storing) is not None and storing.done():
            batch = self._storing.popleft()
            if storing.cancelled():
                self._resolve(batch, Unavailable("Storing a batch was cancelled. It is not queued; ingest it again."))
                continue
            match storing.exception() or storing.result():
                case StoredBatch(location, gc):
                    queued = self._producer.enqueue(location, gc=gc, store_again=self._store_again(batch))
                    queued.add_done_callback(partial(self._queued, batch))
                case LakeheadError() as error:
                    self._resolve(batch, error)
                case other:  # KeyboardInterrupt, which the event loop has raised to its caller
                    interrupted = f"Storing a batch was interrupted ({other!r}). It is not queued; ingest it again."
                    self._resolve(batch, Unavailable(interrupted))

    def _store_again(self, batch: PendingBatch) -> StoreAgain:
        return lambda: self._batches.store(batch.body)

    def _queued(self, batch: PendingBatch, queued: "asyncio.Future[str]") -> None:
        if queued.cancelled():
            self._resolve(
                batch, OutcomeUnknown("Queueing a batch was interrupted. Check before ingesting its entries again.")
            )
        else:
            self._resolve(batch, queued.exception() or queued.result())

    def _resolve(self, batch: PendingBatch, outcome: str | BaseException) -> None:
        counts = self._deps.counts
        batch.body = b""
        self._budget.give_back(batch.budgeted)
        if batch.outcome.done():
            return
        if isinstance(outcome, str):
            seconds = self._deps.clock.monotonic() - batch.opened
            counts.flushed(entries=batch.count, size=batch.size, seconds=seconds)
            self._failures.succeeded(self._producer.file.key)
            batch.outcome.set_result(outcome)
        else:
            counts.flushes_failed += 1
            self._failures.failed(self._producer.file.key, outcome)
            batch.outcome.set_exception(_without_frames(outcome))
            batch.outcome.exception()  # there may be no watcher: do not log it as never retrieved


def _without_frames(error: BaseException) -> BaseException:
    """Drop the tracebacks of an error and its causes: their frames would keep whole batches and manifests in memory."""
    seen: set[int] = set()
    left: list[BaseException | None] = [error]
    while left:
        each = left.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            each.__traceback__ = None
            left += [each.__cause__, each.__context__]
    return error
