"""What stands at the key of an identity: the identity manifest that accepted a batch, or the record that it is void."""

from lakehead.wire import acceptance_keys as keys
from lakehead.wire.batch_identity import BatchIdentity
from lakehead.wire.frame_header import FrameHeader
from lakehead.wire.stored_record import (
    Count,
    IdentityRecord,
    Name,
    Sha256,
    UnixNs,
    Version,
    schema_name,
    schema_of,
)
from lakehead.wire.utc_hours import UtcHour


class IdentityManifest(
    IdentityRecord, frozen=True, kw_only=True, tag_field="schema", tag="lightmetrics.accepted_batch.v1"
):
    """The record that accepts a batch. Who creates it first has accepted it; it never changes."""

    frame_sha256: Sha256
    frame_bytes: Count
    raw_blob_key: str
    accepted_at_unix_ns: UnixNs
    collector_id: Name
    """The gateway that accepted the batch."""

    wire_version: Version
    frame_version: Version
    nonce: str = ""
    """A random value for each attempt, by which a gateway knows its own manifest again. Not of the specification."""

    kind: str = ""
    """What the records are: `samples` or `logs`. Empty if the gateway did not say. Not of the specification."""

    spooled_at_unix_ns: UnixNs = 0
    """When the gateway's own disk held the batch and its agent was told so, if that was before this record was
    created; else 0. Not of the specification."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.raw_blob_key != keys.raw_blob(self.frame_sha256):
            raise ValueError("raw_blob_key is not the key of frame_sha256")

    @classmethod
    def of(
        cls, header: FrameHeader, frame_sha256: str, *, accepted_at_unix_ns: int, collector_id: str, nonce: str = ""
    ) -> "IdentityManifest":
        """The manifest that accepts a valid frame."""
        return cls(
            agent_id=header.identity.agent_id,
            boot_id=header.identity.boot_id,
            seq_start=header.identity.seq_start,
            seq_end=header.identity.seq_end,
            frame_sha256=frame_sha256,
            frame_bytes=header.frame_bytes,
            raw_blob_key=keys.raw_blob(frame_sha256),
            accepted_at_unix_ns=accepted_at_unix_ns,
            collector_id=collector_id,
            wire_version=header.wire_version,
            frame_version=header.frame_version,
            nonce=nonce,
        )

    @property
    def key(self) -> str:
        """Where the manifest is stored."""
        return keys.accepted(self.identity)

    @property
    def answered_at_unix_ns(self) -> int:
        """When agents are told that the batch was accepted: on the gateway's disk, if that was first."""
        return self.spooled_at_unix_ns or self.accepted_at_unix_ns

    @property
    def hour(self) -> UtcHour:
        """The hour in whose index the batch is."""
        return UtcHour.of(self.accepted_at_unix_ns)


class IdentityVoid(IdentityRecord, frozen=True, kw_only=True, tag_field="schema", tag="lightmetrics.identity_void.v1"):
    """The record that nothing was accepted under an identity, and never will be. It never changes."""

    frame_sha256: Sha256
    """The frame that was stored under the identity and never accepted."""

    voided_at_unix_ns: UnixNs
    voided_by: Name
    """The garbage collector that created the record."""

    nonce: str = ""

    @property
    def key(self) -> str:
        """Where the record is stored."""
        return keys.accepted(self.identity)


def decode_at_identity(body: bytes, identity: BatchIdentity) -> IdentityManifest | IdentityVoid:
    """Decode what stands at the key of an identity: it was accepted, or it is void.

    Raises `NewerFormat` and `Unreadable`. Then it is not known whether the batch was accepted.
    """
    key = keys.accepted(identity)
    is_void = schema_of(body, key).startswith(_VOID_FAMILY)
    return IdentityVoid.decode(body, key) if is_void else IdentityManifest.decode(body, key)


_VOID_FAMILY = schema_name(IdentityVoid).removesuffix("1")
"""The schema of voids in any version."""
