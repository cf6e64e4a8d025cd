"""An agent's listeners: a TCP port of loopback, a Unix socket, or both."""

import asyncio
import contextlib
import socket
from collections.abc import Generator
from pathlib import Path
from types import TracebackType
from typing import Self

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from lakehead.agent.receive.callers import is_loopback
from lakehead.agent.receive.http_connection import BoundedConnection
from lakehead.agent.receive.receiver_settings import ListenerSettings
from lakehead.agent.receive.unix_socket import UnixSocket
from lakehead.errors import Misconfigured

BACKLOG = 256
CANCELLED_SECONDS = 5.0
"""How long requests that were told to end may take to answer so."""


class _Server(uvicorn.Server):
    """uvicorn's server without its signal handlers, and with our limits on connections."""

    def __init__(self, app: ASGIApp, settings: ListenerSettings) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=HttpToolsProtocol,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                timeout_keep_alive=settings.idle_seconds,
                timeout_graceful_shutdown=settings.stop_seconds,
            )
        )
        self.is_listening = asyncio.Event()
        self._settings = settings

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen at the sockets."""
        loop = asyncio.get_running_loop()
        self.servers = [
            await loop.create_server(
                lambda: BoundedConnection(self.config, self.server_state, self._settings), sock=each, backlog=BACKLOG
            )
            for each in sockets or []
        ]
        self.started = True
        self.is_listening.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen no more, wait until requests under way are answered, and end what takes too long."""
        await super().shutdown(sockets)
        if self.server_state.tasks:  # they were cancelled, and answer that the agent stops
            await asyncio.wait(self.server_state.tasks, timeout=CANCELLED_SECONDS)

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Leave the signals of the process to whoever runs the agent."""
        yield


class ReceiverServer:
    """The listeners of an agent, as long as an `async with`. Run it on uvloop for speed.

    Entering raises `Misconfigured` if it cannot listen. Leaving takes no new requests, answers those that are under
    way, and removes the Unix socket.
    """

    def __init__(self, app: ASGIApp, settings: ListenerSettings) -> None:
        self._app = app
        self._settings = settings
        self._server: _Server | None = None
        self._task: asyncio.Task[None] | None = None
        self._unix_socket: UnixSocket | None = None
        self.port: int | None = None
        """The TCP port, once it listens; None if there is none."""

    async def __aenter__(self) -> Self:
        self._server = _Server(self._app, self._settings)
        with contextlib.ExitStack() as bound:
            sockets = []
            if self._settings.port is not None:
                sockets.append(bound.enter_context(_bind_tcp(self._settings)))
                self.port = sockets[-1].getsockname()[1]
            if self._settings.unix_socket is not None:
                self._unix_socket = UnixSocket.bind(Path(self._settings.unix_socket), backlog=BACKLOG)
                bound.callback(self._unix_socket.close)
                sockets.append(self._unix_socket.socket)
            self._task = asyncio.create_task(self._server.serve(sockets=sockets))
            await self._until_listening(self._server, self._task)
            bound.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def wait(self) -> None:
        """Wait until the server ends by itself, which it should not. Raises its error."""
        if self._task is not None:
            await asyncio.shield(self._task)

    async def stop(self) -> None:
        """Stop as the class says. It can be called again."""
        if self._server is None or self._task is None:
            return
        self._server.should_exit = True
        await asyncio.wait([self._task])
        if self._unix_socket is not None:
            self._unix_socket.close()
        self._task.result()

    async def _until_listening(self, server: _Server, task: "asyncio.Task[None]") -> None:
        listening = asyncio.create_task(server.is_listening.wait())
        await asyncio.wait([listening, task], return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            listening.cancel()
            task.result()


def _bind_tcp(settings: ListenerSettings) -> socket.socket:
    """Take the TCP port. Raises `Misconfigured`."""
    host, port = settings.host, settings.port
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = found[0]
        if not settings.allow_remote and not all(is_loopback(str(each[4][0])) for each in found):
            raise Misconfigured(
                f"The agent would listen at {host}, which other machines may reach, and it asks nobody for a token. "
                "Listen at 127.0.0.1, or set allow_remote if everybody who reaches it may write."
            )
        return socket.create_server(address[:2], family=family, backlog=BACKLOG)
    except (OSError, UnicodeError) as error:  # the latter of a name that cannot be one
        why = (error.strerror if isinstance(error, OSError) else None) or str(error)
        why = why.partition(" (while")[0]  # what follows is the address again
        raise Misconfigured(
            f"The agent cannot listen at {host} port {port}: {why}. Correct the address, or stop who has it."
        ) from error
