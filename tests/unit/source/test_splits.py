"""Ranges that hold about the same number of rows, however values are spread."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from lakehead.source.splits import block_split_points, range_conditions, split_evenly


def sizes(values: list[int], cuts: tuple[object, ...]) -> list[int]:
    bounds = [float("-inf"), *cuts, float("inf")]
    return [sum(low <= value < high for value in values) for low, high in pairwise(bounds)]  # type: ignore[operator]


@given(st.lists(st.integers(-20, 20), min_size=1).map(sorted), st.integers(1, 12))
def test_cuts_rise_and_say_how_large_the_largest_range_is(values: list[int], number: int) -> None:
    cut = split_evenly(values, number)

    assert list(cut.at) == sorted(set(cut.at))
    assert len(cut.at) < number
    counted = sizes(values, cut.at)
    assert sum(counted) == len(values)
    assert max(counted) * number / len(values) == cut.largest
    assert all(counted)


def test_different_values_are_cut_evenly_however_far_they_are_apart() -> None:
    values = sorted([*range(990), *(10**12 + number for number in range(10))])

    assert sizes(values, split_evenly(values, 10).at) == [100] * 10


def test_one_value_cannot_be_cut() -> None:
    assert split_evenly([7] * 100, 4).at == ()
    assert split_evenly([7] * 100, 4).largest == 4
    assert split_evenly([], 4).at == ()


def test_ranges_hold_every_row_once() -> None:
    assert range_conditions("k", []) == [""]
    assert range_conditions("k", ["1"]) == ["k < 1 OR k IS NULL", "k >= 1"]
    assert range_conditions("k", ["1", "5"])[1] == "k >= 1 AND k < 5"


@given(st.lists(st.integers(0, 500), max_size=6), st.integers(1, 12))
def test_blocks_of_several_relations_are_cut_evenly_together(pages: list[int], number: int) -> None:
    cuts = block_split_points(pages, number)

    assert cuts == sorted(set(cuts))
    bounds = [0, *cuts, max(pages, default=0) + 1]
    held = [sum(max(0, min(high, size) - low) for size in pages) for low, high in pairwise(bounds)]
    assert sum(held) == sum(pages)
    # A range begins at a whole block of all of them, so one may be off by a block of each.
    assert max(held) <= sum(pages) / number + 2 * len(pages) + 1
