"""Whether accepted and quarantined batches have their entries in the derived indexes.

What should be there is known from the batches alone. Entries of an hour are listed where many are looked for, and
asked for one by one elsewhere; what a listing lacks is asked for once more, since it may have been written meanwhile.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

from lakehead.maintain.blob_pages import closing
from lakehead.storage.port import Store
from lakehead.wire import acceptance_keys as keys
from lakehead.wire.acceptance_records import IdentityManifest
from lakehead.wire.conflict_records import OverlapManifest, QuarantineManifest
from lakehead.wire.errors import InvalidKeyPart, Unreadable
from lakehead.wire.index_records import AcceptedByBlob, AcceptedByTime, QuarantineByBlob, RawBlobByTime
from lakehead.wire.stored_record import StoredRecord
from lakehead.wire.utc_hours import UtcHour

LISTED_FROM = 16
"""Entries of one hour that are looked for together from which on the hour is listed: S3 takes as much for a listing as
for a dozen other requests."""

MOST_IN_AN_HOUR = 20_000
"""Entries up to which an hour is listed whole. Those of a larger hour are asked for one by one."""

MOST_KEPT = 200_000
"""Entries of hours that are remembered, at most: the hours that were not used for longest are forgotten."""

R = TypeVar("R", bound=StoredRecord)


@dataclass(slots=True)
class ListedHours:
    """Which entries hours of one index have, of the last hours that were listed. Memory is bounded."""

    store: Store
    folder: str
    most_in_an_hour: int = MOST_IN_AN_HOUR
    most_kept: int = MOST_KEPT
    _hours: OrderedDict[UtcHour, frozenset[str] | None] = field(default_factory=OrderedDict)
    """The last parts of the keys by hour; None for an hour that has too many."""

    async def prepare(self, hours: Iterable[UtcHour]) -> None:
        """List the hours of which many entries are looked for: each is given as often as one is."""
        for hour, wanted in Counter(hours).items():
            if hour in self._hours:
                self._hours.move_to_end(hour)
            elif wanted >= LISTED_FROM:
                self._hours[hour] = await self._listed(hour)
                while len(self._hours) > 1 and self.kept > self.most_kept:
                    self._hours.popitem(last=False)

    @property
    def kept(self) -> int:
        """How many entries are remembered."""
        return sum(len(names) + 1 if names is not None else 1 for names in self._hours.values())

    def has(self, hour: UtcHour, key: str) -> bool:
        """Whether an entry was seen. False: ask for it."""
        names = self._hours.get(hour)
        return names is not None and key.rpartition("/")[2] in names

    async def _listed(self, hour: UtcHour) -> frozenset[str] | None:
        names: set[str] = set()
        listing = self.store.list(f"{self.folder}/{hour.path}")
        async with closing(listing) as pages:
            async for page in pages:
                names.update(each.key.rpartition("/")[2] for each in page)
                if len(names) > self.most_in_an_hour:
                    return None
        return frozenset(names)


@dataclass(slots=True)
class IndexCheck:
    """Looks for entries, and with `deep` also at what they say. Every method may raise `Unavailable`."""

    store: Store
    deep: bool = False
    by_time: ListedHours = field(init=False)
    blobs_by_time: ListedHours = field(init=False)

    def __post_init__(self) -> None:
        """Begin with nothing listed."""
        self.by_time = ListedHours(self.store, keys.ACCEPTED_BY_TIME)
        self.blobs_by_time = ListedHours(self.store, keys.RAW_BLOBS_BY_TIME)

    async def prepare(self, manifests: Sequence[IdentityManifest]) -> None:
        """List what is needed for many of these batches."""
        if not self.deep:
            hours = [manifest.hour for manifest in manifests]
            await self.by_time.prepare(hours)
            await self.blobs_by_time.prepare(hours)

    async def is_by_time(self, manifest: IdentityManifest) -> bool | None:
        """Whether a batch is in `accepted-by-time/v1/`; None if its entry there says something else."""
        entry = AcceptedByTime.of(manifest)
        return self.by_time.has(manifest.hour, entry.key) or await self._is(entry, entry.key)

    async def is_by_blob(self, manifest: IdentityManifest) -> bool | None:
        """Whether a batch is in `accepted-by-blob/v1/`; None if its entry there says something else."""
        entry = AcceptedByBlob.of(manifest)
        return await self._is(entry, entry.key)

    async def is_blob_by_time(self, manifest: IdentityManifest) -> bool | None:
        """Whether a frame is in `raw-blobs-by-time/v1/`, in the hour of acceptance or the one before, in which its
        upload may have begun; None if its entry says something else.
        """
        entry = RawBlobByTime.of(manifest.identity, manifest.frame_sha256, manifest.frame_bytes)
        hours = [manifest.hour]
        with suppress(InvalidKeyPart):  # for the first hour that there is
            hours.append(UtcHour(manifest.hour.number - 1))
        if any(self.blobs_by_time.has(hour, entry.key_in(hour)) for hour in hours):
            return True
        answers = [await self._is(entry, entry.key_in(hour)) for hour in hours]
        return True if True in answers else None if None in answers else False

    async def is_quarantine_by_blob(self, manifest: QuarantineManifest | OverlapManifest) -> bool | None:
        """Whether a quarantined frame is in `quarantine-by-blob/v1/`; None if its entry names no quarantine of it."""
        entry = QuarantineByBlob.of(manifest)
        if not self.deep:
            return await self._is(entry, entry.key)
        # A frame that is in quarantine for two reasons has one entry, of the reason that was first.
        found = await self._read(QuarantineByBlob, entry.key)
        return found if found is None or isinstance(found, bool) else found.identity == entry.identity

    async def _is(self, entry: StoredRecord, key: str) -> bool | None:
        if not self.deep:
            return await self.store.head(key) is not None
        found = await self._read(type(entry), key)
        return found if found is None or isinstance(found, bool) else (True if found == entry else None)

    async def _read(self, kind: type[R], key: str) -> R | bool | None:
        """The entry at a key; False if there is none, and None if it cannot be read."""
        stored = await self.store.get(key, end=kind.MAX_BYTES + 1)
        if stored is None:
            return False
        try:
            return kind.decode(stored.body, key)
        except Unreadable:
            return None
