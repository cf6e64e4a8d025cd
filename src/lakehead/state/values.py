"""A watermark's value as text and back, exactly, and which of two is further."""

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
            return "text", json.dumps(value)  # ASCII only: a NUL or half a surrogate pair is no trouble to any server


def from_text(kind: str, text: str) -> Value:
    """The value that was written."""
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
                f"The state holds a watermark of the unknown kind {unknown!r}; a newer Lakehead wrote it."
            )


def not_behind(new: Value, old: Value) -> bool:
    """Whether a watermark may go from `old` to `new`.

    Text goes by its code points. A column whose type was changed has values that cannot be compared with the older
    ones: the newer landing is then believed, for it is what the table holds.
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
