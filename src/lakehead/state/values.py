"""Converts a watermark's value to text and back, exactly, and compares two values."""

import json
from datetime import UTC, date, datetime
from decimal import Decimal

from lakehead.errors import Misconfigured
from lakehead.state.model import Value


def to_text(value: Value) -> tuple[str, str]:
    """The value's kind and its canonical text."""
    match value:
        case bool():
            raise Misconfigured("A watermark cannot be true or false: it must have a next value.")
        case int():
            return "integer", str(value)
        case Decimal():
            if not value.is_finite():
                raise Misconfigured(f"A watermark cannot be {value}.")
            return "decimal", str(value)
        case datetime():
            if value.tzinfo is None:
                return "timestamp", value.isoformat(timespec="microseconds")
            return "timestamptz", value.astimezone(UTC).isoformat(timespec="microseconds")
        case date():
            return "date", value.isoformat()
        case str():
            return "text", json.dumps(value)  # ASCII only, so that every server can store a NUL or a lone surrogate


def from_text(kind: str, text: str) -> Value:
    """The value of a kind and a text from `to_text`. Raises `Misconfigured` for an unknown kind."""
    match kind:
        case "integer":
            return int(text)
        case "decimal":
            return Decimal(text)
        case "timestamp" | "timestamptz":
            return datetime.fromisoformat(text)
        case "date":
            return date.fromisoformat(text)
        case "text":
            return str(json.loads(text))
        case unknown:
            raise Misconfigured(
                f"The state holds a watermark of the unknown kind {unknown!r}. Use the newer Lakehead that wrote it."
            )


def not_behind(new: Value, old: Value) -> bool:
    """Whether a watermark may move from `old` to `new`.

    Text is compared by code points. If the column's type was changed, the values cannot be compared; then the newer
    landing wins, because it is what the table holds.
    """
    match new, old:
        case ((int() | Decimal()), (int() | Decimal())):
            return new >= old
        case datetime(), datetime() if (new.tzinfo is None) == (old.tzinfo is None):
            return new >= old
        case (datetime(), _) | (_, datetime()):
            return True
        case date(), date():
            return new >= old
        case str(), str():
            return new >= old
        case _:
            return True
