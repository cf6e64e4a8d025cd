"""The buffer for programs without asyncio: blocking calls, on an event loop in a background thread."""

import asyncio
import concurrent.futures
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterator, Sequence
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from lakehead.buffer.collector import CollectedBatch, Collector
from lakehead.buffer.config import CollectorConfig, IngestorConfig
from lakehead.buffer.counts import BufferCounts
from lakehead.buffer.errors import InvalidCall
from lakehead.buffer.ingestor import Ingestor
from lakehead.buffer.watcher import Durable, WriteWatcher
from lakehead.errors import LakeheadError
from lakehead.wire.batch import KeyValueEntry

LAST_CALLS_SECONDS = 5.0
"""How long `close` waits for calls of other threads before it cancels them."""

T = TypeVar("T")
Wrapped = TypeVar("Wrapped", bound=Ingestor | Collector)


class _Blocking(Generic[Wrapped]):
    """Runs an ingestor or a collector on an event loop of its own."""

    def __init__(self, wrapped: Wrapped, thread_name: str) -> None:
        self._wrapped = wrapped
        self._loop = _LoopThread(thread_name)
        self.counts = wrapped.counts
        # If it is dropped without being closed, its thread must end. Not at exit: the store's threads have ended then.
        weakref.finalize(self, self._loop.abandon, wrapped.close).atexit = False

    def close(self) -> None:
        """Close the ingestor or collector, and raise what its `close` raises. It can be called again.

        Unfinished calls of other threads raise `InvalidCall`.
        """
        try:
            if self._loop.is_running:
                self._loop.call(self._wrapped.close())
        except InvalidCall:
            if self._loop.is_running:
                raise  # otherwise another thread has closed it
        finally:
            self._loop.stop()

    def __enter__(self) -> Self:
        try:
            self._loop.call(self._wrapped.__aenter__())
        except BaseException:
            self._loop.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class BlockingIngestor(_Blocking[Ingestor]):
    """An `Ingestor` with blocking calls. Use it in a `with` block, which flushes the rest at its end.

    Several threads may use it at once. After a fork, make a new one.
    """

    def __init__(self, config: IngestorConfig, *, counts: BufferCounts | None = None) -> None:
        super().__init__(Ingestor(config, counts=counts), "lakehead-ingestor")

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


class BlockingCollector(_Blocking[Collector]):
    """A `Collector` with blocking calls. Use it in a `with` block, which releases unacknowledged batches at its end.

    Heartbeats are sent from its own thread, whatever your code does. After a fork, make a new one.
    """

    def __init__(self, config: CollectorConfig, *, counts: BufferCounts | None = None) -> None:
        super().__init__(Collector(config, counts=counts), "lakehead-collector")

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


class _LoopThread:
    """An event loop in a background thread, started by the first call."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._calls: set[concurrent.futures.Future[Any]] = set()
        """The running calls."""
        self._is_stopped = False

    @property
    def is_running(self) -> bool:
        """Whether the thread runs in this process and was not stopped."""
        return self._is_alive and not self._is_stopped

    @property
    def is_lost_by_fork(self) -> bool:
        """Whether its thread belongs to the parent of this forked process."""
        return self._loop is not None and not self._is_alive and not self._is_stopped

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine and return its result. An exception here cancels it. Raises `InvalidCall` once stopped."""
        try:
            with self._lock:  # a call that is submitted before `stop` still gets its result
                result = asyncio.run_coroutine_threadsafe(work, self._started())
                self._calls.add(result)
        except InvalidCall:
            work.close()
            raise
        result.add_done_callback(self._calls.discard)
        try:
            return result.result()
        except concurrent.futures.CancelledError:
            raise InvalidCall("It was closed before this call had finished. Make a new one.") from None
        except BaseException:
            result.cancel()
            raise

    def stop(self) -> None:
        """End the thread. Running calls get some time to finish, and are cancelled then."""
        if self.is_running:
            concurrent.futures.wait(tuple(self._calls), LAST_CALLS_SECONDS)
        with self._lock:
            self._is_stopped = True
            if self._loop is not None and self._thread is not None and self._is_alive:
                self._loop.call_soon_threadsafe(self._loop.stop)
                self._thread.join()

    def abandon(self, close: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Close and end the thread without waiting, when the ingestor or collector was garbage-collected."""
        loop = self._loop
        if loop is None or not self.is_running:
            return
        self._is_stopped = True

        async def close_and_stop() -> None:
            try:
                await close()
            except LakeheadError:
                pass  # watchers and the log report it
            finally:
                loop.stop()

        asyncio.run_coroutine_threadsafe(close_and_stop(), loop)

    @property
    def _is_alive(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _started(self) -> asyncio.AbstractEventLoop:
        if self._is_stopped:
            raise InvalidCall("It is closed. Make a new one.")
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._run, args=(self._loop,), name=self._name, daemon=True)
            self._thread.start()
        if self.is_lost_by_fork:
            raise InvalidCall("It was made before a fork, and its thread is in the parent. Make a new one here.")
        return self._loop

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
            left = asyncio.all_tasks(loop)
            for task in left:
                task.cancel()
            loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        finally:
            loop.close()
