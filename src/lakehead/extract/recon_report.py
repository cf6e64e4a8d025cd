"""What a comparison of a table with its source has found."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Outcome(StrEnum):
    """How a comparison ended."""

    EQUAL = "equal"
    DIFFERENT = "different"
    NOT_COMPARED = "not_compared"
    """There is no point at which both sides can be compared."""
    FAILED = "failed"
    """An error has ended the comparison, as when the source does not answer."""
    MISCONFIGURED = "misconfigured"
    """The table cannot be compared as it is configured."""


class Difference(StrEnum):
    """How a key of the target differs from the source."""

    MISSING = "missing"
    """The source has it, the target does not."""
    EXTRA = "extra"
    """The target has it, the source does not."""
    DOUBLED = "doubled"
    """The target has more rows of it than the source."""
    FEWER = "fewer"
    """The target has fewer rows of it than the source."""
    CHANGED = "changed"
    """Its values differ."""


@dataclass(frozen=True, slots=True)
class KeyDifference:
    """One key that differs."""

    kind: Difference
    bucket: int
    key: str
    """Its canonical text, as in `source.hash_sql`."""


@dataclass(frozen=True, slots=True)
class NumberDifference:
    """A sum, minimum or maximum that differs."""

    column: str
    what: str
    source: str | None
    target: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconReport:
    """The result of comparing one table with its source."""

    table: str
    outcome: Outcome
    point: str = ""
    """Up to where both sides were compared."""
    source_rows: int | None = None
    target_rows: int | None = None
    pending: int = 0
    """Rows that were written in the source after the point. They are no differences."""
    buckets: int = 0
    """Buckets that differ."""
    not_opened: int = 0
    """Buckets that differ and were not compared key by key."""
    differences: Mapping[Difference, int] = field(default_factory=dict)
    """The number of differing keys by kind, in the buckets that were compared key by key."""
    keys: tuple[KeyDifference, ...] = ()
    """The first of them."""
    numbers: tuple[NumberDifference, ...] = ()
    skipped: Mapping[str, str] = field(default_factory=dict)
    """Columns that were not compared, with the reason."""
    notes: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def is_equal(self) -> bool:
        """Whether nothing differs, as far as it was compared."""
        return self.outcome is Outcome.EQUAL
