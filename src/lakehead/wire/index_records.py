"""Derived indexes: the objects by which batches are found by time and by content hash.

They are made of what the identity manifest or the frame says and of nothing else, so that whoever makes one, and
whenever, writes the same bytes. Nothing is accepted or refused because of them.
"""

from lakehead.wire import acceptance_keys as keys
from lakehead.wire.acceptance_records import IdentityManifest
from lakehead.wire.batch_identity import BatchIdentity
from lakehead.wire.conflict_records import OverlapManifest, QuarantineManifest
from lakehead.wire.stored_record import Count, Sha256, StoredRecord, UnixNs
from lakehead.wire.utc_hours import UtcHour


class AcceptedByTime(
    StoredRecord, frozen=True, kw_only=True, tag_field="schema", tag="lightmetrics.accepted_by_time.v1"
):
    """The entry of an accepted batch in the index of the hour in which it was accepted."""

    accepted_manifest_key: str
    frame_sha256: Sha256
    accepted_at_unix_ns: UnixNs

    def __post_init__(self) -> None:
        self.identity  # noqa: B018 - raises if it is not valid

    @classmethod
    def of(cls, manifest: IdentityManifest) -> "AcceptedByTime":
        """The entry of an accepted batch."""
        return cls(
            accepted_manifest_key=manifest.key,
            frame_sha256=manifest.frame_sha256,
            accepted_at_unix_ns=manifest.accepted_at_unix_ns,
        )

    @property
    def identity(self) -> BatchIdentity:
        """The identity of the accepted batch."""
        return _identity_at(self.accepted_manifest_key)

    @property
    def key(self) -> str:
        """Where the entry is stored."""
        return keys.accepted_by_time(UtcHour.of(self.accepted_at_unix_ns), self.identity)


class AcceptedByBlob(
    StoredRecord, frozen=True, kw_only=True, tag_field="schema", tag="lightmetrics.accepted_by_blob.v1"
):
    """The reverse reference from a frame to the identity manifest that names it."""

    frame_sha256: Sha256
    accepted_manifest_key: str

    def __post_init__(self) -> None:
        _identity_at(self.accepted_manifest_key)

    @classmethod
    def of(cls, manifest: IdentityManifest) -> "AcceptedByBlob":
        """The reverse reference to an identity manifest."""
        return cls(frame_sha256=manifest.frame_sha256, accepted_manifest_key=manifest.key)

    @property
    def key(self) -> str:
        """Where the reference is stored."""
        return keys.accepted_by_blob(self.frame_sha256, _identity_at(self.accepted_manifest_key))


class QuarantineByBlob(
    StoredRecord, frozen=True, kw_only=True, tag_field="schema", tag="lightmetrics.quarantine_by_blob.v1"
):
    """The reverse reference from a frame to the quarantine manifest that names it as submitted, or as not landed."""

    frame_sha256: Sha256
    quarantine_manifest_key: str

    def __post_init__(self) -> None:
        self.identity  # noqa: B018 - raises if it is not valid

    @classmethod
    def of(cls, manifest: QuarantineManifest | OverlapManifest) -> "QuarantineByBlob":
        """The reverse reference to the quarantine manifest of a conflict or an overlap."""
        if isinstance(manifest, OverlapManifest):
            return cls(frame_sha256=manifest.frame_sha256, quarantine_manifest_key=manifest.key)
        return cls(frame_sha256=manifest.submitted_frame_sha256, quarantine_manifest_key=manifest.key)

    @property
    def identity(self) -> BatchIdentity:
        """The identity under which the frame is in quarantine, after a conflict or an overlap."""
        key = self.quarantine_manifest_key
        found = keys.parse_identity_conflict(key) or keys.parse_overlap(key)
        if found is None or found[1] != self.frame_sha256:
            raise ValueError("quarantine_manifest_key is not the key of a quarantine manifest of the frame")
        return found[0]

    @property
    def key(self) -> str:
        """Where the reference is stored."""
        return keys.quarantine_by_blob(self.frame_sha256, self.identity)


class RawBlobByTime(
    StoredRecord, frozen=True, kw_only=True, tag_field="schema", tag="lightmetrics.raw_blob_by_time.v1"
):
    """The entry of a stored frame in the index of an hour in which it was uploaded, accepted or not.

    The hour stands in the key alone: the same frame has the same entry in each hour in which it was sent.
    """

    frame_sha256: Sha256
    frame_bytes: Count
    raw_blob_key: str
    accepted_manifest_key: str
    """Where its identity is accepted, if it ever is."""

    def __post_init__(self) -> None:
        self.identity  # noqa: B018 - raises if it is not valid
        if self.raw_blob_key != keys.raw_blob(self.frame_sha256):
            raise ValueError("raw_blob_key is not the key of frame_sha256")

    @classmethod
    def of(cls, identity: BatchIdentity, frame_sha256: str, frame_bytes: int) -> "RawBlobByTime":
        """The entry of a frame."""
        return cls(
            frame_sha256=frame_sha256,
            frame_bytes=frame_bytes,
            raw_blob_key=keys.raw_blob(frame_sha256),
            accepted_manifest_key=keys.accepted(identity),
        )

    @property
    def identity(self) -> BatchIdentity:
        """The identity that the frame names."""
        return _identity_at(self.accepted_manifest_key)

    def key_in(self, hour: UtcHour) -> str:
        """Where the entry of an hour is stored."""
        return keys.raw_blob_by_time(hour, self.frame_sha256)

    def belongs_at(self, key: str) -> bool:
        """Return whether it is an entry of this frame, of any hour."""
        found = keys.parse_raw_blob_by_time(key)
        return found is not None and found[1] == self.frame_sha256


def _identity_at(accepted_key: str) -> BatchIdentity:
    identity = keys.parse_accepted(accepted_key)
    if identity is None:
        raise ValueError("accepted_manifest_key is not the key of an identity manifest")
    return identity
