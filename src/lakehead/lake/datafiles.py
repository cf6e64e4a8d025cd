"""Parquet data files of a table, written inside tasks: by partition, sorted, rolled at a size.

Tasks import this module, so it depends on PyArrow alone: PyIceberg takes a second to import.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as kinds
from pyarrow.fs import FileSystem, LocalFileSystem

from lakehead.errors import DiskFull
from lakehead.lake.bloom_filters import BloomFilters
from lakehead.lake.conform import conform

ROW_GROUP_BYTES = 128 * 2**20
"""Rows in memory that become one row group."""

BUFFERED_BYTES = 2 * ROW_GROUP_BYTES
"""Rows that one task holds in memory, of all partitions together."""

OPEN_FILES = 64
"""Files that one task keeps open at once; with more partitions than that, the one written longest ago is closed."""


@dataclass(frozen=True, slots=True)
class Key:
    """A column or a transform of it, as a field of a partition spec or of a sort order."""

    column: str
    transform: str = "identity"
    """As Iceberg writes it: identity, void, year, month, day, hour, bucket[16], truncate[4]."""

    descending: bool = False
    nulls_first: bool = True

    def of(self, batch: pa.RecordBatch) -> pa.Array:
        """The key's values for a batch, as Iceberg stores them."""
        column = batch.column(self.column)
        if isinstance(column.type, pa.BaseExtensionType):
            column = column.storage
        name, _, width = self.transform.rstrip("]").partition("[")
        if name != "identity":
            from pyiceberg_core import transform  # noqa: PLC0415 - only tables with such a partition need it

            if kinds.is_large_binary(column.type):
                column = column.cast(pa.binary())  # the only one that it truncates
            apply = getattr(transform, name)
            column = apply(column, int(width)) if width else apply(column)
        return _stored(column)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where and how a table's data files are written. It is pickled for the tasks."""

    filesystem: FileSystem = field(repr=False)  # it may hold secrets
    folder: str
    """The data folder as the file system names it."""

    uri: str
    """The same folder as the table's metadata names it."""

    schema: pa.Schema
    """The table's columns, with their field ids."""

    partition: tuple[Key, ...] = ()
    order: tuple[Key, ...] = ()
    file_bytes: int = 512 * 2**20
    row_group_rows: int = 2**20
    parquet: Mapping[str, Any] = field(default_factory=dict)
    """Compression and page sizes, as PyArrow's writer takes them."""
    bloom: BloomFilters = field(default_factory=BloomFilters)


@dataclass(frozen=True, slots=True)
class DataFile:
    """A data file that was written and is not visible to readers yet."""

    uri: str
    path: str
    """The same, as its file system names it."""

    size: int
    rows: int
    footer: bytes = field(repr=False)
    """Its Parquet metadata with the statistics, so that the file need not be opened again."""

    partition: tuple[Any, ...] = ()


@dataclass(slots=True)
class _Open:
    """One partition that is being written."""

    values: tuple[Any, ...]
    buffered: list[pa.RecordBatch] = field(default_factory=list)
    bytes: int = 0
    path: str = ""
    sink: Any = None
    writer: Any = None


class DataFiles:
    """Writes record batches as data files. `close` finishes them and returns what was written.

    If its `with` raises, the files are removed: they will not be published, and the disk may be full. A full disk is
    raised as `DiskFull`, which names the folder.
    """

    def __init__(self, target: Target, name: str) -> None:
        """`name` is the prefix of every file name: no other attempt of this or any task may use it."""
        self._target = target
        self._name = name
        self._open: dict[tuple[Any, ...], _Open] = {}
        self._number = 0
        self._written: list[DataFile] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is None:
            return
        self.discard()
        is_local = isinstance(self._target.filesystem, LocalFileSystem)
        place = self._target.folder if is_local else self._target.uri
        if isinstance(error, OSError) and (full := DiskFull.of(error, place)):
            raise full from error

    def discard(self) -> None:
        """Remove the files, as far as they were written: they will not be published."""
        for partition in self._open.values():
            for opened in (partition.writer, partition.sink):
                with suppress(Exception):  # what could not be written cannot be ended either
                    if opened is not None:
                        opened.close()
        for number in range(self._number):
            with suppress(OSError):  # a sweep removes what stays behind
                self._target.filesystem.delete_file(f"{self._target.folder}/{self._file(number)}")

    def _file(self, number: int) -> str:
        return f"{self._name}-{number:05}.parquet"

    def write(self, batch: pa.RecordBatch) -> None:
        """Add rows, in any order of partitions. Raises `RowsRejected` for rows that the table cannot hold."""
        for values, rows in self._by_partition(conform(batch, self._target.schema)):
            place = same_partition(values)
            partition = self._open.pop(place, None) or _Open(values)
            self._open[place] = partition  # the last one in the dictionary is the one written last
            partition.buffered.append(rows)
            partition.bytes += rows.nbytes
            if partition.bytes >= ROW_GROUP_BYTES:
                self._flush(partition)
        while sum(partition.bytes for partition in self._open.values()) > BUFFERED_BYTES:
            self._flush(max(self._open.values(), key=lambda partition: partition.bytes))

    def close(self) -> list[DataFile]:
        """Finish every file. Returns all files that were written, in no particular order."""
        for partition in self._open.values():
            self._flush(partition)
            self._end(partition)
        self._open.clear()
        return self._written

    def _by_partition(self, batch: pa.RecordBatch) -> Iterable[tuple[tuple[Any, ...], pa.RecordBatch]]:
        if batch.num_rows == 0:
            return
        if not self._target.partition:
            yield (), batch
            return
        columns = [key.of(batch) for key in self._target.partition]
        if all(_is_one_value(column) for column in columns):  # as of a load date
            yield tuple(column[0].as_py() for column in columns), batch
            return
        keys = [str(number) for number in range(len(columns))]
        groups = pa.table([*columns, pa.array(np.arange(batch.num_rows))], names=[*keys, "row"])
        found = groups.group_by(keys, use_threads=False).aggregate([("row", "list")])
        for group in found.to_batches():
            for number in range(group.num_rows):
                values = tuple(group.column(key)[number].as_py() for key in keys)
                theirs = group.column("row_list")[number].values
                yield values, batch if found.num_rows == 1 else batch.take(theirs)

    def _flush(self, partition: _Open) -> None:
        """Write the buffered rows as row groups; finish the file if it is large enough, or sorted as a whole."""
        if not partition.buffered:
            return
        rows = pa.Table.from_batches(partition.buffered, schema=self._target.schema)
        partition.buffered, partition.bytes = [], 0
        if self._target.order:
            rows = rows.take(_sorted(rows, self._target.order))
        if partition.writer is None:
            self._begin(partition, rows.num_rows)
        partition.writer.write_table(rows, row_group_size=self._target.row_group_rows)
        if self._target.order or partition.sink.tell() >= self._target.file_bytes:
            self._end(partition)

    def _begin(self, partition: _Open, rows: int) -> None:
        writing = [other for other in self._open.values() if other.writer is not None]
        if len(writing) >= OPEN_FILES:
            self._end(writing[0])
        partition.path = self._file(self._number)
        self._number += 1
        if isinstance(self._target.filesystem, LocalFileSystem):
            # Other file systems create folders themselves, or have none and may refuse an object in place of one.
            self._target.filesystem.create_dir(self._target.folder, recursive=True)
        partition.sink = self._target.filesystem.open_output_stream(f"{self._target.folder}/{partition.path}")
        partition.writer = pq.ParquetWriter(
            partition.sink,
            self._target.schema,
            store_decimal_as_integer=True,
            bloom_filter_options=self._target.bloom.options(min(rows, self._target.row_group_rows)),
            **self._target.parquet,
        )

    def _end(self, partition: _Open) -> None:
        if partition.writer is None:
            return
        partition.writer.close()
        size = partition.sink.tell()
        partition.sink.close()
        metadata = partition.writer.writer.metadata
        footer = pa.BufferOutputStream()
        metadata.write_metadata_file(footer)
        self._written.append(
            DataFile(
                uri=f"{self._target.uri}/{partition.path}",
                path=f"{self._target.folder}/{partition.path}",
                size=size,
                rows=metadata.num_rows,
                footer=footer.getvalue().to_pybytes(),
                partition=partition.values,
            )
        )
        partition.writer = partition.sink = None


def same_partition(values: Iterable[Any]) -> tuple[Any, ...]:
    """A key that is equal for two lists of values if and only if they are the same partition.

    In Python NaN differs from itself and -0.0 equals 0.0; in Iceberg it is the other way round.
    """
    return tuple(_comparable(value) for value in values)


def _comparable(value: Any) -> Any:
    match value:
        case float():
            return repr(value)
        case UUID():
            return value.bytes
        case _:
            return value


def _is_one_value(column: pa.Array) -> bool:
    """Whether all rows are in one partition, for types where the check is fast."""
    plain = kinds.is_integer(column.type) or kinds.is_temporal(column.type) or kinds.is_string(column.type)
    return plain and column.null_count == 0 and bool(pc.all(pc.equal(column, column[0])).as_py())


def _stored(column: pa.Array) -> pa.Array:
    """Dates and times as the numbers that Iceberg stores."""
    if kinds.is_date32(column.type):
        return column.cast(pa.int32())
    if kinds.is_timestamp(column.type) or kinds.is_time64(column.type):
        return column.cast(pa.int64())
    return column


def _sorted(rows: pa.Table, order: Sequence[Key]) -> pa.Array:
    """The indices of the rows in sorted order. A separate key before each key decides where nulls go."""
    whole = rows.combine_chunks().to_batches()
    batch = (
        whole[0]
        if len(whole) == 1
        else pa.RecordBatch.from_arrays(
            [pa.concat_arrays(column.chunks) for column in rows.columns], schema=rows.schema
        )
    )
    columns, directions = {}, []
    for number, key in enumerate(order):
        values = key.of(batch)
        columns[f"{number} null"], columns[f"{number}"] = values.is_null(), values
        directions.append((f"{number} null", "descending" if key.nulls_first else "ascending"))
        direction = "descending" if key.descending else "ascending"
        if kinds.is_floating(values.type):
            # To Iceberg NaN is the greatest; PyArrow puts it last in either direction.
            columns[f"{number} nan"] = pc.is_nan(values)
            directions.append((f"{number} nan", direction))
        directions.append((f"{number}", direction))
    return pc.sort_indices(pa.table(columns), sort_keys=directions)
