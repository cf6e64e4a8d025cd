"""A store that counts its requests: garbage collection tells how many each blob costs."""

from collections.abc import AsyncIterator, Sequence

from lakehead.maintain.blob_pages import closing
from lakehead.storage.port import Created, Exists, ListedObject, Object, ObjectMeta, Replaced, Stale, Store, Version


class CountedStore:
    """Passes everything on. Each page of a listing is a request."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.requests = 0

    async def create(self, key: str, body: bytes) -> Created | Exists:
        """Store the object only if the key is absent."""
        self.requests += 1
        return await self._store.create(key, body)

    async def replace(self, key: str, body: bytes, version: Version) -> Replaced | Stale:
        """Store the object only if it is still that version."""
        self.requests += 1
        return await self._store.replace(key, body, version)

    async def put(self, key: str, body: bytes) -> Version:
        """Store the object unconditionally."""
        self.requests += 1
        return await self._store.put(key, body)

    async def get(self, key: str, *, start: int = 0, end: int | None = None) -> Object | None:
        """Return the object or a range of it, or None if it is absent."""
        self.requests += 1
        return await self._store.get(key, start=start, end=end)

    async def head(self, key: str) -> ObjectMeta | None:
        """Return the object's metadata, or None if it is absent."""
        self.requests += 1
        return await self._store.head(key)

    async def delete(self, key: str) -> None:
        """Delete the object. It is no error if it is absent."""
        self.requests += 1
        await self._store.delete(key)

    async def list(self, folder: str = "", *, start_after: str = "") -> AsyncIterator[Sequence[ListedObject]]:
        """Yield pages of the objects in a folder."""
        self.requests += 1
        is_first = True
        async with closing(self._store.list(folder, start_after=start_after)) as pages:
            async for page in pages:
                self.requests += not is_first
                is_first = False
                yield page
