"""Stops a run early on Ctrl-C or SIGTERM, including everything that its tables wait for."""

import signal
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from lakehead.clock import Clock
from lakehead.errors import LakeheadError

CHECK_SECONDS = 0.1
"""How often a sleep checks whether the run should stop."""


CONTINUE = "Landed rows are kept; run the command again to continue."


class Stopped(LakeheadError):
    """The run was stopped before this work was done. Landed rows stay; the next run continues from there."""


class Terminated(SystemExit):
    """A signal ends the process with exit code 128 plus the signal's number."""


class StopSignal:
    """Whether a run should stop, and why. Thread-safe."""

    def __init__(self) -> None:
        self._set = threading.Event()
        self._by = ""

    def set(self, by: str) -> None:
        """Ask the run to stop. Only the first reason is kept."""
        if not self._set.is_set():
            self._by = by
            self._set.set()

    def __bool__(self) -> bool:
        return self._set.is_set()

    @property
    def by(self) -> str:
        """Who has asked for it first; empty if nobody has."""
        return self._by

    def pause(self, seconds: float) -> None:
        """Sleep in this thread. Raises `Stopped` as soon as the run should stop."""
        if self._set.wait(seconds):
            raise self.error

    @property
    def error(self) -> Stopped:
        """The error that interrupted work raises."""
        return Stopped(f"Stopped by {self._by}. {CONTINUE}")


class StoppableClock:
    """A clock whose sleeps raise `Stopped` as soon as the run should stop."""

    def __init__(self, clock: Clock, stop: StopSignal) -> None:
        self._clock = clock
        self._stop = stop

    def now_ns(self) -> int:
        """Wall time in nanoseconds since the Unix epoch, UTC."""
        return self._clock.now_ns()

    def monotonic(self) -> float:
        """Seconds since some fixed moment, for measuring durations."""
        return self._clock.monotonic()

    def sleep(self, seconds: float) -> Awaitable[None]:
        """Sleep when awaited. Raises `Stopped`."""
        return self._sleep(seconds)

    async def _sleep(self, seconds: float) -> None:
        until = self._clock.monotonic() + seconds
        while not self._stop and (left := until - self._clock.monotonic()) > 0:
            await self._clock.sleep(min(left, CHECK_SECONDS))
        if self._stop:
            raise self._stop.error


def interrupt_name(error: BaseException) -> str:
    """Return who stopped a run, from the exception that interrupted it."""
    if isinstance(error, KeyboardInterrupt):
        return "you (Ctrl-C)"
    return "SIGTERM" if isinstance(error, Terminated) else type(error).__name__


@contextmanager
def report_interrupts(say: Callable[[str], None]) -> Iterator[None]:
    """Let Ctrl-C and SIGTERM end the `with` block with exit codes 130 and 143, and report which one it was."""

    def end(number: int, _: object) -> None:
        raise Terminated(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    except (KeyboardInterrupt, Terminated) as interrupt:
        say(f"Stopped by {interrupt_name(interrupt)}. {CONTINUE}")
        raise Terminated(128 + signal.SIGINT if isinstance(interrupt, KeyboardInterrupt) else interrupt.code) from None
    finally:
        signal.signal(signal.SIGTERM, before)
