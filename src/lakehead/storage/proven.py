"""A store that is trusted with nothing before it has proved that it keeps its word."""

import asyncio
from collections.abc import AsyncIterator, Hashable, Sequence

from lakehead.clock import Clock
from lakehead.errors import LakeheadError, OutcomeUnknown, Unavailable
from lakehead.ids import Ids, Random
from lakehead.storage.connect import StoreSettings
from lakehead.storage.opening import open_store
from lakehead.storage.port import Created, Entry, Exists, Meta, Object, Replaced, Stale, Store, Version
from lakehead.storage.probe import probe

_proved: set[Hashable] = set()
"""The stores that this process has probed with success."""

_under_way: dict[tuple[asyncio.AbstractEventLoop, Hashable], asyncio.Future[LakeheadError | None]] = {}
"""The probes of each event loop, with what they come to: None also for one that was cancelled."""


def open_proven(url: str, settings: StoreSettings, *, clock: Clock, ids: Ids, random: Random) -> "Proven":
    """The store that a URL names, to be probed once in this process, whoever opens it how often."""
    # Not the URL alone: the same container of two accounts is two stores.
    identity = (url, settings.endpoint, settings.region, tuple(sorted(settings.credentials.items())))
    return Proven(open_store(url, settings, clock=clock, ids=ids, random=random), ids, identity)


class Proven:
    """Probes a store before the first write through it: when `prove` is called, or with that write."""

    def __init__(self, store: Store, ids: Ids, identity: Hashable) -> None:
        """Wrap a store. What has the same identity is the same store: one proof in this process is enough for all."""
        self._store = store
        self._ids = ids
        self._identity = identity
        self._is_proved = False

    async def prove(self) -> None:
        """Probe the store, unless this process has done so: returns when it may be written to.

        Raises `Misconfigured` if it fails the probe, and `Unavailable` if it could not be probed; the next call probes
        it again. Calls at the same time wait for one probe.
        """
        while not self._is_proved:
            if self._identity in _proved:
                self._is_proved = True
                return
            mine = (asyncio.get_running_loop(), self._identity)
            if (others := _under_way.get(mine)) is not None:
                await asyncio.wait([others])  # not the future itself: our being cancelled must not cancel it
                if (error := others.result()) is not None:
                    raise error
                continue
            outcome = _under_way[mine] = mine[0].create_future()
            failure: LakeheadError | None = None
            try:
                await self._probe()
                self._is_proved = True
            except LakeheadError as error:
                failure = error
                raise
            finally:
                del _under_way[mine]
                outcome.set_result(failure)

    async def create(self, key: str, body: bytes) -> Created | Exists:
        """Store the object only if the key is absent."""
        await self.prove()
        return await self._store.create(key, body)

    async def replace(self, key: str, body: bytes, version: Version) -> Replaced | Stale:
        """Store the object only if it is still that version."""
        await self.prove()
        return await self._store.replace(key, body, version)

    async def put(self, key: str, body: bytes) -> Version:
        """Store the object whatever is there."""
        await self.prove()
        return await self._store.put(key, body)

    async def delete(self, key: str) -> None:
        """Make the object absent."""
        await self.prove()
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

    async def _probe(self) -> None:
        try:
            await probe(self._store, ids=self._ids)
        except OutcomeUnknown as error:
            raise Unavailable(f"The store could not be probed ({error}). Nothing was written.") from error
        _proved.add(self._identity)
