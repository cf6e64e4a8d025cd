"""Leaving out data files and row groups that cannot have a key that is looked for, by the bounds of their columns.

A bound that is missing, may be truncated or is of an unknown form never leaves anything out. Tasks import this module,
so it depends on PyArrow alone.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Self, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as kinds

from lakehead.lake.merge_keys import comparable

TRUNCATED_AT = 16
"""Bounds of text and bytes of this length or more may be cut off: Iceberg's default for its column metrics."""

_UUID_BYTES, _HALF = 16, 8

_LENGTHS = {
    pa.int32().id: (4, 8),
    pa.int64().id: (4, 8),
    pa.date32().id: (4,),
    pa.timestamp("us").id: (8,),
}
"""Lengths of the bounds of whole numbers. A timestamp's of four bytes are days: the column was a date."""

Bounds: TypeAlias = tuple[Any, Any] | None
"""The lowest and highest value as `comparable` values are in Python; None if they are not known."""


@dataclass(frozen=True, slots=True)
class KeyRange:
    """The range of the keys that are looked for, by column; None for a column that may be NULL or has no range."""

    columns: tuple[Bounds, ...]

    @classmethod
    def of(cls, columns: Sequence[pa.Array]) -> Self:
        """The range of keys whose columns are `comparable`."""
        return cls(tuple(_range(column) for column in columns))

    def may_be_in(self, bounds: Iterable[Bounds]) -> bool:
        """Whether rows whose columns have these bounds may have one of the keys."""
        return all(
            wanted is None or there is None or (there[0] <= wanted[1] and wanted[0] <= there[1])
            for wanted, there in zip(self.columns, bounds, strict=True)
        )


def _range(column: pa.Array) -> Bounds:
    if len(column) == 0 or column.null_count:
        return None  # NULL may be looked for, and no bound tells where one is
    found = pc.min_max(column)
    return found["min"].as_py(), found["max"].as_py()


def stored_bounds(kind: pa.DataType, lower: bytes | None, upper: bytes | None) -> Bounds:
    """Bounds as Iceberg's metadata stores them, for a column of the table's present type.

    The file may have been written when the column was narrower: its bounds are shorter then, and the same number.
    """
    if lower is None or upper is None or not lower or not upper:
        return None
    if _is_uuid(kind):
        return _uuid_bounds(lower, upper)
    read = _reader(kind)
    if read is None:
        return None
    low, high = read(lower), read(upper)
    return None if low is None or high is None or low > high else (low, high)


def _is_uuid(kind: pa.DataType) -> bool:
    return isinstance(kind, pa.BaseExtensionType) and kind.storage_type.equals(pa.binary(_UUID_BYTES))


def _uuid_bounds(lower: bytes, upper: bytes) -> Bounds:
    """Only the first halves count: some versions of Java order the second ones as signed numbers, and the first too."""
    if len(lower) != _UUID_BYTES or len(upper) != _UUID_BYTES:
        return None
    low, high = lower[:_HALF] + bytes(_HALF), upper[:_HALF] + b"\xff" * _HALF
    mixed = (low[0] ^ high[0]) & 0x80
    return None if mixed or low > high else (low, high)


def _reader(kind: pa.DataType) -> Callable[[bytes], Any] | None:
    if (lengths := _LENGTHS.get(kind.id)) is not None:
        return lambda raw: int.from_bytes(raw, "little", signed=True) if len(raw) in lengths else None
    if kinds.is_decimal(kind):
        return lambda raw: _decimal(int.from_bytes(raw, "big", signed=True), kind.scale)
    if kinds.is_string(kind) or kinds.is_large_string(kind):
        return lambda raw: _text(raw) if len(raw) < TRUNCATED_AT else None
    if kinds.is_binary(kind) or kinds.is_large_binary(kind):
        return lambda raw: raw if len(raw) < TRUNCATED_AT else None
    return None


def _decimal(unscaled: int, scale: int) -> Decimal:
    """Exact: every operation of `Decimal` would round to the digits of its context, which are 28."""
    return Decimal((int(unscaled < 0), tuple(map(int, str(abs(unscaled)))), -scale))


def _text(raw: bytes) -> str | None:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return None


def row_groups(file: pq.ParquetFile, columns: Sequence[tuple[int, pa.DataType]], wanted: KeyRange) -> list[int]:
    """The row groups of a Parquet file that may have one of the keys.

    `columns` has for each key column its place among the file's columns and the table's type; a place that is negative
    is a column that the file does not have.
    """
    metadata = file.metadata
    types = file.schema_arrow
    return [
        group
        for group in range(metadata.num_row_groups)
        if wanted.may_be_in(
            None if place < 0 else _statistics(metadata.row_group(group).column(place), types, kind)
            for place, kind in columns
        )
    ]


def _statistics(chunk: Any, types: pa.Schema, kind: pa.DataType) -> Bounds:
    statistics = chunk.statistics
    if statistics is None or not statistics.has_min_max or "." in chunk.path_in_schema:
        return None
    here = types.field(chunk.path_in_schema).type
    if kinds.is_boolean(kind) or isinstance(kind, pa.BaseExtensionType) or isinstance(here, pa.BaseExtensionType):
        return None
    try:
        found = [statistics.min, statistics.max]
        if any(isinstance(value, str | bytes) and len(value) >= TRUNCATED_AT for value in found):
            return None
        low, high = comparable(pa.array(found, here), kind).to_pylist()
    except (ValueError, TypeError, OverflowError, NotImplementedError):  # such as a year that Python does not have
        return None
    return None if low is None or high is None or low > high else (low, high)
