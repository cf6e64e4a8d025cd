"""Both listeners in one process: started together, and stopped so that whoever was promised an answer gets one."""

import asyncio
import contextlib
import socket
from collections.abc import Generator
from types import TracebackType
from typing import Self

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from lakehead.clock import Clock
from lakehead.errors import Misconfigured
from lakehead.gateway.connections import Connections
from lakehead.gateway.http_protocol import BoundedHttpProtocol
from lakehead.gateway.metrics import GatewayMetrics
from lakehead.gateway.ports import SideEffects
from lakehead.gateway.readiness import Readiness
from lakehead.gateway.settings import GatewaySettings, ListenerSettings
from lakehead.gateway.tls import server_context

CANCELLED_SECONDS = 5.0
"""How long requests that were told to end may take to answer so."""


class ListenerServer(uvicorn.Server):
    """One listener. uvicorn's server without its signal handlers, and with our limits on connections."""

    def __init__(self, app: FastAPI, settings: ListenerSettings, *, stop_seconds: int) -> None:
        """Raises `Misconfigured` if the TLS files cannot be used."""
        config = uvicorn.Config(
            app,
            http=HttpToolsProtocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=settings.idle_seconds,
            timeout_graceful_shutdown=stop_seconds,
        )
        super().__init__(config)
        self.open_connections = Connections(settings)
        self.is_listening = asyncio.Event()
        self._settings = settings
        self._ssl = None if settings.tls is None else server_context(settings.tls)

    def bind(self) -> socket.socket:
        """Take the port. Raises `Misconfigured` if that is not possible."""
        host, port = self._settings.host, self._settings.port
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            return socket.create_server((host, port), family=family, backlog=self._settings.backlog)
        except OSError as error:
            raise Misconfigured(
                f"The gateway cannot listen at {host} port {port} ({error}). Correct the address, or stop who has it."
            ) from error

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen at the sockets."""
        loop = asyncio.get_running_loop()
        self.servers = [
            await loop.create_server(
                lambda: BoundedHttpProtocol(self.config, self.server_state, self.open_connections),
                sock=each,
                ssl=self._ssl,
                backlog=self._settings.backlog,
                ssl_handshake_timeout=self._settings.handshake_seconds if self._ssl else None,
            )
            for each in sockets or []
        ]
        self.started = True
        self.is_listening.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close the port, wait until requests under way are answered, and end what takes too long."""
        await super().shutdown(sockets)
        if self.server_state.tasks:  # they were cancelled, and answer that the gateway stops
            await asyncio.wait(self.server_state.tasks, timeout=CANCELLED_SECONDS)

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Leave the signals of the process to whoever runs the gateway."""
        yield


class GatewayServer:
    """The two listeners of a gateway, as long as an `async with`. Run it on uvloop for speed.

    Leaving it stops the gateway in this order: it says that it is not ready, closes the ingest port, answers what is
    under way, lets the side effects of acceptances end, and closes the private port last.
    """

    def __init__(
        self,
        *,
        ingest: FastAPI,
        private: FastAPI,
        side_effects: SideEffects,
        readiness: Readiness,
        metrics: GatewayMetrics,
        clock: Clock,
        settings: GatewaySettings,
    ) -> None:
        """Nothing is bound yet. Raises `Misconfigured` if the TLS files cannot be used."""
        self._ingest = ListenerServer(ingest, settings.ingest_listener, stop_seconds=settings.stop_seconds)
        self._private = ListenerServer(private, settings.private_listener, stop_seconds=settings.stop_seconds)
        metrics.watch_connections({"ingest": self._ingest.open_connections, "private": self._private.open_connections})
        self._side_effects = side_effects
        self._readiness = readiness
        self._clock = clock
        self._settings = settings
        self._tasks: list[asyncio.Task[None]] = []
        self.ingest_port = 0
        """The port of the ingest listener, once it listens."""

        self.private_port = 0

    async def __aenter__(self) -> Self:
        """Bind both ports and listen. Raises `Misconfigured`."""
        with contextlib.ExitStack() as bound:
            sockets = [bound.enter_context(server.bind()) for server in (self._ingest, self._private)]
            self.ingest_port, self.private_port = (each.getsockname()[1] for each in sockets)
            for server, sock in zip((self._ingest, self._private), sockets, strict=True):
                self._tasks.append(asyncio.create_task(server.serve(sockets=[sock])))
                await self._until_listening(server, self._tasks[-1])
            bound.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def wait(self) -> None:
        """Wait until a listener ends by itself, which it should not. Raises its error."""
        done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()

    async def stop(self) -> None:
        """Stop as the class says. It can be called again."""
        self._readiness.is_stopping = True
        if self._settings.unready_seconds and not self._ingest.should_exit:
            await self._clock.sleep(self._settings.unready_seconds)
        ended: list[BaseException | None] = []
        self._ingest.should_exit = True
        ended += await asyncio.gather(*self._tasks[:1], return_exceptions=True)
        await self._side_effects.close(within=self._settings.side_effect_seconds)
        self._private.should_exit = True
        ended += await asyncio.gather(*self._tasks[1:], return_exceptions=True)
        for each in ended:
            if each is not None:
                raise each

    async def _until_listening(self, server: ListenerServer, task: "asyncio.Task[None]") -> None:
        listening = asyncio.create_task(server.is_listening.wait())
        await asyncio.wait([listening, task], return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            listening.cancel()
            task.result()
