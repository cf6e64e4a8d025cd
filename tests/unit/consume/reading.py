"""Reads objects that a test writes down."""

from typing import Any

import pyarrow as pa

from lakehead.consume.decode.decode import read_object
from lakehead.consume.decode.rows import FormatName, ObjectFormat, ObjectPart, ReadReport

Rows = list[dict[str, Any]]


def read(
    body: bytes,
    columns: list[tuple[str, pa.DataType]],
    form: ObjectFormat,
    *,
    first_row: int = 0,
    part: ObjectPart | None = None,
) -> tuple[Rows, ReadReport]:
    """Return all rows of an object, and its report. Checks what every batch must be like."""
    report = ReadReport()
    schema = pa.schema(columns)
    rows: Rows = []
    for batch in read_object(pa.BufferReader(body), form, schema, report, first_row=first_row, part=part):
        assert batch.schema.names == [*schema.names, "_row", "_rescued"]
        assert [*batch.schema.types[:-2]] == schema.types
        batch.validate(full=True)
        assert batch.num_rows > 0
        rows += batch.to_pylist()
    assert [row["_row"] for row in rows] == list(range(first_row, first_row + len(rows)))
    assert report.rows == len(rows)
    assert report.rescued == sum(row["_rescued"] is not None for row in rows)
    return rows, report


def ndjson(**settings: Any) -> ObjectFormat:
    return ObjectFormat(name=FormatName.NDJSON, **settings)


def csv(**settings: Any) -> ObjectFormat:
    return ObjectFormat(name=FormatName.CSV, **settings)


def column(body: bytes, kind: pa.DataType, form: ObjectFormat, name: str = "a") -> list[tuple[Any, str | None]]:
    """Return one column with what was rescued beside it."""
    rows, _ = read(body, [(name, kind)], form)
    return [(row[name], row["_rescued"]) for row in rows]
