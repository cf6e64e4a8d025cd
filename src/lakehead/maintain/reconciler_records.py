"""What reconcilers tell each other, gateways and garbage collection: signs of life, how far they got, and audits."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from lakehead.accept.record_file import RecordFile
from lakehead.clock import Clock
from lakehead.errors import Unavailable
from lakehead.ids import Ids, Random
from lakehead.maintain.reconcile_report import ReconcileReport
from lakehead.storage.port import Store
from lakehead.wire import acceptance_keys as keys
from lakehead.wire.authority_records import ReconcilerHeartbeat
from lakehead.wire.maintenance_records import ColdScan, CompletedAudit, ReconcilerCheckpoint
from lakehead.wire.stored_record import VersionedRecord

R = TypeVar("R", bound=VersionedRecord)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcilerRecords:
    """The records of an authority's reconcilers. Several may write them: each is changed by compare-and-set.

    Every method may raise `Unavailable` and `Unreadable`, and those that write `OutcomeUnknown`.
    """

    store: Store
    clock: Clock
    ids: Ids
    random: Random
    reconciler_id: str

    async def beat(self) -> None:
        """Give a sign of life."""

        def change(_: ReconcilerHeartbeat | None) -> ReconcilerHeartbeat:
            now = self.clock.now_ns()
            return ReconcilerHeartbeat(reconciler_id=self.reconciler_id, beat_at_unix_ns=now, version=1)

        await self._file(ReconcilerHeartbeat, keys.RECONCILER_HEARTBEAT).update(change)

    async def store_time_ns(self) -> int:
        """Give a sign of life, and return when it was stored, by the store's clock."""
        await self.beat()
        meta = await self.store.head(keys.RECONCILER_HEARTBEAT)
        if meta is None:
            raise Unavailable(f"{keys.RECONCILER_HEARTBEAT} was stored, and is gone. Nothing may delete it.")
        return meta.modified_ns

    async def checkpoint(self) -> ReconcilerCheckpoint | None:
        """Return how far reconcilers have got; None if there never was one."""
        return await self._file(ReconcilerCheckpoint, keys.RECONCILER_CHECKPOINT).read()

    async def move_checkpoint(self, through_unix_ns: int) -> None:
        """Note that all hours before a time were looked at. It never moves back."""

        def change(before: ReconcilerCheckpoint | None) -> ReconcilerCheckpoint:
            if before is None:
                return ReconcilerCheckpoint(reconciled_through_unix_ns=through_unix_ns, version=1)
            if before.reconciled_through_unix_ns >= through_unix_ns:
                return before
            return msgspec.structs.replace(before, reconciled_through_unix_ns=through_unix_ns)

        await self._change_checkpoint(change)

    async def begin_cold_scan(self) -> ColdScan:
        """Return the scan that is under way, or begin one: from the time at which this is called, by the store."""
        found = await self.checkpoint()
        if found is not None and found.cold_scan is not None:
            return found.cold_scan
        began = ColdScan(begun_at_unix_ns=await self.store_time_ns())

        def change(before: ReconcilerCheckpoint | None) -> ReconcilerCheckpoint:
            if before is None:
                return ReconcilerCheckpoint(reconciled_through_unix_ns=0, cold_scan=began, version=1)
            # If another reconciler has begun one meanwhile, both go on with that.
            return before if before.cold_scan is not None else msgspec.structs.replace(before, cold_scan=began)

        stored = await self._change_checkpoint(change)
        return stored.cold_scan or began

    async def save_cold_scan(self, scan: ColdScan) -> None:
        """Note how far a scan is, unless it has ended meanwhile, or another reconciler is further with the same."""

        def change(before: ReconcilerCheckpoint | None) -> ReconcilerCheckpoint:
            at = before.cold_scan if before is not None else None
            if before is None or at is None:
                return before or ReconcilerCheckpoint(reconciled_through_unix_ns=0, version=1)
            if at.begun_at_unix_ns != scan.begun_at_unix_ns or at.last_key >= scan.last_key:
                return before
            failed = max(at.incomplete, scan.incomplete)
            return msgspec.structs.replace(before, cold_scan=msgspec.structs.replace(scan, incomplete=failed))

        await self._change_checkpoint(change)

    async def end_cold_scan(self, scan: ColdScan) -> None:
        """Note that a scan has ended."""

        def change(before: ReconcilerCheckpoint | None) -> ReconcilerCheckpoint:
            if before is None:
                return ReconcilerCheckpoint(reconciled_through_unix_ns=0, version=1)
            if before.cold_scan is None or before.cold_scan.begun_at_unix_ns != scan.begun_at_unix_ns:
                return before
            return msgspec.structs.replace(before, cold_scan=None)

        await self._change_checkpoint(change)

    async def completed_audit(self) -> CompletedAudit | None:
        """Return the last complete audit; None if there was none."""
        return await self._file(CompletedAudit, keys.COMPLETED_AUDIT).read()

    async def complete_audit(self, scan: ColdScan, report: ReconcileReport) -> None:
        """Note that a scan of everything is complete. One that began later stays."""
        ended = await self.store_time_ns()
        audit = CompletedAudit(
            begun_at_unix_ns=scan.begun_at_unix_ns,
            ended_at_unix_ns=max(ended, scan.begun_at_unix_ns),
            accepted=scan.accepted,
            voids=scan.voids,
            quarantined=scan.quarantined,
            repaired=scan.repaired,
            problems=sum(report.wrong.values()),
            audited_by=self.reconciler_id,
            version=1,
        )

        def change(before: CompletedAudit | None) -> CompletedAudit:
            return before if before is not None and before.begun_at_unix_ns >= audit.begun_at_unix_ns else audit

        await self._file(CompletedAudit, keys.COMPLETED_AUDIT).update(change)

    async def _change_checkpoint(
        self, change: Callable[[ReconcilerCheckpoint | None], ReconcilerCheckpoint]
    ) -> ReconcilerCheckpoint:
        return await self._file(ReconcilerCheckpoint, keys.RECONCILER_CHECKPOINT).update(change)

    def _file(self, kind: type[R], key: str) -> RecordFile[R]:
        return RecordFile(kind=kind, key=key, store=self.store, clock=self.clock, ids=self.ids, random=self.random)
