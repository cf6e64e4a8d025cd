"""Divides a span of ticks by duration, by rows, or evenly. Rows with the same value always stay together."""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from lakehead.errors import Misconfigured

MOST_SLICES = 10_000
"""The highest allowed `max_partitions`."""

MOST_PROBES = 1_000
"""The highest allowed `max_probes`."""


class SliceBy(StrEnum):
    """By what a window is divided into slices of equal size."""

    ROWS = "rows"
    DURATION = "duration"
    EVEN = "even"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlicingPolicy:
    """How a large window is divided. Raises `Misconfigured` for numbers out of range."""

    enabled: bool = True
    """Whether windows are divided at all."""

    by: SliceBy = SliceBy.ROWS
    """By rows, by duration, or in slices of equal width."""

    target_rows: int = 5_000_000
    """The most rows that a slice should have. A window that has no more is one slice, whatever `by` says."""

    slice_seconds: int | None = None
    """The length of a slice by duration, also used by rows if they cannot be counted. None: not divided by time."""

    max_partitions: int = 64
    """The most slices that a plan may have; it overrides every target."""

    probe: bool = True
    """Whether rows may be counted in the source."""

    max_probes: int = 32
    """The most counts that a plan may ask for. If they are not enough, rows are assumed to be spread evenly."""

    def __post_init__(self) -> None:
        limits = {
            "target_rows": (self.target_rows, None),
            "slice_seconds": (1 if self.slice_seconds is None else self.slice_seconds, None),
            "max_partitions": (self.max_partitions, MOST_SLICES),
            "max_probes": (self.max_probes, MOST_PROBES),
        }
        for name, (value, most) in limits.items():
            if value < 1 or (most is not None and value > most):
                upto = f" and at most {most}" if most else ""
                raise Misconfigured(f"The slicing policy has {name} = {value}. It must be at least 1{upto}.")


@dataclass(frozen=True, slots=True)
class Piece:
    """The ticks from `first` to `last`, both included, and how many rows they hold, if that is known."""

    first: int
    last: int
    rows: int | None = None


Count = Callable[[int, int], int | None]
"""How many rows the ticks from one to another hold, both included; None if unknown."""


def evenly(span: Piece, slices: int) -> list[Piece]:
    """Divide the span into that many pieces of equal width, or fewer if there are not enough ticks."""
    width = span.last - span.first + 1
    slices = min(slices, width)
    starts = [span.first + width * number // slices for number in range(slices)]
    rows = [None if span.rows is None else _share(span.rows, number, slices) for number in range(slices)]
    ends = [start - 1 for start in starts[1:]] + [span.last]
    return [Piece(*piece) for piece in zip(starts, ends, rows, strict=True)]


def by_width(span: Piece, width: int, most: int) -> list[Piece]:
    """Divide the span into pieces of this width, the last one shorter; into wider ones if there were over `most`."""
    if -(-(span.last - span.first + 1) // width) > most:
        return evenly(span, most)
    starts = range(span.first, span.last + 1, width)
    return [Piece(start, min(start + width - 1, span.last)) for start in starts]


def by_rows(span: Piece, count: Count, *, target: int, most: int, probes: int) -> list[Piece]:
    """Divide the span into at most `most` pieces of at most `target` rows each, as far as values and `most` allow.

    The largest piece is halved until none is too large, those that are hold a single value, or the probes are used up.
    What is still too large is divided as if its rows were spread evenly; small neighbours are joined again.
    """
    total = span.rows or 0
    wanted = max(target, -(-total // most))
    pieces: list[Piece] = []
    heap = [(-total, span.first, span)]
    while heap and probes:
        _, _, piece = heapq.heappop(heap)
        rows = piece.rows or 0
        if rows <= wanted or piece.first == piece.last:
            pieces.append(piece)
            continue
        middle = (piece.first + piece.last + 1) // 2
        left = count(piece.first, middle - 1)
        probes -= 1
        if left is None:
            heapq.heappush(heap, (-rows, piece.first, piece))
            break
        left = min(max(left, 0), rows)  # rows come and go while they are counted
        for half in (Piece(piece.first, middle - 1, left), Piece(middle, piece.last, rows - left)):
            heapq.heappush(heap, (-(half.rows or 0), half.first, half))
    for _, _, piece in heap:
        pieces += evenly(piece, min(most, max(1, -(-(piece.rows or 0) // wanted))))
    return _packed(sorted(pieces, key=lambda piece: piece.first), wanted, most)


def _packed(pieces: Sequence[Piece], target: int, most: int) -> list[Piece]:
    """Join neighbours, up to the smallest number of rows from the target on that gives at most `most` pieces."""
    least, enough = target, max(target, sum(piece.rows or 0 for piece in pieces))
    while least < enough:
        middle = (least + enough) // 2
        if len(_joined(pieces, middle)) <= most:
            enough = middle
        else:
            least = middle + 1
    return _joined(pieces, enough)


def _joined(pieces: Sequence[Piece], target: int) -> list[Piece]:
    joined: list[Piece] = []
    for piece in pieces:
        rows = piece.rows or 0
        held = (joined[-1].rows or 0) if joined else 0
        # An empty piece never becomes a slice: it is joined with its neighbour.
        if joined and (rows == 0 or held == 0 or held + rows <= target):
            joined[-1] = Piece(joined[-1].first, piece.last, held + rows)
        else:
            joined.append(Piece(piece.first, piece.last, rows))
    return joined


def _share(rows: int, number: int, slices: int) -> int:
    return rows * (number + 1) // slices - rows * number // slices
