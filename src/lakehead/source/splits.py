"""Splits values into ranges with about the same number of rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from lakehead.state.model import Value

_EVEN = 1.25


@dataclass(frozen=True, slots=True)
class SplitPoints:
    """Values at which new ranges begin, and the size of the largest range, where 1 is perfectly even."""

    at: tuple[Value, ...]
    largest: float

    @property
    def is_even(self) -> bool:
        """Whether the split is even enough, so that no other column need be tried."""
        return self.largest <= _EVEN


def split_evenly(ordered: Sequence[Value], number: int) -> SplitPoints:
    """Split sorted values into about `number` ranges. Equal values stay together, so there may be fewer."""
    size = len(ordered)
    starts: list[int] = []
    for step in range(1, number):
        start = step * size // number
        # A value that also fills the range before it starts no new range.
        if start < size and ordered[start] != (ordered[starts[-1]] if starts else ordered[0]):
            starts.append(start)
    begins = [0, *(_first(ordered, start) for start in starts)]
    sizes = [end - begin for begin, end in zip(begins, [*begins[1:], size], strict=True)]
    return SplitPoints(tuple(ordered[start] for start in starts), max(sizes) * number / size if size else float(number))


def range_conditions(column: str, literals: Sequence[str]) -> list[str]:
    """Return SQL conditions for the ranges between sorted literals. Exactly one of them holds for every row."""
    if not literals:
        return [""]
    return [
        f"{column} < {literals[0]} OR {column} IS NULL",
        *(f"{column} >= {low} AND {column} < {high}" for low, high in pairwise(literals)),
        f"{column} >= {literals[-1]}",
    ]


def block_split_points(pages: Sequence[int], number: int) -> list[int]:
    """Return block numbers that split several relations together into ranges of about the same number of blocks."""
    total = sum(pages)
    number = min(number, total)
    if number < 2:
        return []
    cuts, behind, block, left = [], 0, 0, sorted(pages)
    for step in range(1, number):
        target = step * total // number
        while left:
            alive = len(left)
            available = (left[0] - block) * alive
            if behind + available > target:
                block += (target - behind) // alive
                behind += (target - behind) // alive * alive
                break
            behind, block = behind + available, left.pop(0)
        if block and block not in cuts:
            cuts.append(block)
    return cuts


def _first(ordered: Sequence[Value], at: int) -> int:
    """Return the first index of the value at an index."""
    low, high = 0, at
    while low < high:
        middle = (low + high) // 2
        if ordered[middle] == ordered[at]:
            high = middle
        else:
            low = middle + 1
    return low
