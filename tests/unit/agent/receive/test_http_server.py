"""The receivers on real sockets: a port of loopback, a Unix socket, senders that behave badly, and how it stops."""

import asyncio
import socket
import stat
import struct
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn.server
import uvloop

from lakehead.agent.receive.http_server import ReceiverServer
from lakehead.agent.receive.receiver_settings import ListenerSettings, ReceiverSettings
from lakehead.errors import Misconfigured
from tests.support.async_tests import async_test, run_bounded
from tests.unit.agent.receive.app_support import JSON_LOGS, NDJSON, Receivers, until
from tests.unit.gateway.running import QuickSleeps

LOG_LINE = b'{"time": 1760000000000000000, "body": "hello"}\n'
ANY_PORT = ListenerSettings(port=0)
LINES = {"Content-Type": NDJSON}
BIG = 12 << 20
"""More than the buffers between sender and server hold."""


@asynccontextmanager
async def running(
    listener: ListenerSettings = ANY_PORT, settings: ReceiverSettings | None = None
) -> AsyncIterator[tuple[Receivers, ReceiverServer]]:
    receivers = Receivers(settings)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(uvicorn.server, "asyncio", QuickSleeps())
        async with ReceiverServer(receivers.app, listener) as server:
            yield receivers, server
    receivers.app.close()


def head(*headers: str, path: str = JSON_LOGS, method: str = "POST") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", f"Content-Type: {NDJSON}", *headers]
    return "\r\n".join([*lines, "", ""]).encode()


def request(body: bytes = LOG_LINE, *headers: str) -> bytes:
    return head(f"Content-Length: {len(body)}", *headers) + body


class Wire:
    """A connection that sends any bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def answer(self) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body of the next answer."""
        first, *lines = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")[:-2]
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
        return int(first.split()[1]), headers, await self.reader.readexactly(int(headers.get("content-length", "0")))

    async def is_closed(self) -> bool:
        """Whether the server ends the connection without another word."""
        try:
            return await self.reader.read() == b""
        except ConnectionResetError:
            return True

    def close(self) -> None:
        self.writer.close()


@asynccontextmanager
async def wire_to(server: ReceiverServer) -> AsyncIterator[Wire]:
    assert server.port is not None
    wire = Wire(*await asyncio.open_connection("127.0.0.1", server.port))
    try:
        yield wire
    finally:
        wire.close()


# --- where it listens


def on_both_loops(test: Callable[[Path], Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
    def run(loop: str, tmp_path: Path) -> None:
        if loop == "asyncio":
            run_bounded(test(tmp_path))
        else:
            uvloop.run(test(tmp_path))

    run.__name__ = test.__name__
    return run


@on_both_loops
async def test_requests_come_by_tcp_and_by_a_unix_socket_for_this_user_alone(folder: Path) -> None:
    path = folder / "agent.sock"
    async with running(ListenerSettings(port=0, unix_socket=str(path))) as (receivers, server):
        async with httpx.AsyncClient() as http:
            url = f"http://127.0.0.1:{server.port}{JSON_LOGS}"
            by_tcp = await http.post(url, content=LOG_LINE, headers=LINES)
        async with httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(uds=str(path))) as http:
            by_socket = await http.post(f"http://any-name{JSON_LOGS}", content=LOG_LINE, headers=LINES)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert (by_tcp.json(), by_socket.json()) == ({"records": 1, "duplicate": False},) * 2  # another sender
    assert len({known_by.dedupe_id for _, _, known_by in receivers.recorder.appended if known_by}) == 2
    assert not path.exists()


@on_both_loops
async def test_a_unix_socket_alone_is_enough(folder: Path) -> None:
    path = folder / "agent.sock"
    async with running(ListenerSettings(port=None, unix_socket=str(path))) as (_, server):
        assert server.port is None
        async with httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(uds=str(path))) as http:
            assert (await http.get("http://localhost/healthz")).status_code == 200


@async_test
async def test_a_socket_that_a_killed_agent_left_behind_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "agent.sock"
    with socket.socket(socket.AF_UNIX) as left_behind:
        left_behind.bind(str(path))
        left_behind.listen()
    assert path.exists()

    async with (
        running(ListenerSettings(port=None, unix_socket=str(path))),
        httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(uds=str(path))) as http,
    ):
        assert (await http.get("http://localhost/healthz")).status_code == 200


@async_test
async def test_a_socket_at_which_somebody_listens_is_left_alone(tmp_path: Path) -> None:
    listener = ListenerSettings(port=None, unix_socket=str(tmp_path / "agent.sock"))
    async with running(listener):
        with pytest.raises(Misconfigured, match="Somebody listens"):
            async with running(listener):
                pass
        async with httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(uds=str(tmp_path / "agent.sock"))) as http:
            assert (await http.get("http://localhost/healthz")).status_code == 200


@async_test
async def test_a_socket_whose_listener_is_too_busy_to_answer_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "agent.sock"
    with socket.socket(socket.AF_UNIX) as busy, ExitStack() as waiting:
        busy.bind(str(path))
        busy.listen(0)
        with suppress(BlockingIOError):  # when no more can wait
            for _ in range(100):
                sender = waiting.enter_context(socket.socket(socket.AF_UNIX))
                sender.settimeout(0)
                sender.connect(str(path))

        with pytest.raises(Misconfigured, match="stop who has it"):
            async with running(ListenerSettings(port=None, unix_socket=str(path))):
                pass
    assert path.exists()


@async_test
async def test_a_file_that_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "agent.sock"
    path.write_text("mine")

    with pytest.raises(Misconfigured, match="is no socket"):
        async with running(ListenerSettings(port=None, unix_socket=str(path))):
            pass

    assert path.read_text() == "mine"


@async_test
async def test_a_socket_that_cannot_be_made_is_told_with_its_path(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match="no-such-folder"):
        async with running(ListenerSettings(port=None, unix_socket=str(tmp_path / "no-such-folder" / "agent.sock"))):
            pass


@async_test
async def test_the_socket_of_a_successor_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "agent.sock"
    async with running(ListenerSettings(port=None, unix_socket=str(path))):
        path.unlink()
        with socket.socket(socket.AF_UNIX) as successor:
            successor.bind(str(path))
    assert path.exists()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])  # noqa: S104 - which is refused
@async_test
async def test_an_address_that_others_reach_is_refused_unless_it_is_allowed(host: str) -> None:
    with pytest.raises(Misconfigured, match="allow_remote"):
        async with running(ListenerSettings(host=host, port=0)):
            pass


@async_test
async def test_an_address_that_others_reach_can_be_allowed() -> None:
    everywhere = ListenerSettings(host="0.0.0.0", port=0, allow_remote=True)  # noqa: S104 - for a moment
    async with running(everywhere) as (_, server), httpx.AsyncClient() as http:
        known = await http.get(f"http://127.0.0.1:{server.port}/healthz")
        foreign = await http.get(f"http://127.0.0.1:{server.port}/healthz", headers={"Host": "example.com"})
    assert (known.status_code, foreign.status_code) == (200, 403)


@pytest.mark.parametrize("host", ["[::1]", "a" * 64])
@async_test
async def test_an_address_that_is_none_is_told(host: str) -> None:
    with pytest.raises(Misconfigured, match="Correct the address"):
        async with running(ListenerSettings(host=host, port=0)):
            pass


@async_test
async def test_localhost_is_loopback() -> None:
    async with running(ListenerSettings(host="localhost", port=0)) as (_, server):
        assert server.port


@async_test
async def test_a_port_that_is_taken_is_told(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        path = tmp_path / "agent.sock"
        listener = ListenerSettings(port=taken.getsockname()[1], unix_socket=str(path))
        with pytest.raises(Misconfigured, match="Correct the address, or stop who has it"):
            async with running(listener):
                pass
    assert not path.exists()


# --- senders


@async_test
async def test_one_connection_carries_many_requests_also_after_refused_ones() -> None:
    async with running() as (receivers, server), wire_to(server) as wire:
        statuses = []
        for body in (LOG_LINE, b"{", LOG_LINE, LOG_LINE * 2):
            await wire.send(request(body))
            statuses.append((await wire.answer())[0])
    assert statuses == [200, 400, 200, 200]
    assert [len(records) for _, records, _ in receivers.recorder.appended] == [1, 2]


@async_test
async def test_requests_that_are_sent_at_once_are_answered_in_turn() -> None:
    async with running() as (_, server), wire_to(server) as wire:
        await wire.send(b"".join(request(body) for body in (LOG_LINE, b"{", LOG_LINE * 3)))
        assert [(await wire.answer())[0] for _ in range(3)] == [200, 400, 200]


@async_test
async def test_an_answer_arrives_although_the_sender_is_still_sending_its_body() -> None:
    async with running(settings=ReceiverSettings(body_bytes=1_000)) as (_, server), wire_to(server) as wire:
        await wire.send(request(bytes(BIG)))
        assert (await wire.answer())[0] == 413
        await wire.send(request())
        assert (await wire.answer())[0] == 200


@async_test
async def test_a_body_that_is_held_back_is_asked_for_only_if_it_is_wanted() -> None:
    async with running() as (_, server):
        async with wire_to(server) as wire:
            await wire.send(head(f"Content-Length: {len(LOG_LINE)}", "Expect: 100-continue"))
            assert (await wire.answer())[0] == 100
            await wire.send(LOG_LINE)
            assert (await wire.answer())[0] == 200
        async with wire_to(server) as wire:
            await wire.send(head(f"Content-Length: {1 << 40}", "Expect: 100-continue"))
            status, headers, _ = await wire.answer()
            assert (status, headers["connection"]) == (413, "close")
            assert await wire.is_closed()


@async_test
async def test_a_body_in_chunks_is_taken_and_its_trailers_are_not() -> None:
    body = b"%x\r\n%s\r\n0\r\nHost: evil.example\r\nIdempotency-Key: x\r\n\r\n" % (len(LOG_LINE), LOG_LINE)
    async with running() as (_, server), wire_to(server) as wire:
        await wire.send(head("Transfer-Encoding: chunked") + body + request())
        answers = [await wire.answer() for _ in range(2)]
    assert [answer[0] for answer in answers] == [200, 200]
    assert b'"duplicate":true' in answers[1][2]


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (head("X: " + "x" * 40_000), 431),
        (b"POST / HTTP/1.1\r\nX: " + b"x" * 400_000, 431),
        (b"GET /" + b"x" * 400_000, 431),
        (head("Upgrade: websocket", "Connection: Upgrade"), 400),
    ],
    ids=["no HTTP", "a large head", "an endless header", "an endless path", "another protocol"],
)
@async_test
async def test_what_is_no_request_is_refused_and_the_connection_closed(sent: bytes, status: int) -> None:
    async with running() as (_, server), wire_to(server) as wire:
        await wire.send(sent)
        assert (await wire.answer())[0] == status
        assert await wire.is_closed()


@async_test
async def test_endless_trailers_end_the_connection() -> None:
    async with running() as (receivers, server), wire_to(server) as wire:
        await wire.send(head("Transfer-Encoding: chunked") + b"%x\r\n%s\r\n0\r\n" % (len(LOG_LINE), LOG_LINE))
        for _ in range(40):
            wire.writer.write(b"X: " + b"x" * 10_000 + b"\r\n")
        assert await wire.is_closed()
    assert receivers.recorder.appended == []


@pytest.mark.parametrize("sent", [b"", b"POST "], ids=["no head", "half a head"])
@async_test
async def test_a_head_that_does_not_come_in_time_ends_the_connection(sent: bytes) -> None:
    async with running(ListenerSettings(port=0, head_seconds=0.05)) as (_, server), wire_to(server) as wire:
        await wire.send(sent)
        assert await wire.is_closed()


@async_test
async def test_a_head_that_does_not_come_in_time_does_not_end_the_request_before_it() -> None:
    async with running(ListenerSettings(port=0, head_seconds=0.05)) as (receivers, server), wire_to(server) as wire:
        receivers.recorder.is_open.clear()
        await wire.send(request() + b"POST ")
        await receivers.recorder.is_asked.wait()
        await asyncio.sleep(0.1)  # the time is over
        receivers.recorder.is_open.set()
        assert (await wire.answer())[0] == 200
        assert await wire.is_closed()


@async_test
async def test_nonsense_after_a_request_is_not_taken_for_its_answer() -> None:
    async with running() as (receivers, server), wire_to(server) as wire:
        receivers.recorder.is_open.clear()
        await wire.send(request() + b"nonsense\r\n\r\n")
        await receivers.recorder.is_asked.wait()
        receivers.recorder.is_open.set()
        assert (await wire.answer())[0] == 200
        assert await wire.is_closed()


@async_test
async def test_too_many_connections_are_503_until_one_is_closed() -> None:
    two = ListenerSettings(port=0, max_connections=2)
    async with running(two) as (_, server), wire_to(server) as first, wire_to(server) as second:
        for wire in (first, second):
            await wire.send(request())
            assert (await wire.answer())[0] == 200
        async with wire_to(server) as third:
            status, headers, _ = await third.answer()
            assert (status, headers["retry-after"]) == (503, "1")
        first.close()
        for _ in range(1_000):
            async with wire_to(server) as fourth:
                await fourth.send(request())
                if (status := (await fourth.answer())[0]) == 200:
                    break
        assert status == 200


@async_test
async def test_a_sender_that_went_away_at_once_is_not_taken_for_one_at_the_unix_socket() -> None:
    foreign = request().replace(b"localhost", b"evil.example")
    async with running() as (receivers, server):
        assert server.port is not None
        with socket.create_connection(("127.0.0.1", server.port)) as sender:  # which the server has not accepted yet
            sender.sendall(foreign)
            sender.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # reset at once
        async with wire_to(server) as wire:
            for _ in range(5):  # those that were accepted before it are served meanwhile
                await wire.send(request())
                assert (await wire.answer())[0] == 200
    assert len(receivers.recorder.appended) == 1


@pytest.mark.parametrize("framing", ["Content-Length", "chunks"])
@async_test
async def test_an_offer_to_speak_http_2_is_ignored_as_java_senders_make_it(framing: str) -> None:
    offer = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABk")
    in_chunks = head("Transfer-Encoding: chunked", *offer) + b"%x\r\n%s\r\n0\r\n\r\n" % (len(LOG_LINE), LOG_LINE)
    sent = in_chunks if framing == "chunks" else request(LOG_LINE, *offer)
    async with running() as (receivers, server), wire_to(server) as wire:
        await wire.send(head("Content-Length: 0", *offer, path="/healthz", method="GET") + sent[:-1])
        await wire.send(sent[-1:] + sent + request(LOG_LINE * 2, "Connection: close"))
        assert [(await wire.answer())[0] for _ in range(4)] == [200, 200, 200, 200]
        assert await wire.is_closed()
    assert [len(records) for _, records, _ in receivers.recorder.appended] == [1, 2]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "later"),
    [("/nothing", b"x"), (JSON_LOGS, b"\r\n")],
    ids=["a part of a body that was answered unread", "an empty line"],
)
@async_test
async def test_a_connection_is_closed_if_no_request_comes_for_long_whatever_else_does(path: str, later: bytes) -> None:
    async with running(ListenerSettings(port=0, idle_seconds=1)) as (_, server), wire_to(server) as wire:
        await wire.send(head("Content-Length: 100", path=path) if later == b"x" else request())
        await wire.answer()
        await wire.send(later)
        assert await wire.is_closed()


# --- stopping


@async_test
async def test_what_was_taken_is_answered_when_the_agent_stops() -> None:
    async with running() as (receivers, server), wire_to(server) as wire, wire_to(server) as idle:
        receivers.recorder.is_open.clear()
        await wire.send(request())
        await receivers.recorder.is_asked.wait()
        stopping = asyncio.create_task(server.stop())
        assert await idle.is_closed()
        with pytest.raises(ConnectionRefusedError):
            async with wire_to(server):
                pass
        receivers.recorder.is_open.set()
        status, headers, _ = await wire.answer()
        assert (status, headers["connection"]) == (200, "close")
        await stopping
    assert len(receivers.recorder.appended) == 1


@pytest.mark.slow
@async_test
async def test_what_takes_too_long_when_the_agent_stops_is_503() -> None:
    async with running(ListenerSettings(port=0, stop_seconds=1)) as (receivers, server), wire_to(server) as wire:
        receivers.recorder.is_open.clear()
        await wire.send(request())
        await receivers.recorder.is_asked.wait()
        await server.stop()
        status, headers, body = await wire.answer()
        assert (status, "retry-after" in headers) == (503, True)
        assert b"stopping" in body


@pytest.mark.slow
@async_test
async def test_half_a_body_does_not_hold_up_the_end_for_long() -> None:
    async with running(ListenerSettings(port=0, stop_seconds=1)) as (receivers, server), wire_to(server) as wire:
        await wire.send(request()[:-1])
        await until(lambda: receivers.metric("requests_in_flight") == 1)
        await server.stop()
        assert (await wire.answer())[0] == 503
    assert receivers.recorder.appended == []
