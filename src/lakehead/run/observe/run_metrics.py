"""Prometheus metrics of one run, served while it lasts or written to a file at its end."""

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from lakehead.run.observe.run_status import RunStatus, TableOutcome, TableStatus
from lakehead.telemetry.emitter import EventEnvelope
from lakehead.telemetry.events import Heartbeat, RunDone, RunStart, TableStale

PREFIX = "lakehead_run_"
RUN = {
    "start_time_seconds": "When the run started, in seconds since 1970.",
    "end_time_seconds": "When the run ended, in seconds since 1970; 0 while it lasts.",
    "success": "1 if every table of the run was done or skipped, 0 if not, or while it lasts.",
    "rows": "Rows read from the sources in the run.",
}
TABLE = {
    "table_rows": "Rows read from the source in the run.",
    "table_duration_seconds": "How long the table took; 0 while it runs.",
    "table_success": "1 if the table was done or skipped in the run, 0 if not.",
    "table_stale_seconds": "The age of a table that is older than its max_staleness; 0 for others.",
}
SPARK = {
    "tasks_active": ("spark_active_tasks", "Tasks that run in Spark, at the last heartbeat."),
    "tasks_done": ("spark_done_tasks", "Tasks that Spark has done in the run."),
    "tasks_failed": ("spark_failed_tasks", "Tasks that failed in Spark in the run."),
    "bytes_read": ("spark_read_bytes", "Bytes that Spark has read in the run."),
    "bytes_written": ("spark_written_bytes", "Bytes that Spark has written in the run."),
    "bytes_spilled": ("spark_spilled_bytes", "Bytes that Spark has spilled to disk in the run."),
    "gc_seconds": ("spark_gc_seconds", "Time that Spark's executors collected garbage in the run."),
}
LOST = "Events and messages of the run that a subscriber or receiver did not get."
NAMES = tuple(PREFIX + name for name in ("tables", *RUN, *TABLE, *(name for name, _ in SPARK.values()), "lost_events"))
"""All metrics, as they are queried."""


class RunMetrics(Collector):
    """Keeps the metrics of a run: a fast subscriber and a collector. All are gauges, because each run begins anew."""

    def __init__(self, lost: Callable[[], Mapping[str, int]] = dict) -> None:
        """`lost` returns what subscribers have missed, by their names."""
        self._status = RunStatus()
        self._lost = lost
        self._pipeline = ""
        self._ended_at = 0.0
        self._spark: Mapping[str, int | float] = {}
        self._stale: dict[str, float] = {}

    def __call__(self, envelope: EventEnvelope) -> None:
        """Update the metrics."""
        self._status(envelope)
        match envelope.event:
            case RunStart(pipeline=pipeline):
                self._pipeline = pipeline
            case RunDone():
                self._ended_at = envelope.at.timestamp()
            case Heartbeat(spark=spark) if spark is not None:
                self._spark = spark
            case TableStale() as stale if stale.when == "end":
                self._stale[envelope.table or ""] = stale.max_seconds if stale.seconds is None else stale.seconds

    def collect(self) -> Iterator[Metric]:
        """Yield every metric with its current value."""
        pipeline, counts = self._pipeline, self._status.counts()
        tables = GaugeMetricFamily(f"{PREFIX}tables", "Tables of the run, by outcome.", labels=["pipeline", "outcome"])
        for outcome in ("done", "skipped", "failed", "running", "waiting"):
            tables.add_metric([pipeline, outcome], getattr(counts, outcome))
        yield tables
        started = self._status.started_at
        values: dict[str, float] = {
            "start_time_seconds": started.timestamp() if started else 0.0,
            "end_time_seconds": self._ended_at,
            "success": float(bool(self._ended_at) and counts.done + counts.skipped == counts.total),
            "rows": counts.rows,
        }
        for name, text in RUN.items():
            yield _gauge(name, text, {pipeline: values[name]})
        for key, (name, text) in SPARK.items():
            yield _gauge(name, text, {pipeline: self._spark[key]} if key in self._spark else {})
        for name, text in TABLE.items():
            gauge = GaugeMetricFamily(PREFIX + name, text, labels=["pipeline", "table"])
            for each in self._status.tables():
                gauge.add_metric([pipeline, each.table], self._of_table(name, each))
            yield gauge
        lost = GaugeMetricFamily(f"{PREFIX}lost_events", LOST, labels=["pipeline", "receiver"])
        for receiver, count in self._lost().items():
            lost.add_metric([pipeline, receiver], count)
        yield lost

    def write(self, file: Path) -> None:
        """Replace the file with the current metrics, at once. Raises OSError if that fails."""
        registry = CollectorRegistry()
        registry.register(self)
        file.parent.mkdir(parents=True, exist_ok=True)
        new = file.with_name(f"{file.name}.{os.getpid()}.tmp")  # the collector reads only names that end with .prom
        try:
            new.write_bytes(generate_latest(registry))
            new.replace(file)
        finally:
            new.unlink(missing_ok=True)

    def _of_table(self, name: str, status: TableStatus) -> float:
        match name:
            case "table_rows":
                return status.rows or 0
            case "table_duration_seconds":
                return status.seconds or 0
            case "table_success":
                return float(status.outcome in {TableOutcome.DONE, TableOutcome.SKIPPED})
            case _:
                return self._stale.get(status.table, 0)


def _gauge(name: str, text: str, values: Mapping[str, float]) -> Metric:
    gauge = GaugeMetricFamily(PREFIX + name, text, labels=["pipeline"])
    for pipeline, value in values.items():
        gauge.add_metric([pipeline], value)
    return gauge
