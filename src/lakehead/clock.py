"""The clock that components take as an argument, instead of reading the system's time."""

import asyncio
import time
from collections.abc import Awaitable
from typing import Protocol


class Clock(Protocol):
    """A source of time. Wall time is a hint that may jump; monotonic time only grows."""

    def now_ns(self) -> int:
        """Return wall time in nanoseconds since the Unix epoch, UTC."""
        ...

    def monotonic(self) -> float:
        """Return seconds since some fixed moment, for measuring durations."""
        ...

    def sleep(self, seconds: float) -> Awaitable[None]:
        """Sleep for that many seconds when awaited."""
        ...


class SystemClock:
    """The system's clock."""

    def now_ns(self) -> int:
        """Return wall time in nanoseconds since the Unix epoch, UTC."""
        return time.time_ns()

    def monotonic(self) -> float:
        """Return seconds since some fixed moment, for measuring durations."""
        return time.monotonic()

    def sleep(self, seconds: float) -> Awaitable[None]:
        """Sleep for that many seconds when awaited."""
        return asyncio.sleep(seconds)
