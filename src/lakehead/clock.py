"""Time, as an argument."""

import asyncio
import time
from collections.abc import Awaitable
from typing import Protocol


class Clock(Protocol):
    """Where a component learns the time. Wall time is a hint that may jump; monotonic time only grows."""

    def now_ns(self) -> int:
        """Wall time in nanoseconds since the Unix epoch, UTC."""
        ...

    def monotonic(self) -> float:
        """Seconds since some fixed moment, for measuring durations."""
        ...

    def sleep(self, seconds: float) -> Awaitable[None]:
        """Let that much time pass, for whoever awaits it."""
        ...


class SystemClock:
    """The machine's clock."""

    def now_ns(self) -> int:
        """Wall time in nanoseconds since the Unix epoch, UTC."""
        return time.time_ns()

    def monotonic(self) -> float:
        """Seconds since some fixed moment, for measuring durations."""
        return time.monotonic()

    def sleep(self, seconds: float) -> Awaitable[None]:
        """Let that much time pass, for whoever awaits it."""
        return asyncio.sleep(seconds)
