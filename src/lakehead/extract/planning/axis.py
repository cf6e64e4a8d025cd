"""Converts watermarks to integers on an axis and back, exactly."""

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import StrEnum

from lakehead.errors import Misconfigured
from lakehead.state.model import Value

SECOND = 1_000_000
DAY = 86_400

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_FIRST = (datetime.min.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND
_LAST = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND


class Kind(StrEnum):
    """The type of a watermark's values, by the names that the state stores."""

    INTEGER = "integer"
    DECIMAL = "decimal"
    DATE = "date"
    TIMESTAMP = "timestamp"
    TIMESTAMPTZ = "timestamptz"
    TEXT = "text"

    @property
    def follows_the_clock(self) -> bool:
        """Whether the values are times, so that the source's current time is an upper bound of them."""
        return self in (Kind.DATE, Kind.TIMESTAMP, Kind.TIMESTAMPTZ)


def kind_of(value: Value) -> Kind:
    """The kind of a value."""
    match value:
        case bool():
            raise Misconfigured("A watermark cannot be true or false: it must have a next value.")
        case int():
            return Kind.INTEGER
        case Decimal():
            return Kind.DECIMAL
        case datetime():
            return Kind.TIMESTAMP if value.tzinfo is None else Kind.TIMESTAMPTZ
        case date():
            return Kind.DATE
        case str():
            return Kind.TEXT


@dataclass(frozen=True, slots=True)
class Axis:
    """The values of a column as integers, called ticks.

    A tick is 1 for integers, a day for dates, a microsecond for timestamps. For decimals it is one unit in the last
    place of the finest value that the axis was made for; finer values lie between two ticks, so they too are on one
    side of a cut at a tick.
    """

    kind: Kind
    places: int = 0

    @classmethod
    def through(cls, kind: Kind, *values: Value | None) -> "Axis":
        """The axis of a kind that has a tick at each of the values. Raises `Misconfigured` for text, which has none."""
        if kind is Kind.TEXT:
            raise Misconfigured("A watermark of text has no values to divide: it is read in one slice.")
        decimals = [_finite(value) for value in values if isinstance(value, Decimal)]
        return cls(kind, max((_places(value) for value in decimals), default=0))

    def tick(self, value: Value) -> int:
        """The tick of a value. Raises `Misconfigured` for a value of another kind."""
        match self.kind, value:
            case ((Kind.INTEGER | Kind.DECIMAL), bool()):
                pass
            case Kind.INTEGER, int():
                return value
            case Kind.DECIMAL, (int() | Decimal()):
                return _scaled(_finite(Decimal(value)), self.places)
            case Kind.TIMESTAMP, datetime() if value.tzinfo is None:
                return (value.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND
            case Kind.TIMESTAMPTZ, datetime() if value.tzinfo is not None:
                return (value - _EPOCH) // _MICROSECOND
            case Kind.DATE, date() if not isinstance(value, datetime):
                return value.toordinal()
            case _:
                pass
        raise another_kind(self.kind, value)

    def value(self, tick: int) -> Value:
        """The value at a tick, limited to the earliest and latest time that Python can represent."""
        match self.kind:
            case Kind.DECIMAL:
                return Decimal(f"{tick}E-{self.places}")  # arithmetic would round to the context's precision
            case Kind.TIMESTAMP:
                return _moment(tick).replace(tzinfo=None)
            case Kind.TIMESTAMPTZ:
                return _moment(tick)
            case Kind.DATE:
                return date.fromordinal(min(max(tick, date.min.toordinal()), date.max.toordinal()))
            case _:
                return tick

    def back(self, tick: int, seconds: int) -> int:
        """The tick that many seconds earlier, or the day of that time. For numbers, the tick itself."""
        match self.kind:
            case Kind.TIMESTAMP | Kind.TIMESTAMPTZ:
                return tick - seconds * SECOND
            case Kind.DATE:
                return (tick * DAY - seconds) // DAY
            case _:
                return tick


def another_kind(kind: Kind, value: Value) -> Misconfigured:
    """The error for a watermark that does not fit its column."""
    return Misconfigured(
        f"A watermark of the kind {kind_of(value)} does not fit a column of the kind {kind}. If the column's type has "
        "changed, run the table with --reload; otherwise set incr_col_type to what the column holds."
    )


def _moment(tick: int) -> datetime:
    return _EPOCH + timedelta(microseconds=min(max(tick, _FIRST), _LAST))


def _finite(value: Decimal) -> Decimal:
    if not value.is_finite():
        raise Misconfigured(f"A watermark cannot be {value}: it must be a finite number.")
    return value


def _places(value: Decimal) -> int:
    exponent = value.as_tuple().exponent
    return max(0, -exponent) if isinstance(exponent, int) else 0


def _scaled(value: Decimal, places: int) -> int:
    sign, digits, exponent = value.as_tuple()
    shift = places + exponent if isinstance(exponent, int) else 0
    number = int("".join(map(str, digits)) or "0")
    number = -number if sign else number
    factor: int = 10 ** abs(shift)
    return number * factor if shift >= 0 else number // factor
