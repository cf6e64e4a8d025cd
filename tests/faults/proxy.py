"""A proxy between a real S3 client and a real server that loses, delays, repeats and falsifies on purpose."""

import asyncio
import threading
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from enum import Enum, auto
from itertools import accumulate, chain
from random import Random
from urllib.parse import unquote, urlsplit

START_SECONDS = 30


class Fault(Enum):
    """What may happen to one request. An applied request reached the server, and the client is not told."""

    CONFLICT = auto()
    """Answered 409; never forwarded. What S3 does when conditional writes meet."""
    PRECONDITION = auto()
    """Answered 412; never forwarded."""
    PRECONDITION_APPLIED = auto()
    """Forwarded, and a success is answered 412: what a middlebox makes of it that sends a request twice."""
    UNAVAILABLE = auto()
    """Answered 503; never forwarded."""
    UNAVAILABLE_APPLIED = auto()
    """Forwarded, and answered 503 whatever the server said."""
    TIMEOUT = auto()
    """Never forwarded, never answered."""
    TIMEOUT_APPLIED = auto()
    """Forwarded, never answered."""
    TIMEOUT_APPLIED_LATER = auto()
    """Never answered, and forwarded when the test calls `release`."""
    RESET = auto()
    """Never forwarded, and the connection closed without an answer."""
    RESET_APPLIED = auto()
    """Forwarded, and the connection closed without an answer."""


ONLY_TO_WRITES = frozenset(
    {Fault.CONFLICT, Fault.PRECONDITION, Fault.PRECONDITION_APPLIED, Fault.TIMEOUT_APPLIED_LATER}
)
"""What makes no sense for a read, so that chance spares it."""
SILENT = frozenset({Fault.TIMEOUT, Fault.TIMEOUT_APPLIED, Fault.TIMEOUT_APPLIED_LATER})
"""What is never answered, so that the client's patience decides."""


class Silence(Enum):
    """Ways to leave a request without an answer."""

    HANG_UP = auto()
    NEVER_ANSWER = auto()


@dataclass(frozen=True, slots=True)
class Request:
    """One request as it came: nothing that is signed is lost on the way to the server."""

    method: str
    target: str
    headers: tuple[tuple[str, str], ...]
    body: bytes

    def header(self, name: str) -> str | None:
        """The value of a header, whose name is given in lower case."""
        return next((value for key, value in self.headers if key.lower() == name), None)

    def encoded(self) -> bytes:
        """The request for a connection that serves only this one."""
        kept = (f"{name}: {value}\r\n" for name, value in self.headers if name.lower() != "connection")
        head = f"{self.method} {self.target} HTTP/1.1\r\n{''.join(kept)}Connection: close\r\n\r\n"
        return head.encode("latin-1") + self.body


def answer(status: int, body: bytes = b"", **headers: str) -> bytes:
    """An answer as it goes over the wire. An underscore in a header's name stands for a hyphen."""
    fields = {"Content-Length": str(len(body)), **{name.replace("_", "-"): text for name, text in headers.items()}}
    lines = "".join(f"{name}: {text}\r\n" for name, text in fields.items())
    return f"HTTP/1.1 {status} -\r\n{lines}\r\n".encode("latin-1") + body


def failure(request: Request, status: int, code: str) -> bytes:
    """An answer that S3 gives to what it did not do."""
    body = b"" if request.method == "HEAD" else f"<Error><Code>{code}</Code></Error>".encode()
    return answer(status, body, Content_Type="application/xml")


@asynccontextmanager
async def loopback(handle: Callable[[Request], Awaitable[bytes | Silence]]) -> AsyncIterator[str]:
    """An HTTP server on a free loopback port, and its address. It knows no chunked bodies.

    An error of the handler is raised where the block ends, so that a test cannot pass over it.
    """
    connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections[asyncio.create_task(_serve(handle, reader, writer))] = writer

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for connection in connections:
            connection.cancel()
        ends = await asyncio.gather(*connections, return_exceptions=True)
        for writer in connections.values():
            await _close(writer)
        await server.wait_closed()
    for end in ends:
        if isinstance(end, Exception):
            raise end


@contextmanager
def served(handle: Callable[[Request], Awaitable[bytes | Silence]]) -> Iterator[str]:
    """Its address, while it serves in a thread of its own: for clients that hold up the thread that they are in."""
    address: list[str] = []
    started, loop, ended = threading.Event(), asyncio.new_event_loop(), asyncio.Event()

    async def serve() -> None:
        async with loopback(handle) as endpoint:
            address.append(endpoint)
            started.set()
            await ended.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    try:
        assert started.wait(START_SECONDS)
        yield address[0]
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join()
        loop.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Weather:
    """Faults and delays by chance: most requests are hardly delayed, and a few very much."""

    seed: int
    chances: Mapping[Fault, float]
    """How likely each fault is; their sum stays below 1."""

    typical_seconds: float = 0.001
    longest_seconds: float = 0.5

    landing: float = 0.1
    """How likely it is, at each request, that a request held back is let through first."""


class Proxy:
    """Forwards to one server, with the faults that a test scripts or the weather brings."""

    def __init__(self, upstream: str, weather: Weather | None) -> None:
        self.seen: Counter[str] = Counter()
        """How many requests came, by method."""
        self.faults: Counter[Fault] = Counter()
        """How often each fault was injected."""
        self.answers: Counter[tuple[str, int]] = Counter()
        """What the server answered, by method and status, whether or not the client was told."""
        self._upstream = urlsplit(upstream)
        self._weather = weather
        self._random = Random(weather.seed if weather else 0)
        self._scripts: dict[tuple[str, str], Iterator[Fault | None]] = {}
        self._actions: dict[str, Callable[[], Awaitable[object]]] = {}
        self._held: deque[Request] = deque()
        self._arrival = asyncio.Condition()
        self.endpoint = ""
        """Its address, to be given to the client instead of the server's."""

    def script(self, method: str, faults: Iterable[Fault | None], *, of: str = "") -> None:
        """The next requests of this method get these faults, one each, None being no fault; those after them none.

        `of` leaves out requests whose decoded target does not have this text, such as a part of a key.
        """
        self._scripts[method, of] = iter(faults)

    def will_answer(self, method: str) -> bool:
        """Whether the script of all requests of this method lets the next one be answered."""
        script = self._scripts.get((method, ""), iter(()))
        fault = next(script, None)
        if fault is not None:
            self._scripts[method, ""] = chain([fault], script)
        return fault not in SILENT

    async def until_seen(self, method: str, number: int) -> None:
        """Wait until so many requests of this method have come: a client may give up before what it sent is read."""
        async with self._arrival:
            await self._arrival.wait_for(lambda: self.seen[method] >= number)

    def before(self, method: str, action: Callable[[], Awaitable[object]]) -> None:
        """Do something between the arrival of the next request of this method and its handling."""
        self._actions[method] = action

    async def release(self) -> list[int]:
        """Forward every request held back until now, the oldest first; the server's status for each."""
        return [_status(await self._forward(self._held.popleft())) for _ in range(len(self._held))]

    async def handle(self, request: Request) -> bytes | Silence:
        """Answer one request of the client."""
        async with self._arrival:
            self.seen[request.method] += 1
            self._arrival.notify_all()
        if (action := self._actions.pop(request.method, None)) is not None:
            await action()
        fault = self._scripted(request)
        if self._weather is not None:
            fault = fault or await self._chance(request, self._weather)
        if fault is None:
            return await self._forward(request)
        self.faults[fault] += 1
        return await self._faulty(request, fault)

    def _scripted(self, request: Request) -> Fault | None:
        """The next fault of the script for this request; None if there is no such script, or it is at its end."""
        target = unquote(request.target)
        for (method, part), script in list(self._scripts.items()):
            if method == request.method and part in target:
                return next(script, None)
        return None

    async def _chance(self, request: Request, weather: Weather) -> Fault | None:
        delay = weather.typical_seconds * self._random.paretovariate(1)
        await asyncio.sleep(min(delay, weather.longest_seconds))
        if self._held and self._random.random() < weather.landing:
            await self._forward(self._held.popleft())
        drawn = self._random.random()
        limits = zip(weather.chances, accumulate(weather.chances.values()), strict=True)
        fault = next((fault for fault, limit in limits if drawn < limit), None)
        return None if fault in ONLY_TO_WRITES and request.method != "PUT" else fault

    async def _faulty(self, request: Request, fault: Fault) -> bytes | Silence:
        match fault:
            case Fault.CONFLICT:
                return failure(request, 409, "ConditionalRequestConflict")
            case Fault.PRECONDITION:
                return failure(request, 412, "PreconditionFailed")
            case Fault.PRECONDITION_APPLIED:
                given = await self._forward(request)
                return failure(request, 412, "PreconditionFailed") if _status(given) == 200 else given
            case Fault.UNAVAILABLE:
                return failure(request, 503, "SlowDown")
            case Fault.UNAVAILABLE_APPLIED:
                await self._forward(request)
                return failure(request, 503, "SlowDown")
            case Fault.TIMEOUT:
                return Silence.NEVER_ANSWER
            case Fault.TIMEOUT_APPLIED:
                await self._forward(request)
                return Silence.NEVER_ANSWER
            case Fault.TIMEOUT_APPLIED_LATER:
                self._held.append(request)
                return Silence.NEVER_ANSWER
            case Fault.RESET:
                return Silence.HANG_UP
            case Fault.RESET_APPLIED:
                await self._forward(request)
                return Silence.HANG_UP

    async def _forward(self, request: Request) -> bytes:
        """The server's whole answer; it leaves it to the client whether the connection is kept."""
        reader, writer = await asyncio.open_connection(self._upstream.hostname, self._upstream.port)
        try:
            writer.write(request.encoded())
            await writer.drain()
            given = await reader.read()
        finally:
            await _close(writer)
        self.answers[request.method, _status(given)] += 1
        head, end, body = given.partition(b"\r\n\r\n")
        lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"connection:")]
        return b"\r\n".join(lines) + end + body


@asynccontextmanager
async def proxy(upstream: str, *, weather: Weather | None = None) -> AsyncIterator[Proxy]:
    """A proxy to the server at this address."""
    between = Proxy(upstream, weather)
    async with loopback(between.handle) as between.endpoint:
        yield between


async def _serve(
    handle: Callable[[Request], Awaitable[bytes | Silence]], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Answer the requests of one connection, which the client may keep for many."""
    try:
        while (request := await _read(reader)) is not None:
            match await handle(request):
                case bytes() as given:
                    writer.write(given)
                    await writer.drain()
                case Silence.NEVER_ANSWER:
                    await reader.read()  # until the client gives up
                    return
                case Silence.HANG_UP:
                    return
    except ConnectionError:
        pass  # The client gave up first.
    finally:
        writer.close()


async def _read(reader: asyncio.StreamReader) -> Request | None:
    """The next request; None if the client has gone."""
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.removesuffix("\r\n\r\n").split("\r\n")
        method, target, _ = first.split(" ")
        headers = tuple((name, value.strip()) for name, _, value in (line.partition(":") for line in lines))
        request = Request(method, target, headers, b"")
        body = await reader.readexactly(int(request.header("content-length") or 0))
    except (asyncio.IncompleteReadError, OSError):
        return None
    return Request(method, target, headers, body)


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()


def _status(given: bytes) -> int:
    return int(given.split(b" ", 2)[1])
