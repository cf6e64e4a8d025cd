"""Clients that hold connections, or send bodies without an end, cost a gateway bounded memory; others are served."""

import asyncio
import resource
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest
import zstandard

from lakehead.wire.batch_identity import BatchIdentity
from tests.support.async_tests import run_bounded
from tests.support.commands import lakehead_command
from tests.support.effort import effort
from tests.support.gateways import GatewayProcess, gateway_config, sample_frame
from tests.unit.wire.frames import around

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

KIB, MIB = 1 << 10, 1 << 20
IDLE = effort(2_000, soak=10_000)
ATTACKERS = effort(150, soak=400)
AT_ONCE = 200
"""Connections that are opened side by side: fewer than wait for the process to take them."""

BODY, PAYLOAD, IN_FLIGHT, READ_SECONDS = 1 * MIB, 4 * MIB, 8 * MIB, 3.0
THREADS = 2
SLACK = 16 * MIB
"""What is not counted: the interpreter's own fluctuation, buffers of sockets, and what a request costs besides."""

PER_CONNECTION = 24 * KIB
"""`head_bytes`, and what asyncio and uvicorn keep besides: 8 KiB for one that has asked once."""


class Flooded:
    """A gateway with small limits, and the tokens of a modest agent, and of a hostile one for each attack: each may
    hold a quarter of the bytes in flight, and three of the attacks hold all that they may."""

    def __init__(self, folder: Path) -> None:
        limits = {"body_bytes": BODY, "payload_bytes": PAYLOAD, "bytes_in_flight": IN_FLIGHT}
        more = {"read_seconds": READ_SECONDS, "requests_per_second": None}
        self.config = gateway_config(
            folder,
            f"file://{folder}/store",
            ingest={**limits, **more},
            ingest_listener={"port": 0, "max_connections": IDLE + 1_000},
            metrics_need_token=False,
        )
        assert lakehead_command("gateway", "init", self.config).returncode == 0
        self.tokens = {
            agent: lakehead_command("gateway", "token", "add", self.config, "--agent", agent).stdout.strip()
            for agent in ("modest", *(attack.__name__ for attack in ATTACKS))
        }
        self.process = GatewayProcess(self.config, {}, folder / "gateway.log", before=allow_many_files).start()
        self.host, port = self.process.ingest.removeprefix("http://").split(":")
        self.port = int(port)
        self._sent = 0

    async def modest(self) -> None:
        """An upload of somebody else, which is accepted."""
        self._sent += 1
        identity = BatchIdentity("modest", "boot", self._sent * 10, self._sent * 10 + 4)
        headers = {"Authorization": f"Bearer {self.tokens['modest']}"}
        async with httpx.AsyncClient(timeout=60) as http:
            answer = await http.post(
                f"{self.process.ingest}/ingest/v1/batch", content=sample_frame(identity), headers=headers
            )
        assert (answer.status_code, answer.json()["duplicate"]) == (200, False)

    async def metric(self, name: str) -> float:
        async with httpx.AsyncClient(timeout=60) as http:
            text = (await http.get(f"{self.process.private}/metrics")).text
        [line] = [each for each in text.splitlines() if each.startswith(name)]
        return float(line.rpartition(" ")[2])

    def head(self, agent: str, *lines: str) -> bytes:
        words = ("POST /ingest/v1/batch HTTP/1.1", "Host: gateway", f"Authorization: Bearer {self.tokens[agent]}")
        return "\r\n".join((*words, *lines, "", "")).encode()

    def memory(self) -> int:
        """The bytes that the process has in memory now."""
        return self._kib("VmRSS") * KIB

    def most_memory(self) -> int:
        """The most that it had since `forget_most_memory`."""
        return self._kib("VmHWM") * KIB

    def forget_most_memory(self) -> None:
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")

    def _kib(self, name: str) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition(f"{name}:")[2].split()[0])


def allow_many_files() -> None:
    """Raise this process's limit of open files as far as it goes."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flooded]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert hard >= IDLE + 1_000, f"{hard} open files are too few for {IDLE} connections"
    allow_many_files()
    flooded = Flooded(tmp_path_factory.mktemp("gateway"))
    yield flooded
    flooded.process.kill()
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_thousands_of_idle_connections_cost_little_and_others_are_served(gateway: Flooded) -> None:
    """Each has asked once, so that it may stay for `idle_seconds`."""
    opened: list[asyncio.StreamWriter] = []

    async def idle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        opened.append(writer)
        writer.write(b"GET /nothing HTTP/1.1\r\nHost: gateway\r\n\r\n")
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 404")

    async def connect() -> None:
        await idle(*await asyncio.open_connection(gateway.host, gateway.port))

    async def test() -> None:
        await gateway.modest()
        before = gateway.memory()
        try:
            for _ in range(IDLE // AT_ONCE):
                await asyncio.gather(*(connect() for _ in range(AT_ONCE)))
            assert await gateway.metric('lakehead_gateway_connections{listener="ingest"}') >= IDLE
            await gateway.modest()
            assert gateway.memory() - before < IDLE * PER_CONNECTION
        finally:
            for writer in opened:
                writer.close()

    run_bounded(test())


Attack = Callable[[Flooded, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[set[bytes]]]
"""Sends something bad; the statuses that it may be answered with, of which none is 200."""


async def slow(gateway: Flooded, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> set[bytes]:
    """A byte now and then, of a largest body."""
    writer.write(gateway.head("slow", f"Content-Length: {BODY}"))
    answer = asyncio.ensure_future(reader.readexactly(1))
    while not answer.done():
        writer.write(b"x")
        await asyncio.wait([answer], timeout=0.5)
    answer.result()
    return {b"408", b"429"}


async def endless(gateway: Flooded, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> set[bytes]:
    """Chunks without an end, as fast as they are taken."""
    writer.write(gateway.head("endless", "Transfer-Encoding: chunked"))
    part = bytes(64 * KIB)
    answer = asyncio.ensure_future(reader.readexactly(1))
    while not answer.done():
        writer.write(b"%x\r\n%b\r\n" % (len(part), part))
        await asyncio.wait([answer, asyncio.ensure_future(writer.drain())], return_when=asyncio.FIRST_COMPLETED)
    return {b"408", b"413", b"429"}


async def truncated(gateway: Flooded, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> set[bytes]:
    """Half of a body, and the client is gone."""
    del reader
    writer.write(gateway.head("truncated", f"Content-Length: {BODY}") + bytes(BODY // 2))
    await writer.drain()
    return set()


async def too_short(gateway: Flooded, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> set[bytes]:
    """A length that ends within the frame; the rest looks like a request of its own."""
    del reader
    frame = sample_frame(BatchIdentity("too_short", "boot", 0, 99))
    writer.write(gateway.head("too_short", f"Content-Length: {len(frame) - 8}") + frame)
    await writer.drain()
    return {b"400", b"429"}


async def bomb(gateway: Flooded, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> set[bytes]:
    """A frame that decompresses to far more than it says, or than may be."""
    del reader
    frame = BOMBS[id(writer) % len(BOMBS)]
    writer.write(gateway.head("bomb", f"Content-Length: {len(frame)}") + frame)
    await writer.drain()
    return {b"400", b"413", b"429"}


BOMBS = [
    around(zstandard.ZstdCompressor(level=3).compress(bytes(size)), payload_bytes=told, zstd=True)
    for size, told in ((64 * MIB, PAYLOAD), (64 * MIB, 64 * MIB), (PAYLOAD, PAYLOAD), (64 * MIB, 1 << 60))
]
ATTACKS: tuple[Attack, ...] = (slow, endless, truncated, too_short, bomb)


def test_bodies_that_lie_never_end_or_explode_take_bounded_memory_and_others_are_served(gateway: Flooded) -> None:
    """All at once. What one agent may hold, and all, follows from `body_bytes`, `payload_bytes`, `bytes_in_flight`."""
    statuses: list[tuple[str, bytes]] = []

    async def attack(how: Attack) -> None:
        reader, writer = await asyncio.open_connection(gateway.host, gateway.port)
        # The connection may be closed before all is sent: then what was answered is not always there to be read.
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            allowed = await how(gateway, reader, writer)
            if allowed:
                line = await reader.readline()
                status = line.split(b" ")[1]
                assert status in allowed, f"{how.__name__}: {line!r}"
                statuses.append((how.__name__, status))
        writer.close()

    async def test() -> None:
        await gateway.modest()
        gateway.forget_most_memory()
        before = gateway.memory()
        attacks = [asyncio.ensure_future(attack(how)) for how in ATTACKS for _ in range(ATTACKERS)]
        for _ in range(10):
            await gateway.modest()
        await asyncio.gather(*attacks)
        await gateway.modest()
        connections = len(attacks) * PER_CONNECTION  # all are open at once if the machine is busy
        most = 4 * IN_FLIGHT + 2 * THREADS * PAYLOAD + connections + SLACK
        assert gateway.most_memory() - before < most
        assert await gateway.metric("lakehead_gateway_bytes_in_flight") == 0

    run_bounded(test())
    seen = {name: {status for each, status in statuses if each == name} for name in ("slow", "endless", "bomb")}
    assert b"408" in seen["slow"], seen
    assert {b"408", b"413"} & seen["endless"], seen  # by time or by size, as the machine is busy
    assert {b"400", b"413"} & seen["bomb"], seen
