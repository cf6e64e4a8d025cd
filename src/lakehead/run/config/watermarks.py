"""An initial watermark as a file writes it."""

import re
from collections.abc import Callable
from datetime import UTC, date, datetime, time
from decimal import Decimal, InvalidOperation

from lakehead.extract.planning.axis import Kind
from lakehead.run.config.parts import wrong
from lakehead.state.model import Value

FORMS = {
    Kind.INTEGER: "a whole number, such as 42",
    Kind.DECIMAL: 'a number, best as text, such as "42.50"',
    Kind.DATE: 'a date, such as "2024-01-31"',
    Kind.TIMESTAMP: 'a moment without a zone, such as "2024-01-31T12:00:00.123456"',
    Kind.TIMESTAMPTZ: 'a moment with its zone, such as "2024-01-31T12:00:00.123456Z"',
    Kind.TEXT: 'text, such as "a17"',
}


def read_watermark(kind: Kind, given: object) -> Value:
    """The value, whichever syntax it came in. Raises a fault if it is not of the kind, or finer than can be kept."""
    try:
        return _READERS[kind](given)
    except (ValueError, OverflowError, InvalidOperation):
        raise wrong(f"must be {FORMS[kind]}, as incr_col_type is {kind}.") from None


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
    value = _moment(given)
    if value.tzinfo is not None:
        raise ValueError
    return value


def _timestamptz(given: object) -> Value:
    value = _moment(given)
    if value.tzinfo is None:
        raise ValueError
    return value.astimezone(UTC)


def _moment(given: object) -> datetime:
    if isinstance(given, datetime):
        return given
    if isinstance(given, date):
        return datetime.combine(given, time.min)
    if isinstance(given, str) and not re.search(r"[.,][0-9]{7}", given):  # what is finer would be cut off silently
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
