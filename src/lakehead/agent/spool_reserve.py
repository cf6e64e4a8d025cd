"""Bytes that an agent keeps occupied on its disk, and gives up when that is full.

Without them a full disk could never be emptied: a batch is sent once its frame is written, and that needs room before
it frees more. While they are given up nothing new is taken, so that it is not new records that use the room.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from hashlib import shake_128
from typing import TypeVar

from lakehead.agent.spool_disk import SpoolDisk
from lakehead.agent.spool_errors import SpoolFull
from lakehead.clock import Clock
from lakehead.errors import DiskFull, LakeheadError
from lakehead.wire.agent_spool_records import RESERVE

LOG = logging.getLogger("lakehead.agent")
T = TypeVar("T")

AGAIN_SECONDS = 1.0
"""How long to wait at least before the disk is asked again for the reserve."""

_BLOCK = 1 << 20


class Reserve:
    """The reserve of a spool."""

    def __init__(self, disk: SpoolDisk, size: int, clock: Clock) -> None:
        self._disk = disk
        self._size = size
        self._clock = clock
        self._is_held = False
        self._changing = asyncio.Lock()
        self._filling: asyncio.Task[None] | None = None
        self._not_before = float("-inf")

    async def open(self) -> None:
        """Find the reserve of an earlier start, or that there is none. Raises `Unavailable`."""
        found = {each.name: each.size for each in await self._disk.list("")}
        self._is_held = found.get(RESERVE, 0) == self._size

    def check(self) -> None:
        """Raise `SpoolFull` while there is no reserve."""
        if not self._is_held:
            raise SpoolFull(
                f"The disk of the spool is full: the {self._size:,} bytes that are kept in reserve are not there. It "
                "can go on when batches were sent, or when you make room on the disk."
            )

    def fill_soon(self) -> None:
        """Begin to get the reserve back if it is not there, unless the disk was asked just now."""
        is_due = self._clock.monotonic() >= self._not_before
        if not self._is_held and is_due and (self._filling is None or self._filling.done()):
            self._filling = asyncio.create_task(self.fill(), name="lakehead-spool-reserve")

    async def close(self) -> None:
        """Carry out what was begun."""
        if self._filling is not None:
            await self._filling

    async def fill(self) -> None:
        """Get the reserve back, if the disk lets it."""
        async with self._changing:
            if self._is_held:
                return
            try:
                if self._size:
                    await self._disk.replace(RESERVE, _incompressible(self._size))
                else:
                    await self._disk.delete(RESERVE)
                self._is_held = True
            except LakeheadError:
                self._not_before = self._clock.monotonic() + AGAIN_SECONDS

    async def use(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do something that what is on disk needs in order to be sent: if the disk is full, with the reserve.

        Raises what it raises; `DiskFull` if even that is not enough.
        """
        try:
            return await work()
        except DiskFull:
            async with self._changing:
                self._is_held = False
                self._not_before = self._clock.monotonic() + AGAIN_SECONDS
                try:
                    await self._disk.delete(RESERVE)
                except LakeheadError:
                    LOG.warning("The reserve of the full disk could not be given up.", exc_info=True)
            return await work()


def _incompressible(size: int) -> bytes:
    """Bytes that take as much room on a disk that compresses."""
    block = shake_128(RESERVE.encode()).digest(min(size, _BLOCK))
    return (block * (size // len(block) + 1))[:size]
