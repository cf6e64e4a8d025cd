"""The limit on bytes that are in memory and not yet durable."""

import asyncio

from lakehead.buffer.counts import BufferCounts


class ByteBudget:
    """Counts unflushed bytes, and lets callers wait until they are below the limit."""

    def __init__(self, limit: int, counts: BufferCounts) -> None:
        self.taken = 0
        self._limit = limit
        self._counts = counts
        self._waiting: list[asyncio.Future[None]] = []

    @property
    def is_exceeded(self) -> bool:
        """Whether a caller has to wait."""
        return self.taken > self._limit

    @property
    def has_space(self) -> bool:
        """Whether a waiting caller may go on."""
        return self.taken < self._limit or not self.taken

    def take(self, size: int) -> None:
        """Count bytes that are in memory now."""
        self.taken += size
        self._counts.bytes_unflushed += size

    def give_back(self, size: int) -> None:
        """Stop counting bytes that have become durable, or have failed."""
        self.taken -= size
        self._counts.bytes_unflushed -= size
        self.wake()

    async def changed(self) -> None:
        """Wait until bytes were given back."""
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(woken)
        await woken

    def wake(self) -> None:
        """Wake all callers of `changed`."""
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if not each.done():
                each.set_result(None)
