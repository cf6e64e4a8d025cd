"""Prefetching claimed batches, up to a number of bytes for all partitions of a collector."""

import asyncio
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from lakehead.buffer.claims import Claim
from lakehead.buffer.deps import BufferDeps
from lakehead.buffer.layout import object_key
from lakehead.errors import LakeheadError
from lakehead.storage.port import Object
from lakehead.wire.batch import MIB, BatchLimits


@dataclass(eq=False, slots=True)
class PrefetchedBatch:
    """A claimed batch that is not handed out yet, and the task that fetches it."""

    claim: Claim
    fetching: "asyncio.Task[Object | LakeheadError | None] | None" = None
    size: int = 0
    """Its bytes, estimated until it is fetched; 0 if it is not being fetched."""

    @property
    def is_fetched(self) -> bool:
        """Whether the fetch has ended, with the object or an error."""
        return self.fetching is not None and self.fetching.done()


class ReadAhead:
    """Fetches batches concurrently, in the order of the claims, as long as they fit into the limit."""

    def __init__(self, deps: BufferDeps, limits: BatchLimits, max_bytes: int) -> None:
        self._deps = deps
        self._limits = limits
        self._max_bytes = max_bytes
        self._waiting: OrderedDict[PrefetchedBatch, None] = OrderedDict()
        self._bytes = 0
        self._estimate = MIB
        """The expected size of the next batch: that of the last one."""

    def add(self, batches: Iterable[PrefetchedBatch]) -> None:
        """Fetch these as soon as they fit into the limit, except those that are already being fetched."""
        self._waiting.update(dict.fromkeys(each for each in batches if each.fetching is None))
        self._fetch_waiting()

    def fetch_now(self, batch: PrefetchedBatch) -> "asyncio.Task[Object | LakeheadError | None]":
        """Fetch a batch at once, whether it fits into the limit or not."""
        self._waiting.pop(batch, None)
        if batch.fetching is None:
            self._bytes += self._estimate - batch.size
            batch.size = self._estimate
            batch.fetching = asyncio.create_task(self._fetch(batch))
        return batch.fetching

    def remove(self, batch: PrefetchedBatch) -> None:
        """Stop counting a batch that was handed out or released, and fetch others instead."""
        self._drop(batch)
        self._fetch_waiting()

    def give_back(self, batches: Iterable[PrefetchedBatch]) -> None:
        """Let other partitions use the bytes of these batches, because the first of them cannot be handed out now.

        Fetches that are running go on. The body of the first batch is kept, the others are fetched again after `add`.
        """
        for number, each in enumerate(batches):
            if each.fetching is None or each.is_fetched:
                self._drop(each)
                each.fetching = each.fetching if number == 0 else None
        self._fetch_waiting()

    def _drop(self, batch: PrefetchedBatch) -> None:
        self._bytes -= batch.size
        batch.size = 0
        self._waiting.pop(batch, None)

    def _fetch_waiting(self) -> None:
        while self._waiting and (not self._bytes or self._bytes + self._estimate <= self._max_bytes):
            self.fetch_now(next(iter(self._waiting)))

    async def _fetch(self, batch: PrefetchedBatch) -> Object | LakeheadError | None:
        try:
            found = await self._deps.store.get(object_key(batch.claim.location), end=self._limits.stored_bytes + 1)
        except LakeheadError as error:
            return error  # raised when the batch is to be handed out
        if found is not None and batch.size:
            self._estimate = max(len(found.body), 1)
            self._bytes += self._estimate - batch.size
            batch.size = self._estimate
        return found
