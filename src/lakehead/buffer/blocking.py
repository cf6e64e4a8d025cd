"""The buffer for programs without asyncio: each call waits for its answer, on an event loop in a thread of its own."""

import asyncio
import concurrent.futures
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterator, Sequence
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from lakehead.buffer.collector import CollectedBatch, Collector
from lakehead.buffer.config import CollectorConfig, IngestorConfig
from lakehead.buffer.counts import Counts
from lakehead.buffer.errors import Refused
from lakehead.buffer.ingestor import Ingestor
from lakehead.buffer.watcher import Durable, WriteWatcher
from lakehead.errors import LakeheadError
from lakehead.wire.batch import KeyValueEntry

LAST_CALLS_SECONDS = 5.0
"""How long calls of other threads may take to come to an end once everything is closed."""

T = TypeVar("T")
Wrapped = TypeVar("Wrapped", bound=Ingestor | Collector)


class _Blocking(Generic[Wrapped]):
    """What both have in common: a loop of its own, and a beginning and an end."""

    def __init__(self, wrapped: Wrapped, thread_name: str) -> None:
        self._wrapped = wrapped
        self._loop = _LoopThread(thread_name)
        self.counts = wrapped.counts
        # One that nobody closed must not leave its thread. Not at exit: the store's threads have ended by then.
        weakref.finalize(self, self._loop.abandon, wrapped.close).atexit = False

    def close(self) -> None:
        """Stop. Raises what `close` of an `Ingestor` or a `Collector` does. It can be called again.

        Calls of other threads come to an end: they raise `Refused` if they are not done.
        """
        try:
            if self._loop.is_running:
                self._loop.call(self._wrapped.close())
        except Refused:
            if self._loop.is_running:
                raise  # else another thread has closed it
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
    """An `Ingestor` for scripts and threads. Use it in a `with` block: leaving it flushes what is left.

    It can be used by several threads at once. After a fork, make a new one.
    """

    def __init__(self, config: IngestorConfig, *, counts: Counts | None = None) -> None:
        super().__init__(Ingestor(config, counts=counts), "lakehead-ingestor")

    def ingest(self, entries: Sequence[KeyValueEntry]) -> "BlockingWatcher":
        """Take entries, and return before they are durable. Raises what `Ingestor.ingest` does."""
        return BlockingWatcher(self._loop.call(self._wrapped.ingest(entries)), self)

    def flush(self) -> None:
        """Wait until everything that was taken is durable. Raises what `Ingestor.flush` does."""
        self._loop.call(self._wrapped.flush())


class BlockingWatcher:
    """A `WriteWatcher` for scripts and threads."""

    def __init__(self, watcher: WriteWatcher, ingestor: BlockingIngestor) -> None:
        self._watcher = watcher
        self._ingestor = ingestor
        """Kept, for what nobody holds is closed."""

    def result(self) -> Durable | LakeheadError | None:
        """What became of the entries, or None while that is not known. Never waits, never raises."""
        return self._watcher.result()

    def wait_durable(self) -> None:
        """Wait until the entries are stored and queued, or raise what `result` tells."""
        match self.result():
            case None:
                self._ingestor._loop.call(self._watcher.await_durable())  # noqa: SLF001 - ours
            case LakeheadError() as error:
                raise error.with_traceback(None)
            case _:
                return


class BlockingCollector(_Blocking[Collector]):
    """A `Collector` for scripts and threads. Use it in a `with` block: leaving it gives back what is not acknowledged.

    Heartbeats go on while your code works, whatever it does. After a fork, make a new one.
    """

    def __init__(self, config: CollectorConfig, *, counts: Counts | None = None) -> None:
        super().__init__(Collector(config, counts=counts), "lakehead-collector")

    def next_batch(self, timeout: float | None = 0) -> CollectedBatch | None:
        """The next batch, or None if none came within so many seconds. None as timeout waits for ever."""
        return self._loop.call(self._wrapped.next_batch(timeout=timeout))

    def ack(self, *batches: CollectedBatch) -> None:
        """Say that batches are processed. Raises what `Collector.ack` does."""
        self._loop.call(self._wrapped.ack(*batches))

    def release(self, *batches: CollectedBatch | str) -> None:
        """Give batches back to the queue at once. Raises what `Collector.release` does."""
        self._loop.call(self._wrapped.release(*batches))

    def set_aside(self, batch: CollectedBatch | str, reason: str) -> None:
        """Set a batch aside that cannot be processed. Raises what `Collector.set_aside` does."""
        self._loop.call(self._wrapped.set_aside(batch, reason))

    @property
    def held(self) -> tuple[str, ...]:
        """The locations of batches that were handed out and are not acknowledged."""
        return self._wrapped.held

    def __iter__(self) -> Iterator[CollectedBatch]:
        """Batches as they come. The loop ends when the collector is closed."""
        while True:
            try:
                batch = self.next_batch(timeout=None)
            except Refused:
                if self._loop.is_gone:
                    raise
                return
            assert batch is not None  # noqa: S101 - for the type checker: it waits for ever
            yield batch


class _LoopThread:
    """An event loop in a thread of its own, started by the first call."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._calls: set[concurrent.futures.Future[Any]] = set()
        """Those that are under way."""
        self._is_stopped = False

    @property
    def is_running(self) -> bool:
        """Whether a call was made in this process, and it was not stopped since."""
        return self._is_alive and not self._is_stopped

    @property
    def is_gone(self) -> bool:
        """Whether its thread is that of the process which this one was forked from."""
        return self._loop is not None and not self._is_alive and not self._is_stopped

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """What `work` answers. Interrupting the call cancels the work. Raises `Refused` once it is stopped."""
        try:
            with self._lock:  # what is sent before it is stopped is answered
                answer = asyncio.run_coroutine_threadsafe(work, self._started())
                self._calls.add(answer)
        except Refused:
            work.close()
            raise
        answer.add_done_callback(self._calls.discard)
        try:
            return answer.result()
        except concurrent.futures.CancelledError:
            raise Refused("It was closed before this call was done. Make a new one.") from None
        except BaseException:
            answer.cancel()
            raise

    def stop(self) -> None:
        """End the thread. Calls that are under way may come to an end, and are cancelled if they do not."""
        if self.is_running:
            concurrent.futures.wait(tuple(self._calls), LAST_CALLS_SECONDS)
        with self._lock:
            self._is_stopped = True
            if self._loop is not None and self._thread is not None and self._is_alive:
                self._loop.call_soon_threadsafe(self._loop.stop)
                self._thread.join()

    def abandon(self, close: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Close, and end the thread, without waiting for either: nobody can call any more."""
        loop = self._loop
        if loop is None or not self.is_running:
            return
        self._is_stopped = True

        async def close_and_stop() -> None:
            try:
                await close()
            except LakeheadError:
                pass  # the watchers tell, and the log
            finally:
                loop.stop()

        asyncio.run_coroutine_threadsafe(close_and_stop(), loop)

    @property
    def _is_alive(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _started(self) -> asyncio.AbstractEventLoop:
        if self._is_stopped:
            raise Refused("It is closed. Make a new one.")
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._run, args=(self._loop,), name=self._name, daemon=True)
            self._thread.start()
        if self.is_gone:
            raise Refused("Its thread is gone, as after a fork. Make a new one in this process.")
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
