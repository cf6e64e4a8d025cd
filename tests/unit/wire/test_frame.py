"""Frames come back as they were, and nothing else is taken for one."""

import pickle
import struct
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from lakehead.wire.batch_identity import MAX_SEQUENCE, BatchIdentity
from lakehead.wire.errors import BadFrame, NewerFormat, TooLarge, Unreadable
from lakehead.wire.frame import Frame, decode_frame, encode_frame, frame_sha256, peek_frame
from lakehead.wire.frame_header import MAX_HEAD_BYTES
from lakehead.wire.frame_limits import FrameLimits
from lakehead.wire.ipc_payload import _batch_at, _message_at, _root, write_batch
from lakehead.wire.record_schemas import LOGS_V1, SAMPLES_V1, SAMPLES_V2, FrameKind
from tests.support.effort import effort
from tests.unit.wire.frames import (
    FORMS,
    IDENTITY,
    LOGS,
    RECORDS,
    SAMPLES,
    around,
    form_frame,
    frame,
    kind_of,
    logs,
    mutated,
    payload_of,
    same,
    samples,
    sealed,
    with_number,
)

ROOT = Path(__file__).parents[3]
GOLDEN = ROOT / "tests" / "golden" / "accept"
KINDS = pytest.mark.parametrize("kind", list(FrameKind), ids=lambda kind: kind.name.lower())
EVERY_FORM = pytest.mark.parametrize("form", FORMS)
PLAIN_AND_ZSTD = pytest.mark.parametrize("compress", [False, True], ids=["plain", "zstd"])

texts = st.text(max_size=8)
ids = st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1, max_size=30)
numbers = st.floats(width=64)
times = st.integers(-(2**63) + 1, 2**63 - 1)
maps = st.dictionaries(texts, texts, max_size=4).map(lambda found: sorted(found.items(), key=lambda e: e[0].encode()))
maybe_text = st.none() | texts


def lists_of(count: int) -> st.SearchStrategy[list[float]]:
    return st.lists(numbers, min_size=count, max_size=count)


@st.composite
def distributions(draw: st.DrawFn) -> tuple[str, dict[str, object]]:
    kind = draw(st.sampled_from(["histogram", "exponential_histogram", "summary"]))
    found: dict[str, object] = {
        "count": draw(numbers),
        "sum": draw(st.none() | numbers),
        "min": draw(st.none() | numbers),
    }
    ascending = st.lists(st.integers(-(2**31), 2**31 - 1), max_size=4, unique=True).map(sorted)
    if kind == "histogram":
        bounds = draw(st.lists(st.floats(allow_nan=False), max_size=4, unique_by=lambda each: each + 0.0).map(sorted))
        found |= {"bounds": bounds, "counts": draw(lists_of(len(bounds) + 1))}
    elif kind == "exponential_histogram":
        positive, negative = draw(ascending), draw(ascending)
        found |= {
            "scale": draw(st.integers(-10, 20)),
            "zero_count": draw(numbers),
            "reset_hint": draw(st.none() | st.just("yes")),
        }
        found |= {"positive_indexes": positive, "positive_counts": draw(lists_of(len(positive)))}
        found |= {"negative_indexes": negative, "negative_counts": draw(lists_of(len(negative)))}
    else:
        quantiles = draw(st.lists(numbers, max_size=3))
        found |= {"quantiles": quantiles, "quantile_values": draw(lists_of(len(quantiles)))}
    return kind, found


@st.composite
def sample_rows(draw: st.DrawFn) -> dict[str, object]:
    row: dict[str, object] = {
        "time": draw(times),
        "start_time": draw(st.none() | times),
        "metric": draw(texts),
        "labels": draw(maps),
    }
    row |= {"unit": draw(maybe_text), "temporality": draw(st.sampled_from([None, "delta", "cumulative"]))}
    if draw(st.booleans()):
        kind, distribution = draw(distributions())
        return {**row, "type": kind, "distribution": distribution}
    return {**row, "type": draw(st.sampled_from(["unknown", "gauge", "sum"])), "value": draw(numbers)}


log_fields: dict[str, st.SearchStrategy[object]] = {
    "time": times,
    "observed_time": st.none() | times,
    "severity_number": st.none() | st.integers(1, 24),
    "body": maybe_text,
    "attributes": maps,
    "trace_id": st.none() | st.text("0123456789abcdef", min_size=32, max_size=32),
    "resource_attributes": maps,
    "scope_name": maybe_text,
    "scope_attributes": maps,
}
log_rows = st.fixed_dictionaries(log_fields)
batches = st.one_of(
    st.tuples(st.just(FrameKind.SAMPLES), st.lists(sample_rows(), min_size=1, max_size=6).map(samples)),
    st.tuples(st.just(FrameKind.LOGS), st.lists(log_rows, min_size=1, max_size=6).map(logs)),
)


@given(ids, ids, st.integers(0, MAX_SEQUENCE - 10), batches, st.booleans())
def test_a_frame_comes_back_as_it_was(
    agent_id: str,
    boot_id: str,
    start: int,
    batch: tuple[FrameKind, pa.RecordBatch],
    compress: bool,  # noqa: FBT001 - drawn
) -> None:
    kind, records = batch
    identity = BatchIdentity(agent_id, boot_id, start, start + len(records) - 1)

    body = encode_frame(identity, kind, records, compress=compress)

    decoded = decode_frame(body)
    assert (decoded.identity, decoded.header.kind) == (identity, kind)
    assert same(decoded.records, records)
    assert decoded.header.is_compressed == compress
    assert peek_frame(body[:MAX_HEAD_BYTES]) == decoded.header
    assert decoded.header.frame_bytes == len(body)
    assert encode_frame(identity, kind, decoded.records, compress=compress) == body


@EVERY_FORM
@PLAIN_AND_ZSTD
def test_a_frame_that_was_stored_once_is_read_for_ever(form: str, compress: bool) -> None:  # noqa: FBT001 - a parameter
    kind, version = kind_of(form), int(form[-1])
    name, _, number = form.partition(".")
    body = (GOLDEN / f"{name}-{'zstd' if compress else 'plain'}.{number}.lmbatch").read_bytes()

    decoded = decode_frame(body)

    assert decoded.identity == IDENTITY
    assert same(decoded.records, FORMS[form])
    header = decoded.header
    assert (header.kind, header.schema_version, header.wire_version, header.frame_version) == (kind, version, 1, 1)
    stored = payload_of(body)
    again = around(stored, kind=kind, version=version, payload_bytes=header.payload_bytes, zstd=compress)
    assert again == body, "the head, byte by byte"


def test_samples_without_distributions_are_stored_without_their_columns_and_read_with_them() -> None:
    whole, numbers = decode_frame(form_frame("samples.v2")), decode_frame(form_frame("samples.v1"))

    assert (whole.header.schema_version, numbers.header.schema_version) == (2, 1)
    assert numbers.stored_records.schema.equals(SAMPLES_V1, check_metadata=True)
    assert numbers.records.schema.equals(whole.records.schema, check_metadata=True)
    for each in (numbers.records, numbers.stored_records):
        assert encode_frame(IDENTITY, FrameKind.SAMPLES, each, compress=False) == form_frame("samples.v1")


@KINDS
@PLAIN_AND_ZSTD
def test_the_same_records_give_the_same_bytes(kind: FrameKind, compress: bool) -> None:  # noqa: FBT001 - a parameter
    records = RECORDS[kind]
    chunked = pa.Table.from_batches([records.slice(0, 3), records.slice(3)])
    described = chunked.replace_schema_metadata({"pandas": "{}"})

    for each in (records, chunked, described, pa.Table.from_batches([records])):
        assert encode_frame(IDENTITY, kind, each, compress=compress) == frame(kind, compress=compress)


def test_a_stale_marker_keeps_its_bits() -> None:
    values = decode_frame(frame(compress=True)).records.column("value")

    assert values.slice(1, 1).buffers()[1].to_pybytes()[8:16] == (0x7FF0000000000002).to_bytes(8, "little")


def test_the_hash_is_over_the_exact_bytes() -> None:
    assert frame_sha256(b"abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert frame_sha256(frame()) != frame_sha256(frame(compress=True))


def test_a_plain_frame_is_read_without_a_copy_wherever_it_lies() -> None:
    body = frame()
    for offset in range(9):
        records = decode_frame(memoryview(bytes(offset) + body)[offset:]).records
        assert same(records, RECORDS[FrameKind.SAMPLES])
        assert records.column("time").buffers()[1].address % 8 == 0, "numbers are aligned"
    start, end = pa.py_buffer(body).address, pa.py_buffer(body).address + len(body)
    [_, times] = decode_frame(body).records.column("time").buffers()
    assert start < times.address < end


@KINDS
@PLAIN_AND_ZSTD
def test_every_truncation_is_refused(kind: FrameKind, compress: bool) -> None:  # noqa: FBT001 - a parameter
    body = frame(kind, compress=compress)

    for end in range(len(body)):
        with pytest.raises(BadFrame) as caught:
            decode_frame(body[:end])
        assert caught.value.code == "truncated"


@PLAIN_AND_ZSTD
def test_every_flipped_bit_is_refused(compress: bool) -> None:  # noqa: FBT001 - a parameter
    body = frame(FrameKind.LOGS, compress=compress)

    for bit in range(0, len(body) * 8, effort(3, soak=1)):
        flipped = bytearray(body)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Unreadable):
            decode_frame(bytes(flipped))


WHOLE = frame()
HEADER = 40


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "truncated"),
        (b"\x89", "truncated"),
        (b"{}", "bad_magic"),
        (b"LKB1" + bytes(60), "bad_magic"),
        (WHOLE + b"!", "trailing_bytes"),
        (WHOLE + WHOLE, "trailing_bytes"),
        (WHOLE[:-1] + bytes([WHOLE[-1] ^ 1]), "bad_checksum"),
        (with_number(WHOLE, 8, 2, 0), "bad_version"),
        (with_number(WHOLE, 10, 2, 0), "bad_version"),
        (with_number(WHOLE, 16, 8, 2**64 - 1), "truncated"),
        (with_number(WHOLE, 24, 8, 2**64 - 1), "bad_length"),
        (with_number(WHOLE, 24, 8, 0), "bad_length"),
        (with_number(WHOLE, 32, 4, 2**32 - 1), "truncated"),
        (with_number(with_number(WHOLE, 32, 4, 0), 16, 8, len(WHOLE) - 40), "bad_length"),
        (with_number(WHOLE, HEADER, 8, 17), "bad_identity"),
        (with_number(WHOLE, HEADER, 8, 2**63), "bad_identity"),
        (with_number(WHOLE, HEADER + 8, 8, 2**63 - 1), "bad_identity"),
        (with_number(WHOLE, HEADER, 8, 11), "bad_count"),
        (with_number(WHOLE, HEADER + 16, 4, 8), "bad_count"),
        (with_number(WHOLE, HEADER + 20, 2, 0), "bad_header"),
        (with_number(WHOLE, HEADER + 22, 2, 0), "bad_header"),
        (with_number(WHOLE, HEADER + 24, 2, 0), "bad_header"),
        (with_number(WHOLE, HEADER + 24, 2, 65_535), "bad_header"),
        (with_number(WHOLE, HEADER + 26, 2, 10), "bad_identity"),
        (with_number(WHOLE, HEADER + 28, 1, 0xFF), "bad_identity"),
        (with_number(WHOLE, HEADER + 28, 1, 0x0A), "bad_identity"),
        (with_number(WHOLE, HEADER + 44, 1, 1), "bad_header"),
        (with_number(WHOLE, HEADER + 20, 4, 2 | 1 << 16), "bad_schema"),
        (with_number(WHOLE, HEADER + 22, 2, 1), "bad_schema"),
        (with_number(WHOLE, 12, 4, 1), "bad_compression"),
    ],
)
def test_a_lying_frame_is_refused_with_a_stable_code(body: bytes, code: str) -> None:
    with pytest.raises(BadFrame) as caught:
        decode_frame(body)

    assert (caught.value.code, caught.value.fault) == (code, code)
    assert str(caught.value).endswith(".")


@pytest.mark.parametrize(
    ("at", "number"), [(10, 2), (12, 2), (12, 0x8000_0001), (HEADER + 20, 3), (HEADER + 22, 3)], ids=str
)
def test_what_a_newer_lakehead_wrote_is_newer_if_it_is_whole_and_damaged_if_not(at: int, number: int) -> None:
    newer = with_number(WHOLE, at, 4 if at == 12 else 2, number)

    with pytest.raises(NewerFormat, match="Update this reader"):
        decode_frame(newer)
    with pytest.raises(NewerFormat, match="Update this reader"):
        peek_frame(newer)
    with pytest.raises(BadFrame, match="checksum"):
        decode_frame(newer[:-1] + b"?")


def test_an_error_crosses_processes_with_its_code() -> None:
    with pytest.raises(BadFrame) as caught:
        decode_frame(WHOLE + b"!")

    copy = pickle.loads(pickle.dumps(caught.value))  # noqa: S301 - our own bytes

    assert (copy.code, copy.fault, str(copy)) == ("trailing_bytes", "trailing_bytes", str(caught.value))


@pytest.mark.parametrize("rest", [b"", bytes(2000)])
def test_a_newer_wire_version_is_newer_whatever_follows(rest: bytes) -> None:
    with pytest.raises(NewerFormat, match="wire version is 2"):
        decode_frame(WHOLE[:8] + b"\x02\x00" + rest, FrameLimits(frame_bytes=5))


@pytest.mark.parametrize(
    "limits",
    [
        FrameLimits(frame_bytes=len(WHOLE) - 1),
        FrameLimits(payload_bytes=len(payload_of(WHOLE)) - 1),
        FrameLimits(records=6),
    ],
    ids=["frame", "payload", "records"],
)
def test_a_frame_above_a_limit_is_too_large(limits: FrameLimits) -> None:
    with pytest.raises(TooLarge, match="the limit is"):
        decode_frame(WHOLE, limits)
    enough = FrameLimits(frame_bytes=len(WHOLE), payload_bytes=len(payload_of(WHOLE)), records=7)
    assert decode_frame(WHOLE, enough).identity == IDENTITY


@pytest.fixture(scope="module")
def bomb() -> bytes:
    return zstandard.ZstdCompressor(level=3).compress(bytes(255 << 20))


@pytest.mark.parametrize("told", [8, 1 << 20, 255 << 20, 1 << 40])
def test_a_zip_bomb_is_refused_before_it_goes_off(bomb: bytes, told: int) -> None:
    body = around(bomb, payload_bytes=told, zstd=True)
    tracemalloc.start()
    try:
        with pytest.raises((BadFrame, TooLarge)):
            decode_frame(body)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert most < 4 * len(body) + (1 << 20)


def test_records_that_compress_like_a_bomb_are_sent_as_they_are() -> None:
    records = logs([{**LOGS[1], "body": "a" * (4 << 20)}])

    body = encode_frame(BatchIdentity("a", "b", 0, 0), FrameKind.LOGS, records)

    assert not peek_frame(body).is_compressed
    assert same(decode_frame(body).records, records)


PAYLOAD = payload_of(WHOLE)


@pytest.mark.parametrize(
    "stored",
    [
        b"no zstd at all",
        zstandard.compress(PAYLOAD + b"!"),
        zstandard.compress(PAYLOAD[:-1]),
        zstandard.compress(PAYLOAD) + b"!",
        zstandard.compress(PAYLOAD[:8]) + zstandard.compress(PAYLOAD[8:]),
        zstandard.compress(PAYLOAD) + zstandard.compress(b""),
        zstandard.compress(PAYLOAD)[:-1],
        zstandard.ZstdCompressor(write_content_size=False).compress(PAYLOAD),
        b"\x50\x2a\x4d\x18\x04\x00\x00\x00skip" + zstandard.compress(PAYLOAD),
        b"",
    ],
)
def test_a_compressed_part_that_is_not_one_whole_zstd_frame_is_refused(stored: bytes) -> None:
    with pytest.raises(BadFrame) as caught:
        decode_frame(around(stored, payload_bytes=len(PAYLOAD), zstd=True))

    assert caught.value.code == "bad_compression"
    assert same(
        decode_frame(around(zstandard.compress(PAYLOAD), payload_bytes=len(PAYLOAD), zstd=True)).records, samples()
    )


@given(st.binary(max_size=300))
def test_whatever_bytes_there_are_the_answer_is_a_frame_or_a_typed_error(noise: bytes) -> None:
    head = WHOLE[: peek_frame(WHOLE).payload_at]
    for body in (
        noise,
        WHOLE[:8] + noise,
        WHOLE[:16] + noise,
        around(noise),
        sealed(head + noise),
        around(PAYLOAD[:200] + noise),
    ):
        assert decoded_or_refused(body) is None


@given(st.randoms(use_true_random=False), st.sampled_from(list(FORMS)))
def test_a_mutated_frame_is_refused_or_means_the_same_when_it_is_encoded_again(random: Random, form: str) -> None:
    decoded = decoded_or_refused(mutated(form_frame(form), random))

    if decoded is not None:
        again = encode_frame(decoded.identity, kind_of(form), decoded.records)
        assert same(decode_frame(again).records, decoded.records)


def decoded_or_refused(body: bytes) -> Frame | None:
    try:
        return decode_frame(body)
    except (BadFrame, NewerFormat, TooLarge):
        return None


@pytest.mark.slow
def test_no_mutated_frame_crashes_the_interpreter() -> None:
    count, every = effort((300, 4), soak=(5_000, 1))

    ran = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-m", "tests.unit.wire.decode_mutated_frames", str(count), str(every)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
    )

    assert ran.returncode == 0, ran.stderr
    valid, refused, described = map(int, ran.stdout.split())
    assert valid + refused == count
    assert valid > count // 50, "some mutations hit padding or values"
    assert min(refused, described) > count // 4


def test_what_is_not_of_its_kind_is_not_encoded() -> None:
    for kind, records, code in (
        (FrameKind.LOGS, samples(), "bad_schema"),
        (FrameKind.SAMPLES, samples().select(["time", "metric"]), "bad_schema"),
        (FrameKind.SAMPLES, samples().slice(1), "bad_count"),
        (FrameKind.SAMPLES, pa.Table.from_batches([], schema=SAMPLES_V2), "bad_count"),
        (FrameKind.LOGS, pa.Table.from_batches([], schema=LOGS_V1), "bad_count"),
        (FrameKind.SAMPLES, samples([{**SAMPLES[0], "metric": None}] * 7), "bad_records"),
    ):
        with pytest.raises(BadFrame) as caught:
            encode_frame(IDENTITY, kind, records)
        assert caught.value.code == code


def ipc(*batches: pa.RecordBatch, options: pa.ipc.IpcWriteOptions | None = None) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema, options=options) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return bytes(sink.getvalue().to_pybytes())


def recast(change: Callable[[pa.Field], pa.Field], schema: pa.Schema = SAMPLES_V2) -> pa.RecordBatch:
    fields = pa.schema([change(field) for field in schema])
    return pa.RecordBatch.from_arrays(
        [column.cast(field.type) for column, field in zip(samples().columns, fields, strict=True)], schema=fields
    )


def as_dictionary(field: pa.Field) -> pa.Field:
    return field.with_type(pa.dictionary(pa.int32(), pa.string())) if field.name == "metric" else field


def as_binary(field: pa.Field) -> pa.Field:
    return field.with_type(pa.binary()) if field.name == "metric" else field


def as_nullable(field: pa.Field) -> pa.Field:
    return field.with_nullable(True)  # noqa: FBT003 - its signature


def as_described(field: pa.Field) -> pa.Field:
    return field.with_metadata({"a": "b"})


@pytest.mark.parametrize(
    ("payload", "code"),
    [
        (b"", "bad_payload"),
        (b"\xff\xff\xff\xff\x00\x00\x00\x00", "bad_payload"),
        (PAYLOAD[:-8], "bad_payload"),
        (PAYLOAD[:-4], "bad_payload"),
        (PAYLOAD + PAYLOAD[-8:], "bad_payload"),
        (PAYLOAD + b"!", "bad_payload"),
        (PAYLOAD[: SAMPLES_V2.serialize().size] + PAYLOAD[-8:], "bad_payload"),
        (PAYLOAD[SAMPLES_V2.serialize().size :], "bad_payload"),
        (ipc(samples(), samples()), "bad_payload"),
        (ipc(samples().slice(0, 3), samples().slice(3)), "bad_payload"),
        (ipc(samples(), options=pa.ipc.IpcWriteOptions(compression="lz4")), "bad_payload"),
        (ipc(samples(), options=pa.ipc.IpcWriteOptions(compression="zstd")), "bad_payload"),
        (ipc(samples(), options=pa.ipc.IpcWriteOptions(use_legacy_format=True)), "bad_payload"),
        (ipc(recast(as_dictionary)), "bad_payload"),
        (b"ARROW1\x00\x00" + PAYLOAD, "bad_payload"),
        (ipc(samples().slice(1)), "bad_count"),
        (ipc(samples().replace_schema_metadata({"a": "b"})), "bad_schema"),
        (ipc(recast(as_described)), "bad_schema"),
        (ipc(recast(as_nullable)), "bad_schema"),
        (ipc(recast(as_binary)), "bad_schema"),
        (ipc(samples().select(["time"])), "bad_schema"),
        (ipc(logs()), "bad_schema"),
    ],
)
def test_a_payload_that_is_not_one_plain_batch_of_the_schema_is_refused(payload: bytes, code: str) -> None:
    with pytest.raises(BadFrame) as caught:
        decode_frame(around(payload))

    assert caught.value.code == code


@pytest.mark.parametrize("text", ["zone", "é"], ids=["key", "value"])
@pytest.mark.parametrize("wrong", [b"\xff", b"\x80", b"\xc0"], ids=bytes.hex)
def test_labels_that_are_not_utf8_are_refused(text: str, wrong: bytes) -> None:
    body = frame()
    first = body.index(text.encode(), peek_frame(body).payload_at + SAMPLES_V2.serialize().size)
    changed = body[:first] + wrong + body[first + 1 :]

    with pytest.raises(BadFrame) as caught:
        decode_frame(sealed(changed))

    assert caught.value.code == "bad_payload"


@EVERY_FORM
def test_the_short_way_to_read_a_description_finds_what_the_long_one_does(form: str) -> None:
    body = form_frame(form)
    payload, schema = bytearray(payload_of(body)), peek_frame(body).record_schema
    start = schema.message.size
    [size] = struct.unpack_from("<i", payload, start + 4)

    def outcome(read: Callable[..., object], *how: object) -> object:
        try:
            return read(pa.py_buffer(bytes(payload)), start, *how)
        except BadFrame as refused:
            return str(refused)

    for at in range(start, start + 8 + size):
        was = payload[at]
        for value in (was, was ^ 1, was ^ 0x80, 0, 0xFF):
            payload[at] = value
            assert outcome(_batch_at, schema) == outcome(_message_at), (at - start, value)
        payload[at] = was


def without_compression_field(payload: bytes) -> bytes:
    """The payload whose record batch no longer says, where it should, that its buffers are compressed."""
    changed = bytearray(payload)
    start = _message_at(pa.py_buffer(payload), 0).end + 8
    batch = _root(payload[start:]).table(2)
    changed[start + batch.fields + 6 : start + batch.fields + 8] = bytes(2)
    return bytes(changed)


def test_buffers_that_are_compressed_in_the_way_of_an_old_arrow_are_refused() -> None:
    """Arrow 0.17 said so in the metadata of a message, which Arrow still believes: a bomb behind the checked sizes."""
    sink = pa.BufferOutputStream()
    old = pa.ipc.IpcWriteOptions(metadata_version=pa.ipc.MetadataVersion.V4, compression="zstd")
    with pa.ipc.new_stream(sink, LOGS_V1, options=old) as writer:
        writer.write_batch(
            logs([{**LOGS[1], "body": "a" * (8 << 20)}]), custom_metadata={"ARROW:experimental_compression": "zstd"}
        )
    bomb = without_compression_field(sink.getvalue().to_pybytes())
    body = around(bomb, kind=FrameKind.LOGS, identity=BatchIdentity("a", "b", 0, 0))

    with pytest.raises(BadFrame, match="metadata of its own"):
        decode_frame(body, FrameLimits(payload_bytes=1 << 20))


def test_columns_that_share_their_bytes_are_refused() -> None:
    """Else a payload within its limit could hold records that are many times as large."""
    payload = bytearray(ipc(samples()))
    start = _message_at(pa.py_buffer(bytes(payload)), 0).end + 8
    batch = _root(bytes(payload[start:])).table(2)
    buffers = start + batch.vector(2, 16)[1]
    metric, unit = (buffers + 16 * number for number in (5, 20))  # their offsets; the texts are the buffers after them
    assert payload[metric + 8] == payload[unit + 8] == 32
    payload[unit : unit + 32] = payload[metric : metric + 32]

    with pytest.raises(BadFrame, match="share"):
        decode_frame(around(bytes(payload)))


def test_a_payload_of_the_older_metadata_version_is_read() -> None:
    older = ipc(samples(), options=pa.ipc.IpcWriteOptions(metadata_version=pa.ipc.MetadataVersion.V4))

    assert older != PAYLOAD
    assert same(decode_frame(around(older)).records, samples())


def metrics(offsets: list[int], data: bytes) -> bytes:
    """The payload with other offsets and characters of the metrics, as Arrow itself would not build them."""
    records = samples()
    positions = b"".join(each.to_bytes(4, "little", signed=True) for each in offsets)
    evil = pa.StringArray.from_buffers(len(records), pa.py_buffer(positions), pa.py_buffer(data))
    columns = [evil if field.name == "metric" else records.column(field.name) for field in records.schema]
    return bytes(write_batch(pa.RecordBatch.from_arrays(columns, schema=records.schema)).to_pybytes())


@pytest.mark.parametrize(
    ("offsets", "data"),
    [
        ([0, 1, 2, 3, 4, 5, 6, 7], b"abc\xff\xfedg"),
        ([0, 1, 2, 3, 4, 5, 6, 7], "äöü".encode() + b"x"),
        ([0, 5, 2, 3, 4, 5, 6, 7], b"abcdefg"),
        ([0, 100, 2, 3, 4, 5, 6, 7], b"abcdefg"),
        ([0, -100, 2, 3, 4, 5, 6, 7], b"abcdefg"),
    ],
)
def test_offsets_that_lie_and_texts_that_are_not_utf8_are_refused(offsets: list[int], data: bytes) -> None:
    with pytest.raises(BadFrame) as caught:
        decode_frame(around(metrics(offsets, data)))

    assert caught.value.code == "bad_payload"
    assert decode_frame(around(metrics(list(range(8)), b"abcdefg"))).records.column("metric")[1].as_py() == "b"
