"""Rows of a raw table: the source's columns, and ours, which say which load wrote a row. Tasks import this module."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime

import pyarrow as pa

from lakehead.errors import Misconfigured
from lakehead.extract.protection import protected
from lakehead.extract.protection_rules import Protection
from lakehead.lake import raw_columns
from lakehead.lake.conform import RowsRejected
from lakehead.source.dialects import read_part
from lakehead.source.errors import NotExact
from lakehead.source.port import ReadPart

LOAD_DATE, SLICE, GENERATION = raw_columns.LOAD_DATE, raw_columns.SLICE, raw_columns.GENERATION

INGEST_SCHEMA = pa.schema(
    [
        pa.field(LOAD_DATE, pa.date32()),
        pa.field("_loaded_at", pa.timestamp("us", "UTC")),
        pa.field("_run", pa.string()),
        pa.field("_source", pa.string()),
        pa.field(SLICE, pa.int64()),
        pa.field(GENERATION, pa.int64()),
    ]
)
"""The columns that every table of ours has after the source's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ingest:
    """The values of our own columns, the same for all rows of a landing."""

    load_date: date
    loaded_at: datetime
    run: str
    source: str
    """The source and its table, without secrets."""

    slice: int
    """A number that grows with every landing in a raw table."""

    generation: int
    """How often the table was reloaded."""

    @property
    def values(self) -> tuple[object, ...]:
        """In the order of `INGEST_SCHEMA`."""
        return (self.load_date, self.loaded_at, self.run, self.source, self.slice, self.generation)


def with_ingest_cols(batch: pa.RecordBatch, ingest: Ingest) -> pa.RecordBatch:
    """The batch with our own columns added at the end."""
    added = [
        pa.repeat(pa.scalar(value, field.type), batch.num_rows)
        for field, value in zip(INGEST_SCHEMA, ingest.values, strict=True)
    ]
    return pa.RecordBatch.from_arrays([*batch.columns, *added], schema=raw_schema(batch.schema))


def raw_schema(columns: pa.Schema) -> pa.Schema:
    """The columns of the raw, mirror and final tables for a source table of these columns.

    Raises `Misconfigured` for a name that we use ourselves, and for names that differ only in case, which Spark SQL
    treats as the same.
    """
    taken: dict[str, str] = {name.lower(): "a column of ours" for name in INGEST_SCHEMA.names}
    for name in columns.names:
        other = taken.setdefault(name.lower(), repr(name))
        if other != repr(name):
            raise Misconfigured(
                f"The source's column {name!r} is named like {other}, and Spark treats them as the same. Read a view "
                "of the table in which it has another name."
            )
    return pa.schema([*columns, *INGEST_SCHEMA])


@dataclass(frozen=True, slots=True)
class RawPart:
    """What one task reads, and the values of our own columns."""

    part: ReadPart
    ingest: Ingest
    protections: Mapping[str, Protection] = field(default_factory=dict)


def read_rows(raw: RawPart) -> Iterator[pa.RecordBatch]:
    """The part's rows with our own columns. Raises `RowsRejected`, which is not retried, for an unsupported value."""
    try:
        for batch in read_part(raw.part):
            yield with_ingest_cols(protected(batch, raw.protections), raw.ingest)
    except NotExact as error:
        raise RowsRejected(str(error)) from None
