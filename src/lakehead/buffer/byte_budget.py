"""How much may be in memory and not yet durable."""

import asyncio

from lakehead.buffer.counts import Counts


class ByteBudget:
    """Counts unflushed bytes, and lets callers wait until there are few enough."""

    def __init__(self, limit: int, counts: Counts) -> None:
        self.taken = 0
        self._limit = limit
        self._counts = counts
        self._waiting: list[asyncio.Future[None]] = []

    @property
    def is_exceeded(self) -> bool:
        """Whether a caller has to wait."""
        return self.taken > self._limit

    @property
    def is_left(self) -> bool:
        """Whether a caller that waits may go on."""
        return self.taken < self._limit or not self.taken

    def take(self, size: int) -> None:
        """Count bytes that are in memory now."""
        self.taken += size
        self._counts.bytes_unflushed += size

    def give_back(self, size: int) -> None:
        """Count bytes that are durable, or given up."""
        self.taken -= size
        self._counts.bytes_unflushed -= size
        self.wake()

    async def changed(self) -> None:
        """Wait until something was given back."""
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(woken)
        await woken

    def wake(self) -> None:
        """Let everybody who waits look again."""
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if not each.done():
                each.set_result(None)
