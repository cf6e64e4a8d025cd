"""Garbage collection of raw blobs: looks at all that a source finds, and deletes what nobody can need any more.

All conditions must hold, and whatever is not known speaks for keeping a blob. Ages are by the store's clock alone. One
collector or many may run at a time, beside gateways and reconcilers.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta

import msgspec

from lakehead.accept.audit import AuditTrail
from lakehead.accept.conflicts import Conflicts
from lakehead.accept.record_file import read_record
from lakehead.accept.voiding import Voiding
from lakehead.clock import Clock
from lakehead.errors import LakeheadError, Unavailable
from lakehead.ids import Ids, Random
from lakehead.maintain.blob_pages import closing
from lakehead.maintain.blob_references import BlobSource, FoundBlob
from lakehead.maintain.blob_requests import CountedStore
from lakehead.maintain.garbage_audit import audit_frames
from lakehead.maintain.garbage_orphans import GarbageSpools, Orphans
from lakehead.maintain.garbage_report import BlobDecision, BlobOutcome, GarbageReport
from lakehead.maintain.garbage_retention import FrameUser, Retention
from lakehead.maintain.garbage_settings import GarbageSettings, RunOptions
from lakehead.wire import acceptance_keys as keys
from lakehead.wire.audit_records import AuditEntry
from lakehead.wire.errors import Unreadable
from lakehead.wire.maintenance_records import CompletedAudit

RAW_BLOBS = keys.RAW_BLOBS.removesuffix("/sha256")


class GarbageRun(msgspec.Struct, frozen=True, kw_only=True):
    """What the audit trail has of one run."""

    source: str
    retry_horizon_seconds: int
    retention_seconds: int
    """-1 if blobs of accepted batches are kept for good."""

    rollback_seconds: int


class GarbageCounts(msgspec.Struct, frozen=True, kw_only=True):
    """What the audit trail has of the end of a run."""

    seen: int
    orphans: int
    retired: int
    failed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GarbageCollection:
    """Collects the garbage of one acceptance authority."""

    store: CountedStore
    voiding: Voiding
    """In the same store."""

    spools: GarbageSpools
    users: Sequence[FrameUser] = ()
    """All who read frames of accepted batches; for retention."""

    discarding_tables: Sequence[str] = ()
    name: str
    """Of this collector, in voids and other records."""

    clock: Clock
    ids: Ids
    random: Random
    settings: GarbageSettings = field(default_factory=GarbageSettings)

    async def run(self, source: BlobSource, options: RunOptions = RunOptions()) -> GarbageReport:  # noqa: B008 - frozen
        """Look at all blobs of a source, and delete those that may go. Returns what was decided.

        Raises `SpoolOutOfReach` if an open spool does not answer, `NoAuthority` and `AnotherAuthority`, and
        `Unavailable` if the store does not answer: then nothing more is deleted, and running it again is safe.
        """
        for spool in (await self.voiding.authority.read()).open_spools:
            await self.spools.check(spool)
        report = GarbageReport(source.name, options.is_dry_run)
        before = self.store.requests
        begun = await self._begin(source, options)
        report.store_now_ns = await self._stored_ns(begun.key)
        report.audited_through_ns = await self._audited_through_ns(report.store_now_ns)
        await _Run(self, options, report).all_of(source)
        report.requests = self.store.requests - before
        if report.deleted and not options.is_dry_run:
            await self._end(begun, options, report)
        return report

    async def _begin(self, source: BlobSource, options: RunOptions) -> AuditEntry:
        settings = self.settings
        return await self._trail.append(
            "dry_run_of_gc" if options.is_dry_run else "collect_garbage",
            by=options.by,
            subject=RAW_BLOBS,
            after=GarbageRun(
                source=source.name,
                retry_horizon_seconds=settings.retry_horizon // timedelta(seconds=1),
                retention_seconds=-1 if settings.retention is None else settings.retention // timedelta(seconds=1),
                rollback_seconds=settings.rollback // timedelta(seconds=1),
            ),
        )

    async def _end(self, begun: AuditEntry, options: RunOptions, report: GarbageReport) -> None:
        counts = GarbageCounts(
            seen=report.seen,
            orphans=report.count(BlobOutcome.ORPHAN),
            retired=report.count(BlobOutcome.RETIRED),
            failed=report.count(BlobOutcome.UNAVAILABLE),
        )
        await self._trail.append(
            "collected_garbage", by=options.by, subject=RAW_BLOBS, because_of=begun.key, after=counts
        )

    async def _stored_ns(self, key: str) -> int:
        """Return when an object was stored. It is that of a moment ago, so the store's clock is not before it."""
        meta = await self.store.head(key)
        if meta is None:
            raise Unavailable(f"{key} was created, and is gone. Nothing may delete it: check the bucket's policy.")
        return meta.modified_ns

    async def _audited_through_ns(self, now_ns: int) -> int | None:
        try:
            audit = await read_record(CompletedAudit, keys.COMPLETED_AUDIT, self.store)
        except Unreadable:
            return None  # whoever writes the next one says what is wrong with it
        if audit is None or audit.begun_at_unix_ns > now_ns:
            return None  # of a time that is still to come: the store's clock was set back since
        return audit.begun_at_unix_ns

    @property
    def _trail(self) -> AuditTrail:
        return AuditTrail(store=self.store, clock=self.clock, ids=self.ids, random=self.random)

    def orphans(self, *, is_dry_run: bool) -> Orphans:
        """What decides about unreferenced blobs."""
        return Orphans(
            store=self.store,
            voiding=self.voiding,
            spools=self.spools,
            conflicts=Conflicts(store=self.store, clock=self.clock, ids=self.ids, collector_id=self.name),
            now_ns=self.clock.now_ns,
            is_dry_run=is_dry_run,
        )

    def retention(self, *, is_dry_run: bool) -> Retention:
        """What decides about blobs of accepted batches."""
        return Retention(
            store=self.store,
            users=self.users,
            discarding_tables=self.discarding_tables,
            name=self.name,
            now_ns=self.clock.now_ns,
            is_dry_run=is_dry_run,
        )


@dataclass(slots=True)
class _Run:
    """One run under way."""

    gc: GarbageCollection
    options: RunOptions
    report: GarbageReport
    _orphans: list[FoundBlob] = field(default_factory=list)
    _retiring: list[FoundBlob] = field(default_factory=list)
    _decided: set[str] = field(default_factory=set)
    """Hashes of orphans that were decided about: an index may name them again. There are few."""

    async def all_of(self, source: BlobSource) -> None:
        before_ns = self.report.store_now_ns - self._horizon_ns
        blobs = source.blobs(self.gc.store, before_ns=max(0, before_ns))
        async with closing(blobs) as pages:
            async for page in pages:
                for blob in page:
                    self._sort(blob)
                self.options.looked("blobs", self.report.seen)
                if len(self._orphans) + len(self._retiring) >= self._group:
                    await self._handle()
                if self.options.is_stopped():
                    self.report.is_complete = False
                    break
        await self._handle()

    def _sort(self, blob: FoundBlob) -> None:
        """Decide about a blob, if that needs no request, or let it wait until those are handled that do."""
        self.report.seen += 1
        retention = self.gc.settings.retention
        if blob.sha256 is None:
            self._add(BlobDecision(blob.key, blob.size, BlobOutcome.NO_BLOB))
        elif blob.accepted is not None:
            if retention is None or not (self._is_past(blob, retention) or self._came_again(blob)):
                self._add(BlobDecision(blob.key, blob.size, BlobOutcome.ACCEPTED))
            else:
                self._retiring.append(blob)
        elif blob.is_quarantined:
            self._add(BlobDecision(blob.key, blob.size, BlobOutcome.QUARANTINED))
        elif self._age_ns(blob) < self._horizon_ns:
            self._add(BlobDecision(blob.key, blob.size, BlobOutcome.YOUNG))
        elif not self._is_audited(blob) and not self.options.makes_audit:
            self._add(BlobDecision(blob.key, blob.size, BlobOutcome.NOT_AUDITED))
        elif blob.sha256 not in self._decided:
            self._decided.add(blob.sha256)
            self._orphans.append(blob)

    async def _handle(self) -> None:
        """Handle what waits, unless the run is stopped."""
        orphans, retiring = self._orphans, self._retiring
        self._orphans, self._retiring = [], []
        if self.options.is_stopped():
            self.report.is_complete = self.report.is_complete and not orphans and not retiring
            return
        audited_through_ns = self.report.audited_through_ns
        if self.options.makes_audit:
            not_covered = [each for each in orphans if not self._is_audited(each)]
            kept = await self._audit([*not_covered, *retiring])
            orphans, retiring = ([each for each in some if each.key not in kept] for some in (orphans, retiring))
            audited_through_ns = self.report.store_now_ns
        await self._collect(orphans)
        await self._retire(retiring, audited_through_ns)

    async def _audit(self, blobs: Sequence[FoundBlob]) -> set[str]:
        """Audit blobs that no completed audit covers. Returns the keys of those that it has decided about."""
        if not blobs:
            return set()
        hashes = {each.sha256 for each in blobs if each.sha256 is not None}
        found = await audit_frames(
            hashes, self.gc.store, looked=lambda count: self.options.looked("manifests audited", count)
        )
        kept: set[str] = set()
        for each in blobs:
            if found.problem:
                decision = BlobDecision(each.key, each.size, BlobOutcome.NOT_AUDITED, found.problem)
            elif each.sha256 in found.quarantined:
                decision = BlobDecision(each.key, each.size, BlobOutcome.QUARANTINED)
            elif each.accepted is None and each.sha256 in found.accepted:
                decision = BlobDecision(each.key, each.size, BlobOutcome.REFERENCE_MISSING)
            else:
                continue
            self._add(decision)
            kept.add(each.key)
        return kept

    async def _collect(self, blobs: Sequence[FoundBlob]) -> None:
        orphans = self.gc.orphans(is_dry_run=self.options.is_dry_run)
        limit = asyncio.Semaphore(self.gc.settings.at_once)

        failures: list[LakeheadError] = []

        async def collect(blob: FoundBlob) -> BlobDecision | None:
            async with limit:
                if failures or self.options.is_stopped():
                    return None
                try:
                    return await orphans.collect(blob, blob.sha256 or "")
                except LakeheadError as error:
                    failures.append(error)
                    return None

        # Those that were begun end before this does, also if one fails: what an operator must mend ends the run.
        for decision in await asyncio.gather(*map(collect, blobs)):
            if decision is None:
                self.report.is_complete = False
            else:
                self._add(decision)
        if failures:
            raise failures[0]

    async def _retire(self, blobs: Sequence[FoundBlob], audited_through_ns: int | None) -> None:
        if not blobs:
            return
        settings = self.gc.settings
        retention = self.gc.retention(is_dry_run=self.options.is_dry_run)
        rest: list[FoundBlob] = []
        for each in {one.key: one for one in blobs}.values():  # an index may name a blob again
            is_past = self._is_past(each, settings.retention or timedelta.max)
            if not is_past and (kept := await retention.came_again(each)) is not None:
                self._add(kept)
            else:
                rest.append(each)
        if audited_through_ns is None:
            for each in rest:
                self._add(BlobDecision(each.key, each.size, BlobOutcome.NOT_AUDITED))
            return
        # What was put in quarantine before it landed has its reverse reference since the audit.
        through = min(self.report.store_now_ns, audited_through_ns)
        done_before_ns = through - _ns(settings.rollback)
        for decision in await retention.retire(rest, done_before_ns=done_before_ns):
            self._add(decision)

    def _add(self, decision: BlobDecision) -> None:
        self.report.add(decision)
        self.options.decided(decision)

    def _is_audited(self, blob: FoundBlob) -> bool:
        """Whether an audit began after the blob had reached the retry horizon: so missing references are believed."""
        through = self.report.audited_through_ns
        return through is not None and through > blob.modified_ns + self._horizon_ns

    def _is_past(self, blob: FoundBlob, age: timedelta) -> bool:
        return self._age_ns(blob) >= _ns(age)

    def _came_again(self, blob: FoundBlob) -> bool:
        """Whether the blob was stored after its batch was accepted: healed, or by a retry of a retired batch."""
        return blob.accepted is not None and blob.modified_ns > blob.accepted.stored_ns

    def _age_ns(self, blob: FoundBlob) -> int:
        return self.report.store_now_ns - blob.modified_ns

    @property
    def _horizon_ns(self) -> int:
        return _ns(self.gc.settings.retry_horizon)

    @property
    def _group(self) -> int:
        return self.gc.settings.audited_group if self.options.makes_audit else self.gc.settings.group


def _ns(span: timedelta) -> int:
    return span // timedelta(microseconds=1) * 1_000
