"""The reader's side: hands out batches, and remembers which were processed."""

import asyncio
import weakref
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from lakehead.buffer.config import CollectorConfig
from lakehead.buffer.counts import Counts
from lakehead.buffer.errors import Fenced, Refused
from lakehead.buffer.means import Means
from lakehead.buffer.reader import Reader
from lakehead.clock import Clock
from lakehead.errors import LakeheadError
from lakehead.ids import Ids, Random
from lakehead.storage.port import Store
from lakehead.wire.batch import KeyValueEntry, Limits


@dataclass(frozen=True, slots=True)
class CollectedBatch:
    """What one flush of one ingestor stored."""

    entries: Sequence[KeyValueEntry] = field(repr=False)
    location: str
    epoch: int
    """Of two collectors that hand out the same partition in order, the one with the lower epoch was fenced."""

    partition: int
    collector: str
    """The id of the collector that handed it out."""


class Collector:
    """Hands out the batches of a queue and acknowledges them. Make a new one when it raises `Fenced`.

    A batch that is not acknowledged is handed out again, by this collector's successor or, in competing mode, by
    another one. While a batch is held, a task of its own says every third of the timeout that we are alive.
    """

    def __init__(
        self,
        config: CollectorConfig,
        clock: Clock,
        *,
        store: Store | None = None,
        ids: Ids | None = None,
        random: Random | None = None,
        counts: Counts | None = None,
        limits: Limits | None = None,
    ) -> None:
        self._means = config.object_store_config.means(clock, store=store, ids=ids, random=random, counts=counts)
        self._config = config
        self._limits = limits or Limits()
        self._readers: list[Reader] = []
        self._turn = 0
        self._beating: asyncio.Task[None] | None = None
        self._heart = asyncio.Lock()
        self._closed = False
        self.counts = self._means.counts
        self._read(1)

    async def next_batch(self) -> CollectedBatch | None:
        """The next batch, or None if there is none to be had now.

        Raises `Fenced` when another collector has taken over, and `Unavailable` when it is worth trying again. A
        batch that cannot be read is set aside with the reason, and the one behind it is handed out.
        """
        await self._means.prove()
        self._check_alive()
        if self._beating is None:
            interval = self._config.heartbeat_timeout_ms.total_seconds() / 3
            self._beating = asyncio.create_task(_beat(weakref.ref(self), self._means, interval))
        empty = 0
        while empty < len(self._readers):
            reader = self._readers[self._turn % len(self._readers)]
            self._turn += 1
            opened = await reader.next()
            grown = self._has_grown(reader)
            if opened is not None:
                claim = opened.claim
                return CollectedBatch(opened.entries, claim.location, claim.epoch, reader.number, reader.consumer.id)
            empty = 0 if grown else empty + 1
        return None

    async def ack(self, *batches: CollectedBatch) -> None:
        """Say that batches are processed and must not be handed out again. Many at once are one write.

        In ordered mode in the order in which they were handed out, else `OutOfTurn`. Raises `Fenced` if another
        collector has taken over, and then nothing is acknowledged; after `Unavailable` or `OutcomeUnknown` the call
        can be repeated. Acknowledging twice is no error; cancelling the call does not take it back.
        """
        self._check_alive()
        by_reader: dict[int, list[str]] = {}
        for batch in batches:
            if batch.partition >= len(self._readers) or self._readers[batch.partition].consumer.id != batch.collector:
                raise Refused(f"{batch.location} was handed out by another collector, which alone may acknowledge it.")
            by_reader.setdefault(batch.partition, []).append(batch.location)
        for number, locations in by_reader.items():
            await self._readers[number].ack(locations)

    async def close(self) -> None:
        """Stop. What is not acknowledged is handed out again by another collector, once our claim on it is stale."""
        self._closed = True
        if self._beating is not None:
            async with self._heart:  # a request that is cut off goes on, and may outlive the event loop
                self._beating.cancel()
            with suppress(asyncio.CancelledError):
                await self._beating
        for reader in self._readers:
            await reader.close()

    async def heartbeat(self) -> None:
        """Say that we live. A task of the collector does this; it is here for whoever stops that task from running."""
        async with self._heart:
            for reader in self._readers:
                try:
                    await reader.consumer.heartbeat()
                except Fenced:
                    continue  # the next call of whoever uses this partition says so
                except LakeheadError:
                    self.counts.heartbeats_failed += 1

    async def __aenter__(self) -> Self:
        await self._means.prove()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _has_grown(self, reader: Reader) -> bool:
        """Whether there are more partitions than we knew; how many there are stands in what a reader last saw."""
        latest = reader.consumer.files.producer.latest
        return latest is not None and self._read(latest.manifest.partitions or 1)

    def _read(self, partitions: int) -> bool:
        """Read that many partitions at least; whether that is more than before."""
        new = range(len(self._readers), partitions)
        self._readers += [Reader(self._config, self._means, number, self._limits) for number in new]
        return bool(new)

    def _check_alive(self) -> None:
        if self._closed:
            raise Refused("The collector is closed and hands out nothing more. Make a new one.")
        for reader in self._readers:
            reader.consumer.check_known()


async def _beat(collector: "weakref.ref[Collector]", means: Means, interval: float) -> None:
    """Keep claims alive for as long as somebody holds the collector."""
    while True:
        await means.clock.sleep(interval)
        if (alive := collector()) is None:
            return
        await alive.heartbeat()
        del alive
