"""How a run is ended early: by Ctrl-C or by a signal, and every wait of its tables with it."""

import signal
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from lakehead.clock import Clock
from lakehead.errors import LakeheadError

LOOK_SECONDS = 0.1
"""How soon a sleep notices that the run is to end."""


class Stopped(LakeheadError):
    """The run was ended before this was done. What had landed stays; the next run goes on from there."""


class Terminated(SystemExit):
    """A signal has ended the process: its code is 128 and the signal's number."""


class Stop:
    """Whether a run is to end, and who wants it to. Any thread may ask."""

    def __init__(self) -> None:
        self._set = threading.Event()
        self._by = ""

    def set(self, by: str) -> None:
        """End the run. The first reason counts."""
        if not self._set.is_set():
            self._by = by
            self._set.set()

    def __bool__(self) -> bool:
        return self._set.is_set()

    def pause(self, seconds: float) -> None:
        """Let that much time pass in this thread. Raises `Stopped` as soon as the run is to end."""
        if self._set.wait(seconds):
            raise self.error

    @property
    def error(self) -> Stopped:
        """What whoever was at work raises."""
        return Stopped(f"Stopped by {self._by}. What had landed stays; run it again to go on.")


class StoppableClock:
    """Another clock, whose sleeps end at once with `Stopped` when the run is to end."""

    def __init__(self, clock: Clock, stop: Stop) -> None:
        self._clock = clock
        self._stop = stop

    def now_ns(self) -> int:
        """Wall time in nanoseconds since the Unix epoch, UTC."""
        return self._clock.now_ns()

    def monotonic(self) -> float:
        """Seconds since some fixed moment, for measuring durations."""
        return self._clock.monotonic()

    def sleep(self, seconds: float) -> Awaitable[None]:
        """Let that much time pass, for whoever awaits it. Raises `Stopped`."""
        return self._sleep(seconds)

    async def _sleep(self, seconds: float) -> None:
        until = self._clock.monotonic() + seconds
        while not self._stop and (left := until - self._clock.monotonic()) > 0:
            await self._clock.sleep(min(left, LOOK_SECONDS))
        if self._stop:
            raise self._stop.error


def stopped_by(error: BaseException) -> str:
    """Who ends a run, from what interrupts it."""
    if isinstance(error, KeyboardInterrupt):
        return "you (Ctrl-C)"
    return "SIGTERM" if isinstance(error, Terminated) else type(error).__name__


@contextmanager
def told_who_stops_it(say: Callable[[str], None]) -> Iterator[None]:
    """Let Ctrl-C and SIGTERM end what is done within the `with` in order, with 130 and 143, and say which it was."""

    def end(number: int, _: object) -> None:
        raise Terminated(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    except (KeyboardInterrupt, Terminated) as interrupt:
        say(f"Stopped by {stopped_by(interrupt)}. What had landed stays; run it again to go on.")
        raise Terminated(128 + signal.SIGINT if isinstance(interrupt, KeyboardInterrupt) else interrupt.code) from None
    finally:
        signal.signal(signal.SIGTERM, before)
