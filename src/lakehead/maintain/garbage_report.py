"""What garbage collection decided about each raw blob, and why, in counts and examples."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

MOST_EXAMPLES = 10


class BlobOutcome(StrEnum):
    """What becomes of a raw blob."""

    ORPHAN = "orphan"
    """Deleted: nothing was accepted with it, and its identity is void."""

    RETIRED = "retired"
    """Deleted: its batch has landed, and its time is over."""

    ACCEPTED = "accepted"
    QUARANTINED = "quarantined"
    YOUNG = "young"
    NOT_AUDITED = "not_audited"
    IN_SPOOL = "in_spool"
    REFERENCE_MISSING = "reference_missing"
    CONFLICT = "conflict"
    UNDECODABLE = "undecodable"
    NEWER_FORMAT = "newer_format"
    CORRUPT = "corrupt"
    NO_BLOB = "no_blob"
    UNAVAILABLE = "unavailable"
    REFERENCE_WRONG = "reference_wrong"
    NO_TABLE = "no_table"
    NOT_LANDED = "not_landed"
    LANDED_LATELY = "landed_lately"
    LANDING_UNKNOWN = "landing_unknown"
    DISCARDED = "discarded"
    REPAIR_OPEN = "repair_open"
    GONE = "gone"

    @property
    def is_deleted(self) -> bool:
        """Whether the blob is deleted."""
        return self in (BlobOutcome.ORPHAN, BlobOutcome.RETIRED)

    @property
    def needs_attention(self) -> bool:
        """Whether an operator should see which blobs they are."""
        return self in _TOLD


_TOLD = frozenset(
    {
        BlobOutcome.CONFLICT,
        BlobOutcome.CORRUPT,
        BlobOutcome.NEWER_FORMAT,
        BlobOutcome.NO_BLOB,
        BlobOutcome.REFERENCE_MISSING,
        BlobOutcome.REFERENCE_WRONG,
        BlobOutcome.REPAIR_OPEN,
        BlobOutcome.UNAVAILABLE,
        BlobOutcome.UNDECODABLE,
    }
)

MEANINGS: Mapping[BlobOutcome, str] = {
    BlobOutcome.ORPHAN: "never accepted, and its identity is void",
    BlobOutcome.RETIRED: "its batch has landed, and is retired",
    BlobOutcome.ACCEPTED: "its batch is accepted",
    BlobOutcome.QUARANTINED: "a quarantine manifest names it",
    BlobOutcome.YOUNG: "younger than the retry horizon",
    BlobOutcome.NOT_AUDITED: "no audit has begun since its retry horizon: run the reconciler, or use --audit",
    BlobOutcome.IN_SPOOL: "a gateway's spool has its batch",
    BlobOutcome.REFERENCE_MISSING: "its batch is accepted, and the reverse reference is missing: run the reconciler",
    BlobOutcome.CONFLICT: "another frame is accepted under its identity: it is in quarantine now",
    BlobOutcome.UNDECODABLE: "its bytes are no frame: look at it",
    BlobOutcome.NEWER_FORMAT: "a newer Lakehead wrote it: update this one",
    BlobOutcome.CORRUPT: "its bytes do not have the hash of its key: look at it",
    BlobOutcome.NO_BLOB: "no frame has such a key: look at it",
    BlobOutcome.UNAVAILABLE: "store or spool did not answer: run it again",
    BlobOutcome.REFERENCE_WRONG: "a reverse reference names a manifest that is missing or of another frame: look at it",
    BlobOutcome.NO_TABLE: "past its retention, and no pipeline lands its kind",
    BlobOutcome.NOT_LANDED: "past its retention, and not landed",
    BlobOutcome.LANDED_LATELY: "past its retention, and landed within the rollback horizon, or after the last audit",
    BlobOutcome.LANDING_UNKNOWN: "past its retention, and when it landed is not known",
    BlobOutcome.DISCARDED: "past its retention, and an operator decided that it shall not land",
    BlobOutcome.REPAIR_OPEN: "past its retention, and a repair of it is open",
    BlobOutcome.GONE: "gone, by another run",
}
"""What people read of each."""

FAILURES = frozenset({BlobOutcome.UNAVAILABLE})
"""What another run may settle: the command ends with 1."""


@dataclass(frozen=True, slots=True)
class BlobDecision:
    """What was decided about one blob."""

    key: str
    size: int
    outcome: BlobOutcome
    note: str = ""
    """More, for people: the identity, or what went wrong."""


@dataclass(slots=True)
class BlobTally:
    """How many blobs had one outcome."""

    count: int = 0
    bytes: int = 0
    """Their size together; without those whose size was not asked for."""

    examples: list[BlobDecision] = field(default_factory=list)
    """The first of them."""

    def add(self, decision: BlobDecision) -> None:
        """Count one."""
        self.count += 1
        self.bytes += decision.size
        if len(self.examples) < MOST_EXAMPLES:
            self.examples.append(decision)


@dataclass(slots=True)
class GarbageReport:
    """What one run has found and done. Its memory is bounded."""

    source: str
    is_dry_run: bool
    seen: int = 0
    """Blobs that were looked at."""

    requests: int = 0
    """Requests to the store."""

    store_now_ns: int = 0
    """When it began, by the store's clock."""

    audited_through_ns: int | None = None
    """When the last complete audit began, by the store's clock; None if there was none."""

    is_complete: bool = True
    """Whether everything was looked at; it was stopped otherwise."""

    tallies: dict[BlobOutcome, BlobTally] = field(default_factory=dict)

    def add(self, decision: BlobDecision) -> None:
        """Count one decision."""
        self.tallies.setdefault(decision.outcome, BlobTally()).add(decision)

    def count(self, outcome: BlobOutcome) -> int:
        """How many blobs had an outcome."""
        return self.tallies[outcome].count if outcome in self.tallies else 0

    @property
    def deleted(self) -> int:
        """How many blobs were deleted, or would be in a dry run."""
        return sum(self.count(each) for each in BlobOutcome if each.is_deleted)

    @property
    def requests_per_blob(self) -> float:
        """Requests for each blob that was looked at."""
        return self.requests / self.seen if self.seen else 0.0

    @property
    def has_failures(self) -> bool:
        """Whether another run may do more."""
        return any(self.count(each) for each in FAILURES)
