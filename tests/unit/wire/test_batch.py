"""Batches come back as they were, and nothing else is taken for one."""

import tracemalloc
from collections.abc import Callable
from pathlib import Path
from random import Random

import google_crc32c
import msgspec
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from lakehead.wire.batch import BatchLimits, KeyValueEntry, encode_json
from lakehead.wire.compact import decode_batch, encode_compact
from lakehead.wire.errors import NewerFormat, Unreadable

GOLDEN = Path(__file__).parents[2] / "golden" / "buffer"
SAMPLE = [
    KeyValueEntry(b"cpu.host-1", b"<timestamp>\x00\xff"),
    KeyValueEntry(b"", b""),
    KeyValueEntry(b"\xc3\x28", b"v" * 40),
]
SMALL = BatchLimits(stored_bytes=4096, entry_bytes=1000, entries=10)

entries = st.lists(st.builds(KeyValueEntry, st.binary(), st.binary()), max_size=20)


def sealed(rest: bytes) -> bytes:
    """What somebody stores who means harm: its checksum is right."""
    crc: int = google_crc32c.value(rest)
    return b"LKB1" + crc.to_bytes(4, "little") + rest


def head(*, flags: int = 0, count: int, length: int) -> bytes:
    return flags.to_bytes(4, "little") + count.to_bytes(4, "little") + length.to_bytes(8, "little")


@given(entries)
def test_a_json_batch_comes_back_as_it_was(batch: list[KeyValueEntry]) -> None:
    assert decode_batch(encode_json(batch)) == batch


@given(entries, st.booleans())
def test_a_compact_batch_comes_back_as_it_was(batch: list[KeyValueEntry], compress: bool) -> None:  # noqa: FBT001 - drawn
    assert decode_batch(encode_compact(batch, compress=compress)) == batch


@pytest.mark.parametrize("name", ["batch.json", "compact.v1.batch", "compact-plain.v1.batch"])
def test_what_was_stored_once_is_read_for_ever(name: str) -> None:
    assert decode_batch((GOLDEN / name).read_bytes()) == SAMPLE


def test_a_json_batch_is_written_as_it_always_was() -> None:
    assert encode_json(SAMPLE) == (GOLDEN / "batch.json").read_bytes()


def test_a_plain_compact_batch_is_written_as_it_always_was() -> None:
    assert encode_compact(SAMPLE, compress=False) == (GOLDEN / "compact-plain.v1.batch").read_bytes()


@pytest.mark.parametrize(
    ("value", "compressed"),
    [(lambda _: b"status=ok " * 1000, True), (lambda number: Random(number).randbytes(10_000), False)],
    ids=["words", "noise"],
)
def test_a_batch_is_compressed_where_that_pays(
    value: Callable[[int], bytes],
    compressed: bool,  # noqa: FBT001 - a parameter
) -> None:
    batch = [KeyValueEntry(str(number).encode(), value(number)) for number in range(100)]

    body = encode_compact(batch)

    assert decode_batch(body) == batch
    assert bool(body[8] & 1) == compressed
    assert len(body) < sum(entry.size for entry in batch) * (0.1 if compressed else 1.01)


@pytest.mark.parametrize("size", [0, 1, 100, 1023, 1024, 1025, 5000])
@pytest.mark.parametrize("compress", [False, True, None])
def test_entries_of_every_size_come_back(size: int, compress: bool | None) -> None:  # noqa: FBT001 - a parameter
    batch = [KeyValueEntry(bytes(size), Random(number).randbytes(size)) for number in range(50)]

    assert decode_batch(encode_compact(batch, compress=compress)) == batch


def test_the_sample_of_the_specification_is_read() -> None:
    body = b"""[
      { "key": "Y3B1Lmhvc3QtMQ==", "value": "PHRpbWVzdGFtcD4=" },
      { "key": "Y3B1Lmhvc3QtMg==", "value": "dmFsdWUtYmluYXJ5" }
    ]"""

    assert decode_batch(body) == [
        KeyValueEntry(b"cpu.host-1", b"<timestamp>"),
        KeyValueEntry(b"cpu.host-2", b"value-binary"),
    ]


@pytest.mark.parametrize("compress", [False, True])
def test_every_truncation_of_a_compact_batch_is_refused(compress: bool) -> None:  # noqa: FBT001 - a parameter
    body = encode_compact(SAMPLE, compress=compress)

    for end in range(len(body)):
        with pytest.raises(Unreadable):
            decode_batch(body[:end])


@pytest.mark.parametrize("compress", [False, True])
def test_every_flipped_bit_of_a_compact_batch_is_refused(compress: bool) -> None:  # noqa: FBT001 - a parameter
    body = encode_compact(SAMPLE, compress=compress)

    for bit in range(len(body) * 8):
        flipped = bytearray(body)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Unreadable):
            decode_batch(bytes(flipped))


def test_every_truncation_of_a_json_batch_is_refused() -> None:
    body = encode_json(SAMPLE)

    for end in range(len(body)):
        with pytest.raises(Unreadable):
            decode_batch(body[:end])


@pytest.mark.parametrize(
    "rest",
    [
        head(count=2**32 - 1, length=0),
        head(count=2**32 - 1, length=2**63),
        head(count=1, length=2**64 - 1),
        head(count=2, length=8) + bytes(8),
        head(count=1, length=9) + bytes(9),
        head(count=1, length=8) + (2**32 - 1).to_bytes(4, "little") + bytes(4),
        head(count=1, length=10) + (1).to_bytes(4, "little") + (2).to_bytes(4, "little") + b"ab",
        head(count=0, length=5),
        head(count=0, length=0) + b"more",
        head(flags=2, count=0, length=0),
        head(flags=1, count=0, length=0),
        head(flags=1, count=1, length=8) + b"no zstd at all",
        head(flags=1, count=1, length=8) + zstandard.compress(bytes(9)),
        head(flags=1, count=1, length=8) + zstandard.compress(bytes(8)) + b"more",
        head(flags=1, count=1, length=8) + zstandard.compress(bytes(8)) + zstandard.compress(bytes(8)),
    ],
)
def test_a_lying_compact_batch_is_refused(rest: bytes) -> None:
    with pytest.raises(Unreadable):
        decode_batch(sealed(rest))


@pytest.fixture(scope="module")
def bomb() -> bytes:
    return zstandard.ZstdCompressor(level=19).compress(bytes(1 << 30))


@pytest.mark.slow
@pytest.mark.parametrize("told", [8, 1 << 30])
def test_a_zip_bomb_is_refused_before_it_goes_off(bomb: bytes, told: int) -> None:
    body = sealed(head(flags=1, count=1, length=told) + bomb)
    tracemalloc.start()
    try:
        with pytest.raises(Unreadable):
            decode_batch(body)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert most < 4 * len(body) + (1 << 20)


@pytest.mark.parametrize("encode", [encode_json, encode_compact])
@pytest.mark.parametrize(
    "batch",
    [
        [KeyValueEntry(b"", b"")] * 11,
        [KeyValueEntry(b"k", b"v" * 1000)],
        [KeyValueEntry(b"", bytes(range(256)) * 20)],
    ],
    ids=["too many entries", "too many bytes in entries", "too many bytes in all"],
)
def test_a_batch_above_the_limits_is_refused(encode: object, batch: list[KeyValueEntry]) -> None:
    assert callable(encode)
    body = encode(batch)

    with pytest.raises(Unreadable, match="the limit is"):
        decode_batch(body, SMALL)
    assert decode_batch(body) == batch


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"{}",
        b'"text"',
        b"[1]",
        b'[{"key": "YQ=="}]',
        b'[{"key": "YQ==", "value": 1}]',
        b"\xff\xfe",
        b'[{"key": "not base64!", "value": ""}]',
        b'[{"key": null, "value": ""}]',
        b"[" * 100_000,
        b"L",
        b"PK\x03\x04",
    ],
)
def test_what_is_no_batch_is_refused(body: bytes) -> None:
    with pytest.raises(Unreadable):
        decode_batch(body)


@given(st.binary(max_size=300))
def test_whatever_bytes_there_are_the_answer_is_entries_or_unreadable(body: bytes) -> None:
    for bytes_ in (body, b"LKB1" + body, sealed(body), b"[" + body):
        try:
            decode_batch(bytes_, SMALL)
        except Unreadable:
            continue


@pytest.mark.slow
@given(
    st.recursive(
        st.none() | st.text() | st.integers(), lambda deeper: st.lists(deeper) | st.dictionaries(st.text(), deeper)
    )
)
def test_whatever_json_there_is_the_answer_is_entries_or_unreadable(value: object) -> None:
    try:
        assert decode_batch(msgspec.json.encode(value)) == []
    except Unreadable:
        assert value != []


@pytest.mark.parametrize("version", [b"0", b"2", b"\x00", b"\xff"])
def test_a_batch_of_another_version_of_the_format_is_newer_and_not_damaged(version: bytes) -> None:
    for body in (b"LKB" + version, b"LKB" + version + bytes(100)):
        with pytest.raises(NewerFormat, match="Update this reader"):
            decode_batch(body)
        with pytest.raises(NewerFormat):
            decode_batch(body, BatchLimits(stored_bytes=2))


def test_unknown_flags_are_newer_only_where_the_batch_is_whole() -> None:
    whole = sealed(head(flags=2, count=0, length=0))

    with pytest.raises(NewerFormat, match="Update this reader"):
        decode_batch(whole)
    with pytest.raises(Unreadable) as caught:
        decode_batch(whole + b"!")
    assert not isinstance(caught.value, NewerFormat)
