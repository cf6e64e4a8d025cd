"""Requests of OTLP for tests: one of every form, and strategies that make any."""

from collections.abc import Sequence

from google.protobuf.message import Message
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import (
    AnyValue,
    ArrayValue,
    InstrumentationScope,
    KeyValue,
    KeyValueList,
)
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord, ResourceLogs, ScopeLogs
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    AGGREGATION_TEMPORALITY_CUMULATIVE,
    AGGREGATION_TEMPORALITY_DELTA,
    Exemplar,
    ExponentialHistogram,
    ExponentialHistogramDataPoint,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
    Summary,
    SummaryDataPoint,
)
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

NOON = 1_760_000_000_000_000_000
NOW = NOON + 5


def attribute(key: str, value: str | float | bytes) -> KeyValue:
    match value:
        case str():
            return KeyValue(key=key, value=AnyValue(string_value=value))
        case bool():
            return KeyValue(key=key, value=AnyValue(bool_value=value))
        case int():
            return KeyValue(key=key, value=AnyValue(int_value=value))
        case float():
            return KeyValue(key=key, value=AnyValue(double_value=value))
        case bytes():
            return KeyValue(key=key, value=AnyValue(bytes_value=value))


def attributes(**values: str | float | bytes) -> list[KeyValue]:
    return [attribute(key, value) for key, value in values.items()]


def metrics_request(
    *metrics: Metric, resource: Sequence[KeyValue] = (), scope: InstrumentationScope | None = None
) -> ExportMetricsServiceRequest:
    of_scope = ScopeMetrics(scope=scope, metrics=metrics)
    return ExportMetricsServiceRequest(
        resource_metrics=[ResourceMetrics(resource=Resource(attributes=resource), scope_metrics=[of_scope])]
    )


def logs_request(
    *records: LogRecord, resource: Sequence[KeyValue] = (), scope: InstrumentationScope | None = None
) -> ExportLogsServiceRequest:
    of_scope = ScopeLogs(scope=scope, log_records=records)
    return ExportLogsServiceRequest(
        resource_logs=[ResourceLogs(resource=Resource(attributes=resource), scope_logs=[of_scope])]
    )


def gauge(name: str, *points: NumberDataPoint, unit: str = "") -> Metric:
    return Metric(name=name, unit=unit, gauge=Gauge(data_points=points))


def histogram(name: str, *points: HistogramDataPoint) -> Metric:
    return Metric(
        name=name, histogram=Histogram(data_points=points, aggregation_temporality=AGGREGATION_TEMPORALITY_CUMULATIVE)
    )


def exponential(name: str, *points: ExponentialHistogramDataPoint) -> Metric:
    return Metric(
        name=name,
        exponential_histogram=ExponentialHistogram(
            data_points=points, aggregation_temporality=AGGREGATION_TEMPORALITY_DELTA
        ),
    )


def field(number: int, content: bytes) -> bytes:
    """A field of text, bytes or a message, as it is encoded."""
    size = len(content)
    assert size < 2**14
    return bytes([number << 3 | 2, *([size] if size < 128 else [size & 127 | 128, size >> 7])]) + content


keys = st.sampled_from(["a", "b", "host", "service.name", "otel_scope_name", "", "é", "\U0001f600", "\uffff"])
texts = st.sampled_from(["", "x", "y", "NaN", "[1]", "ü\0\x7f", "\U0001f600" * 40]) | st.text(max_size=5)
doubles = st.floats() | st.sampled_from([0.0, -0.0, 1e300, 1.5])
int64s = st.integers(-(2**63), 2**63 - 1) | st.sampled_from([0, 1, -1, 2**53, 2**53 + 1, 2**63 - 1])
uint64s = st.integers(0, 2**64 - 1) | st.integers(0, 9)
times = st.sampled_from([0, 1, NOON, NOON + 1, 2**63 - 1, 2**63, 2**64 - 1]) | st.just(NOON)
small_ints = st.integers(0, 3)
values: st.SearchStrategy[AnyValue] = st.recursive(
    st.builds(AnyValue)
    | st.builds(AnyValue, string_value=texts)
    | st.builds(AnyValue, bool_value=st.booleans())
    | st.builds(AnyValue, int_value=int64s)
    | st.builds(AnyValue, double_value=doubles)
    | st.builds(AnyValue, bytes_value=st.binary(max_size=4))
    | st.builds(AnyValue, string_value_strindex=small_ints),
    lambda inner: (
        st.builds(AnyValue, array_value=st.builds(ArrayValue, values=st.lists(inner, max_size=3)))
        | st.builds(
            AnyValue,
            kvlist_value=st.builds(
                KeyValueList, values=st.lists(st.builds(KeyValue, key=keys, value=inner), max_size=3)
            ),
        )
    ),
    max_leaves=4,
)
pairs = st.builds(KeyValue, key=keys, value=values | st.builds(AnyValue, string_value=texts))
unique_pairs = st.lists(pairs, max_size=4, unique_by=lambda pair: str(pair.key))
any_pairs = unique_pairs | unique_pairs | st.lists(pairs, max_size=4)
common = {"attributes": any_pairs, "start_time_unix_nano": times, "time_unix_nano": times, "flags": small_ints}
exemplars = st.lists(st.builds(Exemplar, as_double=doubles, time_unix_nano=times), max_size=1)
optional_doubles = st.none() | doubles

number_points = (
    st.builds(NumberDataPoint, **common)
    | st.builds(NumberDataPoint, as_double=doubles, exemplars=exemplars, **common)
    | st.builds(NumberDataPoint, as_int=int64s, **common)
    | st.builds(NumberDataPoint, as_double=doubles, attributes=unique_pairs, time_unix_nano=st.just(NOON))
)
sizes = st.integers(0, 4)
histogram_points = st.builds(
    HistogramDataPoint,
    count=uint64s,
    sum=optional_doubles,
    min=optional_doubles,
    max=optional_doubles,
    explicit_bounds=st.lists(st.floats(-9, 9), max_size=3, unique=True).map(sorted) | st.lists(doubles, max_size=3),
    bucket_counts=st.lists(uint64s, max_size=4),
    **common,
) | st.integers(1, 3).flatmap(
    lambda size: st.builds(
        HistogramDataPoint,
        count=uint64s,
        sum=optional_doubles,
        explicit_bounds=st.lists(st.floats(-9, 9), min_size=size, max_size=size, unique=True).map(sorted),
        bucket_counts=st.lists(uint64s, min_size=size + 1, max_size=size + 1),
        **common,
    )
)
buckets = st.builds(
    ExponentialHistogramDataPoint.Buckets,
    offset=st.integers(-(2**31), 2**31 - 1) | st.integers(-3, 3) | st.just(2**31 - 3),
    bucket_counts=st.lists(uint64s, max_size=4),
)
exponential_points = st.builds(
    ExponentialHistogramDataPoint,
    count=uint64s,
    sum=optional_doubles,
    min=optional_doubles,
    max=optional_doubles,
    scale=st.integers(-(2**31), 2**31 - 1),
    zero_count=uint64s,
    zero_threshold=doubles,
    positive=st.none() | buckets,
    negative=st.none() | buckets,
    **common,
)
summary_points = st.builds(
    SummaryDataPoint,
    count=uint64s,
    sum=doubles,
    quantile_values=st.lists(st.builds(SummaryDataPoint.ValueAtQuantile, quantile=doubles, value=doubles), max_size=3),
    **common,
)
temporalities = st.integers(0, 3)


def _metrics(**data: st.SearchStrategy[Message]) -> st.SearchStrategy[Metric]:
    return st.builds(
        Metric,
        name=st.sampled_from(["", "up", "http.requests", "é", "x"]),
        unit=st.sampled_from(["", "1", "By"]),
        description=texts,
        metadata=any_pairs,
        **data,
    )


def _points(of: st.SearchStrategy[Message]) -> st.SearchStrategy[list[Message]]:
    return st.lists(of, max_size=3)


metrics = st.one_of(
    _metrics(),
    _metrics(gauge=st.builds(Gauge, data_points=_points(number_points))),
    _metrics(
        sum=st.builds(
            Sum,
            data_points=_points(number_points),
            aggregation_temporality=temporalities,
            is_monotonic=st.booleans(),
        )
    ),
    _metrics(
        histogram=st.builds(Histogram, data_points=_points(histogram_points), aggregation_temporality=temporalities)
    ),
    _metrics(
        exponential_histogram=st.builds(
            ExponentialHistogram, data_points=_points(exponential_points), aggregation_temporality=temporalities
        )
    ),
    _metrics(summary=st.builds(Summary, data_points=_points(summary_points))),
)
resources = st.none() | st.builds(Resource, attributes=unique_pairs) | st.builds(Resource, attributes=any_pairs)
scopes = st.none() | st.builds(
    InstrumentationScope, name=texts, version=st.sampled_from(["", "1"]), attributes=any_pairs
)
metrics_requests = st.builds(
    ExportMetricsServiceRequest,
    resource_metrics=st.lists(
        st.builds(
            ResourceMetrics,
            resource=resources,
            scope_metrics=st.lists(
                st.builds(ScopeMetrics, scope=scopes, metrics=st.lists(metrics, max_size=3)), max_size=2
            ),
        ),
        max_size=2,
    ),
)
log_records = st.builds(
    LogRecord,
    time_unix_nano=times,
    observed_time_unix_nano=times,
    severity_number=st.integers(-1, 26),
    severity_text=texts,
    body=st.none() | values,
    attributes=any_pairs,
    flags=st.integers(0, 2**32 - 1),
    trace_id=st.binary(max_size=17) | st.binary(min_size=16, max_size=16) | st.just(bytes(16)),
    span_id=st.binary(max_size=9) | st.binary(min_size=8, max_size=8) | st.just(bytes(8)),
    event_name=texts,
)
logs_requests = st.builds(
    ExportLogsServiceRequest,
    resource_logs=st.lists(
        st.builds(
            ResourceLogs,
            resource=resources,
            scope_logs=st.lists(
                st.builds(ScopeLogs, scope=scopes, log_records=st.lists(log_records, max_size=3)), max_size=2
            ),
        ),
        max_size=2,
    ),
)
