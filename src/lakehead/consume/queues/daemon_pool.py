"""A bounded pool of threads for blocking calls that may take long and must not keep a process from ending."""

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")

IDLE_SECONDS = 5.0
"""How long a thread waits for another call before it ends."""


class DaemonPool:
    """Runs calls in at most `most` daemon threads, which end by themselves. It needs no closing.

    Python waits for the threads of its own `ThreadPoolExecutor` when a process ends, which for a long poll takes up
    to 20 seconds.
    """

    def __init__(self, most: int, name: str) -> None:
        self._most = most
        self._name = name
        self._calls: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._threads = 0
        self._idle = 0
        self._changed = threading.Condition()

    def submit(self, call: Callable[[], T]) -> "Future[T]":
        """Run a call as soon as a thread is free. A call that has not begun can be cancelled."""
        future: Future[T] = Future()
        with self._changed:
            self._calls.append((future, call))
            if self._idle >= len(self._calls):
                self._changed.notify()
            elif self._threads < self._most:
                self._threads += 1
                threading.Thread(target=self._run, name=self._name, daemon=True).start()
        return future

    def _run(self) -> None:
        while (work := self._next()) is not None:
            future, call = work
            if not future.set_running_or_notify_cancel():
                continue
            try:
                result = call()
            except BaseException as error:  # noqa: BLE001 - whoever waits for the future gets it
                future.set_exception(error)
            else:
                future.set_result(result)
            del work, future, call  # an idle thread keeps no message in memory

    def _next(self) -> tuple["Future[Any]", Callable[[], Any]] | None:
        with self._changed:
            self._idle += 1
            self._changed.wait_for(lambda: self._calls, IDLE_SECONDS)
            self._idle -= 1
            if self._calls:
                return self._calls.popleft()
            self._threads -= 1
            return None
