"""Requests of remote write 1.0 and 2.0 as samples."""

import struct
import tracemalloc
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehead.agent.receive.decoded import STALE_MARKER, BadBody, BodyTooLarge
from lakehead.agent.receive.remote_write import DecodedWrite, decode_remote_write_v1, decode_remote_write_v2
from lakehead.agent.receive.remote_write_messages import Request, WriteRequest
from lakehead.agent.receive.sample_columns import RecordLimits
from lakehead.wire.record_schemas import SAMPLES_V2
from tests.unit.agent.receive.write_requests import MS, NS, UP, Labels, add_v1, add_v2, symbol, v1, v2

Made = Callable[..., Any]
Decode = Callable[..., DecodedWrite]
BOTH = pytest.mark.parametrize(
    ("made", "decode"), [(v1, decode_remote_write_v1), (v2, decode_remote_write_v2)], ids=["1.0", "2.0"]
)


def decoded_v1(request: Any) -> DecodedWrite:
    return decode_remote_write_v1(request.SerializeToString())


def decoded_v2(request: Any) -> DecodedWrite:
    return decode_remote_write_v2(request.SerializeToString())


def times(column: pa.Array) -> list[int | None]:
    return list(column.cast(pa.int64()).to_pylist())


def bits(values: pa.Array) -> list[int]:
    return [struct.unpack("<Q", struct.pack("<d", each))[0] for each in values.to_pylist()]


# --- what is kept


@BOTH
def test_a_sample_has_its_name_its_labels_and_its_time_in_nanoseconds(made: Made, decode: Decode) -> None:
    found = decode(made((UP, [(MS, 1.5)])).SerializeToString())

    assert found.records.schema.equals(SAMPLES_V2)
    [row] = found.records.drop_columns(["time"]).to_pylist()
    assert times(found.records["time"]) == [NS]
    assert (row["metric"], row["labels"], row["type"], row["value"]) == ("up", [("job", "a")], "unknown", 1.5)
    assert [row[name] for name in ("start_time", "unit", "temporality", "monotonic", "distribution")] == [None] * 5
    assert (found.samples, found.histograms, found.exemplars, found.rejected, found.reason) == (1, 0, 0, 0, "")
    assert found.have_own_times


@BOTH
def test_the_samples_of_several_series_have_each_their_labels(made: Made, decode: Decode) -> None:
    request = made(
        ({"__name__": "a"}, [(MS, 1), (MS + 1, 2)]), ({"__name__": "b", "x": "y", "z": ""}, [(MS, 3)]), (UP, [(MS, 4)])
    )

    found = decode(request.SerializeToString()).records

    assert found["metric"].to_pylist() == ["a", "a", "b", "up"]
    assert found["labels"].to_pylist() == [[], [], [("x", "y")], [("job", "a")]]
    assert found["value"].to_pylist() == [1, 2, 3, 4]
    assert times(found["time"]) == [NS, NS + 1_000_000, NS, NS]


PATTERNS = [0x7FF0000000000002, 0x7FF8000000000001, 0xFFF8000000000000, 0x7FF0000000000000, 0x8000000000000000, 1]


@BOTH
def test_every_bit_of_a_value_is_kept_and_those_of_the_stale_marker(made: Made, decode: Decode) -> None:
    request = made((UP, [(MS, struct.unpack("<d", struct.pack("<Q", pattern))[0]) for pattern in PATTERNS]))

    assert bits(decode(request.SerializeToString()).records["value"]) == PATTERNS
    assert bits(pa.array([STALE_MARKER])) == PATTERNS[:1]


@BOTH
def test_times_from_1677_to_2262_are_exact(made: Made, decode: Decode) -> None:
    given_times = [-9_223_372_036_854, -1, 0, 9_223_372_036_854]

    found = decode(made((UP, [(each, 1) for each in given_times])).SerializeToString()).records

    assert times(found["time"]) == [each * 1_000_000 for each in given_times]


@BOTH
def test_labels_in_another_order_are_put_in_order(made: Made, decode: Decode) -> None:
    labels = [("é", "1"), ("z", "2"), ("__name__", "up"), ("\U00010000", "3"), ("\uffff", "4"), ("A", "5")]

    found = decode(made((labels, [(MS, 1)])).SerializeToString())

    [row] = found.records.column("labels").to_pylist()
    assert row == [("A", "5"), ("z", "2"), ("é", "1"), ("\uffff", "4"), ("\U00010000", "3")]
    assert [name.encode() for name, _ in row] == sorted(name.encode() for name, _ in row)
    assert found.rejected == 0


@BOTH
def test_a_label_without_a_value_is_none(made: Made, decode: Decode) -> None:
    found = decode(made(({**dict(UP), "empty": ""}, [(MS, 1)])).SerializeToString())

    assert found.records["labels"].to_pylist() == [[("job", "a")]]


@BOTH
def test_a_request_without_samples_is_no_records(made: Made, decode: Decode) -> None:
    for request in (made(), made((UP, []))):
        found = decode(request.SerializeToString())
        assert (found.records.num_rows, found.rejected) == (0, 0)
        assert found.records.schema.equals(SAMPLES_V2)


def test_the_metadata_of_1_0_alone_is_no_records_and_says_nothing_of_samples() -> None:
    request = WriteRequest()
    request.metadata.add(type=1, metric_family_name="up", unit="seconds")
    assert decoded_v1(request).records.num_rows == 0

    add_v1(request, UP, [(MS, 1)])
    [row] = decoded_v1(request).records.drop_columns(["time"]).to_pylist()
    assert (row["type"], row["unit"]) == ("unknown", None)


def test_exemplars_are_counted_and_not_kept() -> None:
    request = v1((UP, [(MS, 1)]))
    request.timeseries[0].exemplars.add(value=1, timestamp=MS)
    assert (decoded_v1(request).exemplars, decoded_v1(request).records.num_rows) == (1, 1)

    request = v2()
    add_v2(request, UP).exemplars.add(value=1, timestamp=MS)
    assert (decoded_v2(request).exemplars, decoded_v2(request).records.num_rows) == (1, 0)


# --- what 2.0 says of series


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (0, ("unknown", None, None)),
        (1, ("sum", "cumulative", True)),
        (2, ("gauge", None, None)),
        (3, ("unknown", None, None)),
        (5, ("unknown", None, None)),
        (6, ("gauge", None, None)),
        (7, ("gauge", None, None)),
        (99, ("unknown", None, None)),
    ],
    ids=["unspecified", "counter", "gauge", "histogram", "summary", "info", "stateset", "of a later version"],
)
def test_metadata_of_2_0_gives_type_and_unit(kind: int, told: tuple[str, str | None, bool | None]) -> None:
    request = v2((UP, [(MS, 1)]))
    request.timeseries[0].metadata.type = kind
    request.timeseries[0].metadata.unit_ref = symbol(request, "seconds")
    request.timeseries[0].metadata.help_ref = symbol(request, "Help.")

    [row] = decoded_v2(request).records.drop_columns(["time"]).to_pylist()

    assert (row["type"], row["temporality"], row["monotonic"]) == told
    assert row["unit"] == "seconds"


def test_a_series_that_says_when_it_was_created_has_samples_that_began_then() -> None:
    request = v2((UP, [(MS, 1), (MS + 1, 2)]), ({"__name__": "other"}, [(MS, 3)]))
    request.timeseries[0].created_timestamp = MS - 5

    assert times(decoded_v2(request).records["start_time"]) == [NS - 5_000_000, NS - 5_000_000, None]


def test_a_sample_that_says_when_it_began_to_count_is_believed_before_its_series() -> None:
    request = v2((UP, [(MS, 1), (MS, 2)]))
    request.timeseries[0].created_timestamp = MS - 5
    request.timeseries[0].samples[1].start_timestamp = MS - 7
    histogram = request.timeseries[0].histograms.add(count_int=0, timestamp=MS, start_timestamp=MS - 9)
    assert histogram.start_timestamp

    found = times(decoded_v2(request).records["start_time"])

    assert found == [NS - 5_000_000, NS - 7_000_000, NS - 9_000_000]


# --- what is wrong

WRONG: list[tuple[str, Labels, str]] = [
    ("no labels", {}, "{}: It has no __name__."),
    ("no name", {"job": "a"}, '{job="a"}: It has no __name__.'),
    ("an empty name", {"__name__": "", "job": "a"}, "It has no __name__."),
    ("a label without a name", {"__name__": "up", "": "a"}, "A label has no name."),
    ("a label twice", [("__name__", "up"), ("job", "a"), ("x", ""), ("job", "b")], "A label is there twice."),
    ("an equal label twice", [("__name__", "up"), ("job", "a"), ("job", "a")], "A label is there twice."),
    ("two names", [("__name__", "up"), ("__name__", "down")], "A label is there twice."),
]


@BOTH
@pytest.mark.parametrize(("labels", "reason"), [each[1:] for each in WRONG], ids=[each[0] for each in WRONG])
def test_a_wrong_series_is_rejected_and_the_others_are_kept(
    made: Made, decode: Decode, labels: Labels, reason: str
) -> None:
    request = made((UP, [(MS, 1)]), (labels, [(MS, 2), (MS + 1, 3)]), (UP, [(MS, 4)]))

    found = decode(request.SerializeToString())

    assert found.records["value"].to_pylist() == [1, 4]
    assert (found.rejected, found.samples) == (2, 2)
    assert reason in found.reason


@BOTH
def test_a_sample_at_a_time_that_no_record_can_have_is_rejected_alone(made: Made, decode: Decode) -> None:
    request = made((UP, [(MS, 1), (9_223_372_036_855, 2), (-(2**63), 3)]))

    found = decode(request.SerializeToString())

    assert (found.records["value"].to_pylist(), found.rejected) == ([1], 2)
    assert found.reason == 'up{job="a"}: The time 9223372036855 (ms) is not from 1677 to 2262.'


@pytest.mark.parametrize("wrong", ["label", "odd", "unit", "created", "start"])
def test_what_a_series_of_2_0_refers_to_must_be_there(wrong: str) -> None:
    request = v2((UP, [(MS, 1)]), (UP, [(MS, 2)]))
    series = request.timeseries[1]
    match wrong:
        case "label":
            series.labels_refs[1] = 1_000
        case "odd":
            series.labels_refs.append(0)
        case "unit":
            series.metadata.unit_ref = 2**32 - 1
        case "created":
            series.created_timestamp = 2**63 - 1
        case _:
            series.samples[0].start_timestamp = 2**63 - 1

    found = decoded_v2(request)

    assert (found.records["value"].to_pylist(), found.rejected) == ([1], 1)
    assert found.reason


def test_a_reason_shows_only_the_beginning_of_what_is_wrong() -> None:
    request = Request(symbols=["", "n" * 100_000])
    request.timeseries.add(labels_refs=[1] * 20_000).samples.add(timestamp=MS)

    assert len(decoded_v2(request).reason) < 600


def test_symbols_must_begin_with_an_empty_one() -> None:
    request = Request(symbols=["seconds", "__name__", "up"])
    request.timeseries.add(labels_refs=[1, 2]).samples.add(timestamp=MS)

    with pytest.raises(BadBody, match="first of the symbols"):
        decoded_v2(request)


def test_a_request_of_one_version_is_no_empty_one_of_the_other() -> None:
    with pytest.raises(BadBody, match=r"remote write 1\.0"):
        decode_remote_write_v2(v1((UP, [(MS, 1)])).SerializeToString())
    with pytest.raises(BadBody, match=r"remote write 2\.0"):
        decode_remote_write_v1(v2((UP, [(MS, 1)])).SerializeToString())


def test_a_field_of_a_later_version_is_no_error() -> None:
    later = v1((UP, [(MS, 1)])).SerializeToString() + b"\xc0\x3e\x01"  # field 1000, a number

    assert decode_remote_write_v1(later).records.num_rows == 1


@BOTH
@pytest.mark.parametrize("body", [b"xx" * 10, b"\xff", b"\x0a\x05\x0a", b"\x2a\x05\x0a", b"not protobuf"])
def test_what_is_no_protobuf_is_a_bad_body(made: Made, decode: Decode, body: bytes) -> None:
    del made
    with pytest.raises(BadBody):
        decode(body)


def test_text_that_is_not_utf_8_is_a_bad_body() -> None:
    body = v1(({"__name__": "up", "job": "??"}, [(MS, 1)])).SerializeToString().replace(b"??", b"\xff\xfe")

    with pytest.raises(BadBody):
        decode_remote_write_v1(body)


@given(st.binary(max_size=200))
def test_any_bytes_are_samples_or_a_bad_body(body: bytes) -> None:
    for decode in (decode_remote_write_v1, decode_remote_write_v2):
        try:
            found = decode(body)
        except BadBody:
            continue
        assert found.records.num_rows == found.samples + found.histograms


# --- how much it may become


@BOTH
def test_more_samples_than_a_request_may_have_are_too_many(made: Made, decode: Decode) -> None:
    request = made((UP, [(MS, 1)] * 11)).SerializeToString()

    assert decode(request, RecordLimits(records=11)).records.num_rows == 11
    with pytest.raises(BodyTooLarge, match="more than 10 samples"):
        decode(request, RecordLimits(records=10))


@BOTH
def test_long_labels_count_for_each_sample_that_has_them(made: Made, decode: Decode) -> None:
    request = made(({"__name__": "up", "long": "x" * 994}, [(MS, 1)] * 10)).SerializeToString()

    assert decode(request, RecordLimits(text_bytes=10_000)).records.num_rows == 10
    with pytest.raises(BodyTooLarge):
        decode(request, RecordLimits(text_bytes=9_999))


def test_a_symbol_that_many_series_refer_to_does_not_become_gigabytes() -> None:
    request = Request(symbols=["", "__name__", "up", "x", "y" * 1_000_000])
    for _ in range(10_000):
        request.timeseries.add(labels_refs=[1, 2, 3, 4]).samples.add(timestamp=MS)
    body = request.SerializeToString()
    assert len(body) < 1_300_000

    with pytest.raises(BodyTooLarge):
        decode_remote_write_v2(body)


def too_large(body: bytes, decode: Decode) -> bool:
    try:
        decode(body)
    except BodyTooLarge:
        return True
    return False


@pytest.mark.parametrize(
    ("name", "part"),
    [("samples", b"\x12\x00"), ("exemplars", b"\x1a\x00"), ("histograms", b"\x22\x00"), ("labels", b"\x0a\x00")],
)
def test_millions_of_empty_parts_are_counted_before_they_are_read(name: str, part: bytes) -> None:
    series = part * 500_001
    body = b"\x0a" + varint(len(series)) + series

    assert too_large(body, decode_remote_write_v1), name


def test_millions_of_empty_series_or_symbols_are_counted_before_they_are_read() -> None:
    assert too_large(b"\x0a\x00" * 500_001, decode_remote_write_v1)
    assert too_large(b"\x2a\x00" * 500_001, decode_remote_write_v2)
    assert too_large(b"\x22\x00" * 2_000_001, decode_remote_write_v2)


@BOTH
@pytest.mark.parametrize("field", [b"\x78\x00", b"\x7a\x00"])
def test_millions_of_unknown_fields_take_no_more_memory_than_their_bytes_a_few_times(
    made: Made, decode: Decode, field: bytes
) -> None:
    body = made((UP, [(MS, 1)])).SerializeToString() + field * 1_000_000
    tracemalloc.start()
    try:
        assert decode(body).records.num_rows == 1
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 10 * len(body)  # listed as Python has them, they took forty times


def test_very_many_labels_are_too_many() -> None:
    request = Request(symbols=["", "a"])
    request.timeseries.add(labels_refs=[1] * 20_001).samples.add(timestamp=MS)
    assert too_large(request.SerializeToString(), decode_remote_write_v2)


def test_a_histogram_of_a_million_bytes_is_too_large() -> None:
    request = WriteRequest()
    add_v1(request, UP).histograms.add().positive_deltas.extend([0] * (1 << 20))
    assert too_large(request.SerializeToString(), decode_remote_write_v1)


def varint(number: int) -> bytes:
    size = b""
    while number >= 0x80:
        size += bytes([number & 0x7F | 0x80])
        number >>= 7
    return size + bytes([number])
