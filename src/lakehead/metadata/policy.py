"""What is done when the columns of a source change: a policy for each kind of change."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Drift(StrEnum):
    """A kind of change."""

    NEW = "new"
    """The source has a column that the table does not have."""

    DROPPED = "dropped"
    """The table has a column that the source does not have any more."""

    RENAMED = "renamed"
    """A column of the source has another name: known only where the server numbers columns for good (PostgreSQL)."""

    WIDENED = "widened"
    """A type has become one that holds all values of the former, and more."""

    NARROWED = "narrowed"
    """A type has become one whose values the former holds."""

    CHANGED = "changed"
    """A type has become one that is neither wider nor narrower, such as text for a number, or another scale."""

    REORDERED = "reordered"
    NULLABILITY = "nullability"
    KEY = "key"
    """The source's primary key has other columns."""


class Action(StrEnum):
    """What is done about a change."""

    EVOLVE = "evolve"
    """The table follows, without losing anything."""

    FREEZE = "freeze"
    """The table fails, and nothing is changed."""

    IGNORE = "ignore"
    """The table stays as it is, and is loaded as far as it goes."""

    QUARANTINE = "quarantine"
    """The table is set aside: it is skipped with the reason, the run does not fail, and nothing is changed."""


DEFAULTS: Mapping[Drift, Action] = {
    Drift.NEW: Action.EVOLVE,
    Drift.DROPPED: Action.FREEZE,
    Drift.RENAMED: Action.FREEZE,
    Drift.WIDENED: Action.EVOLVE,
    Drift.NARROWED: Action.EVOLVE,
    Drift.CHANGED: Action.FREEZE,
    Drift.REORDERED: Action.EVOLVE,
    Drift.NULLABILITY: Action.EVOLVE,
    Drift.KEY: Action.FREEZE,
}
"""What adds or loosens is followed; what would lose values, or let them mean something else, stops the table."""

NEEDS_SNAPSHOT = (Drift.RENAMED, Drift.NARROWED, Drift.REORDERED, Drift.NULLABILITY, Drift.KEY)
"""The kinds that are told by the snapshot of the last load, and not by the table alone."""

IMPOSSIBLE: Mapping[Drift, Mapping[Action, str]] = {
    Drift.CHANGED: dict.fromkeys((Action.EVOLVE, Action.IGNORE), "no column holds values of both types exactly"),
    Drift.RENAMED: {Action.IGNORE: "neither of the names would get values any more"},
}
"""Actions that a kind cannot have, and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaPolicy:
    """The policy of one table."""

    actions: Mapping[Drift, Action] = field(default_factory=dict)
    """Where they differ from the defaults."""

    require_snapshot: bool = False
    """Whether a table without a snapshot of the source's catalogue is refused."""

    allow_missing_columns: bool = False
    """Whether a column that the source no longer has is filled with NULL: the same as `evolve` for dropped ones."""

    allow_new_columns: bool = True
    """Whether a new column is added; if not, it stops the table: the same as `freeze` for new ones."""

    def action(self, drift: Drift, *, merges: bool = True) -> Action:
        """What is done about a kind of change. `merges`: whether rows are merged by key."""
        if drift in self.actions:
            return self.actions[drift]
        if drift is Drift.DROPPED and self.allow_missing_columns:
            return Action.EVOLVE
        if drift is Drift.NEW and not self.allow_new_columns:
            return Action.FREEZE
        if drift is Drift.KEY and not merges:
            return Action.EVOLVE  # a key that nothing is merged by
        return DEFAULTS[drift]
