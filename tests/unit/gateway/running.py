"""A gateway that listens on loopback, and clients that send single bytes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
import uvicorn.server

from lakehead.clock import Clock, SystemClock
from lakehead.gateway.ingest_app import PATH
from lakehead.gateway.server import GatewayServer
from lakehead.gateway.settings import GatewaySettings, IngestSettings, ListenerSettings
from tests.unit.gateway.support import TOKEN, Gateway


@dataclass
class Running:
    gateway: Gateway
    server: GatewayServer

    async def connect(self) -> "Wire":
        return Wire(*await asyncio.open_connection("127.0.0.1", self.server.ingest_port))

    async def ask(self, sent: bytes) -> "Answered":
        """Send bytes on a connection of their own, and read one answer."""
        wire = await self.connect()
        await wire.send(sent)
        answer = await wire.answer()
        await wire.close()
        return answer


@dataclass(frozen=True)
class Answered:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def code(self) -> str:
        return str(msgspec.json.decode(self.body)["error"]["code"])


@dataclass
class Wire:
    """One connection of a client."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, sent: bytes) -> None:
        self.writer.write(sent)
        await self.writer.drain()

    async def answer(self) -> Answered:
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
        status, *lines = head.strip().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        body = await self.reader.readexactly(int(headers.get("content-length", "0")))
        return Answered(int(status.split()[1]), headers, body)

    async def is_closed(self) -> bool:
        """Wait until the server has closed the connection, and return whether it said nothing more."""
        try:
            return await self.reader.read() == b""
        except ConnectionResetError:
            return True

    async def close(self) -> None:
        self.writer.close()
        with suppress(OSError):
            await self.writer.wait_closed()


def head(*lines: str, token: str = TOKEN, method: str = "POST", path: str = PATH) -> bytes:
    """The head of an upload with further header lines."""
    authorization = (f"Authorization: Bearer {token}",) if token else ()
    return "\r\n".join((f"{method} {path} HTTP/1.1", "Host: gateway", *authorization, *lines, "", "")).encode()


def upload(body: bytes, *lines: str, token: str = TOKEN) -> bytes:
    return head(f"Content-Length: {len(body)}", *lines, token=token) + body


class QuickSleeps:
    """asyncio, but that each sleep takes a fiftieth. uvicorn looks every tenth of a second whether it shall stop, which
    is four times as long as a test of a gateway takes."""

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / 50)


@asynccontextmanager
async def running(
    gateway: Gateway | None = None,
    listener: ListenerSettings | None = None,
    *,
    stop_seconds: int = 60,
    unready_seconds: float = 0.0,
    clock: Clock | None = None,
) -> AsyncIterator[Running]:
    gateway = gateway or Gateway(IngestSettings(requests_per_second=None))
    server = GatewayServer(
        ingest=gateway.ingest,
        private=gateway.private,
        side_effects=gateway.after,
        readiness=gateway.readiness,
        metrics=gateway.metrics,
        clock=clock or SystemClock(),
        settings=GatewaySettings(
            ingest_listener=listener or ListenerSettings(linger_seconds=60),
            stop_seconds=stop_seconds,
            unready_seconds=unready_seconds,
        ),
    )
    try:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(uvicorn.server, "asyncio", QuickSleeps())
            async with server:
                yield Running(gateway, server)
    finally:
        gateway.uploads.close()
