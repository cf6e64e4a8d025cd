"""The Prometheus metrics of pipelines."""

from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from lakehead.consume.coordinator import QueueCoordinator

PREFIX = "lakehead_consume_"

COUNTERS = {
    "received": "Messages received, each delivery counted.",
    "duplicates": "Units that had landed, or were given up, when a message announced them.",
    "busy": "Units that another pipeline was working on.",
    "ignored": "Records of messages that announce nothing to land.",
    "filtered": "Objects that no route takes.",
    "landed": "Units that landed.",
    "landings": "Snapshots published.",
    "rows": "Rows landed.",
    "bytes": "Bytes of the objects that landed.",
    "rescued": "Rows that have something in _rescued.",
    "overlapping": "Records that had landed with another batch, are the same, and were dropped.",
    "overlaps_quarantined": "Accepted batches in quarantine, because other records than theirs had landed.",
    "records_quarantined": "Records of those batches that did not land.",
    "failed": "Tries of units that failed.",
    "dead_letters": "Units and messages that became dead letters.",
    "acknowledged": "Messages acknowledged.",
    "unacknowledged": "Acknowledgements that the queue refused.",
    "lost": "Messages that could not be kept invisible.",
    "taken_over": "Units of another pipeline that had shown no sign of life.",
    "removed": "Objects deleted, moved or tagged after landing.",
    "not_removed": "Objects that could not be deleted, moved or tagged after landing.",
    "pruned": "Units forgotten after the deduplication window.",
}
GAUGES = {
    "held_messages": "Messages that are held.",
    "remembered_units": "Units that the state remembers of the pipeline's tables, as of the last clean-up.",
    "lag_seconds": "The age of the oldest message that is held, if the queue tells it.",
}


class ConsumeMetrics(Collector):
    """Exports the counts of the pipelines of a process."""

    def __init__(self, pipelines: Callable[[], Mapping[str, QueueCoordinator]]) -> None:
        """`pipelines` returns those that run at the moment, by name."""
        self._pipelines = pipelines

    def collect(self) -> Iterator[Metric]:
        """Yield every metric with its current value, for each pipeline."""
        pipelines = self._pipelines()
        for name, description in COUNTERS.items():
            counter = CounterMetricFamily(PREFIX + name, description, labels=["pipeline"])
            for pipeline, coordinator in pipelines.items():
                counter.add_metric([pipeline], getattr(coordinator.counts, name))
            yield counter
        for name, description in GAUGES.items():
            gauge = GaugeMetricFamily(PREFIX + name, description, labels=["pipeline"])
            for pipeline, coordinator in pipelines.items():
                gauge.add_metric([pipeline], getattr(coordinator, name) or 0)
            yield gauge
