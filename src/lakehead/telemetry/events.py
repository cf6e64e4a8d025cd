"""What can happen in a run, as typed records. Their names and fields are what dashboards and logs are built on."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import date, datetime, timedelta
from enum import Enum
from math import isfinite
from typing import ClassVar


def as_json(value: object) -> object:
    """A value as JSON has it, whatever it is: moments are text, and so is all that JSON has no word for."""
    match value:
        case Enum():
            return as_json(value.value)
        case None | bool() | int() | str():
            return value
        case float():
            return value if isfinite(value) else str(value)
        case date():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case Mapping():
            return {str(as_json(key)): as_json(inner) for key, inner in value.items()}
        case list() | tuple() | set() | frozenset():
            return [as_json(inner) for inner in value]
        case _:
            return str(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Happened:
    """Something that happened in a run."""

    kind: ClassVar[str]

    def payload(self) -> dict[str, object]:
        """Its fields as JSON has them; those without a value are left out."""
        told = ((each.name, getattr(self, each.name)) for each in fields(self))
        return {name: as_json(value) for name, value in told if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStart(Happened):
    """A run begins."""

    kind: ClassVar[str] = "run_start"
    pipeline: str
    tables: int
    load_date: date


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDone(Happened):
    """A run has ended; every table is in one of the numbers."""

    kind: ClassVar[str] = "run_done"
    done: int
    skipped: int
    failed: int
    not_ended: int = 0
    """Not begun, or begun and not ended, when somebody stopped the run."""

    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat(Happened):
    """How a run stands."""

    kind: ClassVar[str] = "heartbeat"
    total: int
    done: int
    failed: int
    rows: int = 0
    """Rows of all tables so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableStart(Happened):
    """A table is begun."""

    kind: ClassVar[str] = "table_start"
    mode: str
    load_date: date
    reload: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TableProgress(Happened):
    """How far a table is: what it is doing, and how much of that is done."""

    kind: ClassVar[str] = "table_progress"
    step: str
    """In a few words: reading, merging into the mirror, waiting for another run."""

    rows: int | None = None
    """The rows that have landed in this run so far."""

    slice: int | None = None
    """Which slice is being read, from 1."""

    slices: int | None = None
    """How many slices the plan has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableWaits(Happened):
    """A table is held up by somebody else: told once for each wait."""

    kind: ClassVar[str] = "table_waits"
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LateCommitsUnknown(Happened):
    """The source does not tell of all open transactions: what they commit after the read may be missed."""

    kind: ClassVar[str] = "late_commits_unknown"
    reason: str
    lag_seconds: int
    """The lag that protects, as long as no transaction lasts longer; 0: none."""

    accepted: bool
    """Whether the configuration says that the table is read all the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableHeldBack(Happened):
    """A table is not read up to the source's time, because an open transaction may still bring rows."""

    kind: ClassVar[str] = "table_held_back"
    by: str
    since: datetime
    """When that transaction began."""

    seconds: float
    """How far the table stays behind because of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePlanned(Happened):
    """The windows that a table is read in are fixed and stored."""

    kind: ClassVar[str] = "table_planned"
    slices: int
    done: int
    """Of them, those that an earlier run has landed."""

    resumed: bool
    planner: Mapping[str, object] = field(default_factory=dict)
    """Why the plan is as it is: literals, estimated rows, probes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseMarked(Happened):
    """A phase of a table is done, or has failed."""

    kind: ClassVar[str] = "phase"
    phase: str
    """raw, finalized, intermediate or watermark."""

    state: str
    """done or failed."""

    rows: int | None = None
    location: str | None = None
    snapshot: int | None = None
    detail: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDone(Happened):
    """A table is loaded."""

    kind: ClassVar[str] = "table_done"
    rows: int
    """Read from the source in this run."""

    published: int | None = None
    """Written for readers in this run, whichever run has read them: merged into the mirror, or into the final."""

    seconds: float
    slices: int | None = None
    watermark: str | None = None
    """Where the table stands now, as text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSkipped(Happened):
    """There was nothing to do for a table."""

    kind: ClassVar[str] = "table_skipped"
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFailed(Happened):
    """A table has failed; the others go on."""

    kind: ClassVar[str] = "table_failed"
    error: str
    """One sentence that says what to do."""

    error_kind: str
    stack_hash: str
    """The same for the same fault at the same place."""

    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StagingCleaned(Happened):
    """Staging directories that had landed and had their time are gone."""

    kind: ClassVar[str] = "staging_cleaned"
    root: str
    removed: int
    not_landed: int = 0
    """Directories of writers that are at work elsewhere, or that were killed: only a person can tell which."""
    error: str | None = None
    """Why it ended early."""
