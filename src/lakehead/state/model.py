"""The records of the state, all frozen."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import TypeAlias

from lakehead.errors import Misconfigured

JsonObject: TypeAlias = Mapping[str, object]
"""An object that is equal after a round trip through `json`."""

Value: TypeAlias = int | Decimal | datetime | date | str
"""A watermark's value. A datetime keeps its microseconds; with a zone it is read back in UTC, without one as it was."""

Spans: TypeAlias = tuple[tuple[int, int], ...]
"""Half-open ranges of record numbers: the start is included, the end is not."""

LAST_NUMBER = 2**63 - 2
"""The highest number that a record can have, so that every server can store the end of its span too."""


@dataclass(frozen=True, slots=True)
class StoredPointer:
    """The snapshot up to which a table is settled, and the newest landing at or before it."""

    snapshot: int
    last_landing: int | None
    """None if the table's history up to there holds no landing of ours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRecord:
    """Something that happened. Its id makes a repeated write harmless."""

    id: str
    at: datetime
    kind: str
    table: str | None = None
    run: str | None = None
    payload: JsonObject = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Numbered:
    """The numbers that records have in a stream, such as an agent's boot. The spans may overlap and come in any order.

    Raises `Misconfigured` for a span that ends before it starts, or that a server could not store.
    """

    stream: str
    spans: Spans

    def __post_init__(self) -> None:
        for start, end in self.spans:
            if not 0 <= start <= end <= LAST_NUMBER + 1:
                raise Misconfigured(
                    f"The stream {self.stream!r} cannot have the records from {start} up to, not including, {end}. "
                    f"Records are numbered upwards, from 0 to {LAST_NUMBER} at most."
                )


@dataclass(frozen=True, slots=True)
class ObjectProgress:
    """How much of an object has landed, if it is too large for one landing: always a beginning of it."""

    bytes: int
    """It landed up to this byte."""

    rows: int
    """So many of its records have landed; the next one has this number."""

    etag: str
    """The content that they are of. An object with another one must not be continued."""


@dataclass(frozen=True, slots=True)
class ReadBy:
    """The column and filter by which a table's rows were selected, when they were read up to a watermark."""

    column: str
    filter: str | None = None
    """The condition on the source's rows, as configured, or a hash of it; None: all rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredLanding:
    """What one snapshot landed in a table, as recorded in the snapshot and in the ledger."""

    snapshot: int
    units: tuple[str, ...]
    generation: int = 0
    watermark: Value | None = None
    slice: int | None = None
    load_date: date | None = None
    read_by: ReadBy | None = None
    numbered: tuple[Numbered, ...] = ()
    """The records that it landed, if records are numbered. They count as landed in every generation."""
    events: tuple[EventRecord, ...] = ()
    begun: Mapping[str, ObjectProgress] = field(default_factory=dict)
    """Units of which it landed a part that is not the last, and how far they have landed with it. They stay open."""


class Mark(StrEnum):
    """Which of a table's two watermarks: of the rows that have landed, or of those that are done in raw and mirror."""

    LANDED = "landed"
    DONE = "done"


@dataclass(frozen=True, slots=True, kw_only=True)
class Watermark:
    """How far a table is. Within a generation it never moves back; a reload is a new generation."""

    table: str
    mark: Mark = Mark.LANDED
    generation: int = 0
    value: Value
    slice: int | None = None
    snapshot: int | None = None
    last_loaded: date | None = None
    read_by: ReadBy | None = None
    """None if no rows were selected, or an older version wrote it."""


class DayState(StrEnum):
    """The state of a phase of a table for a load date."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class DayStatus:
    """One phase of one table for one load date."""

    table: str
    load_date: date
    phase: str
    state: DayState
    run: str | None = None
    detail: JsonObject = field(default_factory=dict)


class ShardState(StrEnum):
    """The state of a unit of work."""

    READY = "ready"
    IN_PROGRESS = "in progress"
    AWAITING_COMMIT = "awaiting commit"
    COMPLETED = "completed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """One unit of work of one generation of a table."""

    table: str
    unit: str
    generation: int
    state: ShardState
    publish_token: str
    """The owner that opened it first, or acquired it last."""
    owner: str | None
    """The owner of its lease."""
    lease_until: datetime | None
    extended_at: datetime | None
    tries: int
    snapshot: int | None
    """The snapshot in which it landed; a completed shard without one was given up as a dead letter."""
    acknowledged_at: datetime | None
    updated_at: datetime
    landed_part: ObjectProgress | None = None
    """How far it has landed, if it lands in several parts; not changed by the last of them."""


@dataclass(frozen=True, slots=True)
class PruneLimits:
    """How long, and how many, acknowledged shards are kept, so that messages that come again are recognised."""

    window: timedelta
    """The deduplication window: longer than the queue keeps a message."""

    most_shards: int | None = None
    """At most so many acknowledged shards of the table; None: any number."""


@dataclass(frozen=True, slots=True)
class LandedShard:
    """A unit that has landed, and in which snapshot."""

    unit: str
    snapshot: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """What a pruning did."""

    expired: int
    """Shards deleted because their window was over."""

    over_limit: int
    """Shards deleted because there were more than `most_shards`."""

    paused: bool
    """Whether a pause stopped it: the rest is deleted when the pause has ended."""

    limits: PruneLimits
    """The largest limits of the table's pipelines, by which it was pruned."""


@dataclass(frozen=True, slots=True)
class Planned:
    """The result of a plan. Every candidate is in exactly one of the first four fields."""

    taken: tuple[str, ...]
    """Ours, on a lease extended after the fence: these may be staged."""
    landed: tuple[str, ...]
    """In the table already, or given up as dead letters: acknowledge, do not land."""
    lost: tuple[str, ...]
    """Not on our lease, or not on a recently extended one: skip them, or extend the lease and plan again."""
    gone: tuple[str, ...]
    """Without a row. They may have landed and been pruned, so they must not be landed."""
    ranges: Mapping[str, Spans] = field(default_factory=dict)
    """For each requested stream, the numbers that had landed at the snapshot from which this was planned."""
    begun: Mapping[str, ObjectProgress] = field(default_factory=dict)
    """How far units that were taken had landed in parts at that snapshot."""


@dataclass(frozen=True, slots=True)
class PointerMoved:
    """The pointer is at another snapshot than the plan requires: fence again."""

    pointer: StoredPointer | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSlice:
    """One window of a table's plan."""

    unit: str
    bounds: JsonObject
    done: bool = False
    snapshot: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SlicePlan:
    """The windows in which a table is read, fixed before the first one is read."""

    id: str
    table: str
    generation: int = 0
    detail: JsonObject = field(default_factory=dict)
    slices: tuple[StoredSlice, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A unit of work that was given up, and why: the index of the dead letters that are objects."""

    table: str
    unit: str
    generation: int = 0
    reason: str
    tries: int = 0
    at: datetime
    replayed_at: datetime | None = None
    """Since when its unit is tried again; None if it is given up."""

    dropped_at: datetime | None = None
    """When it was dropped: its unit is never tried again."""


class FileState(StrEnum):
    """What became of a file."""

    LANDED = "landed"
    FAILED = "failed"
    """It is tried again."""
    DEAD_LETTER = "dead letter"
    DROPPED = "dropped"
    SKIPPED = "skipped"
    """A filter left it out, or it holds nothing to land."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileOutcome:
    """What became of a file this time."""

    unit: str
    generation: int = 0
    state: FileState
    rows: int = 0
    bytes: int = 0
    rescued_rows: int = 0
    """Rows of which a value did not fit its column and went to the column of rescued values."""

    tries: int = 0
    error: str | None = None
    """Why it failed, with line and column if they are known. Long texts are cut."""

    snapshot: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRecord:
    """The history of a file: its last outcome, its first and last error, and when."""

    table: str
    unit: str
    generation: int
    state: FileState
    rows: int
    bytes: int
    rescued_rows: int
    tries: int
    first_error: str | None
    last_error: str | None
    snapshot: int | None
    first_seen: datetime
    changed_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric of a run, of one table or (without a table) of the whole run."""

    run: str
    name: str
    value: float
    table: str | None = None
