"""A list of files, for a backfill: given as URIs, or by listing a folder of a store."""

import asyncio
from collections.abc import AsyncGenerator, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice
from math import inf
from typing import Protocol, Self

from lakehead.buffer.errors import InvalidCall
from lakehead.clock import Clock
from lakehead.consume.queue import Message
from lakehead.consume.queues.delivery_table import DeliveryTable
from lakehead.consume.queues.listed_files import base_uri, folder_markers, is_temporary, pages_after, uri_of
from lakehead.consume.queues.pausing import pause
from lakehead.storage.port import ListedObject, Store

PAGE = 1_000


class _Uris(Protocol):
    """Where the URIs come from, page by page."""

    skipped: int

    async def next(self) -> Sequence[str] | None:
        """Return some of the next URIs, perhaps none; None at the end. If it raises, it can be called again."""
        ...

    async def close(self) -> None: ...


class FileListQueue:
    """Each file once: delivered again only if it is not acknowledged before its visibility timeout is over.

    Only what is delivered and not acknowledged is held in memory, and a page of what comes next. Another process with
    the same list gets the same files.
    """

    retention: timedelta | None = None
    longest_visibility: timedelta | None = None
    forgets = False

    def __init__(self, uris: _Uris, name: str, clock: Clock) -> None:
        """Use `of_uris` or `of_store` instead."""
        self.name = name
        self._uris = uris
        self._clock = clock
        self._table = DeliveryTable(clock)
        self._is_exhausted = False
        self._reading = asyncio.Lock()
        self._closed = asyncio.Event()

    @classmethod
    def of_uris(cls, uris: Iterable[str], clock: Clock, *, name: str = "a list of files") -> Self:
        """The files with these URIs. An iterator is read as far as messages are received."""
        return cls(_GivenUris(uris), name, clock)

    @classmethod
    def of_store(cls, store: Store, url: str, clock: Clock, *, modified_after: datetime | None = None) -> Self:
        """All files of a store that was opened by this URL, or those that were modified after a time.

        Hidden and temporary files are left out. Files that are added meanwhile may be missing.
        """
        return cls(_ListedUris(store, url, modified_after), url, clock)

    @property
    def drained(self) -> bool:
        """Whether every file was delivered and acknowledged."""
        return self._is_exhausted and not self._table

    @property
    def skipped(self) -> int:
        """How many hidden and temporary files were left out so far."""
        return self._uris.skipped

    async def receive(self, most: int, *, visibility: timedelta, wait: timedelta) -> Sequence[Message]:
        """Return files that are ready. At the end of the list, wait up to `wait` for one that is delivered again."""
        if self._closed.is_set():
            raise InvalidCall(f"The queue {self.name} is closed. Open it again.")
        ends = self._clock.monotonic() + wait.total_seconds()
        while not self._closed.is_set():
            if found := self._table.take(most, visibility):
                return found
            if not self._is_exhausted:
                await self._read()
                continue
            now = self._clock.monotonic()
            if now >= ends:
                break
            visible_at = self._table.next_visible_at()
            await pause(self._clock, min(ends, inf if visible_at is None else visible_at) - now, self._closed)
        return []

    async def extend(self, messages: Sequence[Message], visibility: timedelta) -> Sequence[Message]:
        """Do not deliver files for `visibility` from now on; return those for which it is too late."""
        return self._table.extend(messages, visibility)

    async def acknowledge(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Do not deliver files again; return those that were delivered again since."""
        return self._table.acknowledge(messages)

    async def close(self) -> None:
        """End waiting calls, and the listing."""
        self._closed.set()
        async with self._reading:
            await self._uris.close()

    async def _read(self) -> None:
        """Take the next page of the list."""
        async with self._reading:
            if self._is_exhausted or self._closed.is_set():
                return
            page = await self._uris.next()
            self._is_exhausted = page is None
            for uri in page or ():
                if uri not in self._table:  # it stands in the list twice
                    self._table.add(uri, uri.encode(errors="surrogatepass"))


class _GivenUris:
    """URIs that were given."""

    skipped = 0

    def __init__(self, uris: Iterable[str]) -> None:
        self._uris = iter(uris)

    async def next(self) -> Sequence[str] | None:
        return list(islice(self._uris, PAGE)) or None

    async def close(self) -> None:
        pass


class _ListedUris:
    """The URIs of a store's files."""

    def __init__(self, store: Store, url: str, modified_after: datetime | None) -> None:
        self.skipped = 0
        self._store = store
        self._base = base_uri(url)
        self._after_ns = -inf if modified_after is None else modified_after.astimezone(UTC).timestamp() * 1e9
        self._last = ""
        self._pages: AsyncGenerator[Sequence[ListedObject], None] | None = None

    async def next(self) -> Sequence[str] | None:
        if self._pages is None:
            self._pages = pages_after(self._store, self._last)
        try:
            page = await anext(self._pages, None)
            markers = await folder_markers(self._store, self._base, page or ())
        except BaseException:
            await self.close()  # the next call goes on behind the last page
            raise
        if page is None:
            return None
        self._last = page[-1].key if page else self._last
        named = [file for file in page if not is_temporary(file.key) and file.key not in markers]
        self.skipped += len(page) - len(named)
        return [uri_of(self._base, file.key) for file in named if file.modified_ns > self._after_ns]

    async def close(self) -> None:
        pages, self._pages = self._pages, None
        if pages is not None:
            await pages.aclose()
