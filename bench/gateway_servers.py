"""The servers of the gateway's benchmark, each a process of its own on loopback: S3, gateways, bare ones, proxies."""

import asyncio
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit
from uuid import uuid4

from bench.buffer_support import round_trips
from bench.gateway_load import Clients, Load, Loaded, load_process
from lakehead.run.config.config_file import read_config
from lakehead.run.gateway_wiring import GatewayWiring
from lakehead.storage.open_store import open_store
from tests.consumer import aws
from tests.servers.seaweed import BUCKET, Seaweed
from tests.support.gateways import gateway_config

AGENTS = 16
"""Who shares the connections: one agent may have 16 requests under way."""

START_SECONDS = 60.0
SETTLE_SECONDS = 60.0
PAUSE = 0.01
_TICKS = os.sysconf("SC_CLK_TCK")


class Server:
    """A process that listens on loopback."""

    def __init__(self, process: "subprocess.Popen[bytes]", addresses: Sequence[str]) -> None:
        self._process = process
        self.ports = [urlsplit(each).port or 0 for each in addresses]

    @property
    def port(self) -> int:
        """Where batches, or bytes, go."""
        return self.ports[0]

    def cpu_seconds(self) -> float:
        """What all its threads have used."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    def mib(self) -> float:
        """Its memory now: resident pages, those that it shares counted in part (PSS)."""
        lines = Path(f"/proc/{self._process.pid}/smaps_rollup").read_text().splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024

    def finished(self) -> int:
        """How many batches it ever took of which everything is stored."""
        raise NotImplementedError

    def _get(self, port: int, path: str) -> str:
        connection = HTTPConnection("127.0.0.1", port, timeout=START_SECONDS)
        try:
            connection.request("GET", path)
            return connection.getresponse().read().decode()
        finally:
            connection.close()


class Gateway(Server):
    """`lakehead gateway`."""

    def finished(self) -> int:
        """How many batches are accepted, indexed and queued."""
        text = self._get(self.ports[1], "/metrics")
        done = {
            name: float(number)
            for name, number in re.findall(r"^lakehead_gateway_(\w+)_total (\S+)$", text, re.MULTILINE)
        }
        if lost := sum(done[name] for name in ("not_indexed", "not_queued", "left_to_reconciler")):
            raise RuntimeError(f"The gateway left {lost:.0f} batches to the reconciler.")
        return int(min(done["indexed"], done["queued"]))


class Bare(Server):
    """`bench.gateway_bare`."""

    def finished(self) -> int:
        """How many batches have all their puts."""
        return int(self._get(self.port, "/"))


@dataclass
class Turn:
    """What a load cost its servers."""

    loaded: Loaded
    seconds: float
    """Until everything that follows the answers was stored too."""

    cpu_seconds: float
    idle: float
    """The share of all cores of the machine that nobody used meanwhile."""

    @property
    def rate(self) -> float:
        """Batches a second."""
        return self.loaded.batches / self.seconds

    @property
    def cpu_ms(self) -> float:
        """CPU of the servers for each batch, in ms."""
        return self.cpu_seconds / self.loaded.batches * 1e3


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
        self.tokens = asyncio.run(self._authority())

    def gateway(self, endpoint: str | None = None) -> Gateway:
        """Start a gateway, which reaches the store by an endpoint."""
        program = str(Path(sys.executable).with_name("lakehead"))
        return Gateway(*self._start([program, "gateway", str(self._config)], self._env(endpoint), addresses=2))

    def bare(self) -> Bare:
        """Start a bare server on the same store, in a prefix of its own."""
        url = f"s3://{BUCKET}/{uuid4().hex}"
        return Bare(*self._start([sys.executable, "-m", "bench.gateway_bare", url], self._env(None), addresses=1))

    def far(self, milliseconds: float) -> str:
        """Start a proxy that makes the store so far away. Returns its endpoint."""
        port = str(urlsplit(self.seaweed.endpoint).port)
        command = [sys.executable, "-m", "bench.delaying_proxy", port, str(milliseconds)]
        proxy = Server(*self._start(command, {}, addresses=1))
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
        self, servers: Sequence[Server], *, connections: int, batches: int, per_second: float | None = None
    ) -> Turn:
        """Send so many batches to servers, with so many connections to each, and wait until all is done."""
        self._loads += 1
        load = Load(
            ports=[each.port for each in servers],
            connections=connections,
            batches=batches,
            boot=f"boot-{self._loads:04}",
            tokens=self.tokens,
            per_second=per_second,
        )
        expected = sum(each.finished() for each in servers) + batches
        before, idle = sum(each.cpu_seconds() for each in servers), _idle_seconds()
        loaded = self._clients.apply(load)
        began = time.perf_counter()
        _until_finished(servers, expected)
        seconds = loaded.seconds + time.perf_counter() - began
        return Turn(
            loaded,
            seconds,
            sum(each.cpu_seconds() for each in servers) - before,
            (_idle_seconds() - idle) / (seconds * (os.cpu_count() or 1)),
        )

    def _start(
        self, command: Sequence[str], env: Mapping[str, str], *, addresses: int
    ) -> tuple["subprocess.Popen[bytes]", list[str]]:
        """Start a process, and wait until it says where it listens."""
        log = self.folder / f"{uuid4().hex}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(command, stdout=output, stderr=output, env={**os.environ, **env})
        self._opened.callback(_end, process)
        ends = time.monotonic() + START_SECONDS
        while len(found := re.findall(r"http://127\.0\.0\.1:\d+", log.read_text())) < addresses:
            if process.poll() is not None or time.monotonic() > ends:
                raise RuntimeError(f"{' '.join(command[:3])} does not start: {log.read_text()[-2000:]}")
            time.sleep(PAUSE)
        return process, found

    def _env(self, endpoint: str | None) -> dict[str, str]:
        return aws(self.seaweed, endpoint=endpoint)

    async def _authority(self) -> list[tuple[str, str]]:
        """Make the store an authority. Returns agents and their tokens."""
        config = read_config(self._config).gateway
        assert config is not None  # noqa: S101 - for the type checker
        wiring = GatewayWiring(config, self._env(None))
        await wiring.store.ensure_probed()
        await wiring.authority.init(config.ingest.acceptance, by="bench")
        agents = [f"agent-{number:02}" for number in range(AGENTS)]
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


def _idle_seconds() -> float:
    """How long the cores of the machine had nothing to do since it was started, all together."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()
    return (int(fields[4]) + int(fields[5])) / _TICKS  # idle, and idle while a disk works


def _until_finished(servers: Sequence[Server], batches: int) -> None:
    ends = time.monotonic() + SETTLE_SECONDS
    while sum(each.finished() for each in servers) < batches:
        if time.monotonic() > ends:
            raise TimeoutError("What follows acceptances does not end.")
        time.sleep(PAUSE)


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
