"""The default planner: divides a window into slices by row counts, by duration, or evenly."""

from collections.abc import Callable
from dataclasses import dataclass, field

from lakehead.errors import LakeheadError, Misconfigured
from lakehead.extract.planning.axis import DAY, SECOND, Axis, Kind
from lakehead.extract.planning.planner import (
    Capabilities,
    IncrementalTable,
    Plan,
    PlannerMetadata,
    PlannerRequest,
    ProbeResult,
    RowCountProbe,
    SourceFacts,
)
from lakehead.extract.planning.slicing import Piece, SliceBy, SlicingPolicy, by_rows, by_width, evenly
from lakehead.extract.planning.watermarks import Reach, lower_bound, nothing_between, upper_bound
from lakehead.extract.planning.windows import Bound, Slice, Window
from lakehead.state.model import Value


class AdaptivePlanner:
    """Divides a window that holds more rows than a slice should, as far as it is known where they are."""

    def plan(self, request: PlannerRequest, source: SourceFacts) -> Plan:
        """The plan for a table. Its slices cover the window without gaps or overlaps, and never split equal values."""
        table, can, reach = request.table, source.capabilities, source.reach
        _check(table, can)
        lag = max(table.lag_seconds, request.lag_seconds)
        lower = lower_bound(
            table.kind,
            stored=request.stored,
            initial=table.initial_watermark,
            lag_seconds=lag,
            rereads=table.rereads,
        )
        upper = upper_bound(table.kind, reach, lag_seconds=lag)
        probing = _Probing(source.probe if request.slicing.probe else None, can.literal)
        slices: tuple[Slice, ...] = ()
        cut: SliceBy | None = None
        total: int | None = None
        if upper is not None and not nothing_between(table.kind, lower, upper, reach, request.stored):
            window = Window(lower, upper)
            total = probing.count(window)
            if total != 0:
                pieces, cut = _divide(request, reach, window, total, probing)
                slices = _slices(request.stored, pieces)
        metadata = PlannerMetadata(
            current_literal=None if request.stored is None else can.literal(request.stored),
            lower_literal=None if lower is None else can.literal(lower.value),
            upper_literal=None if upper is None else can.literal(upper.value),
            lag_seconds=lag,
            load_date=request.load_date,
            sliced_by=cut,
            estimated_rows=total,
            probes=tuple(probing.results),
            probe_failure=probing.failure,
        )
        return Plan(slices, metadata)


@dataclass(slots=True)
class _Probing:
    """The probe of one plan, its counts, and why it failed, if it did."""

    probe: RowCountProbe | None
    literal: Callable[[Value], str]
    results: list[ProbeResult] = field(default_factory=list)
    failure: str | None = None

    def count(self, window: Window) -> int | None:
        if self.probe is None:
            return None
        try:
            rows = max(0, self.probe.count(window))
        except LakeheadError as error:
            self.failure = str(error)
            return None
        lower = None if window.lower is None else self.literal(window.lower.value)
        self.results.append(ProbeResult(lower, self.literal(window.upper.value), rows))
        return rows


@dataclass(frozen=True, slots=True)
class _Cut:
    """A part of a window, and its estimated rows."""

    window: Window
    rows: int | None


def _check(table: IncrementalTable, can: Capabilities) -> None:
    if not can.incremental:
        raise Misconfigured(
            f"The source of {table.name} cannot be read incrementally. Set the table's mode to full, or read it with "
            "another dialect."
        )
    if table.kind not in can.kinds:
        known = ", ".join(sorted(can.kinds))
        raise Misconfigured(
            f"The source of {table.name} cannot read windows of the column {table.column!r}, which is of the kind "
            f"{table.kind}. Choose a column of one of these kinds: {known}."
        )


def _divide(
    request: PlannerRequest, reach: Reach, window: Window, total: int | None, probing: _Probing
) -> tuple[list[_Cut], SliceBy | None]:
    policy, kind = request.slicing, request.table.kind
    whole = [_Cut(window, total)], None
    if not policy.enabled or kind is Kind.TEXT or (total is not None and total <= policy.target_rows):
        return whole
    start = window.lower.value if window.lower else None
    axis = Axis.through(kind, window.upper.value, start, reach.lowest, request.stored)
    span = _span(axis, request.stored, reach, window, total)
    if span is None or span.first >= span.last:
        return whole

    def between(first: int, last: int) -> Window:
        # The watermark at the end of each slice is included or excluded in the same way as that of the whole window.
        included = window.upper.included
        return Window(
            window.lower if first == span.first else Bound(axis.value(first - included), included=not included),
            window.upper if last == span.last else Bound(axis.value(last + (not included)), included=included),
        )

    most = policy.max_partitions
    width = _width(kind, policy)
    match policy.by:
        case SliceBy.ROWS if total is not None:
            pieces = by_rows(
                span,
                lambda first, last: probing.count(between(first, last)),
                target=policy.target_rows,
                most=most,
                probes=policy.max_probes,
            )
            cut = SliceBy.ROWS
        case SliceBy.ROWS | SliceBy.DURATION if width is not None:
            pieces, cut = by_width(span, width, most), SliceBy.DURATION
        case SliceBy.ROWS:
            return whole
        case _:
            slices = most if total is None else min(most, -(-total // policy.target_rows))
            pieces, cut = evenly(span, slices), SliceBy.EVEN
    if len(pieces) == 1:
        return whole
    return [_Cut(between(piece.first, piece.last), piece.rows) for piece in pieces], cut


def _span(axis: Axis, stored: Value | None, reach: Reach, window: Window, total: int | None) -> Piece | None:
    """The ticks between which a window can be divided; None if it is unknown where its rows begin."""
    included = window.upper.included
    starts = [] if reach.lowest is None else [axis.tick(reach.lowest)]
    if window.lower is not None:
        starts.append(axis.tick(window.lower.value))
    if stored is not None:
        # Even if the lag has lowered the bound: a slice's end is the next watermark, and watermarks only grow.
        starts.append(axis.tick(stored) + (1 if included else 0))
    if not starts:
        return None
    last = axis.tick(window.upper.value) - (0 if included else 1)
    if reach.highest is not None:
        last = min(last, axis.tick(reach.highest))
    return Piece(max(starts), last, total)


def _width(kind: Kind, policy: SlicingPolicy) -> int | None:
    """How many ticks a slice by duration has; None if the kind does not follow the clock."""
    if policy.slice_seconds is None:
        return None
    match kind:
        case Kind.TIMESTAMP | Kind.TIMESTAMPTZ:
            return policy.slice_seconds * SECOND
        case Kind.DATE:
            return max(1, policy.slice_seconds // DAY)
        case _:
            return None


def _slices(stored: Value | None, pieces: list[_Cut]) -> tuple[Slice, ...]:
    marks = [stored, *(piece.window.upper.value for piece in pieces)]
    return tuple(
        Slice(window=piece.window, after=after, estimated_rows=piece.rows)
        for piece, after in zip(pieces, marks[:-1], strict=True)
    )
