"""What an audit of accepted batches has found: counts, ages, and some findings of each kind."""

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum

from lakehead.wire.batch_identity import BatchIdentity
from lakehead.wire.spans import Spans

MOST_FINDINGS = 100
"""Findings of one kind that are kept. All are counted."""

MOST_RANGES = 10
"""Ranges of sequence numbers that one finding names."""


class FindingKind(StrEnum):
    """What is wrong, or worth knowing."""

    UNREADABLE = "unreadable"
    ACCEPTED_GONE = "accepted_gone"
    NOT_BY_TIME = "not_in_accepted_by_time"
    NOT_BY_BLOB = "not_in_accepted_by_blob"
    BLOB_NOT_BY_TIME = "not_in_raw_blobs_by_time"
    NOT_QUARANTINE_BY_BLOB = "not_in_quarantine_by_blob"
    WRONG_ENTRY = "wrong_index_entry"
    BLOB_MISSING = "blob_missing"
    BLOB_SIZE = "blob_of_wrong_size"
    BLOB_CORRUPT = "blob_corrupt"
    NOT_LANDED = "not_landed"
    ROWS_MISSING = "rows_missing"
    ROWS_DOUBLED = "rows_doubled"
    ROWS_UNKNOWN = "rows_without_accepted_batch"
    DELETE_MARKER = "delete_marker"
    OLDER_VERSION = "older_version"
    DANGLING = "dangling_index_entry"
    GAP = "gap"
    VOID_GAP = "gap_of_void_identities"
    DISCARDED = "discarded"
    DEAD_LETTER = "dead_letter"
    DROPPED = "dropped_without_record"

    @property
    def is_error(self) -> bool:
        """Whether something is missing, doubled or damaged. The others are told, and change no exit code."""
        return self not in NOTES

    @property
    def meaning(self) -> str:
        """What it means and what to do, for people."""
        return _MEANINGS[self]


NOTES = frozenset(
    {
        FindingKind.DANGLING,
        FindingKind.GAP,
        FindingKind.VOID_GAP,
        FindingKind.DISCARDED,
        FindingKind.DEAD_LETTER,
        FindingKind.DROPPED,
    }
)

_RECONCILER = "The reconciler writes it again: see that one runs."
_MEANINGS = {
    FindingKind.UNREADABLE: "Records that cannot be read. Look at them; bring them back from a backup.",
    FindingKind.ACCEPTED_GONE: "Identity manifests that were listed or indexed, and are gone. Nobody may delete them: "
    "bring them back from a backup.",
    FindingKind.NOT_BY_TIME: f"Accepted batches without an entry in accepted-by-time/v1/. {_RECONCILER}",
    FindingKind.NOT_BY_BLOB: f"Accepted batches without an entry in accepted-by-blob/v1/. {_RECONCILER}",
    FindingKind.BLOB_NOT_BY_TIME: f"Frames without an entry in raw-blobs-by-time/v1/. {_RECONCILER}",
    FindingKind.NOT_QUARANTINE_BY_BLOB: f"Quarantined frames without an entry in quarantine-by-blob/v1/. {_RECONCILER}",
    FindingKind.WRONG_ENTRY: "Index entries that say something else than what they index. Delete them by hand; the "
    "reconciler writes them again.",
    FindingKind.BLOB_MISSING: "Frames that are gone. Send them again, or bring them back from a backup.",
    FindingKind.BLOB_SIZE: "Frames of another size than was accepted. Send them again, or bring them back.",
    FindingKind.BLOB_CORRUPT: "Frames with other bytes than were accepted. Send them again, or bring them back.",
    FindingKind.NOT_LANDED: "Accepted batches that are in no table and no dead letter. See that pipelines run, and "
    "that a reconciler queues what was forgotten.",
    FindingKind.ROWS_MISSING: "Records that the state has as landed, and that are in no row. Was the table rolled back "
    "or were rows deleted? Then: lakehead state rebuild TABLE --config CONFIG",
    FindingKind.ROWS_DOUBLED: "Records that are in several rows.",
    FindingKind.ROWS_UNKNOWN: "Rows of no accepted batch. Did somebody else write to the table?",
    FindingKind.DELETE_MARKER: "Deleted keys below accepted/v1/: a batch could be accepted there a second time. Remove "
    "the marker, and see who may delete: docs/bucket-policy.md.",
    FindingKind.OLDER_VERSION: "Keys below accepted/v1/ that were written more than once. Compare the versions: the "
    "first one was accepted.",
    FindingKind.DANGLING: "Index entries of what does not exist. They do no harm.",
    FindingKind.GAP: "Sequence numbers between accepted batches that no batch has: of batches that wait at an agent, "
    "are parked, or were lost there.",
    FindingKind.VOID_GAP: "Sequence numbers of void identities: their records came again under others.",
    FindingKind.DISCARDED: "Accepted batches that an operator has discarded, and that are in no table.",
    FindingKind.DEAD_LETTER: "Accepted batches that a pipeline has given up: lakehead dead-letters list CONFIG",
    FindingKind.DROPPED: "Accepted batches whose dead letters were dropped without a record in discarded/v1/. Drop "
    "them again: lakehead dead-letters drop CONFIG ID",
}


@dataclass(frozen=True, slots=True)
class AuditFinding:
    """One of them."""

    kind: FindingKind
    what: str
    """The key of an object; or an agent, a boot and sequence numbers."""

    detail: str = ""


@dataclass(slots=True, kw_only=True)
class AuditReport:
    """What was looked at, and what was found. It does not grow with the number of batches."""

    begun_at_unix_ns: int
    deep: bool = False
    agents: tuple[str, ...] = ()
    """The agents that were looked at; none: all."""

    accepted: int = 0
    accepted_bytes: int = 0
    voids: int = 0
    boots: int = 0
    overlapping: int = 0
    """Accepted batches with sequence numbers that another one of their boot has too."""

    quarantined: int = 0
    retired: int = 0
    """Accepted batches whose frames were deleted after their time. Counted where a frame is gone."""

    pending: int = 0
    """Accepted batches that are too young for what follows acceptance to be missed."""

    rows: int = 0
    index_entries: int = 0
    """Entries of indexes of which it was looked whether they point to something."""

    oldest_unix_ns: int | None = None
    newest_unix_ns: int | None = None
    """When the oldest and the newest batch were accepted."""

    seconds: float = 0.0
    not_checked: list[str] = field(default_factory=list)
    """What was not compared, and why."""

    counts: Counter[FindingKind] = field(default_factory=Counter)
    findings: list[AuditFinding] = field(default_factory=list)

    def add(self, kind: FindingKind, what: str, detail: str = "") -> None:
        """Count a finding, and keep it if few of its kind are kept."""
        self.counts[kind] += 1
        if self.counts[kind] <= MOST_FINDINGS:
            self.findings.append(AuditFinding(kind, what, detail))

    def saw_accepted(self, at_unix_ns: int, frame_bytes: int) -> None:
        """Count an accepted batch."""
        self.accepted += 1
        self.accepted_bytes += frame_bytes
        self.oldest_unix_ns = min(at_unix_ns, self.oldest_unix_ns or at_unix_ns)
        self.newest_unix_ns = max(at_unix_ns, self.newest_unix_ns or at_unix_ns)

    @property
    def errors(self) -> int:
        """How many findings are errors."""
        return sum(count for kind, count in self.counts.items() if kind.is_error)

    @property
    def is_well(self) -> bool:
        """Whether nothing is missing, doubled or damaged."""
        return not self.errors

    def document(self) -> dict[str, object]:
        """The report as JSON."""
        return {
            "ok": self.is_well,
            "deep": self.deep,
            "agents": list(self.agents),
            "begun_at_unix_ns": self.begun_at_unix_ns,
            "seconds": round(self.seconds, 3),
            "accepted": self.accepted,
            "accepted_bytes": self.accepted_bytes,
            "voids": self.voids,
            "boots": self.boots,
            "overlapping": self.overlapping,
            "quarantined": self.quarantined,
            "retired": self.retired,
            "pending": self.pending,
            "rows": self.rows,
            "index_entries": self.index_entries,
            "oldest_accepted_at_unix_ns": self.oldest_unix_ns,
            "newest_accepted_at_unix_ns": self.newest_unix_ns,
            "oldest_age_seconds": self._age(self.oldest_unix_ns),
            "newest_age_seconds": self._age(self.newest_unix_ns),
            "not_checked": self.not_checked,
            "counts": {kind.value: self.counts[kind] for kind in FindingKind if self.counts[kind]},
            "findings": [
                {"kind": each.kind.value, "error": each.kind.is_error, "what": each.what, "detail": each.detail}
                for each in self.findings
            ],
        }

    def _age(self, at_unix_ns: int | None) -> float | None:
        return None if at_unix_ns is None else round((self.begun_at_unix_ns - at_unix_ns) / 1e9, 3)


def numbers_of(agent_id: str, boot_id: str, spans: Spans) -> str:
    """Sequence numbers of a boot, as a finding names them."""
    shown = ", ".join(f"{start}-{end - 1}" for start, end in spans[:MOST_RANGES])
    more = f" and {len(spans) - MOST_RANGES:,} more ranges" if len(spans) > MOST_RANGES else ""
    return f"agent {agent_id!r}, boot {boot_id!r}, {shown}{more}"


def numbers_of_batch(identity: BatchIdentity, spans: Spans) -> str:
    """Sequence numbers of a batch, as a finding names them."""
    return numbers_of(identity.agent_id, identity.boot_id, spans)
