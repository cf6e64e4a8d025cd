"""Agents and real gateways on loopback."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import lakehead
from lakehead.agent.plain_records import PlainRecord
from lakehead.agent.settings import AgentSettings
from lakehead.agent.tls_files import TlsFiles
from lakehead.buffer.errors import InvalidCall
from lakehead.gateway.settings import IngestSettings, ListenerSettings, TlsSettings
from lakehead.wire import acceptance_keys as keys
from lakehead.wire.acceptance_records import IdentityVoid
from lakehead.wire.batch_identity import BatchIdentity
from lakehead.wire.conflict_records import ConflictResolution
from lakehead.wire.frame import decode_frame
from lakehead.wire.record_schemas import FrameKind
from tests.servers.certificates import Authority
from tests.support.async_tests import async_test
from tests.unit.accept.support import APPLIED, DOWN, NOT_APPLIED
from tests.unit.agent.agents import FLUSH_SECONDS, QUICK, QUICK_SPOOL, sample, until
from tests.unit.agent.real_gateway import gateway_in_a_thread, url_of
from tests.unit.gateway.running import Running, running
from tests.unit.gateway.support import AGENT, TOKEN, Gateway


def settings(folder: Path, *urls: str, **changed: object) -> AgentSettings:
    quick = {"spool": QUICK_SPOOL, "gateway_backoff": QUICK, "batch_backoff": QUICK, "pause_seconds": 0.01}
    return AgentSettings(
        agent_id=AGENT,
        gateways=urls,
        spool_folder=str(folder / "spool"),
        retry_after_seconds=0.001,
        **(quick | changed),  # type: ignore[arg-type]  # whichever a test changes
    )


def agent(folder: Path, *servers: Running, **changed: object) -> lakehead.Agent:
    return lakehead.Agent(settings(folder, *map(url_of, servers), **changed), lakehead.AgentDeps(token=TOKEN))


async def accepted_values(server: Running) -> list[float]:
    """The values of all samples that were accepted, from the store."""
    found: list[float] = []
    for key in await server.gateway.store.keys("raw-blobs/v1"):
        blob = await server.gateway.store.get(key)
        assert blob is not None
        if (frame := decode_frame(blob.body)).header.kind is FrameKind.SAMPLES:
            found += frame.records.column("value").to_pylist()
    return sorted(found)


def offered(one: lakehead.Agent) -> int:
    """Offer what is parked, and return how much is left."""
    one.parked.offer_now()
    return len(one.parked.list())


@pytest.mark.slow
@async_test
async def test_what_is_added_is_accepted_once_although_the_store_fails_in_every_way(tmp_path: Path) -> None:
    async with running() as server, agent(tmp_path, server) as one:
        server.gateway.store.next("accepted", DOWN, APPLIED, NOT_APPLIED, APPLIED, DOWN)
        server.gateway.store.next("raw-blobs", NOT_APPLIED, DOWN, APPLIED)
        for value in range(20):
            await one.add_samples([sample(value)])
            await one.spool.seal_now()
        assert (await one.flush(FLUSH_SECONDS)).is_accepted

        assert await accepted_values(server) == list(range(20))
        assert one.counts.failed_attempts > 0
        assert one.status().authority == "authority-1"


@async_test
async def test_a_gateway_that_goes_away_is_replaced_by_another(tmp_path: Path) -> None:
    async with running() as one_gateway, running() as other_gateway:
        async with agent(tmp_path, one_gateway, other_gateway) as one:
            await one.add_samples([sample(1)])
            assert (await one.flush(FLUSH_SECONDS)).is_accepted
            [used] = [each for each in (one_gateway, other_gateway) if await accepted_values(each)]
            await used.server.__aexit__(None, None, None)
            await one.add_samples([sample(2)])
            assert (await one.flush(FLUSH_SECONDS)).is_accepted
        both = await accepted_values(one_gateway) + await accepted_values(other_gateway)
        assert sorted(both) == [1.0, 2.0]


@async_test
async def test_a_frame_that_is_too_large_is_parked_and_accepted_when_the_limit_is_higher(tmp_path: Path) -> None:
    many: list[PlainRecord] = [(number, f"metric {number * 7919}", {}, number / 7) for number in range(1_000)]
    async with running(Gateway(IngestSettings(body_bytes=2_000))) as server, agent(tmp_path, server) as one:
        await one.add_samples(many)
        await one.flush(FLUSH_SECONDS)
        await one.add_samples([sample(1)])
        [parked] = (await one.flush(FLUSH_SECONDS)).parked
        assert (parked.code, await accepted_values(server)) == ("too_large", [1.0])

    async with running() as server, agent(tmp_path, server) as one:
        await until(lambda: not one.parked.list())
        assert len(await accepted_values(server)) == len(many)


@async_test
async def test_a_conflict_is_parked_until_an_operator_has_decided(tmp_path: Path) -> None:
    async with running() as server, agent(tmp_path, server) as one:
        boot_id = one.status().spool.boots[FrameKind.SAMPLES]
        async with lakehead.Gateway(url_of(server), token=TOKEN, agent_id=AGENT, boot_id=boot_id) as clone:
            accepted = await clone.send([sample(7)])
        await one.add_samples([sample(1)])
        [parked] = (await one.flush(FLUSH_SECONDS)).parked
        await one.add_samples([sample(2)])
        await one.flush(FLUSH_SECONDS)
        assert parked.code == "identity_conflict"
        assert await accepted_values(server) == [1.0, 2.0, 7.0], "its blob is kept, for the operator"

        batch = await one.spool.read(one.spool.parked()[0])
        assert batch is not None
        server.gateway.conflicts.decided[batch.sha256] = ConflictResolution(
            agent_id=AGENT,
            boot_id=boot_id,
            seq_start=0,
            seq_end=0,
            submitted_frame_sha256=batch.sha256,
            accepted_frame_sha256=accepted.frame_sha256,
            version=1,
            resolution="accept_existing",
            resolved_at_unix_ns=1,
            resolved_by="operator",
        )
        await until(lambda: offered(one) == 0)
        assert one.counts.dropped == 1


@async_test
async def test_the_records_of_a_void_identity_are_accepted_under_another(tmp_path: Path) -> None:
    async with running() as server, agent(tmp_path, server) as one:
        boot_id = one.status().spool.boots[FrameKind.SAMPLES]
        void = IdentityVoid(
            agent_id=AGENT,
            boot_id=boot_id,
            seq_start=0,
            seq_end=0,
            frame_sha256="0" * 64,
            voided_at_unix_ns=1,
            voided_by="gc",
        )
        await server.gateway.store.create(keys.accepted(void.identity), void.encode())

        await one.add_samples([sample(1)])

        assert (await one.flush(FLUSH_SECONDS)).is_accepted
        assert one.counts.requeued == 1
        assert await server.gateway.store.get(keys.accepted(BatchIdentity(AGENT, boot_id, 1, 1))) is not None


@async_test
async def test_a_boot_in_quarantine_is_left_and_its_batches_are_accepted_when_it_is_released(tmp_path: Path) -> None:
    async with running() as server, agent(tmp_path, server) as one:
        boot_id = one.status().spool.boots[FrameKind.SAMPLES]
        server.gateway.boots.quarantined.add((AGENT, boot_id))
        await one.add_samples([sample(1)])
        [parked] = (await one.flush(FLUSH_SECONDS)).parked
        await one.add_samples([sample(2)])
        await one.flush(FLUSH_SECONDS)
        assert (parked.code, await accepted_values(server)) == ("identity_quarantined", [2.0])

        server.gateway.boots.quarantined.clear()
        await until(lambda: offered(one) == 0)
        assert await accepted_values(server) == [1.0, 2.0]


@async_test
async def test_a_token_that_is_not_known_yet_is_waited_for(tmp_path: Path) -> None:
    async with running() as server:
        del server.gateway.tokens.agents[TOKEN]
        async with agent(tmp_path, server) as one:
            await one.add_samples([sample(1)])
            await until(lambda: one.counts.pauses > 2)
            server.gateway.tokens.agents[TOKEN] = AGENT
            assert (await one.flush(FLUSH_SECONDS)).is_accepted


@async_test
async def test_gateways_may_ask_for_a_certificate(tmp_path: Path) -> None:
    ours = Authority.make(tmp_path, "ours")
    server_cert, server_key = ours.sign("server", "IP:127.0.0.1")
    cert, key = ours.sign("agent", "DNS:agent")
    tls = TlsSettings(cert_file=str(server_cert), key_file=str(server_key), client_ca_file=str(ours.ca))
    async with running(listener=ListenerSettings(tls=tls)) as server:
        url = f"https://127.0.0.1:{server.server.ingest_port}"
        deps = lakehead.AgentDeps(token=TOKEN)
        without = settings(tmp_path, url, tls=TlsFiles(ca_file=str(ours.ca)))
        async with lakehead.Agent(without, deps) as one:
            await one.add_samples([sample(1)])
            await until(lambda: one.counts.failed_attempts > 0)
        files = TlsFiles(ca_file=str(ours.ca), cert_file=str(cert), key_file=str(key))
        async with lakehead.Agent(settings(tmp_path, url, tls=files), deps) as one:
            assert (await one.flush(FLUSH_SECONDS)).is_accepted
        with pytest.raises(lakehead.Misconfigured, match="certificate"):
            await lakehead.Agent(settings(tmp_path, url, tls=TlsFiles(cert_file=str(key))), deps).__aenter__()


def test_blocking_calls_from_several_threads(tmp_path: Path) -> None:
    with gateway_in_a_thread() as server:
        deps = lakehead.AgentDeps(token=TOKEN)
        with lakehead.BlockingAgent(settings(tmp_path, url_of(server)), deps) as one:
            with ThreadPoolExecutor(4) as threads:
                spooled = list(threads.map(lambda value: one.add_samples([sample(value)]), range(20)))
            one.add_logs([(1, "a line")], idempotency_key="once")
            assert one.add_logs([(1, "a line")], idempotency_key="once").duplicate
            with pytest.raises(lakehead.Misconfigured):
                one.add_logs([])

            assert one.flush(FLUSH_SECONDS).is_accepted

            status = one.status()
            assert (status.spool.entries, status.parked, status.spool.next_sequence[FrameKind.SAMPLES]) == (0, (), 20)
            assert not any(each.duplicate for each in spooled)
        with pytest.raises(InvalidCall):
            one.add_samples([sample(1)])
        assert asyncio.run(accepted_values(server)) == list(range(20))
