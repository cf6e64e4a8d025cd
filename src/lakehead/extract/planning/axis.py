"""Watermarks as whole numbers on a line, and back, exactly."""

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
    """What a watermark's values are, by the names under which the state keeps them."""

    INTEGER = "integer"
    DECIMAL = "decimal"
    DATE = "date"
    TIMESTAMP = "timestamp"
    TIMESTAMPTZ = "timestamptz"
    TEXT = "text"

    @property
    def follows_the_clock(self) -> bool:
        """Whether the source's own time bounds the values that it hands out."""
        return self in (Kind.DATE, Kind.TIMESTAMP, Kind.TIMESTAMPTZ)


def kind_of(value: Value) -> Kind:
    """The kind that a value is of."""
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
    """The line on which the values of a column lie, one tick after the other.

    A tick is one, a day or a microsecond. A decimal's tick is one in the last place of the finest value that the axis
    was made for; finer values lie between two ticks, and a cut at a tick has them on one side of it all the same.
    """

    kind: Kind
    places: int = 0

    @classmethod
    def through(cls, kind: Kind, *values: Value | None) -> "Axis":
        """The axis of a kind that has a tick at each of the values. Text has none: it can be compared, not divided."""
        if kind is Kind.TEXT:
            raise Misconfigured("A watermark of text has no values to divide: it is read in one slice.")
        decimals = [_finite(value) for value in values if isinstance(value, Decimal)]
        return cls(kind, max((_places(value) for value in decimals), default=0))

    def tick(self, value: Value) -> int:
        """Where a value lies. Raises `Misconfigured` for a value of another kind."""
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
        """What lies at a tick; beyond the first or last moment that can be written, that moment."""
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
        """The tick that lies so many seconds before, or the day that holds that moment. Numbers have no seconds."""
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
        raise Misconfigured(f"A watermark cannot be {value}: it must be a number that others come after.")
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
