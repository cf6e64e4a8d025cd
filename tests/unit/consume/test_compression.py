"""Compressed objects: all of them or nothing, in bounded memory."""

import bz2
import gzip
import lzma

import pyarrow as pa
import pytest
import zstandard

from lakehead.consume.decode.compression import is_compressed, plain_chunks
from lakehead.consume.decode.decode import read_object
from lakehead.consume.decode.rows import ObjectRefused, ReadReport
from tests.unit.consume.reading import ndjson, read

ONE, TWO = b'{"a":1}\n', b'{"a":2}\n'
GZIP_ONE, GZIP_TWO = gzip.compress(ONE), gzip.compress(TWO)
ZSTD_ONE, ZSTD_TWO = zstandard.compress(ONE), zstandard.compress(TWO)
SKIPPABLE = b"\x50\x2a\x4d\x18" + (4).to_bytes(4, "little") + b"note"


def plain(body: bytes) -> bytes:
    return b"".join(plain_chunks(pa.BufferReader(body)))


@pytest.mark.parametrize(
    "body",
    [
        ONE + TWO,
        GZIP_ONE + GZIP_TWO,
        gzip.compress(b"") + GZIP_ONE + GZIP_TWO + b"\0" * 512,
        gzip.compress(ONE[:3]) + gzip.compress(ONE[3:] + TWO),
        ZSTD_ONE + ZSTD_TWO,
        SKIPPABLE + ZSTD_ONE + SKIPPABLE + ZSTD_TWO,
        zstandard.ZstdCompressor(write_content_size=False, write_checksum=True).compress(ONE + TWO),
    ],
    ids=[
        "plain",
        "gzip members",
        "gzip padding",
        "gzip cut in a line",
        "zstd frames",
        "zstd skippable",
        "zstd checksum",
    ],
)
def test_all_members_and_frames_are_read_whatever_the_object_is_called(body: bytes) -> None:
    rows, _ = read(body, [("a", pa.int64())], ndjson())

    assert [row["a"] for row in rows] == [1, 2]
    assert is_compressed(pa.BufferReader(body)) is not body.startswith(b"{")


@pytest.mark.parametrize("whole", [GZIP_ONE + GZIP_TWO, ZSTD_ONE + ZSTD_TWO], ids=["gzip", "zstd"])
def test_an_object_cut_off_anywhere_is_refused_or_ends_with_a_whole_member(whole: bytes) -> None:
    first = len(whole) // 2
    for length in range(5, len(whole)):
        if length == first:
            assert plain(whole[:length]) == ONE
            continue
        with pytest.raises(ObjectRefused, match=r"in the middle of its (gzip|zstd) data"):
            plain(whole[:length])


@pytest.mark.parametrize("whole", [GZIP_ONE, ZSTD_ONE], ids=["gzip", "zstd"])
def test_garbage_after_the_end_is_refused(whole: bytes) -> None:
    for garbage in [b"x", TWO, b"\0\0x" * 10]:
        with pytest.raises(ObjectRefused, match=r"cannot be decompressed near byte|in the middle of"):
            plain(whole + garbage)


@pytest.mark.parametrize(
    "whole",
    [gzip.compress(ONE * 100), zstandard.ZstdCompressor(write_checksum=True).compress(ONE * 100)],
    ids=["gzip", "zstd"],
)
def test_a_damaged_checksum_is_refused(whole: bytes) -> None:
    with pytest.raises(ObjectRefused, match=r"cannot be decompressed"):
        plain(
            whole[:-6] + bytes([whole[-6] ^ 1]) + whole[-5:]
            if whole[0] == 0x1F
            else whole[:-1] + bytes([whole[-1] ^ 1])
        )


@pytest.mark.parametrize(
    ("body", "name"),
    [
        (bz2.compress(ONE), "bzip2"),
        (lzma.compress(ONE), "xz"),
        (b"PK\x03\x04....", "zip"),
        (b"\x04\x22\x4d\x18..", "lz4"),
    ],
)
def test_other_compression_is_refused_by_its_name(body: bytes, name: str) -> None:
    with pytest.raises(ObjectRefused, match=name):
        plain(body)


@pytest.mark.slow
@pytest.mark.parametrize("compress", [gzip.compress, zstandard.compress], ids=["gzip", "zstd"])
def test_a_small_object_that_grows_huge_is_read_piece_by_piece(compress: object) -> None:
    assert callable(compress)
    bomb = compress(b'{"a":1}\n' * 2**22)  # 32 MiB
    assert len(bomb) < 2**20

    chunks = plain_chunks(pa.BufferReader(bomb))
    assert max(map(len, chunks)) < 24 * 2**20
    batches = read_object(pa.BufferReader(bomb), ndjson(), pa.schema([("a", pa.int64())]), ReadReport())
    sizes = [next(batches).nbytes for _ in range(2)]
    assert max(sizes) < 20 * 2**20


def test_a_line_that_never_ends_is_refused_before_it_is_in_memory() -> None:
    bomb = gzip.compress(b" " * 2**26)

    with pytest.raises(ObjectRefused, match=r"longer than max_row_bytes"):
        read(bomb, [("a", pa.int64())], ndjson(max_row_bytes=2**22))
