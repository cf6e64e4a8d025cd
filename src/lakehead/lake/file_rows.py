"""Rows of a table's Parquet data files, read by field id and without their deleted rows.

Tasks import this module, so it depends on PyArrow and NumPy alone.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as kinds
from pyarrow.fs import FileSystem

from lakehead.lake.conform import RowsRejected, conform_column
from lakehead.lake.key_bounds import KeyRange, row_groups
from lakehead.lake.position_deletes import Positions, live_rows

FIELD_ID = b"PARQUET:field_id"
BATCH_ROWS = 1 << 17


class CannotRead(Exception):
    """A file has columns that are not read here: of other types than the table's, or without field ids."""


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A Parquet data file of a table, with the delete files that apply to it."""

    uri: str
    path: str
    """The same, as its file system names it."""

    rows: int
    own_deletes: tuple[str, ...] = ()
    """The paths of the position-delete files that name this data file alone."""

    shared_deletes: tuple[str, ...] = ()
    """The paths of those that may name others too."""

    constants: frozenset[int] = frozenset()
    """The ids of columns whose value is part of the file's partition: if the file lacks one, it is not NULL."""


@dataclass(frozen=True, slots=True)
class RowBatch:
    """Rows of a data file that are not deleted."""

    columns: pa.RecordBatch
    positions: Positions
    """Where each of them is in the file."""


@dataclass(frozen=True, slots=True)
class FileReader:
    """Reads columns of data files as columns of the table's present schema."""

    filesystem: FileSystem = field(repr=False)  # it may hold secrets
    schema: pa.Schema
    """The columns to read, with their field ids and the table's types."""

    def read(
        self,
        file: StoredFile,
        deleted: Positions,
        *,
        keys: Sequence[str] = (),
        wanted: KeyRange | None = None,
        batch_rows: int = BATCH_ROWS,
    ) -> Iterator[RowBatch]:
        """The rows that are not deleted; of row groups without a wanted key none.

        Raises `CannotRead` for a file whose columns are not as the table has them now.
        """
        with self.filesystem.open_input_file(file.path) as source:
            parquet = pq.ParquetFile(source, pre_buffer=True, coerce_int96_timestamp_unit="us")
            names = _names_by_id(parquet.schema_arrow)
            have = [names.get(_field_id(each)) for each in self.schema]
            if not any(have):
                raise CannotRead("a data file has none of the columns")
            for name, wanted_column in zip(have, self.schema, strict=True):
                if name is None and _field_id(wanted_column) in file.constants:
                    raise CannotRead(f"a data file lacks the column {wanted_column.name!r}, by which it is partitioned")
            groups = list(range(parquet.metadata.num_row_groups))
            if wanted is not None:
                groups = row_groups(parquet, [self._place(parquet, names, key) for key in keys], wanted)
            for group in groups:
                start = sum(parquet.metadata.row_group(before).num_rows for before in range(group))
                there = [name for name in have if name is not None]
                for batch in parquet.iter_batches(batch_rows, row_groups=[group], columns=there):
                    yield self._live(batch, have, start, deleted)
                    start += batch.num_rows

    def _place(self, parquet: pq.ParquetFile, names: dict[int, str], key: str) -> tuple[int, pa.DataType]:
        wanted = self.schema.field(key)
        name = names.get(_field_id(wanted))
        columns = parquet.metadata.schema
        places = {columns.column(number).path: number for number in range(len(columns))}
        return -1 if name is None else places.get(name, -1), wanted.type

    def _live(self, batch: pa.RecordBatch, have: list[str | None], start: int, deleted: Positions) -> RowBatch:
        live = live_rows(start, batch.num_rows, deleted)
        columns = [
            pa.nulls(batch.num_rows, wanted.type) if name is None else _as_now(batch.column(name), wanted)
            for name, wanted in zip(have, self.schema, strict=True)
        ]
        rows = pa.RecordBatch.from_arrays(columns, schema=self.schema)
        positions: Positions = live.nonzero()[0] + start
        return RowBatch(rows if len(positions) == batch.num_rows else rows.filter(pa.array(live)), positions)


def _names_by_id(schema: pa.Schema) -> dict[int, str]:
    if any(FIELD_ID not in (each.metadata or {}) for each in schema):
        raise CannotRead("a data file has no field ids")
    return {_field_id(each): each.name for each in schema}


def _field_id(column: pa.Field) -> int:
    return int(column.metadata[FIELD_ID])


def _as_now(column: pa.Array, wanted: pa.Field) -> pa.Array:
    """A column as the table has it now. Only plain types are widened."""
    have, kind = column.type, wanted.type
    if have.equals(kind) and (not kinds.is_nested(kind) or _ids(have) == _ids(kind)):
        return column
    try:
        if kinds.is_timestamp(have) and kinds.is_timestamp(kind):
            return column.cast(kind)  # without a zone, it is the time of UTC
        if not (kinds.is_nested(have) or kinds.is_nested(kind)):
            return conform_column(column, wanted)
    except (RowsRejected, pa.ArrowInvalid):
        pass
    raise CannotRead(f"the column {wanted.name!r} of a data file is {have}, and {kind} in the table")


def _ids(kind: pa.DataType) -> list[bytes | None]:
    """The ids of a type's fields, of all levels: a field may have the name that another one had."""
    fields = [kind.field(number) for number in range(kind.num_fields)]
    return [found for each in fields for found in ((each.metadata or {}).get(FIELD_ID), *_ids(each.type))]
