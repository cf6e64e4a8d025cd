"""PostgreSQL's types: their Arrow types, or why a column is refused."""

import pyarrow as pa

from lakehead.source.port import EVERY_REFUSED, Column, Overrides, quote_identifier, refusal

_NATIVE = {
    "bool": pa.bool_(),
    "int2": pa.int32(),
    "int4": pa.int32(),
    "int8": pa.int64(),
    "float4": pa.float32(),
    "float8": pa.float64(),
    "text": pa.string(),
    "varchar": pa.string(),
    "bpchar": pa.string(),
    "bytea": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", "UTC"),
}
_TEXT = {"uuid", "json", "jsonb", "xml", "name", "char", "citext"}
_WHY = {
    "time": "can hold 24:00:00, and Spark has no such type",
    "timetz": "has a time zone without a date, and Spark has no such type",
    "interval": "has months, days and seconds, which no single number can hold",
    "money": "depends on the locale",
    "bit": "is a string of bits",
    "varbit": "is a string of bits",
}
_SPLITS = {"int2", "int4", "int8", "text", "varchar", "uuid", "date", "timestamp", "timestamptz", "oid"}


def column_of(
    name: str, declared: str, base: str, kind: str, modifier: int, *, nullable: bool, overrides: Overrides
) -> Column:
    """Return a column for its declared type. `base` and `kind` are `typname` and `typtype` behind any domain."""
    raw = quote_identifier(name)
    text = f"{raw}::text"

    def made(arrow: pa.DataType | None, expression: str, jdbc: str | None = None, refused: str | None = None) -> Column:
        return Column(
            name=name,
            declared=declared,
            arrow=arrow,
            refused=refused,
            nullable=nullable,
            expression=expression,
            jdbc=jdbc or expression,
            splits=base in _SPLITS or (base == "numeric" and arrow is not None and pa.types.is_decimal(arrow)),
        )

    if name in overrides.as_text:
        return made(pa.string(), text)
    if base == "numeric":
        decimal = _decimal(overrides.decimals.get(name), modifier)
        if decimal is not None:
            return made(decimal, text)
        why, is_number = "has no declared precision, or more than 38 digits", True
    elif base in _NATIVE:
        bare = {"int2": "int4"}.get(base, base)
        jdbc = {
            "date": text,
            "timestamp": text,
            "timestamptz": f"({raw} AT TIME ZONE 'UTC')::text",
        }.get(base, f"{raw}::{bare}" if base != "bpchar" else raw)
        # Cast even to the column's own type: of a column with a domain, drivers see the domain.
        return made(_NATIVE[base], f"{raw}::{bare}" if base != "bpchar" else raw, jdbc)
    elif base == "oid":
        return made(pa.int64(), f"{raw}::int8")
    elif kind == "e" or base in _TEXT:
        return made(pa.string(), text)
    else:
        why, is_number = _WHY.get(base, "has no exact counterpart"), False
    if EVERY_REFUSED in overrides.as_text:
        return made(pa.string(), text)
    return made(None, text, refused=refusal(name, declared, why, decimal=is_number))


def _decimal(given: tuple[int, int] | None, modifier: int) -> pa.DataType | None:
    if given is not None:
        return pa.decimal128(*given)
    if modifier < 4:
        return None
    precision, scale = ((modifier - 4) >> 16) & 0xFFFF, (((modifier - 4) & 0x7FF) ^ 1024) - 1024
    # In PostgreSQL a scale may be negative or larger than the precision; in Arrow it may not.
    precision, scale = (precision - scale, 0) if scale < 0 else (max(precision, scale), scale)
    return pa.decimal128(precision, scale) if precision <= 38 else None
