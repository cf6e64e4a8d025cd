"""An in-memory store, for tests, simulations and experiments."""

from bisect import bisect_right
from collections.abc import AsyncIterator, Sequence
from threading import Lock

from lakehead.clock import Clock
from lakehead.storage.object_keys import check_key, check_listing, check_start
from lakehead.storage.port import Created, Exists, ListedObject, Object, ObjectMeta, Replaced, Stale, Version


class MemoryStore:
    """Objects in a dictionary. Event loops of several threads may use it: each call is atomic."""

    def __init__(self, *, clock: Clock, page_size: int = 1000) -> None:
        self._clock = clock
        self._page_size = page_size
        self._objects: dict[str, Object] = {}
        self._writes = 0
        self._lock = Lock()
        """Held for every change, and by a listing while it builds a page; never across an await."""

    async def create(self, key: str, body: bytes) -> Created | Exists:
        """Store the object only if the key is absent."""
        check_key(key)
        with self._lock:
            if (there := self._objects.get(key)) is not None:
                return Exists(there.meta.version)
            return Created(self._store(key, body))

    async def replace(self, key: str, body: bytes, version: Version) -> Replaced | Stale:
        """Store the object only if it is still that version."""
        check_key(key)
        with self._lock:
            there = self._objects.get(key)
            if there is None or there.meta.version != version:
                return Stale(there.meta.version if there else None)
            return Replaced(self._store(key, body))

    async def put(self, key: str, body: bytes) -> Version:
        """Store the object unconditionally."""
        check_key(key)
        with self._lock:
            return self._store(key, body)

    async def get(self, key: str, *, start: int = 0, end: int | None = None) -> Object | None:
        """Return the object or a range of it, or None if it is absent."""
        check_key(key)
        check_start(start)
        there = self._objects.get(key)
        if there is None or (start == 0 and end is None):
            return there
        return Object(there.meta, there.body[start:end])

    async def head(self, key: str) -> ObjectMeta | None:
        """Return the object's metadata, or None if it is absent."""
        check_key(key)
        there = self._objects.get(key)
        return there.meta if there else None

    async def list(self, folder: str = "", *, start_after: str = "") -> AsyncIterator[Sequence[ListedObject]]:
        """Yield pages of the objects in a folder. Each page is read when it is requested."""
        check_listing(folder, start_after)
        below = f"{folder}/" if folder else ""
        while True:
            with self._lock:
                keys = sorted((key for key in self._objects if key.startswith(below)), key=str.encode)
                first = bisect_right(keys, start_after.encode(), key=str.encode)
                metas = [self._objects[key].meta for key in keys[first : first + self._page_size]]
            if metas:
                yield [ListedObject(meta.key, meta.size, meta.modified_ns) for meta in metas]
            if len(metas) < self._page_size:
                return
            start_after = metas[-1].key

    async def delete(self, key: str) -> None:
        """Delete the object. It is no error if it is absent."""
        check_key(key)
        with self._lock:
            self._objects.pop(key, None)

    def _store(self, key: str, body: bytes) -> Version:
        self._writes += 1
        version = Version(str(self._writes))
        self._objects[key] = Object(ObjectMeta(key, len(body), version, self._clock.now_ns()), bytes(body))
        return version
