"""Audits of staged rows before they are published. Each raises `AuditFailed`; main is then left unchanged."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.table import Table as Iceberg
from pyiceberg.types import UUIDType
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import BinaryType, StructField, StructType

from lakehead.lake.iceberg_table import IcebergTable
from lakehead.lake.ports import AuditFailed, Staged
from lakehead.lake.staged_rows import Branch, NewFiles
from lakehead.lake.stagers import filesystem_of
from lakehead.lake.tasks import read_columns
from lakehead.spark.names import quoted

SHOWN = 3


def every_row_once(staged: Staged[NewFiles]) -> None:
    """Check that as many rows were written as were read, and that every part of every unit was read exactly once."""
    rows = staged.rows
    if not rows.reads and not rows.parts:
        return
    if len(rows.reads) != rows.parts:
        raise AuditFailed(f"{rows.parts} parts were to be read, and {len(rows.reads)} were.")
    times = Counter((read.unit, read.part) for read in rows.reads)
    if twice := [unit for (unit, _), count in times.items() if count > 1]:
        raise AuditFailed(f"Unit {twice[0].id!r} was read more than once.")
    planned = {remainder.unit for remainder in staged.landing.remainders}
    if strange := {read.unit for read in rows.reads} - planned:
        raise AuditFailed(f"Unit {min(strange).id!r} was read without being in the plan.")
    read = sum(read.rows for read in rows.reads)
    if read != rows.rows:
        raise AuditFailed(f"{read} rows were read and {rows.rows} were written.")


def count_nulls(staged: Staged[NewFiles], columns: Sequence[str]) -> dict[str, int]:
    """How many of the new rows have NULL in each of the columns, according to the new files' statistics."""
    counted = dict.fromkeys(columns, 0)
    for file in staged.rows.files:
        footer = pq.read_metadata(pa.BufferReader(file.footer))
        for column, nulls in _nulls(footer, columns):
            counted[column] += nulls
    return counted


def no_null(columns: Sequence[str]) -> Callable[[Staged[NewFiles]], None]:
    """An audit: none of the columns has a NULL in the new files, according to their statistics."""

    def audit(staged: Staged[NewFiles]) -> None:
        for file in staged.rows.files:
            footer = pq.read_metadata(pa.BufferReader(file.footer))
            for column, nulls in _nulls(footer, columns):
                if nulls:
                    raise AuditFailed(f"{nulls} rows of {file.uri} have no value in the key column {column!r}.")

    return audit


@dataclass(frozen=True, slots=True)
class NoDuplicates:
    """An audit: no two staged rows have the same key; for a branch, no two rows of the whole table on it."""

    session: SparkSession
    table: IcebergTable
    columns: tuple[str, ...]

    def __call__(self, staged: Staged[NewFiles] | Staged[Branch]) -> None:
        """Count the keys, in Spark."""
        frame = self._frame(staged.rows)
        if frame is None:
            return
        # Columns by number: a key column may be named "count".
        keys = frame.toDF(*(str(number) for number in range(len(self.columns))))
        twice = keys.groupBy(*keys.columns).count().where("count > 1").limit(SHOWN).collect()
        if twice:
            shown = ", ".join(str(tuple(row)[:-1]) for row in twice)
            raise AuditFailed(f"Some keys ({', '.join(self.columns)}) of {self.table.name} are duplicated: {shown}.")

    def _frame(self, rows: NewFiles | Branch) -> DataFrame | None:
        table = quoted(self.table.catalog.name, *self.table.name.split("."))
        keys = [quoted(column) for column in self.columns]
        match rows:
            case Branch():
                return self.session.read.option("branch", rows.name).table(table).select(*keys)
            case NewFiles() if rows.files:
                # Through PyArrow's file system: Spark itself may not be able to access the warehouse.
                iceberg, columns = self.table.load(), list(self.columns)
                filesystem = filesystem_of(iceberg, rows.files[0].uri)[0]
                schema = StructType(
                    [
                        StructField(key.name, BinaryType()) if _is_uuid(iceberg, key.name) else key
                        for key in self.session.table(table).select(*keys).schema
                    ]
                )
                paths = self.session.createDataFrame([(file.path,) for file in rows.files], "path string")
                return paths.mapInArrow(lambda batches: read_columns(filesystem, columns, batches), schema)
            case NewFiles():
                return None


def at_least(rows: int) -> Callable[[Staged[NewFiles]], None]:
    """An audit: the new files have at least that many rows."""

    def audit(staged: Staged[NewFiles]) -> None:
        if staged.rows.rows < rows:
            raise AuditFailed(f"{staged.rows.rows} rows were written, and at least {rows} were expected.")

    return audit


def _is_uuid(table: Iceberg, column: str) -> bool:
    """Whether a column is a uuid, which Spark reads as text and the files store as bytes."""
    return isinstance(table.schema().find_field(column).field_type, UUIDType)


def _nulls(footer: pq.FileMetaData, columns: Sequence[str]) -> Iterable[tuple[str, int]]:
    places = {footer.schema.column(number).path: number for number in range(footer.num_columns)}
    for name in columns:
        if name not in places:
            raise AuditFailed(f"The new files have no column {name!r} to audit. Name a column of the table itself.")
        for group in range(footer.num_row_groups):
            statistics = footer.row_group(group).column(places[name]).statistics
            if statistics is None or not statistics.has_null_count:
                raise AuditFailed(f"The column {name!r} has no statistics to audit.")
            yield name, statistics.null_count
