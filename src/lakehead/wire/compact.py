"""The compact batch format: a table of lengths, keys and values as they are, zstd, CRC32C.

| bytes | what |
|---|---|
| 4 | `LKB1`: no JSON starts so |
| 4 | CRC32C of everything after these bytes |
| 4 | flags: bit 0, the payload is one zstd frame that tells its size |
| 4 | number of entries |
| 8 | bytes of the payload when it is not compressed |
| … | payload: for each entry the lengths of key and value, 4 bytes each; then all keys and values in that order |

All numbers are little-endian and without sign.
"""

import struct
import sys
from array import array
from collections.abc import Sequence
from itertools import accumulate, pairwise

import google_crc32c
import zstandard

from lakehead.wire.batch import KeyValueEntry, Limits, check_counts, check_stored, decode_json
from lakehead.wire.errors import NewerFormat, Unreadable

FAMILY, VERSION = b"LKB", b"1"
MAGIC = FAMILY + VERSION
LEVEL = 1
"""zstd's level: batches are written at the rate of a network, and read soon after."""

_ZSTD = 1
_SEAL = struct.Struct("<4sI")
_HEAD = struct.Struct("<IIQ")
_START = _SEAL.size + _HEAD.size
_LENGTHS = 8
_WINDOW = 8 << 20
_SAMPLE = 64 << 10
_SAMPLES = 32
_PAYS = 0.9
"""Compressing pays where it saves a tenth."""
_SMALL = 1024


def encode_compact(entries: Sequence[KeyValueEntry], *, compress: bool | None = None) -> bytes:
    """A batch in the compact format; compressed where that pays, unless it is told."""
    parts: list[bytes] = [b""] * (2 * len(entries))
    parts[::2] = [entry.key for entry in entries]
    parts[1::2] = [entry.value for entry in entries]
    table = _little(array("I", map(len, parts))).tobytes()
    length = len(table) + sum(map(len, parts))
    if compress if compress is not None else _compresses(parts, length):
        head = _HEAD.pack(_ZSTD, len(entries), length)
        compressor = zstandard.ZstdCompressor(level=LEVEL, write_content_size=True)
        payload = [compressor.compress(b"".join([table, *parts]))]
    else:
        head = _HEAD.pack(0, len(entries), length)
        # Large parts are copied once, into the body itself; many small ones are quicker to join than to checksum.
        payload = [table, *parts] if length > len(parts) * _SMALL else [b"".join([table, *parts])]
    crc = 0
    for piece in (head, *payload):
        crc = google_crc32c.extend(crc, piece)
    return b"".join([_SEAL.pack(MAGIC, crc), head, *payload])


def decode_compact(body: bytes, limits: Limits) -> list[KeyValueEntry]:
    """The entries of a compact batch, before anything large is allocated.

    Raises `Unreadable`; `NewerFormat` for another version of the format, or flags that we do not know.
    """
    magic = body[: len(MAGIC)]
    if len(magic) == len(MAGIC) and magic.startswith(FAMILY) and magic != MAGIC:
        raise _newer(f"it starts with {magic!r}")
    check_stored(body, limits)
    if len(body) < _START:
        raise Unreadable("The batch ends within its header.")
    if magic != MAGIC:
        raise Unreadable(f"The batch starts with {magic!r}, which is no format that we know.")
    _, crc = _SEAL.unpack_from(body)
    payload = body[_START:]
    if google_crc32c.extend(google_crc32c.value(body[_SEAL.size : _START]), payload) != crc:
        raise Unreadable("The batch is damaged: its checksum is another.")
    flags, count, length = _HEAD.unpack_from(body, _SEAL.size)
    if flags & ~_ZSTD:
        raise _newer(f"it has the flags {flags:#x}")
    check_counts(count, length - count * _LENGTHS, limits)
    return _entries(_inflated(payload, length) if flags & _ZSTD else payload, count, length)


def decode_batch(body: bytes, limits: Limits = Limits()) -> list[KeyValueEntry]:  # noqa: B008 - frozen
    """The entries of a batch in either format, which its first bytes tell. Raises `Unreadable` or `NewerFormat`."""
    return (decode_compact if body[:1] == MAGIC[:1] else decode_json)(body, limits)


def _newer(what: str) -> NewerFormat:
    return NewerFormat(f"The batch was written by a newer Lakehead ({what}): update the reader.")


def _compresses(parts: Sequence[bytes], length: int) -> bool:
    """Whether compressing is worth its time, judged by some of the parts from all over the batch."""
    step = max(1, len(parts) // _SAMPLES)
    sample = b"".join([part[: 2 * _SAMPLE // _SAMPLES] for part in parts[1 :: step | 1]])[:_SAMPLE]
    return length < _SAMPLE or len(zstandard.ZstdCompressor(level=LEVEL).compress(sample)) < len(sample) * _PAYS


def _inflated(payload: bytes, length: int) -> bytes:
    try:
        # zstd allocates what the frame says, not what we allow: so that is looked at first.
        if zstandard.frame_content_size(payload) != length:
            raise Unreadable("The batch is damaged: its compressed part says another length than its header.")
        if zstandard.get_frame_parameters(payload).window_size > max(length, _WINDOW):
            raise Unreadable("The batch is damaged: its compressed part asks for too much memory.")
        return zstandard.ZstdDecompressor().decompress(payload, max_output_size=length, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise Unreadable(f"The batch is damaged: its compressed part cannot be read ({error}).") from None


def _entries(payload: bytes, count: int, length: int) -> list[KeyValueEntry]:
    table = count * _LENGTHS
    if len(payload) != length or length < table:
        raise Unreadable("The batch is damaged: its payload has another length than its header says.")
    lengths = array("I", payload[:table])
    ends = list(accumulate(_little(lengths), initial=table))
    if ends[-1] != length:
        raise Unreadable("The batch is damaged: the lengths of its entries do not add up.")
    parts = [payload[start:end] for start, end in pairwise(ends)]
    return list(map(KeyValueEntry, parts[::2], parts[1::2]))


def _little(numbers: "array[int]") -> "array[int]":
    """The numbers with their bytes as they are stored, whatever the machine's order."""
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers
