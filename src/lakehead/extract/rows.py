"""Rows as raw keeps them: what the source has, and beside it which load brought them. Tasks load this module."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime

import pyarrow as pa

from lakehead.errors import Misconfigured
from lakehead.lake.conform import Refused
from lakehead.source.errors import NotExact
from lakehead.source.port import ReadPart
from lakehead.source.reading import read

LOAD_DATE, SLICE, GENERATION = "_load_date", "_slice", "_generation"

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
"""The columns that every table of ours has behind the source's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ingest:
    """Which load brings rows: the same for all rows of a landing."""

    load_date: date
    loaded_at: datetime
    run: str
    source: str
    """The table in its source, as it may be said aloud."""

    slice: int
    """A number that only grows from landing to landing of a raw table."""

    generation: int
    """How often the table was loaded anew."""

    @property
    def values(self) -> tuple[object, ...]:
        """In the order of `INGEST_SCHEMA`."""
        return (self.load_date, self.loaded_at, self.run, self.source, self.slice, self.generation)


def with_ingest_cols(batch: pa.RecordBatch, ingest: Ingest) -> pa.RecordBatch:
    """The batch with our own columns behind its own."""
    added = [
        pa.repeat(pa.scalar(value, field.type), batch.num_rows)
        for field, value in zip(INGEST_SCHEMA, ingest.values, strict=True)
    ]
    return pa.RecordBatch.from_arrays([*batch.columns, *added], schema=raw_schema(batch.schema))


def raw_schema(columns: pa.Schema) -> pa.Schema:
    """What raw, mirror and final have for a table of these columns.

    Raises `Misconfigured` for names that are ours, and for those that differ only in case: Spark's SQL does not tell
    them apart.
    """
    taken: dict[str, str] = {name.lower(): "a column of ours" for name in INGEST_SCHEMA.names}
    for name in columns.names:
        other = taken.setdefault(name.lower(), repr(name))
        if other != repr(name):
            raise Misconfigured(
                f"The source's column {name!r} is named like {other}, and Spark does not tell them apart. Read a view "
                "of the table in which it has another name."
            )
    return pa.schema([*columns, *INGEST_SCHEMA])


@dataclass(frozen=True, slots=True)
class RawPart:
    """What one task reads, and which load it is."""

    part: ReadPart
    ingest: Ingest


def read_rows(raw: RawPart) -> Iterator[pa.RecordBatch]:
    """The part's rows as raw keeps them. A value that cannot be carried is no reason to try again: `Refused`."""
    try:
        for batch in read(raw.part):
            yield with_ingest_cols(batch, raw.ingest)
    except NotExact as error:
        raise Refused(str(error)) from None
