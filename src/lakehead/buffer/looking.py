"""Looking for batches in all partitions of a queue, side by side."""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from lakehead.buffer.reader import Opened, Reader
from lakehead.clock import Clock

AT_ONCE = 16
"""How many partitions are looked at side by side."""

IDLE_SECONDS = 0.5
"""How long a partition that had nothing is left alone while others have something."""


@dataclass(frozen=True, slots=True)
class EmptyLook:
    """A look at a partition that had nothing."""

    number: int
    at: float
    """When it ended, by the monotonic clock."""


class Readers:
    """All partitions of a queue. A look at one of them goes on when another has something sooner."""

    def __init__(self, new: Callable[[int], Reader], clock: Clock) -> None:
        self.all = [new(0)]
        self._new = new
        self._clock = clock
        self._turn = 0
        self._begun = 0
        """How many looks were begun."""
        self._looks: dict[Reader, asyncio.Task[None]] = {}
        self._failed: dict[Reader, BaseException] = {}
        """What looks have raised, for the next call."""
        self._empty: dict[Reader, EmptyLook] = {}
        """Partitions that had nothing when they were last looked at."""
        self._looked_at: set[Reader] = set()
        self._at_once = asyncio.Semaphore(AT_ONCE)
        self._asking = asyncio.Lock()

    async def next(self, closing: asyncio.Event) -> tuple[Reader, Opened] | None:
        """The next batch of any partition; None once each was looked at in this call and had nothing.

        Also None when the collector is closing. Raises what a look or a reader raises, and the next call goes on with
        the other partitions.
        """
        async with self._asking:
            if (found := await self._ready()) is not None:
                self._look_at(reader for reader in self.all if self._is_idle(reader) and self._is_due(reader))
                return found
            begun = self._begun
            while left := [reader for reader in self.all if not self._was_empty(reader, begun)]:
                free = [reader for reader in left if not reader.waits_for_room]
                if due := [reader for reader in free if self._is_due(reader)] or free:
                    self._look_at(due)
                    await self._wait_for_any(due, closing)
                    if closing.is_set():
                        return None
                    found = await self._ready()
                else:
                    found = await self._next_of(left[0])
                if found is not None:
                    return found
            return None

    async def close(self) -> None:
        """Let looks come to an end."""
        if self._looks:
            await asyncio.wait(list(self._looks.values()))

    async def _ready(self) -> tuple[Reader, Opened] | None:
        """What is there already, of each partition in turn. Raises what a look has raised."""
        for _ in range(len(self.all)):
            reader = self.all[self._turn % len(self.all)]
            self._turn += 1
            if (error := self._failed.pop(reader, None)) is not None:
                raise error
            if reader.is_ready and (found := await self._next_of(reader)) is not None:
                return found
        return None

    async def _next_of(self, reader: Reader) -> tuple[Reader, Opened] | None:
        opened = await reader.next()
        return None if opened is None else (reader, opened)

    def _was_empty(self, reader: Reader, begun: int) -> bool:
        """Whether a look that began after so many others had nothing."""
        return reader in self._empty and self._empty[reader].number > begun

    def _is_idle(self, reader: Reader) -> bool:
        """Whether nobody has found anything there yet, or not the last time."""
        return reader in self._empty or reader not in self._looked_at

    def _is_due(self, reader: Reader) -> bool:
        """Whether it is worth looking while others may have something."""
        last = self._empty.get(reader)
        return last is None or self._clock.monotonic() - last.at >= IDLE_SECONDS

    def _look_at(self, readers: Iterable[Reader]) -> None:
        """Start looking at partitions, those first that had something; but for those at which somebody looks."""
        for reader in sorted(readers, key=lambda reader: self._empty[reader].at if reader in self._empty else 0.0):
            if reader not in self._looks:
                self._begun += 1
                self._looked_at.add(reader)
                self._looks[reader] = look = asyncio.create_task(self._look(reader, self._begun))
                # Not in a `finally`: a task that is cancelled before it began runs none.
                look.add_done_callback(partial(self._looked, reader))

    async def _look(self, reader: Reader, number: int) -> None:
        async with self._at_once:
            found = await reader.look()
        self._empty.pop(reader, None)
        if not found:
            self._empty[reader] = EmptyLook(number, self._clock.monotonic())
        self._read_all_of(reader)

    def _looked(self, reader: Reader, look: "asyncio.Task[None]") -> None:
        """Keep what a look raised for the next call. One that somebody cancelled says nothing."""
        del self._looks[reader]
        if not look.cancelled() and (error := look.exception()) is not None:
            self._failed[reader] = error

    def _read_all_of(self, reader: Reader) -> None:
        """Read all partitions that the queue has: how many there are stands in what a reader last saw."""
        latest = reader.consumer.files.producer.latest
        partitions = latest.manifest.partitions if latest is not None else 1
        self.all += [self._new(number) for number in range(len(self.all), partitions)]

    async def _wait_for_any(self, readers: Iterable[Reader], closing: asyncio.Event) -> None:
        """Wait until a look at one of them has ended, or the collector is closing."""
        looks = [self._looks[reader] for reader in readers if reader in self._looks]
        closed = asyncio.create_task(closing.wait())
        try:
            await asyncio.wait([*looks, closed], return_when=asyncio.FIRST_COMPLETED)
        finally:
            closed.cancel()
