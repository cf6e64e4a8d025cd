"""Arrow columns of a file as columns of a table: exactly, value by value."""

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from lakehead.consume.decode.arrays import map_leaves
from lakehead.consume.decode.arrow_values import json_values
from lakehead.consume.decode.exact_values import from_json, is_binary, is_list, is_text, is_uuid
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
    """Return nested values as a nested type of the same kind, or as text, and which of them do not fit."""
    if is_text(kind):
        convert = from_json(kind)
        return pa.array([None if value is None else convert(value) for value in json_values(values)], kind), []
    made, misfits = _inside(values, kind)
    if not misfits:
        return made, []
    # Without those rows: what is null may not have anything inside it.
    kept: list[int | None] = list(range(len(values)))
    for row in misfits:
        kept[row] = None
    return _inside(values.take(pa.array(kept, pa.int64())), kind)[0], misfits


def _inside(values: pa.Array, kind: pa.DataType) -> tuple[pa.Array, list[int]]:
    """Fit what is inside nested values. Returns the rows in which something does not fit; those are not null yet."""
    have = values.type
    if kinds.is_struct(have) and kinds.is_struct(kind):
        return _struct(values, kind)
    if is_list(have) and is_list(kind):
        made = pa.LargeListArray if kinds.is_large_list(kind) else pa.ListArray
        items, misfits = fit_column(values.flatten(), kind.value_type)
        offsets = _offsets(values)
        width = pa.int64() if kinds.is_large_list(kind) else pa.int32()
        mask = values.is_null() if values.null_count else None
        fitting = made.from_arrays(pa.array(offsets, width), items, type=kind, mask=mask)
        return fitting, _rows_of(misfits, offsets)
    if kinds.is_map(have) and kinds.is_map(kind):
        return _map(values, kind)
    return _nothing(values, kind)


def _struct(values: pa.Array, kind: pa.DataType) -> tuple[pa.Array, list[int]]:
    present = {field.name: values.field(number) for number, field in enumerate(values.type)}
    there = values.is_valid().to_numpy(zero_copy_only=False)
    unfit = np.zeros(len(values), np.bool_)
    children = []
    for field in kind:
        child = present.pop(field.name, None)
        made, misfits = (pa.nulls(len(values), field.type), []) if child is None else fit_column(child, field.type)
        children.append(made)
        unfit[misfits] = True
    for child in present.values():
        unfit |= child.is_valid().to_numpy(zero_copy_only=False)
    made = pa.StructArray.from_arrays(children, fields=list(kind), mask=values.is_null())
    return made, np.flatnonzero(unfit & there).tolist()


def _map(values: pa.Array, kind: pa.DataType) -> tuple[pa.Array, list[int]]:
    have = values.type
    entries = values.cast(pa.list_(pa.struct([have.key_field, have.item_field])))
    pairs, offsets = entries.flatten(), _offsets(entries)
    keys, misfits = fit_column(pairs.field(0), kind.key_type)
    items, more = fit_column(pairs.field(1), kind.item_type)
    unfit = _rows_of([*misfits, *more], offsets)
    if misfits:
        return pa.nulls(len(values), kind), unfit  # a key cannot be null
    # A map takes nulls from its offsets only.
    null = np.append(values.is_null().to_numpy(zero_copy_only=False), False)
    return pa.MapArray.from_arrays(pa.array(offsets, pa.int32(), mask=null), keys, items, type=kind), unfit


def _offsets(values: pa.Array) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    """Return where each list begins in the flattened values, and where the last one ends."""
    lengths = pc.list_value_length(values).cast(pa.int64()).fill_null(0).to_numpy()
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths)))


def _rows_of(places: list[int], offsets: "np.ndarray[tuple[int], np.dtype[np.int64]]") -> list[int]:
    """Return the rows that have some of the flattened values."""
    rows: list[int] = np.unique(np.searchsorted(offsets, np.array(places, np.int64), side="right") - 1).tolist()
    return rows
