"""OTLP in JSON is the same request as in protobuf."""

import json
import re
from contextlib import suppress
from random import Random
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

from lakehead.agent.receive.decoded import BadBody
from lakehead.agent.receive.otlp_json import logs_from_json, metrics_from_json
from lakehead.agent.receive.otlp_logs import decode_otlp_logs
from lakehead.agent.receive.otlp_metrics import decode_otlp_metrics
from tests.unit.agent.receive.otlp_oracle import comparable
from tests.unit.agent.receive.otlp_requests import NOW, logs_requests, metrics_requests

TRACE, SPAN = "5b8efff798038103d269b633813fc60c", "eee19b7ec3c1b174"


def as_dict(request: ExportMetricsServiceRequest | ExportLogsServiceRequest) -> dict[str, Any]:
    """A request as OTLP has it in JSON, by protobuf's own means but for the ids."""
    told: dict[str, Any] = MessageToDict(request, use_integers_for_enums=True)
    if isinstance(request, ExportLogsServiceRequest):
        records = [
            (record, told["resourceLogs"][i]["scopeLogs"][j]["logRecords"][k])
            for i, of_resource in enumerate(request.resource_logs)
            for j, of_scope in enumerate(of_resource.scope_logs)
            for k, record in enumerate(of_scope.log_records)
        ]
        for record, in_json in records:
            in_json |= {"traceId": record.trace_id.hex().upper(), "spanId": record.span_id.hex()}
    return told


def one_log(**fields: object) -> dict[str, Any]:
    return {"resourceLogs": [{"scopeLogs": [{"logRecords": [fields]}]}]}


def one_point(**fields: object) -> dict[str, Any]:
    return {"resourceMetrics": [{"scopeMetrics": [{"metrics": [{"name": "a", "gauge": {"dataPoints": [fields]}}]}]}]}


def log(told: object) -> dict[str, Any]:
    found = decode_otlp_logs(json.dumps(told).encode(), is_json=True, now_ns=NOW)
    [row] = comparable(found.records)
    return row


def sample(told: object) -> dict[str, Any]:
    found = decode_otlp_metrics(json.dumps(told).encode(), is_json=True, now_ns=NOW)
    [row] = found.records.to_pylist()
    return dict(row)


@pytest.mark.slow
@given(metrics_requests)
def test_metrics_in_json_are_those_in_protobuf(request: ExportMetricsServiceRequest) -> None:
    in_json = decode_otlp_metrics(json.dumps(as_dict(request)).encode(), is_json=True, now_ns=NOW)
    in_protobuf = decode_otlp_metrics(request.SerializeToString(), is_json=False, now_ns=NOW)

    assert without_nan(comparable(in_json.records)) == without_nan(comparable(in_protobuf.records))
    assert (in_json.rejected, in_json.reason) == (in_protobuf.rejected, in_protobuf.reason)


def without_nan(rows: list[dict[str, object]]) -> str:
    """The rows with one NaN: JSON has no other, with a sign or bits of its own."""
    return re.sub("'[7f]ff(?!0000000000000)[0-9a-f]{13}'", "NaN", str(rows))


@given(logs_requests)
def test_logs_in_json_are_those_in_protobuf(request: ExportLogsServiceRequest) -> None:
    in_json = decode_otlp_logs(json.dumps(as_dict(request)).encode(), is_json=True, now_ns=NOW)
    in_protobuf = decode_otlp_logs(request.SerializeToString(), is_json=False, now_ns=NOW)

    assert comparable(in_json.records) == comparable(in_protobuf.records)
    assert in_json.rejected == in_protobuf.rejected


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=5,
)


def replaced(told: Any, random: Random, by: object) -> Any:
    """A value of JSON in which something is replaced."""
    if told and random.random() < 0.9:
        if isinstance(told, dict):
            key = random.choice([*told])
            return {**told, key: replaced(told[key], random, by)}
        if isinstance(told, list):
            place = random.randrange(len(told))
            return [*told[:place], replaced(told[place], random, by), *told[place + 1 :]]
    return by


@pytest.mark.slow
@given(metrics_requests | logs_requests, anything, st.integers(0, 2**32))
def test_json_of_any_kind_is_decoded_or_refused(
    request: ExportMetricsServiceRequest | ExportLogsServiceRequest, by: object, seed: int
) -> None:
    decode = decode_otlp_metrics if isinstance(request, ExportMetricsServiceRequest) else decode_otlp_logs

    for number in range(5):
        body = json.dumps(replaced(as_dict(request), Random(seed + number), by)).encode()
        with suppress(BadBody):
            decode(body, is_json=True, now_ns=NOW)


@pytest.mark.parametrize("trace_id", [TRACE, TRACE.upper()])
def test_ids_are_hex_in_either_case(trace_id: str) -> None:
    row = log(one_log(traceId=trace_id, spanId=SPAN))

    assert (row["trace_id"], row["span_id"]) == (TRACE, SPAN)


@pytest.mark.parametrize("bad", ["", TRACE[:-1], TRACE[:-2], "zz" * 16, " " + TRACE, "W47/95gDgQPSabYzgT/GDA=="])
def test_an_id_that_is_none_is_as_good_as_absent(bad: str) -> None:
    row = log(one_log(traceId=bad, spanId=bad))

    assert (row["trace_id"], row["span_id"]) == (None, None)


@pytest.mark.parametrize("time", ["1700000000000000001", 1700000000000000001])
def test_integers_may_be_text_or_numbers(time: object) -> None:
    row = sample(one_point(timeUnixNano=time, asInt="-7", flags=0.0))

    assert (row["time"].value, row["value"]) == (1700000000000000001, -7.0)


@pytest.mark.parametrize(
    ("told", "value"),
    [(1.5, 1.5), (2, 2.0), ("-1.5e3", -1500.0), ("Infinity", float("inf")), ("-Infinity", float("-inf"))],
)
def test_doubles_may_be_numbers_or_text(told: object, value: float) -> None:
    assert sample(one_point(asDouble=told))["value"] == value


def test_not_a_number_is_text() -> None:
    value = sample(one_point(asDouble="NaN"))["value"]

    assert value != value  # noqa: PLR0124 - which only NaN is


def test_names_that_are_unknown_are_ignored_and_null_is_absent() -> None:
    told = one_point(asInt=1, newField={"deep": [1]}, attributes=None, timeUnixNano=None)

    assert sample({**told, "another": 1})["value"] == 1.0


def test_names_of_enums_and_original_names_of_fields_are_taken() -> None:
    metric = {
        "name": "a",
        "sum": {
            "aggregation_temporality": "AGGREGATION_TEMPORALITY_DELTA",
            "is_monotonic": True,
            "data_points": [{"as_int": 1}],
        },
    }

    row = sample({"resource_metrics": [{"scope_metrics": [{"metrics": [metric]}]}]})

    assert (row["temporality"], row["monotonic"]) == ("delta", True)


@pytest.mark.parametrize("told", ["AP8=", "AP8", "AP-_", "AP+/"])
def test_bytes_are_base64_of_either_alphabet(told: str) -> None:
    body = log(one_log(body={"bytesValue": told}))["body"]

    assert body == {"AP8=": "AP8=", "AP8": "AP8=", "AP-_": "AP+/", "AP+/": "AP+/"}[told]


@pytest.mark.parametrize(
    ("written", "text"),
    [
        (rb"\ud83d\ude00", "\U0001f600"),
        (rb"\uD83D", "\ufffd"),
        (rb"cut \ud83d", "cut \ufffd"),
        (rb"\ude00\ud83d", "\ufffd\ufffd"),
        (rb"\ud83d\ud83d\ude00", "\ufffd\U0001f600"),
        (rb"\ud83dx\ude00", "\ufffdx\ufffd"),
        (rb"\\ud83d", "\\ud83d"),
        (rb"\\\ud83d\n", "\\\ufffd\n"),
        (rb"\\\\ud83d", "\\\\ud83d"),
        ("é\U0001f600".encode(), "é\U0001f600"),
    ],
)
def test_half_of_a_surrogate_pair_is_replaced(written: bytes, text: str) -> None:
    """JavaScript cuts texts in the middle of such a pair. A whole body is not lost for it."""
    body = b'{"resourceLogs":[{"scopeLogs":[{"logRecords":[{"body":{"stringValue":"' + written + b'"}}]}]}]}'

    [row] = decode_otlp_logs(body, is_json=True, now_ns=NOW).records.to_pylist()

    assert row["body"] == text


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b'{"a":NaN}', "not valid JSON"),
        (b'{"a":"\xff"}', "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        (b"[]", "an array where an object for ExportMetricsServiceRequest must be"),
        (b"null", "null where an object"),
        (b'{"resourceMetrics":{}}', "resourceMetrics of ExportMetricsServiceRequest is not an array"),
        (b'{"resourceMetrics":[1]}', "a number where an object for ResourceMetrics must be"),
        (json.dumps(one_point(asInt="1.5")).encode(), "as_int of NumberDataPoint cannot be '1.5'"),
        (json.dumps(one_point(asInt=1.5)).encode(), "cannot be 1.5"),
        (json.dumps(one_point(asInt=True)).encode(), "cannot be a boolean"),
        (json.dumps(one_point(asInt="1_0")).encode(), "cannot be '1_0'"),
        (json.dumps(one_point(asInt=2**63)).encode(), "out of range"),
        (json.dumps(one_point(timeUnixNano=-1)).encode(), "out of range"),
        (json.dumps(one_point(asDouble="1,5")).encode(), "cannot be '1,5'"),
        (json.dumps(one_point(asDouble=[])).encode(), "cannot be an array"),
        (json.dumps(one_point(attributes=[{"key": 1}])).encode(), "key of KeyValue cannot be 1"),
        (
            json.dumps(one_point(attributes=[{"key": "a", "value": {"bytesValue": "@"}}])).encode(),
            "bytes_value of AnyValue cannot be '@'",
        ),
        (
            json.dumps(one_point(attributes=[{"key": "a", "value": {"boolValue": "true"}}])).encode(),
            "bool_value of AnyValue cannot be 'true'",
        ),
        (
            b'{"resourceMetrics":[{"scopeMetrics":[{"metrics":[{"name":"a","sum":{"aggregationTemporality":[]}}]}]}]}',
            "",
        ),
    ],
)
def test_a_body_that_is_not_otlp_is_refused_with_what_is_wrong(body: bytes, reason: str) -> None:
    with pytest.raises(BadBody) as refused:
        decode_otlp_metrics(body, is_json=True, now_ns=NOW)

    assert reason in refused.value.reason
    assert len(refused.value.reason) < 300


@pytest.mark.parametrize("depth", [60, 99, 200, 5_000])
def test_values_nested_too_deep_are_refused(depth: int) -> None:
    value = b'{"arrayValue":{"values":[' * depth + b'{"stringValue":""}' + b"]}}" * depth
    body = b'{"resourceLogs":[{"scopeLogs":[{"logRecords":[{"body":' + value + b"}]}]}]}"

    with pytest.raises(BadBody):
        decode_otlp_logs(body, is_json=True, now_ns=NOW)


def test_exemplars_are_left_out_whatever_they_are() -> None:
    assert sample(one_point(asInt=1, exemplars=[{"traceId": "no base64, no hex"}]))["value"] == 1.0


def test_what_comes_out_is_protobuf() -> None:
    told = one_log(attributes=[{"key": "a", "value": {"intValue": "1"}}])

    request = ExportLogsServiceRequest.FromString(logs_from_json(json.dumps(told).encode()))

    [record] = request.resource_logs[0].scope_logs[0].log_records
    assert [*record.attributes] == [KeyValue(key="a", value=AnyValue(int_value=1))]
    assert metrics_from_json(b"{}") == b""
