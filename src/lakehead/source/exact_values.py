"""Converts the values of a batch to the types of their columns exactly, or refuses them. Every reader uses it."""

import re
from collections.abc import Callable, Sequence
from decimal import Decimal, InvalidOperation

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from lakehead.source.errors import NotExact
from lakehead.source.port import Column, schema_of

_FIRST_DAY, _LAST_DAY = -719162, 2932896
"""0001-01-01 and 9999-12-31: the range in which the calendars of Spark and Python agree."""
_DAY_US = 86_400_000_000
_DIGITS = {128: 38, 256: 76}
_MAX_SHOWN = 60
_EXPONENT = re.compile(rb"[eE]")


def exact_batch(batch: pa.RecordBatch, columns: Sequence[Column], table: str) -> pa.RecordBatch:
    """Return a batch with the types of its columns, in order. Raises `NotExact` with column and value otherwise."""
    arrays = [_column(batch.column(number), column, table) for number, column in enumerate(columns)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema_of(columns))


def _column(values: pa.Array, column: Column, table: str) -> pa.Array:
    if isinstance(values, pa.ExtensionArray):
        values = values.storage
    want = column.arrow
    convert = _converter(values.type, want)
    if convert is None:
        raise NotExact(
            f"Table {table}: column {column.name!r} of type {column.declared} was returned as {values.type}, which is "
            f"not {want}. Add it to 'as_text' to read it as text."
        )
    try:
        return _converted(values, want, convert)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        invalid = "(not shown)" if column.secret else _first_invalid(values, want, convert)
        advice = "Fix" if kinds.is_string(want) else "Add the column to 'as_text' to read it as text, or fix"
        raise NotExact(
            f"Table {table}: column {column.name!r} of type {column.declared} has the value {invalid}, which {want} "
            f"cannot hold exactly. {advice} the value."
        ) from (None if invalid else error)


Converter = Callable[[pa.Array, pa.DataType], pa.Array]


def _converted(values: pa.Array, want: pa.DataType, convert: Converter) -> pa.Array:
    if kinds.is_string(values.type) or kinds.is_large_string(values.type):
        values.validate(full=True)  # that it is UTF-8: neither SQLite nor its driver looks
    return convert(values, want)


def _converter(have: pa.DataType, want: pa.DataType) -> Converter | None:  # noqa: C901, PLR0912 - one case for each kind
    text = kinds.is_string(have) or kinds.is_large_string(have)
    if kinds.is_null(have):
        return _cast
    if kinds.is_decimal(want):
        if kinds.is_integer(have):
            return lambda values, kind: _decimal(values.cast(pa.string()), kind)
        if have.equals(want):
            return _same
        return _decimal if text else None
    if kinds.is_date(want):
        if text:
            return lambda values, kind: _date(values.cast(kind), kind)
        return _date if have.equals(want) else None
    if kinds.is_timestamp(want):
        if text:
            return lambda values, kind: _timestamp(values.cast(pa.timestamp("us")), kind)
        return _timestamp if kinds.is_timestamp(have) and have.unit == "us" and have.tz == want.tz else None
    if kinds.is_boolean(want):
        if have.equals(want):
            return _same
        if text:
            return lambda values, kind: _boolean(_integer(values, pa.int64()), kind)
        return _boolean if kinds.is_integer(have) else None
    if kinds.is_integer(want):
        if text:
            return _integer
        return _cast if kinds.is_integer(have) else None
    if kinds.is_floating(want):
        if text:
            return _float
        return _float_of if kinds.is_floating(have) else None
    if kinds.is_string(want):
        return _cast if text else None
    if kinds.is_binary(want):
        if text:
            return _from_hex
        return _cast if kinds.is_binary(have) or kinds.is_large_binary(have) else None
    return None


def _same(values: pa.Array, _: pa.DataType) -> pa.Array:
    return values


def _cast(values: pa.Array, want: pa.DataType) -> pa.Array:
    return values if values.type.equals(want) else values.cast(want)


def _decimal(values: pa.Array, want: pa.DataType) -> pa.Array:
    # Arrow scales a text's digits without checking for overflow. So it is only used where digits and scale together
    # cannot overflow, first in 128 bits and then in 256.
    if _EXPONENT.search(_characters(values)):
        values = pa.array([_without_exponent(value) for value in values.to_pylist()], pa.string())
    if _longest(values) + want.scale <= _DIGITS[128]:
        return values.cast(want)
    values = pc.replace_substring_regex(values, r"^([+-]?)0+([0-9])", r"\1\2")
    values = pc.replace_substring_regex(values, r"^([^.]*\.[0-9]*?)0+$", r"\1")
    whole = pc.replace_substring_regex(values, r"\..*$", "")
    if _longest(values) > _DIGITS[256] or _longest(whole) + want.scale > _DIGITS[256]:
        raise pa.ArrowInvalid("more digits than a decimal holds")
    return values.cast(pa.decimal256(_DIGITS[256], want.scale)).cast(want)


def _characters(values: pa.Array) -> memoryview:
    """Return all characters of a column at once, which is faster than looking at each value."""
    if len(values) == 0:
        return memoryview(b"")
    _, offsets, characters = values.buffers()
    ends = np.frombuffer(offsets, np.int64 if kinds.is_large_string(values.type) else np.int32)
    first, last = ends[values.offset], ends[values.offset + len(values)]
    return memoryview(characters)[first:last] if last > first else memoryview(b"")


def _longest(values: pa.Array) -> int:
    return pc.max(pc.binary_length(values)).as_py() or 0


def _without_exponent(value: str | None) -> str | None:
    """Return a number without exponent; text that is not a number is left for the cast to refuse."""
    try:
        return None if value is None else format(Decimal(value), "f")
    except InvalidOperation:
        return value


def _date(values: pa.Array, _: pa.DataType) -> pa.Array:
    return _within(values, pa.int32(), _FIRST_DAY, _LAST_DAY)


def _timestamp(values: pa.Array, want: pa.DataType) -> pa.Array:
    checked = _within(values, pa.int64(), _FIRST_DAY * _DAY_US, (_LAST_DAY + 1) * _DAY_US - 1)
    return checked if checked.type.equals(want) else checked.cast(want)


def _within(values: pa.Array, number: pa.DataType, least: int, most: int) -> pa.Array:
    span = pc.min_max(values.cast(number))
    low, high = span["min"].as_py(), span["max"].as_py()
    if low is not None and (low < least or high > most):
        raise pa.ArrowInvalid("outside the years 1 to 9999")
    return values


def _boolean(values: pa.Array, want: pa.DataType) -> pa.Array:
    span = pc.min_max(values)
    if span["min"].as_py() is not None and not (span["min"].as_py() >= 0 and span["max"].as_py() <= 1):
        raise pa.ArrowInvalid("neither 0 nor 1")
    return values.cast(want)


def _integer(values: pa.Array, want: pa.DataType) -> pa.Array:
    if pc.any(pc.match_substring_regex(values, r"[^0-9-]")).as_py():
        raise pa.ArrowInvalid("not a decimal integer")
    return values.cast(want)


def _float(values: pa.Array, want: pa.DataType) -> pa.Array:
    parsed = values.cast(pa.float64())
    spelled = pc.match_substring_regex(values, "inf", ignore_case=True)
    if pc.any(pc.and_(pc.is_inf(parsed), pc.invert(spelled))).as_py():
        raise pa.ArrowInvalid("too large")
    return _float_of(parsed, want)


def _float_of(values: pa.Array, want: pa.DataType) -> pa.Array:
    made = _cast(values, want)
    same = pc.or_(pc.equal(made.cast(values.type), values), pc.is_nan(values))
    if made.type.bit_width < values.type.bit_width and not pc.all(same).as_py():
        raise pa.ArrowInvalid("more digits than a single-precision float has")
    return made


def _from_hex(values: pa.Array, want: pa.DataType) -> pa.Array:
    try:
        return pa.array([None if value is None else bytes.fromhex(value) for value in values.to_pylist()], want)
    except ValueError:
        raise pa.ArrowInvalid("not hexadecimal") from None


def _first_invalid(values: pa.Array, want: pa.DataType, convert: Converter) -> str:
    """Return the first value that cannot be converted, shortened."""
    for number in range(len(values)):
        try:
            _converted(values.slice(number, 1), want, convert)
        except (pa.ArrowInvalid, pa.ArrowTypeError):
            return _shown(values[number], want)
    return "(unknown)"


def _shown(value: pa.Scalar, want: pa.DataType) -> str:
    try:
        text = str(value.as_py())
    except UnicodeDecodeError:
        return repr(value.as_buffer().to_pybytes()[:_MAX_SHOWN])
    except (OverflowError, ValueError):
        # A date or timestamp that Python cannot hold either, such as PostgreSQL's infinity.
        return f"a {want} outside the years 1 to 9999 (such as infinity)"
    return repr(text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…")
