"""The bodies of answers to OTLP over HTTP, in the content type of the request."""

from collections.abc import Mapping

import msgspec
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse

from lakehead.agent.receive.decoded import Decoded
from lakehead.wire.record_schemas import FrameKind

PROTOBUF, JSON = "application/x-protobuf", "application/json"
"""The content types of OTLP over HTTP."""

_UNKNOWN = 2
_STATUS_CODES: Mapping[int, int] = {
    400: 3,  # INVALID_ARGUMENT
    401: 16,  # UNAUTHENTICATED
    403: 7,  # PERMISSION_DENIED
    404: 5,  # NOT_FOUND
    405: 12,  # UNIMPLEMENTED
    408: 4,  # DEADLINE_EXCEEDED
    413: 8,  # RESOURCE_EXHAUSTED
    415: 3,
    422: 3,
    429: 8,
    500: 13,  # INTERNAL
    503: 14,  # UNAVAILABLE
}
"""The codes of gRPC that say about the same. OTLP's senders go by the HTTP status alone."""


def export_answer(kind: FrameKind, decoded: Decoded, *, is_json: bool) -> bytes:
    """Return the body of a 200: empty of content if everything was kept, else what was rejected and why."""
    if is_json:
        rejected = "rejectedDataPoints" if kind is FrameKind.SAMPLES else "rejectedLogRecords"
        partial = {rejected: str(decoded.rejected), "errorMessage": decoded.reason}
        return msgspec.json.encode({"partialSuccess": partial} if decoded.rejected else {})
    answer = ExportMetricsServiceResponse() if kind is FrameKind.SAMPLES else ExportLogsServiceResponse()
    if decoded.rejected:
        answer.partial_success.error_message = decoded.reason
        if isinstance(answer, ExportMetricsServiceResponse):
            answer.partial_success.rejected_data_points = decoded.rejected
        else:
            answer.partial_success.rejected_log_records = decoded.rejected
    return bytes(answer.SerializeToString())


def error_answer(http_status: int, message: str, *, is_json: bool) -> bytes:
    """Return the body of any other answer: a `google.rpc.Status` with the message, for people."""
    code = _STATUS_CODES.get(http_status, _UNKNOWN)
    if is_json:
        return msgspec.json.encode({"code": code, "message": message})
    text = message.encode("utf-8", "replace")
    return bytes([0x08, code, 0x12]) + _varint(len(text)) + text  # fields 1 and 2: OTLP's definitions have no Status


def _varint(number: int) -> bytes:
    found = b""
    while number >= 0x80:
        found += bytes([number & 0x7F | 0x80])
        number >>= 7
    return found + bytes([number])
