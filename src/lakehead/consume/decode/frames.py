"""Frames of accepted batches: their records as rows of the tables `samples` and `logs`, column by column.

Iceberg's times have microseconds and those of records have nanoseconds. So each time is two columns: `time` is cut to
the microsecond, and `time_unix_ns` has all of it. `agent`, `boot` and `seq` say which record a row is.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakehead.consume.decode.rows import (
    RESCUED,
    ROW,
    ObjectFormat,
    ObjectPart,
    ObjectRefused,
    ReadReport,
    only_part,
)
from lakehead.lake.conform import conform
from lakehead.wire.batch_identity import BatchIdentity
from lakehead.wire.errors import NewerFormat, Unreadable
from lakehead.wire.frame import Frame, decode_frame, frame_sha256
from lakehead.wire.frame_limits import FrameLimits
from lakehead.wire.record_schemas import FrameKind, newest_schema

SUFFIX = ".lmbatch"
"""How the keys of frames end."""

LIMITS = FrameLimits(frame_bytes=1 << 30, payload_bytes=2 << 30, records=1 << 24)
"""What was accepted is to be landed, whatever a gateway's own limits were. These only bound a task's memory."""

TIME, AGENT, BOOT, SEQ = "time", "agent", "boot", "seq"

SORTED_BY: Mapping[FrameKind, tuple[str, ...]] = {FrameKind.SAMPLES: ("metric", TIME), FrameKind.LOGS: (TIME,)}
"""What the files of each kind's table are sorted by. Iceberg cannot sort by a map, as labels are."""

_TIME = pa.timestamp("us", "UTC")
_NS_A_US = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptedFrame:
    """Which frame an accepted batch is, and which of its records are wanted. Pickled for tasks."""

    identity: BatchIdentity
    kind: FrameKind
    sha256: str
    spans: tuple[tuple[int, int], ...] | None = None
    """The wanted sequence numbers, as half-open ranges in order; None: all of them."""


def landed_columns(kind: FrameKind) -> pa.Schema:
    """The columns of the table that takes records of a kind."""
    fields: list[pa.Field] = []
    for field in newest_schema(kind).schema:
        if pa.types.is_timestamp(field.type):
            fields += [pa.field(field.name, _TIME), pa.field(_exact(field.name), pa.int64())]
        else:
            fields.append(pa.field(field.name, field.type))
    return pa.schema([*fields, (AGENT, pa.string()), (BOOT, pa.string()), (SEQ, pa.int64())])


def accepted_frame(body: bytes, identity: BatchIdentity, sha256: str) -> Frame:
    """Decode the frame of an accepted batch.

    Raises `ObjectRefused` if it is not the frame that was accepted, and `NewerFormat` if a newer Lakehead wrote it.
    """
    if (found := frame_sha256(body)) != sha256:
        raise ObjectRefused(
            f"It is not the frame that was accepted: its sha256 is {found}, and the accepted one is {sha256}. "
            "Store the accepted frame again, as by sending it again."
        )
    frame = _decoded(body)
    if frame.identity != identity:
        raise ObjectRefused(f"It is the frame of another batch: {_named(frame.identity)}, and not {_named(identity)}.")
    return frame


def read_accepted(
    source: pa.NativeFile, accepted: AcceptedFrame, columns: pa.Schema, report: ReadReport
) -> Iterator[pa.RecordBatch]:
    """Return the wanted records of the frame of an accepted batch, as `read_object` does.

    Raises `ObjectRefused` if it is not the frame that was accepted, `NewerFormat` if a newer Lakehead wrote it, and
    `RowsRejected` if the table lacks one of the columns.
    """
    frame = accepted_frame(_body(source), accepted.identity, accepted.sha256)
    identity = frame.identity
    if frame.header.kind is not accepted.kind:
        raise ObjectRefused(f"It has {frame.header.kind.word}, and the table takes {accepted.kind.word}.")
    whole = ((identity.seq_start, identity.seq_end + 1),)
    for start, end in whole if accepted.spans is None else accepted.spans:
        if not identity.seq_start <= start < end <= identity.seq_end + 1:
            raise ObjectRefused(f"It has no records {start} to {end - 1}: it is {_named(identity)}.")
        rows = _rows(frame, start, end)
        yield _numbered(conform(rows, columns), start - identity.seq_start, report)


def read(
    source: pa.NativeFile,
    form: ObjectFormat,  # noqa: ARG001 - as other formats
    columns: pa.Schema,
    report: ReadReport,
    first_row: int,
    part: ObjectPart | None,  # noqa: ARG001 - a frame is one part
) -> Iterator[pa.RecordBatch]:
    """Return all records of any frame, in those of the columns that it has. For people who look at one."""
    frame = _decoded(_body(source))
    rows = _rows(frame, frame.identity.seq_start, frame.identity.seq_end + 1)
    known = [name for name in columns.names if name in rows.schema.names]
    yield _numbered(conform(rows.select(known), columns), first_row, report)


def infer(source: pa.NativeFile, form: ObjectFormat) -> pa.Schema:  # noqa: ARG001 - as other formats
    """Return the columns of a frame's kind."""
    return landed_columns(_decoded(_body(source)).header.kind)


def split(source: pa.NativeFile, size: int, target_bytes: int, start: int) -> list[ObjectPart]:  # noqa: ARG001 - as other formats
    """Return one part: a frame is compressed and checked as a whole."""
    return only_part(size, start)


def count(source: pa.NativeFile, form: ObjectFormat, part: ObjectPart | None) -> int:  # noqa: ARG001 - as other formats
    """Return the number of records."""
    return _decoded(_body(source)).identity.record_count


def _body(source: pa.NativeFile) -> bytes:
    source.seek(0)
    body: bytes = source.read(LIMITS.frame_bytes + 1)
    return body


def _decoded(body: bytes) -> Frame:
    try:
        return decode_frame(body, LIMITS)
    except NewerFormat:
        raise
    except Unreadable as error:
        raise ObjectRefused(str(error)) from None


def _rows(frame: Frame, start: int, end: int) -> pa.RecordBatch:
    """The records of some sequence numbers, as rows."""
    identity, count = frame.identity, end - start
    columns: dict[str, pa.Array] = {}
    records = frame.records.slice(start - identity.seq_start, count)
    for name, values in zip(records.schema.names, records.columns, strict=True):
        if pa.types.is_timestamp(values.type):
            columns[name], columns[_exact(name)] = _to_microseconds(values), values.cast(pa.int64())
        else:
            columns[name] = values
    columns[AGENT] = pa.repeat(pa.scalar(identity.agent_id, pa.string()), count)
    columns[BOOT] = pa.repeat(pa.scalar(identity.boot_id, pa.string()), count)
    columns[SEQ] = _numbers(start, count)
    return pa.RecordBatch.from_pydict(columns)


def _to_microseconds(times: pa.Array) -> pa.Array:
    """Nanoseconds cut to the microsecond at or before them, also before 1970."""
    numbers = times.cast(pa.int64()).fill_null(0)
    exact = np.frombuffer(numbers.buffers()[1], np.int64, len(numbers), 8 * numbers.offset)
    cut = pa.Array.from_buffers(_TIME, len(numbers), [None, pa.py_buffer(exact // _NS_A_US)])
    return pc.if_else(times.is_valid(), cut, pa.scalar(None, _TIME)) if times.null_count else cut


def _numbered(rows: pa.RecordBatch, first_row: int, report: ReadReport) -> pa.RecordBatch:
    report.rows += rows.num_rows
    numbered = rows.append_column(ROW, _numbers(first_row, rows.num_rows))
    return numbered.append_column(RESCUED, pa.nulls(rows.num_rows, pa.string()))


def _numbers(first: int, count: int) -> pa.Array:
    # Made of a buffer, because `pa.array` imports pandas, which takes longer than a small frame.
    numbers = pa.py_buffer(np.arange(first, first + count, dtype=np.int64))
    return pa.Array.from_buffers(pa.int64(), count, [None, numbers])


def _exact(name: str) -> str:
    return f"{name}_unix_ns"


def _named(identity: BatchIdentity) -> str:
    return f"{identity.seq_start} to {identity.seq_end} of agent {identity.agent_id!r}, boot {identity.boot_id!r}"
