"""From where and up to where a table is read."""

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from lakehead.errors import Misconfigured
from lakehead.extract.planning.axis import Kind
from lakehead.extract.planning.watermarks import Reach, lower_bound, upper_bound
from lakehead.extract.planning.windows import Bound, Window
from lakehead.source.local_time import instants_from
from lakehead.state.model import Value
from tests.unit.extract.column_values import below, holds, plain

NOW = datetime(2024, 3, 31, 2, 30, 0, 123456, tzinfo=UTC)
PLAIN = NOW.replace(tzinfo=None)


@pytest.mark.parametrize(
    ("kind", "stored", "initial", "lag", "expected"),
    [
        (Kind.INTEGER, None, None, 0, None),
        (Kind.INTEGER, None, 7, 0, Bound(7, included=True)),
        (Kind.INTEGER, 9, 7, 0, Bound(9, included=True)),
        (Kind.INTEGER, 9, 7, 3600, Bound(9, included=True)),
        (Kind.DECIMAL, Decimal("1.50"), None, 0, Bound(Decimal("1.50"), included=True)),
        (Kind.DECIMAL, 3, None, 0, Bound(Decimal(3), included=True)),
        (Kind.TEXT, "b", "a", 60, Bound("b", included=True)),
        (Kind.TIMESTAMP, PLAIN, None, 0, Bound(PLAIN, included=True)),
        (Kind.TIMESTAMP, PLAIN, None, 90, Bound(plain(2024, 3, 31, 2, 28, 30, 123456), included=True)),
        (Kind.TIMESTAMP, None, PLAIN, 90, Bound(plain(2024, 3, 31, 2, 28, 30, 123456), included=True)),
        (Kind.TIMESTAMPTZ, NOW, None, 1, Bound(NOW - timedelta(seconds=1), included=True)),
        (Kind.DATE, date(2024, 3, 1), None, 0, Bound(date(2024, 3, 1), included=True)),
        (Kind.DATE, date(2024, 3, 1), None, 1, Bound(date(2024, 2, 29), included=True)),
        (Kind.DATE, date(2024, 3, 1), None, 86_401, Bound(date(2024, 2, 28), included=True)),
        (Kind.TIMESTAMP, PLAIN, None, 10**30, Bound(plain(1, 1, 1), included=True)),
        (Kind.DATE, date(2024, 3, 1), None, 10**30, Bound(date.min, included=True)),
    ],
)
def test_reading_starts_at_the_stored_or_initial_watermark_less_the_lag(
    kind: Kind, stored: Value | None, initial: Value | None, lag: int, expected: Bound | None
) -> None:
    assert lower_bound(kind, stored=stored, initial=initial, lag_seconds=lag, rereads=True) == expected


@pytest.mark.parametrize(
    ("kind", "stored", "initial", "expected"),
    [
        (Kind.TIMESTAMP, PLAIN, None, Bound(PLAIN, included=True)),
        (Kind.INTEGER, 9, None, Bound(9, included=False)),
        (Kind.INTEGER, None, 9, Bound(9, included=True)),
        (Kind.TEXT, "b", None, Bound("b", included=False)),
    ],
)
def test_what_must_not_read_a_row_twice_starts_exactly_where_the_last_reading_ended(
    kind: Kind, stored: Value | None, initial: Value | None, expected: Bound
) -> None:
    assert lower_bound(kind, stored=stored, initial=initial, lag_seconds=3600, rereads=False) == expected


@pytest.mark.parametrize(
    ("kind", "reach", "lag", "expected"),
    [
        (Kind.TIMESTAMPTZ, {}, 0, NOW),
        (Kind.TIMESTAMPTZ, {}, 30, NOW - timedelta(seconds=30)),
        (Kind.TIMESTAMPTZ, {"oldest_open": NOW - timedelta(hours=2)}, 30, NOW - timedelta(hours=2, seconds=30)),
        (Kind.TIMESTAMPTZ, {"oldest_open": NOW + timedelta(hours=2)}, 0, NOW),
        (Kind.TIMESTAMP, {}, 0, PLAIN),
        (Kind.TIMESTAMP, {}, 60, PLAIN - timedelta(minutes=1)),
        (Kind.TIMESTAMP, {"now": NOW.astimezone(timezone(timedelta(hours=-5)))}, 0, PLAIN),
        (Kind.TIMESTAMP, {"second_digits": 3}, 0, PLAIN.replace(microsecond=123000)),
        (Kind.TIMESTAMPTZ, {"second_digits": 0}, 0, NOW.replace(microsecond=0)),
        (Kind.DATE, {}, 0, date(2024, 3, 31)),
        (Kind.DATE, {}, 3 * 3600, date(2024, 3, 30)),
        (Kind.TIMESTAMP, {}, 10**30, plain(1, 1, 1)),
    ],
)
def test_by_the_clock_reading_ends_before_what_may_still_be_committed(
    kind: Kind, reach: dict[str, Any], lag: int, expected: Value
) -> None:
    assert upper_bound(kind, Reach(**{"now": NOW} | reach), lag_seconds=lag) == Bound(expected, included=False)


@pytest.mark.parametrize(
    ("kind", "highest"),
    [(Kind.INTEGER, 9), (Kind.DECIMAL, Decimal("1.5")), (Kind.DECIMAL, 2), (Kind.TEXT, "zebra")],
)
def test_a_column_that_follows_no_clock_is_read_up_to_and_with_its_highest_value(kind: Kind, highest: Value) -> None:
    assert upper_bound(kind, Reach(now=NOW, highest=highest), lag_seconds=5) == Bound(highest, included=True)
    assert upper_bound(kind, Reach(now=NOW), lag_seconds=5) is None


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (Kind.INTEGER, PLAIN),
        (Kind.INTEGER, True),
        (Kind.INTEGER, Decimal(1)),
        (Kind.DECIMAL, Decimal("NaN")),
        (Kind.DECIMAL, Decimal("Infinity")),
        (Kind.TIMESTAMP, NOW),
        (Kind.TIMESTAMPTZ, PLAIN),
        (Kind.DATE, PLAIN),
        (Kind.TIMESTAMP, date(2024, 1, 1)),
        (Kind.TEXT, 1),
    ],
)
def test_a_watermark_of_another_kind_is_refused(kind: Kind, value: Value) -> None:
    with pytest.raises(Misconfigured, match=r"watermark cannot be|does not fit"):
        lower_bound(kind, stored=value, initial=None, lag_seconds=0, rereads=True)


def test_a_clock_without_a_zone_bounds_nothing() -> None:
    with pytest.raises(Misconfigured, match="does not fit"):
        upper_bound(Kind.TIMESTAMPTZ, Reach(now=PLAIN), lag_seconds=0)


# --- local time

TURNS = {
    "Europe/Vienna, back": ("Europe/Vienna", datetime(2026, 10, 24, 22, tzinfo=UTC)),
    "Europe/Vienna, forward": ("Europe/Vienna", datetime(2026, 3, 28, 23, tzinfo=UTC)),
    "America/New_York, back": ("America/New_York", datetime(2026, 11, 1, 3, tzinfo=UTC)),
    "Australia/Lord_Howe, back by half an hour": ("Australia/Lord_Howe", datetime(2026, 4, 4, 12, tzinfo=UTC)),
    "America/Sao_Paulo, back over midnight": ("America/Sao_Paulo", datetime(2018, 2, 17, 23, tzinfo=UTC)),
    "UTC": ("UTC", datetime(2026, 3, 28, 23, tzinfo=UTC)),
}
"""Hours around which clocks are put back or forward, and where they never are."""


@dataclass(frozen=True)
class Local:
    """A server in a time zone, and the rows that it has written: each with its own local time."""

    zone: ZoneInfo

    def at(self, moment: datetime) -> datetime:
        return moment.astimezone(self.zone).replace(tzinfo=None)

    def earliest(self, since: datetime) -> datetime:
        return min(map(self.at, instants_from(since)))


@pytest.mark.slow
@pytest.mark.parametrize("lag", [0, 600, 5400])
@pytest.mark.parametrize("kind", [Kind.TIMESTAMP, Kind.DATE])
@pytest.mark.parametrize(("zone", "first"), TURNS.values(), ids=TURNS)
def test_every_row_is_read_once_while_clocks_are_put_back_and_forward(
    zone: str, first: datetime, kind: Kind, lag: int
) -> None:
    """A row is written every 7 minutes and committed up to the lag later; a run comes every 11 minutes."""
    local, minute = Local(ZoneInfo(zone)), timedelta(minutes=1)
    rows: dict[datetime, Any] = {}
    for number in range(100):
        moment = first + number * 7 * minute
        value = local.at(moment)
        rows[moment] = value.date() if kind is Kind.DATE else value
    read: list[datetime] = []
    start: Bound | None = None
    for number in range(400):
        now = first + number * 11 * minute
        end = upper_bound(kind, Reach(now=now, earliest_local=local.earliest), lag_seconds=lag)
        assert end is not None
        window = Window(start, end)
        assert start is None or not below(end.value, start.value), "a watermark never goes back"
        late = timedelta(seconds=max(lag - 1, 0))
        read += [moment for moment, value in rows.items() if moment + late < now and holds(window, value)]
        start = Bound(end.value, included=True)

    assert sorted(read) == sorted(rows)


def test_a_transaction_that_began_before_the_clocks_were_put_forward_holds_the_bound_at_its_own_time() -> None:
    local = Local(ZoneInfo("Europe/Vienna"))
    began = datetime(2026, 3, 29, 0, 50, tzinfo=UTC)
    reach = Reach(now=began + timedelta(minutes=15), oldest_open=began, earliest_local=local.earliest)

    assert upper_bound(Kind.TIMESTAMP, reach, lag_seconds=0) == Bound(plain(2026, 3, 29, 1, 50), included=False)
