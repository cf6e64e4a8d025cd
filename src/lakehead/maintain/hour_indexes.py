"""Which entries the time indexes of an hour have: one listing for many questions, in bounded memory."""

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, field

from lakehead.maintain.blob_pages import closing
from lakehead.storage.port import Store
from lakehead.wire import acceptance_keys as keys
from lakehead.wire.batch_identity import BatchIdentity
from lakehead.wire.utc_hours import UtcHour

HEADS_FIRST = 4
"""Entries of an hour that are asked for one by one before the hour is listed: most hours of an old boot have few."""

ENTRIES_PER_HEAD = 100
"""Entries that are listed in about the time in which one is asked for. An hour that was forgotten for want of memory is
listed again only when asking one by one has taken as long as that will.
"""


@dataclass(slots=True)
class HourIndexes:
    """Knows what is in the time indexes, as of the last `forget`.

    An entry that was written since may be said to be missing, so look again before you write it.
    """

    store: Store
    most_entries: int = 1_000_000
    """Entries that are kept in memory. The hours that were asked for longest ago are forgotten first."""

    _hours: "OrderedDict[str, set[bytes] | None]" = field(default_factory=OrderedDict)
    """By folder; None for an hour with more entries than are kept."""

    _heads_left: dict[str, int] = field(default_factory=dict)
    """By folder, how many of its entries are still asked for one by one."""

    _listing: dict[str, asyncio.Lock] = field(default_factory=dict)
    _entries: int = 0

    def forget(self) -> None:
        """Forget everything, so that what is deleted by hand meanwhile is noticed."""
        self._hours.clear()
        self._heads_left.clear()
        self._entries = 0

    async def has_batch(self, hour: UtcHour, identity: BatchIdentity) -> bool:
        """Return whether an accepted batch is in the index of an hour. Raises `Unavailable`."""
        key = keys.accepted_by_time(hour, identity)
        return await self._has(f"{keys.ACCEPTED_BY_TIME}/{hour.path}", key, keys.manifest_id(keys.accepted(identity)))

    async def has_blob(self, hour: UtcHour, frame_sha256: str) -> bool:
        """Return whether a frame is in the index of an hour. Raises `Unavailable`."""
        key = keys.raw_blob_by_time(hour, frame_sha256)
        return await self._has(f"{keys.RAW_BLOBS_BY_TIME}/{hour.path}", key, frame_sha256)

    async def _has(self, folder: str, key: str, digest: str) -> bool:
        if folder not in self._hours:
            left = self._heads_left.get(folder, HEADS_FIRST)
            if left > 0:
                self._heads_left[folder] = left - 1
                return await self.store.head(key) is not None
            async with self._listing.setdefault(folder, asyncio.Lock()):
                if folder not in self._hours:
                    await self._list(folder)
            self._listing.pop(folder, None)
        entries = self._hours.get(folder)
        if entries is None:
            return await self.store.head(key) is not None
        self._hours.move_to_end(folder)
        return bytes.fromhex(digest) in entries

    async def _list(self, folder: str) -> None:
        found: set[bytes] = set()
        listing = self.store.list(folder)
        async with closing(listing) as pages:
            async for page in pages:
                found.update(name for each in page if (name := _name(each.key)) is not None)
                if len(found) > self.most_entries:
                    self._hours[folder] = None
                    return
        before = self._hours.pop(folder, None)  # an hour may be listed twice at once after it was forgotten
        self._hours[folder] = found
        self._entries += len(found) - len(before or ())
        while self._entries > self.most_entries:
            forgotten, oldest = self._hours.popitem(last=False)
            count = len(oldest or ())
            self._entries -= count
            self._heads_left[forgotten] = max(HEADS_FIRST, count // ENTRIES_PER_HEAD)


def _name(key: str) -> bytes | None:
    """The hash in the key of an entry, which is enough of it; None if it is no entry."""
    found = keys.parse_accepted_by_time(key) or keys.parse_raw_blob_by_time(key)
    return bytes.fromhex(found[1]) if found else None
