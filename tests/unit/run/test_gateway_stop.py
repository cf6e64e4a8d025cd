"""A gateway by its configuration ends when it is told to, whatever its store does."""

import asyncio
from typing import Any

import pytest

from lakehead.gateway.server import GatewayServer
from lakehead.run.config.gateway_config import GatewayConfig, ListenerConfig
from lakehead.run.gateway_wiring import GatewayWiring, _close_queue
from lakehead.storage.memory_store import MemoryStore
from lakehead.storage.port import Created, Exists
from lakehead.wire.batch import KeyValueEntry
from tests.support.async_tests import async_test


def wiring(name: str) -> GatewayWiring:
    listener = ListenerConfig(port=0)
    config = GatewayConfig(store=f"memory://{name}", ingest_listener=listener, private_listener=listener)
    return GatewayWiring(config, {})


def hang_on_writes(monkeypatch: pytest.MonkeyPatch, folder: str) -> tuple[asyncio.Event, asyncio.Event]:
    """Let no write below a folder end. Returns what is set when one has begun, and what lets them go on."""
    begun, go_on, create = asyncio.Event(), asyncio.Event(), MemoryStore.create

    async def hanging(self: MemoryStore, key: str, body: bytes) -> Created | Exists:
        if key.startswith(folder):
            begun.set()
            await go_on.wait()
        return await create(self, key, body)

    monkeypatch.setattr(MemoryStore, "create", hanging)
    return begun, go_on


@async_test
async def test_a_start_that_waits_for_the_store_is_given_up_when_the_gateway_shall_stop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun, _ = hang_on_writes(monkeypatch, "")
    stop, started = asyncio.Event(), list[GatewayServer]()
    serving = asyncio.create_task(wiring("start-hangs").serve(stop, started.append))
    await begun.wait()
    stop.set()
    await serving
    assert not started


@pytest.mark.slow
@async_test
async def test_a_gateway_that_has_started_stops_when_it_shall() -> None:
    at, stop = wiring("starts"), asyncio.Event()
    await at.authority.init("s3_manifest")
    started: list[Any] = []

    def ready(server: GatewayServer) -> None:
        started.append(server)
        stop.set()

    await at.serve(stop, ready)
    assert len(started) == 1


@async_test
async def test_a_landing_queue_that_hangs_does_not_hold_up_the_stop(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    at = wiring("queue-hangs")
    await at.store.ensure_probed()
    begun, go_on = hang_on_writes(monkeypatch, "landing-queue")
    ingestor = at.landing_ingestor()
    await ingestor.ingest([KeyValueEntry(b"key", b"value")])
    flushing = asyncio.create_task(ingestor.flush())
    await begun.wait()
    await _close_queue(ingestor, within=0.01)
    assert "which the reconciler will do" in caplog.text
    go_on.set()
    await flushing
    await ingestor.close()
