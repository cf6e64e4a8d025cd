"""Answers to OTLP say what its specification says, in the content type of the request."""

import json

import pyarrow as pa
import pytest
from google.protobuf import json_format
from google.rpc import status_pb2  # type: ignore[import-untyped]
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse

from lakehead.agent.receive.decoded import Decoded
from lakehead.agent.receive.otlp_answers import error_answer, export_answer
from lakehead.wire.record_schemas import FrameKind, newest_schema

KINDS = [(FrameKind.SAMPLES, ExportMetricsServiceResponse), (FrameKind.LOGS, ExportLogsServiceResponse)]
Response = ExportMetricsServiceResponse | ExportLogsServiceResponse


def decoded(kind: FrameKind, rejected: int = 0, reason: str = "") -> Decoded:
    return Decoded(pa.RecordBatch.from_pylist([], schema=newest_schema(kind).schema), rejected, reason)


@pytest.mark.parametrize("kind", [*FrameKind])
def test_full_success_has_no_partial_success(kind: FrameKind) -> None:
    assert export_answer(kind, decoded(kind), is_json=False) == b""
    assert export_answer(kind, decoded(kind), is_json=True) == b"{}"


@pytest.mark.parametrize(("kind", "response"), KINDS)
@pytest.mark.parametrize("is_json", [False, True])
def test_partial_success_tells_how_many_and_why(kind: FrameKind, response: type[Response], *, is_json: bool) -> None:
    body = export_answer(kind, decoded(kind, 3, 'It has "é" twice.'), is_json=is_json)

    answer = json_format.Parse(body, response()) if is_json else response.FromString(body)

    partial = answer.partial_success
    rejected = partial.rejected_data_points if kind is FrameKind.SAMPLES else partial.rejected_log_records
    assert (rejected, partial.error_message) == (3, 'It has "é" twice.')


@pytest.mark.parametrize(
    ("http_status", "code"), [(400, 3), (401, 16), (403, 7), (404, 5), (413, 8), (415, 3), (503, 14), (418, 2)]
)
@pytest.mark.parametrize("message", ["", "Not OTLP: é", "x" * 127, "x" * 128, "x" * 40_000])
def test_an_error_is_a_status(http_status: int, code: int, message: str) -> None:
    in_protobuf = status_pb2.Status.FromString(error_answer(http_status, message, is_json=False))
    in_json = json.loads(error_answer(http_status, message, is_json=True))

    assert (in_protobuf.code, in_protobuf.message) == (code, message)
    assert in_json == {"code": code, "message": message}
