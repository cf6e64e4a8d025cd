"""The Prometheus metrics of a reconciler."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from lakehead.maintain.reconcile_report import INDEX_KINDS, ActionKind, ProblemKind, ReconcileReport
from lakehead.maintain.reconciler import Reconciler
from lakehead.wire.maintenance_records import BlobProblem

PREFIX = "lakehead_reconciler_"
BLOB_PROBLEMS: tuple[BlobProblem, ...] = ("missing", "corrupt")


class ReconcilerMetrics(Collector):
    """Exports what a reconciler has found and done, also while a long scan is under way."""

    def __init__(self, reconciler: Reconciler) -> None:
        self._reconciler = reconciler

    def collect(self) -> Iterator[Metric]:
        """Yield every metric with its current value."""
        reconciler, now = self._reconciler, self._reconciler.clock.now_ns()
        seen = ReconcileReport()
        for report in (reconciler.totals, *list(reconciler.current.values())):
            seen.count(report)
        yield from self._counters(seen)
        audit = reconciler.audit
        gauges = (
            (
                "lag_seconds",
                "How far the time up to which everything was looked at is behind.",
                _age(now, reconciler.through_unix_ns),
            ),
            (
                "last_pass_age_seconds",
                "How long ago the last pass over the newest hours ended.",
                _age(now, reconciler.last_pass_unix_ns),
            ),
            (
                "audit_age_seconds",
                "How long ago the last complete audit began.",
                _age(now, audit.begun_at_unix_ns if audit else 0),
            ),
            (
                "audit_seconds",
                "How long the last complete audit took.",
                (audit.ended_at_unix_ns - audit.begun_at_unix_ns) / 1e9 if audit else float("nan"),
            ),
            (
                "waiting",
                "Accepted batches that are queued and have not landed, as of the last pass.",
                reconciler.steady.waiting,
            ),
        )
        for name, description, value in gauges:
            yield GaugeMetricFamily(PREFIX + name, f"{description} NaN: not known.", value=value)
        blobs = GaugeMetricFamily(
            PREFIX + "open_repairs", "Frames of accepted batches that are missing or corrupt.", labels=["problem"]
        )
        for problem in BLOB_PROBLEMS:
            blobs.add_metric([problem], reconciler.repairs.count(problem))
        yield blobs

    def _counters(self, seen: ReconcileReport) -> Iterator[Metric]:
        yield CounterMetricFamily(PREFIX + "batches", "Identity manifests that were looked at.", value=seen.accepted)
        repaired = CounterMetricFamily(
            PREFIX + "repaired_entries", "Index entries that were missing, and were written.", labels=["index"]
        )
        for kind in INDEX_KINDS:
            repaired.add_metric([kind.value], seen.done[kind])
        yield repaired
        for name, description, kind in (
            ("enqueued", "Batches that nobody had queued for landing, and were queued.", ActionKind.ENQUEUED),
            ("repairs_opened", "Frames that were found missing or corrupt.", ActionKind.REPAIR_OPENED),
            ("repairs_healed", "Frames that were found to be right again.", ActionKind.REPAIR_HEALED),
        ):
            yield CounterMetricFamily(PREFIX + name, description, value=seen.done[kind])
        problems = CounterMetricFamily(PREFIX + "problems", "Problems, each time that they were met.", labels=["kind"])
        for problem in ProblemKind:
            problems.add_metric([problem.value], seen.wrong[problem])
        yield problems


def _age(now_unix_ns: int, at_unix_ns: int) -> float:
    return (now_unix_ns - at_unix_ns) / 1e9 if at_unix_ns else float("nan")
