"""Where to cut many values into ranges that hold about the same number of rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from lakehead.state.model import Value

_EVEN = 1.25


@dataclass(frozen=True, slots=True)
class Cut:
    """Values at which new ranges begin, and how large the largest range is, where 1 is perfectly even."""

    at: tuple[Value, ...]
    largest: float

    @property
    def is_even(self) -> bool:
        """Whether looking for a better column is not worth it."""
        return self.largest <= _EVEN


def cut_evenly(ordered: Sequence[Value], number: int) -> Cut:
    """Cut ordered values into about so many ranges. Equal values stay together: then there may be fewer."""
    size = len(ordered)
    starts: list[int] = []
    for step in range(1, number):
        start = step * size // number
        # A value that fills the range before it as well begins where its first row is.
        if start < size and ordered[start] != (ordered[starts[-1]] if starts else ordered[0]):
            starts.append(start)
    begins = [0, *(_first(ordered, start) for start in starts)]
    sizes = [end - begin for begin, end in zip(begins, [*begins[1:], size], strict=True)]
    return Cut(tuple(ordered[start] for start in starts), max(sizes) * number / size if size else float(number))


def ranges(column: str, literals: Sequence[str]) -> list[str]:
    """Conditions for the ranges between ordered literals: they exclude one another, and one holds for every row."""
    if not literals:
        return [""]
    return [
        f"{column} < {literals[0]} OR {column} IS NULL",
        *(f"{column} >= {low} AND {column} < {high}" for low, high in pairwise(literals)),
        f"{column} >= {literals[-1]}",
    ]


def block_cuts(pages: Sequence[int], number: int) -> list[int]:
    """Block numbers at which ranges begin that hold about the same number of blocks of several relations together."""
    total = sum(pages)
    number = min(number, total)
    if number < 2:
        return []
    cuts, behind, block, left = [], 0, 0, sorted(pages)
    for step in range(1, number):
        wanted = step * total // number
        while left:
            alive = len(left)
            room = (left[0] - block) * alive
            if behind + room > wanted:
                block += (wanted - behind) // alive
                behind += (wanted - behind) // alive * alive
                break
            behind, block = behind + room, left.pop(0)
        if block and block not in cuts:
            cuts.append(block)
    return cuts


def _first(ordered: Sequence[Value], at: int) -> int:
    """Where the value that stands at a place begins."""
    low, high = 0, at
    while low < high:
        middle = (low + high) // 2
        if ordered[middle] == ordered[at]:
            high = middle
        else:
            low = middle + 1
    return low
