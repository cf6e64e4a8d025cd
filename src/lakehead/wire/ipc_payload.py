"""The payload of a frame: an Arrow IPC stream of exactly one schema and one record batch, from anybody.

PyArrow reads the messages, but not before their framing was checked here: it would decompress buffers, or follow
dictionaries, to any size that a message declares.
"""

import struct
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import pyarrow as pa

from lakehead.wire.errors import BadFrame
from lakehead.wire.record_schemas import RecordSchema
from lakehead.wire.valid_arrow import check_valid

MAX_METADATA_BYTES = 64 << 10
"""The longest description of a schema or batch. Those of our schemas have less than 8 KiB."""

_CONTINUATION = 0xFFFFFFFF
END_OF_STREAM = struct.pack("<II", _CONTINUATION, 0)
"""What a stream ends with."""

_FRAMING = struct.Struct("<Ii")
_U8, _U16, _U32, _I32, _I64 = (struct.Struct(kind) for kind in ("<B", "<H", "<I", "<i", "<q"))
_BUFFER = struct.Struct("<qq")
"""The offset and the length of a buffer, as in Arrow's Schema.fbs."""

_NODE = struct.Struct("<qq")
"""The length of a column, and its number of nulls."""

_SCHEMA, _RECORD_BATCH = 1, 3
"""The types of messages, as in Arrow's Message.fbs."""

_ALIGNMENT = 8
_NOT_ONE_BATCH = "it must hold a schema and then a record batch, without dictionaries"


def write_batch(records: pa.RecordBatch) -> pa.Buffer:
    """Encode a record batch as a stream of it alone."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(metadata_version=pa.ipc.MetadataVersion.V5, compression=None, use_threads=False)
    with pa.ipc.new_stream(sink, records.schema, options=options) as writer:
        writer.write_batch(records)
    return sink.getvalue()


def read_batch(payload: pa.Buffer, expected: RecordSchema, rows: int) -> pa.RecordBatch:
    """Decode a stream that must hold one batch of this schema and number of rows. Its buffers are not copied.

    Raises `BadFrame`. What is returned is valid Arrow, down to the last offset and UTF-8 byte.
    """
    if payload.address % _ALIGNMENT:
        payload = pa.py_buffer(payload.to_pybytes())
    schema_bytes = expected.message.size
    is_as_we_write_it = len(payload) > schema_bytes and payload.slice(0, schema_bytes).equals(expected.message)
    if not is_as_we_write_it:
        first = _message_at(payload, 0)
        if first.kind != _SCHEMA or first.body_bytes:
            raise _bad(_NOT_ONE_BATCH)
        schema_bytes = first.end
    second = _batch_at(payload, schema_bytes, expected)
    if len(payload) - second.end != len(END_OF_STREAM) or payload.slice(second.end).to_pybytes() != END_OF_STREAM:
        raise _bad("it does not end after one schema and one record batch")
    if second.kind != _RECORD_BATCH:
        raise _bad(_NOT_ONE_BATCH)
    if second.is_compressed:
        raise _bad("its buffers are compressed; a frame is compressed as a whole, by its flag")
    if second.rows != rows:
        raise BadFrame("bad_count", f"The frame tells {rows:,} records, but its payload has {second.rows:,} rows.")
    try:
        if not is_as_we_write_it:
            _check_schema(payload.slice(0, schema_bytes), expected)
        message = payload.slice(schema_bytes, second.end - schema_bytes)
        records = pa.ipc.read_record_batch(message, expected.schema)
        check_valid(records, pa.ipc.read_record_batch(message, expected.with_maps_of_bytes), expected.maps)
    except (pa.ArrowException, OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise _bad(str(error)) from None
    return records


def _check_schema(message: pa.Buffer, expected: RecordSchema) -> None:
    found = pa.ipc.read_schema(message)
    if not found.equals(expected.schema, check_metadata=True):
        raise BadFrame("bad_schema", _difference(found, expected.schema))


def _difference(found: pa.Schema, expected: pa.Schema) -> str:
    if found.names != expected.names:
        return f"The frame's columns are {', '.join(found.names)[:300]}; expected are {', '.join(expected.names)}."
    wrong = [field.name for field in expected if not found.field(field.name).equals(field, check_metadata=True)]
    where = f"in {', '.join(wrong)}" if wrong else "in its metadata or byte order"
    return f"The frame's schema differs from the expected one {where}. See docs/frames.md."


class _Message(NamedTuple):
    kind: int
    end: int
    """Where the next message starts."""

    body_bytes: int
    rows: int = 0
    is_compressed: bool = False


class _WrittenBatch(NamedTuple):
    """How we write the description of a record batch: the same bytes for all batches of a schema, but for numbers."""

    layout: struct.Struct
    """Bytes, the size of the body, bytes, the number of rows, bytes, buffers, bytes, nodes, bytes."""

    same: tuple[bytes, ...]
    """Every second of them: what describes where the numbers are, and that there is nothing else."""


@cache
def _written_batch(expected: RecordSchema) -> _WrittenBatch:
    columns = [pa.nulls(1, each.type) for each in expected.schema]
    payload = write_batch(pa.RecordBatch.from_arrays(columns, schema=expected.schema))
    start = expected.message.size
    _, size = _FRAMING.unpack_from(payload, start)
    message = payload.slice(start, _FRAMING.size + size).to_pybytes()
    table = _root(message[_FRAMING.size :])
    batch = table.table(2)
    buffers, buffers_at = batch.vector(2, _BUFFER.size)
    nodes, nodes_at = batch.vector(1, _NODE.size)
    layout, end = "<", 0
    for at, length, kind in (
        (table.place(3), _I64.size, "q"),
        (batch.place(0), _I64.size, "q"),
        (buffers_at, buffers * _BUFFER.size, f"{buffers * _BUFFER.size}s"),
        (nodes_at, nodes * _NODE.size, f"{nodes * _NODE.size}s"),
    ):
        layout += f"{_FRAMING.size + at - end}s{kind}"
        end = _FRAMING.size + at + length
    whole = struct.Struct(f"{layout}{len(message) - end}s")
    return _WrittenBatch(whole, whole.unpack(message)[::2])


def _batch_at(payload: pa.Buffer, start: int, expected: RecordSchema) -> _Message:
    """Read the framing and the description of the message at an offset, which should be a batch of this schema.

    Where only the numbers differ from what we write, they are where we write them: there is no table to follow.
    """
    layout, same = _written_batch(expected)
    body = start + layout.size
    if body > len(payload):
        return _message_at(payload, start)
    found = layout.unpack_from(payload, start)
    if found[::2] != same:
        return _message_at(payload, start)
    _, body_bytes, _, rows, _, buffers, *_ = found
    _check_body(body_bytes, len(payload) - body)
    _check_buffers(buffers)
    return _Message(_RECORD_BATCH, body + body_bytes, body_bytes, rows)


def _message_at(payload: pa.Buffer, start: int) -> _Message:
    """Read the framing and the description of the message at an offset."""
    if len(payload) - start < _FRAMING.size:
        raise _bad("it ends within a message")
    marker, size = _FRAMING.unpack_from(payload, start)
    body = start + _FRAMING.size + size
    if marker != _CONTINUATION or not 0 < size <= MAX_METADATA_BYTES or size % _ALIGNMENT or body > len(payload):
        raise _bad("a message has no valid length")
    table = _root(payload.slice(start + _FRAMING.size, size).to_pybytes())
    if table.has(4):  # where Arrow would still believe an old form of compression, and nothing of ours is
        raise _bad("a message has metadata of its own")
    kind = table.number(1, _U8)
    body_bytes = table.number(3, _I64)
    _check_body(body_bytes, len(payload) - body)
    if kind != _RECORD_BATCH:
        return _Message(kind, body + body_bytes, body_bytes)
    batch = table.table(2)
    count, at = batch.vector(2, _BUFFER.size)
    _check_buffers(batch.data[at : at + count * _BUFFER.size])
    return _Message(kind, body + body_bytes, body_bytes, batch.number(0, _I64), is_compressed=batch.has(3))


def _check_body(size: int, left: int) -> None:
    if not 0 <= size <= left or size % _ALIGNMENT:
        raise _bad("a message is longer than the payload")


def _check_buffers(buffers: bytes) -> None:
    """Raise `BadFrame` if buffers share bytes: the records could be many times as large as the payload."""
    end = 0
    for offset, length in _BUFFER.iter_unpack(buffers):
        if length:
            if offset < end or length < 0:
                raise _bad("its buffers share bytes, or are not in their order")
            end = offset + length


@dataclass(frozen=True, slots=True)
class _Table:
    """A table of a FlatBuffer, with every offset checked: the few fields that are needed before Arrow reads it."""

    data: bytes
    at: int
    fields: int
    """Where the offsets of its fields start."""

    end: int

    def has(self, field: int) -> bool:
        return self._offset(field) != 0

    def place(self, field: int) -> int:
        return self.at + self._offset(field)

    def number(self, field: int, kind: struct.Struct) -> int:
        offset = self._offset(field)
        return _number(self.data, self.at + offset, kind) if offset else 0

    def table(self, field: int) -> "_Table":
        offset = self._offset(field)
        if not offset:
            raise _bad("a message has no content")
        place = self.at + offset
        return _table(self.data, place + _number(self.data, place, _U32))

    def vector(self, field: int, item_bytes: int) -> tuple[int, int]:
        """How many items of this size a field has, and where they start."""
        offset = self._offset(field)
        if not offset:
            return 0, 0
        place = self.at + offset
        start = place + _number(self.data, place, _U32)
        count = _number(self.data, start, _U32)
        if count * item_bytes > len(self.data) - start - 4:
            raise _bad("a message points outside of itself")
        return count, start + 4

    def _offset(self, field: int) -> int:
        place = self.fields + 2 * field
        return _number(self.data, place, _U16) if place + 2 <= self.end else 0


def _root(data: bytes) -> _Table:
    return _table(data, _number(data, 0, _U32))


def _table(data: bytes, at: int) -> _Table:
    start = at - _number(data, at, _I32)
    return _Table(data, at, start + 4, start + _number(data, start, _U16))


def _number(data: bytes, at: int, kind: struct.Struct) -> int:
    if not 0 <= at <= len(data) - kind.size:
        raise _bad("a message points outside of itself")
    number: int
    [number] = kind.unpack_from(data, at)
    return number


def _bad(reason: str) -> BadFrame:
    return BadFrame("bad_payload", f"The frame's payload is not an Arrow IPC stream of one record batch: {reason}.")
