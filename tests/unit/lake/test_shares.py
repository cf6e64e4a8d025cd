"""Who lands which record: every record once, whatever units hold it."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from lakehead.lake.landing import Numbers, Unit, UnitRemainder, remainders_of

some_numbers = st.integers(0, 24)
spans = st.tuples(some_numbers, some_numbers).map(lambda ends: (min(ends), max(ends)))
numbers = st.builds(lambda stream, span: Numbers(stream, *span), st.sampled_from("ab"), spans)
units = st.lists(numbers | st.none(), max_size=8).map(
    lambda theirs: [Unit(f"unit-{place}", 0, each) for place, each in enumerate(theirs)]
)
landed = st.dictionaries(st.sampled_from("abc"), st.lists(spans, max_size=5))


@given(units, landed)
def test_each_unit_gets_what_nobody_before_it_has(wanted: list[Unit], there: dict[str, list[tuple[int, int]]]) -> None:
    taken = {stream: {number for span in theirs for number in range(*span)} for stream, theirs in there.items()}

    remainders = remainders_of(wanted, there)

    assert [remainder.unit for remainder in remainders] == wanted
    for remainder in remainders:
        whole = remainder.unit.numbers
        if whole is None:
            assert remainder.spans is None
            continue
        others = taken.setdefault(whole.stream, set())
        own = set(range(whole.start, whole.end)) - others
        got = remainder.spans if remainder.spans is not None else ((whole.start, whole.end),)
        assert [number for span in got for number in range(*span)] == sorted(own), "its own, in order, each once"
        assert all(left < right for left, right in got) or remainder.spans is None
        assert all(before[1] < after[0] for before, after in pairwise(got)), "as few as can be"
        others |= own


def test_a_unit_with_nothing_left_stays_in_the_plan() -> None:
    unit = Unit("a", 0, Numbers("stream", 10, 20))

    assert remainders_of([unit], {"stream": [(0, 15), (15, 30)]}) == (UnitRemainder(unit, ()),)


def test_a_whole_unit_is_told_without_spans() -> None:
    unit = Unit("a", 0, Numbers("stream", 10, 20))

    assert remainders_of([unit], {"stream": [(0, 10), (20, 30)], "other": [(0, 99)]}) == (UnitRemainder(unit),)
