"""The receivers' application over a recorder in memory, and senders of requests to it."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import cramjam
import httpx
import pyarrow as pa

from lakehead.agent.counts import AgentCounts
from lakehead.agent.framed_batch import FramedBatch
from lakehead.agent.metrics import AgentMetrics
from lakehead.agent.parked import ParkedBatch
from lakehead.agent.receive.http_app import ReceiverApp
from lakehead.agent.receive.receiver_settings import ReceiverSettings
from lakehead.agent.spool_entry import ParkReason, Spooled, SpoolEntry, SpoolStatus
from lakehead.agent.spool_errors import KeyReused
from lakehead.agent.status import AgentStatus, Flushed
from lakehead.wire.batch_identity import BatchIdentity
from lakehead.wire.record_schemas import FrameKind
from lakehead.wire.request_id import RequestId
from tests.unit.agent.support import SleepingClock

PROTOBUF, JSON, NDJSON = "application/x-protobuf", "application/json", "application/x-ndjson"
WRITE_V1 = {"Content-Type": PROTOBUF, "Content-Encoding": "snappy", "X-Prometheus-Remote-Write-Version": "0.1.0"}
WRITE_V2 = {
    "Content-Type": f"{PROTOBUF};proto=io.prometheus.write.v2.Request",
    "Content-Encoding": "snappy",
    "X-Prometheus-Remote-Write-Version": "2.0.0",
}
METRICS, LOGS, WRITE = "/v1/metrics", "/v1/logs", "/api/v1/write"
JSON_SAMPLES, JSON_LOGS = "/v1/json/samples", "/v1/json/logs"


def snappy(message: Any) -> bytes:
    """A message, or bytes, as remote write sends them."""
    return bytes(cramjam.snappy.compress_raw(message if isinstance(message, bytes) else message.SerializeToString()))


async def until(holds: Callable[[], bool]) -> None:
    """Let others go on until something holds. It fails if it never does."""
    for _ in range(1_000_000):
        if holds():
            return
        await asyncio.sleep(0)
    raise TimeoutError


@dataclass
class MemoryRecorder:
    """Keeps records in memory as a spool does on disk."""

    error: Exception | None = None
    """What the next `append` raises."""

    full: Exception | None = None
    """What `check` raises."""

    appended: list[tuple[FrameKind, pa.RecordBatch, RequestId | None]] = field(default_factory=list)
    is_open: asyncio.Event = field(default_factory=asyncio.Event)
    """Set: records are on disk at once."""

    is_asked: asyncio.Event = field(default_factory=asyncio.Event)
    known: dict[bytes, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.is_open.set()

    def check(self) -> None:
        if self.full:
            raise self.full

    async def append(self, kind: FrameKind, records: pa.RecordBatch, request: RequestId | None = None) -> Spooled:
        self.is_asked.set()
        await self.is_open.wait()
        if self.error:
            raise self.error
        if request is not None and (body := self.known.get(request.dedupe_id)) is not None:
            if body != request.body_digest:
                raise KeyReused("The Idempotency-Key was used with another body.")
            return Spooled(duplicate=True)
        if request is not None:
            self.known[request.dedupe_id] = request.body_digest
        self.appended.append((kind, records, request))
        return Spooled(duplicate=False)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """All records, but for their times."""
        times = {"time", "start_time", "observed_time"}
        return [
            row
            for _, records, _ in self.appended
            for row in records.drop_columns([name for name in records.schema.names if name in times]).to_pylist()
        ]


IDENTITY = BatchIdentity("agent-a", "boot-1", 0, 9)
PARKED = SpoolEntry(7, FrameKind.SAMPLES, IDENTITY, 5, 0.0, "parked", ParkReason("identity_conflict", "Another frame."))


@dataclass
class ScriptedAgent:
    """An agent whose status a test sets as it likes."""

    parked_entries: list[SpoolEntry] = field(default_factory=list)
    offered: int = 0
    flushed: Flushed = field(default_factory=lambda: Flushed(waiting=0, parked=(), damaged=0))
    flushes: list[float | None] = field(default_factory=list)
    error: Exception | None = None

    def status(self) -> AgentStatus:
        return AgentStatus(
            agent_id="agent-a",
            spool_id="spool-1",
            authority="authority-1",
            spool=SpoolStatus(
                entries=3,
                entry_bytes=100,
                parked=len(self.parked_entries),
                parked_bytes=5,
                damaged=0,
                oldest_seconds=1.5,
                boots={FrameKind.SAMPLES: "boot-1", FrameKind.LOGS: "boot-2"},
                next_sequence={FrameKind.SAMPLES: 10, FrameKind.LOGS: 0},
                remembered_requests=2,
                problem="",
            ),
            parked=tuple(map(ParkedBatch.of, self.parked_entries)),
            paused="",
            gateways=(),
            alerts=(),
        )

    async def flush(self, timeout_seconds: float | None = None) -> Flushed:
        self.flushes.append(timeout_seconds)
        if self.error:
            raise self.error
        return self.flushed

    @property
    def parked(self) -> "ScriptedParked":
        return ScriptedParked(self)

    @property
    def spool(self) -> "ScriptedFrames":
        return ScriptedFrames(self)


@dataclass
class ScriptedParked:
    agent: ScriptedAgent

    def list(self) -> Sequence[ParkedBatch]:
        return tuple(map(ParkedBatch.of, self.agent.parked_entries))

    async def drop(self, numbers: Collection[int]) -> Sequence[ParkedBatch]:
        dropped = [each for each in self.agent.parked_entries if each.number in numbers]
        self.agent.parked_entries = [each for each in self.agent.parked_entries if each not in dropped]
        return tuple(map(ParkedBatch.of, dropped))

    def offer_now(self) -> None:
        self.agent.offered += 1


@dataclass
class ScriptedFrames:
    agent: ScriptedAgent

    def parked(self) -> Sequence[SpoolEntry]:
        return self.agent.parked_entries

    async def read(self, entry: SpoolEntry) -> FramedBatch | None:
        return FramedBatch(entry.identity, b"frame") if entry in self.agent.parked_entries else None


class Receivers:
    """An application, and everything behind it."""

    def __init__(self, settings: ReceiverSettings | None = None) -> None:
        self.recorder = MemoryRecorder()
        self.agent = ScriptedAgent()
        self.metrics = AgentMetrics()
        self.metrics.watch_agent(AgentCounts(), self.agent.status)
        self.clock = SleepingClock()
        self.app = ReceiverApp(
            recorder=self.recorder,
            agent=self.agent,
            metrics=self.metrics,
            clock=self.clock,
            settings=settings or ReceiverSettings(),
        )

    async def request(
        self,
        method: str,
        path: str,
        body: bytes | AsyncIterator[bytes] = b"",
        headers: Mapping[str, str] | None = None,
        *,
        client: tuple[str, int] | None = ("127.0.0.1", 1),
    ) -> httpx.Response:
        transport = httpx.ASGITransport(self.app, client=client)  # type: ignore[arg-type]  # None: a Unix socket
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost:4318") as http:
            return await http.request(method, path, content=body, headers=headers)

    async def post(
        self, path: str, body: bytes | AsyncIterator[bytes] = b"", headers: Mapping[str, str] | None = None
    ) -> httpx.Response:
        return await self.request("POST", path, body, headers)

    async def get(self, path: str, **headers: str) -> httpx.Response:
        return await self.request("GET", path, headers=headers)

    def metric(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(f"lakehead_agent_{name}", labels) or 0.0
