"""Rows of a table's Parquet data files, read by field id and without their deleted rows.

Tasks import this module, so it depends on PyArrow and NumPy alone.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as kinds
from pyarrow.fs import FileSystem

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
        self, file: StoredFile, deleted: Positions, *, keys: Sequence[str] = (), wanted: KeyRange | None = None
    ) -> Iterator[RowBatch]:
        """The rows that are not deleted; of row groups without a wanted key none.

        Raises `CannotRead` for a file whose columns are not as the table has them now.
        """
        with self.filesystem.open_input_file(file.path) as source:
            parquet = pq.ParquetFile(source, pre_buffer=True)
            names = _names_by_id(parquet.schema_arrow)
            have = [names.get(_field_id(each)) for each in self.schema]
            if not any(have):
                raise CannotRead("a data file has none of the columns")
            groups = list(range(parquet.metadata.num_row_groups))
            if wanted is not None:
                groups = row_groups(parquet, [self._place(parquet, names, key) for key in keys], wanted)
            for group in groups:
                start = sum(parquet.metadata.row_group(before).num_rows for before in range(group))
                there = [name for name in have if name is not None]
                for batch in parquet.iter_batches(BATCH_ROWS, row_groups=[group], columns=there):
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
    if have.equals(kind):
        return column
    if isinstance(kind, pa.BaseExtensionType) and not isinstance(have, pa.BaseExtensionType):
        return kind.wrap_array(_as_now(column, pa.field(wanted.name, kind.storage_type)))
    if isinstance(have, pa.BaseExtensionType) and not isinstance(kind, pa.BaseExtensionType):
        return _as_now(column.storage, wanted)
    if kinds.is_nested(have) or kinds.is_nested(kind):
        raise CannotRead(f"the column {wanted.name!r} of a data file is {have}, and {kind} in the table")
    return column.cast(kind)
