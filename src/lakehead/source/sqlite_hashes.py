"""Hashes of rows in SQLite, which has no hash functions: they are added to the connection, in Python."""

import sqlite3
from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Context, Decimal
from hashlib import md5
from typing import Any

import pyarrow.types as kinds

from lakehead.source.hash_sql import SUMMED_DIGITS, HashSql
from lakehead.source.port import Column

_TEXT, _DIGITS, _BYTES, _MOMENT, _DECIMAL = "s", "i", "b", "t", "d"
_EXACT = Context(prec=200)


def add_hash_functions(connection: sqlite3.Connection) -> None:
    """Add the functions that `SQLITE_HASHES` uses to a connection."""
    connection.create_function("lakehead_row", -1, _text_of_row, deterministic=True)
    connection.create_aggregate("lakehead_sum", 1, _ExactSum)  # type: ignore[arg-type] # a text is a result too
    connection.create_function("lakehead_md5", 1, _md5, deterministic=True)
    connection.create_function("lakehead_number", 1, lambda digest: int(digest[:SUMMED_DIGITS], 16), deterministic=True)


class _ExactSum:
    """Adds decimals that are stored as floating-point numbers, by the shortest text of each."""

    def __init__(self) -> None:
        self._total: Decimal | None = None

    def step(self, value: object) -> None:
        """Add a value."""
        if value is not None:
            number = Decimal(str(value))
            self._total = number if self._total is None else _EXACT.add(self._total, number)

    def finalize(self) -> str | None:
        """Return the sum."""
        return None if self._total is None else format(self._total, "f")


def _md5(text: str) -> str:
    return md5(text.encode(), usedforsecurity=False).hexdigest()


def _text_of_row(spec: str, *values: object) -> str:
    return ",".join(map(_text_of_value, spec.split(), values))


def _text_of_value(kind: str, value: object) -> str:
    if value is None:
        return "-"
    match kind[0]:
        case "s":
            text = str(value)
            return f"{len(text.encode())}:{text}"
        case "b":
            return value.hex() if isinstance(value, bytes) else str(value)
        case "t":
            return _moment(str(value))
        case "d":
            number = Decimal(str(value)).quantize(Decimal(1).scaleb(-int(kind[1:])), context=_EXACT)
            return format(number or abs(number), "f")  # Spark's decimals have no negative zero
        case _:
            return str(value)


def _moment(text: str) -> str:
    moment = datetime.fromisoformat(text)
    plain = moment.astimezone(UTC).replace(tzinfo=None) if moment.tzinfo else moment
    return plain.isoformat(sep=" ").rstrip("0").rstrip(".") if plain.microsecond else plain.isoformat(sep=" ")


def _kind(column: Column) -> str:
    kind: Any = column.arrow
    if kinds.is_decimal(kind):
        return f"{_DECIMAL}{kind.scale}"
    if kinds.is_timestamp(kind):
        return _MOMENT
    if kinds.is_binary(kind):
        return _BYTES
    return _TEXT if kinds.is_string(kind) else _DIGITS


def _row_text(columns: Sequence[Column]) -> str:
    spec = " ".join(map(_kind, columns))
    return f"lakehead_row('{spec}', {', '.join(column.expression for column in columns)})"


SQLITE_HASHES = HashSql(
    row_text=_row_text,
    md5=lambda text: f"lakehead_md5({text})",
    number=lambda digest: f"lakehead_number({digest})",
    integer=lambda column: column.expression,
    total="lakehead_sum({})".format,
)
