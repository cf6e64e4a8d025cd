"""One accepted batch, or one frame in quarantine: what is derived from it is there, or is written.

Each step looks before it writes, and writes what everybody else would write: so it may be repeated, by any number of
reconcilers at once.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

import msgspec

from lakehead.accept.accepted_scan import read_identity
from lakehead.accept.record_file import RecordFile
from lakehead.clock import Clock
from lakehead.errors import Misconfigured, OutcomeUnknown, Unavailable
from lakehead.ids import Ids, Random
from lakehead.maintain.blob_check import BlobCheck
from lakehead.maintain.hour_indexes import HourIndexes
from lakehead.maintain.open_repairs import OpenRepairs
from lakehead.maintain.reconcile_report import ActionKind, ProblemKind, ReconcileReport
from lakehead.retry import Backoff
from lakehead.storage.port import Created, Store
from lakehead.wire import acceptance_keys as keys
from lakehead.wire.acceptance_records import IdentityManifest, IdentityVoid
from lakehead.wire.batch_identity import BatchIdentity
from lakehead.wire.errors import Unreadable
from lakehead.wire.index_records import AcceptedByBlob, AcceptedByTime, QuarantineByBlob, RawBlobByTime
from lakehead.wire.maintenance_records import BatchRepair, BlobProblem
from lakehead.wire.utc_hours import UtcHour

RETRIES = Backoff(attempts=3, first_seconds=0.2, cap_seconds=2.0)
"""How often one batch is looked at while the store does not answer."""

T = TypeVar("T")
R = TypeVar("R")


class Standing(Enum):
    """What stands at the key of an identity."""

    SOUND = "sound"
    """A manifest, and its frame is right."""

    RETIRED = "retired"
    """A manifest, and its frame was deleted after its time: it can land nowhere any more."""

    DAMAGED = "damaged"
    """A manifest, and its frame is missing or corrupt."""

    OUT_OF_REACH = "out_of_reach"
    """A manifest, whose index entries are there, and a frame that cannot be read: nobody knows whether it is right."""

    VOID = "void"
    ABSENT = "absent"
    UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True)
class LookedAt:
    """An identity that was looked at."""

    identity: BatchIdentity
    standing: Standing
    manifest: IdentityManifest | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchReconciler:
    """Repairs what is derived from single batches."""

    store: Store
    clock: Clock
    ids: Ids
    random: Random
    reconciler_id: str
    blobs: BlobCheck
    hours: HourIndexes
    repairs: OpenRepairs
    is_dry_run: bool = False
    """Whether what would be written is told, and nothing is written."""

    async def reconcile(self, identity: BatchIdentity, report: ReconcileReport) -> LookedAt:
        """Look at what stands at an identity's key, and repair what is derived from it.

        Raises `Unavailable` and `OutcomeUnknown`; then it has to be looked at again.
        """
        scanned = await read_identity(identity, self.store)
        if scanned.problem:
            report.found(ProblemKind.UNREADABLE, keys.accepted(identity), scanned.problem)
            return LookedAt(identity, Standing.UNREADABLE)
        match scanned.record:
            case None:
                report.absent += 1
                return LookedAt(identity, Standing.ABSENT)
            case IdentityVoid():
                report.voids += 1
                return LookedAt(identity, Standing.VOID)
            case IdentityManifest() as manifest:
                await self._indexes(manifest, report)
                try:
                    problem = await self._problem(manifest)
                except (Unavailable, Misconfigured) as error:
                    text = f"The frame {manifest.raw_blob_key} of {manifest.key} cannot be read. {error}"
                    report.found(ProblemKind.OUT_OF_REACH, manifest.key, text)
                    return LookedAt(identity, Standing.OUT_OF_REACH, manifest)
                is_retired = problem is not None and await self.store.head(keys.retired(identity)) is not None
                await self._repair(manifest, None if is_retired else problem, report)
                report.accepted += 1
                if is_retired:
                    return LookedAt(identity, Standing.RETIRED, manifest)
                return LookedAt(identity, Standing.DAMAGED if problem else Standing.SOUND, manifest)

    async def reconcile_quarantine(self, key: str, report: ReconcileReport) -> None:
        """Write the reverse reference of the quarantine manifest at a key, if it is missing.

        The key says all that is in it, so it is written also if the manifest cannot be read. Raises `Unavailable` and
        `OutcomeUnknown`.
        """
        found = keys.parse_identity_conflict(key) or keys.parse_overlap(key)
        if found is None:
            return
        entry = QuarantineByBlob(frame_sha256=found[1], quarantine_manifest_key=key)
        await self._create(ActionKind.QUARANTINE_BY_BLOB, entry.key, entry.encode, report)
        report.quarantined += 1

    async def _problem(self, manifest: IdentityManifest) -> BlobProblem | None:
        """Return what is wrong with the frame. Raises `Unavailable`, and `Misconfigured` if it may not be read."""
        return await RETRIES.call(lambda: self.blobs.problem(manifest), self.clock, self.random, on=(Unavailable,))

    async def _indexes(self, manifest: IdentityManifest, report: ReconcileReport) -> None:
        hour, identity = manifest.hour, manifest.identity
        if not await self.hours.has_batch(hour, identity):
            by_time = AcceptedByTime.of(manifest)
            await self._create(ActionKind.ACCEPTED_BY_TIME, by_time.key, by_time.encode, report)
        by_blob = keys.accepted_by_blob(manifest.frame_sha256, identity)
        await self._create(ActionKind.ACCEPTED_BY_BLOB, by_blob, lambda: AcceptedByBlob.of(manifest).encode(), report)
        # It was written when the upload began: in this hour, or in the one before.
        sha256 = manifest.frame_sha256
        if not await self.hours.has_blob(hour, sha256) and not (
            hour.number > 0 and await self.hours.has_blob(UtcHour(hour.number - 1), sha256)
        ):
            blob = RawBlobByTime.of(identity, sha256, manifest.frame_bytes)
            await self._create(ActionKind.RAW_BLOB_BY_TIME, blob.key_in(hour), blob.encode, report)

    async def _create(self, kind: ActionKind, key: str, encode: Callable[[], bytes], report: ReconcileReport) -> None:
        if await self.store.head(key) is not None:
            return
        if self.is_dry_run or isinstance(await self.store.create(key, encode()), Created):
            report.did(kind, key)

    async def _repair(self, manifest: IdentityManifest, problem: BlobProblem | None, report: ReconcileReport) -> None:
        """Open the record of a repair, or mark one as healed. One that says it already is left as it is."""
        if problem is not None:
            kind = ProblemKind(problem)
            report.found(kind, manifest.key, f"The frame {manifest.raw_blob_key} of {manifest.key} is {problem}.")
        elif not self.repairs.is_open(manifest.identity):
            return
        change = self._change(manifest, problem)
        file = RecordFile(
            kind=BatchRepair,
            key=keys.repair(manifest.identity),
            store=self.store,
            clock=self.clock,
            ids=self.ids,
            random=self.random,
        )
        try:
            before = await file.read()
            is_gone = before is None and problem is None  # it was deleted by hand, so there is nothing to say
            if is_gone or (before is not None and change(before) is before):
                self.repairs.changed(manifest.identity, problem)
                return
            if not self.is_dry_run:
                await file.update(change)
        except Unreadable as error:
            report.found(ProblemKind.UNREADABLE, file.key, str(error))
            return
        report.did(ActionKind.REPAIR_OPENED if problem else ActionKind.REPAIR_HEALED, file.key)
        if not self.is_dry_run:
            self.repairs.changed(manifest.identity, problem)

    def _change(
        self, manifest: IdentityManifest, problem: BlobProblem | None
    ) -> Callable[[BatchRepair | None], BatchRepair]:
        now = self.clock.now_ns()

        def opened(before: BatchRepair | None) -> BatchRepair:
            found = BatchRepair.of(manifest, problem or "missing", found_at_unix_ns=now, found_by=self.reconciler_id)
            if before is None or before.state == "healed":
                return found
            if before.problem == problem:
                return before
            return msgspec.structs.replace(before, problem=problem)

        def healed(before: BatchRepair | None) -> BatchRepair:
            if before is None:  # it was deleted by hand, so there is nothing to say
                raise Unreadable(f"{keys.repair(manifest.identity)} is gone.")
            if before.state == "healed":
                return before
            return msgspec.structs.replace(before, state="healed", healed_at_unix_ns=max(now, 1))

        return healed if problem is None else opened


async def each_retried(
    items: Sequence[T],
    look: Callable[[T], Awaitable[R]],
    key_of: Callable[[T], str],
    batches: BatchReconciler,
    report: ReconcileReport,
    *,
    at_once: int,
) -> list[R | None]:
    """Look at some things, some of them concurrently, each again if the store did not answer.

    Returns what was found in their order; None for one that could not be looked at, which is in the report.
    """
    limit = asyncio.Semaphore(at_once)

    async def one(item: T) -> R | None:
        async with limit:
            try:
                return await RETRIES.call(
                    lambda: look(item), batches.clock, batches.random, on=(Unavailable, OutcomeUnknown)
                )
            except (Unavailable, OutcomeUnknown) as error:
                report.found(ProblemKind.FAILED, key_of(item), str(error))
                return None

    return await asyncio.gather(*map(one, items))


async def reconcile_all(
    batches: BatchReconciler, identities: Sequence[BatchIdentity], report: ReconcileReport, *, at_once: int
) -> list[LookedAt | None]:
    """Look at some identities, and repair what is derived from them. See `each_retried`."""
    return await each_retried(
        identities,
        lambda identity: batches.reconcile(identity, report),
        keys.accepted,
        batches,
        report,
        at_once=at_once,
    )
