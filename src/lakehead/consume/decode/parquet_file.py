"""An open Parquet file, read in batches that fit into memory.

INT96 timestamps are moments in UTC, as Spark and Hive write them and Iceberg reads them: timestamps with a zone.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet
import pyarrow.types as kinds

from lakehead.consume.decode.rows import BATCH_BYTES, BATCH_CELLS, ObjectRefused

_BUFFER = 2**20
_MOST_ROWS = 2**16
_MOST_BYTES = 2 * BATCH_BYTES
_REPETITIVE = 8
"""Bytes for each value, below which a column of texts has mostly values that occur often."""


class ParquetRows:
    """An open file. Its errors are Arrow's."""

    def __init__(self, source: pa.NativeFile) -> None:
        source.seek(0)
        file = pyarrow.parquet.ParquetFile(source)
        _check_names(list(file.schema_arrow), "")
        self.metadata = file.metadata
        self._int96 = _int96_columns(file)
        self.schema = pa.schema([self._moment(field) for field in file.schema_arrow])
        self._rows = _opened(source, file, read_dictionary=_repetitive_columns(file))
        self._microseconds = _opened(source, file, coerce_int96_timestamp_unit="us") if self._int96 else None

    def batches(self, groups: range, most: int) -> Iterator[pa.RecordBatch]:
        """Return rows of some row groups, in batches of some MiB."""
        for number in groups:
            group = self.metadata.row_group(number)
            # Columns that the table lacks are read too, and a list has many values that may take no bytes at all.
            values = sum(group.column(place).num_values for place in range(group.num_columns))
            by_values = BATCH_CELLS * group.num_rows // max(values, 1)
            by_bytes = BATCH_BYTES * group.num_rows // max(group.total_byte_size, 1)
            rows = max(1, min(most, _MOST_ROWS, by_values, by_bytes))
            for batch in self._group(number, rows):
                yield from _cut(batch)

    def _group(self, number: int, rows: int) -> Iterator[pa.RecordBatch]:
        batches = self._rows.iter_batches(rows, row_groups=[number], use_threads=False)
        if self._microseconds is None:
            yield from batches
            return
        names = sorted(self._int96)
        coarse = self._microseconds.iter_batches(rows, row_groups=[number], use_threads=False, columns=names)
        for batch, moments in zip(batches, coarse, strict=True):
            yield self._with_moments(batch, moments)

    def _moment(self, field: pa.Field) -> pa.Field:
        return pa.field(field.name, pa.timestamp("ns", "UTC")) if field.name in self._int96 else field

    def _with_moments(self, batch: pa.RecordBatch, coarse: pa.RecordBatch) -> pa.RecordBatch:
        arrays = [
            _int96(column, coarse.column(name)) if name in self._int96 else column
            for name, column in zip(batch.schema.names, batch.columns, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, names=batch.schema.names)


def _check_names(fields: Sequence[pa.Field], path: str) -> None:
    """Refuse columns, and fields inside a column, that have the same name: a name would stand for two values."""
    counts = Counter(field.name for field in fields)
    if twice := sorted(name for name, count in counts.items() if count > 1):
        raise ObjectRefused(f"It has several columns named {path + twice[0]!r}.")
    for field in fields:
        inside = [field.type.field(number) for number in range(field.type.num_fields)]
        _check_names(inside, f"{path}{field.name}.")


def _int96(fine: pa.Array, coarse: pa.Array) -> pa.Array:
    """Return INT96 timestamps: in microseconds if that has all digits, else in nanoseconds.

    Arrow's nanoseconds wrap around outside the years 1677 to 2262, its microseconds are cut. What was cut is the
    difference of both, also where it wraps around.
    """
    nanoseconds = fine.cast(pa.int64()).fill_null(0).to_numpy()
    microseconds = coarse.cast(pa.int64()).fill_null(0).to_numpy()
    with np.errstate(over="ignore"):
        cut = nanoseconds - microseconds * np.int64(1000)
    if not cut.any():
        return coarse.cast(pa.timestamp("us", "UTC"))
    if (np.abs(microseconds) < 2**63 // 1000).all():
        return fine.cast(pa.timestamp("ns", "UTC"))
    raise ObjectRefused(
        "It has INT96 timestamps with nanoseconds outside the years 1677 to 2262, which no type here holds."
    )


def _opened(source: pa.NativeFile, file: Any, **settings: Any) -> Any:
    # Buffers instead of whole column chunks, which may be larger than memory.
    return pyarrow.parquet.ParquetFile(
        source, metadata=file.metadata, pre_buffer=False, buffer_size=_BUFFER, **settings
    )


def _int96_columns(file: Any) -> set[str]:
    columns = map(file.schema.column, range(len(file.schema)))
    found = {column.path for column in columns if column.physical_type == "INT96"}
    if nested := sorted(found - set(file.schema_arrow.names)):
        raise ObjectRefused(f"It has INT96 timestamps inside a nested column ({nested[0]}), which is not supported.")
    return found


def _repetitive_columns(file: Any) -> list[str]:
    """Return the columns of texts that are stored as numbers in a dictionary, and stay so until their size is known."""
    names = set(file.schema_arrow.names)
    found = set()
    for number in range(file.metadata.num_row_groups):
        group = file.metadata.row_group(number)
        for place in range(group.num_columns):
            chunk = group.column(place)
            small = chunk.total_uncompressed_size < _REPETITIVE * chunk.num_values
            if chunk.physical_type == "BYTE_ARRAY" and chunk.has_dictionary_page and small:
                found.add(chunk.path_in_schema)
    return sorted(found & names)


def _cut(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Cut a batch whose texts would be much larger without their dictionaries."""
    sizes = np.zeros(batch.num_rows, np.int64)
    for column in batch.columns:
        if kinds.is_dictionary(column.type) and len(column.dictionary):
            lengths = pc.binary_length(column.dictionary).fill_null(0).to_numpy()
            sizes += lengths[column.indices.fill_null(0).to_numpy()]
    before = np.cumsum(sizes)
    start = 0
    while start < batch.num_rows:
        done = before[start - 1] if start else 0
        end = max(start + 1, int(np.searchsorted(before, done + _MOST_BYTES, side="right")))
        yield batch.slice(start, end - start)
        start = end
