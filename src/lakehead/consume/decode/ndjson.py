"""NDJSON: one JSON object in each line, plain or compressed."""

from collections.abc import Iterator
from itertools import pairwise

import pyarrow as pa

from lakehead.consume.decode.compression import is_compressed
from lakehead.consume.decode.json_rows import JsonRows
from lakehead.consume.decode.json_values import NotJson, parse_row
from lakehead.consume.decode.lines import count_records, is_blank, line_blocks
from lakehead.consume.decode.row_batches import NewColumns
from lakehead.consume.decode.rows import (
    BATCH_CELLS,
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
    """Return the rows of an object or part. A record is a line that is not blank."""
    rows = JsonRows(columns, form, report, first_row)
    for block in line_blocks(source, part, max_row_bytes=form.max_row_bytes, most_lines=most_rows(columns)):
        batch = rows.block(block)
        if batch is not None:
            yield batch
    rows.finish()


def infer(source: pa.NativeFile, form: ObjectFormat) -> pa.Schema:
    """Return the columns of all rows. Rows that cannot be parsed are left out if they would be rescued."""
    seen = NewColumns(pa.schema([]), SchemaMode.ADD_COLUMNS)
    for block in line_blocks(source, None, max_row_bytes=form.max_row_bytes, most_lines=BATCH_CELLS):
        for number, line in enumerate(block.lines()):
            if is_blank(line):
                continue
            try:
                row = parse_row(line)
            except NotJson as error:
                if not form.rescue_bad_rows:
                    raise ObjectRefused(error.at(block.where(number))) from None
                continue
            for name, value in row.items():
                if value is not None:
                    seen.add(name, value)
    return pa.schema(list(seen.types().items()))


def split(source: pa.NativeFile, size: int, target_bytes: int, start: int) -> list[ObjectPart]:
    """Return parts of about so many bytes, from byte `start` on; what is compressed is one part."""
    if is_compressed(source):
        return only_part(size, start)
    count = max(1, -(-(size - start) // target_bytes))
    cuts = [start + (size - start) * number // count for number in range(count + 1)]
    return [ObjectPart(start=start, end=end) for start, end in pairwise(cuts)]


def count(source: pa.NativeFile, form: ObjectFormat, part: ObjectPart | None) -> int:
    """Return the number of records without parsing them."""
    blocks = line_blocks(source, part, max_row_bytes=form.max_row_bytes, most_lines=BATCH_CELLS)
    return sum(map(count_records, blocks))
