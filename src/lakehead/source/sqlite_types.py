"""SQLite's declared types: their Arrow types, or why a column is refused.

SQLite does not enforce declared types: any column may hold any value. So each column also has the storage classes that
it accepts, and a reader checks for others before it reads.
"""

import re

import pyarrow as pa

from lakehead.source.port import EVERY_REFUSED, Column, Overrides, quote_identifier, refusal

_DECIMAL = re.compile(r"\w+\s*\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\)")


def column_of(name: str, declared: str, *, nullable: bool, overrides: Overrides) -> Column:
    """Return a column for its declared type, by SQLite's type affinity except for dates, booleans and decimals."""
    raw = quote_identifier(name)
    text = _text(raw)
    base = declared.upper().partition("(")[0].strip()

    def made(arrow: pa.DataType | None, expression: str, jdbc: str | None = None, refused: str | None = None) -> Column:
        return Column(
            name=name,
            declared=declared or "(none)",
            arrow=arrow,
            refused=refused,
            nullable=nullable,
            expression=expression,
            jdbc=jdbc or expression,
            splits=arrow is not None and arrow not in (pa.binary(), pa.float64(), pa.bool_()),
        )

    if name in overrides.as_text:
        return made(pa.string(), text)
    if name in overrides.decimals:
        return made(pa.decimal128(*overrides.decimals[name]), text)
    match base:
        case "BOOLEAN" | "BOOL":
            return made(pa.bool_(), raw, f"CAST({raw} AS TEXT)")
        case "DATE":
            return made(pa.date32(), raw)
        case "DATETIME" | "TIMESTAMP":
            return made(pa.timestamp("us"), raw)
        case _:
            pass
    arrow = _affinity(base)
    if arrow is not None:
        jdbc = {
            pa.int64(): f"CAST({raw} AS TEXT)",
            pa.float64(): text,
            pa.binary(): f"CASE WHEN {raw} IS NOT NULL THEN hex({raw}) END",
        }.get(arrow, raw)
        return made(arrow, raw, jdbc)
    decimal = _decimal(declared) if base in ("DECIMAL", "NUMERIC", "DEC") else None
    if decimal is not None:
        return made(decimal, text)
    why = "has no declared precision" if base in ("DECIMAL", "NUMERIC", "DEC") else "may hold any value"
    if EVERY_REFUSED in overrides.as_text:
        return made(pa.string(), text)
    return made(None, text, refused=refusal(name, declared or "(none)", why, decimal=base in ("DECIMAL", "NUMERIC")))


def stored_types(column: Column) -> tuple[str, ...]:
    """Return the storage classes that a column accepts; empty for any."""
    kind = column.arrow
    if column.expression != quote_identifier(column.name):
        return ("integer", "real") if kind is not None and pa.types.is_decimal(kind) else ()
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return ("integer",)
    if pa.types.is_floating(kind):
        return ("real",)
    return ("blob",) if pa.types.is_binary(kind) else ("text",)


def _text(raw: str) -> str:
    # SQLite prints 15 digits, which may be another number; 17 digits never are.
    short, long = f"printf('%!.15g', {raw})", f"printf('%!.17g', {raw})"
    real = f"CASE WHEN CAST({short} AS REAL) = {raw} THEN {short} ELSE {long} END"
    return f"CASE typeof({raw}) WHEN 'real' THEN {real} WHEN 'blob' THEN hex({raw}) ELSE CAST({raw} AS TEXT) END"


def _affinity(base: str) -> pa.DataType | None:
    if "INT" in base:
        return pa.int64()
    if any(sign in base for sign in ("CHAR", "CLOB", "TEXT")):
        return pa.string()
    if "BLOB" in base:
        return pa.binary()
    if any(sign in base for sign in ("REAL", "FLOA", "DOUB")):
        return pa.float64()
    return pa.string() if base in ("JSON", "UUID") else None


def _decimal(declared: str) -> pa.DataType | None:
    found = _DECIMAL.fullmatch(declared.strip())
    if found is None:
        return None
    precision, scale = int(found.group(1)), int(found.group(2) or 0)
    return pa.decimal128(precision, scale) if 0 < precision <= 38 and scale <= precision else None
