"""Which accepted batches wait in the landing queue, by what its manifests and its batches say. Nothing is changed."""

import asyncio
from collections.abc import Collection
from dataclasses import dataclass

from lakehead.buffer.deps import BufferDeps
from lakehead.buffer.inspection import inspect_partitions
from lakehead.buffer.layout import object_key
from lakehead.errors import Misconfigured, Unavailable
from lakehead.storage.object_keys import is_valid_key
from lakehead.wire.batch import BatchLimits
from lakehead.wire.compact import decode_batch
from lakehead.wire.errors import Unreadable

AT_ONCE = 8
_LIMITS = BatchLimits()


@dataclass(frozen=True, slots=True)
class QueuedBatches:
    """The landing queue of an authority."""

    manifest_path: str
    deps: BufferDeps

    async def among(self, accepted_keys: Collection[str]) -> frozenset[str]:
        """Return which of these batches are in the queue and not acknowledged: waiting, or at a consumer.

        Raises `Unavailable` and `Unreadable` if not all of the queue could be read: then nobody knows.
        """
        wanted = set(accepted_keys)
        found: set[str] = set()
        limit = asyncio.Semaphore(AT_ONCE)

        async def read(location: str) -> None:
            async with limit:
                if len(found) < len(wanted):
                    found.update(wanted & await self._keys(location))

        await asyncio.gather(*map(read, await self._waiting()))
        return frozenset(found)

    async def _waiting(self) -> Collection[str]:
        try:
            partitions = await inspect_partitions(self.manifest_path, self.deps, search=True)
        except Misconfigured:
            return ()  # there is no queue yet
        if unreadable := [error for each in partitions for error in each.unreadable.values()]:
            raise Unavailable(f"What is in the landing queue cannot be told. {' '.join(unreadable)}")
        return dict.fromkeys(location for each in partitions for location in each.waiting)

    async def _keys(self, location: str) -> set[str]:
        key = object_key(location)
        if not is_valid_key(key):
            return set()  # no batch of the queue: it names no accepted batch
        body = await self.deps.store.get(key, end=_LIMITS.stored_bytes + 1)
        if body is None:
            return set()  # acknowledged and removed since, or lost: either way nothing waits in it
        try:
            return {entry.key.decode(errors="replace") for entry in decode_batch(body.body, _LIMITS)}
        except Unreadable as error:
            raise Unreadable(f"What is in the batch {key} of the landing queue cannot be told. {error}") from None
