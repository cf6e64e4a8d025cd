"""The servers of the gateway's benchmark, each a process of its own on loopback: S3, gateways, bare ones, proxies."""

import asyncio
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit
from uuid import uuid4

from bench.buffer_support import round_trips
from bench.gateway_load import BatchLoad
from bench.http_load import Clients, Loaded, load_process
from bench.server_process import S, Server, start_server
from lakehead.run.config.config_file import read_config
from lakehead.run.gateway_wiring import GatewayWiring
from lakehead.storage.open_store import open_store
from tests.consumer import aws
from tests.servers.seaweed import BUCKET, Seaweed
from tests.support.gateways import gateway_config

AGENTS = 16
"""Who shares the connections: one agent may have 16 requests under way."""

SETTLE_SECONDS = 60.0
SETTLE_PAUSE = 0.04
"""How often servers are asked whether all is done: each time costs a gateway as much as half a batch."""


class BatchServer(Server):
    """A server that takes batches."""

    def finished(self) -> int:
        """How many batches it ever took of which everything is stored."""
        raise NotImplementedError


class Gateway(BatchServer):
    """`lakehead gateway`."""

    def finished(self) -> int:
        """How many batches are accepted, indexed and queued."""
        text = self.request("/metrics", port=self.ports[1])
        done = {
            name: float(number)
            for name, number in re.findall(r"^lakehead_gateway_(\w+)_total (\S+)$", text, re.MULTILINE)
        }
        if lost := sum(done[name] for name in ("not_indexed", "not_queued", "left_to_reconciler")):
            raise RuntimeError(f"The gateway left {lost:.0f} batches to the reconciler.")
        return int(min(done["indexed"], done["queued"]))


class Bare(BatchServer):
    """`bench.gateway_bare`."""

    def finished(self) -> int:
        """How many batches have all their puts."""
        return int(self.request("/"))


@dataclass
class Turn:
    """What a load cost its servers."""

    loaded: Loaded
    seconds: float
    """Until everything that follows the answers was stored too."""

    cpu_seconds: float

    @property
    def rate(self) -> float:
        """Batches a second."""
        return self.loaded.requests / self.seconds

    @property
    def cpu_ms(self) -> float:
        """CPU of the servers for each batch, in ms."""
        return self.cpu_seconds / self.loaded.requests * 1e3


class GatewayBench:
    """An S3 server with an acceptance authority, and clients."""

    def __init__(self, folder: Path, seaweed: Seaweed, clients: Clients, opened: ExitStack) -> None:
        self.folder = folder
        self.seaweed = seaweed
        self.url = f"s3://{BUCKET}/{uuid4().hex}"
        self._clients = clients
        self._opened = opened
        self._loads = 0
        more = {"ingest": {"requests_per_second": None}, "metrics_need_token": False, "collector_id": "gateway"}
        self._config = gateway_config(folder, self.url, **more)
        agents = [f"agent-{number:02}" for number in range(AGENTS)]
        self.tokens = asyncio.run(make_authority(self._config, self._env(None), agents))

    def gateway(self, endpoint: str | None = None) -> Gateway:
        """Start a gateway, which reaches the store by an endpoint."""
        program = str(Path(sys.executable).with_name("lakehead"))
        return self._start(Gateway, [program, "gateway", str(self._config)], self._env(endpoint), addresses=2)

    def bare(self) -> Bare:
        """Start a bare server on the same store, in a prefix of its own."""
        url = f"s3://{BUCKET}/{uuid4().hex}"
        return self._start(Bare, [sys.executable, "-m", "bench.gateway_bare", url], self._env(None))

    def far(self, milliseconds: float) -> str:
        """Start a proxy that makes the store so far away. Returns its endpoint."""
        port = str(urlsplit(self.seaweed.endpoint).port)
        command = [sys.executable, "-m", "bench.delaying_proxy", port, str(milliseconds)]
        proxy = self._start(Server, command, {})
        return f"http://127.0.0.1:{proxy.port}"

    def objects(self) -> int:
        """How many objects the authority has."""

        async def count() -> int:
            found = 0
            async for page in open_store(self.url, self.seaweed.settings()).list():
                found += len(page)
            return found

        return asyncio.run(count())

    def turn(
        self, servers: Sequence[BatchServer], *, connections: int, batches: int, per_second: float | None = None
    ) -> Turn:
        """Send so many batches to servers, with so many connections to each, and wait until all is done."""
        self._loads += 1
        load = BatchLoad(
            ports=[each.port for each in servers],
            connections=connections,
            batches=batches,
            boot=f"boot-{self._loads:04}",
            tokens=self.tokens,
            per_second=per_second,
        )
        expected = sum(each.finished() for each in servers) + batches
        before = sum(each.cpu_seconds() for each in servers)
        loaded = self._clients.apply(load)
        began = time.perf_counter()
        _until_finished(servers, expected)
        seconds = loaded.seconds + time.perf_counter() - began
        return Turn(loaded, seconds, sum(each.cpu_seconds() for each in servers) - before)

    def _start(self, kind: type[S], command: Sequence[str], env: Mapping[str, str], *, addresses: int = 1) -> S:
        """Start a process, and wait until it says where it listens."""
        server = start_server(kind, command, env, folder=self.folder, addresses=addresses)
        self._opened.callback(server.end)
        return server

    def _env(self, endpoint: str | None) -> dict[str, str]:
        return aws(self.seaweed, endpoint=endpoint)


async def make_authority(config_file: Path, env: Mapping[str, str], agents: Sequence[str]) -> list[tuple[str, str]]:
    """Make the store of a gateway's configuration an authority. Returns agents and their tokens."""
    config = read_config(config_file).gateway
    assert config is not None  # noqa: S101 - for the type checker
    wiring = GatewayWiring(config, env)
    await wiring.store.ensure_probed()
    await wiring.authority.init(config.ingest.acceptance, by="bench")
    return [(agent, (await wiring.tokens.add(by="bench", agent_id=agent)).token) for agent in agents]


def store_round_trips(url: str, seaweed: Seaweed, endpoint: str) -> list[float]:
    """Seconds that single small requests to the store take, by an endpoint."""
    return asyncio.run(round_trips(open_store(url, seaweed.settings(endpoint=endpoint))))


@contextmanager
def open_bench() -> Iterator[GatewayBench]:
    """Everything that is measured with, stopped at the end."""
    with ExitStack() as opened:
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="lakehead-bench-")))
        seaweed = Seaweed(folder / "seaweed")
        opened.callback(seaweed.stop)
        seaweed.start()
        clients = opened.enter_context(load_process())
        yield GatewayBench(folder, seaweed, clients, opened)


def _until_finished(servers: Sequence[BatchServer], batches: int) -> None:
    ends = time.monotonic() + SETTLE_SECONDS
    while sum(each.finished() for each in servers) < batches:
        if time.monotonic() > ends:
            raise TimeoutError("What follows acceptances does not end.")
        time.sleep(SETTLE_PAUSE)
