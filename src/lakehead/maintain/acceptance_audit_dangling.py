"""Index entries that point to nothing. They never decide what is audited.

Most are harmless. But an entry of an accepted batch is written after its identity manifest: where that is gone, it was
deleted, or a restore has not brought it back.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from lakehead.accept.accepted_scan import read_identity
from lakehead.maintain.acceptance_audit_report import AuditReport, FindingKind
from lakehead.storage.port import Store
from lakehead.wire import acceptance_keys as keys
from lakehead.wire.acceptance_records import IdentityManifest
from lakehead.wire.batch_identity import BatchIdentity
from lakehead.wire.errors import Unreadable
from lakehead.wire.index_records import AcceptedByTime, QuarantineByBlob, RawBlobByTime

Points = Callable[[str], Awaitable[FindingKind | None]]
"""Looks at the key of an entry. Returns what is wrong, or None if it points to something."""

AT_ONCE = 32
"""Entries that are looked at concurrently."""


@dataclass(frozen=True, slots=True)
class DanglingEntries:
    """Looks at every entry of the derived indexes. Raises `Unavailable`."""

    store: Store
    report: AuditReport
    progress: Callable[[], object]

    async def look(self) -> None:
        """Look at all indexes, a page at a time."""
        for folder, points in (
            (keys.ACCEPTED_BY_TIME, self._accepted_by_time),
            (keys.ACCEPTED_BY_BLOB, self._accepted_by_blob),
            (keys.RAW_BLOBS_BY_TIME, self._raw_blob_by_time),
            (keys.QUARANTINE_BY_BLOB, self._quarantine_by_blob),
        ):
            await self._look(folder, points)

    async def _look(self, folder: str, points: Points) -> None:
        async for page in self.store.list(folder):
            names = [each.key for each in page]
            for first in range(0, len(names), AT_ONCE):
                await self._look_at(names[first : first + AT_ONCE], points)
            self.report.index_entries += len(names)
            self.progress()

    async def _look_at(self, some: Sequence[str], points: Points) -> None:
        answers = await asyncio.gather(*(self._answer(key, points) for key in some))
        for key, answer in zip(some, answers, strict=True):
            if isinstance(answer, Unreadable):
                self.report.add(FindingKind.UNREADABLE, key, str(answer))
            elif answer is not None:
                self.report.add(answer, key)

    async def _answer(self, key: str, points: Points) -> FindingKind | Unreadable | None:
        try:
            return await points(key)
        except Unreadable as error:
            return error

    async def _accepted_by_time(self, key: str) -> FindingKind | None:
        stored = await self.store.get(key, end=AcceptedByTime.MAX_BYTES + 1)
        if stored is None:
            return None  # deleted meanwhile
        entry = AcceptedByTime.decode(stored.body, key)
        return await self._of_accepted(entry.identity, entry.frame_sha256)

    async def _accepted_by_blob(self, key: str) -> FindingKind | None:
        found = keys.parse_accepted_by_blob(key)
        return FindingKind.DANGLING if found is None else await self._of_accepted(found[1], found[0])

    async def _raw_blob_by_time(self, key: str) -> FindingKind | None:
        found = keys.parse_raw_blob_by_time(key)
        if found is None:
            return FindingKind.DANGLING
        if await self.store.head(keys.raw_blob(found[1])) is not None:
            return None
        stored = await self.store.get(key, end=RawBlobByTime.MAX_BYTES + 1)
        if stored is None:
            return None  # deleted meanwhile
        identity = RawBlobByTime.decode(stored.body, key).identity
        return await self._dangling_without(keys.retired(identity))

    async def _quarantine_by_blob(self, key: str) -> FindingKind | None:
        stored = await self.store.get(key, end=QuarantineByBlob.MAX_BYTES + 1)
        if stored is None:
            return None  # deleted meanwhile
        return await self._dangling_without(QuarantineByBlob.decode(stored.body, key).quarantine_manifest_key)

    async def _dangling_without(self, key: str) -> FindingKind | None:
        return FindingKind.DANGLING if await self.store.head(key) is None else None

    async def _of_accepted(self, identity: BatchIdentity, frame_sha256: str) -> FindingKind | None:
        found = await read_identity(identity, self.store)
        if found.problem:
            return None  # what it points to is told by itself
        if not isinstance(found.record, IdentityManifest):
            return FindingKind.ACCEPTED_GONE
        return None if found.record.frame_sha256 == frame_sha256 else FindingKind.DANGLING
