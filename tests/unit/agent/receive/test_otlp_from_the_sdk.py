"""What OpenTelemetry's own SDK and exporter send, over a real connection."""

import gzip
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from time import time_ns

import pytest
from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.metrics import CallbackOptions, Meter, Observation
from opentelemetry.sdk import metrics as sdk
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.metrics.export import AggregationTemporality, PeriodicExportingMetricReader
from opentelemetry.sdk.metrics.view import ExponentialBucketHistogramAggregation, View
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import format_span_id, format_trace_id

from lakehead.agent.receive.decoded import Decoded
from lakehead.agent.receive.otlp_answers import PROTOBUF, export_answer
from lakehead.agent.receive.otlp_logs import decode_otlp_logs
from lakehead.agent.receive.otlp_metrics import decode_otlp_metrics
from lakehead.wire.record_schemas import FrameKind

_WITH_TEMPORALITY: tuple[type, ...] = (
    *(sdk.Counter, sdk.UpDownCounter, sdk.Histogram),
    *(sdk.ObservableCounter, sdk.ObservableUpDownCounter),
)
DELTA = dict.fromkeys(_WITH_TEMPORALITY, AggregationTemporality.DELTA)
RESOURCE = Resource({"service.name": "shop", "service.instance.id": "shop-1", "host.cpu.count": 8})
IN_LABELS = {"host.cpu.count": "8", "service.instance.id": "shop-1", "service.name": "shop"}


@dataclass
class Receiver:
    """Decodes what is posted to it, and answers as an agent does."""

    url: str
    decoded: list[Decoded] = field(default_factory=list)

    def rows(self) -> list[dict[str, object]]:
        return [row for each in self.decoded for row in each.records.to_pylist()]


@contextmanager
def receiving() -> Iterator[Receiver]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers["Content-Encoding"] == "gzip":
                body = gzip.decompress(body)
            assert self.headers["Content-Type"] == PROTOBUF
            is_metrics = self.path == "/v1/metrics"
            decode = decode_otlp_metrics if is_metrics else decode_otlp_logs
            found = decode(body, is_json=False, now_ns=1)
            receiver.decoded.append(found)
            answer = export_answer(FrameKind.SAMPLES if is_metrics else FrameKind.LOGS, found, is_json=False)
            self.send_response(200)
            self.send_header("Content-Type", PROTOBUF)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        receiver = Receiver(f"http://127.0.0.1:{server.server_port}")
        try:
            yield receiver
        finally:
            server.shutdown()
            thread.join()


def use_every_instrument(meter: Meter) -> None:
    def seen(_: CallbackOptions) -> Iterator[Observation]:
        yield Observation(7, {"cpu": "0"})

    meter.create_counter("orders", unit="{order}").add(3, {"http.status": 200, "ok": True, "sizes": (1, 2)})
    meter.create_up_down_counter("queue").add(-2.5)
    meter.create_gauge("temperature", unit="Cel").set(21.5, {"room": "é"})
    meter.create_histogram("latency", unit="ms").record(5.5)
    meter.create_histogram("size", explicit_bucket_boundaries_advisory=[1.0, 10.0]).record(3)
    exponential = meter.create_histogram("latency.exponential")
    for value in (0, 1.5, 1.6, 100.0, 0.001):
        exponential.record(value)
    meter.create_observable_counter("cpu.time", [seen])
    meter.create_observable_up_down_counter("memory", [seen])
    meter.create_observable_gauge("load", [seen])


def exported(temporality: dict[type, AggregationTemporality]) -> list[dict[str, object]]:
    with receiving() as receiver:
        exporter = OTLPMetricExporter(
            f"{receiver.url}/v1/metrics", compression=Compression.Gzip, preferred_temporality=temporality
        )
        provider = sdk.MeterProvider(
            [PeriodicExportingMetricReader(exporter, export_interval_millis=3_600_000)],
            resource=RESOURCE,
            shutdown_on_exit=False,
            views=[View(instrument_name="*.exponential", aggregation=ExponentialBucketHistogramAggregation())],
        )
        use_every_instrument(provider.get_meter("shop.http", "1.2", attributes={"team": "a"}))
        provider.shutdown()
    assert [(found.rejected, found.have_own_times) for found in receiver.decoded] == [(0, True)]
    return receiver.rows()


@pytest.mark.parametrize(("given", "temporality"), [({}, "cumulative"), (DELTA, "delta")])
def test_every_instrument_is_its_kind_of_sample(given: dict[type, AggregationTemporality], temporality: str) -> None:
    before = time_ns()
    rows = {str(row["metric"]): row for row in exported(given)}

    common = IN_LABELS | {"otel_scope_name": "shop.http", "otel_scope_version": "1.2", "otel_scope_team": "a"}
    for row in rows.values():
        assert dict(row["labels"]).items() >= common.items()  # type: ignore[call-overload]
        assert before <= row["time"].value <= time_ns()  # type: ignore[attr-defined]
        assert row["temporality"] == (None if row["type"] == "gauge" else temporality)
    own = {name: dict(row["labels"]).items() - common.items() for name, row in rows.items()}  # type: ignore[call-overload]
    assert own["orders"] == {("http.status", "200"), ("ok", "true"), ("sizes", "[1,2]")}
    assert own["temperature"] == {("room", "é")}
    found = {name: (row["type"], row["unit"], row["monotonic"], row["value"]) for name, row in rows.items()}
    assert found == {
        "orders": ("sum", "{order}", True, 3.0),
        "queue": ("sum", None, False, -2.5),
        "temperature": ("gauge", "Cel", None, 21.5),
        "latency": ("histogram", "ms", None, None),
        "size": ("histogram", None, None, None),
        "latency.exponential": ("exponential_histogram", None, None, None),
        "cpu.time": ("sum", None, True, 7.0),
        "memory": ("sum", None, False, 7.0),
        "load": ("gauge", None, None, 7.0),
    }
    assert rows["orders"]["start_time"] <= rows["orders"]["time"]  # type: ignore[operator]


def test_histograms_have_the_buckets_that_the_sdk_counted() -> None:
    found = {str(row["metric"]): row["distribution"] for row in exported({})}

    size, exponential = found["size"], found["latency.exponential"]
    assert isinstance(size, dict)
    assert {name: value for name, value in size.items() if value is not None} == {
        "count": 1.0,
        "sum": 3.0,
        "min": 3.0,
        "max": 3.0,
        "bounds": [1.0, 10.0],
        "counts": [0.0, 1.0, 0.0],
    }
    assert isinstance(exponential, dict)
    assert (exponential["count"], exponential["zero_count"], exponential["min"]) == (5.0, 1.0, 0.0)
    assert (sum(exponential["positive_counts"]), exponential["negative_counts"]) == (4.0, [])
    base = 2**2.0 ** -exponential["scale"]
    buckets = [(base**index, base ** (index + 1)) for index in exponential["positive_indexes"]]
    for value in (0.001, 1.5, 1.6, 100.0):
        assert sum(low < value <= high for low, high in buckets) == 1


def test_log_records_come_with_their_trace_body_and_attributes() -> None:
    with receiving() as receiver:
        provider = LoggerProvider(resource=RESOURCE, shutdown_on_exit=False)
        provider.add_log_record_processor(
            BatchLogRecordProcessor(OTLPLogExporter(f"{receiver.url}/v1/logs", compression=Compression.NoCompression))
        )
        logger = provider.get_logger("shop.orders", "1.2", attributes={"team": "a"})
        with TracerProvider(shutdown_on_exit=False).get_tracer("t").start_as_current_span("order") as span:
            logger.emit(
                LogRecord(
                    timestamp=123,
                    observed_timestamp=456,
                    severity_number=SeverityNumber.WARN2,
                    severity_text="WARN",
                    body="Only one left.",
                    attributes={"order": 7, "tags": ["a", "b"]},
                    event_name="stock.low",
                )
            )
        logger.emit(LogRecord(body={"left": 1, "none": None, "raw": b"\0"}))
        provider.shutdown()
    context = span.get_span_context()

    first, second = receiver.rows()

    assert (first["time"].value, first["observed_time"].value) == (123, 456)  # type: ignore[attr-defined]
    assert (first["severity_number"], first["severity_text"], first["event_name"]) == (14, "WARN", "stock.low")
    assert (first["body"], first["attributes"]) == ("Only one left.", [("order", "7"), ("tags", '["a","b"]')])
    assert first["trace_id"] == format_trace_id(context.trace_id)
    assert (first["span_id"], first["flags"]) == (format_span_id(context.span_id), context.trace_flags)
    assert dict(first["resource_attributes"]) == IN_LABELS  # type: ignore[call-overload]
    assert (first["scope_name"], first["scope_version"]) == ("shop.orders", "1.2")
    assert first["scope_attributes"] == [("team", "a")]
    assert second["body"] == '{"left":1,"none":null,"raw":"AA=="}'
    assert (second["trace_id"], second["span_id"]) == (None, None)
    assert receiver.decoded[0].have_own_times
