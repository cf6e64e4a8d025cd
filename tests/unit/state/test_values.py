"""A watermark's value, there and back."""

from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehead.errors import Misconfigured
from lakehead.state.model import Value
from lakehead.state.values import from_text, not_behind, to_text

zones = st.sampled_from([UTC, timezone(timedelta(hours=-3, minutes=-30)), timezone(timedelta(hours=14))])
moments = st.datetimes(datetime(2, 1, 1), datetime(9998, 1, 1), timezones=zones)  # noqa: DTZ001 - without a zone on purpose
kinds: list[st.SearchStrategy[Value]] = [
    st.integers(),
    st.decimals(allow_nan=False, allow_infinity=False),
    st.datetimes(),
    moments,
    st.dates(),
    st.text(),
]


@given(st.one_of(kinds))
def test_a_value_comes_back_equal_and_of_its_kind(value: Value) -> None:
    back = from_text(*to_text(value))

    assert back == value
    assert type(back) is type(value)
    if isinstance(value, datetime):
        assert isinstance(back, datetime)
        assert (back.tzinfo is None) == (value.tzinfo is None)


@given(st.one_of([st.tuples(kind, kind) for kind in kinds]))
def test_of_two_values_of_a_kind_the_smaller_is_behind(pair: tuple[Value, Value]) -> None:
    low, high = sorted(pair)

    assert not_behind(high, low)
    assert not_behind(low, high) == (low == high)


@given(moments, moments)
def test_moments_are_compared_as_moments_whatever_their_zones(one: datetime, other: datetime) -> None:
    assert not_behind(one, other) == (one >= other)


@pytest.mark.parametrize(
    ("new", "old"),
    [
        (date(2020, 1, 1), datetime(2026, 1, 1)),  # noqa: DTZ001 - without a zone on purpose
        (datetime(2020, 1, 1), datetime(2026, 1, 1, tzinfo=UTC)),  # noqa: DTZ001 - without a zone on purpose
        (1, "2"),
        ("1", 2),
        (1, date(2026, 1, 1)),
    ],
)
def test_a_changed_type_is_believed(new: Value, old: Value) -> None:
    assert not_behind(new, old)


def test_an_integer_column_that_became_a_decimal_goes_on_from_where_it_was() -> None:
    assert not_behind(Decimal("10.5"), 10)
    assert not not_behind(Decimal("9.5"), 10)


@pytest.mark.parametrize("value", [True, Decimal("NaN"), Decimal("Infinity")])
def test_what_has_no_next_value_is_no_watermark(value: Value) -> None:
    with pytest.raises(Misconfigured, match="watermark cannot be"):
        to_text(value)


def test_a_kind_of_a_newer_lakehead_is_refused() -> None:
    with pytest.raises(Misconfigured, match="unknown kind 'interval'"):
        from_text("interval", "P1D")
