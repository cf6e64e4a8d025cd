"""A gateway's Prometheus metrics, in a registry of its own."""

from collections import Counter as Counts
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from lakehead.accept.bucket_settings import Check, Severity
from lakehead.accept.bucket_watch import BucketWatch
from lakehead.accept.counts import AcceptCounts
from lakehead.accept.spool import Spool
from lakehead.accept.spool_uploads import SpoolCounts
from lakehead.gateway.admission import Admission
from lakehead.gateway.connections import Connections
from lakehead.gateway.error_codes import ErrorCode

PREFIX = "lakehead_gateway_"
SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)

SIDE_EFFECTS = {
    "indexed": "Accepted batches whose derived indexes were written.",
    "not_indexed": "Accepted batches whose derived indexes were not written; the reconciler does it.",
    "queued": "Accepted batches that were queued for landing.",
    "not_queued": "Accepted batches that may not be queued for landing; the reconciler does it.",
    "left_to_reconciler": "Accepted batches for which nothing was tried, because too many others waited.",
}
SPOOL = {
    "landed": "Batches of the spool that reached the object store.",
    "failed": "Tries to land a batch of the spool that failed, and are made again.",
    "conflicts": "Batches of the spool that are in quarantine: the store had accepted another frame.",
    "kept": "Batches of the spool whose identity is void in the store: an operator must look at them.",
}
CONNECTIONS = {
    "refused": "Connections that were answered 503 because too many were open.",
    "evicted": "Connections without a request that were closed in favour of new ones.",
    "timed_out": "Connections that were closed because no whole request head came in time, or answers were unread.",
    "malformed": "Connections that were closed because what came was no HTTP, too large, or too much at once.",
}


@dataclass(slots=True)
class GatewayMetrics:
    """What one gateway process counts and measures."""

    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    requests: Counter = field(init=False)
    request_seconds: Histogram = field(init=False)
    accept_seconds: Histogram = field(init=False)
    store_seconds: Histogram = field(init=False)
    body_bytes: Counter = field(init=False)
    accepted: Counter = field(init=False)
    duplicates: Counter = field(init=False)
    conflicts: Counter = field(init=False)
    conflicts_not_recorded: Counter = field(init=False)
    voids: Counter = field(init=False)
    unavailable: Counter = field(init=False)
    disconnected: Counter = field(init=False)

    def __post_init__(self) -> None:
        """Make every metric, so that each is shown from the start."""
        self.requests = self._counter("requests", "Requests answered.", "listener", "status", "code")
        self.request_seconds = self._histogram("request_seconds", "From the head of an upload to its answer.", "status")
        self.accept_seconds = self._histogram(
            "accept_seconds", "What an upload waited for the store: the latency of acceptance.", "outcome"
        )
        self.store_seconds = self._histogram(
            "store_request_seconds", "Single requests to the store that uploads wait for.", "operation", "folder"
        )
        self.body_bytes = self._counter("body_bytes", "Bytes of bodies that were read in full.")
        self.accepted = self._counter("accepted", "Batches that this gateway accepted.")
        self.duplicates = self._counter("duplicates", "Batches that were accepted before.")
        self.conflicts = self._counter("conflicts", "Frames under an identity accepted with another hash.")
        self.conflicts_not_recorded = self._counter(
            "conflicts_not_recorded", "Conflicts whose quarantine manifest may not be stored."
        )
        self.voids = self._counter("voids", "Frames under an identity that is void.")
        self.unavailable = self._counter("unavailable", "Answers 503, by their code.", "code")
        self.disconnected = self._counter("disconnected", "Uploads whose client went away before the end of the body.")
        for code in ErrorCode:
            if code.status == 503:
                self.unavailable.labels(code.value)

    def watch(self, admission: Admission) -> None:
        """Show what is under way."""
        self.registry.register(_InFlight(admission))

    def watch_side_effects(self, counts: AcceptCounts) -> None:
        """Show what follows acceptances."""
        self.registry.register(_SideEffects(counts))

    def watch_spool(self, spool: Spool, counts: SpoolCounts) -> None:
        """Show what waits in the spool, and what became of the rest."""
        self.registry.register(_WaitingBatches(spool, counts))

    def watch_connections(self, listeners: Mapping[str, Connections]) -> None:
        """Show the connections of each listener."""
        self.registry.register(_OpenConnections(listeners))

    def watch_bucket(self, bucket: BucketWatch) -> None:
        """Show what was found in the settings of the bucket."""
        self.registry.register(_BucketFindings(bucket))

    def answered(self, listener: str, status: int, code: ErrorCode | None = None) -> None:
        """Count an answer."""
        self.requests.labels(listener, str(status), code.value if code else "").inc()
        if code and status == 503:
            self.unavailable.labels(code.value).inc()

    def text(self) -> bytes:
        """All metrics in the text format."""
        return generate_latest(self.registry)

    def _counter(self, name: str, description: str, *labels: str) -> Counter:
        return Counter(PREFIX + name, description, labels, registry=self.registry)

    def _histogram(self, name: str, description: str, *labels: str) -> Histogram:
        return Histogram(PREFIX + name, description, labels, registry=self.registry, buckets=SECONDS)


class _InFlight(Collector):
    def __init__(self, admission: Admission) -> None:
        self._admission = admission

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily(PREFIX + "requests_in_flight", "Uploads under way.", value=self._admission.requests)
        yield GaugeMetricFamily(
            PREFIX + "bytes_in_flight", "Bytes reserved for their bodies.", value=self._admission.bytes_held
        )


class _SideEffects(Collector):
    def __init__(self, counts: AcceptCounts) -> None:
        self._counts = counts

    def collect(self) -> Iterator[Metric]:
        for name, description in SIDE_EFFECTS.items():
            yield CounterMetricFamily(PREFIX + name, description, value=getattr(self._counts, name))


class _BucketFindings(Collector):
    def __init__(self, bucket: BucketWatch) -> None:
        self._bucket = bucket

    def collect(self) -> Iterator[Metric]:
        found = Counts((each.check, each.severity) for each in self._bucket.findings)
        gauge = GaugeMetricFamily(
            PREFIX + "bucket_findings",
            "Settings of the bucket that weaken acceptance, as of the last check; unknown: not checked.",
            labels=["check", "severity"],
        )
        for check, severity in product(Check, Severity):
            gauge.add_metric([check, severity], found[check, severity])
        yield gauge


class _WaitingBatches(Collector):
    def __init__(self, spool: Spool, counts: SpoolCounts) -> None:
        self._spool = spool
        self._counts = counts

    def collect(self) -> Iterator[Metric]:
        spool = self._spool
        for name, description, value in (
            ("batches", "Accepted batches that are not in the object store yet.", spool.count),
            ("bytes", "Bytes of accepted batches that are not in the object store yet.", spool.total_bytes),
            ("oldest_seconds", "How long the oldest of them has waited; 0 if there is none.", spool.oldest_seconds),
            ("set_aside", "Files of the spool that an operator must look at.", len(spool.aside)),
        ):
            yield GaugeMetricFamily(f"{PREFIX}spool_{name}", description, value=value)
        for name, description in SPOOL.items():
            yield CounterMetricFamily(f"{PREFIX}spool_{name}", description, value=getattr(self._counts, name))


class _OpenConnections(Collector):
    def __init__(self, listeners: Mapping[str, Connections]) -> None:
        self._listeners = listeners

    def collect(self) -> Iterator[Metric]:
        opened = GaugeMetricFamily(PREFIX + "connections", "Open connections.", labels=["listener"])
        for listener, connections in self._listeners.items():
            opened.add_metric([listener], connections.count)
        yield opened
        for name, description in CONNECTIONS.items():
            counter = CounterMetricFamily(PREFIX + "connections_" + name, description, labels=["listener"])
            for listener, connections in self._listeners.items():
                counter.add_metric([listener], getattr(connections, name))
            yield counter
