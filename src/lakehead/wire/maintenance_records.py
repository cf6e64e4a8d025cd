"""What the reconciler, garbage collection and operators record about accepted batches, and how far they got."""

from typing import Literal

import msgspec

from lakehead.wire import acceptance_keys as keys
from lakehead.wire.acceptance_records import IdentityManifest
from lakehead.wire.batch_identity import BatchIdentity
from lakehead.wire.errors import InvalidKeyPart
from lakehead.wire.stored_record import Count, IdentityRecord, Name, Sha256, UnixNs, Version, VersionedRecord

BlobProblem = Literal["missing", "corrupt"]


class BatchRepair(
    IdentityRecord, VersionedRecord, frozen=True, kw_only=True, tag_field="schema", tag="lightmetrics.repair.v1"
):
    """The record that the frame of an accepted batch is missing or corrupt, or was and is healed."""

    frame_sha256: Sha256
    frame_bytes: Count
    raw_blob_key: str
    problem: BlobProblem
    state: Literal["open", "healed"]
    found_at_unix_ns: UnixNs
    """When this was seen first since it was last healed."""

    found_by: Name
    healed_at_unix_ns: UnixNs = 0
    """When the frame was seen to be right again; 0 while it is not."""

    version: Version
    nonce: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.raw_blob_key != keys.raw_blob(self.frame_sha256):
            raise ValueError("raw_blob_key is not the key of frame_sha256")
        if (self.state == "healed") != bool(self.healed_at_unix_ns):
            raise ValueError("state and healed_at_unix_ns contradict each other")

    @classmethod
    def of(
        cls, manifest: IdentityManifest, problem: BlobProblem, *, found_at_unix_ns: int, found_by: str
    ) -> "BatchRepair":
        """The record of what was found now, before it is stored for the first time."""
        return cls(
            agent_id=manifest.agent_id,
            boot_id=manifest.boot_id,
            seq_start=manifest.seq_start,
            seq_end=manifest.seq_end,
            frame_sha256=manifest.frame_sha256,
            frame_bytes=manifest.frame_bytes,
            raw_blob_key=manifest.raw_blob_key,
            problem=problem,
            state="open",
            found_at_unix_ns=found_at_unix_ns,
            found_by=found_by,
            version=1,
        )

    @property
    def key(self) -> str:
        """Where the record is stored."""
        return keys.repair(self.identity)


class RetiredBatch(IdentityRecord, frozen=True, kw_only=True, tag_field="schema", tag="lightmetrics.retired_batch.v1"):
    """The record that the frame of an accepted batch was deleted after its time, or is about to be. It never changes.

    The identity manifest stays, so that a retry is still a duplicate.
    """

    frame_sha256: Sha256
    raw_blob_key: str
    retired_at_unix_ns: UnixNs
    retired_by: Name
    nonce: str = ""

    @classmethod
    def of(cls, identity: BatchIdentity, frame_sha256: str, *, at_unix_ns: int, by: str) -> "RetiredBatch":
        """The record that the frame of an accepted batch may be deleted."""
        return cls(
            agent_id=identity.agent_id,
            boot_id=identity.boot_id,
            seq_start=identity.seq_start,
            seq_end=identity.seq_end,
            frame_sha256=frame_sha256,
            raw_blob_key=keys.raw_blob(frame_sha256),
            retired_at_unix_ns=at_unix_ns,
            retired_by=by,
        )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.raw_blob_key != keys.raw_blob(self.frame_sha256):
            raise ValueError("raw_blob_key is not the key of frame_sha256")

    @property
    def key(self) -> str:
        """Where the record is stored."""
        return keys.retired(self.identity)


class DiscardedBatch(
    IdentityRecord, frozen=True, kw_only=True, tag_field="schema", tag="lightmetrics.discarded_batch.v1"
):
    """The record that an operator decided that a batch shall not land in a table. It never changes."""

    table: Name
    """The uuid of the table."""

    reason: str = ""
    discarded_at_unix_ns: UnixNs
    discarded_by: Name
    nonce: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            self.key  # noqa: B018 - raises if the table's uuid cannot be one
        except InvalidKeyPart as error:
            raise ValueError(str(error)) from None

    @classmethod
    def of(
        cls, table: str, identity: BatchIdentity, *, at_unix_ns: int, by: str, reason: str = "", nonce: str = ""
    ) -> "DiscardedBatch":
        """The record that a batch shall not land in the table with this uuid."""
        return cls(
            agent_id=identity.agent_id,
            boot_id=identity.boot_id,
            seq_start=identity.seq_start,
            seq_end=identity.seq_end,
            table=table,
            reason=reason,
            discarded_at_unix_ns=at_unix_ns,
            discarded_by=by,
            nonce=nonce,
        )

    @property
    def key(self) -> str:
        """Where the record is stored."""
        return keys.discarded(self.table, self.identity)


class ColdScan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A scan of all accepted batches that is under way."""

    begun_at_unix_ns: UnixNs
    """When it began, by the store's clock."""

    last_key: str = ""
    """The last key of `accepted/v1/` or of the quarantine that it is done with; empty if it is done with none."""

    seen: Count = 0
    """Keys that it has seen."""

    accepted: Count = 0
    voids: Count = 0
    quarantined: Count = 0
    repaired: Count = 0
    incomplete: Count = 0
    """What it could not read, or not repair: with any of these it completes no audit."""


class ReconcilerCheckpoint(
    VersionedRecord, frozen=True, kw_only=True, tag_field="schema", tag="lightmetrics.reconciler_checkpoint.v1"
):
    """How far reconcilers have got: where the next one goes on."""

    reconciled_through_unix_ns: UnixNs
    """All that was uploaded before this time, by the hours of the time indexes, was looked at."""

    cold_scan: ColdScan | None = None
    """The scan of everything that is under way; None if none is."""

    version: Version
    nonce: str = ""

    @property
    def key(self) -> str:
        """Where the record is stored."""
        return keys.RECONCILER_CHECKPOINT


class CompletedAudit(
    VersionedRecord, frozen=True, kw_only=True, tag_field="schema", tag="lightmetrics.completed_audit.v1"
):
    """The last complete scan of accepted and quarantined batches, after which every reverse reference was there.

    Whoever finds no reverse reference for a frame may believe it only for what was accepted or put into quarantine
    before the scan began.
    """

    begun_at_unix_ns: UnixNs
    """When the scan began, by the store's clock."""

    ended_at_unix_ns: UnixNs
    """When it was complete, by the store's clock."""

    accepted: Count
    """Identity manifests that it has seen."""

    voids: Count
    quarantined: Count
    repaired: Count
    """Index entries that were missing, and that it wrote."""

    problems: Count
    """Blobs that are missing or corrupt, and records that cannot be read."""

    audited_by: Name
    version: Version
    nonce: str = ""

    @property
    def key(self) -> str:
        """Where the record is stored."""
        return keys.COMPLETED_AUDIT
