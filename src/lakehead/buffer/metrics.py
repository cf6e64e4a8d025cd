"""The buffer's metrics for Prometheus: every name stands here."""

from collections.abc import Iterator
from itertools import accumulate
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from lakehead.buffer.counts import DURATIONS, Counts

PREFIX = "lakehead_buffer_"

COUNTERS = {
    "batches_flushed": "Batches that are stored and queued.",
    "entries_flushed": "Entries in those batches.",
    "bytes_flushed": "Bytes of keys and values in those batches.",
    "flushes_failed": "Batches that could not be stored or queued, or of which that is not known.",
    "batches_stored_again": "Batches stored a second time because orphans were deleted meanwhile.",
    "batches_collected": "Batches that were read and decoded.",
    "entries_collected": "Entries in those batches.",
    "bytes_collected": "Bytes of those batches as they are stored.",
    "acks": "Batches that were acknowledged.",
    "claims_lost": "Batches that were held when another collector took over.",
    "quarantined": "Batches that were set aside because they could not be read.",
    "cleaned_up": "Acknowledged locations that were removed.",
    "cleanups_failed": "Clean-ups that were given up; the next one makes up for them.",
    "heartbeats_failed": "Heartbeats that did not get through.",
    "orphans_deleted": "Batches deleted that were stored and never queued.",
}
BY_ROLE = {
    "manifest_writes": "Tries to write a manifest.",
    "manifest_conflicts": "Of those, the ones that met another writer.",
}
GAUGES = {"bytes_unflushed": "Bytes of entries in memory that are not durable yet."}
BY_MANIFEST = {
    "queue_length": "Locations that are not acknowledged yet, when the queue was last looked at.",
    "queue_bytes": "Bytes of the batches at those locations.",
    "oldest_seconds": "Age of the first of those locations.",
}
DURATION = "flush_seconds"
DURATION_HELP = "Time from the first entry of a batch until it is durable."


class Registry(Protocol):
    """Where metrics are asked for, such as Prometheus' own registry."""

    def register(self, collector: Collector) -> None:
        """Ask it from now on."""
        ...


class BufferMetrics(Collector):
    """Tells the counts of one process. `register` it once for each `Counts`."""

    def __init__(self, counts: Counts) -> None:
        self._counts = counts

    def collect(self) -> Iterator[Metric]:
        """Every metric with its present value."""
        counts = self._counts
        for name, told in COUNTERS.items():
            yield CounterMetricFamily(PREFIX + name, told, value=getattr(counts, name))
        for name, told in GAUGES.items():
            yield GaugeMetricFamily(PREFIX + name, told, value=getattr(counts, name))
        for name, told in BY_ROLE.items():
            by_role = CounterMetricFamily(PREFIX + name, told, labels=["role"])
            for role, value in getattr(counts, name).items():
                by_role.add_metric([role], value)
            yield by_role
        for name, told in BY_MANIFEST.items():
            by_manifest = GaugeMetricFamily(PREFIX + name, told, labels=["manifest"])
            for manifest, value in getattr(counts, name).items():
                by_manifest.add_metric([manifest], value)
            yield by_manifest
        bounds = [*map(str, DURATIONS), "+Inf"]
        buckets = list(zip(bounds, accumulate(counts.flush_classes), strict=True))
        yield HistogramMetricFamily(PREFIX + DURATION, DURATION_HELP, buckets=buckets, sum_value=counts.flush_seconds)


def export_metrics(counts: Counts, registry: Registry) -> None:
    """Let a registry tell these counts whenever it is asked."""
    registry.register(BufferMetrics(counts))
