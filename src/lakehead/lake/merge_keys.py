"""Comparing rows by key and by order in Arrow, exactly as a MERGE of Spark does.

Tasks import this module, so it depends on PyArrow and NumPy alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

Numbers = npt.NDArray[np.int64]
NOT_FOUND = -1


def is_comparable(kind: pa.DataType) -> bool:
    """Whether values of this type can be compared here: not nested ones, and no floats.

    Spark treats NaN as equal to itself, and 0.0 as equal to -0.0; Arrow does neither everywhere.
    """
    return not (kinds.is_nested(kind) or kinds.is_floating(kind) or kinds.is_null(kind) or kinds.is_time(kind))


def comparable(column: pa.Array | pa.ChunkedArray, kind: pa.DataType) -> pa.Array:
    """The values as the given type of the table, in a form in which equal values are equal and smaller ones smaller.

    Whole numbers, booleans, dates and timestamps become 64-bit numbers, uuids and fixed bytes become bytes.
    """
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(array, pa.ChunkedArray):  # of no chunks, or of several that do not fit into one
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], array.type)
    if kinds.is_dictionary(array.type):
        array = array.dictionary_decode()
    array, kind = _storage(array), kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
    if not array.type.equals(kind):
        array = array.cast(kind)
    if kinds.is_boolean(kind) or kinds.is_integer(kind):
        return array.cast(pa.int64())
    if kinds.is_date(kind):
        return array.cast(pa.date32()).cast(pa.int32()).cast(pa.int64())
    if kinds.is_timestamp(kind):
        return array.cast(pa.timestamp("us", kind.tz)).cast(pa.int64())
    if kinds.is_string(kind) or kinds.is_large_string(kind):
        return array.cast(pa.large_string())
    if kinds.is_fixed_size_binary(kind):
        array = array.cast(pa.binary())
    if kinds.is_binary(array.type) or kinds.is_large_binary(array.type):
        return array.cast(pa.large_binary())
    return array


def _storage(array: pa.Array) -> pa.Array:
    return array.storage if isinstance(array.type, pa.BaseExtensionType) else array


@dataclass(frozen=True, slots=True)
class KeyIndex:
    """Finds keys among a set of keys. NULL equals NULL, so leave out rows with NULL if they must not match.

    A key of several columns becomes one number, column by column. After each column the numbers are made dense again:
    they stay below the square of how many keys there are, whatever the number of columns.
    """

    values: tuple[pa.Array, ...]
    """The distinct values of each column."""

    codes: tuple[Numbers, ...]
    """The sorted numbers of the distinct combinations, for the second column and those after it."""

    rows: Numbers
    """For each key's number, the row that has it."""

    @classmethod
    def of(cls, columns: Sequence[pa.Array]) -> Self:
        """An index of keys that are `comparable` and different from each other."""
        values, codes, found = _codes(columns)
        rows = np.empty(len(found), np.int64)
        rows[found] = np.arange(len(found))
        return cls(values, codes, rows)

    def find(self, columns: Sequence[pa.Array]) -> Numbers:
        """For each of these keys the row of the indexed keys that is equal, or `NOT_FOUND`."""
        if len(self.rows) == 0:
            return np.full(len(columns[0]), NOT_FOUND, np.int64)
        found = _positions(columns[0], self.values[0])
        for column, values, codes in zip(columns[1:], self.values[1:], self.codes, strict=True):
            here = _positions(column, values)
            is_known = (found >= 0) & (here >= 0)
            code = found * len(values) + here
            place = np.minimum(np.searchsorted(codes, code), len(codes) - 1)
            found = np.where(is_known & (codes[place] == code), place, NOT_FOUND)
        return np.where(found >= 0, self.rows[found], NOT_FOUND)


def _codes(columns: Sequence[pa.Array]) -> tuple[tuple[pa.Array, ...], tuple[Numbers, ...], Numbers]:
    """The distinct values of each column, the distinct combinations, and the dense number of each row's key."""
    values: list[pa.Array] = []
    codes: list[Numbers] = []
    found: Numbers = np.zeros(0, np.int64)
    for number, column in enumerate(columns):
        distinct = column.unique()
        here = _positions(column, distinct)
        if number == 0:
            found = here
        else:
            combined, found = np.unique(found * len(distinct) + here, return_inverse=True)
            codes.append(combined)
        values.append(distinct)
    return tuple(values), tuple(codes), found


def _positions(column: pa.Array, values: pa.Array) -> Numbers:
    """Where each value is in a list of distinct ones, or `NOT_FOUND`."""
    found = pc.index_in(column, value_set=values)
    positions: Numbers = found.fill_null(NOT_FOUND).to_numpy(zero_copy_only=False).astype(np.int64)
    return positions


@dataclass(frozen=True, slots=True)
class Newest:
    """Which of the rows are the newest of their keys."""

    rows: Numbers
    """In ascending order."""

    is_tied: bool
    """Whether rows of one key are equal in every compared column, so that other columns must decide."""


def newest_rows(keys: Sequence[pa.Array], order: Sequence[pa.Array]) -> Newest:
    """The newest row of each key: the largest by the order's columns, one after the other; NULL is the smallest.

    All columns are `comparable`.
    """
    *_, found = _codes(keys)
    counts = np.bincount(found) if len(found) else np.zeros(0, np.int64)
    if len(counts) == len(found):
        return Newest(np.arange(len(found)), is_tied=False)
    alone = np.flatnonzero(counts[found] == 1)
    several = np.flatnonzero(counts[found] > 1)
    columns = {"key": pa.array(found[several])} | {
        str(number): column.take(pa.array(several)) for number, column in enumerate(order)
    }
    by: list[tuple[str, Any]] = [("key", "ascending"), *((str(number), "descending") for number in range(len(order)))]
    # PyArrow puts NULL last in either direction.
    ranked = several[pc.sort_indices(pa.table(columns), sort_keys=by).to_numpy()]
    is_first = np.append(True, found[ranked][1:] != found[ranked][:-1])
    first = np.flatnonzero(is_first)
    second = first + 1  # each of these keys has several rows
    tied = np.ones(len(first), bool)
    for column in order:
        tied &= _is_same(column.take(pa.array(ranked[first])), column.take(pa.array(ranked[second])))
    return Newest(np.sort(np.concatenate([alone, ranked[first]])), is_tied=bool(tied.any()))


def counts_over(rows: Sequence[pa.Array], others: Sequence[pa.Array]) -> npt.NDArray[np.bool_]:
    """Whether each row comes before its counterpart in the order: larger in the first column in which they differ."""
    decided = np.zeros(len(rows[0]), bool)
    is_open = np.ones(len(rows[0]), bool)
    for row, other in zip(rows, others, strict=True):
        larger = _true(pc.greater(row, other)) | (_true(row.is_valid()) & _true(other.is_null()))
        decided |= is_open & larger
        is_open &= _is_same(row, other)
    return decided


def _is_same(one: pa.Array, two: pa.Array) -> npt.NDArray[np.bool_]:
    return _true(pc.equal(one, two)) | (_true(one.is_null()) & _true(two.is_null()))


def _true(values: Any) -> npt.NDArray[np.bool_]:
    found: npt.NDArray[np.bool_] = pc.fill_null(values, fill_value=False).to_numpy(zero_copy_only=False).astype(bool)
    return found
