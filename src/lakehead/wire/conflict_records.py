"""Conflicts and overlaps: frames that contradict what was accepted, and what operators decided about them."""

from collections.abc import Iterable
from typing import ClassVar, Literal, TypeAlias

import msgspec

from lakehead.wire import acceptance_keys as keys
from lakehead.wire.acceptance_records import IdentityManifest
from lakehead.wire.batch_identity import BatchIdentity, check_id
from lakehead.wire.spans import Span, Spans, merged
from lakehead.wire.stored_record import IdentityRecord, Name, Sequence, Sha256, UnixNs, Version, VersionedRecord


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


MOST_BATCHES = 100
"""How many other batches the record of an overlap names, at most."""

MOST_RANGES = 200
"""How many ranges it has for each of them, at most. If there are more, the last one reaches to the end of all."""

SequenceRange: TypeAlias = tuple[Sequence, Sequence]
"""The first and the last sequence number of a range: both are part of it."""


class OverlappedBatch(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A batch whose records landed for some sequence numbers of another, which has other records there."""

    accepted_manifest_key: str
    """Its identity manifest; the whole URI, if that is in another store or was not looked for."""

    raw_blob_key: str = ""
    frame_sha256: str = ""
    """Empty if it is not known."""

    ranges: tuple[SequenceRange, ...] = ()
    """The sequence numbers whose records differ, or could not be compared."""

    not_compared: str = ""
    """Why they could not be compared; empty if they were, and differ."""

    def __post_init__(self) -> None:
        if self.raw_blob_key != (keys.raw_blob(self.frame_sha256) if self.frame_sha256 else ""):
            raise ValueError("raw_blob_key is not the key of frame_sha256")
        if any(start > end for start, end in self.ranges):
            raise ValueError("a range ends before it starts")


class OverlapManifest(
    IdentityRecord, VersionedRecord, frozen=True, kw_only=True, tag_field="schema", tag="lightmetrics.overlap.v1"
):
    """The record that some records of an accepted batch did not land: others have their sequence numbers.

    The first sighting stays. If others turn out to have more of its numbers before it lands, that is added. The batch
    stays accepted, and its frame is kept.
    """

    MAX_BYTES: ClassVar[int] = 2 << 20

    accepted_manifest_key: str
    raw_blob_key: str
    frame_sha256: Sha256
    ranges: tuple[SequenceRange, ...]
    """All sequence numbers whose records did not land, and differ from those that did or could not be compared."""

    others: tuple[OverlappedBatch, ...]
    """The batches whose records landed. Of very many only some are named, and `ranges` has all."""

    table: Name
    """The uuid of the table in which they landed."""

    observed_at_unix_ns: UnixNs
    """When this was seen first."""

    observed_by: Name
    version: Version
    """Grows when something is added."""

    nonce: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.accepted_manifest_key != keys.accepted(self.identity):
            raise ValueError("accepted_manifest_key is not the key of the identity")
        if self.raw_blob_key != keys.raw_blob(self.frame_sha256):
            raise ValueError("raw_blob_key is not the key of frame_sha256")
        if not self.others or not self.ranges:
            raise ValueError("it names no other batch or no sequence number, which is no overlap")
        if any(not self.seq_start <= start <= end <= self.seq_end for start, end in self.ranges):
            raise ValueError("ranges are not sequence numbers of the batch")
        for each in self.others:
            other = keys.parse_accepted(each.accepted_manifest_key)
            if other == self.identity or (other is not None and not other.overlaps(self.identity)):
                raise ValueError("others has a batch that is not another with common sequence numbers")

    @classmethod
    def of(
        cls,
        identity: BatchIdentity,
        frame_sha256: str,
        others: Iterable[OverlappedBatch],
        *,
        table: str,
        observed_at_unix_ns: int,
        observed_by: str,
    ) -> "OverlapManifest":
        """The record that other batches have landed for some sequence numbers of an accepted one."""
        found = tuple(others)
        return cls(
            agent_id=identity.agent_id,
            boot_id=identity.boot_id,
            seq_start=identity.seq_start,
            seq_end=identity.seq_end,
            accepted_manifest_key=keys.accepted(identity),
            raw_blob_key=keys.raw_blob(frame_sha256),
            frame_sha256=frame_sha256,
            ranges=_joined(found),
            others=found[:MOST_BATCHES],
            table=table,
            observed_at_unix_ns=observed_at_unix_ns,
            observed_by=observed_by,
            version=1,
        )

    def with_more(self, found: "OverlapManifest") -> "OverlapManifest":
        """Return this record with what another one of the same batch has besides; itself if that has nothing more."""
        whole = as_ranges(_spans([*self.ranges, *found.ranges]))
        known = {(each.accepted_manifest_key, each.not_compared) for each in self.others}
        new = [each for each in found.others if (each.accepted_manifest_key, each.not_compared) not in known]
        if whole == self.ranges and (not new or len(self.others) >= MOST_BATCHES):
            return self
        return msgspec.structs.replace(self, ranges=whole, others=(*self.others, *new)[:MOST_BATCHES])

    @property
    def key(self) -> str:
        """Where the record is stored."""
        return keys.overlap(self.identity, self.frame_sha256)


def as_ranges(spans: Iterable[Span]) -> tuple[SequenceRange, ...]:
    """Return spans as ranges for a record: both ends are included, and there are not too many."""
    whole = merged(spans)
    if len(whole) > MOST_RANGES:
        whole = (*whole[: MOST_RANGES - 1], (whole[MOST_RANGES - 1][0], whole[-1][1]))
    return tuple((start, end - 1) for start, end in whole)


def _joined(others: Iterable[OverlappedBatch]) -> tuple[SequenceRange, ...]:
    return as_ranges(_spans([each for other in others for each in other.ranges]))


def _spans(ranges: Iterable[SequenceRange]) -> Spans:
    return merged((start, end + 1) for start, end in ranges)


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
