"""Frames (`.lmbatch`): one batch of records with its identity, as it is sent and stored. docs/frames.md has the layout.

Whatever bytes come, decoding ends in a `Frame` or in `BadFrame`, `TooLarge` or `NewerFormat`, within its limits.
"""

import threading
from dataclasses import dataclass
from hashlib import sha256

import pyarrow as pa
import zstandard

from lakehead.wire.batch_identity import BatchIdentity
from lakehead.wire.errors import BadFrame, TooLarge
from lakehead.wire.frame_header import (
    FrameHeader,
    check_whole,
    decode_header,
    decode_prefix,
    encode_head,
    told_payload_bytes,
)
from lakehead.wire.frame_limits import MAX_RATIO, MIB, FrameLimits
from lakehead.wire.ipc_payload import read_batch, write_batch
from lakehead.wire.record_schemas import RECORD_SCHEMAS, FrameKind, as_newest, as_oldest

LEVEL = 1
"""The zstd compression level: a fast one, because agents compress beside other work."""

RATIO_FREE_BYTES = MIB
"""Payloads up to this size may be compressed by any ratio."""

_MAX_WINDOW = 8 * MIB


class _PerThread(threading.local):
    """What one thread at a time may use, and takes longer to make than to use."""

    def __init__(self) -> None:
        self.zstd = zstandard.ZstdDecompressor()


_PER_THREAD = _PerThread()


@dataclass(frozen=True, slots=True)
class Frame:
    """A valid frame."""

    header: FrameHeader
    stored_records: pa.RecordBatch
    """Its records in the version of their schema that the frame has."""

    @property
    def records(self) -> pa.RecordBatch:
        """Its records in the newest version of their schema, in the order of their sequence numbers."""
        return as_newest(self.header.kind, self.stored_records)

    @property
    def identity(self) -> BatchIdentity:
        """The identity of the batch."""
        return self.header.identity


def frame_sha256(body: bytes | memoryview) -> str:
    """The content hash of a frame: over exactly the bytes that are stored, in hex."""
    return sha256(body).hexdigest()


def encode_frame(
    identity: BatchIdentity, kind: FrameKind, records: pa.RecordBatch | pa.Table, *, compress: bool = True
) -> bytes:
    """Encode records as a frame, in the first version of their kind's schema that can hold them.

    The same records give the same bytes. Raises `BadFrame` if they have no schema of their kind, break a rule of it, or
    are not as many as the identity says.
    """
    schema_version, batch = as_oldest(kind, one_batch(records))
    record_schema = RECORD_SCHEMAS[kind][schema_version]
    payload = write_batch(batch)
    record_schema.check(read_batch(payload, record_schema, identity.record_count))
    zstd, stored = _compressed(payload) if compress else (False, payload)
    head = encode_head(identity, kind, schema_version, payload_bytes=len(payload), stored=stored, zstd=zstd)
    return b"".join([head, stored])


def peek_frame(start: bytes | memoryview) -> FrameHeader:
    """Decode the header of a frame from its first `MAX_HEAD_BYTES`, or more. Nothing else is checked.

    Raises `BadFrame` and `NewerFormat`.
    """
    frame = pa.py_buffer(start)
    return decode_header(frame, decode_prefix(frame))


def payload_bytes_told(start: bytes | memoryview) -> int:
    """The size of the decompressed payload as the first 40 bytes of a frame tell it; 0 if they are fewer.

    Nothing is checked: whether it is a frame at all, only decoding it tells.
    """
    return told_payload_bytes(start)


def decode_frame(body: bytes | memoryview, limits: FrameLimits = FrameLimits()) -> Frame:  # noqa: B008 - frozen
    """Decode and validate a whole frame. If it is not compressed, the records share the memory of the body.

    Raises `TooLarge` if it exceeds a limit, `NewerFormat` if a newer Lakehead wrote it, else `BadFrame`.
    """
    frame = pa.py_buffer(body)
    prefix = decode_prefix(frame)
    _check_limit("bytes", len(frame), limits.frame_bytes)
    check_whole(frame, prefix)
    header = decode_header(frame, prefix)
    _check_limit("records", header.identity.record_count, limits.records)
    _check_limit("bytes in its payload", header.payload_bytes, limits.payload_bytes)
    payload = frame.slice(header.payload_at)
    if header.is_compressed:
        payload = _decompressed(payload, header.payload_bytes, limits.ratio)
    records = read_batch(payload, header.record_schema, header.identity.record_count)
    header.record_schema.check(records)
    return Frame(header, records)


def _check_limit(what: str, found: int, limit: int) -> None:
    if found > limit:
        raise TooLarge(f"The frame has {found:,} {what}; the limit is {limit:,}. Send smaller batches.", fault=what)


def one_batch(records: pa.RecordBatch | pa.Table) -> pa.RecordBatch:
    """Return records as one batch without metadata. Raises `BadFrame` if they are none, or too large for one."""
    records = records.replace_schema_metadata(None)
    if isinstance(records, pa.RecordBatch):
        return records
    batches = records.combine_chunks().to_batches()
    if len(batches) != 1:
        raise BadFrame("bad_count", "The records are none, or too large for one batch.")
    return batches[0]


def _compressed(payload: pa.Buffer) -> tuple[bool, pa.Buffer]:
    compressor = zstandard.ZstdCompressor(level=LEVEL, write_content_size=True)
    stored = pa.py_buffer(compressor.compress(payload))
    if len(payload) > max(RATIO_FREE_BYTES, MAX_RATIO * len(stored)):
        return False, payload
    return True, stored


def _decompressed(stored: pa.Buffer, size: int, ratio: int) -> pa.Buffer:
    """Decompress exactly one zstd frame of exactly this size, which is within the limits."""
    if size > max(RATIO_FREE_BYTES, ratio * len(stored)):
        raise TooLarge(f"The frame's payload is more than {ratio:,} times as large as compressed.", fault="ratio")
    try:
        # zstd allocates what its frame declares, whatever limit it is given: so check that first.
        parameters = zstandard.get_frame_parameters(stored)
        if parameters.content_size != size or parameters.dict_id:
            raise BadFrame("bad_compression", f"The frame's zstd part does not declare its {size:,} bytes.")
        if parameters.window_size > max(size, _MAX_WINDOW):
            raise BadFrame("bad_compression", "The frame's zstd part requires too much memory.")
        payload = _PER_THREAD.zstd.decompress(stored, max_output_size=size, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise BadFrame("bad_compression", f"The frame's zstd part cannot be read ({error}).") from None
    if len(payload) != size:
        raise BadFrame("bad_compression", f"The frame's zstd part has {len(payload):,} bytes, not {size:,}.")
    return pa.py_buffer(payload)
