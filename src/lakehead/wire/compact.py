"""The compact batch format: a table of lengths, then binary keys and values, with zstd and CRC32C.

| bytes | content |
|---|---|
| 4 | `LKB1`, which no JSON document starts with |
| 4 | CRC32C of everything after these bytes |
| 4 | flags: bit 0, the payload is one zstd frame with its content size |
| 4 | number of entries |
| 8 | uncompressed size of the payload |
| … | payload: for each entry the lengths of key and value, 4 bytes each; then all keys and values in that order |

All numbers are unsigned and little-endian.
"""

import struct
import sys
from array import array
from collections.abc import Sequence
from itertools import accumulate, pairwise

import google_crc32c
import zstandard

from lakehead.wire.batch import BatchLimits, KeyValueEntry, check_counts, check_stored, decode_json
from lakehead.wire.errors import NewerFormat, Unreadable

FAMILY, VERSION = b"LKB", b"1"
MAGIC = FAMILY + VERSION
LEVEL = 1
"""zstd compression level: a fast one, because batches are short-lived."""

_ZSTD = 1
_MAGIC_AND_CRC = struct.Struct("<4sI")
_HEAD = struct.Struct("<IIQ")
_START = _MAGIC_AND_CRC.size + _HEAD.size
_LENGTHS_BYTES = 8
_MAX_WINDOW = 8 << 20
_SAMPLE_BYTES = 64 << 10
_SAMPLES = 32
_WORTHWHILE_RATIO = 0.9
"""Compress only if a sample shrinks to less than this."""
_SMALL_PART = 1024


def encode_compact(entries: Sequence[KeyValueEntry], *, compress: bool | None = None) -> bytes:
    """Encode a batch in the compact format. By default it is compressed if a sample compresses well."""
    parts: list[bytes] = [b""] * (2 * len(entries))
    parts[::2] = [entry.key for entry in entries]
    parts[1::2] = [entry.value for entry in entries]
    table = _little_endian(array("I", map(len, parts))).tobytes()
    length = len(table) + sum(map(len, parts))
    if compress if compress is not None else _compresses(parts, length):
        head = _HEAD.pack(_ZSTD, len(entries), length)
        compressor = zstandard.ZstdCompressor(level=LEVEL, write_content_size=True)
        payload = [compressor.compress(b"".join([table, *parts]))]
    else:
        head = _HEAD.pack(0, len(entries), length)
        # Large parts are copied only once, into the body; many small parts are faster to join than to checksum singly.
        payload = [table, *parts] if length > len(parts) * _SMALL_PART else [b"".join([table, *parts])]
    crc = 0
    for piece in (head, *payload):
        crc = google_crc32c.extend(crc, piece)
    return b"".join([_MAGIC_AND_CRC.pack(MAGIC, crc), head, *payload])


def decode_compact(body: bytes, limits: BatchLimits) -> list[KeyValueEntry]:
    """Decode a compact batch. All sizes are checked before anything large is allocated.

    Raises `Unreadable`; `NewerFormat` for another version of the format, or unknown flags.
    """
    magic = body[: len(MAGIC)]
    if len(magic) == len(MAGIC) and magic.startswith(FAMILY) and magic != MAGIC:
        raise _newer(f"it starts with {magic!r}")
    check_stored(body, limits)
    if len(body) < _START:
        raise Unreadable("The batch ends within its header.")
    if magic != MAGIC:
        raise Unreadable(f"The batch starts with {magic!r}, which is not a known format.")
    _, crc = _MAGIC_AND_CRC.unpack_from(body)
    payload = body[_START:]
    if google_crc32c.extend(google_crc32c.value(body[_MAGIC_AND_CRC.size : _START]), payload) != crc:
        raise Unreadable("The batch is damaged: its checksum does not match.")
    flags, count, length = _HEAD.unpack_from(body, _MAGIC_AND_CRC.size)
    if flags & ~_ZSTD:
        raise _newer(f"it has the flags {flags:#x}")
    check_counts(count, length - count * _LENGTHS_BYTES, limits)
    return _entries(_decompressed(payload, length) if flags & _ZSTD else payload, count, length)


def decode_batch(body: bytes, limits: BatchLimits = BatchLimits()) -> list[KeyValueEntry]:  # noqa: B008 - frozen
    """Decode a batch in either format, recognized by its first byte. Raises `Unreadable` or `NewerFormat`."""
    return (decode_compact if body[:1] == MAGIC[:1] else decode_json)(body, limits)


def _newer(what: str) -> NewerFormat:
    return NewerFormat(f"The batch was written by a newer Lakehead ({what}). Update this reader.")


def _compresses(parts: Sequence[bytes], length: int) -> bool:
    """Return whether a sample from all over the batch compresses well."""
    step = max(1, len(parts) // _SAMPLES)
    sample = b"".join([part[: 2 * _SAMPLE_BYTES // _SAMPLES] for part in parts[1 :: step | 1]])[:_SAMPLE_BYTES]
    if length < _SAMPLE_BYTES:
        return True
    return len(zstandard.ZstdCompressor(level=LEVEL).compress(sample)) < len(sample) * _WORTHWHILE_RATIO


def _decompressed(payload: bytes, length: int) -> bytes:
    try:
        # zstd allocates what the frame declares, whatever limit we pass: so check that first.
        if zstandard.frame_content_size(payload) != length:
            raise Unreadable("The batch is damaged: its compressed part declares another length than its header.")
        if zstandard.get_frame_parameters(payload).window_size > max(length, _MAX_WINDOW):
            raise Unreadable("The batch is damaged: its compressed part requires too much memory.")
        return zstandard.ZstdDecompressor().decompress(payload, max_output_size=length, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise Unreadable(f"The batch is damaged: its compressed part cannot be read ({error}).") from None


def _entries(payload: bytes, count: int, length: int) -> list[KeyValueEntry]:
    table = count * _LENGTHS_BYTES
    if len(payload) != length or length < table:
        raise Unreadable("The batch is damaged: the length of its payload does not match its header.")
    lengths = array("I", payload[:table])
    ends = list(accumulate(_little_endian(lengths), initial=table))
    if ends[-1] != length:
        raise Unreadable("The batch is damaged: the lengths of its entries do not add up.")
    parts = [payload[start:end] for start, end in pairwise(ends)]
    return list(map(KeyValueEntry, parts[::2], parts[1::2]))


def _little_endian(numbers: "array[int]") -> "array[int]":
    """Swap the bytes of the numbers on a big-endian machine."""
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers
