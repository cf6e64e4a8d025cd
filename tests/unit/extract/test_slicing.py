"""Slices cover their window once, part no ties, and keep to their caps: whatever the values and the policy."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehead.errors import Misconfigured
from lakehead.extract.planning.adaptive import AdaptivePlanner
from lakehead.extract.planning.axis import Kind, kind_of
from lakehead.extract.planning.slicing import MOST_SLICES, Piece, SliceBy, SlicingPolicy, by_rows, by_width, evenly
from lakehead.extract.planning.windows import Slice
from lakehead.state.model import Value
from tests.unit.extract.column_values import NOON, Rows, below, facts, holds, plain, request

DIVISIBLE = [kind for kind in Kind if kind is not Kind.TEXT]

policies = st.builds(
    SlicingPolicy,
    enabled=st.booleans(),
    by=st.sampled_from(SliceBy),
    target_rows=st.integers(1, 40),
    slice_seconds=st.none() | st.integers(1, 10**15),
    max_partitions=st.integers(1, 12),
    probe=st.booleans(),
    max_probes=st.integers(1, 40),
)


def values_of(kind: Kind) -> st.SearchStrategy[Value]:
    """Values of a kind, often near each other and often the same, sometimes absurd."""
    match kind:
        case Kind.INTEGER:
            return st.integers(-5, 40) | st.integers(-(10**40), 10**40)
        case Kind.DECIMAL:
            wild = st.decimals(allow_nan=False, allow_infinity=False)
            return st.decimals(-2, 4, places=2) | wild
        case Kind.DATE:
            return st.dates(date(2024, 2, 20), date(2024, 4, 10)) | st.dates()
        case Kind.TIMESTAMP:
            near = st.datetimes(plain(2024, 3, 31, 11, 59, 59, 999990), plain(2024, 3, 31, 12, 0, 0, 9))
            return near | st.datetimes()
        case Kind.TIMESTAMPTZ:
            return values_of(Kind.TIMESTAMP).map(_at_utc)
        case Kind.TEXT:
            return st.text("abc", max_size=3)


def _at_utc(value: Value) -> datetime:
    assert isinstance(value, datetime)
    return value.replace(tzinfo=UTC)


@st.composite
def tables(draw: st.DrawFn) -> dict[str, Any]:
    kind = draw(st.sampled_from(Kind))
    values = draw(st.lists(values_of(kind), max_size=60))
    known = draw(st.booleans()) or not kind.follows_the_clock
    return {
        "kind": kind,
        "values": values,
        "stored": draw(st.none() | values_of(kind)),
        "initial": draw(st.none() | values_of(kind)),
        "lag": draw(st.sampled_from([0, 1, 3600, 10**6, 10**20])),
        "rereads": draw(st.booleans()),
        "reach": {"lowest": min(values, default=None, key=_key), "highest": max(values, default=None, key=_key)}
        if known
        else {},
        "fails_after": draw(st.none() | st.integers(0, 5)),
    }


def _key(value: Value) -> Any:
    return value


def must_be_read(table: dict[str, Any], value: Value) -> bool:
    """Whether a row is past the watermark, or the first one to be read, and no longer in doubt."""
    kind, start = table["kind"], table["stored"] if table["stored"] is not None else table["initial"]
    if start is not None and below(value, start):
        return False
    if not kind.follows_the_clock:
        return table["stored"] is None or value != start
    try:
        end = NOON - timedelta(seconds=table["lag"])
    except OverflowError:
        return False
    match kind:
        case Kind.DATE:
            return below(value, end.date())
        case Kind.TIMESTAMP:
            return below(value, end.replace(tzinfo=None))
        case _:
            return below(value, end)


def plan_of(table: dict[str, Any], policy: SlicingPolicy) -> tuple[Slice, ...]:
    asked = request(
        table["kind"],
        policy,
        stored=table["stored"],
        initial_watermark=table["initial"],
        table_lag=table["lag"],
        rereads=table["rereads"],
    )
    probe = Rows(table["values"], fails_after=table["fails_after"])
    return AdaptivePlanner().plan(asked, facts(probe, **table["reach"])).slices


@given(tables(), policies)
def test_every_row_of_the_window_is_in_exactly_one_slice(table: dict[str, Any], policy: SlicingPolicy) -> None:
    slices = plan_of(table, policy)

    for value in table["values"]:
        inside = sum(holds(each.window, value) for each in slices)
        assert inside <= 1
        if must_be_read(table, value):
            assert inside == 1, (value, slices)
        if not table["rereads"] and table["stored"] is not None and inside:
            assert not below(value, table["stored"]), "what must not be read twice is not"


@given(tables(), policies)
def test_slices_follow_each_other_and_their_watermarks_only_grow(table: dict[str, Any], policy: SlicingPolicy) -> None:
    slices = plan_of(table, policy)

    assert len(slices) <= policy.max_partitions
    assert len(slices) <= 1 or (policy.enabled and table["kind"] is not Kind.TEXT)
    assert len({each.unit for each in slices}) == len(slices)
    after = table["stored"]
    for number, each in enumerate(slices):
        assert each.after == after
        if after is not None and table["kind"] is not Kind.TEXT:
            assert below(after, each.watermark)
        assert kind_of(each.watermark) in (table["kind"], Kind.INTEGER)
        if number:
            before, lower = slices[number - 1].window.upper, each.window.lower
            assert lower is not None
            assert (lower.value, lower.included) == (before.value, not before.included), "no gap and no overlap"
        after = each.watermark


@given(
    st.sampled_from(DIVISIBLE).flatmap(lambda kind: st.lists(values_of(kind), min_size=1, max_size=60)),
    st.integers(1, 20),
    st.booleans(),
)
def test_by_rows_a_slice_holds_no_more_than_the_target_unless_its_rows_are_ties(
    values: Sequence[Value],
    target: int,
    known: bool,  # noqa: FBT001 - drawn
) -> None:
    [kind] = {kind_of(value) for value in values}
    first, last = min(values, key=_key), max(values, key=_key)
    policy = SlicingPolicy(target_rows=target, max_partitions=MOST_SLICES, max_probes=1_000)
    reach: dict[str, Any] = (
        {"lowest": first, "highest": last} if known or not kind.follows_the_clock else {"lowest": first}
    )

    slices = AdaptivePlanner().plan(request(kind, policy), facts(Rows(values), **reach)).slices

    for each in slices:
        held = [value for value in values if holds(each.window, value)]
        assert len(held) == each.estimated_rows
        # Decimals that are finer than the bounds of their window lie between two ticks and cannot be parted.
        assert len(held) <= target or len(set(held)) == 1 or kind is Kind.DECIMAL


@pytest.mark.parametrize("kind", [Kind.TIMESTAMP, Kind.TIMESTAMPTZ, Kind.DATE, Kind.INTEGER, Kind.DECIMAL])
@pytest.mark.parametrize("by", SliceBy)
@pytest.mark.parametrize("known", [True, False])
def test_ten_thousand_rows_of_one_value_are_one_slice_of_a_cap_of_one_thousand(
    kind: Kind,
    by: SliceBy,
    known: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    example: dict[Kind, Value] = {
        Kind.TIMESTAMP: plain(2024, 3, 1, 5, 6, 7, 123456),
        Kind.TIMESTAMPTZ: datetime(2024, 3, 1, 5, 6, 7, 123456, tzinfo=UTC),
        Kind.DATE: date(2024, 3, 1),
        Kind.INTEGER: 77,
        Kind.DECIMAL: Decimal("77.7"),
    }
    value = example[kind]
    policy = SlicingPolicy(by=by, target_rows=1_000, slice_seconds=3600, max_probes=100)
    probe = Rows([value] * 10_000)
    reach: dict[str, Any] = {"lowest": value, "highest": value} if known or not kind.follows_the_clock else {}

    slices = AdaptivePlanner().plan(request(kind, policy), facts(probe, **reach)).slices

    [only] = [each for each in slices if probe.count(each.window)]
    assert only.estimated_rows in (10_000, None)
    assert slices == (only,)


def test_ties_are_found_in_a_window_that_is_known_by_its_watermark_alone() -> None:
    tie = plain(2024, 3, 1, 5, 6, 7, 123456)
    probe = Rows([tie] * 10_000)
    policy = SlicingPolicy(target_rows=1_000, max_probes=100)

    plan = AdaptivePlanner().plan(request(Kind.TIMESTAMP, policy, stored=plain(2023, 1, 1)), facts(probe))

    assert [each.estimated_rows for each in plan.slices] == [10_000]


def test_rows_are_counted_so_that_skew_does_not_matter() -> None:
    probe = Rows([plain(2024, 3, 1) + timedelta(seconds=n) for n in range(990)] + [plain(2014, 1, 1)] * 10)
    policy = SlicingPolicy(target_rows=100, max_probes=100)
    asked = request(Kind.TIMESTAMP, policy, stored=plain(2010, 1, 1))

    slices = AdaptivePlanner().plan(asked, facts(probe)).slices

    counts = [probe.count(each.window) for each in slices]
    assert sum(counts) == 1_000
    assert max(counts) <= 100
    assert 10 <= len(slices) <= 20


def test_by_duration_slices_are_as_long_as_asked_and_longer_where_there_would_be_too_many() -> None:
    policy = SlicingPolicy(by=SliceBy.DURATION, slice_seconds=3600)
    start = plain(2024, 3, 31)

    hours = AdaptivePlanner().plan(request(Kind.TIMESTAMP, policy, stored=start), facts()).slices
    capped = (
        AdaptivePlanner().plan(request(Kind.TIMESTAMP, replace(policy, max_partitions=5), stored=start), facts()).slices
    )

    assert [each.watermark for each in hours] == [start + timedelta(hours=n) for n in range(1, 13)]
    assert [each.watermark for each in capped] == [start + timedelta(hours=2.4 * n) for n in range(1, 6)]


def test_evenly_spaced_slices_keep_to_the_microsecond() -> None:
    policy = SlicingPolicy(by=SliceBy.EVEN, max_partitions=3)

    slices = AdaptivePlanner().plan(
        request(Kind.TIMESTAMP, policy, stored=plain(2024, 3, 31, 11, 59, 59, 999999)),
        facts(highest=plain(2024, 3, 31, 12)),
    )
    ten = AdaptivePlanner().plan(request(Kind.TIMESTAMPTZ, policy, stored=NOON - timedelta(microseconds=10)), facts())

    assert len(slices.slices) == 1
    assert [NOON - each.watermark for each in ten.slices if isinstance(each.watermark, datetime)] == [
        timedelta(microseconds=7),
        timedelta(microseconds=4),
        timedelta(0),
    ]


def test_what_the_lag_reads_again_is_in_the_first_slice_and_no_watermark_goes_back() -> None:
    policy = SlicingPolicy(by=SliceBy.DURATION, slice_seconds=3600)
    stored = datetime(2024, 3, 31, 10, tzinfo=UTC)

    slices = AdaptivePlanner().plan(request(Kind.TIMESTAMPTZ, policy, stored=stored, table_lag=1800), facts()).slices

    first = slices[0]
    assert first.window.lower is not None
    assert (first.after, first.window.lower.value) == (stored, stored - timedelta(minutes=30))
    assert [each.watermark for each in slices] == [stored + timedelta(hours=1), stored + timedelta(hours=1.5)]


def test_the_first_slice_of_numbers_ends_past_the_watermark_too() -> None:
    policy = SlicingPolicy(by=SliceBy.EVEN, max_partitions=10)

    slices = AdaptivePlanner().plan(request(Kind.INTEGER, policy, stored=7), facts(lowest=1, highest=10)).slices

    assert [(each.after, each.watermark) for each in slices] == [(7, 8), (8, 9), (9, 10)]


def test_decimals_of_many_digits_are_cut_without_rounding() -> None:
    low, high = Decimal(f"{10**37}.0"), Decimal(f"{10**37}.9")
    policy = SlicingPolicy(by=SliceBy.EVEN, max_partitions=3)

    slices = AdaptivePlanner().plan(request(Kind.DECIMAL, policy), facts(lowest=low, highest=high)).slices

    assert [each.watermark for each in slices] == [Decimal(f"{10**37}.{digit}") for digit in (2, 5, 9)]


@given(st.integers(-(10**30), 10**30), st.integers(0, 10**40), st.integers(1, MOST_SLICES), st.integers(1, 10**40))
def test_caps_hold_for_absurd_spans(first: int, width: int, most: int, step: int) -> None:
    span = Piece(first, first + width, rows=10**30)

    for pieces in (
        evenly(span, min(most, 50)),
        by_width(span, step, min(most, 50)),
        by_rows(span, lambda _a, _b: 10**29, target=1, most=min(most, 50), probes=40),
    ):
        assert len(pieces) <= most
        assert (pieces[0].first, pieces[-1].last) == (span.first, span.last)
        assert all(one.last + 1 == next_one.first for one, next_one in pairwise(pieces))
        assert all(piece.first <= piece.last for piece in pieces)


def test_a_probe_that_lies_costs_evenness_and_nothing_else() -> None:
    lies = iter([5, -3, 10**9] * 50)

    pieces = by_rows(Piece(0, 999, rows=1_000), lambda _a, _b: next(lies), target=10, most=20, probes=100)

    assert (pieces[0].first, pieces[-1].last) == (0, 999)
    assert all(one.last + 1 == next_one.first for one, next_one in pairwise(pieces))
    assert len(pieces) <= 20


@pytest.mark.parametrize(
    "wrong",
    [
        {"target_rows": 0},
        {"slice_seconds": -1},
        {"max_partitions": 0},
        {"max_partitions": MOST_SLICES + 1},
        {"max_probes": 10**9},
    ],
)
def test_a_policy_that_no_plan_can_keep_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(Misconfigured, match=next(iter(wrong))):
        SlicingPolicy(**wrong)  # type: ignore[arg-type] # one name at a time, all of them numbers
