"""A program that sends metrics and logs by OpenTelemetry's SDK and its OTLP/HTTP exporter, as programs do."""

import threading
from collections import Counter
from collections.abc import Sequence
from itertools import count
from types import TracebackType
from typing import Any, Self

from opentelemetry._logs import LogRecord
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk._logs import LoggerProvider, ReadableLogRecord
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor, LogRecordExportResult
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricExportResult, MetricsData, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource

EXPORT_SECONDS = 60
"""How long the SDK tries to send the same again. It would drop it then."""

Point = tuple[str, int]
"""The name and the time of a point of a metric: this program has one series of each name."""


class _Metrics(OTLPMetricExporter):
    """The exporter, which notes what it has sent."""

    def __init__(self, url: str) -> None:
        super().__init__(f"{url}/v1/metrics", timeout=EXPORT_SECONDS, compression=Compression.Gzip)
        self.sent: Counter[Point] = Counter()
        self.failed: Counter[Point] = Counter()
        self.exports = 0

    def export(
        self, metrics_data: MetricsData, timeout_millis: float | None = 10_000, **kwargs: Any
    ) -> MetricExportResult:
        result = super().export(metrics_data, timeout_millis, **kwargs)
        into = self.sent if result is MetricExportResult.SUCCESS else self.failed
        into.update(
            (metric.name, point.time_unix_nano)
            for resource in metrics_data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
            for point in metric.data.data_points
        )
        self.exports += 1
        return result


class _Logs(OTLPLogExporter):
    """The exporter, which notes what it has sent."""

    def __init__(self, url: str) -> None:
        super().__init__(f"{url}/v1/logs", timeout=EXPORT_SECONDS)
        self.sent: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self.exports = 0

    def export(self, batch: Sequence[ReadableLogRecord]) -> LogRecordExportResult:
        result = super().export(batch)
        into = self.sent if result is LogRecordExportResult.SUCCESS else self.failed
        into.update(str(each.log_record.body) for each in batch)
        self.exports += 1
        return result


class OtelProgram:
    """Counts, measures and logs in a thread of its own, as long as a `with`. At its end all is sent.

    Metrics are `otel_ticks` and `otel_seconds`; the bodies of log records are `otel line` and a number.
    """

    def __init__(self, url: str, *, every_seconds: float = 0.1) -> None:
        self.metrics, self.logs = _Metrics(url), _Logs(url)
        resource = Resource({"service.name": "otel-program"})
        reader = PeriodicExportingMetricReader(self.metrics, every_seconds * 1000, EXPORT_SECONDS * 1000)
        self._meters = MeterProvider([reader], resource, shutdown_on_exit=False)
        self._loggers = LoggerProvider(resource, shutdown_on_exit=False)
        self._loggers.add_log_record_processor(
            BatchLogRecordProcessor(self.logs, every_seconds * 1000, export_timeout_millis=EXPORT_SECONDS * 1000)
        )
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._work, name="otel-program")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ends.set()
        self._thread.join()
        self._meters.shutdown(EXPORT_SECONDS * 1000)
        self._loggers.shutdown()

    def _work(self) -> None:
        meter, logger = self._meters.get_meter("otel"), self._loggers.get_logger("otel")
        ticks, seconds = meter.create_counter("otel_ticks"), meter.create_histogram("otel_seconds", "s")
        for number in count():
            ticks.add(1)
            seconds.record(number % 10)
            logger.emit(LogRecord(body=f"otel line {number}"))
            if self._ends.wait(0.01):
                return
