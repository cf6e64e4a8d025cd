"""S3, GCS and Azure Blob Storage as a `Store`."""

from collections.abc import AsyncIterator, Sequence

from lakehead.storage.object_keys import check_key, check_listing, check_start
from lakehead.storage.obstore_requests import ObstoreRequests
from lakehead.storage.port import Created, Exists, ListedObject, Object, ObjectMeta, Replaced, Stale, Version
from lakehead.storage.reliable_writes import ReliableWrites


class RemoteStore:
    """One bucket: reads go through a client that retries by itself, writes through one that never does.

    A retry hidden in the client could turn our own successful conditional write into a refusal, or a write that was
    applied into a failure. So `ReliableWrites` does the retries of writes.
    """

    def __init__(self, *, reads: ObstoreRequests, writes: ReliableWrites) -> None:
        self._reads = reads
        self._writes = writes

    async def create(self, key: str, body: bytes) -> Created | Exists:
        """Store the object only if the key is absent."""
        check_key(key)
        return await self._writes.create(key, body)

    async def replace(self, key: str, body: bytes, version: Version) -> Replaced | Stale:
        """Store the object only if it is still that version."""
        check_key(key)
        return await self._writes.replace(key, body, version)

    async def put(self, key: str, body: bytes) -> Version:
        """Store the object unconditionally."""
        check_key(key)
        return await self._writes.put(key, body)

    async def get(self, key: str, *, start: int = 0, end: int | None = None) -> Object | None:
        """Return the object or a range of it, or None if it is absent."""
        check_key(key)
        check_start(start)
        return await self._reads.get(key, start=start, end=end)

    async def head(self, key: str) -> ObjectMeta | None:
        """Return the object's metadata, or None if it is absent."""
        check_key(key)
        return await self._reads.head(key)

    def list(self, folder: str = "", *, start_after: str = "") -> AsyncIterator[Sequence[ListedObject]]:
        """Yield pages of the objects in a folder, in the store's order."""
        check_listing(folder, start_after)
        return self._reads.list(folder, start_after)

    async def delete(self, key: str) -> None:
        """Delete the object. It is no error if it is absent."""
        check_key(key)
        await self._writes.delete(key)
