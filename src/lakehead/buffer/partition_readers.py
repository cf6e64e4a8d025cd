"""Polling all partitions of a queue for batches, concurrently."""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from lakehead.buffer.partition_reader import DecodedBatch, PartitionReader
from lakehead.clock import Clock

POLLS_AT_ONCE = 16
"""How many partitions are polled at once."""

IDLE_SECONDS = 0.5
"""How long an empty partition is not polled again while others have batches."""


@dataclass(frozen=True, slots=True)
class EmptyPoll:
    """A poll that found nothing."""

    number: int
    ended_at: float
    """By the monotonic clock."""


class PartitionReaders:
    """All partitions of a queue. A poll of one goes on in the background when another has a batch sooner."""

    def __init__(self, new_reader: Callable[[int], PartitionReader], clock: Clock) -> None:
        self.all = [new_reader(0)]
        self._new_reader = new_reader
        self._clock = clock
        self._round_robin = 0
        self._started = 0
        """How many polls were started."""
        self._polls: dict[PartitionReader, asyncio.Task[None]] = {}
        self._failed: dict[PartitionReader, BaseException] = {}
        """Errors of polls, raised by the next call."""
        self._empty: dict[PartitionReader, EmptyPoll] = {}
        """Partitions whose last poll found nothing."""
        self._polled: set[PartitionReader] = set()
        self._polls_at_once = asyncio.Semaphore(POLLS_AT_ONCE)
        self._lock = asyncio.Lock()

    async def next(self, closing: asyncio.Event) -> tuple[PartitionReader, DecodedBatch] | None:
        """Return the next batch of any partition; None if each was polled in this call and had nothing.

        Also None when the collector is closing. Raises what a poll or a reader raises; the next call goes on with the
        other partitions.
        """
        async with self._lock:
            if (found := await self._ready()) is not None:
                self._poll(reader for reader in self.all if self._is_idle(reader) and self._is_due(reader))
                return found
            started = self._started
            while left := [reader for reader in self.all if not self._was_empty(reader, started)]:
                free = [reader for reader in left if not reader.waits_for_prefetch]
                if due := [reader for reader in free if self._is_due(reader)] or free:
                    self._poll(due)
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
        """Wait until all polls have ended."""
        if self._polls:
            await asyncio.wait(list(self._polls.values()))

    async def _ready(self) -> tuple[PartitionReader, DecodedBatch] | None:
        """Return a batch that is already fetched, of each partition in turn. Raises the error of a poll."""
        for _ in range(len(self.all)):
            reader = self.all[self._round_robin % len(self.all)]
            self._round_robin += 1
            if (error := self._failed.pop(reader, None)) is not None:
                raise error
            if reader.is_ready and (found := await self._next_of(reader)) is not None:
                return found
        return None

    async def _next_of(self, reader: PartitionReader) -> tuple[PartitionReader, DecodedBatch] | None:
        batch = await reader.next()
        return None if batch is None else (reader, batch)

    def _was_empty(self, reader: PartitionReader, started: int) -> bool:
        """Return whether a poll found nothing that began after `started` others."""
        return reader in self._empty and self._empty[reader].number > started

    def _is_idle(self, reader: PartitionReader) -> bool:
        """Return whether the partition was never polled, or its last poll found nothing."""
        return reader in self._empty or reader not in self._polled

    def _is_due(self, reader: PartitionReader) -> bool:
        """Return whether the last empty poll is long enough ago."""
        last = self._empty.get(reader)
        return last is None or self._clock.monotonic() - last.ended_at >= IDLE_SECONDS

    def _poll(self, readers: Iterable[PartitionReader]) -> None:
        """Start polls of partitions that are not being polled, those first that had something."""
        for reader in sorted(readers, key=lambda each: self._empty[each].ended_at if each in self._empty else 0.0):
            if reader not in self._polls:
                self._started += 1
                self._polled.add(reader)
                self._polls[reader] = poll = asyncio.create_task(self._poll_one(reader, self._started))
                # Not in a `finally`: a task that is cancelled before its first step does not run one.
                poll.add_done_callback(partial(self._poll_ended, reader))

    async def _poll_one(self, reader: PartitionReader, number: int) -> None:
        async with self._polls_at_once:
            found = await reader.poll()
        self._empty.pop(reader, None)
        if not found:
            self._empty[reader] = EmptyPoll(number, self._clock.monotonic())
        self._add_new_partitions(reader)

    def _poll_ended(self, reader: PartitionReader, poll: "asyncio.Task[None]") -> None:
        """Keep the error of a poll for the next call, unless it was cancelled."""
        del self._polls[reader]
        if not poll.cancelled() and (error := poll.exception()) is not None:
            self._failed[reader] = error

    def _add_new_partitions(self, reader: PartitionReader) -> None:
        """Add readers for new partitions: the producer manifest that a reader last read has their number."""
        latest = reader.consumer.pair.producer.latest
        partitions = latest.manifest.partitions if latest is not None else 1
        self.all += [self._new_reader(number) for number in range(len(self.all), partitions)]

    async def _wait_for_any(self, readers: Iterable[PartitionReader], closing: asyncio.Event) -> None:
        """Wait until a poll of one of them has ended, or the collector is closing."""
        polls = [self._polls[reader] for reader in readers if reader in self._polls]
        closed = asyncio.create_task(closing.wait())
        try:
            await asyncio.wait([*polls, closed], return_when=asyncio.FIRST_COMPLETED)
        finally:
            closed.cancel()
