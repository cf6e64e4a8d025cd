"""A gateway on real sockets: what clients send badly, slowly or not at all, and how it stops."""

import asyncio
import socket
import ssl
from contextlib import suppress
from types import SimpleNamespace

import httpx
import pytest
import uvloop

from lakehead.clock import SystemClock
from lakehead.errors import Misconfigured
from lakehead.gateway.http_protocol import BoundedHttpProtocol
from lakehead.gateway.server import ListenerServer
from lakehead.gateway.settings import GatewaySettings, IngestSettings, ListenerSettings, TlsSettings
from tests.servers.certificates import Authority
from tests.support.async_tests import async_test
from tests.unit.gateway.running import Wire, head, running, upload
from tests.unit.gateway.support import AUTH, FRAME, OTHER_FRAME, Gateway, as_role

BIG = 12 << 20
"""More than the buffers between client and server hold, and less than the gateway throws away."""


@async_test
async def test_one_connection_carries_many_uploads() -> None:
    async with running() as at:
        wire = await at.connect()
        statuses = []
        for body in (FRAME, FRAME, OTHER_FRAME, b"x"):
            await wire.send(upload(body))
            statuses.append((await wire.answer()).status)
        await wire.close()
    assert statuses == [200, 200, 409, 400]


@async_test
async def test_whoever_has_no_token_is_answered_before_the_body_is_sent() -> None:
    async with running() as at:
        wire = await at.connect()
        await wire.send(head(f"Content-Length: {BIG}", token="wrong"))
        answer = await wire.answer()
        assert (answer.status, answer.headers["connection"]) == (401, "close")
        await wire.close()
    assert not at.gateway.store.calls


@async_test
async def test_whoever_has_no_token_is_not_asked_for_the_body_that_it_holds_back() -> None:
    async with running() as at:
        answer = await at.ask(head("Content-Length: 100", "Expect: 100-continue", token="wrong"))
        asked = await at.ask(head(f"Content-Length: {len(FRAME)}", "Expect: 100-continue"))
    assert (answer.status, asked.status) == (401, 100)


@async_test
async def test_an_answer_arrives_although_the_client_is_still_sending_its_body() -> None:
    async with running() as at:
        answer = await at.ask(upload(bytes(BIG), token="wrong"))
        assert answer.status == 401
        too_large = await at.ask(head(f"Content-Length: {1 << 40}") + bytes(BIG))
    assert (too_large.status, too_large.code) == (413, "too_large")


@async_test
async def test_a_body_that_is_thrown_away_has_a_limit_too() -> None:
    async with running(listener=ListenerSettings(linger_seconds=60, linger_bytes=1_000)) as at:
        wire = await at.connect()
        await wire.send(head(f"Content-Length: {BIG}", token="wrong"))
        await wire.answer()
        wire.writer.write(bytes(10_000))
        assert await wire.is_closed()
        await wire.close()


@async_test
async def test_a_connection_with_an_unread_body_is_closed_after_a_while_by_itself() -> None:
    async with running(listener=ListenerSettings(linger_seconds=0.01)) as at:
        wire = await at.connect()
        await wire.send(head("Content-Length: 100", token="wrong"))
        await wire.answer()
        assert await wire.is_closed()
        await wire.close()


def chunked(*chunks: bytes) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(each), each) for each in chunks)


@async_test
async def test_a_chunked_body_is_taken_and_one_above_the_limit_is_413() -> None:
    gateway = Gateway(IngestSettings(body_bytes=len(FRAME)))
    async with running(gateway) as at:
        start = head("Transfer-Encoding: chunked")
        fine = await at.ask(start + chunked(FRAME[:100], FRAME[100:]) + b"0\r\n\r\n")
        calls = len(gateway.store.calls)
        large = await at.ask(start + chunked(FRAME, b"x", bytes(50_000)))
    assert fine.status == 200
    assert (large.status, large.code) == (413, "too_large")
    assert len(gateway.store.calls) >= calls
    assert len(await gateway.store.keys("accepted")) == 1


@async_test
async def test_endless_trailers_are_refused() -> None:
    async with running(listener=ListenerSettings(head_bytes=2_000)) as at:
        wire = await at.connect()
        await wire.send(head("Transfer-Encoding: chunked") + chunked(FRAME) + b"0\r\nx: ")

        async def flood() -> None:
            with suppress(OSError):
                while True:
                    await wire.send(b"y" * 500)

        flooding = asyncio.ensure_future(flood())
        assert (await wire.answer()).status == 400
        flooding.cancel()
        await asyncio.gather(flooding, return_exceptions=True)
        await wire.close()
    assert not at.gateway.store.calls


@async_test
async def test_a_slow_body_is_408_and_gives_back_what_it_reserved() -> None:
    gateway = Gateway(IngestSettings(read_seconds=0.05))
    async with running(gateway) as at:
        answer = await at.ask(head(f"Content-Length: {len(FRAME)}") + FRAME[:-1])
    assert (answer.status, answer.code, answer.headers["connection"]) == (408, "body_timeout", "close")
    assert gateway.metric("bytes_in_flight") == 0
    assert not gateway.store.calls


@async_test
async def test_a_client_that_goes_away_in_its_body_leaves_nothing() -> None:
    gateway = Gateway()
    async with running(gateway) as at:
        wire = await at.connect()
        await wire.send(head(f"Content-Length: {len(FRAME)}") + FRAME[:-1])
        wire.writer.write_eof()
        assert await wire.is_closed()
        await wire.close()
    assert gateway.metric("disconnected_total") == 1
    assert gateway.metric("bytes_in_flight") == 0
    assert not gateway.store.calls


@async_test
async def test_what_follows_a_whole_upload_does_not_take_its_answer() -> None:
    async with running() as at:
        gateway = at.gateway
        gateway.store.is_open.clear()
        wire = await at.connect()
        await wire.send(upload(FRAME) + b"\x00garbage\r\n\r\n")
        await gateway.store.is_asked.wait()
        await wire.send(b"more garbage")
        gateway.store.is_open.set()
        answer = await wire.answer()
        assert (answer.status, answer.headers["connection"]) == (200, "close")
        assert await wire.is_closed()
        await wire.close()


@async_test
async def test_a_client_that_closes_its_side_after_a_whole_upload_still_gets_the_answer() -> None:
    async with running() as at:
        wire = await at.connect()
        at.gateway.store.is_open.clear()
        await wire.send(upload(FRAME))
        wire.writer.write_eof()
        await at.gateway.store.is_asked.wait()
        assert (await at.ask(upload(b"x"))).status == 400  # by then it has seen that, too
        at.gateway.store.is_open.set()
        assert (await wire.answer()).status == 200
        assert await wire.is_closed()
        await wire.close()


@async_test
async def test_a_client_that_offers_another_protocol_is_told_not_to() -> None:
    async with running() as at:
        answer = await at.ask(upload(FRAME, "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c"))
        assert (answer.status, answer.code) == (400, "bad_request")
        assert b"Upgrade" in answer.body


@async_test
async def test_uploads_that_are_sent_without_waiting_are_answered_in_their_order() -> None:
    async with running() as at:
        wire = await at.connect()
        await wire.send(upload(FRAME) + upload(OTHER_FRAME) + upload(b"x") + upload(FRAME))
        assert [(await wire.answer()).status for _ in range(4)] == [200, 409, 400, 200]
        await wire.close()


@async_test
async def test_a_content_length_that_is_too_short_is_a_bad_frame_and_not_a_second_request() -> None:
    async with running() as at:
        answer = await at.ask(head(f"Content-Length: {len(FRAME) - 5}") + FRAME)
    assert (answer.status, answer.code) == (400, "truncated")
    assert not at.gateway.store.calls


@pytest.mark.parametrize(
    "lines", [("Content-Length: x",), ("Content-Length: 5", "Content-Length: 6"), ("Content-Length: -1",)]
)
@async_test
async def test_a_length_that_is_no_number_is_400(lines: tuple[str, ...]) -> None:
    async with running() as at:
        answer = await at.ask(head(*lines) + b"12345")
    assert (answer.status, answer.code) == (400, "bad_request")
    assert not at.gateway.store.calls


@pytest.mark.parametrize("extra", ["X-Long: " + "x" * 3_000, "\r\n".join(f"X-{n}: y" for n in range(400))])
@async_test
async def test_a_head_above_the_limit_is_431(extra: str) -> None:
    async with running(listener=ListenerSettings(head_bytes=2_000)) as at:
        whole = await at.ask(head(extra))
        endless = await at.ask(head(extra)[:-4])
    assert (whole.status, whole.code) == (endless.status, endless.code) == (431, "head_too_large")


@async_test
async def test_connections_without_a_whole_head_are_closed_after_a_while() -> None:
    async with running(listener=ListenerSettings(head_seconds=0.05)) as at:
        silent, slow, idle = [await at.connect() for _ in range(3)]
        await slow.send(b"POST /ingest/v1/batch HTTP/1.1\r\nHost: ")
        await idle.send(upload(FRAME))
        await idle.answer()
        await idle.send(b"\r\n")  # which is no request yet
        for wire in (silent, slow, idle):
            assert await wire.is_closed()
            await wire.close()
        assert at.gateway.metric("connections_timed_out_total", listener="ingest") == 3


@async_test
async def test_neither_a_request_under_way_nor_an_idle_connection_is_taken_for_a_slow_head() -> None:
    async with running() as at:
        wire = await at.connect()
        await begun(wire, at.gateway)
        (connection,) = at.server._ingest.server_state.connections
        assert isinstance(connection, BoundedHttpProtocol)
        assert connection._timer is None
        at.gateway.store.is_open.set()
        await wire.answer()
        assert connection._timer is None
        assert connection.timeout_keep_alive_task is not None
        await wire.close()


@async_test
async def test_idle_connections_make_room_for_those_that_ask() -> None:
    async with running(listener=ListenerSettings(max_connections=10)) as at:
        idle = [await at.connect() for _ in range(40)]
        for _ in range(3):
            assert (await at.ask(upload(FRAME))).status == 200
        assert at.gateway.metric("connections", listener="ingest") <= 10
        assert at.gateway.metric("connections_evicted_total", listener="ingest") >= 30
        for wire in idle:
            await wire.close()


@async_test
async def test_connections_that_are_all_at_work_are_kept_and_a_further_one_is_503() -> None:
    async with running(listener=ListenerSettings(max_connections=2)) as at:
        at.gateway.store.is_open.clear()
        working = [await at.connect() for _ in range(2)]
        for wire in working:
            await wire.send(upload(FRAME))
            await at.gateway.store.is_asked.wait()
            at.gateway.store.is_asked.clear()
        answer = await at.ask(b"")
        assert (answer.status, answer.code) == (503, "too_many_connections")
        assert "retry-after" in answer.headers
        at.gateway.store.is_open.set()
        assert sorted([(await wire.answer()).status for wire in working]) == [200, 200]
        for wire in working:
            await wire.close()


async def begun(wire: Wire, gateway: Gateway) -> None:
    """An upload whose identity manifest is being created."""
    gateway.store.is_open.clear()
    await wire.send(upload(FRAME))
    await gateway.store.is_asked.wait()


@async_test
async def test_a_stopping_gateway_answers_what_is_under_way_and_takes_nothing_new() -> None:
    async with running() as at:
        gateway, port = at.gateway, at.server.ingest_port
        under_way, idle = await at.connect(), await at.connect()
        await begun(under_way, gateway)
        stopping = asyncio.ensure_future(at.server.stop())
        assert await idle.is_closed()
        with pytest.raises(OSError, match="onnect"):
            await asyncio.open_connection("127.0.0.1", port)
        async with httpx.AsyncClient() as http:  # the private listener is there until the end
            ready = await http.get(f"http://127.0.0.1:{at.server.private_port}/readyz")
        assert ready.status_code == 503
        assert not stopping.done()
        gateway.store.is_open.set()
        answer = await under_way.answer()
        assert (answer.status, answer.headers["connection"]) == (200, "close")
        await stopping
        assert gateway.after.counts.queued == gateway.after.counts.indexed == 1
        for wire in (under_way, idle):
            await wire.close()


class HeldSleep(SystemClock):
    """A clock whose sleeps end when they are told to."""

    def __init__(self) -> None:
        self.slept: list[float] = []
        self.sleeps, self.wakes = asyncio.Event(), asyncio.Event()

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.sleeps.set()
        await self.wakes.wait()


@async_test
async def test_a_gateway_says_for_a_while_that_it_is_not_ready_before_it_takes_nothing_new() -> None:
    clock = HeldSleep()
    async with running(unready_seconds=30, clock=clock) as at:
        stopping = asyncio.ensure_future(at.server.stop())
        await clock.sleeps.wait()

        assert (await at.gateway.get("/readyz", role=None)).status_code == 503
        assert (await at.ask(upload(FRAME))).status == 200, "a load balancer that has not noticed still sends"
        clock.wakes.set()
        await stopping

        with pytest.raises(ConnectionError):
            await at.connect()
    assert clock.slept == [30]


@async_test
async def test_side_effects_end_after_the_last_upload_and_before_the_private_listener() -> None:
    seen: list[str] = []
    async with running() as at:
        close = at.gateway.after.close

        async def noted(*, within: float) -> None:
            with pytest.raises(OSError, match="onnect"):
                await asyncio.open_connection("127.0.0.1", at.server.ingest_port)
            async with httpx.AsyncClient() as http:
                health = await http.get(f"http://127.0.0.1:{at.server.private_port}/healthz")
            seen.append(f"{within:g} s, private listener {health.status_code}")
            await close(within=within)

        at.server._side_effects = SimpleNamespace(close=noted)
        assert (await at.ask(upload(FRAME))).status == 200
        await at.server.stop()
        assert at.gateway.after.counts.queued == 1
        at.server._side_effects = at.gateway.after
    assert seen == ["10 s, private listener 200"]


@pytest.mark.slow
@async_test
async def test_what_takes_too_long_to_stop_is_told_to_come_again() -> None:
    async with running(stop_seconds=1) as at:
        gateway = at.gateway
        wire = await at.connect()
        await begun(wire, gateway)
        await at.server.stop()
        answer = await wire.answer()
        assert (answer.status, answer.code) == (503, "stopping")
        assert "retry-after" in answer.headers
        assert not gateway.queue.queued
        await wire.close()


@async_test
async def test_stopping_twice_is_stopping_once() -> None:
    async with running() as at:
        await at.server.stop()


@async_test
async def test_tls_and_client_certificates_are_asked_for_by_settings(tmp_path_factory: pytest.TempPathFactory) -> None:
    authority = Authority.make(tmp_path_factory.mktemp("tls"), "ours")
    cert, key = authority.sign("server", "IP:127.0.0.1")
    client_cert, client_key = authority.sign("client", "DNS:agent-a")
    tls = TlsSettings(cert_file=str(cert), key_file=str(key), client_ca_file=str(authority.ca))
    context = ssl.create_default_context(cafile=authority.ca)
    async with running(listener=ListenerSettings(tls=tls)) as at:
        url = f"https://127.0.0.1:{at.server.ingest_port}/ingest/v1/batch"
        async with httpx.AsyncClient(verify=context) as http:
            with pytest.raises(httpx.TransportError):
                await http.post(url, content=FRAME, headers=AUTH)
        context.load_cert_chain(client_cert, client_key)
        async with httpx.AsyncClient(verify=context) as http:
            accepted = await http.post(url, content=FRAME, headers=AUTH)
            refused = await http.post(url, content=bytes(BIG), headers={})
    assert (accepted.status_code, refused.status_code) == (200, 401)


def test_tls_files_that_cannot_be_used_are_named() -> None:
    tls = TlsSettings(cert_file="/nowhere/cert.pem", key_file="/nowhere/key.pem")
    with pytest.raises(Misconfigured, match=r"/nowhere/cert\.pem, /nowhere/key\.pem"):
        ListenerServer(Gateway().ingest, ListenerSettings(tls=tls), stop_seconds=1)


@async_test
async def test_a_port_that_somebody_has_is_named_and_nothing_stays_bound() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        gateway = Gateway()
        port = taken.getsockname()[1]
        with pytest.raises(Misconfigured, match=f"port {port}"):
            async with running(gateway, ListenerSettings(port=port)):
                pass


@async_test
async def test_the_private_listener_is_on_loopback_by_default_and_takes_no_agents_token() -> None:
    assert GatewaySettings().private_listener.host == "127.0.0.1"
    async with running() as at, httpx.AsyncClient() as http:
        url = f"http://127.0.0.1:{at.server.private_port}/v1/conflicts"
        assert (await http.get(url, headers=AUTH)).status_code == 401
        assert (await http.get(url, headers=as_role("viewer"))).status_code == 200


def test_all_of_it_works_on_uvloop_too() -> None:
    async def work() -> None:
        async with running(listener=ListenerSettings(max_connections=5, linger_seconds=60)) as at:
            idle = [await at.connect() for _ in range(9)]
            assert (await at.ask(upload(bytes(BIG), token="wrong"))).status == 401
            assert (await at.ask(head("X-Long: " + "x" * 20_000))).status == 431
            under_way = await at.connect()
            await begun(under_way, at.gateway)
            stopping = asyncio.ensure_future(at.server.stop())
            for wire in idle:
                assert await wire.is_closed()
            at.gateway.store.is_open.set()
            assert (await under_way.answer()).status == 200
            await stopping
            for wire in (*idle, under_way):
                await wire.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(work())
