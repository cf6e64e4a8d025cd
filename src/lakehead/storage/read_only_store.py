"""A store that is only read."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from lakehead.errors import Misconfigured
from lakehead.storage.port import Created, Exists, ListedObject, Object, ObjectMeta, Replaced, Stale, Store, Version


@dataclass(frozen=True, slots=True)
class ReadOnlyStore:
    """Passes reads on. Every write raises `Misconfigured`, and reaches nobody."""

    store: Store

    async def create(self, key: str, body: bytes) -> Created | Exists:
        """Refuse."""
        raise _refused(key, body)

    async def replace(self, key: str, body: bytes, version: Version) -> Replaced | Stale:  # noqa: ARG002 - as the port
        """Refuse."""
        raise _refused(key, body)

    async def put(self, key: str, body: bytes) -> Version:
        """Refuse."""
        raise _refused(key, body)

    async def get(self, key: str, *, start: int = 0, end: int | None = None) -> Object | None:
        """Return the object, or a part of it."""
        return await self.store.get(key, start=start, end=end)

    async def head(self, key: str) -> ObjectMeta | None:
        """Return the object's metadata."""
        return await self.store.head(key)

    def list(self, folder: str = "", *, start_after: str = "") -> AsyncIterator[Sequence[ListedObject]]:
        """Yield pages of the objects in a folder."""
        return self.store.list(folder, start_after=start_after)

    async def delete(self, key: str) -> None:
        """Refuse."""
        raise _refused(key)


def _refused(key: str, body: bytes = b"") -> Misconfigured:
    return Misconfigured(f"{key} was not written ({len(body):,} bytes) or deleted: this store is only read.")
