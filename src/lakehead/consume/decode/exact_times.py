"""Dates and times as text, exactly: no digit is cut, no zone is assumed, no calendar day is corrected."""

import re
from collections.abc import Callable
from datetime import date

import pyarrow as pa

from lakehead.consume.decode.misfit import Misfit

FIRST_DAY, LAST_DAY = -719162, 2932896
"""0001-01-01 and 9999-12-31: the range in which the calendars of Spark and Python agree."""

NS_PER_UNIT = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}

_EPOCH = date(1970, 1, 1).toordinal()
_DAY_NS = 86_400_000_000_000
_DATE = re.compile(r"([0-9]{4})-([0-9]{2})-([0-9]{2})")
_CLOCK = r"([0-9]{2}):([0-9]{2})(?::([0-9]{2})(?:\.([0-9]{1,9}))?)?"
_TIME = re.compile(_CLOCK)
_TIMESTAMP = re.compile(rf"{_DATE.pattern}[Tt ]{_CLOCK}(?:([Zz])|([+-])([0-9]{{2}})(?::?([0-9]{{2}}))?)?")


def date_of(text: str) -> int:
    """Return the days since 1970 of `2024-05-17`. Raises `Misfit`."""
    found = _DATE.fullmatch(text)
    if found is None:
        raise Misfit
    return _days(*found.groups())


def time_of(kind: pa.DataType) -> Callable[[str], int]:
    """Return what converts `12:34`, `12:34:56` and `12:34:56.789` to a number of the type's units since midnight."""
    unit = NS_PER_UNIT[kind.unit]

    def convert(text: str) -> int:
        found = _TIME.fullmatch(text)
        if found is None:
            raise Misfit
        return _units(_nanoseconds(*found.groups()), unit)

    return convert


def timestamp_of(kind: pa.DataType) -> Callable[[str], int]:
    """Return what converts `2024-05-17T12:34:56.789+02:00` to a number of the type's units since 1970.

    Between date and time is a `T` or a space. A type with a zone requires one in the text, a type without forbids it.
    More digits than the type has must be zeros.
    """
    unit, zoned = NS_PER_UNIT[kind.unit], kind.tz is not None

    def convert(text: str) -> int:
        found = _TIMESTAMP.fullmatch(text)
        if found is None:
            raise Misfit
        parts = found.groups()
        utc, sign, hours, minutes = parts[7:]
        if (utc is not None or sign is not None) is not zoned:
            raise Misfit
        moment = _days(*parts[:3]) * _DAY_NS + _nanoseconds(*parts[3:7])
        if sign is not None:
            shift = _nanoseconds(hours, minutes or "00", None, None)
            moment += shift if sign == "-" else -shift
        if not FIRST_DAY * _DAY_NS <= moment < (LAST_DAY + 1) * _DAY_NS:
            raise Misfit
        made = _units(moment, unit)
        if not -(2**63) <= made < 2**63:
            raise Misfit
        return made

    return convert


def _days(year: str, month: str, day: str) -> int:
    try:
        return date(int(year), int(month), int(day)).toordinal() - _EPOCH
    except ValueError:
        raise Misfit from None


def _nanoseconds(hour: str, minute: str, second: str | None, fraction: str | None) -> int:
    hours, minutes, seconds = int(hour), int(minute), int(second or 0)
    if hours > 23 or minutes > 59 or seconds > 59:
        raise Misfit
    return ((hours * 60 + minutes) * 60 + seconds) * 1_000_000_000 + int((fraction or "").ljust(9, "0"))


def _units(nanoseconds: int, unit: int) -> int:
    whole, rest = divmod(nanoseconds, unit)
    if rest:
        raise Misfit
    return whole
