"""Time, as an argument."""

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """Where a component learns the time. Wall time is a hint that may jump; monotonic time only grows."""

    def now_ns(self) -> int:
        """Wall time in nanoseconds since the Unix epoch, UTC."""
        ...

    def monotonic(self) -> float:
        """Seconds since some fixed moment, for measuring durations."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Let that much time pass."""
        ...


class SystemClock:
    """The machine's clock."""

    def now_ns(self) -> int:
        """Wall time in nanoseconds since the Unix epoch, UTC."""
        return time.time_ns()

    def monotonic(self) -> float:
        """Seconds since some fixed moment, for measuring durations."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Let that much time pass."""
        await asyncio.sleep(seconds)
