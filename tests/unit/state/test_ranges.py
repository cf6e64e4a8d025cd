"""Spans of record numbers are sets of numbers, whatever the order in which they come."""

from collections.abc import Iterable, Iterator
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehead.ids import RandomIds
from lakehead.state.model import Numbered, Spans, StoredLanding, StoredPointer
from lakehead.state.opening import open_state
from lakehead.state.state import State
from lakehead.wire.spans import common, merged, without
from lakehead.wire.spans import count as count_numbers
from tests.support.folders import folder_in_memory
from tests.support.state_tools import HandClock

TABLES = (f"table {number}" for number in count())

one_span = st.tuples(st.integers(0, 60), st.integers(0, 12)).map(lambda pair: (pair[0], pair[0] + pair[1]))
some_spans = st.lists(one_span, max_size=6).map(tuple)
numbered = st.builds(Numbered, st.sampled_from(["a/1", "a/2", "b/1"]), some_spans)
landing_parts = st.lists(numbered, max_size=4).map(tuple)


@pytest.fixture(scope="module")
def state() -> Iterator[State]:
    with folder_in_memory() as folder, open_state(f"sqlite:///{folder}/state.db", HandClock(), RandomIds()) as opened:
        yield opened


def held(spans: Iterable[tuple[int, int]]) -> set[int]:
    return {number for start, end in spans for number in range(start, end)}


def fewest(numbers: set[int]) -> Spans:
    """The spans of a set, by looking at each number."""
    starts = sorted(number for number in numbers if number - 1 not in numbers)
    ends = sorted(number + 1 for number in numbers if number + 1 not in numbers)
    return tuple(zip(starts, ends, strict=True))


@given(st.lists(one_span))
def test_merged_spans_are_the_fewest_that_hold_the_same_numbers(spans: list[tuple[int, int]]) -> None:
    assert merged(spans) == fewest(held(spans))


@given(st.lists(one_span), st.lists(one_span))
def test_spans_are_intersected_subtracted_and_counted_as_sets_are(
    one: list[tuple[int, int]], other: list[tuple[int, int]]
) -> None:
    assert common(one, other) == fewest(held(one) & held(other))
    assert without(one, other) == fewest(held(one) - held(other))
    assert count_numbers(one) == len(held(one))


@pytest.mark.slow
@given(st.lists(landing_parts, max_size=6))
def test_what_is_stored_after_each_settle_is_the_set_of_all_that_landed(
    state: State, chain: list[tuple[Numbered, ...]]
) -> None:
    table, rebuilt = next(TABLES), next(TABLES)
    landed: dict[str, set[int]] = {"a/1": set(), "a/2": set(), "b/1": set()}
    landings = [StoredLanding(snapshot=number, units=(), numbered=parts) for number, parts in enumerate(chain, 1)]

    seen = None
    for landing in landings:
        new = StoredPointer(landing.snapshot, landing.snapshot)
        assert state.landings.settle(table, seen, new, [landing])
        for part in landing.numbered:
            landed[part.stream] |= held(part.spans)
        seen = new
        expected = {stream: fewest(numbers) for stream, numbers in landed.items()}
        assert state.landings.ranges(table, landed) == expected

    state.landings.rebuild(rebuilt, seen, landings)
    assert state.landings.ranges(rebuilt, landed) == {stream: fewest(numbers) for stream, numbers in landed.items()}
