"""Files that grow at their end, item by item, and whose reader is told what became of each byte.

| bytes | content |
|---|---|
| 8 | magic, which says what the file is |
| 2 | version of its content, from 1 |
| 2 | length of the fields that follow |
| … | fields: what is true of the whole file |
| 4 | CRC32C of all before it |
| … | items |

Each item:

| bytes | content |
|---|---|
| 8 | a marker: `F5 4C 4D 49 54 45 4D F5`. No text in UTF-8 contains it |
| 4 | length of the content |
| 4 | CRC32C of the content |
| 4 | CRC32C of the 16 bytes before, continued from the CRC of the file's head |
| … | content |

All numbers are unsigned and little-endian. The head of an item has a checksum of its own, so that a damaged item does
not take those after it along; it continues that of the file, so that bytes of another file, which a disk may show after
the power was lost, are not taken for an item of this one.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import google_crc32c
import pyarrow as pa

from lakehead.wire.errors import NewerFormat, Unreadable

MAGIC_BYTES = 8
MARKER = b"\xf5LMITEM\xf5"

_HEAD = struct.Struct("<8sHH")
_ITEM = struct.Struct("<8sII")
_CRC = struct.Struct("<I")
ITEM_HEAD_BYTES = _ITEM.size + _CRC.size


@dataclass(frozen=True, slots=True)
class LogItem:
    """An item that is as it was written."""

    start: int
    end: int
    content: memoryview


@dataclass(frozen=True, slots=True)
class AppendLog:
    """What a reader found in a file. Each byte after the head is in one of these, and in one only."""

    fields: bytes
    items: Sequence[LogItem]
    damaged: Sequence[tuple[int, int]]
    """The parts that are not as they were written, each from its first byte to before its last; none touch."""

    torn_at: int | None
    """Where an item begins that the file ends within, if it does."""

    size: int

    @property
    def is_damaged_before_its_end(self) -> bool:
        """Whether something follows a damaged part."""
        return any(end < self.size for _, end in self.damaged)


def encode_head(magic: bytes, version: int, fields: bytes) -> bytes:
    """Encode what stands at the beginning of a file."""
    head = _HEAD.pack(magic, version, len(fields)) + fields
    return head + _CRC.pack(google_crc32c.value(head))


def encode_item(head: bytes, *content: bytes | pa.Buffer) -> list[bytes | pa.Buffer]:
    """Encode an item of the file with this head, in pieces that are to be written one after the other."""
    crc = size = 0
    for piece in content:
        crc = google_crc32c.extend(crc, piece)
        size += len(piece)
    first = _ITEM.pack(MARKER, size, crc)
    return [first + _CRC.pack(google_crc32c.extend(_seed(head), first)), *content]


def read_log(body: bytes, magic: bytes, newest: int) -> AppendLog | None:
    """Read a file, whatever became of it. None if it ends within its head: then there never was an item.

    Raises `Unreadable` if its head is damaged, or is not one of this magic; `NewerFormat` if its version is above the
    newest one that the caller knows.
    """
    if len(body) < _HEAD.size or len(body) < _head_bytes(body):
        if body[:MAGIC_BYTES] != magic[: len(body)]:
            raise Unreadable(f"The file starts with {body[:MAGIC_BYTES]!r}, not with {magic!r}.")
        if MARKER in body:  # so there was an item: it is the length of the head that is damaged
            raise Unreadable("The head of the file is damaged: it is longer than the file.")
        return None
    size = _head_bytes(body)
    found, version, _ = _HEAD.unpack_from(body)
    if found != magic or google_crc32c.value(body[: size - _CRC.size]) != _seed(body[:size]):
        raise Unreadable("The head of the file is damaged: its checksum does not match.")
    if not 1 <= version <= newest:
        raise NewerFormat(f"The file was written by a newer Lakehead (its version is {version}). Update this one.")
    return _items(body, size)


def _items(body: bytes, start: int) -> AppendLog:
    view, seed, size = memoryview(body), _seed(body[:start]), len(body)
    items: list[LogItem] = []
    damaged: list[tuple[int, int]] = []
    at, torn_at = start, None
    while at < size:
        found = _item_at(view, at, seed)
        if isinstance(found, LogItem):
            items.append(found)
            at = found.end
        elif found is None:
            torn_at, at = at, size
        else:
            if damaged and damaged[-1][1] == at:
                damaged[-1] = damaged[-1][0], found
            else:
                damaged.append((at, found))
            at = found
    return AppendLog(body[_HEAD.size : start - _CRC.size], items, damaged, torn_at, size)


def _item_at(view: memoryview, at: int, seed: int) -> LogItem | int | None:
    """Return the item at a place; None if the file ends within it; where to read on if it is damaged."""
    left = len(view) - at
    if left < ITEM_HEAD_BYTES and view[at : at + len(MARKER)] == MARKER[:left]:
        return None
    if left < ITEM_HEAD_BYTES or not _is_item_head(view, at, seed):
        return _next_item(view, at + 1, seed)
    _, size, crc = _ITEM.unpack_from(view, at)
    begin = at + ITEM_HEAD_BYTES
    if size > left - ITEM_HEAD_BYTES:
        return None
    content = view[begin : begin + size]
    # It takes bytes and Arrow's buffers, no views; a buffer copies nothing.
    return LogItem(at, begin + size, content) if google_crc32c.value(pa.py_buffer(content)) == crc else begin + size


def _next_item(view: memoryview, at: int, seed: int) -> int:
    """Return where the next item begins whose head is whole, or the end of the file."""
    body = view.obj
    assert isinstance(body, bytes)  # noqa: S101 - for the type checker
    while (at := body.find(MARKER, at)) >= 0:
        if _is_item_head(view, at, seed):
            return at
        at += 1
    return len(view)


def _is_item_head(view: memoryview, at: int, seed: int) -> bool:
    if len(view) - at < ITEM_HEAD_BYTES or view[at : at + len(MARKER)] != MARKER:
        return False
    [crc] = _CRC.unpack_from(view, at + _ITEM.size)
    return bool(google_crc32c.extend(seed, bytes(view[at : at + _ITEM.size])) == crc)


def _head_bytes(body: bytes) -> int:
    return _HEAD.size + int.from_bytes(body[_HEAD.size - 2 : _HEAD.size], "little") + _CRC.size


def _seed(head: bytes) -> int:
    """The checksum that a head ends with."""
    return int.from_bytes(head[-_CRC.size :], "little")
