"""Parquet files, column by column."""

from bisect import bisect_left
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

import pyarrow as pa
import pyarrow.parquet

from lakehead.consume.decode.arrays import leaves, map_leaves
from lakehead.consume.decode.arrow_columns import column_type, fit_column
from lakehead.consume.decode.arrow_values import json_values
from lakehead.consume.decode.parquet_file import ParquetRows
from lakehead.consume.decode.row_batches import BatchMaker, Rescued, rescued_texts
from lakehead.consume.decode.rows import (
    OWN_COLUMNS,
    ObjectFormat,
    ObjectPart,
    ObjectRefused,
    ReadReport,
    SchemaMode,
    most_rows,
    only_part,
)


def read(
    source: pa.NativeFile,
    form: ObjectFormat,
    columns: pa.Schema,
    report: ReadReport,
    first_row: int,
    part: ObjectPart | None,
) -> Iterator[pa.RecordBatch]:
    """Return the rows of a file, or of some of its row groups."""
    with _readable():
        file = ParquetRows(source)
    maker = BatchMaker(columns, form, report, first_row)
    row = first_row
    groups = range(part.start, part.end) if part is not None else range(file.metadata.num_row_groups)
    batches = file.batches(groups, most_rows(columns))
    while True:
        with _readable():
            batch = next(batches, None)
            if batch is None:
                break
            batch.validate(full=True)
        yield _landed(batch, maker, row)
        row += batch.num_rows
    maker.finish()


def infer(source: pa.NativeFile, form: ObjectFormat) -> pa.Schema:
    """Return the columns of a file."""
    report = ReadReport()
    adding = ObjectFormat(name=form.name, mode=SchemaMode.ADD_COLUMNS)
    with _readable():
        schema = ParquetRows(source).schema
    known = pa.schema([(field.name, column_type(field.type)) for field in schema if _is_plain(field)])
    for _ in read(source, adding, known, report, 0, None):
        pass
    types = {field.name: field.type for field in known} | report.new_columns
    return pa.schema([(name, types[name]) for name in schema.names if name in types and name not in OWN_COLUMNS])


def split(source: pa.NativeFile, size: int, target_bytes: int, start: int) -> list[ObjectPart]:
    """Return groups of row groups of about so many bytes, from those at byte `start` on, with the number of rows."""
    with _readable():
        metadata = ParquetRows(source).metadata
    begins = [*(_first_byte(metadata, number) for number in range(metadata.num_row_groups)), size]
    if start not in (0, *begins) or any(later <= earlier for earlier, later in pairwise(begins)):
        # What landed was read in another format; or they are not stored in order, as every writer that is known does.
        return only_part(metadata.num_row_groups, start)
    cuts = [bisect_left(begins, start)]
    for number in range(cuts[0] + 1, metadata.num_row_groups):
        if begins[number + 1] - begins[cuts[-1]] > target_bytes:
            cuts.append(number)
    return [
        ObjectPart(start=first, end=last, rows=_rows(metadata, first, last), next_byte=begins[last])
        for first, last in pairwise([*cuts, metadata.num_row_groups])
    ]


def _first_byte(metadata: pyarrow.parquet.FileMetaData, number: int) -> int:
    """Return where a row group begins; the first one begins with the file."""
    group = metadata.row_group(number)
    columns = [group.column(column) for column in range(group.num_columns)] if number else []
    return min((each.dictionary_page_offset or each.data_page_offset for each in columns), default=0)


def _rows(metadata: pyarrow.parquet.FileMetaData, first: int, last: int) -> int:
    return sum(metadata.row_group(number).num_rows for number in range(first, last))


def count(source: pa.NativeFile, form: ObjectFormat, part: ObjectPart | None) -> int:  # noqa: ARG001 - as other formats
    """Return the number of rows, which the file's footer has."""
    with _readable():
        metadata = ParquetRows(source).metadata
    return metadata.num_rows if part is None else _rows(metadata, part.start, part.end)


def _landed(batch: pa.RecordBatch, maker: BatchMaker, first_row: int) -> pa.RecordBatch:
    def where(row: int) -> str:
        return f"Row {first_row + row}"

    rescued: Rescued = {}
    names, known = batch.schema.names, set(maker.columns.names)
    arrays = []
    for field in maker.columns:
        if field.name not in names:
            arrays.append(pa.nulls(batch.num_rows, field.type))
            continue
        values = batch.column(field.name)
        array, misfits = fit_column(values, field.type)
        arrays.append(array)
        if misfits:
            unfit = json_values(values.take(pa.array(misfits, pa.int64())))
            maker.rescue_misfits(field.name, zip(misfits, unfit, strict=True), where, rescued)
    for name, values in zip(names, batch.columns, strict=True):
        if name not in known and values.null_count < len(values):
            maker.rescue_unknown(name, json_values(values), where, rescued)
            if (proposed := _proposed(values)) is not None:
                maker.new_columns.add_type(name, proposed)
    return maker.batch(arrays, batch.num_rows, rescued_texts(rescued))


def _proposed(values: pa.Array) -> pa.DataType | None:
    """Return the type of a new column for values; None if they do not tell, as lists of nothing but null do not."""
    kind = column_type(values.type)
    if all(map(pa.types.is_null, leaves(kind))):
        return None
    told = map_leaves(kind, lambda leaf: pa.string() if pa.types.is_null(leaf) else leaf)
    return pa.string() if fit_column(values, told)[1] else told


def _is_plain(field: pa.Field) -> bool:
    """Whether every value of a column fits the type that a table gets for it, whatever the values are."""
    kind = column_type(field.type)
    return bool(field.type.equals(kind)) and not any(map(pa.types.is_null, leaves(kind)))


@contextmanager
def _readable() -> Iterator[None]:
    try:
        yield
    except pa.ArrowException as error:
        raise _refused(error) from None
    except OSError as error:
        # Arrow's errors about the content have no number; those of the source do, or are of a class of its own.
        if error.errno is not None or type(error) is not OSError:
            raise
        raise _refused(error) from None


def _refused(error: Exception) -> ObjectRefused:
    return ObjectRefused(f"It cannot be read as Parquet ({str(error).splitlines()[0]}).")
