"""The first bytes of a frame: a prefix of fixed size with versions, flags and sizes, then a header with the identity.

Both are binary, so that each has one reading only. docs/frames.md has the layout.
"""

import struct
from dataclasses import dataclass
from typing import NamedTuple

import google_crc32c
import pyarrow as pa

from lakehead.wire.batch_identity import MAX_ID_BYTES, BatchIdentity
from lakehead.wire.errors import BadFrame, InvalidIdentity, NewerFormat
from lakehead.wire.record_schemas import RECORD_SCHEMAS, FrameKind, RecordSchema

MAGIC = b"\x89LMBATCH"
WIRE_VERSION = 1
"""The version of the prefix, and of what the checksum covers."""

FRAME_VERSION = 1
"""The version of the header, and of how the payload is encoded."""

_ZSTD = 1
_PREFIX = struct.Struct("<8sHHIQQI")
_CRC = struct.Struct("<I")
_PREFIX_AND_CRC = struct.Struct("<8sHHIQQII")
_HEADER_AT = _PREFIX_AND_CRC.size
_HEADER = struct.Struct("<QQIHHHH")
_ALIGNMENT = 8
_KINDS = {int(kind): kind for kind in FrameKind}

MAX_HEAD_BYTES = _HEADER_AT + _HEADER.size + 2 * MAX_ID_BYTES + 4
"""So many bytes from the start of a frame hold its prefix and header."""


@dataclass(frozen=True, slots=True)
class FrameHeader:
    """What the first bytes of a frame say of it."""

    identity: BatchIdentity
    kind: FrameKind
    schema_version: int
    wire_version: int
    frame_version: int
    is_compressed: bool
    payload_at: int
    """Where the payload starts."""

    stored_bytes: int
    """The size of the payload as it is stored."""

    payload_bytes: int
    """The size of the payload, decompressed."""

    @property
    def frame_bytes(self) -> int:
        """The size of the whole frame."""
        return self.payload_at + self.stored_bytes

    @property
    def record_schema(self) -> RecordSchema:
        """The schema of the records, and its rules."""
        return RECORD_SCHEMAS[self.kind][self.schema_version]


class FramePrefix(NamedTuple):
    """The fixed part at the start of every frame of this wire version, as it was read."""

    wire_version: int
    frame_version: int
    flags: int
    stored_bytes: int
    payload_bytes: int
    header_bytes: int
    crc: int


def encode_head(
    identity: BatchIdentity, kind: FrameKind, schema_version: int, *, payload_bytes: int, stored: pa.Buffer, zstd: bool
) -> bytes:
    """Encode prefix and header for a payload as it is stored."""
    agent_id, boot_id = identity.agent_id.encode(), identity.boot_id.encode()
    numbers = (identity.seq_start, identity.seq_end, identity.record_count, kind, schema_version)
    header = _HEADER.pack(*numbers, len(agent_id), len(boot_id)) + agent_id + boot_id
    header += bytes(-len(header) % _ALIGNMENT)
    flags = _ZSTD if zstd else 0
    prefix = _PREFIX.pack(MAGIC, WIRE_VERSION, FRAME_VERSION, flags, len(stored), payload_bytes, len(header))
    crc = google_crc32c.extend(google_crc32c.value(prefix + header), stored)
    return prefix + _CRC.pack(crc) + header


def decode_prefix(frame: pa.Buffer) -> FramePrefix:
    """Decode the prefix of a frame, of which at least that much is there. Raises `BadFrame` and `NewerFormat`."""
    if len(frame) < _HEADER_AT:
        start = frame.to_pybytes()
        _check_start(start[: len(MAGIC)], int.from_bytes(start[8:10], "little") if len(start) >= 10 else WIRE_VERSION)
        raise BadFrame("truncated", f"The frame ends after {len(start)} bytes, within its first {_HEADER_AT}.")
    magic, *numbers = _PREFIX_AND_CRC.unpack_from(frame)
    prefix = FramePrefix(*numbers)
    # The rest of the prefix may be another one in another version, so this comes first.
    _check_start(magic, prefix.wire_version)
    if prefix.wire_version < 1 or prefix.frame_version < 1:
        raise BadFrame("bad_version", "The frame has the version 0. Versions start at 1.")
    return prefix


def told_payload_bytes(start: bytes | memoryview) -> int:
    """The size of the payload that a frame's prefix tells, of which nothing is checked; 0 if it is not all there."""
    if len(start) < _HEADER_AT:
        return 0
    payload_bytes: int = _PREFIX_AND_CRC.unpack_from(start)[5]
    return payload_bytes


def _check_start(magic: bytes, wire_version: int) -> None:
    """Raise `BadFrame` or `NewerFormat` unless a frame that starts with so much of the magic may be one of ours."""
    if magic != MAGIC[: len(magic)]:
        raise BadFrame("bad_magic", f"This is not a frame: it starts with {magic!r}.")
    if wire_version > WIRE_VERSION:
        raise _newer(f"its wire version is {wire_version}")


def check_whole(frame: pa.Buffer, prefix: FramePrefix) -> None:
    """Raise `BadFrame` unless the frame has the length that it declares, and its checksum matches."""
    declared = _HEADER_AT + prefix.header_bytes + prefix.stored_bytes
    if len(frame) < declared:
        raise BadFrame("truncated", f"The frame ends after {len(frame):,} bytes, but declares {declared:,}.")
    if len(frame) > declared:
        raise BadFrame("trailing_bytes", f"The frame declares {declared:,} bytes, but {len(frame):,} are there.")
    crc = google_crc32c.extend(google_crc32c.value(frame.slice(0, _PREFIX.size)), frame.slice(_HEADER_AT))
    if crc != prefix.crc:
        raise BadFrame("bad_checksum", "The frame is damaged: its checksum does not match.")


def has_damaged_version(frame: pa.Buffer) -> bool:
    """Whether a frame that says it is of a newer wire version is one of this version, by its checksum."""
    begin, end = len(MAGIC), len(MAGIC) + 2
    body, version = frame.to_pybytes(), WIRE_VERSION.to_bytes(2, "little")
    if len(body) < _HEADER_AT or body[begin:end] == version:
        return False
    mended = pa.py_buffer(body[:begin] + version + body[end:])
    try:
        check_whole(mended, decode_prefix(mended))
    except BadFrame:
        return False
    return True


def decode_header(frame: pa.Buffer, prefix: FramePrefix) -> FrameHeader:
    """Decode the header that follows the prefix. Raises `BadFrame` and `NewerFormat`."""
    if prefix.frame_version > FRAME_VERSION:
        raise _newer(f"its frame version is {prefix.frame_version}")
    if prefix.flags & ~_ZSTD:
        raise _newer(f"it has the flags {prefix.flags:#x}")
    if not prefix.flags & _ZSTD and prefix.stored_bytes != prefix.payload_bytes:
        raise BadFrame("bad_length", "The frame is not compressed, but declares two sizes of its payload.")
    end = _HEADER_AT + prefix.header_bytes
    if not _HEADER.size < prefix.header_bytes <= MAX_HEAD_BYTES - _HEADER_AT:
        raise BadFrame("bad_header", f"The frame declares a header of {prefix.header_bytes:,} bytes.")
    if len(frame) < end:
        raise BadFrame("truncated", f"The frame ends after {len(frame)} bytes, within its header.")
    header = frame.slice(_HEADER_AT, prefix.header_bytes).to_pybytes()
    seq_start, seq_end, count, kind, schema_version, agent_bytes, boot_bytes = _HEADER.unpack_from(header)
    agent_id, rest = header[_HEADER.size :][:agent_bytes], header[_HEADER.size + agent_bytes :]
    boot_id, padding = rest[:boot_bytes], rest[boot_bytes:]
    unpadded = _HEADER.size + agent_bytes + boot_bytes
    if len(header) != unpadded + -unpadded % _ALIGNMENT or any(padding):
        raise BadFrame("bad_header", "The lengths of the ids in the frame's header do not add up.")
    identity = _identity(agent_id, boot_id, seq_start, seq_end)
    if identity.record_count != count:
        raise BadFrame(
            "bad_count",
            f"The frame tells {count:,} records, but its sequence numbers {seq_start} to {seq_end} "
            f"are {identity.record_count:,}.",
        )
    return FrameHeader(
        identity,
        _kind(kind, schema_version),
        schema_version,
        prefix.wire_version,
        prefix.frame_version,
        bool(prefix.flags & _ZSTD),
        end,
        prefix.stored_bytes,
        prefix.payload_bytes,
    )


def _identity(agent_id: bytes, boot_id: bytes, seq_start: int, seq_end: int) -> BatchIdentity:
    try:
        return BatchIdentity(agent_id.decode(), boot_id.decode(), seq_start, seq_end)
    except UnicodeDecodeError:
        raise BadFrame("bad_identity", "The frame has no valid identity: its ids are not UTF-8.") from None
    except InvalidIdentity as error:
        raise BadFrame("bad_identity", f"The frame has no valid identity: {error}") from None


def _kind(number: int, schema_version: int) -> FrameKind:
    if not number or not schema_version:
        raise BadFrame("bad_header", "The frame tells no kind of records, or no version of their schema.")
    kind = _KINDS.get(number)
    if kind is None:
        raise _newer(f"its records are of the kind {number}")
    if schema_version not in RECORD_SCHEMAS[kind]:
        raise _newer(f"its {kind.word} have the schema {schema_version}")
    return kind


def _newer(what: str) -> NewerFormat:
    return NewerFormat(f"The frame was written by a newer Lakehead ({what}). Update this reader.")
