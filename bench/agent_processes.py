"""The processes of the agent's benchmark: agents, floors and gateways on loopback, and what clients send to them."""

import asyncio
import json
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from uuid import uuid4

from bench.agent_samples import RECORDS, OtlpBodies
from bench.gateway_servers import Gateway, make_authority
from bench.http_load import Clients, Loaded, load_process
from bench.server_process import S, Server, start_server
from tests.servers.ports import free_ports
from tests.support.gateways import gateway_config

AGENT = "bench"
LAKEHEAD = str(Path(sys.executable).with_name("lakehead"))


@dataclass(frozen=True, slots=True, kw_only=True)
class OtlpLoad:
    """So many requests of a thousand samples to a server, over so many connections."""

    ports: Sequence[int]
    connections: int
    bodies: int
    first: int
    """The number of the first body: others for each load, or they would be known."""

    new_series: bool = False
    per_second: float | None = None

    def requests(self) -> list[list[Any]]:
        """The requests, each in parts."""
        numbers = range(self.first, self.first + self.bodies)
        bodies = [_bodies().body(number, new_series=self.new_series) for number in numbers]
        return [[request_head("/v1/metrics", "application/x-protobuf", body), body] for body in bodies]


@cache
def _bodies() -> OtlpBodies:
    return OtlpBodies()


def request_head(path: str, content_type: str, body: bytes) -> bytes:
    """What comes before the body of a request."""
    lines = (
        f"POST {path} HTTP/1.1",
        "host: 127.0.0.1",
        f"content-type: {content_type}",
        f"content-length: {len(body)}",
    )
    return "\r\n".join((*lines, "", "")).encode()


class Receiver(Server):
    """A server that takes OTLP."""

    def settle(self) -> None:
        """Return when all that was answered has the form in which it stays."""
        self.request("/v1/flush?timeout_seconds=0", method="POST")

    def check_taken(self, samples: int) -> None:
        """Raise `RuntimeError` unless it has taken so many samples since it was started."""


class AgentServer(Receiver):
    """`lakehead agent`."""

    def counts(self) -> dict[str, float]:
        """Its metrics without labels, by their names."""
        found = re.findall(r"^lakehead_agent_(\w+) (\S+)$", self.request("/metrics"), re.MULTILINE)
        return {name: float(number) for name, number in found}

    def check_taken(self, samples: int) -> None:
        """Raise `RuntimeError` unless it has taken so many samples since it was started."""
        if (found := self.counts()["spooled_records_total"]) != samples:
            raise RuntimeError(f"The agent has put {found:,.0f} samples on disk instead of {samples:,}.")


@dataclass(frozen=True, slots=True)
class Turn:
    """What a load cost a server."""

    loaded: Loaded
    seconds: float
    """Until all that was answered had the form in which it stays: an agent's frames."""

    cpu_seconds: float

    @property
    def samples(self) -> int:
        return self.loaded.requests * RECORDS

    @property
    def rate(self) -> float:
        """Samples a second."""
        return self.samples / self.seconds

    @property
    def cpu_us(self) -> float:
        """CPU of the server for each sample, in µs."""
        return self.cpu_seconds / self.samples * 1e6


class AgentBench:
    """A folder on a real disk, an acceptance authority in it, and clients."""

    def __init__(self, folder: Path, clients: Clients, opened: ExitStack) -> None:
        self.folder = folder
        self.store = f"file://{folder}/store"
        self.clients = clients
        self._opened = opened
        self._bodies = 0
        self._taken: dict[Receiver, int] = {}
        self._gateway_ports = free_ports(2)

    @property
    def gateway_url(self) -> str:
        """Where the gateway is, if there is one."""
        return f"http://127.0.0.1:{self._gateway_ports[0]}"

    def authority(self) -> None:
        """Make the store an acceptance authority, with a token for the agent."""
        ingest, private = ({"port": port} for port in self._gateway_ports)
        more = {"ingest": {"requests_per_second": None}, "metrics_need_token": False, "collector_id": "gateway"}
        config = gateway_config(self.folder, self.store, **more, ingest_listener=ingest, private_listener=private)
        [(_, token)] = asyncio.run(make_authority(config, {}, [AGENT]))
        (self.folder / "token").write_text(token)

    def gateway(self) -> Gateway:
        """Start a gateway of the authority, always at the same address."""
        return self._start(Gateway, [LAKEHEAD, "gateway", str(self.folder / "gateway.json")], addresses=2)

    def agent(self, **settings: Any) -> AgentServer:
        """Start an agent, always with the same spool."""
        token = self.folder / "token"
        if not token.exists():
            token.write_text("none")  # there is no gateway either
        given = {
            "agent_id": AGENT,
            "gateways": [self.gateway_url],
            "token": {"file": str(token)},
            "spool_folder": str(self.folder / "spool"),
            "listener": {"port": 0},
            **settings,
        }
        config = self.folder / "agent.json"
        config.write_text(json.dumps({"agent": given}))
        return self._start(AgentServer, [LAKEHEAD, "agent", str(config)])

    def floor(self, how: str) -> Receiver:
        """Start a floor that does no more than `how` says."""
        folder = self.folder / f"floor-{how}"
        folder.mkdir()
        return self._start(Receiver, [sys.executable, "-m", "bench.agent_floor", str(folder), how])

    def turn(
        self,
        server: Receiver,
        *,
        connections: int,
        bodies: int,
        new_series: bool = False,
        per_second: float | None = None,
    ) -> Turn:
        """Send so many bodies to a server, and wait until all is done. Raises `RuntimeError` if it lacks some."""
        load = OtlpLoad(
            ports=[server.port],
            connections=connections,
            bodies=bodies,
            first=self._bodies,
            new_series=new_series,
            per_second=per_second,
        )
        self._bodies += bodies
        self._taken[server] = self._taken.get(server, 0) + bodies * RECORDS
        before = server.cpu_seconds()
        loaded = self.clients.apply(load)
        began = time.perf_counter()
        server.settle()
        seconds = loaded.seconds + time.perf_counter() - began
        server.check_taken(self._taken[server])
        return Turn(loaded, seconds, server.cpu_seconds() - before)

    def _start(self, kind: type[S], command: Sequence[str], *, addresses: int = 1) -> S:
        server = start_server(kind, command, {}, folder=self.folder, addresses=addresses)
        self._opened.callback(server.end)
        return server


@contextmanager
def disk_folder() -> Iterator[Path]:
    """A folder on a real disk: the usual place for temporary files may be memory."""
    with tempfile.TemporaryDirectory(prefix=f".lakehead-bench-{uuid4().hex[:4]}", dir=Path.cwd()) as name:
        yield Path(name)


@contextmanager
def open_bench() -> Iterator[AgentBench]:
    """Everything that is measured with, stopped at the end."""
    with ExitStack() as opened:
        folder = opened.enter_context(disk_folder())
        clients = opened.enter_context(load_process())
        yield AgentBench(folder, clients, opened)
