"""Counts of what a process has done with its queues; `metrics` exports them."""

from dataclasses import dataclass, field

from prometheus_client import Histogram

PRODUCER, CONSUMER = "producer", "consumer"
"""The two roles: producers write the producer manifest, consumers the consumer manifest."""

FLUSH_SECONDS_BUCKETS = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Upper bounds of the histogram of flush durations, in seconds."""


def _by_role() -> dict[str, int]:
    return {PRODUCER: 0, CONSUMER: 0}


def _flush_seconds() -> Histogram:
    return Histogram(
        "lakehead_buffer_flush_seconds",
        "Time from the first entry of a batch until it is durable.",
        buckets=FLUSH_SECONDS_BUCKETS,
        registry=None,  # registered with the other counts, by `export_metrics`
    )


@dataclass(slots=True)
class BufferCounts:
    """Counters that only grow, a few gauges, and the histogram of flush durations."""

    batches_flushed: int = 0
    entries_flushed: int = 0
    bytes_flushed: int = 0
    flushes_failed: int = 0
    flush_seconds: Histogram = field(default_factory=_flush_seconds)
    bytes_unflushed: int = 0
    """Gauge: bytes of entries that are in memory and not yet durable."""

    batches_stored_again: int = 0
    """Batches stored a second time because orphan GC ran meanwhile."""

    batches_collected: int = 0
    entries_collected: int = 0
    bytes_collected: int = 0
    acks: int = 0
    claims_lost: int = 0
    quarantined: int = 0
    cleaned_up: int = 0
    cleanups_failed: int = 0
    heartbeats_failed: int = 0
    orphans_deleted: int = 0
    manifest_writes: dict[str, int] = field(default_factory=_by_role)
    manifest_conflicts: dict[str, int] = field(default_factory=_by_role)
    queue_length: dict[str, int] = field(default_factory=dict)
    """Gauge: locations not yet acknowledged at the last read of the queue, by producer manifest."""

    queue_bytes: dict[str, int] = field(default_factory=dict)
    """Gauge: bytes of the batches at those locations, by producer manifest."""

    oldest_seconds: dict[str, float] = field(default_factory=dict)
    """Gauge: age of the first of those locations, by producer manifest."""

    def flushed(self, *, entries: int, size: int, seconds: float) -> None:
        """Count a batch that has become durable."""
        self.batches_flushed += 1
        self.entries_flushed += entries
        self.bytes_flushed += size
        self.flush_seconds.observe(seconds)
