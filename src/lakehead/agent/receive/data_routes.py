"""The routes that take records: how each reads a body, and how it answers."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import msgspec
from starlette.datastructures import Headers
from starlette.responses import Response

from lakehead.agent.receive.content_encoding import Encoding
from lakehead.agent.receive.content_type import content_encoding, content_type, unsupported
from lakehead.agent.receive.decoded import Decoded
from lakehead.agent.receive.json_lines import decode_json_lines
from lakehead.agent.receive.otlp_answers import JSON, PROTOBUF, error_answer, export_answer
from lakehead.agent.receive.otlp_logs import decode_otlp_logs
from lakehead.agent.receive.otlp_metrics import decode_otlp_metrics
from lakehead.agent.receive.refusals import ErrorCode, Refusal, json_refusal
from lakehead.agent.receive.remote_write import DecodedWrite, decode_remote_write_v1, decode_remote_write_v2
from lakehead.agent.receive.sample_columns import RecordLimits
from lakehead.wire.record_schemas import FrameKind

_WRITTEN = "X-Prometheus-Remote-Write-{}-Written"
_V1, _V2 = "prometheus.WriteRequest", "io.prometheus.write.v2.Request"
_JSON_LINES = ("application/x-ndjson", "application/ndjson", "application/jsonl", "application/x-jsonlines", JSON)


@dataclass(frozen=True, slots=True)
class BodyForm:
    """What a route takes the body of a request for, by its headers."""

    encoding: Encoding
    decode: Callable[[bytes, int], Decoded]
    """Decodes a body, decompressed; the second argument is the time in nanoseconds. Raises `BadBody`."""


class DataRoute(Protocol):
    """Where records of one protocol are sent to."""

    @property
    def kind(self) -> FrameKind:
        """What the records are."""
        ...

    def form(self, headers: Headers) -> BodyForm:
        """Return what the body is. Raises `Refusal` if the route does not take it."""
        ...

    def answer(self, headers: Headers, decoded: Decoded, *, is_duplicate: bool) -> Response:
        """Answer a request whose records are on disk, those that are not rejected."""
        ...

    def refuse(self, headers: Headers, refusal: Refusal) -> Response:
        """Answer a request of which nothing is on disk, or it is not known whether it is."""
        ...


@dataclass(frozen=True, slots=True)
class OtlpRoute:
    """OTLP over HTTP. What is rejected is told in an answer 200, as its specification says."""

    kind: FrameKind

    def form(self, headers: Headers) -> BodyForm:
        """Return what the body is. Raises `Refusal` if the route does not take it."""
        found = content_type(headers)
        if found.media_type not in (PROTOBUF, JSON):
            raise unsupported(found, f"{PROTOBUF} or {JSON}")
        encoding = content_encoding(headers, Encoding.IDENTITY, Encoding.GZIP)
        is_json = found.media_type == JSON
        decode = decode_otlp_metrics if self.kind is FrameKind.SAMPLES else decode_otlp_logs
        return BodyForm(encoding, lambda body, now_ns: decode(body, is_json=is_json, now_ns=now_ns))

    def answer(self, headers: Headers, decoded: Decoded, *, is_duplicate: bool) -> Response:
        """Answer a request whose records are on disk."""
        del is_duplicate  # for which OTLP has no word: it is as if this were the first
        is_json = _is_json(headers)
        return Response(export_answer(self.kind, decoded, is_json=is_json), media_type=JSON if is_json else PROTOBUF)

    def refuse(self, headers: Headers, refusal: Refusal) -> Response:
        """Answer with a `google.rpc.Status`, in the content type of the request."""
        is_json = _is_json(headers)
        return Response(
            error_answer(refusal.status, refusal.message, is_json=is_json),
            refusal.status,
            headers=refusal.headers,
            media_type=JSON if is_json else PROTOBUF,
        )


def _is_json(headers: Headers) -> bool:
    return headers.get("content-type", "").partition(";")[0].strip().lower() != PROTOBUF


@dataclass(frozen=True, slots=True)
class RemoteWriteRoute:
    """Prometheus's remote write. A request with a wrong sample is answered 400, and its other samples are on disk."""

    limits: RecordLimits
    kind: FrameKind = FrameKind.SAMPLES

    def form(self, headers: Headers) -> BodyForm:
        """Return what the body is. Raises `Refusal` if the route does not take it."""
        found = content_type(headers)
        if found.media_type != PROTOBUF or found.proto not in ("", _V1, _V2):
            raise unsupported(found, f"{PROTOBUF}, with ;proto={_V1}, ;proto={_V2} or neither")
        encoding = content_encoding(headers, Encoding.SNAPPY)
        decode = decode_remote_write_v2 if found.proto == _V2 else decode_remote_write_v1
        return BodyForm(encoding, lambda body, _: decode(body, self.limits))

    def answer(self, headers: Headers, decoded: Decoded, *, is_duplicate: bool) -> Response:
        """Answer a request whose valid samples are on disk."""
        del is_duplicate  # which is answered as the first one was
        assert isinstance(decoded, DecodedWrite)  # noqa: S101 - for the type checker
        written = _written(headers, decoded.samples, decoded.histograms)
        if not decoded.rejected:
            return Response(status_code=204, headers=written)
        kept = decoded.samples + decoded.histograms
        message = f"{decoded.rejected:,} of {decoded.rejected + kept:,} samples were not kept. {decoded.reason}"
        return _text(Refusal(ErrorCode.INVALID_SAMPLES, message, headers=written))

    def refuse(self, headers: Headers, refusal: Refusal) -> Response:
        """Answer in plain text, which senders write to their logs."""
        refusal.headers.update(_written(headers, 0, 0))
        return _text(refusal)


def _written(headers: Headers, samples: int, histograms: int) -> dict[str, str]:
    """What 2.0 wants to know: how much is on disk. Exemplars never are."""
    if _V2 not in headers.get("content-type", ""):
        return {}
    counts = {"Samples": samples, "Histograms": histograms, "Exemplars": 0}
    return {_WRITTEN.format(name): str(count) for name, count in counts.items()}


def _text(refusal: Refusal) -> Response:
    return Response(f"{refusal.message}\n", refusal.status, headers=refusal.headers, media_type="text/plain")


@dataclass(frozen=True, slots=True)
class JsonLinesRoute:
    """JSON lines. A request with a bad line is refused as a whole."""

    kind: FrameKind
    limits: RecordLimits

    def form(self, headers: Headers) -> BodyForm:
        """Return what the body is. Raises `Refusal` if the route does not take it."""
        found = content_type(headers)
        if found.media_type not in _JSON_LINES:
            raise unsupported(found, f"{' or '.join(_JSON_LINES)}, with one JSON object in each line")
        encoding = content_encoding(headers, Encoding.IDENTITY, Encoding.GZIP)
        return BodyForm(
            encoding, lambda body, now_ns: decode_json_lines(self.kind, body, now_ns=now_ns, limits=self.limits)
        )

    def answer(self, headers: Headers, decoded: Decoded, *, is_duplicate: bool) -> Response:
        """Say how many records are on disk, and whether they were before."""
        del headers
        told = {"records": decoded.records.num_rows, "duplicate": is_duplicate}
        return Response(msgspec.json.encode(told), media_type=JSON)

    def refuse(self, headers: Headers, refusal: Refusal) -> Response:
        """Answer in JSON."""
        del headers
        return json_refusal(refusal)


def data_routes(limits: RecordLimits) -> Mapping[str, DataRoute]:
    """Return all routes by their paths."""
    return {
        "/v1/metrics": OtlpRoute(FrameKind.SAMPLES),
        "/v1/logs": OtlpRoute(FrameKind.LOGS),
        "/api/v1/write": RemoteWriteRoute(limits),
        "/v1/json/samples": JsonLinesRoute(FrameKind.SAMPLES, limits),
        "/v1/json/logs": JsonLinesRoute(FrameKind.LOGS, limits),
    }
