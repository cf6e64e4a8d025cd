"""Hashes of keys, the same in every process: they spread keys over tasks, and decide nothing else.

Tasks import this module, so it depends on PyArrow and NumPy alone.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as kinds

Hashes = npt.NDArray[np.uint64]

_PRIME = np.uint64(0x9E3779B97F4A7C15)
_MIX = np.uint64(0xBF58476D1CE4E5B9)
_HALF, _THIRD = np.uint64(32), np.uint64(29)
_NULL = np.uint64(0x165667B19E3779F9)


def hashes_of(columns: Sequence[pa.Array]) -> Hashes:
    """A hash of each row's key. The columns are `comparable`; equal keys have equal hashes, and NULL equals NULL."""
    found = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        values = np.where(column.is_null().to_numpy(zero_copy_only=False), _NULL, _hashes(column))
        found = _mixed(found * _PRIME + values)
    return found


def _hashes(column: pa.Array) -> Hashes:
    """A hash of each value; that of NULL is not determined."""
    if kinds.is_large_string(column.type) or kinds.is_large_binary(column.type):
        return _of_bytes(column)
    if kinds.is_decimal(column.type):
        words = np.frombuffer(column.buffers()[1], np.uint64).reshape(-1, column.type.byte_width // 8)
        words = words[column.offset : column.offset + len(column)]
        found = np.zeros(len(column), np.uint64)
        for number in range(words.shape[1]):
            found = _mixed(found * _PRIME + words[:, number])
        return found
    plain: npt.NDArray[np.int64] = column.fill_null(0).to_numpy(zero_copy_only=False)
    return _mixed(plain.view(np.uint64))


def _of_bytes(column: pa.Array) -> Hashes:
    """A polynomial of the bytes of each value, from differences of one running sum over all of them."""
    _, offsets, data = column.buffers()
    ends = np.frombuffer(offsets, np.int64)[column.offset : column.offset + len(column) + 1]
    first, last = int(ends[0]), int(ends[-1])
    if first == last:
        return np.zeros(len(column), np.uint64)
    here = np.frombuffer(data, np.uint8)[first:last].astype(np.uint64) + np.uint64(1)
    lengths = np.diff(ends)
    places = np.arange(last - first, dtype=np.int64) - np.repeat(ends[:-1] - first, lengths)
    powers = np.multiply.accumulate(np.full(int(lengths.max()), _PRIME))
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(here * powers[places], dtype=np.uint64)])
    return _mixed(sums[ends[1:] - first] - sums[ends[:-1] - first])


def _mixed(values: Hashes) -> Hashes:
    values = (values ^ (values >> _HALF)) * _MIX
    return values ^ (values >> _THIRD)
