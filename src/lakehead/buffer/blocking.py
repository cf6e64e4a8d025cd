"""The buffer for programs without asyncio: blocking calls, on an event loop in a background thread."""

from collections.abc import Iterator, Sequence

from lakehead.buffer.blocking_calls import BlockingCalls
from lakehead.buffer.collector import CollectedBatch, Collector
from lakehead.buffer.config import CollectorConfig, IngestorConfig
from lakehead.buffer.counts import BufferCounts
from lakehead.buffer.errors import InvalidCall
from lakehead.buffer.ingestor import Ingestor
from lakehead.buffer.watcher import Durable, WriteWatcher
from lakehead.errors import LakeheadError
from lakehead.wire.batch import KeyValueEntry


class BlockingIngestor(BlockingCalls[Ingestor]):
    """An `Ingestor` with blocking calls. Use it in a `with` block, which flushes the rest at its end.

    Several threads may use it at once. After a fork, make a new one.
    """

    def __init__(self, config: IngestorConfig, *, counts: BufferCounts | None = None) -> None:
        super().__init__(Ingestor(config, counts=counts), "lakehead-ingestor")
        self.counts = self._wrapped.counts

    def ingest(self, entries: Sequence[KeyValueEntry]) -> "BlockingWatcher":
        """Buffer entries, and return before they are durable. Raises what `Ingestor.ingest` does."""
        return BlockingWatcher(self._loop.call(self._wrapped.ingest(entries)), self)

    def flush(self) -> None:
        """Wait until all buffered entries are durable. Raises what `Ingestor.flush` does."""
        self._loop.call(self._wrapped.flush())


class BlockingWatcher:
    """A `WriteWatcher` with blocking calls."""

    def __init__(self, watcher: WriteWatcher, ingestor: BlockingIngestor) -> None:
        self._watcher = watcher
        self._ingestor = ingestor
        """Kept because an ingestor without references is closed."""

    def result(self) -> Durable | LakeheadError | None:
        """Return the outcome, or None if the flush has not finished. Never waits, never raises."""
        return self._watcher.result()

    def wait_durable(self) -> None:
        """Wait until the entries are stored and queued; raise the error if they cannot be."""
        match self.result():
            case None:
                self._ingestor._loop.call(self._watcher.await_durable())  # noqa: SLF001 - ours
            case LakeheadError() as error:
                raise error.with_traceback(None)
            case _:
                return


class BlockingCollector(BlockingCalls[Collector]):
    """A `Collector` with blocking calls. Use it in a `with` block, which releases unacknowledged batches at its end.

    Heartbeats are sent from its own thread, whatever your code does. After a fork, make a new one.
    """

    def __init__(self, config: CollectorConfig, *, counts: BufferCounts | None = None) -> None:
        super().__init__(Collector(config, counts=counts), "lakehead-collector")
        self.counts = self._wrapped.counts

    def next_batch(self, timeout: float | None = 0) -> CollectedBatch | None:
        """Return the next batch, or None if there is none within `timeout` seconds; None waits for ever."""
        return self._loop.call(self._wrapped.next_batch(timeout=timeout))

    def ack(self, *batches: CollectedBatch) -> None:
        """Acknowledge batches. Raises what `Collector.ack` does."""
        self._loop.call(self._wrapped.ack(*batches))

    def release(self, *batches: CollectedBatch | str) -> None:
        """Give batches back to the queue. Raises what `Collector.release` does."""
        self._loop.call(self._wrapped.release(*batches))

    def quarantine(self, batch: CollectedBatch | str, reason: str) -> None:
        """Copy a batch that cannot be processed to quarantine. Raises what `Collector.quarantine` does."""
        self._loop.call(self._wrapped.quarantine(batch, reason))

    @property
    def held(self) -> tuple[str, ...]:
        """The locations that were handed out and are not acknowledged."""
        return self._wrapped.held

    def __iter__(self) -> Iterator[CollectedBatch]:
        """Yield batches, waiting for ever. The loop ends when the collector is closed."""
        while True:
            try:
                batch = self.next_batch(timeout=None)
            except InvalidCall:
                if self._loop.is_lost_by_fork:
                    raise
                return
            assert batch is not None  # noqa: S101 - for the type checker: it waits for ever
            yield batch
