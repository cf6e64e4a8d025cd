"""A store that measures its requests: give it to an `Acceptor`, and the metrics show what uploads wait for."""

from collections.abc import AsyncIterator, Awaitable, Sequence
from typing import TypeVar

from prometheus_client import Histogram

from lakehead.clock import Clock
from lakehead.storage.port import Created, Exists, ListedObject, Object, ObjectMeta, Replaced, Stale, Store, Version

T = TypeVar("T")


class MeasuredStore:
    """Passes everything on, and notes how long each request took, failed ones too."""

    def __init__(self, store: Store, seconds: Histogram, clock: Clock) -> None:
        """`seconds` has the labels operation and folder: `GatewayMetrics.store_seconds`."""
        self._store = store
        self._seconds = seconds
        self._clock = clock

    async def create(self, key: str, body: bytes) -> Created | Exists:
        """Store the object only if the key is absent."""
        return await self._measured("create", key, self._store.create(key, body))

    async def replace(self, key: str, body: bytes, version: Version) -> Replaced | Stale:
        """Store the object only if it is still that version."""
        return await self._measured("replace", key, self._store.replace(key, body, version))

    async def put(self, key: str, body: bytes) -> Version:
        """Store the object unconditionally."""
        return await self._measured("put", key, self._store.put(key, body))

    async def get(self, key: str, *, start: int = 0, end: int | None = None) -> Object | None:
        """Return the object or a range of it, or None if it is absent."""
        return await self._measured("get", key, self._store.get(key, start=start, end=end))

    async def head(self, key: str) -> ObjectMeta | None:
        """Return the object's metadata, or None if it is absent."""
        return await self._measured("head", key, self._store.head(key))

    async def delete(self, key: str) -> None:
        """Delete the object. It is no error if it is absent."""
        await self._measured("delete", key, self._store.delete(key))

    def list(self, folder: str = "", *, start_after: str = "") -> AsyncIterator[Sequence[ListedObject]]:
        """Yield pages of the objects in a folder. Listings are not measured: no upload waits for one."""
        return self._store.list(folder, start_after=start_after)

    async def _measured(self, operation: str, key: str, request: Awaitable[T]) -> T:
        began = self._clock.monotonic()
        try:
            return await request
        finally:
            self._seconds.labels(operation, key.partition("/")[0]).observe(self._clock.monotonic() - began)
