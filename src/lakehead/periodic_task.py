"""A background thread that calls a function at regular intervals."""

import logging
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self, TypeAlias

Wait: TypeAlias = Callable[[threading.Event, float], bool]
"""Waits up to that many seconds for the event and returns whether it is set, as `threading.Event.wait` does."""

_log = logging.getLogger("lakehead")


class PeriodicTask:
    """Calls a function every so many seconds, on a thread that runs as long as its `with`.

    If a call raises, a warning is logged, once until a call succeeds again, and the next call is made all the same.
    """

    def __init__(
        self, seconds: float, function: Callable[[], None], *, name: str, wait: Wait = threading.Event.wait
    ) -> None:
        self._seconds = seconds
        self._function = function
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
        is_failing = False
        while not self._wait(self._ended, self._seconds):
            try:
                self._function()
                is_failing = False
            except Exception as error:  # noqa: BLE001 - no caller would see it, and a lease must be renewed
                if not is_failing:
                    _log.warning(
                        "The background task %s failed (%r). It is called again in %g s.",
                        self._thread.name,
                        error,
                        self._seconds,
                        exc_info=error,
                    )
                is_failing = True
