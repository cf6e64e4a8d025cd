"""A watched folder of a store: each file in it is a message."""

import asyncio
from collections.abc import Collection, Sequence
from datetime import UTC, datetime, timedelta
from math import inf

from lakehead.buffer.errors import InvalidCall
from lakehead.clock import Clock
from lakehead.consume.queue import Message
from lakehead.consume.queues.acknowledged_files import AcknowledgedFiles
from lakehead.consume.queues.delivery_table import DeliveryTable
from lakehead.consume.queues.folder_pass import FolderPass, FolderSettings
from lakehead.consume.queues.listed_files import base_uri, folder_markers, is_temporary, uri_of
from lakehead.consume.queues.missing_files import missing_files
from lakehead.consume.queues.pausing import pause
from lakehead.storage.port import ListedObject, Store

CLOCKS_DIFFER = timedelta(seconds=30)
"""By how much a store's clock may differ from ours."""


class FolderQueue:
    """The files of a folder and its subfolders. The body of a message is a file's URI.

    Other processes that watch the folder get the same files: there is no server between them. Hidden and temporary
    files are left out and counted. A file that is neither acknowledged nor extended is delivered again when its
    visibility timeout is over, and one that changes after it was delivered is delivered again as another version.

    An acknowledged file that stays in the folder is remembered as long as it is listed, up to `remembered` files. Of
    more, those that were forgotten are delivered again, but not more often than once in each `rescan`, unless more than
    `remembered` files arrive during one listing. Until then, a new file with an old modification time may wait for the
    next rescan: it cannot be told from a forgotten one.
    """

    retention: timedelta | None = None
    longest_visibility: timedelta | None = None
    forgets = False

    def __init__(self, store: Store, settings: FolderSettings, clock: Clock) -> None:
        """Nothing is listed yet."""
        self.name = settings.url
        self.skipped = 0
        """How many hidden and temporary files the last complete listing had."""
        self.last_complete_listing: datetime | None = None
        """When the last complete listing began, in UTC."""
        self._store = store
        self._settings = settings
        self._clock = clock
        self._base = base_uri(settings.url)
        self._table = DeliveryTable(clock)
        self._files: dict[str, ListedObject] = {}
        """The files of the table, as they were delivered, by URI."""
        self._acknowledged = AcknowledgedFiles(settings.remembered)
        self._again: set[str] = set()
        """The URIs of files that are to be delivered again though they were acknowledged."""
        self._pass: FolderPass | None = None
        self._pass_skipped = 0
        self._next_pass_at = -inf
        self._rescanned_at = -inf
        self._is_rescan = True
        self._known_before_ns = 0
        """Files that were modified before this were listed by an earlier pass, or came with an old time."""
        self._listing = asyncio.Lock()
        self._closed = asyncio.Event()

    async def receive(self, most: int, *, visibility: timedelta, wait: timedelta) -> Sequence[Message]:
        """Return files that are ready; list the folder if there are none, and wait up to `wait` for the first."""
        if self._closed.is_set():
            raise InvalidCall(f"The queue {self.name} is closed. Open it again.")
        ends = self._clock.monotonic() + wait.total_seconds()
        while not self._closed.is_set():
            if found := self._table.take(most, visibility):
                return found
            due_at = await self._list()
            if found := self._table.take(most, visibility):
                return found
            now = self._clock.monotonic()
            if now >= ends:
                break
            visible_at = self._table.next_visible_at()
            await pause(self._clock, min(ends, due_at, inf if visible_at is None else visible_at) - now, self._closed)
        return []

    async def extend(self, messages: Sequence[Message], visibility: timedelta) -> Sequence[Message]:
        """Do not deliver files for `visibility` from now on; return those for which it is too late."""
        return self._table.extend(messages, visibility)

    async def acknowledge(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Do not deliver files again, within the limits of memory; return those that were delivered again since."""
        failed = self._table.acknowledge(messages)
        for message in messages:
            if message.id not in self._table and (file := self._files.pop(message.id, None)) is not None:
                self._acknowledged.add(file)
        return failed

    def deliver_again(self, uris: Collection[str]) -> None:
        """Deliver these files again when they are listed, though they were acknowledged, and no others."""
        self._again = {uri for uri in uris if uri not in self._table}

    async def close(self) -> None:
        """End waiting calls. Another process that watches the folder gets all of its files."""
        self._closed.set()

    @property
    def folder(self) -> str:
        """The beginning of the URIs of all files in the folder."""
        return uri_of(self._base, "")

    async def not_listed(self, uris: Collection[str]) -> frozenset[str]:
        """Return which of these files are gone, by a complete listing that begins now: see `missing_files`."""
        return await missing_files(self._store, self._base, uris, files_stay=self._settings.files_stay)

    # --- listing

    async def _list(self) -> float:
        """Go on with the listing if it is time; return when it is time again, by the monotonic clock."""
        async with self._listing:
            now = self._clock.monotonic()
            if self._pass is None:
                if now < self._next_pass_at:
                    return self._next_pass_at
                self._begin_pass(now)
            current = self._pass
            assert current is not None  # noqa: S101 - for the type checker
            if len(self._table) >= self._settings.window:
                return now + self._settings.poll_interval.total_seconds()  # until some are acknowledged
            if now < current.due_at:
                return current.due_at
            resting = await current.step()
            markers = await folder_markers(self._store, self._base, resting)
            for file in resting:
                if file.key in markers:
                    self._acknowledged.add(file)  # so that it is not looked for each time
                    continue
                uri = uri_of(self._base, file.key)
                self._files[uri] = file
                self._again.discard(uri)
                self._table.add(uri, uri.encode(errors="surrogatepass"), _utc(file.modified_ns))
            if current.is_complete:
                self._end_pass(current)
            return now

    def _begin_pass(self, now: float) -> None:
        self._is_rescan = now - self._rescanned_at >= self._settings.rescan.total_seconds()
        if self._is_rescan:
            self._rescanned_at = now
            self._acknowledged.has_forgotten = False
        self._pass_skipped = 0
        self._pass = FolderPass(self._store, self._settings, self._clock, self._is_wanted)

    def _end_pass(self, ended: FolderPass) -> None:
        self._acknowledged.end_pass()
        self.skipped = self._pass_skipped
        self.last_complete_listing = _utc(ended.began_ns)
        # What was modified after this may have been too fresh for this pass, or have come behind it.
        margin = self._settings.rest + CLOCKS_DIFFER
        self._known_before_ns = ended.began_ns - margin // timedelta(microseconds=1) * 1_000
        self._next_pass_at = ended.began_at + self._settings.poll_interval.total_seconds()
        self._pass = None

    def _is_wanted(self, file: ListedObject) -> bool:
        """Return whether a file is to be delivered, if it rests."""
        if is_temporary(file.key):
            self._pass_skipped += 1
            return False
        uri, was_acknowledged = uri_of(self._base, file.key), self._acknowledged.seen(file)
        if uri in self._table:
            return False
        if uri in self._again:
            return True
        if was_acknowledged:
            return False
        may_be_forgotten = self._acknowledged.has_forgotten and not self._is_rescan
        return not may_be_forgotten or file.modified_ns >= self._known_before_ns


def _utc(nanoseconds: int) -> datetime:
    return datetime.fromtimestamp(nanoseconds / 1e9, UTC)
