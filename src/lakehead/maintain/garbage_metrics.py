"""The Prometheus metrics of a resident garbage collector."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from lakehead.maintain.garbage_report import BlobOutcome, BlobTally, GarbageReport

PREFIX = "lakehead_gc_"


@dataclass(slots=True)
class GarbageTotals:
    """What all runs of a process have done."""

    runs: int = 0
    failed_runs: int = 0
    """Those that could not look at everything, or could not settle something."""

    requests: int = 0
    deleted: dict[BlobOutcome, BlobTally] = field(default_factory=dict)
    last: GarbageReport | None = None
    """Of the last run that was not a failure from its beginning."""

    def add(self, report: GarbageReport | None) -> None:
        """Count a run; None for one that failed before anything was looked at."""
        self.runs += 1
        self.failed_runs += report is None or report.has_failures or not report.is_complete
        if report is None:
            return
        self.last = report
        self.requests += report.requests
        for outcome, tally in report.tallies.items():
            if outcome.is_deleted:
                total = self.deleted.setdefault(outcome, BlobTally())
                total.count += tally.count
                total.bytes += tally.bytes


class GarbageMetrics(Collector):
    """Exports them."""

    def __init__(self, totals: GarbageTotals) -> None:
        self._totals = totals

    def collect(self) -> Iterator[Metric]:
        """Yield every metric with its current value."""
        totals = self._totals
        yield CounterMetricFamily(PREFIX + "runs", "Runs, failed ones too.", value=totals.runs)
        yield CounterMetricFamily(
            PREFIX + "failed_runs", "Runs after which another one may do more.", value=totals.failed_runs
        )
        yield CounterMetricFamily(PREFIX + "requests", "Requests to the store.", value=totals.requests)
        blobs = CounterMetricFamily(PREFIX + "deleted_blobs", "Raw blobs deleted.", labels=["reason"])
        size = CounterMetricFamily(PREFIX + "deleted_bytes", "Bytes of raw blobs deleted.", labels=["reason"])
        for outcome in BlobOutcome:
            if outcome.is_deleted:
                tally = totals.deleted.get(outcome, BlobTally())
                blobs.add_metric([outcome.value], tally.count)
                size.add_metric([outcome.value], tally.bytes)
        yield blobs
        yield size
        kept = GaugeMetricFamily(PREFIX + "kept_blobs", "Raw blobs that the last run kept.", labels=["reason"])
        if totals.last is not None:
            for outcome, tally in totals.last.tallies.items():
                if not outcome.is_deleted:
                    kept.add_metric([outcome.value], tally.count)
            yield GaugeMetricFamily(
                PREFIX + "last_run_timestamp_seconds",
                "When the last run began, by the store's clock.",
                value=totals.last.store_now_ns / 1e9,
            )
        yield kept
