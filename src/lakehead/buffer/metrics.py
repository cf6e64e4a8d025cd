"""The buffer's Prometheus metrics: all names, and the exporter."""

from collections.abc import Iterator
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from lakehead.buffer.counts import BufferCounts

PREFIX = "lakehead_buffer_"

COUNTERS = {
    "batches_flushed": "Batches that are stored and queued.",
    "entries_flushed": "Entries in those batches.",
    "bytes_flushed": "Bytes of keys and values in those batches.",
    "flushes_failed": "Batches that could not be stored or queued, or whose outcome is unknown.",
    "batches_stored_again": "Batches stored a second time because orphan GC ran meanwhile.",
    "batches_collected": "Batches that were read and decoded.",
    "entries_collected": "Entries in those batches.",
    "bytes_collected": "Bytes of those batches as they are stored.",
    "acks": "Batches that were acknowledged.",
    "claims_lost": "Batches that were held when another collector took over.",
    "quarantined": "Batches that were moved to quarantine.",
    "cleaned_up": "Acknowledged locations that were removed.",
    "cleanups_failed": "Cleanups that failed; the next one removes what is left.",
    "heartbeats_failed": "Heartbeats that failed.",
    "orphans_deleted": "Batches deleted that were stored and never queued.",
}
BY_ROLE = {
    "manifest_writes": "Attempts to write a manifest.",
    "manifest_conflicts": "Of those, the ones refused because another writer was first.",
}
GAUGES = {"bytes_unflushed": "Bytes of entries in memory that are not durable yet."}
BY_MANIFEST = {
    "queue_length": "Locations that were not acknowledged when the queue was last read.",
    "queue_bytes": "Bytes of the batches at those locations.",
    "oldest_seconds": "Age of the first of those locations.",
}


class Registry(Protocol):
    """A registry of metrics, such as `prometheus_client.REGISTRY`."""

    def register(self, collector: Collector) -> None:
        """Add a collector of metrics."""
        ...


class BufferMetrics(Collector):
    """Exports one `BufferCounts`."""

    def __init__(self, counts: BufferCounts) -> None:
        self._counts = counts

    def collect(self) -> Iterator[Metric]:
        """Yield every metric with its current value."""
        counts = self._counts
        for name, description in COUNTERS.items():
            yield CounterMetricFamily(PREFIX + name, description, value=getattr(counts, name))
        for name, description in GAUGES.items():
            yield GaugeMetricFamily(PREFIX + name, description, value=getattr(counts, name))
        for name, description in BY_ROLE.items():
            by_role = CounterMetricFamily(PREFIX + name, description, labels=["role"])
            for role, value in getattr(counts, name).items():
                by_role.add_metric([role], value)
            yield by_role
        for name, description in BY_MANIFEST.items():
            by_manifest = GaugeMetricFamily(PREFIX + name, description, labels=["manifest"])
            for manifest, value in getattr(counts, name).items():
                by_manifest.add_metric([manifest], value)
            yield by_manifest
        yield from counts.flush_seconds.collect()


def export_metrics(counts: BufferCounts, registry: Registry) -> None:
    """Register the counts with a Prometheus registry. Call it once for each `BufferCounts`."""
    registry.register(BufferMetrics(counts))
