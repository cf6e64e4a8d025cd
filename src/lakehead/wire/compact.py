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
from itertools import accumulate

import google_crc32c
import zstandard

from lakehead.wire.batch import KeyValueEntry, Limits, check_counts, check_stored, decode_json
from lakehead.wire.errors import Unreadable

MAGIC = b"LKB1"
LEVEL = 1
"""zstd's level: batches are written at the rate of a network, and read soon after."""

_ZSTD = 1
_SEAL = struct.Struct("<4sI")
_HEAD = struct.Struct("<IIQ")
_START = _SEAL.size + _HEAD.size
_LENGTHS = 8
_WINDOW = 8 << 20


def encode_compact(entries: Sequence[KeyValueEntry], *, compress: bool = True) -> bytes:
    """A batch in the compact format."""
    parts = [part for entry in entries for part in (entry.key, entry.value)]
    payload = b"".join([_little(array("I", map(len, parts))).tobytes(), *parts])
    head = _HEAD.pack(_ZSTD if compress else 0, len(entries), len(payload))
    if compress:
        payload = zstandard.ZstdCompressor(level=LEVEL, write_content_size=True).compress(payload)
    crc = google_crc32c.extend(google_crc32c.value(head), payload)
    return b"".join([_SEAL.pack(MAGIC, crc), head, payload])


def decode_compact(body: bytes, limits: Limits) -> list[KeyValueEntry]:
    """The entries of a compact batch. Raises `Unreadable`, before anything large is allocated."""
    check_stored(body, limits)
    if len(body) < _START:
        raise Unreadable("The batch ends within its header.")
    magic, crc = _SEAL.unpack_from(body)
    if magic != MAGIC:
        raise Unreadable(f"The batch starts with {magic!r}, which is no format that we know.")
    payload = body[_START:]
    if google_crc32c.extend(google_crc32c.value(body[_SEAL.size : _START]), payload) != crc:
        raise Unreadable("The batch is damaged: its checksum is another.")
    flags, count, length = _HEAD.unpack_from(body, _SEAL.size)
    if flags & ~_ZSTD:
        raise Unreadable(f"The batch has the flags {flags:#x}, which are newer than this reader. Update it.")
    check_counts(count, length - count * _LENGTHS, limits)
    return _entries(_inflated(payload, length) if flags & _ZSTD else payload, count, length)


def decode_batch(body: bytes, limits: Limits = Limits()) -> list[KeyValueEntry]:  # noqa: B008 - frozen
    """The entries of a batch in either format, which its first bytes tell. Raises `Unreadable`."""
    return (decode_compact if body[:1] == MAGIC[:1] else decode_json)(body, limits)


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
    return [
        KeyValueEntry(payload[ends[at] : ends[at + 1]], payload[ends[at + 1] : ends[at + 2]])
        for at in range(0, 2 * count, 2)
    ]


def _little(numbers: "array[int]") -> "array[int]":
    """The numbers with their bytes as they are stored, whatever the machine's order."""
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers
