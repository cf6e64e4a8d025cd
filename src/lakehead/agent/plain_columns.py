"""Plain records of the usual forms made into Arrow, a column at a time: many times as fast as one record at a time.

The forms that are usual here are tuples or dictionaries, all records alike, labels in dictionaries, and numbers and
texts of Python's own types. What is not of a usual form may be right all the same.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from lakehead.agent.plain_times import unix_ns
from lakehead.agent.receive.arrow_columns import (
    Numbers,
    bool_column,
    joined_texts,
    lengths_of,
    number_column,
    offsets,
    text_column,
)


class _Unusual(Exception):
    """A value has a form that is not known here."""


def usual_records(
    schema: pa.Schema, in_tuples: Sequence[str], defaults: Mapping[str, object], records: Sequence[object]
) -> pa.RecordBatch | None:
    """Return records as Arrow with this schema; None if one is not of a usual form, or wrong. No rule is checked.

    `in_tuples` are the columns that tuples give, `defaults` what is meant by None or nothing.
    """
    given = _given(in_tuples, schema.names, records)
    if given is None:
        return None
    try:
        columns = [_column(field, given.get(field.name), defaults.get(field.name), len(records)) for field in schema]
    except (_Unusual, pa.ArrowException, OverflowError, TypeError, ValueError):
        return None
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _given(
    in_tuples: Sequence[str], known: Collection[str], records: Sequence[object]
) -> Mapping[str, Sequence[Any]] | None:
    """Return the values of each column that records have."""
    match [*{*map(type, records)}]:
        case [only] if only is tuple:
            rows: Sequence[tuple[object, ...]] = records  # type: ignore[assignment]  # as was seen
            if len({*map(len, rows)}) > 1 or not 2 <= len(rows[0]) <= len(in_tuples):
                return None
            return dict(zip(in_tuples, zip(*rows, strict=True), strict=False))
        case [only] if only is dict:
            mappings: Sequence[dict[object, object]] = records  # type: ignore[assignment]  # as was seen
            names = {*chain.from_iterable(mappings)}
            if not names <= {*known}:
                return None
            return {f"{name}": [each.get(name) for each in mappings] for name in names}
        case _:
            return None


def _column(field: pa.Field, values: Sequence[Any] | None, default: object, rows: int) -> pa.Array:
    if values is None:
        values = [None] * rows
    if default is not None:
        values = [default if value is None else value for value in values]
    elif not field.nullable and None in values:
        raise _Unusual
    if pa.types.is_struct(field.type):
        if any(value is not None for value in values):
            raise _Unusual
        return pa.nulls(rows, field.type)
    return _maker(field.type)(field, values)


def _maker(of: pa.DataType) -> Callable[[pa.Field, Sequence[Any]], pa.Array]:
    if pa.types.is_map(of):
        return _maps
    if pa.types.is_string(of):
        return _texts
    if pa.types.is_timestamp(of):
        return _times
    if pa.types.is_floating(of):
        return _floats
    return _truths if pa.types.is_boolean(of) else _whole_numbers


def _texts(_: pa.Field, values: Sequence[Any]) -> pa.Array:
    return text_column(values)


def _truths(_: pa.Field, values: Sequence[Any]) -> pa.Array:
    _require(values, bool)
    return bool_column(values)


def _times(field: pa.Field, values: Sequence[Any]) -> pa.Array:
    if any(not issubclass(each, int) for each in _types(values)):
        values = [None if value is None else unix_ns(field.name, value) for value in values]
    return _whole_numbers(field, values)


def _whole_numbers(field: pa.Field, values: Sequence[Any]) -> pa.Array:
    _require(values, int, besides=bool)
    numbers, valid = _numbers(values, np.int64)
    width = field.type.bit_width
    if width < 64 and np.abs(numbers).max(initial=0) >= 1 << width - 1:
        raise _Unusual
    return number_column(field.type, numbers.astype(f"i{width // 8}"), valid)


def _floats(field: pa.Field, values: Sequence[Any]) -> pa.Array:
    _require(values, float, int, besides=bool)
    return number_column(field.type, *_numbers(values, np.float64))


def _numbers(values: Sequence[Any], of: type[np.generic]) -> tuple[Numbers, Numbers | None]:
    """Return numbers, and which of them are there; None for the latter if all are. Raises `OverflowError`."""
    if None not in values:
        return np.fromiter(values, of, len(values)), None
    valid = np.fromiter((value is not None for value in values), np.bool_, len(values))
    return np.fromiter((0 if value is None else value for value in values), of, len(values)), valid


class _Keys(NamedTuple):
    """The keys of a dictionary, by ascending bytes, in the form that Arrow takes."""

    size: int
    joined: bytes
    lengths: Numbers
    texts: Callable[[Mapping[str, str]], Sequence[str]]
    """Returns the values of a dictionary with these keys, in the order of the keys."""

    @classmethod
    def of(cls, given: tuple[object, ...]) -> "_Keys":
        _require(given, str)
        encoded = sorted(key.encode() for key in given if isinstance(key, str))
        keys = [key.decode() for key in encoded]  # the texts themselves: what is made of them may look different
        match keys:
            case []:
                texts: Callable[[Mapping[str, str]], Sequence[str]] = _no_texts
            case [key]:
                texts = lambda labels: (labels[key],)  # noqa: E731 - beside its siblings
            case _:
                texts = itemgetter(*keys)
        return cls(len(keys), b"".join(encoded), lengths_of(encoded), texts)


def _no_texts(_: Mapping[str, str]) -> Sequence[str]:
    return ()


def _maps(field: pa.Field, values: Sequence[Any]) -> pa.Array:
    """Return dictionaries of text to text as a column. Most have the same keys: those are put in order once."""
    known: dict[tuple[object, ...], _Keys] = {}
    keys: list[_Keys] = []
    texts: list[str] = []
    for labels in values:
        if type(labels) is not dict:
            raise _Unusual
        given = tuple(labels)
        found = known.get(given)
        if found is None:
            found = known[given] = _Keys.of(given)
        keys.append(found)
        texts += found.texts(labels)
    return pa.MapArray.from_arrays(
        offsets(np.fromiter((each.size for each in keys), np.int64, len(keys))),
        joined_texts(np.concatenate([each.lengths for each in keys]), [each.joined for each in keys]),
        text_column(texts),
        type=field.type,
    )


def _require(values: Sequence[object], *types: type, besides: type | None = None) -> None:
    """Raise `_Unusual` unless all values but None are of these types, or of types made of them."""
    if not all(issubclass(each, types) and each is not besides for each in _types(values)):
        raise _Unusual


def _types(values: Sequence[object]) -> set[type]:
    return {*map(type, values)} - {type(None)}
