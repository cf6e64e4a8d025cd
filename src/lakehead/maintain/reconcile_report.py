"""What a reconciler has seen, done and could not do."""

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum

MOST_LISTED = 10_000
"""Actions, and problems, that are listed one by one. What exceeds it is counted."""


class ActionKind(StrEnum):
    """What was written, or would be."""

    ACCEPTED_BY_TIME = "accepted_by_time"
    ACCEPTED_BY_BLOB = "accepted_by_blob"
    RAW_BLOB_BY_TIME = "raw_blob_by_time"
    QUARANTINE_BY_BLOB = "quarantine_by_blob"
    REPAIR_OPENED = "repair_opened"
    REPAIR_HEALED = "repair_healed"
    ENQUEUED = "enqueued"


INDEX_KINDS = (
    ActionKind.ACCEPTED_BY_TIME,
    ActionKind.ACCEPTED_BY_BLOB,
    ActionKind.RAW_BLOB_BY_TIME,
    ActionKind.QUARANTINE_BY_BLOB,
)


class ProblemKind(StrEnum):
    """What is wrong, and is not the reconciler's to repair."""

    MISSING = "missing"
    """The frame of an accepted batch is not there."""

    CORRUPT = "corrupt"
    """The frame of an accepted batch has other bytes than were accepted."""

    UNREADABLE = "unreadable"
    """A record cannot be read."""

    FAILED = "failed"
    """Something could not be looked at, or written, and is tried again."""

    OUT_OF_REACH = "out_of_reach"
    """The frame of an accepted batch is there and cannot be read, as in an archive. Its index entries are written."""

    DELETED = "deleted"
    """An identity manifest was deleted, which nothing may do."""


INCOMPLETE = (ProblemKind.UNREADABLE, ProblemKind.FAILED, ProblemKind.DELETED)
"""Problems after which nobody knows that every reverse reference is there."""


@dataclass(frozen=True, slots=True)
class Action:
    """One thing that was written, or would be."""

    kind: ActionKind
    key: str
    """The key of what is written; of what is enqueued, the key of the identity manifest."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong."""

    kind: ProblemKind
    key: str
    text: str


@dataclass(slots=True)
class ReconcileReport:
    """What one pass has seen and done. Its memory is bounded."""

    accepted: int = 0
    """Identity manifests that were read."""

    voids: int = 0
    quarantined: int = 0
    absent: int = 0
    """Frames without an identity manifest: orphans, or uploads under way."""

    waiting: int = 0
    """Accepted batches that are queued and have not landed."""

    done: Counter[ActionKind] = field(default_factory=Counter)
    wrong: Counter[ProblemKind] = field(default_factory=Counter)
    _actions: dict[Action, None] = field(default_factory=dict)
    _problems: dict[tuple[ProblemKind, str], Problem] = field(default_factory=dict)

    def did(self, kind: ActionKind, key: str) -> None:
        """Note what was written, or would be. The same thing counts once."""
        action = Action(kind, key)
        if action in self._actions:
            return
        self.done[kind] += 1
        if len(self._actions) < MOST_LISTED:
            self._actions[action] = None

    def found(self, kind: ProblemKind, key: str, text: str) -> None:
        """Note a problem. The same one counts once."""
        if (kind, key) in self._problems:
            return
        self.wrong[kind] += 1
        if len(self._problems) < MOST_LISTED:
            self._problems[kind, key] = Problem(kind, key, text)

    @property
    def actions(self) -> tuple[Action, ...]:
        """The first actions."""
        return tuple(self._actions)

    @property
    def problems(self) -> tuple[Problem, ...]:
        """The first problems."""
        return tuple(self._problems.values())

    @property
    def indexed(self) -> int:
        """Index entries that were missing, and that were written."""
        return sum(self.done[kind] for kind in INDEX_KINDS)

    @property
    def incomplete(self) -> int:
        """Things that were not looked at, so that nobody knows that every reverse reference is there."""
        return sum(self.wrong[kind] for kind in INCOMPLETE)

    def count(self, other: "ReconcileReport") -> None:
        """Add the counts of another pass, without its lists."""
        for name in ("accepted", "voids", "quarantined", "absent", "waiting"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        # Copies: metrics are served by another thread, while the pass under way counts on.
        self.done += other.done.copy()
        self.wrong += other.wrong.copy()

    def add(self, other: "ReconcileReport") -> None:
        """Add what another pass has seen and done. What both have listed counts once."""
        for action in other.actions:
            if action in self._actions:
                self.done[action.kind] -= 1
            elif len(self._actions) < MOST_LISTED:
                self._actions[action] = None
        for problem in other.problems:
            if (problem.kind, problem.key) in self._problems:
                self.wrong[problem.kind] -= 1
            elif len(self._problems) < MOST_LISTED:
                self._problems[problem.kind, problem.key] = problem
        self.count(other)
