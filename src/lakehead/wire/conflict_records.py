"""Conflicts and overlaps: frames that contradict what was accepted, and what operators decided about them."""

from typing import Literal

from lakehead.wire import acceptance_keys as keys
from lakehead.wire.acceptance_records import IdentityManifest
from lakehead.wire.batch_identity import check_id
from lakehead.wire.stored_record import IdentityRecord, Name, Sha256, UnixNs, Version, VersionedRecord


class QuarantineManifest(
    IdentityRecord, frozen=True, kw_only=True, tag_field="schema", tag="lightmetrics.identity_conflict.v1"
):
    """The record of a conflict. It is created once, so that the first sighting stays."""

    accepted_manifest_key: str
    accepted_raw_blob_key: str
    accepted_frame_sha256: Sha256
    submitted_raw_blob_key: str
    submitted_frame_sha256: Sha256
    observed_at_unix_ns: UnixNs
    collector_id: Name
    """The gateway that saw the conflict."""

    nonce: str = ""
    """Not of the specification."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.accepted_manifest_key != keys.accepted(self.identity):
            raise ValueError("accepted_manifest_key is not the key of the identity")
        if self.accepted_raw_blob_key != keys.raw_blob(self.accepted_frame_sha256):
            raise ValueError("accepted_raw_blob_key is not the key of accepted_frame_sha256")
        if self.submitted_raw_blob_key != keys.raw_blob(self.submitted_frame_sha256):
            raise ValueError("submitted_raw_blob_key is not the key of submitted_frame_sha256")
        if self.accepted_frame_sha256 == self.submitted_frame_sha256:
            raise ValueError("the same frame is accepted and submitted, which is no conflict")

    @classmethod
    def of(
        cls,
        accepted: IdentityManifest,
        submitted_frame_sha256: str,
        *,
        observed_at_unix_ns: int,
        collector_id: str,
        nonce: str = "",
    ) -> "QuarantineManifest":
        """The record that a frame came under the identity of an accepted batch."""
        return cls(
            agent_id=accepted.agent_id,
            boot_id=accepted.boot_id,
            seq_start=accepted.seq_start,
            seq_end=accepted.seq_end,
            accepted_manifest_key=accepted.key,
            accepted_raw_blob_key=accepted.raw_blob_key,
            accepted_frame_sha256=accepted.frame_sha256,
            submitted_raw_blob_key=keys.raw_blob(submitted_frame_sha256),
            submitted_frame_sha256=submitted_frame_sha256,
            observed_at_unix_ns=observed_at_unix_ns,
            collector_id=collector_id,
            nonce=nonce,
        )

    @property
    def key(self) -> str:
        """Where the record is stored."""
        return keys.identity_conflict(self.identity, self.submitted_frame_sha256)


class OverlapManifest(IdentityRecord, frozen=True, kw_only=True, tag_field="schema", tag="lightmetrics.overlap.v1"):
    """The record that an accepted batch did not land: another one has brought some of its records with other content.

    It is created once. The batch stays accepted, and its frame is kept.
    """

    accepted_manifest_key: str
    raw_blob_key: str
    frame_sha256: Sha256
    other_manifest_key: str
    """The batch whose records count, accepted under another identity with common sequence numbers."""

    other_raw_blob_key: str
    other_frame_sha256: Sha256
    observed_at_unix_ns: UnixNs
    observed_by: Name
    nonce: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.accepted_manifest_key != keys.accepted(self.identity):
            raise ValueError("accepted_manifest_key is not the key of the identity")
        if self.raw_blob_key != keys.raw_blob(self.frame_sha256):
            raise ValueError("raw_blob_key is not the key of frame_sha256")
        if self.other_raw_blob_key != keys.raw_blob(self.other_frame_sha256):
            raise ValueError("other_raw_blob_key is not the key of other_frame_sha256")
        other = keys.parse_accepted(self.other_manifest_key)
        if other is None or other == self.identity or not other.overlaps(self.identity):
            raise ValueError("other_manifest_key is not the key of another identity with common sequence numbers")

    @classmethod
    def of(
        cls,
        accepted: IdentityManifest,
        other: IdentityManifest,
        *,
        observed_at_unix_ns: int,
        observed_by: str,
        nonce: str = "",
    ) -> "OverlapManifest":
        """The record that an accepted batch contradicts another, whose records count."""
        return cls(
            agent_id=accepted.agent_id,
            boot_id=accepted.boot_id,
            seq_start=accepted.seq_start,
            seq_end=accepted.seq_end,
            accepted_manifest_key=accepted.key,
            raw_blob_key=accepted.raw_blob_key,
            frame_sha256=accepted.frame_sha256,
            other_manifest_key=other.key,
            other_raw_blob_key=other.raw_blob_key,
            other_frame_sha256=other.frame_sha256,
            observed_at_unix_ns=observed_at_unix_ns,
            observed_by=observed_by,
            nonce=nonce,
        )

    @property
    def key(self) -> str:
        """Where the record is stored."""
        return keys.overlap(self.identity, self.frame_sha256)


class ConflictResolution(
    IdentityRecord,
    VersionedRecord,
    frozen=True,
    kw_only=True,
    tag_field="schema",
    tag="lightmetrics.conflict_resolution.v1",
):
    """An operator's decision on one submitted frame, named by its hash. It is replaced when the decision changes."""

    submitted_frame_sha256: Sha256
    accepted_frame_sha256: Sha256
    resolution: Literal["accept_existing", "quarantine_identity"]
    """`accept_existing`: the accepted batch counts, and the agent may drop the submitted one. `quarantine_identity`:
    the agent's boot went into quarantine, and nothing may be dropped."""

    resolved_at_unix_ns: UnixNs
    resolved_by: Name
    note: str = ""
    version: Version
    """Grows with every replacement."""

    nonce: str = ""

    @property
    def key(self) -> str:
        """Where the decision is stored."""
        return keys.resolution(self.identity, self.submitted_frame_sha256)


class QuarantinedIdentity(
    VersionedRecord, frozen=True, kw_only=True, tag_field="schema", tag="lightmetrics.quarantined_identity.v1"
):
    """Whether a boot of an agent is in quarantine: then nothing more is accepted under it. Replaced on release."""

    agent_id: str
    boot_id: str
    state: Literal["quarantined", "released"]
    reason: str = ""
    changed_at_unix_ns: UnixNs
    changed_by: Name
    version: Version
    """Grows with every replacement."""

    nonce: str = ""

    def __post_init__(self) -> None:
        check_id("agent_id", self.agent_id)
        check_id("boot_id", self.boot_id)

    @property
    def key(self) -> str:
        """Where the record is stored."""
        return keys.quarantined_identity(self.agent_id, self.boot_id)
