"""Compares what was accepted with everything that should follow from it. Nothing is written.

`accepted/v1/` is scanned by its keys. Indexes are compared with that and never asked what was accepted, so an audit
finds what they lack. Memory holds a page of batches and bounded listings; with `deep` also ranges of sequence numbers
for each boot.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeVar

from lakehead.accept.accepted_scan import ScannedIdentity, read_identities, scan_identities
from lakehead.accept.batch_kind import batch_kind
from lakehead.accept.s3_object_versions import ObjectVersion, VersionsUnread
from lakehead.clock import Clock
from lakehead.maintain.acceptance_audit_blobs import BlobState, FrameCheck
from lakehead.maintain.acceptance_audit_dangling import DanglingEntries
from lakehead.maintain.acceptance_audit_indexes import IndexCheck
from lakehead.maintain.acceptance_audit_landed import LandedCheck
from lakehead.maintain.acceptance_audit_numbers import AcceptedNumbers, Boot, BootSequences
from lakehead.maintain.acceptance_audit_report import AuditReport, FindingKind, numbers_of
from lakehead.storage.port import Store
from lakehead.wire import acceptance_keys as keys
from lakehead.wire.acceptance_records import IdentityManifest, IdentityVoid
from lakehead.wire.conflict_records import OverlapManifest, QuarantineManifest
from lakehead.wire.errors import Unreadable
from lakehead.wire.key_parts import agent_part
from lakehead.wire.record_schemas import FrameKind
from lakehead.wire.spans import Spans, without

if TYPE_CHECKING:
    from lakehead.maintain.acceptance_audit_rows import TableRows

AT_ONCE = 32
"""Batches that are looked at concurrently."""

PAGE = 1_000
"""Batches that are held in memory."""

MOST_RECORDS = 1 << 24
"""No accepted batch has more records: it bounds how far before a sequence number those begin that have it."""

QuarantineKind: TypeAlias = type[QuarantineManifest] | type[OverlapManifest]
T = TypeVar("T")
R = TypeVar("R")


class VersionListing(Protocol):
    """Lists the versions of objects, if the store has them: `S3ObjectVersions`."""

    def list(self, folder: str) -> AsyncIterator[Sequence[ObjectVersion]]:
        """Yield pages of versions and delete markers in a folder."""
        ...


class RowReader(Protocol):
    """Reads which records are in the table of a kind. It blocks."""

    def __call__(self, kind: FrameKind, /, *, progress: Callable[[int], object]) -> "TableRows":
        """Read them all; `progress` is called with the number of rows so far. Raises `RowsUnread`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditSettings:
    """What an audit looks at."""

    deep: bool = False
    """Whether frames, index entries and the rows of tables are read, and not only looked for."""

    agents: tuple[str, ...] = ()
    """Only these agents; none: all."""

    grace_seconds: float = 900.0
    """How long after acceptance index entries and landings may be missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditParts:
    """What an audit reads besides the store of the authority. What is None is not compared."""

    landed: LandedCheck | None = None
    rows: RowReader | None = None
    versions: VersionListing | None = None
    not_checked: tuple[str, ...] = ()
    """What is not compared, and why, for people."""


@dataclass(slots=True)
class AcceptanceAudit:
    """One audit. `run` it once."""

    store: Store
    clock: Clock
    settings: AuditSettings = field(default_factory=AuditSettings)
    parts: AuditParts = field(default_factory=AuditParts)
    progress: Callable[[str, AuditReport], object] = lambda _doing, _report: None
    """Called after every page, with what is looked at."""

    report: AuditReport = field(init=False)
    _indexes: IndexCheck = field(init=False)
    _blobs: FrameCheck = field(init=False)
    _boots: BootSequences = field(init=False)
    _numbers: AcceptedNumbers = field(default_factory=AcceptedNumbers)
    _tables: frozenset[FrameKind] = frozenset()
    """The kinds whose tables are compared."""

    def __post_init__(self) -> None:
        """Begin with an empty report."""
        settings, parts = self.settings, self.parts
        self.report = AuditReport(
            begun_at_unix_ns=self.clock.now_ns(),
            deep=settings.deep,
            agents=settings.agents,
            not_checked=list(parts.not_checked),
        )
        self._indexes = IndexCheck(self.store, settings.deep)
        self._blobs = FrameCheck(self.store, settings.deep)
        self._boots = BootSequences(self.report)
        self._tables = frozenset(parts.landed.landed.tables) if parts.landed else frozenset()

    async def run(self) -> AuditReport:
        """Look at everything. Raises `Unavailable` if the store or the state does not answer: then nothing is told."""
        began = self.clock.monotonic()
        for folder in self._folders(keys.ACCEPTED):
            is_empty = True
            async for identities in scan_identities(self.store, folder=folder, page=PAGE):
                is_empty = is_empty and not identities
                await self._look_at(await read_identities(identities, self.store))
                self.progress("accepted batches", self.report)
            if is_empty and self.settings.agents:
                self._not_checked(f"{folder}/: nothing was accepted of this agent. Is its name right?")
        self._boots.finish()
        await self._look_at_quarantine()
        if self.settings.agents:
            self.report.not_checked.append("Index entries that point to nothing: entries do not name their agents.")
        else:
            await DanglingEntries(self.store, self.report, lambda: self.progress("index entries", self.report)).look()
        await self._look_at_versions()
        if self.settings.deep and self.parts.rows is not None:
            await self._look_at_rows(self.parts.rows)
        self.report.seconds = self.clock.monotonic() - began
        return self.report

    def _folders(self, root: str) -> Sequence[str]:
        return [f"{root}/{agent_part(agent)}" for agent in sorted(set(self.settings.agents))] or [root]

    async def _look_at(self, page: Sequence[ScannedIdentity]) -> None:
        manifests: list[IdentityManifest] = []
        for each in page:
            if isinstance(each.record, IdentityVoid):
                self.report.voids += 1
                self._boots.void(each.identity)
                continue
            self._boots.accepted(each.identity)
            if each.record is not None:
                self.report.saw_accepted(each.record.accepted_at_unix_ns, each.record.frame_bytes)
                manifests.append(each.record)
                continue
            kind = FindingKind.UNREADABLE if each.problem else FindingKind.ACCEPTED_GONE
            self.report.add(kind, keys.accepted(each.identity), each.problem)
            if self.settings.deep:
                self._numbers.allow(each.identity, None)
        await self._indexes.prepare(manifests)
        looked = await _each(self._look_at_batch, manifests)
        await self._look_at_landings(manifests, looked)

    async def _look_at_batch(self, manifest: IdentityManifest) -> tuple[FrameKind | None, bool]:
        """Look at the frame and the index entries of a batch. Returns what its records are, and whether it is old."""
        is_old, add = await self._is_old(manifest), self.report.add
        blob = await self._blobs.state(manifest)
        match blob:
            case BlobState.MISSING:
                add(FindingKind.BLOB_MISSING, manifest.raw_blob_key, f"accepted as {manifest.key}")
            case BlobState.WRONG_SIZE:
                add(FindingKind.BLOB_SIZE, manifest.raw_blob_key, f"accepted as {manifest.key}")
            case BlobState.CORRUPT:
                add(FindingKind.BLOB_CORRUPT, manifest.raw_blob_key, f"accepted as {manifest.key}")
            case BlobState.RETIRED:
                self.report.retired += 1
            case BlobState.RIGHT:
                pass
        if is_old:
            self._tell(await self._indexes.is_by_time(manifest), FindingKind.NOT_BY_TIME, manifest.key)
            self._tell(await self._indexes.is_by_blob(manifest), FindingKind.NOT_BY_BLOB, manifest.key)
        else:
            self.report.pending += 1
        if blob is not BlobState.RETIRED:
            self._tell(await self._indexes.is_blob_by_time(manifest), FindingKind.BLOB_NOT_BY_TIME, manifest.key)
        return (await batch_kind(manifest, self.store) if self.parts.landed is not None else None), is_old

    def _tell(self, answer: bool | None, kind: FindingKind, key: str) -> None:  # noqa: FBT001 - what was found
        if answer is None:
            self.report.add(FindingKind.WRONG_ENTRY, key, kind.value.removeprefix("not_in_").replace("_", "-"))
        elif not answer:
            self.report.add(kind, key)

    async def _look_at_landings(
        self, manifests: Sequence[IdentityManifest], looked: Sequence[tuple[FrameKind | None, bool]]
    ) -> None:
        """Compare the batches of a page with the state."""
        if self.parts.landed is None:
            return
        old: dict[FrameKind, list[IdentityManifest]] = {}
        for manifest, (kind, is_old) in zip(manifests, looked, strict=True):
            if self.settings.deep:
                self._numbers.allow(manifest.identity, kind)
            if kind is None:
                continue  # its frame is missing or damaged, which is told
            if kind not in self._tables:
                self._not_checked(f"Whether {kind.word} have landed: no pipeline lands them.")
            elif is_old:
                old.setdefault(kind, []).append(manifest)
        for kind, theirs in old.items():
            landed = await self.parts.landed.check(kind, [each.identity for each in theirs], self.report)
            if self.settings.deep:
                for identity, spans in landed.items():
                    self._numbers.require(identity, kind, spans)

    async def _is_old(self, manifest: IdentityManifest) -> bool:
        """Whether what follows acceptance must be there. Of a gateway whose clock is ahead the store's is asked."""
        at_ns = manifest.accepted_at_unix_ns
        if at_ns > self.clock.now_ns() and (stored := await self.store.head(manifest.key)) is not None:
            at_ns = stored.modified_ns
        return at_ns <= self.report.begun_at_unix_ns - self.settings.grace_seconds * 1e9

    def _not_checked(self, what: str) -> None:
        if what not in self.report.not_checked:
            self.report.not_checked.append(what)

    async def _look_at_quarantine(self) -> None:
        roots: Mapping[str, QuarantineKind] = {
            keys.IDENTITY_CONFLICTS: QuarantineManifest,
            keys.OVERLAPS: OverlapManifest,
        }
        for root, kind in roots.items():
            for folder in self._folders(root):
                async for page in self.store.list(folder):
                    await _each(partial(self._look_at_quarantined, kind), [each.key for each in page])
                    self.progress("quarantined frames", self.report)

    async def _look_at_quarantined(self, kind: QuarantineKind, key: str) -> None:
        stored = await self.store.get(key, end=kind.MAX_BYTES + 1)
        if stored is None:
            return
        self.report.quarantined += 1
        try:
            manifest = kind.decode(stored.body, key)
        except Unreadable as error:
            self.report.add(FindingKind.UNREADABLE, key, str(error))
            return
        answer = await self._indexes.is_quarantine_by_blob(manifest)
        self._tell(answer, FindingKind.NOT_QUARANTINE_BY_BLOB, key)
        if isinstance(manifest, OverlapManifest):
            return  # it is accepted too, and its frame was looked for
        if await self.store.head(manifest.submitted_raw_blob_key) is None:
            self.report.add(FindingKind.BLOB_MISSING, manifest.submitted_raw_blob_key, f"in quarantine as {key}")

    async def _look_at_versions(self) -> None:
        if self.parts.versions is None:
            return
        try:
            for folder in self._folders(keys.ACCEPTED):
                async for page in self.parts.versions.list(folder):
                    for each in page:
                        self._look_at_version(each)
                    self.progress("versions", self.report)
        except VersionsUnread as error:
            self._not_checked(f"Delete markers and older versions below accepted/v1/: {error}")

    def _look_at_version(self, version: ObjectVersion) -> None:
        detail = f"version {version.version_id} of {version.modified_at:%Y-%m-%d %H:%M:%S}"
        if version.is_delete_marker:
            self.report.add(FindingKind.DELETE_MARKER, version.key, detail)
        elif not version.is_latest:
            self.report.add(FindingKind.OLDER_VERSION, version.key, detail)

    async def _look_at_rows(self, read: RowReader) -> None:
        """Compare the tables, as they are after the scan, with what the scan has found."""
        from lakehead.maintain.acceptance_audit_rows import RowsUnread, compare_rows  # noqa: PLC0415 - loads PyIceberg

        for kind in sorted(self._tables):
            before, loop = self.report.rows, asyncio.get_running_loop()

            def went_on(rows: int, before: int = before, loop: asyncio.AbstractEventLoop = loop) -> None:
                loop.call_soon_threadsafe(self.progress, f"rows ({before + rows:,})", self.report)

            try:
                rows = await asyncio.to_thread(read, kind, progress=went_on)
            except RowsUnread as error:
                self.report.add(FindingKind.UNREADABLE, f"the table of {kind.word}", str(error))
                continue
            if self.settings.agents:
                rows = rows.only(self.settings.agents)
            unknown = compare_rows(kind, rows, self._numbers, self.report)
            for boot, spans in unknown.items():
                await self._look_at_unknown(kind, boot, spans)

    async def _look_at_unknown(self, kind: FrameKind, boot: Boot, spans: Spans) -> None:
        """Tell rows that no accepted batch has, nor one that was accepted since the scan."""
        folder, left = keys.accepted_folder(*boot), spans
        start_after = f"{folder}/{max(0, spans[0][0] - MOST_RECORDS):020}"
        async for identities in scan_identities(self.store, folder=folder, start_after=start_after, page=PAGE):
            near = [each for each in identities if each.seq_start < spans[-1][1] and each.seq_end >= spans[0][0]]
            for each in await read_identities(near, self.store):
                if isinstance(each.record, IdentityManifest) and each.record.kind in ("", kind.word):
                    left = without(left, [(each.identity.seq_start, each.identity.seq_end + 1)])
            if not left or identities[-1].seq_start >= spans[-1][1]:
                break
        if left:
            self.report.add(FindingKind.ROWS_UNKNOWN, numbers_of(*boot, left), f"in the table of {kind.word}")


async def _each(work: Callable[[T], Awaitable[R]], items: Iterable[T]) -> list[R]:
    """Do the same for each item, some at once. Returns the results in their order."""
    limit = asyncio.Semaphore(AT_ONCE)

    async def one(item: T) -> R:
        async with limit:
            return await work(item)

    return await asyncio.gather(*map(one, items))
