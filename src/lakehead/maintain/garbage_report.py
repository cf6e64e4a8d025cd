"""What garbage collection decided about each raw blob, and why, in counts and examples."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

MOST_EXAMPLES = 10


class Outcome(StrEnum):
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
    STILL_NEEDED = "still_needed"
    GONE = "gone"

    @property
    def is_deleted(self) -> bool:
        """Whether the blob is deleted."""
        return self in (Outcome.ORPHAN, Outcome.RETIRED)

    @property
    def needs_attention(self) -> bool:
        """Whether an operator should see which blobs they are."""
        return self in _TOLD


_TOLD = frozenset(
    {
        Outcome.CONFLICT,
        Outcome.CORRUPT,
        Outcome.NEWER_FORMAT,
        Outcome.NO_BLOB,
        Outcome.REFERENCE_MISSING,
        Outcome.REFERENCE_WRONG,
        Outcome.REPAIR_OPEN,
        Outcome.UNAVAILABLE,
        Outcome.UNDECODABLE,
    }
)

MEANINGS: Mapping[Outcome, str] = {
    Outcome.ORPHAN: "never accepted, and its identity is void",
    Outcome.RETIRED: "its batch has landed, and is retired",
    Outcome.ACCEPTED: "its batch is accepted",
    Outcome.QUARANTINED: "a quarantine manifest names it",
    Outcome.YOUNG: "younger than the retry horizon",
    Outcome.NOT_AUDITED: "no audit has begun since its retry horizon: run the reconciler, or use --audit",
    Outcome.IN_SPOOL: "a gateway's spool has its batch",
    Outcome.REFERENCE_MISSING: "its batch is accepted, and the reverse reference is missing: run the reconciler",
    Outcome.CONFLICT: "another frame is accepted under its identity: it is in quarantine now",
    Outcome.UNDECODABLE: "its bytes are no frame: look at it",
    Outcome.NEWER_FORMAT: "a newer Lakehead wrote it: update this one",
    Outcome.CORRUPT: "its bytes do not have the hash of its key: look at it",
    Outcome.NO_BLOB: "no frame has such a key: look at it",
    Outcome.UNAVAILABLE: "store or spool did not answer: run it again",
    Outcome.REFERENCE_WRONG: "a reverse reference names a manifest that is not there, or of another frame: look at it",
    Outcome.NO_TABLE: "past its retention, and no pipeline lands its kind",
    Outcome.NOT_LANDED: "past its retention, and not landed",
    Outcome.LANDED_LATELY: "past its retention, and landed within the rollback horizon, or after the last audit",
    Outcome.LANDING_UNKNOWN: "past its retention, and when it landed is not known",
    Outcome.DISCARDED: "past its retention, and an operator decided that it shall not land",
    Outcome.REPAIR_OPEN: "past its retention, and a repair of it is open",
    Outcome.STILL_NEEDED: "past its retention, and something else is not done with it",
    Outcome.GONE: "gone, by another run",
}
"""What people read of each."""

FAILURES = frozenset({Outcome.UNAVAILABLE})
"""What another run may settle: the command ends with 1."""


@dataclass(frozen=True, slots=True)
class BlobDecision:
    """What was decided about one blob."""

    key: str
    size: int
    outcome: Outcome
    note: str = ""
    """More, for people: the identity, or what went wrong."""


@dataclass(slots=True)
class Tally:
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

    tallies: dict[Outcome, Tally] = field(default_factory=dict)

    def add(self, decision: BlobDecision) -> None:
        """Count one decision."""
        self.tallies.setdefault(decision.outcome, Tally()).add(decision)

    def count(self, outcome: Outcome) -> int:
        """How many blobs had an outcome."""
        return self.tallies[outcome].count if outcome in self.tallies else 0

    @property
    def deleted(self) -> int:
        """How many blobs were deleted, or would be in a dry run."""
        return sum(self.count(each) for each in Outcome if each.is_deleted)

    @property
    def requests_per_blob(self) -> float:
        """Requests for each blob that was looked at."""
        return self.requests / self.seen if self.seen else 0.0

    @property
    def has_failures(self) -> bool:
        """Whether another run may do more."""
        return any(self.count(each) for each in FAILURES)
