"""Which records of two frames differ, bit for bit, column by column.

A NaN equals a NaN of the same bits, and 0.0 is not -0.0: what is compared is what was sent, not what it means.
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakehead.wire.spans import Span

Flags = npt.NDArray[np.bool_]
_UNSIGNED = {2: pa.uint16(), 4: pa.uint32(), 8: pa.uint64()}


def differing_rows(one: pa.RecordBatch, other: pa.RecordBatch) -> Flags:
    """Return for each row of two batches of the same length whether it differs. A column that one lacks is null."""
    if one.num_rows != other.num_rows:
        raise ValueError(f"Batches of {one.num_rows} and {other.num_rows} rows cannot be compared.")
    found = np.zeros(one.num_rows, np.bool_)
    for name in dict.fromkeys([*one.schema.names, *other.schema.names]):
        columns = [batch.column(name) if name in batch.schema.names else None for batch in (one, other)]
        found |= _differ(*columns) if None not in columns else _is_valid(columns[0] or columns[1])
    return found


def spans_of(flags: Flags, first: int = 0) -> list[Span]:
    """Return where flags are set, as spans of numbers; `first` is the number of the first flag."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], flags.view(np.int8), [0]]))) + first
    return [(int(start), int(end)) for start, end in zip(edges[::2], edges[1::2], strict=True)]


def _differ(one: pa.Array, other: pa.Array) -> Flags:
    if not one.type.equals(other.type):
        return _is_valid(one) | _is_valid(other)
    if not one.null_count and not other.null_count:
        return _values_differ(one, other)
    valid, others = _is_valid(one), _is_valid(other)
    found: Flags = valid != others
    both = valid & others
    if both.any():
        mask = _array(both)
        found[both] = _values_differ(one.filter(mask), other.filter(mask))
    return found


def _values_differ(one: pa.Array, other: pa.Array) -> Flags:
    """Compare arrays of the same type and length without nulls."""
    kind = one.type
    if pa.types.is_struct(kind):
        found = np.zeros(len(one), np.bool_)
        for number in range(kind.num_fields):
            found |= _differ(pc.struct_field(one, [number]), pc.struct_field(other, [number]))
        return found
    if pa.types.is_list(kind) or pa.types.is_map(kind):
        return _lists_differ(one, other)
    if pa.types.is_floating(kind):
        bits = _UNSIGNED[kind.bit_width // 8]
        one, other = one.view(bits), other.view(bits)
    return _flags(pc.not_equal(one, other))


def _lists_differ(one: pa.Array, other: pa.Array) -> Flags:
    sizes, others = _sizes(one), _sizes(other)
    found: Flags = sizes != others
    same = ~found
    if found.any():
        one, other, sizes = one.filter(_array(same)), other.filter(_array(same)), sizes[same]
    pairs = zip(_items(one), _items(other), strict=True)
    items = np.zeros(int(sizes.sum()), np.bool_)
    for mine, theirs in pairs:
        items |= _differ(mine, theirs)
    until = np.concatenate([[0], np.cumsum(items)])  # how many items differ before each place
    ends = np.cumsum(sizes)
    found[same] = until[ends] != until[ends - sizes]
    return found


def _sizes(lists: pa.Array) -> npt.NDArray[np.int64]:
    offsets = lists.offsets
    numbers = np.frombuffer(offsets.buffers()[1], np.int32, len(offsets), 4 * offsets.offset)
    return np.diff(numbers).astype(np.int64)


def _items(lists: pa.Array) -> list[pa.Array]:
    """The items of lists without nulls, only those of these rows; of maps their keys and their values."""
    start, end = lists.offsets[0].as_py(), lists.offsets[-1].as_py()
    if pa.types.is_map(lists.type):
        return [lists.keys.slice(start, end - start), lists.items.slice(start, end - start)]
    return [lists.values.slice(start, end - start)]


def _is_valid(values: pa.Array) -> Flags:
    return _flags(values.is_valid())


def _flags(values: pa.BooleanArray) -> Flags:
    return np.asarray(values.to_numpy(zero_copy_only=False), np.bool_)


def _array(flags: Flags) -> pa.BooleanArray:
    return pa.array(flags)
