"""What the state knows, as frozen records."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from enum import StrEnum
from typing import TypeAlias

JsonObject: TypeAlias = Mapping[str, object]
"""What `json` can write and read back equal."""

Value: TypeAlias = int | Decimal | datetime | date | str
"""A watermark's value. A datetime keeps its microseconds; with a zone it is read back in UTC, without one as it was."""


@dataclass(frozen=True, slots=True)
class Pointer:
    """The snapshot up to which a table's landings are settled, and its sequence number."""

    snapshot: int
    sequence: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened. Its id makes a repeated write harmless."""

    id: str
    at: datetime
    kind: str
    table: str | None = None
    run: str | None = None
    payload: JsonObject = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Landing:
    """What one snapshot brought into a table, as the snapshot and the ledger tell it."""

    at: Pointer
    units: tuple[str, ...]
    generation: int = 0
    watermark: Value | None = None
    slice: int | None = None
    load_date: date | None = None
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
    """What came of the candidates. Every candidate stands in exactly one of the four."""

    taken: tuple[str, ...]
    """Ours, on a lease extended after the fence: these may be staged."""
    landed: tuple[str, ...]
    """In the table already, or given up as dead letters: acknowledge, do not land."""
    lost: tuple[str, ...]
    """Not on our lease, or not on a fresh one: leave them to whoever has them, or extend and plan again."""
    gone: tuple[str, ...]
    """Without a row. They may have landed and been pruned, so nobody may land them on this knowledge."""


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
