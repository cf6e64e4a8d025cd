"""What is done again and again beside the work."""

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self, TypeAlias

Wait: TypeAlias = Callable[[threading.Event, float], bool]
"""Waits until the event is set, or that many seconds at most, and tells whether it is set: `threading.Event.wait`."""


class Every:
    """Does something every so many seconds, on a thread that lives as long as its `with`."""

    def __init__(self, seconds: float, do: Callable[[], None], *, name: str, wait: Wait = threading.Event.wait) -> None:
        self._seconds = seconds
        self._do = do
        self._wait = wait
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._wait(self._ended, self._seconds):
            self._do()
