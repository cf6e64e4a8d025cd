"""What OTLP's requests are as records, the slow and obvious way: a dictionary for each."""

import base64
import json
import math
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    ExponentialHistogramDataPoint,
    HistogramDataPoint,
    Metric,
    NumberDataPoint,
    SummaryDataPoint,
)

from lakehead.agent.plain_records import record_batch
from lakehead.wire.record_schemas import FrameKind
from tests.unit.wire.frames import STALE

Point = NumberDataPoint | HistogramDataPoint | ExponentialHistogramDataPoint | SummaryDataPoint


class Rejected(Exception):
    pass


@dataclass
class Expected:
    records: pa.RecordBatch
    rejected: int
    have_own_times: bool


@dataclass
class Rows:
    numbers: list[dict[str, object]] = field(default_factory=list)
    distributions: list[dict[str, object]] = field(default_factory=list)
    rejected: int = 0
    have_own_times: bool = True


def expected_samples(request: ExportMetricsServiceRequest, now_ns: int) -> Expected:
    rows = Rows()
    for of_resource in request.resource_metrics:
        for of_scope in of_resource.scope_metrics:
            for metric in of_scope.metrics:
                _add_metric(rows, metric, of_resource.resource.attributes, of_scope.scope, now_ns)
    records = record_batch(FrameKind.SAMPLES, rows.numbers + rows.distributions)
    return Expected(records, rows.rejected, rows.have_own_times)


def _add_metric(
    rows: Rows, metric: Metric, resource: Sequence[KeyValue], scope: InstrumentationScope, now_ns: int
) -> None:
    kind = metric.WhichOneof("data")
    if kind is None:
        rows.rejected += 1
        return
    data = getattr(metric, kind)
    for point in data.data_points:
        try:
            row = _sample(metric, kind, point, resource, scope, now_ns)
        except Rejected:
            rows.rejected += 1
        else:
            (rows.distributions if "distribution" in row else rows.numbers).append(row)
            rows.have_own_times &= point.time_unix_nano > 0


def _sample(
    metric: Metric, kind: str, point: Point, resource: Sequence[KeyValue], scope: InstrumentationScope, now_ns: int
) -> dict[str, object]:
    data = getattr(metric, kind)
    if not metric.name or max(point.time_unix_nano, point.start_time_unix_nano) >= 2**63:
        raise Rejected
    row: dict[str, object] = {
        "time": point.time_unix_nano or now_ns,
        "start_time": point.start_time_unix_nano or None,
        "metric": metric.name,
        "labels": _labels(resource, scope, point.attributes),
        "type": kind,
        "unit": metric.unit or None,
    }
    if kind not in ("gauge", "summary"):
        row["temporality"] = {1: "delta", 2: "cumulative"}.get(data.aggregation_temporality)
    if kind == "sum":
        row["monotonic"] = data.is_monotonic
    if isinstance(point, NumberDataPoint):
        row["value"] = _value(point)
    else:
        row["distribution"] = _distribution(point)
    return row


def _labels(resource: Sequence[KeyValue], scope: InstrumentationScope, own: Sequence[KeyValue]) -> dict[str, str]:
    of_scope = {f"otel_scope_{key}": text for key, text in _unique(scope.attributes).items()}
    if scope.name:
        of_scope["otel_scope_name"] = scope.name
    if scope.version:
        of_scope["otel_scope_version"] = scope.version
    return {**_unique(resource), **of_scope, **_unique(own)}


def _unique(attributes: Sequence[KeyValue]) -> dict[str, str]:
    if len({each.key for each in attributes}) < len(attributes):
        raise Rejected
    return texts(attributes)


def texts(attributes: Iterable[KeyValue]) -> dict[str, str]:
    return {each.key: text(each.value) or "" for each in attributes}


def _value(point: NumberDataPoint) -> float:
    if point.flags & 1:
        return float(STALE)
    match point.WhichOneof("value"):
        case "as_double":
            return float(point.as_double)
        case "as_int":
            return float(point.as_int)
        case _:
            raise Rejected


def _distribution(point: HistogramDataPoint | ExponentialHistogramDataPoint | SummaryDataPoint) -> dict[str, object]:
    found: dict[str, object] = {"count": float(point.count)}
    if isinstance(point, SummaryDataPoint) or point.HasField("sum"):
        found["sum"] = point.sum
    if point.flags & 1:
        found["sum"] = STALE
    if isinstance(point, SummaryDataPoint):
        found["quantiles"] = [each.quantile for each in point.quantile_values]
        found["quantile_values"] = [each.value for each in point.quantile_values]
        return found
    if point.HasField("min"):
        found["min"] = point.min
    if point.HasField("max"):
        found["max"] = point.max
    if isinstance(point, HistogramDataPoint):
        bounds, counts = list(point.explicit_bounds), list(point.bucket_counts)
        if (counts or bounds) and len(counts) != len(bounds) + 1:
            raise Rejected
        if any(not math.isfinite(bound) for bound in bounds) or bounds != sorted({*bounds}):
            raise Rejected
        return found | {"bounds": bounds, "counts": [float(count) for count in counts]}
    found |= {"scale": point.scale, "zero_count": float(point.zero_count), "zero_threshold": point.zero_threshold}
    for sign, buckets in (("positive", point.positive), ("negative", point.negative)):
        if buckets.bucket_counts and buckets.offset + len(buckets.bucket_counts) > 2**31:
            raise Rejected
        told = {buckets.offset + place: count for place, count in enumerate(buckets.bucket_counts) if count}
        found[f"{sign}_indexes"], found[f"{sign}_counts"] = [*told], [float(count) for count in told.values()]
    return found


def expected_logs(request: ExportLogsServiceRequest, now_ns: int) -> Expected:
    rows, rejected, have_own_times = [], 0, True
    for of_resource in request.resource_logs:
        for of_scope in of_resource.scope_logs:
            for record in of_scope.log_records:
                if max(record.time_unix_nano, record.observed_time_unix_nano) >= 2**63:
                    rejected += 1
                    continue
                have_own_times &= bool(record.time_unix_nano or record.observed_time_unix_nano)
                rows.append(_log(record, now_ns) | _around(of_resource.resource.attributes, of_scope.scope))
    return Expected(record_batch(FrameKind.LOGS, rows), rejected, have_own_times)


def _around(resource: Sequence[KeyValue], scope: InstrumentationScope) -> dict[str, object]:
    return {
        "resource_attributes": texts(resource),
        "scope_name": scope.name or None,
        "scope_version": scope.version or None,
        "scope_attributes": texts(scope.attributes),
    }


def _log(record: LogRecord, now_ns: int) -> dict[str, object]:
    return {
        "time": record.time_unix_nano or record.observed_time_unix_nano or now_ns,
        "observed_time": record.observed_time_unix_nano or None,
        "severity_number": record.severity_number if 1 <= record.severity_number <= 24 else None,
        "severity_text": record.severity_text or None,
        "event_name": record.event_name or None,
        "body": text(record.body),
        "attributes": texts(record.attributes),
        "trace_id": record.trace_id.hex() if len(record.trace_id) == 16 and record.trace_id.strip(b"\0") else None,
        "span_id": record.span_id.hex() if len(record.span_id) == 8 and record.span_id.strip(b"\0") else None,
        "flags": record.flags,
    }


def text(value: AnyValue) -> str | None:
    """A value as OpenTelemetry recommends it for systems that have texts alone."""
    match value.WhichOneof("value"):
        case None | "string_value_strindex":
            return None
        case "string_value":
            return value.string_value
        case "bytes_value":
            return base64.b64encode(value.bytes_value).decode()
        case "double_value" if not math.isfinite(value.double_value):
            return _special(value.double_value)
        case _:
            return json.dumps(_plain(value), ensure_ascii=False)


def _plain(value: AnyValue) -> object:
    match value.WhichOneof("value"):
        case "array_value":
            return [_plain(each) for each in value.array_value.values]
        case "kvlist_value":
            return {each.key: _plain(each.value) for each in value.kvlist_value.values}
        case "double_value":
            return value.double_value if math.isfinite(value.double_value) else _special(value.double_value)
        case "int_value":
            return value.int_value
        case "bool_value":
            return value.bool_value
        case _:
            return text(value)


def _special(number: float) -> str:
    return str(number).replace("inf", "Infinity").replace("nan", "NaN")


def comparable(records: pa.RecordBatch) -> list[dict[str, object]]:
    """Rows in which equal numbers have equal bits, and text that is JSON is compared as what it says."""
    integers = pa.RecordBatch.from_arrays(
        [column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column for column in records.columns],
        names=records.schema.names,
    )
    return [{name: _exact(value) for name, value in row.items()} for row in integers.to_pylist()]


def _exact(value: object) -> object:
    match value:
        case float():
            return struct.pack(">d", value).hex()
        case dict():
            return {key: _exact(each) for key, each in value.items()}
        case list() | tuple():
            return [_exact(each) for each in value]
        case str() if value[:1] in ("[", "{", '"') or value[:1].isdigit() or value[:1] == "-":
            return _read(value)
        case _:
            return value


def _read(value: str) -> object:
    """JSON as its value, because numbers and spaces have several forms; any other text as it is."""
    try:
        return f"JSON {json.loads(value)!r}"
    except (ValueError, RecursionError):
        return value
