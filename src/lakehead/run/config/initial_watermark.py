"""Parses the initial watermark of a table."""

import re
from collections.abc import Callable
from datetime import UTC, date, datetime, time
from decimal import Decimal, InvalidOperation

from lakehead.extract.planning.axis import Kind
from lakehead.run.config.base import invalid
from lakehead.state.model import Value

FORMS = {
    Kind.INTEGER: "an integer, such as 42",
    Kind.DECIMAL: 'a number, best as text, such as "42.50"',
    Kind.DATE: 'a date, such as "2024-01-31"',
    Kind.TIMESTAMP: 'a timestamp without a time zone, such as "2024-01-31T12:00:00.123456"',
    Kind.TIMESTAMPTZ: 'a timestamp with a time zone, such as "2024-01-31T12:00:00.123456Z"',
    Kind.TEXT: 'text, such as "a17"',
}


def parse_watermark(kind: Kind, given: object) -> Value:
    """Convert a value of JSON or TOML to a watermark. Raises a validation error if it has the wrong type or too many
    digits."""
    try:
        return _READERS[kind](given)
    except (ValueError, OverflowError, InvalidOperation):
        raise invalid(f"must be {FORMS[kind]}, because incr_col_type is {kind}.") from None


def _integer(given: object) -> Value:
    if isinstance(given, str) and re.fullmatch(r"[+-]?[0-9]+", given):
        return int(given)
    if isinstance(given, int) and not isinstance(given, bool):
        return given
    raise ValueError


def _decimal(given: object) -> Value:
    if isinstance(given, int | str | Decimal) and not isinstance(given, bool) and Decimal(given).is_finite():
        return Decimal(given)
    raise ValueError


def _date(given: object) -> Value:
    if isinstance(given, str):
        return date.fromisoformat(given)
    if isinstance(given, date) and not isinstance(given, datetime):
        return given
    raise ValueError


def _timestamp(given: object) -> Value:
    value = _datetime(given)
    if value.tzinfo is not None:
        raise ValueError
    return value


def _timestamptz(given: object) -> Value:
    value = _datetime(given)
    if value.tzinfo is None:
        raise ValueError
    return value.astimezone(UTC)


def _datetime(given: object) -> datetime:
    if isinstance(given, datetime):
        return given
    if isinstance(given, date):
        return datetime.combine(given, time.min)
    if isinstance(given, str) and not re.search(r"[.,][0-9]{7}", given):  # more digits would be cut off silently
        return datetime.fromisoformat(given)
    raise ValueError


def _text(given: object) -> Value:
    if isinstance(given, str):
        return given
    raise ValueError


_READERS: dict[Kind, Callable[[object], Value]] = {
    Kind.INTEGER: _integer,
    Kind.DECIMAL: _decimal,
    Kind.DATE: _date,
    Kind.TIMESTAMP: _timestamp,
    Kind.TIMESTAMPTZ: _timestamptz,
    Kind.TEXT: _text,
}
