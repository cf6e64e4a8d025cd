"""Values of Arrow arrays as JSON, for `_rescued` and for text columns."""

import base64
import math
from itertools import pairwise
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.types as kinds

from lakehead.consume.decode.exact_values import is_binary, is_list, is_text, is_uuid
from lakehead.consume.decode.json_values import JsonValue, Number

_LONG = 10**18


def json_values(array: pa.Array) -> list[JsonValue]:
    """Return each value as JSON would have it: binary in base64, times and dates as ISO text, decimals with all digits.

    A map with text keys is an object, any other a list of pairs; so is one that has a key twice.
    """
    kind = array.type
    if kinds.is_dictionary(kind):
        return json_values(array.dictionary_decode())
    if is_uuid(kind):
        return [None if value is None else str(UUID(bytes=value)) for value in array.storage.to_pylist()]
    if isinstance(kind, pa.BaseExtensionType):
        return json_values(array.storage)
    if kinds.is_null(kind) or kinds.is_boolean(kind) or is_text(kind):
        return list(array.to_pylist())
    if kinds.is_integer(kind):
        return [_integer(value) for value in array.to_pylist()]
    if kinds.is_floating(kind):
        return [_float(value) for value in array.cast(pa.float64()).to_pylist()]
    if is_binary(kind):
        return [None if value is None else base64.b64encode(value).decode() for value in array.to_pylist()]
    if kinds.is_fixed_size_list(kind):
        return json_values(array.cast(pa.list_(kind.value_type)))
    if kinds.is_struct(kind) or is_list(kind) or kinds.is_map(kind):
        return _nested(array)
    texts = array.cast(pa.string()).to_pylist()
    return [None if text is None else Number(text) for text in texts] if kinds.is_decimal(kind) else list(texts)


def _nested(array: pa.Array) -> list[JsonValue]:
    kind, present = array.type, array.is_valid().to_pylist()
    if kinds.is_struct(kind):
        columns = [json_values(array.field(number)) for number in range(kind.num_fields)]
        names = [field.name for field in kind]
        rows = zip(*columns, strict=True) if columns else iter([()] * len(array))
        return [
            dict(zip(names, row, strict=True)) if is_there else None
            for row, is_there in zip(rows, present, strict=True)
        ]
    bounds = array.offsets.to_pylist()
    if kinds.is_map(kind):
        keys, items = json_values(array.keys), json_values(array.items)
        pairs: list[Any] = [list(zip(keys[start:end], items[start:end], strict=True)) for start, end in _spans(bounds)]
        made = [_map(found) if is_text(kind.key_type) else [list(pair) for pair in found] for found in pairs]
    else:
        values = json_values(array.values)
        made = [values[start:end] for start, end in _spans(bounds)]
    return [value if is_there else None for value, is_there in zip(made, present, strict=True)]


def _map(pairs: list[tuple[str, JsonValue]]) -> JsonValue:
    made = dict(pairs)
    return made if len(made) == len(pairs) else [list(pair) for pair in pairs]


def _spans(bounds: list[int]) -> list[tuple[int, int]]:
    return list(pairwise(bounds))


def _integer(value: int | None) -> int | Number | None:
    return value if value is None or -_LONG < value < _LONG else Number(value)


def _float(value: float | None) -> Number | None:
    if value is None:
        return None
    if math.isfinite(value):
        return Number(repr(value))
    return Number("NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity")
