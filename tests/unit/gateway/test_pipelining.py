"""Clients that send requests without waiting for the answers, and some that never read them."""

import asyncio
import socket

import pytest

from lakehead.gateway.http_protocol import MOST_PIPELINED, BoundedHttpProtocol
from lakehead.gateway.settings import ListenerSettings
from tests.support.async_tests import async_test
from tests.unit.gateway.running import head, running, upload
from tests.unit.gateway.support import FRAME, OTHER_FRAME

ASK = head(method="GET", path="/nothing", token="")


@async_test
async def test_all_whole_requests_are_answered_although_garbage_follows_them() -> None:
    async with running() as at:
        wire = await at.connect()
        await wire.send(upload(FRAME) + upload(OTHER_FRAME) + ASK + b"\x00\x01 no HTTP\r\n\r\n")
        assert [(await wire.answer()).status for _ in range(3)] == [200, 409, 404]
        assert await wire.is_closed()
        await wire.close()


@async_test
async def test_too_many_requests_at_once_are_answered_in_part_and_the_connection_closed() -> None:
    async with running() as at:
        wire = await at.connect()
        await wire.send(ASK * 1_000)
        assert [(await wire.answer()).status for _ in range(MOST_PIPELINED + 1)] == [404] * (MOST_PIPELINED + 1)
        assert await wire.is_closed()
        await wire.close()


@async_test
async def test_few_requests_wait_on_a_connection_however_many_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting: list[int] = []
    parse = BoundedHttpProtocol.data_received

    def watched(self: BoundedHttpProtocol, data: bytes) -> None:
        parse(self, data)
        waiting.append(len(self.pipeline))

    monkeypatch.setattr(BoundedHttpProtocol, "data_received", watched)
    async with running() as at:
        at.gateway.store.is_open.clear()
        wire = await at.connect()
        await wire.send(upload(FRAME))
        await at.gateway.store.is_asked.wait()
        for _ in range(MOST_PIPELINED + 10):
            await wire.send(ASK)
        at.gateway.store.is_open.set()
        assert (await wire.answer()).status == 200
        assert (await wire.answer()).status == 404
        await wire.close()
    assert max(waiting) <= MOST_PIPELINED


@async_test
async def test_a_refused_upload_takes_those_behind_it_along() -> None:
    async with running() as at:
        wire = await at.connect()
        await wire.send(upload(FRAME, token="wrong") + upload(FRAME))
        answer = await wire.answer()
        assert (answer.status, answer.headers["connection"]) == (401, "close")
        assert (await wire.reader.read()) == b""
        await wire.close()
    assert not at.gateway.store.calls


@async_test
async def test_a_client_that_never_reads_its_answers_is_closed_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    accept = BoundedHttpProtocol.connection_made

    def with_a_small_buffer(self: BoundedHttpProtocol, transport: asyncio.Transport) -> None:
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        transport.set_write_buffer_limits(0)
        accept(self, transport)

    monkeypatch.setattr(BoundedHttpProtocol, "connection_made", with_a_small_buffer)
    loop = asyncio.get_running_loop()
    async with running(listener=ListenerSettings(write_seconds=0.05)) as at:
        listener = at.server._ingest
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.settimeout(0)
            await loop.sock_connect(client, ("127.0.0.1", at.server.ingest_port))
            sent = 0
            while not listener.open_connections.timed_out:
                if sent <= listener.server_state.total_requests:
                    await loop.sock_sendall(client, ASK)
                    sent += 1
                await asyncio.sleep(0)
    assert listener.open_connections.count == 0


@async_test
async def test_what_strangers_send_badly_is_counted_and_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with running() as at:
        for _ in range(20):
            assert (await at.ask(b"\x00\x01 no HTTP\r\n\r\n")).status == 400
    assert at.gateway.metric("connections_malformed_total", listener="ingest") == 20
    assert not caplog.records


@async_test
async def test_a_client_that_sends_nothing_more_still_gets_the_head_that_it_asks_for() -> None:
    async with running() as at:
        wire = await at.connect()
        wire.writer.write(head(method="HEAD", path="/nothing", token=""))
        wire.writer.write_eof()

        answered = await wire.reader.read()
        await wire.close()

    assert answered.startswith(b"HTTP/1.1 404 ")
    assert answered.endswith(b"\r\n\r\n")
