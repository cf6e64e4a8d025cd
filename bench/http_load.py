"""Clients of servers under load: requests that were made before the clock starts, and are only sent after it."""

import asyncio
import multiprocessing
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import uvloop

from bench.server_process import idle_seconds, idle_share

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

WAIT_SECONDS = 120.0
"""The longest that a load may take."""


class Load(Protocol):
    """Requests to some servers, which can be sent to another process to be made there."""

    @property
    def ports(self) -> Sequence[int]:
        """Where the servers listen."""
        ...

    @property
    def connections(self) -> int:
        """How many there are to each."""
        ...

    @property
    def per_second(self) -> float | None:
        """Requests that are begun each second, whether others are answered or not. None: each connection sends its
        next request when the one before is answered.
        """
        ...

    def requests(self) -> list[list[Any]]:
        """The requests, each in parts."""
        ...


@dataclass(frozen=True, slots=True)
class Loaded:
    """What became of a load. Every request was answered 200, as a new one."""

    requests: int
    began: float
    """When the first request was to be sent, in seconds of a clock that all processes share (`time.perf_counter`)."""

    seconds: float
    latencies: list[float]
    """Seconds from the moment that a request was to be sent until its answer."""

    client_cpu: float
    """The share of one core that the clients used."""

    idle: float
    """The share of all cores of the machine that nobody used meanwhile."""


@contextmanager
def load_process() -> Iterator["Clients"]:
    """The process of the clients, as long as the block."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs,), daemon=True)
    process.start()
    try:
        yield Clients(ours)
    finally:
        process.terminate()
        process.join()


@dataclass(frozen=True, slots=True)
class Clients:
    """Applies loads, one at a time."""

    _pipe: "Connection[Any, Any]"

    def apply(self, load: Load) -> Loaded:
        """Send all requests of a load. Raises `RuntimeError` if one is not answered 200."""
        self._pipe.send(load)
        if not self._pipe.poll(WAIT_SECONDS + 60):
            raise TimeoutError("The clients do not answer.")
        found = self._pipe.recv()
        if isinstance(found, Loaded):
            return found
        raise RuntimeError(f"A request was not taken: {found}")


def _serve(pipe: "Connection[Any, Any]") -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started it ends it
    while True:
        load = pipe.recv()
        try:
            pipe.send(uvloop.run(_apply(load, load.requests())))
        except (RuntimeError, OSError, TimeoutError) as error:
            pipe.send(repr(error))


async def _apply(load: Load, requests: Sequence[list[Any]]) -> Loaded:
    loop = asyncio.get_running_loop()
    ready: asyncio.Queue[_Client] = asyncio.Queue()
    clients = []
    for number in range(len(load.ports) * load.connections):
        _, client = await loop.create_connection(_Client, "127.0.0.1", load.ports[number % len(load.ports)])
        clients.append(client)
        ready.put_nowait(client)
    latencies: list[float] = []

    async def send(due: float, parts: list[Any]) -> None:
        client = await ready.get()
        await client.send(parts)
        latencies.append(time.perf_counter() - due)
        ready.put_nowait(client)

    async def send_in_turn(left: Iterator[list[Any]]) -> None:
        for parts in left:
            await send(time.perf_counter(), parts)

    idle, cpu, began = idle_seconds(), time.process_time(), time.perf_counter()
    async with asyncio.timeout(WAIT_SECONDS):
        if load.per_second is None:
            left = iter(requests)
            await asyncio.gather(*(send_in_turn(left) for _ in clients))
        else:
            async with asyncio.TaskGroup() as sending:
                for number, parts in enumerate(requests):
                    due = began + number / load.per_second
                    await asyncio.sleep(due - time.perf_counter())
                    sending.create_task(send(due, parts))
    took = time.perf_counter() - began
    for client in clients:
        client.close()
    return Loaded(len(requests), began, took, latencies, (time.process_time() - cpu) / took, idle_share(idle, took))


class _Client(asyncio.Protocol):
    """One connection, which carries one request at a time."""

    def __init__(self) -> None:
        self._received = b""
        self._answer: asyncio.Future[bytes] | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # it is of TCP
        self._transport = transport

    async def send(self, parts: list[Any]) -> None:
        """Send a request and wait for its answer. Raises `RuntimeError` unless it is 200 and no duplicate."""
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.writelines(parts)
        answer = await self._answer
        if not answer.startswith(b"HTTP/1.1 200 ") or b'"duplicate":true' in answer:
            raise RuntimeError(answer[:500].decode(errors="replace"))

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, end, body = self._received.partition(b"\r\n\r\n")
        if end and len(body) >= int(head.lower().partition(b"content-length:")[2].split(b"\r\n", 1)[0]):
            whole, self._received = self._received, b""
            if self._answer is not None and not self._answer.done():
                self._answer.set_result(whole)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(RuntimeError(f"the connection was closed ({exc})"))

    def close(self) -> None:
        self._transport.close()
