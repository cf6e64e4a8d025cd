"""Arrow columns of a file as columns of a table: exactly, value by value."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from lakehead.consume.decode.arrays import map_leaves, to_array
from lakehead.consume.decode.arrow_values import json_values
from lakehead.consume.decode.exact_values import from_json, is_binary, is_list, is_text, is_uuid
from lakehead.consume.decode.misfit import Misfit
from lakehead.consume.decode.text_columns import texts_to_array

Cast = Callable[[pa.Array], pa.Array]
"""Keeps every value exactly, or raises `pa.ArrowInvalid`."""

_MOST_DIGITS = 38


def fit_column(values: pa.Array, kind: pa.DataType) -> tuple[pa.Array, list[int]]:
    """Return a column as the type of a table's column, and which of its values do not fit; those are null.

    Integers fit integers, decimals and doubles that hold them; decimals fit decimals and integers; floats fit floats.
    Times and timestamps fit finer units, and coarser ones if no digit is lost; with a zone only with a zone. Texts are
    parsed where JSON's would be. A text column takes every value. Nested values fit if everything inside does.
    """
    values = _plain(values)
    have = values.type
    if have.equals(kind):
        return values, []
    if kinds.is_null(have):
        return pa.nulls(len(values), kind), []
    if is_text(have) and not is_text(kind):
        if kinds.is_integer(kind) or kinds.is_floating(kind) or kinds.is_boolean(kind) or kinds.is_nested(kind):
            return _nothing(values, kind)
        return texts_to_array(values.cast(pa.string()), kind)
    if kinds.is_nested(have):
        return _nested(values, kind)
    if is_text(kind) and not is_text(have) and (not is_binary(have) or is_uuid(have)):
        convert = from_json(kind)
        return pa.array([None if value is None else convert(value) for value in json_values(values)], kind), []
    cast = _cast(have, kind)
    return _nothing(values, kind) if cast is None else _each(values, kind, cast)


def column_type(kind: pa.DataType) -> pa.DataType:
    """Return the type of a new table column for values of a type; `fit_column` tells whether it holds them all."""
    return map_leaves(_plain_nested(kind), _leaf_type)


def _leaf_type(kind: pa.DataType) -> pa.DataType:  # noqa: C901 - one case for each kind
    if is_uuid(kind) or kinds.is_boolean(kind) or kinds.is_null(kind) or kinds.is_fixed_size_binary(kind):
        return kind
    if isinstance(kind, pa.BaseExtensionType):
        return column_type(kind.storage_type)
    if kinds.is_dictionary(kind):
        return column_type(kind.value_type)
    if kinds.is_integer(kind):
        if kinds.is_unsigned_integer(kind):
            return {8: pa.int32(), 16: pa.int32(), 32: pa.int64(), 64: pa.decimal128(20, 0)}[kind.bit_width]
        return pa.int32() if kind.bit_width <= 32 else pa.int64()
    if kinds.is_floating(kind):
        return pa.float64() if kind.bit_width == 64 else pa.float32()
    if kinds.is_decimal(kind) and kind.precision <= _MOST_DIGITS and 0 <= kind.scale <= kind.precision:
        return pa.decimal128(kind.precision, kind.scale)
    if kinds.is_timestamp(kind):
        return pa.timestamp("us", None if kind.tz is None else "UTC")
    if kinds.is_date(kind):
        return pa.date32()
    if kinds.is_time(kind):
        return pa.time64("us")
    return pa.binary() if is_binary(kind) else pa.string()


def _plain_nested(kind: pa.DataType) -> pa.DataType:
    if kinds.is_large_list(kind) or kinds.is_fixed_size_list(kind):
        return pa.list_(kind.value_field)
    return kind


def _plain(values: pa.Array) -> pa.Array:
    if kinds.is_dictionary(values.type):
        return _plain(values.dictionary_decode())
    if isinstance(values, pa.ExtensionArray) and not is_uuid(values.type):
        return _plain(values.storage)
    if kinds.is_fixed_size_list(values.type):
        return values.cast(pa.list_(values.type.value_type))
    return values


def _nothing(values: pa.Array, kind: pa.DataType) -> tuple[pa.Array, list[int]]:
    return pa.nulls(len(values), kind), np.flatnonzero(values.is_valid().to_numpy(zero_copy_only=False)).tolist()


def _each(values: pa.Array, kind: pa.DataType, cast: Cast) -> tuple[pa.Array, list[int]]:
    """Cast all values at once, and where that fails halves of them, until those are found that do not fit."""
    try:
        return cast(values), []
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        if len(values) == 1:
            return pa.nulls(1, kind), [0]
    middle = len(values) // 2
    first, misfits = _each(values.slice(0, middle), kind, cast)
    second, more = _each(values.slice(middle), kind, cast)
    return pa.concat_arrays([first, second]), [*misfits, *(middle + row for row in more)]


def _cast(have: pa.DataType, kind: pa.DataType) -> Cast | None:
    if is_uuid(kind):
        sixteen = kinds.is_fixed_size_binary(have) and have.byte_width == 16
        return kind.wrap_array if sixteen else None
    if is_uuid(have):
        return (lambda values: values.storage.cast(kind)) if is_binary(kind) else None
    if kinds.is_integer(have):
        if kinds.is_decimal(kind):
            return lambda values: _decimal(_wide(values), kind)
        return (lambda values: values.cast(kind)) if kinds.is_integer(kind) or kinds.is_floating(kind) else None
    if kinds.is_floating(have):
        return (lambda values: _float(values, kind)) if kinds.is_floating(kind) else None
    if kinds.is_decimal(have):
        if have.precision > _MOST_DIGITS or not 0 <= have.scale <= _MOST_DIGITS:
            return None
        if kinds.is_integer(kind):
            return lambda values: values.cast(pa.decimal128(_MOST_DIGITS, 0)).cast(kind)
        return (lambda values: _decimal(values, kind)) if kinds.is_decimal(kind) else None
    if kinds.is_timestamp(have) and kinds.is_timestamp(kind):
        return (lambda values: values.cast(kind)) if (have.tz is None) is (kind.tz is None) else None
    same = (
        (kinds.is_date(have) and kinds.is_date(kind))
        or (kinds.is_time(have) and kinds.is_time(kind))
        or (is_text(have) and is_text(kind))
        or (is_binary(have) and (is_binary(kind) or is_text(kind)))
    )
    return (lambda values: _cast_bytes(values, kind)) if same else None


def _cast_bytes(values: pa.Array, kind: pa.DataType) -> pa.Array:
    if is_binary(values.type) and kinds.is_fixed_size_binary(values.type):
        values = values.cast(pa.binary())
    return values.cast(kind)


def _wide(values: pa.Array) -> pa.Array:
    return (
        values.cast(pa.decimal128(20, 0))
        if values.type == pa.uint64()
        else values.cast(pa.int64()).cast(pa.decimal128(19, 0))
    )


def _decimal(values: pa.Array, kind: pa.DataType) -> pa.Array:
    # 38 digits scaled by up to 38 fit into 76: Arrow does not check for overflow in between.
    return values.cast(pa.decimal256(76, kind.scale)).cast(kind)


def _float(values: pa.Array, kind: pa.DataType) -> pa.Array:
    made = values.cast(kind)
    if kind.bit_width < values.type.bit_width:
        same = pc.or_(pc.equal(made.cast(values.type), values), pc.is_nan(values))
        if pc.all(same).as_py() is False:
            raise pa.ArrowInvalid("more digits than a single-precision float has")
    return made


def _nested(values: pa.Array, kind: pa.DataType) -> tuple[pa.Array, list[int]]:
    try:
        return _inside(values, kind), []
    except (Misfit, pa.ArrowInvalid):
        # Row by row, in the way that is slow and finds those that fit.
        convert = from_json(kind)
    made: list[Any] = json_values(values)
    misfits = []
    for row, value in enumerate(made):
        if value is not None:
            try:
                made[row] = convert(value)
            except Misfit:
                made[row] = None
                misfits.append(row)
    return to_array(made, kind), misfits


def _inside(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return nested values as another nested type if everything inside fits. Raises `Misfit`."""
    have = values.type
    if kinds.is_struct(have) and kinds.is_struct(kind):
        present = {field.name: values.field(number) for number, field in enumerate(have)}
        wanted = {field.name for field in kind}
        if len(present) < have.num_fields or any(
            child.null_count < len(child) for name, child in present.items() if name not in wanted
        ):
            raise Misfit
        children = [
            _whole(present[field.name], field.type) if field.name in present else pa.nulls(len(values), field.type)
            for field in kind
        ]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=values.is_null())
    if is_list(have) and is_list(kind) and values.offset == 0:
        made = pa.LargeListArray if kinds.is_large_list(kind) else pa.ListArray
        offsets = values.offsets.cast(pa.int64() if kinds.is_large_list(kind) else pa.int32())
        mask = values.is_null() if values.null_count else None
        return made.from_arrays(offsets, _whole(values.values, kind.value_type), type=kind, mask=mask)
    raise Misfit


def _whole(values: pa.Array, kind: pa.DataType) -> pa.Array:
    made, misfits = fit_column(values, kind)
    if misfits:
        raise Misfit
    return made
