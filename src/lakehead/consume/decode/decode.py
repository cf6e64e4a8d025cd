"""Reads objects as Arrow record batches: exactly, or it says where and why not.

A value that does not fit its column goes to `_rescued`, or its object is refused; it is never rounded, cut or guessed.
`docs/object-formats.md` says what each format does with odd input.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from lakehead.consume.decode import csv_rows, frames, key_value, ndjson, parquet
from lakehead.consume.decode.frames import AcceptedFrame
from lakehead.consume.decode.rows import FormatName, ObjectFormat, ObjectPart, ReadReport
from lakehead.consume.decode.seen_types import unify_columns

__all__ = ["count_rows", "infer_columns", "read_object", "split_object", "unify_columns"]

Read = Callable[[pa.NativeFile, ObjectFormat, pa.Schema, ReadReport, int, ObjectPart | None], Iterator[pa.RecordBatch]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    """What reads one format. Each function raises `ObjectRefused` for an object that it cannot read."""

    read: Read
    """Takes source, format, columns, report, number of the first row, part."""

    infer: Callable[[pa.NativeFile, ObjectFormat], pa.Schema]
    split: Callable[[pa.NativeFile, int, int, int], list[ObjectPart]]
    """Takes source, size, target size and the byte to begin at."""

    count: Callable[[pa.NativeFile, ObjectFormat, ObjectPart | None], int]


DECODERS: dict[FormatName, Decoder] = {
    FormatName.NDJSON: Decoder(read=ndjson.read, infer=ndjson.infer, split=ndjson.split, count=ndjson.count),
    FormatName.CSV: Decoder(read=csv_rows.read, infer=csv_rows.infer, split=csv_rows.split, count=csv_rows.count),
    FormatName.PARQUET: Decoder(read=parquet.read, infer=parquet.infer, split=parquet.split, count=parquet.count),
    FormatName.KEY_VALUE: Decoder(
        read=key_value.read, infer=key_value.infer, split=key_value.split, count=key_value.count
    ),
    FormatName.FRAMES: Decoder(read=frames.read, infer=frames.infer, split=frames.split, count=frames.count),
}
"""Every format that can be read. A new one is one module and one entry."""


def read_object(
    source: pa.NativeFile,
    format: ObjectFormat,  # noqa: A002 - what everybody calls it
    columns: pa.Schema,
    report: ReadReport,
    *,
    first_row: int = 0,
    part: ObjectPart | None = None,
    accepted: AcceptedFrame | None = None,
) -> Iterator[pa.RecordBatch]:
    """Return the rows of an object, or of a part of it, in batches of some MiB.

    Each batch has the given columns (the table's, without those that Lakehead adds), in that order and with their
    types; then `_row` (the record's number in its object, from `first_row` on) and `_rescued` (a JSON object of what
    does not fit, by column, or null). All of them may be null, whatever the table requires. The report is complete
    when the last batch was taken. Raises `ObjectRefused`, even after some batches, without the object's name. Errors
    of `source` are passed on as they are. With `accepted`, the object must be that frame, and some of its records may
    be left out; `_row` numbers all of them.
    """
    if accepted is not None:
        yield from frames.read_accepted(source, accepted, columns, report)
        return
    yield from DECODERS[format.name].read(source, format, columns, report, first_row, part)


def infer_columns(source: pa.NativeFile, format: ObjectFormat) -> pa.Schema:  # noqa: A002 - as above
    """Return columns that hold every value of an object, for a table that has none yet. Raises `ObjectRefused`."""
    return DECODERS[format.name].infer(source, format)


def split_object(
    source: pa.NativeFile,
    format: ObjectFormat,  # noqa: A002 - as above
    size: int,
    target_bytes: int,
    *,
    start: int = 0,
) -> list[ObjectPart]:
    """Return parts of about so many bytes that can be read by themselves; one part if it cannot be split.

    Plain NDJSON is split by bytes and Parquet by row groups. The parts together have each record once, in order. With
    `start`, the `stop` of a part, they have the records that come after that part, whatever the target size was then.
    Raises `ObjectRefused`.
    """
    return DECODERS[format.name].split(source, size, target_bytes, start)


def count_rows(source: pa.NativeFile, format: ObjectFormat, part: ObjectPart | None = None) -> int:  # noqa: A002 - as above
    """Return the number of records of an object or part, so that the next part can number its own."""
    if part is not None and part.rows is not None:
        return part.rows
    return DECODERS[format.name].count(source, format, part)
