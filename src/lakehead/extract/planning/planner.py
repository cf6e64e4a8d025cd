"""The planner's interface: the request, the source's facts, and the plan with its reasons."""

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
        """How many rows a window holds. Raises a `LakeheadError` if unknown; the plan is then made without it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a source supports for a table that is read incrementally."""

    incremental: bool = True
    """Whether the source can read a window of a column's values."""

    kinds: frozenset[Kind] = frozenset(Kind)
    """The kinds of columns whose windows it can read."""

    literal: Callable[[Value], str] = str
    """A value as the source's own statements write it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IncrementalTable:
    """The parts of a table's configuration that a plan depends on."""

    name: str
    column: str
    """The column whose values only grow when a row is written."""

    kind: Kind
    initial_watermark: Value | None = None
    """Where the first load starts. None: at the lowest value."""

    lag_seconds: int = 0
    """How long after it took its value a row may be committed."""

    rereads: bool = True
    """Whether a row may be read twice, as a merge by key allows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannerRequest:
    """What to plan."""

    table: IncrementalTable
    slicing: SlicingPolicy
    load_date: date
    stored: Value | None = None
    """The watermark up to which the table has landed in this generation. None: nothing has."""

    lag_seconds: int = 0
    """The lag of the whole run; the larger of it and the table's applies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFacts:
    """What is known of the source, and a probe for row counts."""

    capabilities: Capabilities
    reach: Reach
    probe: RowCountProbe | None = None


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """One row count of the source."""

    lower: str | None
    upper: str
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannerMetadata:
    """The reasons for a plan, for events."""

    current_literal: str | None
    """The table's current watermark, as the source writes it."""

    lower_literal: str | None = None
    upper_literal: str | None = None
    lag_seconds: int = 0
    load_date: date
    sliced_by: SliceBy | None = None
    """None: the window was not divided."""

    estimated_rows: int | None = None
    probes: tuple[ProbeResult, ...] = ()
    probe_failure: str | None = None
    """Why counting stopped, if it did."""

    def as_payload(self) -> JsonObject:
        """The record as an event's payload."""
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
    """The slices to land, in this order. Without slices there is nothing to read, and the watermark does not move."""

    slices: tuple[Slice, ...]
    metadata: PlannerMetadata


class Planner(Protocol):
    """Decides which windows of a table are read."""

    def plan(self, request: PlannerRequest, source: SourceFacts) -> Plan:
        """The plan for a table. Raises `Misconfigured` for a table that the source cannot read incrementally."""
        ...
