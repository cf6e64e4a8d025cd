"""Ownership of a prefix: an object under it, created once, names the queue whose batches are there."""

import asyncio

from lakehead.buffer.deps import BufferDeps
from lakehead.buffer.layout import owner_key
from lakehead.errors import Misconfigured, OutcomeUnknown, Unavailable
from lakehead.wire.queue_records import PrefixOwnerRecord


class PrefixOwner:
    """Checks that a prefix belongs to a queue. The first queue that uses a prefix owns it for good.

    Two queues with one prefix would take each other's batches for orphans and delete them.
    """

    def __init__(self, data_path_prefix: str, manifest_path: str, deps: BufferDeps) -> None:
        self._prefix = data_path_prefix
        self._manifest_path = manifest_path
        self._deps = deps
        self._is_ours = False
        self._lock = asyncio.Lock()

    async def check(self) -> None:
        """Return if the prefix belongs to the queue; take it if it has no owner. A success is remembered.

        Raises `Misconfigured` if it belongs to another queue, `Unreadable` if the owner object cannot be read, and
        `Unavailable`.
        """
        async with self._lock:
            if not self._is_ours:
                self._check_ours(await self.stored() or await self._created())
                self._is_ours = True

    async def check_stored(self) -> None:
        """Return if the prefix belongs to the queue or has no owner. Writes nothing. Raises what `check` does."""
        if (owner := await self.stored()) is not None:
            self._check_ours(owner)

    async def stored(self) -> PrefixOwnerRecord | None:
        """Return the owner of the prefix, or None if it has none. Writes nothing."""
        key = owner_key(self._prefix)
        found = await self._deps.store.get(key)
        return PrefixOwnerRecord.decode(found.body, key) if found else None

    async def _created(self) -> PrefixOwnerRecord:
        """Try to take the prefix; return its owner."""
        ours = PrefixOwnerRecord(self._manifest_path)
        failure: Exception | None = None
        async for _ in self._deps.retries.idempotent_writes.each_attempt(self._deps.clock, self._deps.random):
            try:
                await self._deps.store.create(owner_key(self._prefix), ours.encode())
            except OutcomeUnknown as error:
                failure = error
            if (owner := await self.stored()) is not None:
                return owner
        raise Unavailable(f"Could not create {owner_key(self._prefix)} ({failure}). Try again later.")

    def _check_ours(self, owner: PrefixOwnerRecord) -> None:
        if owner.manifest_path != self._manifest_path:
            raise Misconfigured(
                f"The prefix {self._prefix!r} belongs to the queue {owner.manifest_path!r}, not to "
                f"{self._manifest_path!r}, according to {owner_key(self._prefix)}. Choose another data_path_prefix, or "
                "use that queue's manifest_path."
            )
