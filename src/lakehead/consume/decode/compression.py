"""Objects as chunks of plain bytes: gzip and zstd are recognized by their first bytes, whatever an object is called."""

import zlib
from collections.abc import Callable, Iterator

import pyarrow as pa
import zstandard

from lakehead.consume.decode.rows import ObjectRefused

_CHUNK = 2**20
_GZIP_STEP = 16 * 1024
"""Input of one step: what follows a member is copied, and a member may have 20 bytes."""
_ZSTD_STEP = 1024
"""Input of one step: a block has at least 4 bytes, and at most 128 KiB of content, so a step gives 32 MiB at most."""
_ZSTD_WINDOW = 2**27
"""What the zstd tool accepts by default."""
_GZIP, _ZSTD, _SKIPPABLE = b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"\x2a\x4d\x18"
_UNSUPPORTED = {
    b"BZh": "bzip2",
    b"\xfd7zXZ\x00": "xz",
    b"PK\x03\x04": "zip",
    b"\x04\x22\x4d\x18": "lz4",
    b"\xff\x06\x00\x00sNaPpY": "snappy",
}

Decompress = Callable[[Iterator[bytes]], Iterator[bytes]]


def is_compressed(source: pa.NativeFile) -> bool:
    """Return whether an object is compressed, so that it can only be read from its start. Raises `ObjectRefused`."""
    source.seek(0)
    return _decompressor(source.read(10)) is not None


def plain_chunks(source: pa.NativeFile) -> Iterator[bytes]:
    """Return an object's content from its start, decompressed, in chunks of at most 32 MiB.

    Raises `ObjectRefused` for what cannot be decompressed to its end: truncated or damaged data, anything but further
    members or frames and zero bytes after the end, and other kinds of compression.
    """
    source.seek(0)
    first = source.read(_CHUNK)
    decompress = _decompressor(first)
    chunks = _chunks(source, first)
    yield from decompress(chunks) if decompress is not None else chunks


def _decompressor(head: bytes) -> Decompress | None:
    if head.startswith(_GZIP):
        return _gunzip
    if head.startswith(_ZSTD) or (head[1:4] == _SKIPPABLE and head[0] >> 4 == 5):
        return _unzstd
    for magic, name in _UNSUPPORTED.items():
        if head.startswith(magic):
            raise ObjectRefused(f"It is compressed with {name}; gzip and zstd can be read.")
    return None


def _chunks(source: pa.NativeFile, first: bytes) -> Iterator[bytes]:
    chunk = first
    while chunk:
        yield chunk
        chunk = source.read(_CHUNK)


def _steps(chunks: Iterator[bytes], size: int) -> Iterator[bytes]:
    for chunk in chunks:
        for start in range(0, len(chunk), size):
            yield chunk[start : start + size]


def _gunzip(chunks: Iterator[bytes]) -> Iterator[bytes]:
    position, member = 0, zlib.decompressobj(wbits=31)
    for piece in _steps(chunks, _GZIP_STEP):
        rest = piece
        while rest:
            if member.eof:
                rest = rest.lstrip(b"\0")
                if rest:
                    member = zlib.decompressobj(wbits=31)
                continue
            try:
                made = member.decompress(rest, _CHUNK)
            except zlib.error as error:
                raise _damaged("gzip", position + len(piece) - len(rest), error) from None
            if made:
                yield made
            rest = member.unused_data or member.unconsumed_tail
        position += len(piece)
    if not member.eof:
        raise ObjectRefused(f"It ends at byte {position}, in the middle of its gzip data.")


def _unzstd(chunks: Iterator[bytes]) -> Iterator[bytes]:
    decompressor = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW)
    position, frame = 0, decompressor.decompressobj()
    for piece in _steps(chunks, _ZSTD_STEP):
        rest = piece
        while rest:
            if frame.eof:
                rest = rest.lstrip(b"\0")
                if rest:
                    frame = decompressor.decompressobj()
                continue
            try:
                made = frame.decompress(rest)
            except zstandard.ZstdError as error:
                raise _damaged("zstd", position, error) from None
            if made:
                yield made
            rest = frame.unused_data
        position += len(piece)
    if not frame.eof:
        raise ObjectRefused(f"It ends at byte {position}, in the middle of its zstd data.")


def _damaged(kind: str, position: int, error: Exception) -> ObjectRefused:
    return ObjectRefused(f"Its {kind} data cannot be decompressed near byte {position} ({error}).")
