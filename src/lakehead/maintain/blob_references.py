"""Raw blobs with their reverse references, from three sources: a full scan, the index by time, and a list of keys.

In a full scan the listings of blobs and of both kinds of reverse references are read side by side, in the order of
hashes: a referenced blob costs no request of its own, and memory does not grow with their number.
"""

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from lakehead.errors import Misconfigured
from lakehead.maintain.blob_pages import closing
from lakehead.storage.port import ListedObject, Store
from lakehead.wire import acceptance_keys as keys
from lakehead.wire.batch_identity import BatchIdentity
from lakehead.wire.utc_hours import UtcHour

AT_ONCE = 32
"""Blobs whose references are looked up concurrently."""

LOOKED_UP = 1_000
"""Blobs that are looked up before they are passed on."""


@dataclass(frozen=True, slots=True)
class AcceptedReference:
    """A reverse reference from a blob to an identity manifest."""

    identity: BatchIdentity
    stored_ns: int
    """When the reference was stored, by the store's clock: after the batch was accepted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundBlob:
    """A raw blob, and what refers to it as far as the indexes tell."""

    key: str
    sha256: str | None
    """From its key; None if no frame has such a key."""

    size: int
    modified_ns: int
    """When it was stored, by the store's clock."""

    accepted: AcceptedReference | None = None
    is_quarantined: bool = False


class BlobSource(Protocol):
    """Where candidates come from."""

    @property
    def name(self) -> str:
        """What reports call it."""
        ...

    def blobs(self, store: Store, *, before_ns: int) -> AsyncIterator[Sequence[FoundBlob]]:
        """Yield blobs with their references, page by page. Those stored after `before_ns` may be left out."""
        ...


@dataclass(frozen=True, slots=True)
class FullScan:
    """All raw blobs, by three listings side by side."""

    name: str = "scan"

    async def blobs(self, store: Store, *, before_ns: int) -> AsyncIterator[Sequence[FoundBlob]]:
        """Yield all of them, in the order of their hashes.

        Raises `Unavailable`, and `Misconfigured` if the store does not list in the order of keys.
        """
        del before_ns
        last = ""
        async with (
            closing(store.list(keys.RAW_BLOBS)) as pages,
            closing(store.list(keys.ACCEPTED_BY_BLOB)) as accepted_pages,
            closing(store.list(keys.QUARANTINE_BY_BLOB)) as quarantine_pages,
        ):
            accepted = _SortedReferences(accepted_pages, keys.parse_accepted_by_blob)
            quarantined = _SortedReferences(quarantine_pages, keys.parse_quarantine_by_blob)
            async for page in pages:
                found: list[FoundBlob] = []
                for each in page:
                    sha256 = keys.parse_raw_blob(each.key)
                    last = _in_order(last, sha256 or last, each.key)
                    found.append(
                        FoundBlob(
                            key=each.key,
                            sha256=sha256,
                            size=each.size,
                            modified_ns=each.modified_ns,
                            accepted=None if sha256 is None else await accepted.of(sha256),
                            is_quarantined=sha256 is not None and await quarantined.of(sha256) is not None,
                        )
                    )
                yield found


class _SortedReferences:
    """References in the order of their hashes, of which one is held in memory."""

    def __init__(
        self,
        pages: AsyncIterator[Sequence[ListedObject]],
        parse: Callable[[str], tuple[str, BatchIdentity] | None],
    ) -> None:
        self._pages = pages
        self._parse = parse
        self._page: Sequence[ListedObject] = ()
        self._next = 0
        self._current: tuple[str, AcceptedReference] | None = None
        self._is_over = False

    async def of(self, sha256: str) -> AcceptedReference | None:
        """Return a reference of a frame; ask in the order of hashes."""
        while not self._is_over and (self._current is None or self._current[0] < sha256):
            await self._advance()
        return self._current[1] if self._current is not None and self._current[0] == sha256 else None

    async def _advance(self) -> None:
        while True:
            if self._next == len(self._page):
                page = await anext(self._pages, None)
                if page is None:
                    self._is_over = True
                    return
                self._page, self._next = page, 0
                continue
            listed = self._page[self._next]
            self._next += 1
            if (parsed := self._parse(listed.key)) is not None:
                _in_order(self._current[0] if self._current else "", parsed[0], listed.key)
                self._current = parsed[0], AcceptedReference(parsed[1], listed.modified_ns)
                return


def _in_order(before: str, sha256: str, key: str) -> str:
    """Return a hash, if it does not come after a larger one: else blobs would look as if nothing referred to them."""
    if sha256 < before:
        raise Misconfigured(
            f"{key} was listed after a key that follows it: this store does not list keys in their order, as directory "
            "buckets of S3 do not. Use --source index."
        )
    return sha256


@dataclass(frozen=True, slots=True)
class TimeIndex:
    """The blobs of `raw-blobs-by-time/v1/`, hour by hour, in the hours before the retry horizon."""

    needs_age: bool = False
    """Whether the age of referenced blobs is asked for, too: retention needs it."""

    since: UtcHour | None = None
    """The first hour that is looked at; None: all."""

    name: str = "index"

    async def blobs(self, store: Store, *, before_ns: int) -> AsyncIterator[Sequence[FoundBlob]]:
        """Yield the blobs of these hours, as often as they were uploaded. Raises `Unavailable`."""
        async with closing(self._hashes(store, UtcHour.of(before_ns))) as pages:
            async for page in pages:
                for some in _groups(list(dict.fromkeys(page))):
                    yield await look_up(some, store, needs_age=self.needs_age)

    async def _hashes(self, store: Store, end: UtcHour) -> AsyncIterator[Sequence[str]]:
        start = ""
        if self.since is not None:
            # After all entries of the hour before, and before all of this one. SeaweedFS would leave out a whole folder
            # whose name with its slash is what it is to begin after.
            start = f"{keys.RAW_BLOBS_BY_TIME}/{UtcHour(self.since.number - 1).path}~"
        async with closing(store.list(keys.RAW_BLOBS_BY_TIME, start_after=start)) as pages:
            async for page in pages:
                found = [parsed for each in page if (parsed := keys.parse_raw_blob_by_time(each.key)) is not None]
                yield [sha256 for hour, sha256 in found if hour < end]
                if found and found[-1][0] >= end:
                    return


@dataclass(frozen=True, slots=True)
class ListedBlobs:
    """Blobs whose keys somebody else has listed, as S3 Inventory does."""

    pages: Callable[[], AsyncIterable[Sequence[ListedObject]]]
    """Keys relative to the prefix of the store; others than those of raw blobs are left out."""

    needs_age: bool = False
    name: str = "inventory"

    async def blobs(self, store: Store, *, before_ns: int) -> AsyncIterator[Sequence[FoundBlob]]:
        """Yield those that are still there, and were listed as stored before. Raises what `pages` does."""
        async with closing(self.pages()) as pages:
            async for page in pages:
                hashes = [
                    sha256
                    for each in page
                    if each.modified_ns < before_ns and (sha256 := keys.parse_raw_blob(each.key)) is not None
                ]
                for some in _groups(hashes):
                    yield await look_up(some, store, needs_age=self.needs_age)


async def look_up(hashes: Collection[str], store: Store, *, needs_age: bool) -> Sequence[FoundBlob]:
    """Look up the references of blobs, in their order. A referenced blob costs one request, or two with its age.

    Blobs that are gone are left out, unless they are referenced and `needs_age` is not set. Raises `Unavailable`.
    """
    limit = asyncio.Semaphore(AT_ONCE)

    async def one(sha256: str) -> FoundBlob | None:
        async with limit:
            return await _look_up(sha256, store, needs_age=needs_age)

    return [found for found in await asyncio.gather(*map(one, hashes)) if found is not None]


async def _look_up(sha256: str, store: Store, *, needs_age: bool) -> FoundBlob | None:
    key = keys.raw_blob(sha256)
    accepted: AcceptedReference | None = None
    for each in await _listed(store, keys.accepted_by_blob_folder(sha256)):
        if (parsed := keys.parse_accepted_by_blob(each.key)) is not None:
            accepted = AcceptedReference(parsed[1], each.modified_ns)
    if accepted is not None and not needs_age:
        return FoundBlob(key=key, sha256=sha256, size=0, modified_ns=accepted.stored_ns, accepted=accepted)
    quarantined = await _listed(store, keys.quarantine_by_blob_folder(sha256))
    meta = await store.head(key)
    if meta is None:
        return None
    return FoundBlob(
        key=key,
        sha256=sha256,
        size=meta.size,
        modified_ns=meta.modified_ns,
        accepted=accepted,
        is_quarantined=any(keys.parse_quarantine_by_blob(each.key) is not None for each in quarantined),
    )


async def _listed(store: Store, folder: str) -> Sequence[ListedObject]:
    """All of a folder. A frame belongs to one identity, so that no folder of references has more than a few."""
    async with closing(store.list(folder)) as pages:
        return [each async for page in pages for each in page]


def _groups(hashes: Sequence[str]) -> Iterator[Sequence[str]]:
    return (hashes[first : first + LOOKED_UP] for first in range(0, len(hashes), LOOKED_UP))
