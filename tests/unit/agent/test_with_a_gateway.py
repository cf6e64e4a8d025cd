"""The client and a real gateway on loopback."""

from concurrent.futures import ThreadPoolExecutor

import pytest

import lakehead
from lakehead.agent import gateway_answers
from lakehead.agent.errors import (
    AgentRefused,
    BatchTooLarge,
    BootQuarantined,
    FrameRefused,
    GatewayUnavailable,
    IdentityConflict,
    TokenRefused,
    VoidBatch,
)
from lakehead.agent.framed_batch import FramedBatch
from lakehead.agent.gateway_client import SendDeps, SendSettings
from lakehead.agent.gateway_connection import PATH
from lakehead.buffer.errors import InvalidCall
from lakehead.clock import SystemClock
from lakehead.gateway import ingest_app
from lakehead.gateway.error_codes import ErrorCode
from lakehead.gateway.settings import IngestSettings, ListenerSettings, TlsSettings
from lakehead.retry import TimedBackoff
from lakehead.wire import acceptance_keys as keys
from lakehead.wire.batch_identity import BatchIdentity
from lakehead.wire.frame import decode_frame
from tests.servers.certificates import Authority
from tests.support.async_tests import async_test
from tests.unit.accept.support import APPLIED, DOWN, submitted, void_of
from tests.unit.agent.real_gateway import gateway_in_a_thread, url_of
from tests.unit.agent.support import SleepingClock
from tests.unit.gateway.running import Running, running
from tests.unit.gateway.support import AGENT, TOKEN, Gateway
from tests.unit.wire.frames import logs, samples

RECORDS = [{"time": "2026-11-18T09:30:00Z", "metric": "up", "labels": {"host": "a"}, "value": 1}]


@async_test
async def test_what_is_sent_is_accepted_once_and_is_in_the_store() -> None:
    async with running() as server:
        async with lakehead.Gateway(url_of(server), token=TOKEN, agent_id=AGENT, boot_id="b") as gateway:
            batch = gateway.frame(RECORDS)
            first, again = await gateway.send_batch(batch), await gateway.send_batch(batch)
            next_one = await gateway.send(RECORDS)

        assert (first.duplicate, again.duplicate, next_one.duplicate) == (False, True, False)
        assert next_one.identity == BatchIdentity(AGENT, "b", 1, 1)
        stored = await server.gateway.store.get(keys.raw_blob(first.frame_sha256))
        assert stored is not None
        assert decode_frame(stored.body).records.column("metric").to_pylist() == ["up"]


@async_test
async def test_arrow_and_log_records_are_sent_too() -> None:
    async with running() as server:
        async with client(server) as gateway:
            receipt = await gateway.send(samples())
            assert receipt.identity.record_count == len(samples())
        async with lakehead.Gateway(url_of(server), token=TOKEN, agent_id=AGENT, kind="logs") as gateway:
            receipt = await gateway.send(logs())
            assert receipt.identity.record_count == len(logs())


@async_test
async def test_a_store_that_fails_for_a_while_costs_attempts_and_no_batch() -> None:
    clock = SleepingClock()
    async with running() as server:
        server.gateway.store.next("accepted", DOWN, APPLIED)
        async with client(server, clock=clock) as gateway:
            receipt = await gateway.send(RECORDS)

    assert receipt.identity.seq_start == 0
    assert all(slept >= IngestSettings().retry_after_seconds for slept in clock.slept), "the gateway's Retry-After"
    assert clock.slept


@async_test
async def test_each_refusal_of_a_gateway_is_an_error_of_its_own() -> None:
    async with running(Gateway(IngestSettings(body_bytes=2_000))) as server, client(server) as gateway:
        batch = gateway.frame(RECORDS)
        with pytest.raises(FrameRefused, match="Fix what sends it"):
            await gateway.send_batch(FramedBatch(batch.identity, b"not a frame at all, and long enough to be one" * 2))
        with pytest.raises(BatchTooLarge, match="Send smaller batches"):
            await gateway.send([(number, f"metric {number * 7919}", {}, number / 7) for number in range(1_000)])
        for agent, token, expected in ((AGENT, "unknown", TokenRefused), ("agent-b", TOKEN, AgentRefused)):
            async with lakehead.Gateway(url_of(server), token=token, agent_id=agent) as other:
                with pytest.raises(expected):
                    await other.send(RECORDS)
        server.gateway.boots.quarantined.add((AGENT, gateway.boot_id))
        with pytest.raises(BootQuarantined, match="new boot"):
            await gateway.send_batch(batch)


@async_test
async def test_a_conflict_names_both_frames_and_what_was_accepted_stays() -> None:
    async with running() as server, client(server, boot_id="b") as one, client(server, boot_id="b") as two:
        first = await one.send(RECORDS)

        with pytest.raises(IdentityConflict) as refused:
            await two.send([{**RECORDS[0], "value": 2}])

    assert refused.value.accepted_frame_sha256 == first.frame_sha256
    assert refused.value.resolution == ""


@async_test
async def test_records_of_a_void_identity_are_accepted_under_the_next_numbers() -> None:
    async with running() as server, client(server) as gateway:
        batch = gateway.frame(RECORDS)
        void = void_of(submitted(batch.body, batch.identity))
        await server.gateway.store.create(keys.accepted(batch.identity), void.encode())

        with pytest.raises(VoidBatch):
            await gateway.send_batch(batch)

        assert not (await gateway.send(RECORDS)).duplicate


@pytest.mark.slow
def test_blocking_calls_from_several_threads_use_each_number_once() -> None:
    with gateway_in_a_thread() as server:
        with lakehead.BlockingGateway(url_of(server), token=TOKEN, agent_id=AGENT) as gateway:
            with ThreadPoolExecutor(4) as threads:
                receipts = list(threads.map(lambda _: gateway.send(RECORDS), range(20)))
            batch = gateway.frame(RECORDS)
            assert [gateway.send_batch(batch).duplicate for _ in range(2)] == [False, True]
            assert gateway.next_sequence == 21

        assert sorted(receipt.identity.seq_start for receipt in receipts) == list(range(20))
        assert {receipt.identity.boot_id for receipt in receipts} == {gateway.boot_id}
        assert not any(receipt.duplicate for receipt in receipts)
        with pytest.raises(InvalidCall):
            gateway.send(RECORDS)


@async_test
async def test_a_gateway_that_is_not_there_is_unavailable() -> None:
    async with running() as server:
        gone = url_of(server)
    settings = SendSettings(retry=TimedBackoff(seconds=0.05, first_seconds=0.01))

    async with lakehead.Gateway(gone, token=TOKEN, agent_id=AGENT, settings=settings) as gateway:
        with pytest.raises(GatewayUnavailable, match=r"127\.0\.0\.1"):
            await gateway.send(RECORDS)


@pytest.mark.slow
@async_test
async def test_a_certificate_of_nobody_we_trust_or_for_another_name_gets_no_token(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("tls")
    ours, other = Authority.make(folder, "ours"), Authority.make(folder, "other")
    cert, key = ours.sign("server", "IP:127.0.0.1")
    retry = TimedBackoff(seconds=0.05, first_seconds=0.01)
    tls = TlsSettings(cert_file=str(cert), key_file=str(key))
    async with running(listener=ListenerSettings(tls=tls)) as server:
        url = f"https://127.0.0.1:{server.server.ingest_port}"
        for place, ca_file, is_trusted in (
            (url, str(ours.ca), True),
            (url, str(other.ca), False),
            (url, None, False),
            (url.replace("127.0.0.1", "localhost"), str(ours.ca), False),
        ):
            settings = SendSettings(ca_file=ca_file, retry=retry)
            async with lakehead.Gateway(place, token=TOKEN, agent_id=AGENT, settings=settings) as gateway:
                if is_trusted:
                    assert not (await gateway.send(RECORDS)).duplicate
                else:
                    with pytest.raises(GatewayUnavailable, match="certificate verify failed"):
                        await gateway.send(RECORDS)
        assert server.gateway.metric("accepted_total") == 1


def test_client_and_gateway_agree_on_the_route_and_on_what_is_refused() -> None:
    assert PATH == ingest_app.PATH
    for status, code in gateway_answers._DECIDED:
        assert ErrorCode(code).status == status
    for code in gateway_answers._NOT_TAKEN:
        assert ErrorCode(code).status in gateway_answers._TRY_AGAIN


def client(server: Running, *, boot_id: str | None = None, clock: SystemClock | None = None) -> lakehead.Gateway:
    deps = SendDeps(clock=clock or SystemClock())
    return lakehead.Gateway(url_of(server), token=TOKEN, agent_id=AGENT, boot_id=boot_id, deps=deps)
