"""The events of a run, as typed records. Dashboards and logs rely on each `kind` and on the field names."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import date, datetime, timedelta
from enum import Enum
from math import isfinite
from typing import ClassVar


def as_json(value: object) -> object:
    """Convert any value to one that JSON can hold. Dates, timestamps and unknown types become text."""
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
class Event:
    """Base class of all events."""

    kind: ClassVar[str]

    def payload(self) -> dict[str, object]:
        """Return the fields as JSON values, without those that are None."""
        values = ((each.name, getattr(self, each.name)) for each in fields(self))
        return {name: as_json(value) for name, value in values if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStart(Event):
    """A run has started."""

    kind: ClassVar[str] = "run_start"
    pipeline: str
    tables: int
    load_date: date


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDone(Event):
    """A run has ended. Every table is counted in exactly one of the numbers."""

    kind: ClassVar[str] = "run_done"
    done: int
    skipped: int
    failed: int
    not_ended: int = 0
    """Tables that were not started or not finished when the run was stopped."""

    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat(Event):
    """Periodic progress of the whole run."""

    kind: ClassVar[str] = "heartbeat"
    total: int
    done: int
    failed: int
    rows: int = 0
    """Rows read so far, over all tables."""

    spark: Mapping[str, int | float] | None = None
    """Spark's counts since the run started: tasks_active, tasks_done, tasks_failed, bytes_read, bytes_written,
    bytes_spilled, gc_seconds. None if Spark did not answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventsLost(Event):
    """A subscriber did not get, or could not handle, some events. Emitted at the end of a run, once for each."""

    kind: ClassVar[str] = "events_lost"
    subscriber: str
    count: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TableStart(Event):
    """A table has started."""

    kind: ClassVar[str] = "table_start"
    mode: str
    load_date: date
    reload: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TableStep(Event):
    """What a table is doing now, and how far it is."""

    kind: ClassVar[str] = "table_progress"
    step: str
    """A few words, such as "reading" or "merging into the mirror"."""

    rows: int | None = None
    """Rows landed in this run so far."""

    slice: int | None = None
    """Number of the slice being read, from 1."""

    slices: int | None = None
    """Number of slices in the plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDescribed(Event):
    """The columns of a table, as they are read from the source."""

    kind: ClassVar[str] = "table_described"
    columns: Mapping[str, str]
    """The type of each column in the source, by name and in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataCollected(Event):
    """The tables of one schema of a source were snapshotted before the run, or the cache had their snapshots."""

    kind: ClassVar[str] = "metadata_collected"
    source: str
    schema: str | None
    tables: int
    collected_at: datetime | None
    from_cache: bool
    damaged: str | None = None
    """Why what the cache had could not be read, so that it was collected again."""

    skipped: str | None = None
    """Why the source cannot be asked."""

    error: str | None = None
    """Why it was not collected. Tables are loaded all the same, unless they require a snapshot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaDrifted(Event):
    """The columns of a source have changed, and what is done about it. One event for each change."""

    kind: ClassVar[str] = "schema_drift"
    drift: str
    """new, dropped, renamed, widened, narrowed, changed, reordered, nullability or key."""

    action: str
    """evolve, freeze, ignore or quarantine."""

    column: str
    old: str | None
    """The former type; of a key or an order, what it was. None for a new column."""

    new: str | None
    """The present type; None for a dropped column."""

    renamed_to: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotDamaged(Event):
    """What the metadata cache had of a table's last load could not be read: some changes since cannot be told."""

    kind: ClassVar[str] = "snapshot_damaged"
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TableStale(Event):
    """A table is older than its `max_staleness`. An alert: emitted at the start of a run, at its end, or both."""

    kind: ClassVar[str] = "table_stale"
    when: str
    """start or end: of the run."""

    by: str
    """What tells how fresh the table is: watermark, or landing if its watermark is no time."""

    fresh_at: datetime | None
    """The watermark, or the time of the last landing; None if the table never landed."""

    seconds: float | None
    """How old that is; None if the table never landed."""

    max_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TableWaiting(Event):
    """A table waits for another process or service. Emitted once per wait."""

    kind: ClassVar[str] = "table_waits"
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LateCommitsUnknown(Event):
    """The source does not report all open transactions. Rows they commit after the read may be missed."""

    kind: ClassVar[str] = "late_commits_unknown"
    reason: str
    lag_seconds: int
    """The configured lag, which protects against transactions shorter than it; 0 if there is none."""

    accepted: bool
    """Whether the configuration accepts this risk (`late_commits: accept`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableHeldBack(Event):
    """A table is not read up to the source's current time, because an open transaction may still add rows."""

    kind: ClassVar[str] = "table_held_back"
    by: str
    since: datetime
    """When that transaction started."""

    seconds: float
    """How far the table is behind because of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePlanned(Event):
    """The slices of a table are planned and stored."""

    kind: ClassVar[str] = "table_planned"
    slices: int
    done: int
    """Slices that an earlier run has already landed."""

    resumed: bool
    planner: Mapping[str, object] = field(default_factory=dict)
    """Planner metadata for debugging: literals, estimated rows, probe results."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseMarked(Event):
    """A phase of a table has completed or failed."""

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
class TableDone(Event):
    """A table was loaded."""

    kind: ClassVar[str] = "table_done"
    rows: int
    """Rows read from the source in this run."""

    published: int | None = None
    """Rows written to the mirror or final table in this run, including rows that an earlier run had read."""

    seconds: float
    slices: int | None = None
    watermark: str | None = None
    """The new watermark, as text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSkipped(Event):
    """A table had nothing to load."""

    kind: ClassVar[str] = "table_skipped"
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFailed(Event):
    """A table has failed. Other tables continue."""

    kind: ClassVar[str] = "table_failed"
    error: str
    """What went wrong and what to do, in one sentence."""

    error_kind: str
    stack_hash: str
    """Groups failures: equal for the same error raised at the same place."""

    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineStarted(Event):
    """A pipeline has begun to consume its queue."""

    kind: ClassVar[str] = "pipeline_started"
    pipeline: str
    queue: str
    warning: str | None = None
    """What may lose or double data with these settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineProgress(Event):
    """How far a pipeline is, since it started."""

    kind: ClassVar[str] = "pipeline_progress"
    pipeline: str
    counts: Mapping[str, int]
    held_messages: int
    rows_per_second: float
    """Since the last report."""

    lag_seconds: float | None = None
    """The age of the oldest message that is held, if the queue tells it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineEnded(Event):
    """A pipeline was stopped, has nothing more to do, or has failed."""

    kind: ClassVar[str] = "pipeline_ended"
    pipeline: str
    counts: Mapping[str, int]
    seconds: float
    error: str | None = None
    """Why it failed, and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StagingCleaned(Event):
    """Expired staging directories were removed."""

    kind: ClassVar[str] = "staging_cleaned"
    root: str
    removed: int
    not_landed: int = 0
    """Directories that never landed: their writer is still running elsewhere, or was killed."""
    error: str | None = None
    """Why the clean-up stopped early."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableReconciled(Event):
    """A table was compared with its source."""

    kind: ClassVar[str] = "table_reconciled"
    outcome: str
    """equal, different, not_compared or failed."""
    point: str | None = None
    """Up to where both sides were compared."""
    source_rows: int | None = None
    target_rows: int | None = None
    differences: Mapping[str, int] = field(default_factory=dict)
    """Keys that are missing, extra, doubled, fewer or changed in the target."""
    reason: str | None = None
    """Why it was not compared, and what to do."""
    seconds: float
