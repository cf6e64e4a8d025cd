"""What a planner is asked, what it answers, and why."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from typing import Protocol

from lakehead.extract.planning.axis import Kind
from lakehead.extract.planning.slicing import SliceBy, SlicingPolicy
from lakehead.extract.planning.watermarks import Reach
from lakehead.extract.planning.windows import Slice, Window
from lakehead.state.model import JsonObject, Value


class RowCountProbe(Protocol):
    """Counts rows in a source."""

    def count(self, window: Window) -> int:
        """How many rows a window holds. Raises a `LakeheadError` if that cannot be told; the plan does without."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a source can do for a table that is read in increments."""

    incremental: bool = True
    """Whether the source can read a window of a column's values."""

    kinds: frozenset[Kind] = frozenset(Kind)
    """The kinds of columns whose windows it can read."""

    literal: Callable[[Value], str] = str
    """A value as the source's own statements write it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IncrementalTable:
    """What a plan needs to know of a table's configuration."""

    name: str
    column: str
    """The column whose values only grow when a row is written."""

    kind: Kind
    initial_watermark: Value | None = None
    """Where the first reading starts. None: at the first value."""

    lag_seconds: int = 0
    """How late a row may be committed after its value was taken."""

    rereads: bool = True
    """Whether a row may be read twice, as a merge by key allows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannerRequest:
    """What is to be planned."""

    table: IncrementalTable
    slicing: SlicingPolicy
    load_date: date
    stored: Value | None = None
    """The watermark up to which the table has landed in this generation. None: nothing has."""

    lag_seconds: int = 0
    """The lag of the whole run; the larger of it and the table's counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFacts:
    """What the source says, and whom to ask for counts."""

    capabilities: Capabilities
    reach: Reach
    probe: RowCountProbe | None = None


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """One count that was asked for."""

    lower: str | None
    upper: str
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannerMetadata:
    """Why a plan is as it is, for events."""

    current_literal: str | None
    """The watermark at which the table stands, as the source writes it."""

    lower_literal: str | None = None
    upper_literal: str | None = None
    lag_seconds: int = 0
    load_date: date
    sliced_by: SliceBy | None = None
    """None: the window was not divided."""

    estimated_rows: int | None = None
    probes: tuple[ProbeResult, ...] = ()
    probe_failure: str | None = None
    """Why counting stopped, where it did."""

    def as_payload(self) -> JsonObject:
        """The record as an event carries it."""
        return {
            "current_literal": self.current_literal,
            "lower_literal": self.lower_literal,
            "upper_literal": self.upper_literal,
            "lag_seconds": self.lag_seconds,
            "load_date": self.load_date.isoformat(),
            "sliced_by": self.sliced_by.value if self.sliced_by else None,
            "estimated_rows": self.estimated_rows,
            "probes": [{"lower": each.lower, "upper": each.upper, "rows": each.rows} for each in self.probes],
            "probe_failure": self.probe_failure,
        }


@dataclass(frozen=True, slots=True)
class Plan:
    """The slices to land, in this order. None: there is nothing to read, and the watermark stays where it is."""

    slices: tuple[Slice, ...]
    metadata: PlannerMetadata


class Planner(Protocol):
    """Decides which windows of a table are read."""

    def plan(self, request: PlannerRequest, source: SourceFacts) -> Plan:
        """The plan for a table. Raises `Misconfigured` for a table that the source cannot read in increments."""
        ...
