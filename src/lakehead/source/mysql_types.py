"""The types of MySQL and MariaDB: their Arrow types, or why a column is refused."""

import re

import pyarrow as pa

from lakehead.source.mysql import QUOTE_MARK
from lakehead.source.port import EVERY_REFUSED, Column, Overrides, quote_identifier, refusal

_INTEGERS = {
    "tinyint": (pa.int32(), pa.int32()),
    "smallint": (pa.int32(), pa.int32()),
    "mediumint": (pa.int32(), pa.int32()),
    "int": (pa.int32(), pa.int64()),
    "bigint": (pa.int64(), pa.decimal128(20, 0)),
    "year": (pa.int32(), pa.int32()),
}
"""The Arrow types of the signed and of the unsigned type."""
_TEXT = {
    "char",
    "varchar",
    "tinytext",
    "text",
    "mediumtext",
    "longtext",
    "enum",
    "set",
    "json",
    "uuid",
    "inet4",
    "inet6",
}
_BINARY = {"binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"}
_TIMES = {"date": pa.date32(), "datetime": pa.timestamp("us"), "timestamp": pa.timestamp("us", "UTC")}
_SHAPES = {
    "geometry",
    "point",
    "linestring",
    "polygon",
    "multipoint",
    "multilinestring",
    "multipolygon",
    "geometrycollection",
    "geomcollection",
}
_PLAIN_TEXT_KEYS = {"char", "varchar", "uuid"}
_BIT = re.compile(r"bit\((\d+)\)")
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")


def column_of(  # noqa: C901 - one case for each kind of type
    name: str, declared: str, base: str, *, nullable: bool, overrides: Overrides
) -> Column:
    """Return a column for its declared type. `base` is DATA_TYPE and `declared` COLUMN_TYPE of the catalog."""
    raw = quote_identifier(name, QUOTE_MARK)
    # ConnectorX and JDBC lose digits of, or fail on, decimals, dates and timestamps; text is safe.
    text, unsigned = f"CAST({raw} AS CHAR)", "unsigned" in declared

    def made(arrow: pa.DataType | None, expression: str, *, splits: bool = False, refused: str | None = None) -> Column:
        return Column(
            name=name,
            declared=declared,
            arrow=arrow,
            refused=refused,
            nullable=nullable,
            expression=expression,
            jdbc=expression,
            splits=splits,
        )

    if name in overrides.as_text:
        return made(pa.string(), _as_text(raw, text, base, declared), splits=base in _INTEGERS)
    if base in _INTEGERS:
        arrow = _INTEGERS[base][unsigned]
        return made(arrow, text if pa.types.is_decimal(arrow) else f"CAST({raw} AS SIGNED)", splits=True)
    if base in _TIMES:
        return made(_TIMES[base], text, splits=True)
    if base in _TEXT:
        return made(pa.string(), text, splits=base in _PLAIN_TEXT_KEYS)
    if base in _BINARY:
        return made(pa.binary(), raw)
    if base == "float":
        return made(pa.float32(), f"({raw} + 0e0)")  # otherwise only six digits would be returned
    if base == "double":
        return made(pa.float64(), raw)
    if base == "bit" and declared == "bit(1)":
        return made(pa.bool_(), f"CAST({raw} + 0 AS SIGNED)")
    decimal = _decimal(declared, overrides.decimals.get(name)) if base == "decimal" else None
    if decimal is not None:
        return made(decimal, text, splits=True)
    if EVERY_REFUSED in overrides.as_text:
        return made(pa.string(), _as_text(raw, text, base, declared))
    return made(None, text, refused=refusal(name, declared, _why(base), decimal=base == "decimal"))


def _why(base: str) -> str:
    if base == "decimal":
        return "has more than 38 digits"
    if base == "time":
        return "is a duration that may be negative or longer than a day, and Spark has no such type"
    return "is a string of bits" if base == "bit" else "has no exact counterpart"


def _as_text(raw: str, text: str, base: str, declared: str) -> str:
    if base in _SHAPES:
        return f"ST_AsText({raw})"
    if base in _BINARY:
        return f"HEX({raw})"
    if base == "float":
        return f"CAST({raw} + 0e0 AS CHAR)"
    if found := _BIT.match(declared):
        return f"LPAD(BIN({raw}), {found.group(1)}, '0')"
    return text


def _decimal(declared: str, given: tuple[int, int] | None) -> pa.DataType | None:
    if given is not None:
        return pa.decimal128(*given)
    found = _DECIMAL.match(declared)
    precision, scale = (int(found.group(1)), int(found.group(2))) if found else (39, 0)
    return pa.decimal128(precision, scale) if precision <= 38 else None
