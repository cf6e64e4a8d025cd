"""Deletes the raw blobs of accepted batches whose time is over: landed long ago, and needed by nobody.

The identity manifest stays, so that a retry is a duplicate for good. The record that the batch is retired comes first:
whoever finds its blob missing then knows why.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from lakehead.accept.accepted_scan import read_identity
from lakehead.accept.batch_kind import batch_kind
from lakehead.accept.record_file import read_record
from lakehead.errors import Misconfigured, OutcomeUnknown, Unavailable
from lakehead.maintain.blob_deletion import delete_blob
from lakehead.maintain.blob_references import FoundBlob
from lakehead.maintain.garbage_report import BlobDecision, BlobOutcome
from lakehead.storage.port import Store
from lakehead.wire import acceptance_keys as keys
from lakehead.wire.acceptance_records import IdentityManifest
from lakehead.wire.batch_identity import BatchIdentity
from lakehead.wire.errors import Unreadable
from lakehead.wire.maintenance_records import BatchRepair, RetiredBatch
from lakehead.wire.record_schemas import FrameKind

AT_ONCE = 16
"""Batches that are retired concurrently."""


@dataclass(frozen=True, slots=True)
class KeepReason:
    """Why the frame of a batch must be kept."""

    outcome: BlobOutcome
    note: str = ""


@dataclass(frozen=True, slots=True)
class RetiringBatch:
    """An accepted batch whose frame has reached its retention."""

    identity: BatchIdentity
    kind: FrameKind


class FrameUser(Protocol):
    """Somebody who reads frames of accepted batches: landing, and whatever is derived from them."""

    async def still_needed(
        self, batches: Sequence[RetiringBatch], *, done_before_ns: int
    ) -> Mapping[BatchIdentity, KeepReason]:
        """Return the batches with whose frames it was not done before a time, or may not have been.

        The time is by the store's clock, in nanoseconds since the Unix epoch. Raises `Unavailable`.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """Retires accepted batches of one authority."""

    store: Store
    users: Sequence[FrameUser]
    """All who read frames. If there are none, nothing says that a frame is not needed: nothing is retired."""

    discarding_tables: Sequence[str]
    """The uuids of the tables for which operators may have discarded batches."""

    name: str
    now_ns: Callable[[], int]
    """For the time in records, which is a hint for people."""

    is_dry_run: bool = False

    async def came_again(self, blob: FoundBlob) -> BlobDecision | None:
        """Decide about a blob that was stored after its batch was accepted, and is younger than its retention.

        None if its batch is retired: a retry brought the blob again, which was answered as a duplicate, or somebody
        brought it back to land it once more. `retire` tells these apart.
        """
        assert blob.accepted is not None, "only referenced blobs are retired"  # noqa: S101 - for the type checker
        try:
            retired = await read_record(RetiredBatch, keys.retired(blob.accepted.identity), self.store)
        except (Unreadable, Unavailable) as error:
            return _decided(blob, BlobOutcome.UNAVAILABLE, str(error))
        is_retired = retired is not None and retired.frame_sha256 == blob.sha256
        return None if is_retired else _decided(blob, BlobOutcome.ACCEPTED)

    async def retire(self, blobs: Sequence[FoundBlob], *, done_before_ns: int) -> Sequence[BlobDecision]:
        """Retire batches by their blobs, which are referenced, and delete the blobs; in their order.

        The blobs are old enough, or came again after their batches were retired. Everybody must have been done with
        them before a time by the store's clock: before the rollback horizon, and before the last audit began. In a dry
        run nothing is changed, and the same is decided.
        """
        limit = asyncio.Semaphore(AT_ONCE)

        async def look(blob: FoundBlob) -> RetiringBatch | BlobDecision:
            async with limit:
                return await self._batch(blob)

        looked = list(zip(blobs, await asyncio.gather(*map(look, blobs)), strict=True))
        batches = [found for _, found in looked if isinstance(found, RetiringBatch)]
        needed: dict[BatchIdentity, KeepReason] = {}
        try:
            for user in self.users:
                needed = {**await user.still_needed(batches, done_before_ns=done_before_ns), **needed}
        except Unavailable as error:
            needed = {each.identity: KeepReason(BlobOutcome.UNAVAILABLE, str(error)) for each in batches}
        if not self.users:
            needed = {each.identity: KeepReason(BlobOutcome.NO_TABLE) for each in batches}

        async def decide(blob: FoundBlob, found: RetiringBatch | BlobDecision) -> BlobDecision:
            if isinstance(found, BlobDecision):
                return found
            if (why := needed.get(found.identity)) is not None:
                return _decided(blob, why.outcome, why.note or str(found.identity))
            async with limit:
                return await self._retire(blob, found.identity)

        return await asyncio.gather(*(decide(blob, found) for blob, found in looked))

    async def _batch(self, blob: FoundBlob) -> RetiringBatch | BlobDecision:
        """Return the batch that a blob belongs to, or why it is kept."""
        assert blob.accepted is not None, "only referenced blobs are retired"  # noqa: S101 - for the type checker
        if blob.is_quarantined:
            return _decided(blob, BlobOutcome.QUARANTINED)
        identity = blob.accepted.identity
        try:
            found = await read_identity(identity, self.store)
            if not isinstance(found.record, IdentityManifest) or found.record.frame_sha256 != blob.sha256:
                return _decided(blob, BlobOutcome.REFERENCE_WRONG, found.problem or keys.accepted(identity))
            # The frame of an accepted batch can only be in quarantine there. References may be lost after an audit.
            if await self.store.head(keys.overlap(identity, found.record.frame_sha256)) is not None:
                return _decided(blob, BlobOutcome.QUARANTINED)
            try:
                kind = await batch_kind(found.record, self.store)
            except Misconfigured as error:  # its frame may not be read, as in an archive: it must not keep the others
                return _decided(blob, BlobOutcome.UNAVAILABLE, str(error))
            repair = await read_record(BatchRepair, keys.repair(identity), self.store)
            if repair is not None and repair.state == "open":
                return _decided(blob, BlobOutcome.REPAIR_OPEN, repair.key)
            for table in self.discarding_tables:
                if await self.store.head(key := keys.discarded(table, identity)) is not None:
                    return _decided(blob, BlobOutcome.DISCARDED, key)
        except Unreadable as error:
            return _decided(blob, BlobOutcome.REPAIR_OPEN, str(error))
        except Unavailable as error:
            return _decided(blob, BlobOutcome.UNAVAILABLE, str(error))
        return _decided(blob, BlobOutcome.NO_TABLE) if kind is None else RetiringBatch(identity, kind)

    async def _retire(self, blob: FoundBlob, identity: BatchIdentity) -> BlobDecision:
        sha256 = blob.sha256 or ""
        record = RetiredBatch.of(identity, sha256, at_unix_ns=self.now_ns(), by=self.name)
        try:
            if not self.is_dry_run:
                await self.store.create(record.key, record.encode())
            # Only what was read is believed: somebody else's record is as good, if it is of the same frame.
            found = await read_record(RetiredBatch, record.key, self.store)
        except (Unreadable, Unavailable, OutcomeUnknown) as error:
            return _decided(blob, BlobOutcome.UNAVAILABLE, str(error))
        if found is None and not self.is_dry_run:
            return _decided(blob, BlobOutcome.UNAVAILABLE, f"{record.key} was created, and is gone.")
        if found is not None and found.frame_sha256 != sha256:
            return _decided(blob, BlobOutcome.REFERENCE_WRONG, f"{record.key} is of another frame.")
        return await self._delete(blob, sha256, identity)

    async def _delete(self, blob: FoundBlob, frame_sha256: str, identity: BatchIdentity) -> BlobDecision:
        try:
            if not self.is_dry_run:
                await delete_blob(self.store, frame_sha256)
        except (Unavailable, OutcomeUnknown) as error:
            return _decided(blob, BlobOutcome.UNAVAILABLE, str(error))
        return _decided(blob, BlobOutcome.RETIRED, str(identity))


def _decided(blob: FoundBlob, outcome: BlobOutcome, note: str = "") -> BlobDecision:
    return BlobDecision(blob.key, blob.size, outcome, note)
