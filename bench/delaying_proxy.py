"""A TCP proxy that makes a server far away: each byte arrives so much later, and no connection waits for another.

Run it as `python -m bench.delaying_proxy PORT MILLISECONDS`, with the time of a round trip. It says where it listens.
"""

import asyncio
import sys
from collections import deque

import uvloop


class Pipe(asyncio.Protocol):
    """One side of a connection, whose bytes go to the other side after a while."""

    def __init__(self, delay: float, other: "Pipe | None" = None) -> None:
        self._delay = delay
        self._other = other
        self._transport: asyncio.Transport | None = None
        self._waiting: deque[bytes | None] = deque()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # it is of TCP
        self._transport = transport

    def pair(self, other: "Pipe") -> None:
        """Name the other side, and pass on what has come already."""
        self._other = other
        for _ in self._waiting:
            self._pass_on_later()

    def data_received(self, data: bytes) -> None:
        self._take(data)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._take(None)

    def _take(self, data: bytes | None) -> None:
        self._waiting.append(data)
        if self._other is not None:
            self._pass_on_later()

    def _pass_on_later(self) -> None:
        # Whatever the order of the timers, bytes keep theirs.
        asyncio.get_running_loop().call_later(self._delay, self._pass_on)

    def _pass_on(self) -> None:
        data = self._waiting.popleft()
        to = self._other._transport if self._other else None  # noqa: SLF001 - of this class
        if to is None or to.is_closing():
            return
        if data is None:
            to.close()
        else:
            to.write(data)


class Near(Pipe):
    """The client's side: it connects to the server."""

    def __init__(self, delay: float, port: int) -> None:
        super().__init__(delay)
        self._port = port

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # it is of TCP
        super().connection_made(transport)
        self._connecting = asyncio.get_running_loop().create_task(self._connect())

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        _, far = await loop.create_connection(lambda: Pipe(self._delay, self), "127.0.0.1", self._port)
        self.pair(far)


async def serve(port: int, milliseconds: float) -> None:
    """Pass on connections until the process ends."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Near(milliseconds / 2_000, port), "127.0.0.1", 0)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), float(sys.argv[2])))
