"""What the state knows, as frozen records."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from enum import StrEnum
from typing import TypeAlias

from lakehead.errors import Misconfigured

JsonObject: TypeAlias = Mapping[str, object]
"""What `json` can write and read back equal."""

Value: TypeAlias = int | Decimal | datetime | date | str
"""A watermark's value. A datetime keeps its microseconds; with a zone it is read back in UTC, without one as it was."""

Spans: TypeAlias = tuple[tuple[int, int], ...]
"""Half-open ranges of record numbers: each holds its start and not its end."""

LAST_NUMBER = 2**63 - 2
"""The highest number that a record can have: every server can hold the end of its span too."""


@dataclass(frozen=True, slots=True)
class Pointer:
    """The snapshot up to which a table is settled, and the newest landing at or before it."""

    snapshot: int
    last_landing: int | None
    """None if the table's history up to there holds no landing of ours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
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

    Raises `Misconfigured` for a span that ends before it starts, or that a server could not hold.
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
class ReadBy:
    """What a table's rows were chosen by, when they were read up to a watermark."""

    column: str
    filter: str | None = None
    """The condition on the source's rows, as it was written, or a hash of it; None: all rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Landing:
    """What one snapshot brought into a table, as the snapshot and the ledger tell it."""

    snapshot: int
    units: tuple[str, ...]
    generation: int = 0
    watermark: Value | None = None
    slice: int | None = None
    load_date: date | None = None
    read_by: ReadBy | None = None
    numbered: tuple[Numbered, ...] = ()
    """The records that it brought, where records are numbered. They have landed for good, whatever the generation."""
    events: tuple[Event, ...] = ()


class Mark(StrEnum):
    """Which of a table's two watermarks: what its snapshots hold, or what is done, raw and mirror both."""

    LANDED = "landed"
    DONE = "done"


@dataclass(frozen=True, slots=True, kw_only=True)
class Watermark:
    """How far a table is. Within a generation it never goes back; a reload is a new generation."""

    table: str
    mark: Mark = Mark.LANDED
    generation: int = 0
    value: Value
    slice: int | None = None
    snapshot: int | None = None
    last_loaded: date | None = None
    read_by: ReadBy | None = None
    """None where no rows were chosen, or an older version wrote it."""


class DayState(StrEnum):
    """How a phase of a table stands for a load date."""

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
    """Where a unit of work stands."""

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
    """Who opened it first, or acquired it last."""
    owner: str | None
    """Who holds its lease."""
    lease_until: datetime | None
    extended_at: datetime | None
    tries: int
    snapshot: int | None
    """The snapshot in which it landed; a completed shard without one was given up as a dead letter."""
    acknowledged_at: datetime | None
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class Planned:
    """What came of the candidates. Every candidate stands in exactly one of the first four."""

    taken: tuple[str, ...]
    """Ours, on a lease extended after the fence: these may be staged."""
    landed: tuple[str, ...]
    """In the table already, or given up as dead letters: acknowledge, do not land."""
    lost: tuple[str, ...]
    """Not on our lease, or not on a fresh one: leave them to whoever has them, or extend and plan again."""
    gone: tuple[str, ...]
    """Without a row. They may have landed and been pruned, so nobody may land them on this knowledge."""
    ranges: Mapping[str, Spans] = field(default_factory=dict)
    """For each stream that was asked for, the numbers that had landed at the snapshot from which this was planned."""


@dataclass(frozen=True, slots=True)
class PointerMoved:
    """The pointer is not where the plan needs it: fence again."""

    pointer: Pointer | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """One window of a table's plan."""

    unit: str
    bounds: JsonObject
    done: bool = False
    snapshot: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SlicePlan:
    """The windows in which a table is read, fixed before the first is."""

    id: str
    table: str
    generation: int = 0
    detail: JsonObject = field(default_factory=dict)
    slices: tuple[Slice, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A unit of work that was given up, and why."""

    table: str
    unit: str
    generation: int = 0
    reason: str
    tries: int = 0
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One figure of a run, of one table or (without a table) of the whole run."""

    run: str
    name: str
    value: float
    table: str | None = None
