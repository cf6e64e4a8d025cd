"""A store that is trusted with nothing before it has proved that it keeps its word."""

import asyncio
from collections.abc import AsyncIterator, Sequence

from lakehead.errors import OutcomeUnknown, Unavailable
from lakehead.ids import Ids
from lakehead.storage.port import Created, Entry, Exists, Meta, Object, Replaced, Stale, Store, Version
from lakehead.storage.probe import probe


class Proven:
    """Probes a store before the first write through it.

    A write to a store that fails the probe raises `Misconfigured`; one that could not be probed, `Unavailable`. Either
    way nothing was written, and the next write probes again.
    """

    def __init__(self, store: Store, ids: Ids) -> None:
        self._store = store
        self._ids = ids
        self._turn = asyncio.Lock()
        self._is_proved = False

    async def create(self, key: str, body: bytes) -> Created | Exists:
        """Store the object only if the key is absent."""
        await self._prove()
        return await self._store.create(key, body)

    async def replace(self, key: str, body: bytes, version: Version) -> Replaced | Stale:
        """Store the object only if it is still that version."""
        await self._prove()
        return await self._store.replace(key, body, version)

    async def put(self, key: str, body: bytes) -> Version:
        """Store the object whatever is there."""
        await self._prove()
        return await self._store.put(key, body)

    async def delete(self, key: str) -> None:
        """Make the object absent."""
        await self._prove()
        await self._store.delete(key)

    async def get(self, key: str, *, start: int = 0, end: int | None = None) -> Object | None:
        """The object, or a range of its bytes."""
        return await self._store.get(key, start=start, end=end)

    async def head(self, key: str) -> Meta | None:
        """What is known of the object without its body."""
        return await self._store.head(key)

    def list(self, folder: str = "", *, start_after: str = "") -> AsyncIterator[Sequence[Entry]]:
        """Pages of the objects below a folder."""
        return self._store.list(folder, start_after=start_after)

    async def _prove(self) -> None:
        if self._is_proved:
            return
        async with self._turn:
            if not self._is_proved:
                try:
                    await probe(self._store, ids=self._ids)
                except OutcomeUnknown as error:
                    raise Unavailable(f"The store could not be probed ({error}). Nothing was written.") from error
                self._is_proved = True
