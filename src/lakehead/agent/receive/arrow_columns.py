"""Columns of Arrow made of Python's and NumPy's values, through buffers.

`pa.array` would import pandas, which takes most of a start and much memory.
"""

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

Numbers: TypeAlias = np.ndarray[Any, np.dtype[Any]]


def number_column(of: pa.DataType, numbers: Numbers, valid: Numbers | None = None) -> pa.Array:
    """Return numbers, or times in nanoseconds, as a column. They have the width of its type. None: all are valid."""
    return pa.Array.from_buffers(of, len(numbers), [_bitmap(valid), pa.py_buffer(np.ascontiguousarray(numbers))])


def bool_column(values: Sequence[bool | None]) -> pa.BooleanArray:
    """Return truths as a column; None is null."""
    valid = np.fromiter((each is not None for each in values), np.bool_, len(values))
    truths = np.fromiter(map(bool, values), np.bool_, len(values))
    return pa.BooleanArray.from_buffers(pa.bool_(), len(values), [_bitmap(valid), _bitmap(truths)])


def text_column(texts: Sequence[str | None]) -> pa.StringArray:
    """Return texts as a column; None is null. Raises `pa.ArrowInvalid` if they have 2 GiB or more."""
    valid = np.fromiter((text is not None for text in texts), np.bool_, len(texts)) if None in texts else None
    present = ["" if text is None else text for text in texts]
    if (joined := "".join(present)).isascii():
        return joined_texts(lengths_of(present), [joined.encode()], valid)
    encoded = [text.encode() for text in present]
    return joined_texts(lengths_of(encoded), encoded, valid)


def joined_texts(lengths: Numbers, parts: Iterable[bytes], valid: Numbers | None = None) -> pa.StringArray:
    """Return valid UTF-8, which the parts are when they are put together, as a column of texts with these lengths."""
    data = pa.py_buffer(b"".join(parts))
    return pa.StringArray.from_buffers(len(lengths), offsets(lengths).buffers()[1], data, _bitmap(valid))


def lengths_of(parts: Sequence[str] | Sequence[bytes]) -> Numbers:
    """Return how long each part is."""
    return np.fromiter(map(len, parts), np.int64, len(parts))


def list_column(of: pa.DataType, lengths: Numbers, items: pa.Array, valid: Numbers | None = None) -> pa.ListArray:
    """Return the items as a column of lists with these lengths."""
    children = [items]
    return pa.Array.from_buffers(of, len(lengths), [_bitmap(valid), offsets(lengths).buffers()[1]], children=children)


def offsets(lengths: Numbers) -> pa.Int32Array:
    """Return where each of several parts starts, and where the last one ends."""
    ends = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=ends[1:])
    if ends[-1] >= 2**31:
        raise pa.ArrowInvalid("A column of one batch has 2 GiB or more.")
    return number_column(pa.int32(), ends.astype(np.int32))


def repeated(column: pa.Array, counts: Numbers) -> pa.Array:
    """Return each value of a column as many times as its count says."""
    return column.take(number_column(pa.int32(), np.repeat(np.arange(len(counts), dtype=np.int32), counts)))


def _bitmap(truths: Numbers | None) -> pa.Buffer | None:
    return None if truths is None else pa.py_buffer(np.packbits(truths, bitorder="little"))
