"""What an agent is compared with: the same server stack, which parses the same bytes and appends them to one file.

Run it as `python -m bench.agent_floor FOLDER read|parse`. It says where it listens. `read` reads the time, value and
attributes of each point, `parse` only the message. Requests that wait are written and flushed together, as in an agent.
Nobody should use it for anything else: it knows no request again, and nothing can be sent of what it writes.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import uvloop
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from starlette.types import Receive, Scope, Send

from bench.agent_samples import PlainSample
from lakehead.agent.receive.http_server import ReceiverServer
from lakehead.agent.receive.receiver_settings import ListenerSettings


def parse(body: bytes) -> ExportMetricsServiceRequest:
    """The message, of which nothing is read."""
    request = ExportMetricsServiceRequest()
    request.ParseFromString(body)
    return request


def read(body: bytes) -> list[PlainSample]:
    """The samples of a message. Whether a value or an attribute has another type than those of the benchmark is not
    looked at.
    """
    return [
        (
            point.time_unix_nano,
            metric.name,
            {each.key: each.value.string_value for each in point.attributes},
            point.as_double,
        )
        for of_resource in parse(body).resource_metrics
        for of_scope in of_resource.scope_metrics
        for metric in of_scope.metrics
        for point in (metric.gauge if metric.HasField("gauge") else metric.sum).data_points
    ]


class FloorFile:
    """A file that grows at its end: all that wait are written and flushed together."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        self._threads = ThreadPoolExecutor(1)
        self._pending: list[tuple[bytes, asyncio.Future[None]]] = []
        self._flushing: asyncio.Task[None] | None = None

    async def append(self, data: bytes) -> None:
        """Add bytes, and return when they are flushed to disk."""
        outcome = asyncio.get_running_loop().create_future()
        self._pending.append((data, outcome))
        if self._flushing is None:
            self._flushing = asyncio.create_task(self._flush())
        await outcome

    async def _flush(self) -> None:
        while self._pending:
            group, self._pending = self._pending, []
            await self._run(lambda group=group: self._write([data for data, _ in group]))  # type: ignore[misc]
            for _, outcome in group:
                outcome.set_result(None)
        self._flushing = None

    async def empty(self) -> None:
        """Give the disk back what was written."""
        await self._run(lambda: os.ftruncate(self._file, 0))

    async def _run(self, work: Callable[[], object]) -> None:
        await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _write(self, pieces: Sequence[bytes]) -> None:
        left = memoryview(b"".join(pieces))
        while left:
            left = left[os.write(self._file, left) :]
        os.fsync(self._file)

    def close(self) -> None:
        """Let go of the file."""
        self._threads.shutdown()
        os.close(self._file)


class FloorApp:
    """An ASGI application that parses and keeps what comes. A request to flush empties the file."""

    def __init__(self, file: FloorFile, understand: Callable[[bytes], object]) -> None:
        self._file = file
        self._understand = understand

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        parts, more = [], True
        while more:
            message = await receive()
            parts.append(message.get("body", b""))
            more = message.get("more_body", False)
        if scope["path"] == "/v1/flush":
            await self._file.empty()
        else:
            body = b"".join(parts)
            self._understand(body)
            await self._file.append(body)
        headers = [(b"content-type", b"application/x-protobuf"), (b"content-length", b"0")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b""})


async def _serve(folder: Path, understand: Callable[[bytes], object]) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    file = FloorFile(folder / "floor")
    async with ReceiverServer(FloorApp(file, understand), ListenerSettings(port=0)) as server:
        print(f"http://127.0.0.1:{server.port}", flush=True)
        await stop.wait()
    file.close()


if __name__ == "__main__":
    uvloop.run(_serve(Path(sys.argv[1]), {"read": read, "parse": parse}[sys.argv[2]]))
