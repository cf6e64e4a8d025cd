"""An agent's Prometheus metrics, in a registry of its own."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from lakehead.agent.counts import AgentCounts
from lakehead.agent.status import AgentStatus

PREFIX = "lakehead_agent_"
SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)

COUNTS: Mapping[str, tuple[str, Callable[[AgentCounts], int]]] = {
    "spooled_requests": ("Calls and requests whose records are on disk.", lambda counts: counts.requests),
    "spooled_records": ("Records that were put on disk.", lambda counts: counts.records),
    "duplicate_requests": ("Requests that were known, and not put on disk again.", lambda counts: counts.duplicates),
    "refused_requests": (
        "Calls and requests that the spool did not take, because it was full or could not be used.",
        lambda counts: counts.refused,
    ),
    "attempts": ("Attempts to send a batch.", lambda counts: counts.attempts),
    "failed_attempts": ("Attempts after which the same bytes had to be sent again.", lambda c: c.failed_attempts),
    "accepted_batches": ("Batches that a gateway accepted.", lambda counts: counts.accepted),
    "accepted_before_batches": (
        "Those of them that had been accepted before: an earlier answer was lost.",
        lambda counts: counts.accepted_before,
    ),
    "sent_bytes": ("Bytes of the frames that were accepted.", lambda counts: counts.sent_bytes),
    "requeued_batches": ("Void batches whose records got new sequence numbers.", lambda counts: counts.requeued),
    "dropped_batches": ("Parked batches that were dropped by an operator's decision.", lambda c: c.dropped),
    "pauses": ("Times that sending was paused because the token or the agent was refused.", lambda c: c.pauses),
    "foreign_receipts": (
        "Receipts of another acceptance authority, which count for nothing.",
        lambda c: c.foreign_receipts,
    ),
    "quarantined_boots": (
        "Boots that were left because gateways take nothing more of them.",
        lambda c: c.quarantined_boots,
    ),
    "unexpected_errors": ("Errors that nobody foresaw. See the log.", lambda counts: counts.unexpected_errors),
}
STATUS: Mapping[str, tuple[str, Callable[[AgentStatus], float]]] = {
    "spool_batches": ("Batches that wait to be accepted.", lambda status: status.spool.entries),
    "spool_bytes": ("Their bytes on disk.", lambda status: status.spool.entry_bytes),
    "spool_oldest_seconds": (
        "For how much of the agent's uptime the oldest of them has waited; 0 if there is none.",
        lambda status: status.spool.oldest_seconds,
    ),
    "parked_batches": ("Batches that were refused or are conflicts. An operator must look.", lambda s: s.spool.parked),
    "parked_bytes": ("Their bytes on disk.", lambda status: status.spool.parked_bytes),
    "damaged_files": (
        "Files of the spool that are not what was written. An operator must look.",
        lambda s: s.spool.damaged,
    ),
    "remembered_requests": ("Requests that would be known if they came again.", lambda s: s.spool.remembered_requests),
    "spool_has_problem": ("1 while the spool takes nothing, else 0.", lambda status: bool(status.spool.problem)),
    "paused": ("1 while nothing is sent because the token or the agent was refused, else 0.", lambda s: bool(s.paused)),
}


class InFlight(Protocol):
    """What receivers are busy with."""

    @property
    def requests(self) -> int:
        """Requests under way."""
        ...

    @property
    def bytes_held(self) -> int:
        """Bytes reserved for them."""
        ...


@dataclass(slots=True)
class AgentMetrics:
    """What one agent process counts and measures. What is watched is shown from then on."""

    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    requests: Counter = field(init=False)
    request_seconds: Histogram = field(init=False)
    body_bytes: Counter = field(init=False)
    received_records: Counter = field(init=False)
    rejected_records: Counter = field(init=False)
    disconnected: Counter = field(init=False)

    def __post_init__(self) -> None:
        """Make every metric of the receivers."""
        self.requests = self._counter("requests", "Requests answered.", "route", "status")
        self.request_seconds = Histogram(
            PREFIX + "request_seconds",
            "From the head of a request to its answer.",
            ["route"],
            registry=self.registry,
            buckets=SECONDS,
        )
        self.body_bytes = self._counter("body_bytes", "Bytes of bodies as they were sent.", "route")
        self.received_records = self._counter(
            "received_records", "Records of requests that were answered as spooled, duplicates too.", "route"
        )
        self.rejected_records = self._counter("rejected_records", "Records that cannot be kept.", "route")
        self.disconnected = self._counter("disconnected", "Requests whose sender went away before their end.", "route")

    def _counter(self, name: str, description: str, *labels: str) -> Counter:
        return Counter(PREFIX + name, description, labels, registry=self.registry)

    def watch_receivers(self, in_flight: InFlight) -> None:
        """Show what is under way."""
        self.registry.register(_InFlight(in_flight))

    def watch_agent(self, counts: AgentCounts, status: Callable[[], AgentStatus]) -> None:
        """Show what an agent has done, and how it is. Its status is asked for whenever the metrics are."""
        self.registry.register(_Counts(counts))
        self.registry.register(_Status(status))

    def text(self) -> bytes:
        """All metrics in Prometheus's text format."""
        return generate_latest(self.registry)


class _InFlight(Collector):
    def __init__(self, in_flight: InFlight) -> None:
        self._in_flight = in_flight

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily(PREFIX + "requests_in_flight", "Requests under way.", value=self._in_flight.requests)
        yield GaugeMetricFamily(
            PREFIX + "bytes_in_flight", "Bytes reserved for their bodies.", value=self._in_flight.bytes_held
        )


class _Counts(Collector):
    def __init__(self, counts: AgentCounts) -> None:
        self._counts = counts

    def collect(self) -> Iterator[Metric]:
        for name, (description, value) in COUNTS.items():
            yield CounterMetricFamily(PREFIX + name, description, value=value(self._counts))
        parked = CounterMetricFamily(
            PREFIX + "batches_parked", "Batches that were parked, by the gateway's word for why.", labels=["code"]
        )
        for code, times in self._counts.parked.items():
            parked.add_metric([code], times)
        yield parked


class _Status(Collector):
    def __init__(self, status: Callable[[], AgentStatus]) -> None:
        self._status = status

    def describe(self) -> Iterator[Metric]:
        """Nothing: the agent need not be open yet when this is registered."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        status = self._status()
        for name, (description, value) in STATUS.items():
            yield GaugeMetricFamily(PREFIX + name, description, value=value(status))
        alerts = GaugeMetricFamily(
            PREFIX + "alerts", "What an operator should know: how often it happened while it is so.", labels=["kind"]
        )
        for alert in status.alerts:
            alerts.add_metric([alert.kind.value], alert.times)
        yield alerts
        gateways = GaugeMetricFamily(
            PREFIX + "gateway_avoided_seconds", "For how long a gateway that failed is avoided.", labels=["gateway"]
        )
        for gateway in status.gateways:
            gateways.add_metric([gateway.name], gateway.avoided_seconds)
        yield gateways
