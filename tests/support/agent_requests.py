"""Requests that programs send to agents, in each form that an agent takes. Every record has an id that no other has.

The id of a sample is its label `id`, that of a log record its body.
"""

import gzip
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import cramjam
import pyarrow as pa
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from lakehead.agent.receive.remote_write_messages import Request, WriteRequest

NOON = 1_760_000_000_000_000_000
JSON_LINES = {"Content-Type": "application/x-ndjson"}
PROTOBUF = {"Content-Type": "application/x-protobuf"}
SNAPPY = {"Content-Encoding": "snappy"}


@dataclass(frozen=True, slots=True)
class AgentRequest:
    """One request, to be sent with the same bytes until it is answered."""

    path: str
    headers: Mapping[str, str]
    body: bytes
    ids: frozenset[str]
    may_be_sent_again: bool = True
    """Whether an agent knows it again: else who has no answer does not know whether its records were taken."""


def json_samples(ids: Sequence[str]) -> AgentRequest:
    """Samples with times of their own, known again by their bytes."""
    rows = [{"time": NOON + at, "metric": "m", "labels": {"id": each}, "value": at} for at, each in enumerate(ids)]
    return AgentRequest("/v1/json/samples", JSON_LINES, _lines(rows), frozenset(ids))


def json_samples_gzip(ids: Sequence[str]) -> AgentRequest:
    """The same, compressed."""
    plain = json_samples(ids)
    headers = {**JSON_LINES, "Content-Encoding": "gzip"}
    return AgentRequest(plain.path, headers, gzip.compress(plain.body), plain.ids)


def json_logs_with_a_key(ids: Sequence[str]) -> AgentRequest:
    """Log records without times, known again by their key."""
    headers = {**JSON_LINES, "Idempotency-Key": ids[0]}
    return AgentRequest("/v1/json/logs", headers, _lines([{"body": each} for each in ids]), frozenset(ids))


def json_logs_once(ids: Sequence[str]) -> AgentRequest:
    """Log records with neither times nor a key: the same bytes may well be other records."""
    return AgentRequest(
        "/v1/json/logs", JSON_LINES, _lines([{"body": each} for each in ids]), frozenset(ids), may_be_sent_again=False
    )


def otlp_metrics(ids: Sequence[str]) -> AgentRequest:
    """A gauge with a point for each id, as OTLP in protobuf, compressed."""
    request = ExportMetricsServiceRequest()
    points = request.resource_metrics.add().scope_metrics.add().metrics.add(name="otlp").gauge.data_points
    for at, each in enumerate(ids):
        point = points.add(time_unix_nano=NOON + at, as_double=at)
        point.attributes.add(key="id").value.string_value = each
    headers = {**PROTOBUF, "Content-Encoding": "gzip"}
    return AgentRequest("/v1/metrics", headers, gzip.compress(request.SerializeToString()), frozenset(ids))


def otlp_logs(ids: Sequence[str]) -> AgentRequest:
    """Log records as OTLP in protobuf."""
    request = ExportLogsServiceRequest()
    records = request.resource_logs.add().scope_logs.add().log_records
    for at, each in enumerate(ids):
        records.add(time_unix_nano=NOON + at).body.string_value = each
    return AgentRequest("/v1/logs", PROTOBUF, request.SerializeToString(), frozenset(ids))


def otlp_logs_json(ids: Sequence[str]) -> AgentRequest:
    """Log records as OTLP in JSON."""
    records = [{"timeUnixNano": str(NOON + at), "body": {"stringValue": each}} for at, each in enumerate(ids)]
    body = {"resourceLogs": [{"scopeLogs": [{"logRecords": records}]}]}
    headers = {"Content-Type": "application/json"}
    return AgentRequest("/v1/logs", headers, json.dumps(body).encode(), frozenset(ids))


def remote_write(ids: Sequence[str]) -> AgentRequest:
    """A series for each id, as Prometheus's remote write 1.0."""
    request = WriteRequest()
    for at, each in enumerate(ids):
        series = request.timeseries.add()
        series.labels.add(name="__name__", value="rw1")
        series.labels.add(name="id", value=each)
        series.samples.add(timestamp=NOON // 1_000_000, value=at)
    return AgentRequest("/api/v1/write", {**PROTOBUF, **SNAPPY}, _snappy(request.SerializeToString()), frozenset(ids))


def remote_write_2(ids: Sequence[str]) -> AgentRequest:
    """The same as remote write 2.0."""
    request = Request(symbols=["", "__name__", "rw2", "id", *ids])
    for at, _ in enumerate(ids):
        series = request.timeseries.add(labels_refs=[1, 2, 3, 4 + at])
        series.samples.add(timestamp=NOON // 1_000_000, value=at)
    headers = {"Content-Type": "application/x-protobuf;proto=io.prometheus.write.v2.Request", **SNAPPY}
    return AgentRequest("/api/v1/write", headers, _snappy(request.SerializeToString()), frozenset(ids))


FORMS: Sequence[Callable[[Sequence[str]], AgentRequest]] = (
    json_samples,
    json_samples_gzip,
    json_logs_with_a_key,
    json_logs_once,
    otlp_metrics,
    otlp_logs,
    otlp_logs_json,
    remote_write,
    remote_write_2,
)
"""All forms of requests."""


def ids_in(records: pa.RecordBatch) -> list[str]:
    """The ids of records, as a frame has them."""
    if "body" in records.schema.names:
        return [str(each) for each in records.column("body").to_pylist()]
    return [dict(labels).get("id", "without an id") for labels in records.column("labels").to_pylist()]


def _lines(rows: Sequence[Mapping[str, object]]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def _snappy(body: bytes) -> bytes:
    return bytes(cramjam.snappy.compress_raw(body))
