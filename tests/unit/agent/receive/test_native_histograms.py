"""Native histograms of Prometheus as distributions: examples made by hand."""

import struct
from collections.abc import Callable
from math import nan
from typing import Any

import pytest

from lakehead.agent.receive.decoded import STALE_MARKER, BodyTooLarge
from lakehead.agent.receive.remote_write import decode_remote_write_v1, decode_remote_write_v2
from lakehead.agent.receive.remote_write_messages import Request, WriteRequest
from lakehead.agent.receive.sample_columns import RecordLimits
from tests.unit.agent.receive.write_requests import MS, NS, UP, add_v1, add_v2

V1, V2 = "1.0", "2.0"
VERSIONS = pytest.mark.parametrize("version", [V1, V2])
Change = Callable[[Any], None]


def request_with(version: str, **parts: Any) -> Any:
    """A request with one histogram."""
    if version == V1:
        request = WriteRequest()
        series = add_v1(request, UP)
    else:
        request = Request(symbols=[""])
        series = add_v2(request, UP)
    spans = {name: parts.pop(name, ()) for name in ("positive_spans", "negative_spans")}
    histogram = series.histograms.add(timestamp=MS, **parts)
    for name, given in spans.items():
        for offset, length in given:
            getattr(histogram, name).add(offset=offset, length=length)
    return request


def decoded(request: Any, limits: RecordLimits | None = None) -> Any:
    decode = decode_remote_write_v1 if isinstance(request, WriteRequest) else decode_remote_write_v2
    return decode(request.SerializeToString(), *([limits] if limits else []))


def row(request: Any) -> dict[str, Any]:
    found = decoded(request)
    assert found.reason == ""
    assert (found.samples, found.histograms, found.records.num_rows) == (0, 1, 1)
    [only] = found.records.drop_columns(["time", "start_time"]).to_pylist()
    return dict(only)


INTEGERS = {
    # Prometheus's buckets 0, 1, 2 and 5, 6 have 1, 3, 4 and 7, 8 observations, and -2, -1 have 1, 2.
    "count_int": 27,
    "sum": 18.4,
    "schema": 1,
    "zero_threshold": 0.001,
    "zero_count_int": 1,
    "positive_spans": [(0, 3), (2, 2)],
    "positive_deltas": [1, 2, 1, 3, 1],
    "negative_spans": [(-2, 2)],
    "negative_deltas": [1, 1],
}


@VERSIONS
def test_a_histogram_of_whole_counts_has_each_bucket_with_its_own_count(version: str) -> None:
    found = row(request_with(version, **INTEGERS))

    assert (found["metric"], found["labels"], found["value"]) == ("up", [("job", "a")], None)
    assert (found["type"], found["temporality"], found["monotonic"]) == ("exponential_histogram", "cumulative", None)
    told = found["distribution"]
    assert (told["count"], told["sum"], told["scale"]) == (27.0, 18.4, 1)
    assert (told["zero_count"], told["zero_threshold"]) == (1.0, 0.001)
    assert told["positive_indexes"] == [-1, 0, 1, 4, 5]  # one less than Prometheus's
    assert told["positive_counts"] == [1.0, 3.0, 4.0, 7.0, 8.0]
    assert told["negative_indexes"] == [-3, -2]
    assert told["negative_counts"] == [1.0, 2.0]
    assert {name for name, value in told.items() if value is None} == {
        *("min", "max", "bounds", "counts", "quantiles", "quantile_values", "reset_hint")
    }


@VERSIONS
def test_a_bucket_holds_the_values_that_prometheus_puts_into_it(version: str) -> None:
    # By Prometheus's rule bucket i has the upper bound base^i, inclusive; by docs/frames.md base^(i+1).
    schema, prometheus_index = 2, 7
    upper = 2 ** (prometheus_index * 2**-schema)

    told = row(
        request_with(
            version, count_int=1, sum=1.0, schema=schema, positive_spans=[(prometheus_index, 1)], positive_deltas=[1]
        )
    )["distribution"]

    base = 2 ** (2 ** -told["scale"])
    assert base ** (told["positive_indexes"][0] + 1) == pytest.approx(upper)


@VERSIONS
def test_a_histogram_of_fractions_has_its_counts_as_they_are(version: str) -> None:
    told = row(
        request_with(
            version,
            count_float=4.75,
            sum=2.5,
            schema=-4,
            zero_count_float=0.25,
            positive_spans=[(3, 1), (0, 0), (1, 1)],
            positive_counts=[1.5, 3.0],
        )
    )["distribution"]

    assert (told["count"], told["zero_count"], told["scale"]) == (4.75, 0.25, -4)
    assert (told["positive_indexes"], told["positive_counts"]) == ([2, 4], [1.5, 3.0])
    assert (told["negative_indexes"], told["negative_counts"]) == ([], [])


@VERSIONS
def test_a_histogram_with_custom_buckets_is_one_with_bounds(version: str) -> None:
    found = row(
        request_with(
            version,
            count_int=16,
            sum=20.0,
            schema=-53,
            custom_values=[0.1, 0.5, 1.0, 5.0],
            positive_spans=[(1, 2), (1, 1)],
            positive_deltas=[3, 2, 3],
        )
    )

    assert found["type"] == "histogram"
    told = found["distribution"]
    assert told["bounds"] == [0.1, 0.5, 1.0, 5.0]
    assert told["counts"] == [0.0, 3.0, 5.0, 0.0, 8.0]  # the last is beyond the last bound
    assert [told[name] for name in ("scale", "zero_count", "zero_threshold", "positive_indexes")] == [None] * 4


@VERSIONS
def test_an_empty_histogram_is_one(version: str) -> None:
    told = row(request_with(version, count_int=0, sum=0.0))["distribution"]

    assert (told["count"], told["sum"], told["scale"], told["positive_counts"]) == (0.0, 0.0, 0, [])


@VERSIONS
def test_custom_buckets_without_bounds_are_one_bucket(version: str) -> None:
    told = row(request_with(version, count_int=2, sum=0.0, schema=-53, positive_spans=[(0, 1)], positive_deltas=[2]))

    assert (told["distribution"]["bounds"], told["distribution"]["counts"]) == ([], [2.0])


@VERSIONS
@pytest.mark.parametrize("count", [{"count_int": 0}, {"count_float": 0.0}])
def test_a_stale_histogram_keeps_the_bits_of_its_sum(version: str, count: dict[str, Any]) -> None:
    told = row(request_with(version, sum=STALE_MARKER, **count))["distribution"]

    assert struct.pack("<d", told["sum"]) == struct.pack("<Q", 0x7FF0000000000002)


@VERSIONS
@pytest.mark.parametrize(("number", "hint"), [(0, None), (1, "yes"), (2, "no"), (3, "gauge"), (9, None)])
def test_a_reset_hint_is_kept_and_a_gauge_is_not_cumulative(version: str, number: int, hint: str | None) -> None:
    found = row(request_with(version, **INTEGERS, reset_hint=number))

    assert found["distribution"]["reset_hint"] == hint
    assert found["temporality"] == (None if hint == "gauge" else "cumulative")


def test_metadata_of_2_0_says_that_a_histogram_is_a_gauge() -> None:
    request = request_with(V2, **INTEGERS)
    request.timeseries[0].metadata.type = 4
    request.symbols.append("seconds")
    request.timeseries[0].metadata.unit_ref = len(request.symbols) - 1

    found = row(request)

    assert (found["temporality"], found["unit"]) == (None, "seconds")


@VERSIONS
def test_histograms_and_numbers_of_one_series_are_all_kept(version: str) -> None:
    request = request_with(version, **INTEGERS)
    request.timeseries[0].samples.add(timestamp=MS, value=1)
    request.timeseries[0].histograms.add(timestamp=MS + 1, count_int=1, sum=1, schema=-53).positive_spans.add(length=1)
    request.timeseries[0].histograms[1].positive_deltas.append(1)

    found = decoded(request)

    assert found.records["type"].to_pylist() == ["unknown", "exponential_histogram", "histogram"]
    assert (found.samples, found.histograms) == (1, 2)
    assert found.records["time"].cast("int64").to_pylist() == [NS, NS, NS + 1_000_000]


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("count too high", {"count_int": 28}, "28 observations, and 27"),
    ("count too low", {"count_int": 26}, "26 observations, and 27"),
    ("count too low for a NaN", {"count_int": 26, "sum": nan}, "26 observations, and 27"),
    ("negative bucket", {"count_int": 18, "positive_deltas": [1, 2, 1, 3, -8]}, "negative count"),
    ("span too long", {"positive_spans": [(0, 3), (2, 3)]}, "another number of buckets"),
    ("span too short", {"positive_spans": [(0, 3)]}, "another number of buckets"),
    ("no spans", {"negative_spans": []}, "another number of buckets"),
    ("a huge span", {"positive_spans": [(0, 2**32 - 1)]}, "another number of buckets"),
    ("spans that overlap", {"positive_spans": [(0, 3), (-1, 2)]}, "begins before"),
    ("a number too large", {"positive_spans": [(2**31 - 1, 3), (0, 2)]}, "too large"),
    ("a number too small", {"negative_spans": [(-(2**31), 2)]}, "too large"),
    ("an unknown schema", {"schema": 53}, "schema 53"),
    ("another unknown schema", {"schema": -54}, "schema -54"),
    ("whole counts and fractions", {"positive_counts": [1.0]}, "fractions"),
    ("fractions around zero", {"zero_count_float": 1.0}, "fractions"),
    ("custom buckets around zero", {"schema": -53}, "custom buckets"),
]
FRACTIONS = {"count_float": 1.0, "sum": 1.0, "positive_spans": [(0, 1)], "positive_counts": [1.0]}
CUSTOM = {
    "count_int": 1,
    "sum": 1.0,
    "schema": -53,
    "custom_values": [1.0],
    "positive_spans": [(0, 1)],
    "positive_deltas": [1],
}
WRONG_FRACTIONS: list[tuple[str, dict[str, Any], str]] = [
    ("negative", {"positive_counts": [-1.0]}, "negative count"),
    ("negative count", {"count_float": -1.0}, "negative count"),
    ("negative zero count", {"zero_count_float": -1.0}, "negative count"),
    ("deltas too", {"positive_deltas": [1]}, "fractions"),
]
WRONG_CUSTOM: list[tuple[str, dict[str, Any], str]] = [
    ("bounds that fall", {"custom_values": [1.0, 1.0]}, "do not ascend"),
    ("an infinite bound", {"custom_values": [float("inf")]}, "infinite"),
    ("an infinite bound below", {"custom_values": [float("-inf")]}, "infinite"),
    ("no number", {"custom_values": [nan]}, "no number"),
    ("no number at the end", {"custom_values": [1.0, nan]}, "no number"),
    ("a bucket without a bound", {"positive_spans": [(2, 1)]}, "without a bound"),
    ("a bucket before the first", {"positive_spans": [(-1, 1)]}, "without a bound"),
    ("negative buckets", {"negative_spans": [(0, 1)], "negative_deltas": [0]}, "custom buckets"),
]
ALL_WRONG = [
    *((f"whole: {name}", INTEGERS, change, reason) for name, change, reason in WRONG),
    *((f"fractions: {name}", FRACTIONS, change, reason) for name, change, reason in WRONG_FRACTIONS),
    *((f"custom: {name}", CUSTOM, change, reason) for name, change, reason in WRONG_CUSTOM),
]


@VERSIONS
@pytest.mark.parametrize("case", ALL_WRONG, ids=lambda case: str(case[0]))
def test_a_wrong_histogram_is_rejected_alone(
    version: str, case: tuple[str, dict[str, Any], dict[str, Any], str]
) -> None:
    _, right, change, reason = case
    assert decoded(request_with(version, **right)).rejected == 0
    request = request_with(version, **{**right, **change})
    request.timeseries[0].histograms.add(timestamp=MS, count_int=0)

    found = decoded(request)

    assert (found.rejected, found.histograms, found.records.num_rows) == (1, 1, 1)
    assert reason in found.reason
    assert found.reason.startswith('up{job="a"}: ')


@VERSIONS
def test_an_observation_that_is_no_number_is_in_no_bucket(version: str) -> None:
    told = row(request_with(version, **{**INTEGERS, "count_int": 30, "sum": nan}))["distribution"]

    assert told["count"] == 30.0


@VERSIONS
def test_buckets_count_against_the_limit(version: str) -> None:
    request = request_with(version, **{**INTEGERS, "positive_spans": [(0, 5)]})

    assert decoded(request, RecordLimits(text_bytes=6 + 7 * 32)).histograms == 1
    with pytest.raises(BodyTooLarge):
        decoded(request, RecordLimits(text_bytes=5 + 7 * 32))
