"""OTLP's metrics become samples: every type, their times and labels, and what is rejected."""

import math
import struct
import subprocess
import sys

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    Exemplar,
    ExponentialHistogramDataPoint,
    HistogramDataPoint,
    Metric,
    NumberDataPoint,
    Sum,
    Summary,
    SummaryDataPoint,
)

from lakehead.agent.receive.decoded import BadBody, BodyTooLarge, Decoded
from lakehead.agent.receive.otlp_labels import MetricLabels
from lakehead.agent.receive.otlp_metrics import decode_otlp_metrics
from lakehead.wire.record_schemas import SAMPLES_V2
from tests.unit.agent.receive.otlp_requests import (
    NOON,
    NOW,
    attribute,
    attributes,
    exponential,
    field,
    gauge,
    histogram,
    metrics_request,
)

POINT = NumberDataPoint(time_unix_nano=NOON, as_double=1.5)
Buckets = ExponentialHistogramDataPoint.Buckets


def decoded(request: ExportMetricsServiceRequest) -> Decoded:
    return decode_otlp_metrics(request.SerializeToString(), is_json=False, now_ns=NOW)


def samples(*metrics: Metric) -> list[dict[str, object]]:
    found = decoded(metrics_request(*metrics))
    assert (found.rejected, found.reason) == (0, "")
    return rows(found)


def rows(found: Decoded) -> list[dict[str, object]]:
    """The samples, without what is null in them."""
    return [
        {name: _without_nulls(value) for name, value in row.items() if value is not None}
        for row in found.records.set_column(0, "time", found.records.column("time").cast("int64")).to_pylist()
    ]


def _without_nulls(value: object) -> object:
    return {name: each for name, each in value.items() if each is not None} if isinstance(value, dict) else value


def labels(request: ExportMetricsServiceRequest, choice: MetricLabels | None = None) -> dict[str, str]:
    found = decode_otlp_metrics(request.SerializeToString(), is_json=False, now_ns=NOW, labels=choice or MetricLabels())
    [told] = found.records.column("labels").to_pylist()
    assert [key for key, _ in told] == sorted((key for key, _ in told), key=str.encode)
    return dict(told)


def distribution(metric: Metric) -> dict[str, object]:
    [row] = samples(metric)
    found = row["distribution"]
    assert isinstance(found, dict)
    return found


def bits(number: object) -> int:
    assert isinstance(number, float)
    return int(struct.unpack("<Q", struct.pack("<d", number))[0])


def test_a_gauge_has_its_time_value_labels_and_unit() -> None:
    point = NumberDataPoint(time_unix_nano=NOON, as_double=21.5, attributes=attributes(zone="b", host="a"))

    assert samples(gauge("room.temperature", point, unit="Cel")) == [
        {
            "time": NOON,
            "metric": "room.temperature",
            "labels": [("host", "a"), ("zone", "b")],
            "type": "gauge",
            "unit": "Cel",
            "value": 21.5,
        }
    ]


@pytest.mark.parametrize(("told", "temporality"), [(0, None), (1, "delta"), (2, "cumulative"), (3, None)])
@pytest.mark.parametrize("monotonic", [False, True])
def test_a_sum_has_its_temporality_start_and_whether_it_is_monotonic(
    told: int, temporality: str | None, *, monotonic: bool
) -> None:
    point = NumberDataPoint(start_time_unix_nano=NOON - 9, time_unix_nano=NOON, as_int=3)
    metric = Metric(name="orders", sum=Sum(data_points=[point], is_monotonic=monotonic, aggregation_temporality=told))  # type: ignore[arg-type]

    [row] = decoded(metrics_request(metric)).records.to_pylist()

    assert (row["type"], row["value"], row["monotonic"]) == ("sum", 3.0, monotonic)
    assert row["temporality"] == temporality
    assert row["start_time"].value == NOON - 9


@pytest.mark.parametrize(
    ("integer", "double"),
    [(0, 0.0), (-7, -7.0), (2**53, 2.0**53), (2**53 + 1, 2.0**53), (2**63 - 1, 2.0**63), (-(2**63), -(2.0**63))],
)
def test_an_integer_becomes_the_nearest_double(integer: int, double: float) -> None:
    usual = NumberDataPoint(time_unix_nano=NOON, as_int=integer)
    odd = NumberDataPoint(as_int=integer)

    assert [row["value"] for row in samples(gauge("a", usual, odd))] == [double, double]


@pytest.mark.parametrize("pattern", [0x7FF8000000000000, 0x7FF0000000000002, 0xFFF0000000000000, 0x8000000000000000, 1])
def test_every_bit_of_a_double_is_kept(pattern: int) -> None:
    number = struct.unpack("<d", struct.pack("<Q", pattern))[0]

    found = samples(
        gauge("a", NumberDataPoint(time_unix_nano=NOON, as_double=number), NumberDataPoint(as_double=number))
    )

    assert [bits(row["value"]) for row in found] == [pattern, pattern]


@pytest.mark.parametrize("start", [0, NOON])
@pytest.mark.parametrize("time", [0, NOON])
def test_a_point_without_a_recorded_value_is_the_stale_marker(time: int, start: int) -> None:
    without = NumberDataPoint(time_unix_nano=time, start_time_unix_nano=start, flags=1)
    given = NumberDataPoint(time_unix_nano=time, start_time_unix_nano=start, flags=3, as_double=4.0)

    found = samples(gauge("a", without, given, POINT))

    assert [bits(row["value"]) for row in found] == [0x7FF0000000000002, 0x7FF0000000000002, bits(1.5)]


def test_a_distribution_without_a_recorded_value_has_the_stale_marker_as_its_sum() -> None:
    metrics = [
        histogram("a", HistogramDataPoint(time_unix_nano=NOON, flags=1)),
        exponential("b", ExponentialHistogramDataPoint(time_unix_nano=NOON, flags=1, sum=2.0)),
        Metric(name="c", summary=Summary(data_points=[SummaryDataPoint(time_unix_nano=NOON, flags=1)])),
    ]

    for metric in metrics:
        assert bits(distribution(metric)["sum"]) == 0x7FF0000000000002


def test_a_histogram_has_its_buckets_and_what_is_told_of_sum_and_extremes() -> None:
    full = HistogramDataPoint(
        time_unix_nano=NOON, count=6, sum=12.5, min=0.0, max=9.0, explicit_bounds=[1, 5], bucket_counts=[1, 2, 3]
    )
    bare = HistogramDataPoint(time_unix_nano=NOON, count=4)
    one_bucket = HistogramDataPoint(time_unix_nano=NOON, count=4, bucket_counts=[4])

    [row] = samples(histogram("latency", full))
    assert (row["type"], row["temporality"]) == ("histogram", "cumulative")
    assert row["distribution"] == {
        "count": 6.0,
        "sum": 12.5,
        "min": 0.0,
        "max": 9.0,
        "bounds": [1.0, 5.0],
        "counts": [1.0, 2.0, 3.0],
    }
    assert distribution(histogram("latency", bare)) == {"count": 4.0, "bounds": [], "counts": []}
    assert distribution(histogram("latency", one_bucket)) == {"count": 4.0, "bounds": [], "counts": [4.0]}


def test_an_exponential_histogram_has_the_buckets_that_are_not_empty() -> None:
    point = ExponentialHistogramDataPoint(
        time_unix_nano=NOON,
        count=9,
        scale=-2,
        zero_count=3,
        zero_threshold=0.25,
        positive=Buckets(offset=-2, bucket_counts=[1, 0, 2]),
        negative=Buckets(offset=2**31 - 2, bucket_counts=[0, 3]),
    )

    assert distribution(exponential("latency", point)) == {
        "count": 9.0,
        "scale": -2,
        "zero_count": 3.0,
        "zero_threshold": 0.25,
        "positive_indexes": [-2, 0],
        "positive_counts": [1.0, 2.0],
        "negative_indexes": [2**31 - 1],
        "negative_counts": [3.0],
    }


def test_a_summary_has_its_quantiles() -> None:
    told = [SummaryDataPoint.ValueAtQuantile(quantile=quantile, value=value) for quantile, value in ((0.5, 2), (1, 7))]
    point = SummaryDataPoint(time_unix_nano=NOON, count=3, sum=9, quantile_values=told)

    assert distribution(Metric(name="rpc", summary=Summary(data_points=[point]))) == {
        "count": 3.0,
        "sum": 9.0,
        "quantiles": [0.5, 1.0],
        "quantile_values": [2.0, 7.0],
    }


def test_samples_of_all_types_stand_in_one_batch() -> None:
    metrics = [
        histogram("a", HistogramDataPoint(time_unix_nano=NOON, count=1)),
        gauge("b", POINT, POINT),
        exponential("c", ExponentialHistogramDataPoint(time_unix_nano=NOON, count=2)),
        Metric(name="d", summary=Summary(data_points=[SummaryDataPoint(time_unix_nano=NOON, count=3)])),
        histogram("e", HistogramDataPoint(time_unix_nano=NOON, count=4)),
    ]

    found = decoded(metrics_request(*metrics))

    assert found.records.schema.equals(SAMPLES_V2, check_metadata=True)
    assert [(row["metric"], row["type"]) for row in rows(found)] == [
        ("b", "gauge"),
        ("b", "gauge"),
        ("a", "histogram"),
        ("c", "exponential_histogram"),
        ("d", "summary"),
        ("e", "histogram"),
    ]
    assert [row["distribution"]["count"] for row in rows(found)[2:]] == [1.0, 2.0, 3.0, 4.0]  # type: ignore[index]


def test_a_point_without_a_time_has_the_time_at_which_it_came() -> None:
    found = decoded(metrics_request(gauge("a", POINT, NumberDataPoint(as_int=1))))

    assert [row["time"] for row in rows(found)] == [NOON, NOW]
    assert not found.have_own_times
    assert decoded(metrics_request(gauge("a", POINT))).have_own_times


def test_a_rejected_point_without_a_time_does_not_count_for_the_times() -> None:
    without_value = NumberDataPoint()

    found = decoded(metrics_request(gauge("a", POINT, without_value)))

    assert (found.records.num_rows, found.rejected, found.have_own_times) == (1, 1, True)


@pytest.mark.parametrize(
    ("again", "time", "value"),
    [
        (NumberDataPoint(start_time_unix_nano=5), NOON, 1.5),
        (NumberDataPoint(time_unix_nano=5), 5, 1.5),
        (NumberDataPoint(as_double=2.5), NOON, 2.5),
        (NumberDataPoint(as_int=7), NOON, 7.0),
        (NumberDataPoint(attributes=attributes(a="1"), as_int=7), NOON, 7.0),
    ],
)
def test_what_a_point_says_last_counts(again: NumberDataPoint, time: int, value: float) -> None:
    """Encoders may write a field twice. The second is after those that all points begin with."""
    point = POINT.SerializeToString() + again.SerializeToString()
    body = field(1, field(2, field(2, field(1, b"a") + field(5, field(1, point)))))

    [row] = rows(decode_otlp_metrics(body, is_json=False, now_ns=NOW))

    assert (row["time"], row["value"]) == (time, value)
    assert ("start_time" in row) is bool(again.start_time_unix_nano)


@pytest.mark.parametrize("request_", [ExportMetricsServiceRequest(), metrics_request(), metrics_request(gauge("a"))])
def test_a_request_without_points_is_fine(request_: ExportMetricsServiceRequest) -> None:
    found = decoded(request_)

    assert (found.records.num_rows, found.rejected, found.have_own_times) == (0, 0, True)
    assert found.records.schema.equals(SAMPLES_V2, check_metadata=True)


def test_exemplars_are_not_kept() -> None:
    point = NumberDataPoint(time_unix_nano=NOON, as_int=1, exemplars=[Exemplar(as_int=9)], attributes=attributes(a="1"))

    [row] = samples(gauge("a", point))

    assert (row["value"], row["labels"]) == (1.0, [("a", "1")])


TWICE = [attribute("a", "1"), attribute("b", "2"), attribute("a", "1")]


@pytest.mark.parametrize(
    ("metric", "reason"),
    [
        (gauge("a", NumberDataPoint(time_unix_nano=NOON)), "it has no value"),
        (gauge("a", NumberDataPoint(time_unix_nano=NOON, as_int=1, attributes=TWICE)), "the attribute 'a' twice"),
        (gauge("a", NumberDataPoint(as_int=1, attributes=TWICE)), "the attribute 'a' twice"),
        (gauge("a", NumberDataPoint(time_unix_nano=2**63, as_int=1)), "its time is after the year 2262"),
        (gauge("a", NumberDataPoint(time_unix_nano=1, start_time_unix_nano=2**64 - 1, as_int=1)), "its start time is"),
        (histogram("a", HistogramDataPoint(time_unix_nano=NOON, attributes=TWICE)), "the attribute 'a' twice"),
        (histogram("a", HistogramDataPoint(time_unix_nano=2**63)), "its time is after"),
        (
            histogram("a", HistogramDataPoint(explicit_bounds=[1, 2], bucket_counts=[1, 2])),
            "2 bounds and 2 bucket counts",
        ),
        (histogram("a", HistogramDataPoint(explicit_bounds=[1])), "1 bounds and 0 bucket counts"),
        (histogram("a", HistogramDataPoint(bucket_counts=[1, 2])), "0 bounds and 2 bucket counts"),
        (histogram("a", HistogramDataPoint(explicit_bounds=[2, 1], bucket_counts=[1, 2, 3])), "do not ascend"),
        (histogram("a", HistogramDataPoint(explicit_bounds=[1, 1], bucket_counts=[1, 2, 3])), "do not ascend"),
        (histogram("a", HistogramDataPoint(explicit_bounds=[math.nan], bucket_counts=[1, 2])), "not a number"),
        (histogram("a", HistogramDataPoint(explicit_bounds=[math.inf], bucket_counts=[1, 2])), "infinite"),
        (
            exponential("a", ExponentialHistogramDataPoint(positive=Buckets(offset=2**31 - 1, bucket_counts=[1, 1]))),
            "number of a bucket",
        ),
        (
            exponential("a", ExponentialHistogramDataPoint(negative=Buckets(offset=2**31 - 1, bucket_counts=[0, 0]))),
            "number of a bucket",
        ),
        (gauge("", POINT), "the metric has no name"),
        (Metric(name="a"), "no data of a type that is known"),
    ],
)
def test_a_bad_point_is_rejected_and_the_others_are_kept(metric: Metric, reason: str) -> None:
    good = histogram("good", HistogramDataPoint(time_unix_nano=NOON, count=1))

    found = decoded(metrics_request(gauge("good", POINT), metric, gauge("good", POINT), good))

    assert found.rejected == 1
    assert reason in found.reason
    assert found.reason.endswith(".")
    assert ("'a'" in found.reason) is (metric.name == "a")
    assert [row["metric"] for row in rows(found)] == ["good", "good", "good"]
    assert [row["type"] for row in rows(found)] == ["gauge", "gauge", "histogram"]


@pytest.mark.parametrize("start", [0, NOON])
def test_a_point_without_a_value_does_not_take_that_of_the_next(start: int) -> None:
    """Points are read many at a time from their bytes, one after the other."""
    without = NumberDataPoint(time_unix_nano=NOON, start_time_unix_nano=start)

    found = decoded(metrics_request(gauge("a", without, NumberDataPoint(as_double=7.0), without)))

    assert (found.records.num_rows, found.rejected) == (1, 2)
    assert "it has no value" in found.reason


def test_each_rejected_point_is_counted_and_one_reason_is_told() -> None:
    bad = NumberDataPoint(time_unix_nano=NOON)

    found = decoded(metrics_request(gauge("first", POINT, bad, bad), gauge("second", bad), gauge("", POINT, POINT)))

    assert (found.records.num_rows, found.rejected) == (1, 5)
    assert found.reason.count("rejected") == 1


def test_attributes_of_resource_and_scope_are_labels_and_those_of_the_point_win() -> None:
    request = metrics_request(
        gauge("a", NumberDataPoint(time_unix_nano=NOON, as_int=1, attributes=attributes(host="point", code="200"))),
        resource=[attribute("service.name", "shop"), attribute("host", "resource"), attribute("cpus", 8)],
        scope=InstrumentationScope(name="shop.http", version="1.2", attributes=attributes(team="x", name="lost")),
    )

    assert labels(request) == {
        "service.name": "shop",
        "cpus": "8",
        "host": "point",
        "code": "200",
        "otel_scope_name": "shop.http",
        "otel_scope_version": "1.2",
        "otel_scope_team": "x",
    }


def test_which_attributes_of_the_resource_are_labels_can_be_chosen() -> None:
    request = metrics_request(
        gauge("a", POINT),
        resource=[attribute("service.name", "shop"), attribute("process.pid", 7)],
        scope=InstrumentationScope(name="shop.http", attributes=attributes(team="x")),
    )

    chosen = MetricLabels(resource_attributes=["service.name", "service.instance.id"], scope=False)

    assert labels(request, chosen) == {"service.name": "shop"}
    assert labels(request, MetricLabels(resource_attributes=[])) == {
        "otel_scope_name": "shop.http",
        "otel_scope_team": "x",
    }


def test_labels_ascend_by_their_utf_8_bytes() -> None:
    named = [attribute(key, "") for key in ("\U0001f600", "\uffff", "b", "B", "é", "a.b", "a_b", "a", "")]

    found = labels(
        metrics_request(
            gauge("a", NumberDataPoint(time_unix_nano=NOON, as_int=1, attributes=named[::2])), resource=named[1::2]
        )
    )

    assert [*found] == ["", "B", "a", "a.b", "a_b", "b", "é", "\uffff", "\U0001f600"]


@pytest.mark.parametrize("whose", ["resource", "scope"])
def test_points_of_a_resource_or_scope_with_a_key_twice_are_rejected(whose: str) -> None:
    if whose == "resource":
        request = metrics_request(gauge("a", POINT, POINT), resource=TWICE)
    else:
        request = metrics_request(gauge("a", POINT, POINT), scope=InstrumentationScope(attributes=TWICE))

    found = decoded(request)

    assert (found.records.num_rows, found.rejected) == (0, 2)
    assert f"its {whose} has the attribute 'a' twice" in found.reason


def test_what_is_known_of_one_resource_is_not_told_of_another() -> None:
    """The same points, again and again, of several resources and scopes."""
    point = NumberDataPoint(time_unix_nano=NOON, as_int=1, attributes=attributes(code="200"))
    request = ExportMetricsServiceRequest()
    for resource in ("x", "y", "x"):
        for scope in ("s", "t"):
            one = metrics_request(
                gauge("a", point, point),
                histogram("b", HistogramDataPoint(time_unix_nano=NOON, attributes=point.attributes)),
                resource=attributes(host=resource),
                scope=InstrumentationScope(name=scope),
            )
            request.MergeFrom(one)

    for _ in range(2):
        found = [
            (row["metric"], *dict(row["labels"]).values())  # type: ignore[call-overload]
            for row in rows(decoded(request))
        ]

        pairs = [(resource, scope) for resource in ("x", "y", "x") for scope in ("s", "t")]
        assert found == [("a", "200", *pair) for pair in pairs for _ in range(2)] + [
            ("b", "200", *pair) for pair in pairs
        ]


def test_a_body_that_is_not_of_metrics_is_refused() -> None:
    good = metrics_request(gauge("a", NumberDataPoint(as_int=1, attributes=attributes(key="text")))).SerializeToString()

    for bad in (b"\xff", good[:-1], good.replace(b"text", b"te\xff\xff"), good.replace(b"key", b"k\xc3y")):
        with pytest.raises(BadBody, match="cannot be decoded as protobuf"):
            decode_otlp_metrics(bad, is_json=False, now_ns=NOW)


def test_values_nested_too_deep_are_refused() -> None:
    def body(depth: int) -> bytes:
        value = field(1, b"deep")
        for _ in range(depth):
            value = field(5, field(1, value))  # the list of a value, with one value
        point = POINT.SerializeToString() + field(7, field(1, b"key") + field(2, value))
        return field(1, field(2, field(2, field(1, b"a") + field(5, field(1, point)))))

    [row] = rows(decode_otlp_metrics(body(40), is_json=False, now_ns=NOW))
    assert row["labels"] == [("key", "[" * 40 + '"deep"' + "]" * 40)]
    for depth in (60, 200):
        with pytest.raises(BadBody, match="nested too deep"):
            decode_otlp_metrics(body(depth), is_json=False, now_ns=NOW)


@pytest.mark.parametrize(
    "request_",
    [
        metrics_request(gauge("a", *[POINT] * 100), resource=[attribute("long", "x" * 1_000)]),
        metrics_request(gauge("a", *[POINT] * 100), scope=InstrumentationScope(name="x" * 1_000)),
        metrics_request(gauge("x" * 1_000, *[POINT] * 100)),
        metrics_request(gauge("a", *[POINT] * 100, unit="x" * 1_000)),
        metrics_request(
            histogram("a", *[HistogramDataPoint(count=1)] * 100), resource=[attribute("long", "x" * 1_000)]
        ),
        metrics_request(
            *[histogram("a", HistogramDataPoint(bucket_counts=range(20), explicit_bounds=range(19)))] * 100
        ),
        metrics_request(
            *[exponential("a", ExponentialHistogramDataPoint(positive=Buckets(bucket_counts=range(40))))] * 100
        ),
    ],
)
def test_what_the_samples_of_a_body_take_is_bounded(request_: ExportMetricsServiceRequest) -> None:
    body = request_.SerializeToString()

    with pytest.raises(BodyTooLarge, match=r"more than 100,000 bytes\. Send fewer"):
        decode_otlp_metrics(body, is_json=False, now_ns=NOW, max_bytes=100_000)

    assert decode_otlp_metrics(body, is_json=False, now_ns=NOW, max_bytes=200_000).records.num_rows == 100


def test_two_kilobytes_cannot_ask_for_gigabytes() -> None:
    resource: list[KeyValue] = [attribute("long", "x" * 60_000)]
    request = metrics_request(gauge("a", *[NumberDataPoint(as_int=1)] * 3_000), resource=resource)

    with pytest.raises(BodyTooLarge):
        decoded(request)


@pytest.mark.slow
def test_no_receiver_of_otlp_imports_pandas() -> None:
    """It takes a second and 40 MB. In a process of its own, because others of the tests import it."""
    request = metrics_request(
        gauge("a", POINT, NumberDataPoint()), histogram("b", HistogramDataPoint(count=1)), resource=attributes(a="b")
    )
    code = (
        "import sys\n"
        "from lakehead.agent.receive.otlp_metrics import decode_otlp_metrics\n"
        "from lakehead.agent.receive.otlp_logs import decode_otlp_logs\n"
        f"found = decode_otlp_metrics({request.SerializeToString()!r}, is_json=False, now_ns=1)\n"
        "assert (found.records.num_rows, found.rejected) == (2, 1)\n"
        'decode_otlp_logs(b\'{"resourceLogs": [{"scopeLogs": [{"logRecords": [{}]}]}]}\', is_json=True, now_ns=1)\n'
        "assert 'pandas' not in sys.modules\n"
    )

    subprocess.run([sys.executable, "-c", code], check=True)
