"""Blocking calls of something that is asynchronous, on an event loop in a background thread."""

import asyncio
import concurrent.futures
import threading
import weakref
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar

from lakehead.buffer.errors import InvalidCall
from lakehead.errors import LakeheadError

LAST_CALLS_SECONDS = 5.0
"""How long `close` waits for calls of other threads before it cancels them."""

T = TypeVar("T")


class Closable(Protocol):
    """Something asynchronous that is opened by `async with` and closed at its end."""

    async def __aenter__(self) -> Self: ...

    async def close(self) -> None:
        """Close it. It can be called again."""
        ...


Wrapped = TypeVar("Wrapped", bound=Closable)


class BlockingCalls(Generic[Wrapped]):
    """Runs something asynchronous on an event loop of its own. The base class of what has blocking calls."""

    def __init__(self, wrapped: Wrapped, thread_name: str) -> None:
        self._wrapped = wrapped
        self._loop = LoopThread(thread_name)
        # If it is dropped without being closed, its thread must end. Not at exit: the store's threads have ended then.
        weakref.finalize(self, self._loop.abandon, wrapped.close).atexit = False

    def close(self) -> None:
        """Close it, and raise what its own `close` raises. It can be called again.

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


class LoopThread:
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
        """Close and end the thread without waiting, when what uses it was garbage-collected."""
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
