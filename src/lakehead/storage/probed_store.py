"""A store that is probed before the first write goes to it."""

import asyncio
from collections.abc import AsyncIterator, Hashable, Sequence

from lakehead.clock import Clock
from lakehead.errors import LakeheadError, Misconfigured, OutcomeUnknown, Unavailable
from lakehead.ids import Ids, Random
from lakehead.storage.connect import StoreSettings
from lakehead.storage.open_store import open_store
from lakehead.storage.port import Created, Exists, ListedObject, Object, ObjectMeta, Replaced, Stale, Store, Version
from lakehead.storage.probe import probe

_probed: set[Hashable] = set()
"""Identities of the stores that this process has probed successfully."""

_running_probes: dict[tuple[asyncio.AbstractEventLoop, Hashable], asyncio.Future[LakeheadError | None]] = {}
"""The running probes of each event loop. The future's result is the error; None after success or cancellation."""


def open_probed_store(url: str, settings: StoreSettings, *, clock: Clock, ids: Ids, random: Random) -> "ProbedStore":
    """Open the store at a URL. It is probed once per process, however often it is opened."""
    # Not the URL alone: containers of two accounts can have the same URL.
    identity = (url, settings.endpoint, settings.region, tuple(sorted(settings.credentials.items())))
    return ProbedStore(open_store(url, settings, clock=clock, ids=ids, random=random), ids, identity)


class ProbedStore:
    """Probes a store when `ensure_probed` is called, at the latest before the first write through it."""

    def __init__(self, store: Store, ids: Ids, identity: Hashable) -> None:
        """Wrap a store. Stores of the same identity are the same store, probed once per process."""
        self._store = store
        self._ids = ids
        self._identity = identity
        self._is_probed = False

    async def ensure_probed(self) -> None:
        """Probe the store unless this process has already done so. Concurrent calls wait for one probe.

        Raises `Misconfigured` if it fails the probe, and `Unavailable` if it could not be probed; the next call probes
        it again.
        """
        while not self._is_probed:
            if self._identity in _probed:
                self._is_probed = True
                return
            probe_key = (asyncio.get_running_loop(), self._identity)
            if (running := _running_probes.get(probe_key)) is not None:
                await asyncio.wait([running])  # not `await running`: cancelling this call would cancel the future
                if (error := running.result()) is not None:
                    raise error
                continue
            outcome = _running_probes[probe_key] = probe_key[0].create_future()
            failure: LakeheadError | None = None
            try:
                await self._probe()
                self._is_probed = True
            except LakeheadError as error:
                failure = error
                raise
            finally:
                del _running_probes[probe_key]
                outcome.set_result(failure)

    async def create(self, key: str, body: bytes) -> Created | Exists:
        """Store the object only if the key is absent."""
        await self.ensure_probed()
        return await self._store.create(key, body)

    async def replace(self, key: str, body: bytes, version: Version) -> Replaced | Stale:
        """Store the object only if it is still that version."""
        await self.ensure_probed()
        return await self._store.replace(key, body, version)

    async def put(self, key: str, body: bytes) -> Version:
        """Store the object unconditionally."""
        await self.ensure_probed()
        return await self._store.put(key, body)

    async def delete(self, key: str) -> None:
        """Delete the object. It is no error if it is absent."""
        await self.ensure_probed()
        await self._store.delete(key)

    async def get(self, key: str, *, start: int = 0, end: int | None = None) -> Object | None:
        """Return the object or a range of it, or None if it is absent."""
        return await self._store.get(key, start=start, end=end)

    async def head(self, key: str) -> ObjectMeta | None:
        """Return the object's metadata, or None if it is absent."""
        return await self._store.head(key)

    def list(self, folder: str = "", *, start_after: str = "") -> AsyncIterator[Sequence[ListedObject]]:
        """Yield pages of the objects in a folder."""
        return self._store.list(folder, start_after=start_after)

    async def _probe(self) -> None:
        try:
            await probe(self._store, ids=self._ids)
        except OutcomeUnknown as error:
            if isinstance(error.__cause__, Misconfigured):  # as where this user may write objects and not read them
                raise error.__cause__ from None
            raise Unavailable(f"Could not probe the store ({error}). Nothing was written; try again later.") from error
        _probed.add(self._identity)
