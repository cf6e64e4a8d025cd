"""The small parts that bound a gateway: settings, rates, connections; and what is measured of the store."""

import logging
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import pytest

from lakehead.errors import Misconfigured, Unavailable
from lakehead.gateway.admission import Admission
from lakehead.gateway.connections import Connections
from lakehead.gateway.error_codes import ErrorCode, Refusal
from lakehead.gateway.measured_store import MeasuredStore
from lakehead.gateway.metrics import GatewayMetrics
from lakehead.gateway.rate_limits import PRUNE_AT, RateLimits
from lakehead.gateway.settings import GatewaySettings, IngestSettings, ListenerSettings, ReadinessSettings, TlsSettings
from lakehead.storage.port import Created, Replaced
from lakehead.telemetry.limited_log import LimitedLog
from tests.support.async_tests import async_test
from tests.unit.accept.support import DOWN, ScriptedStore
from tests.unit.gateway.support import ManualClock


@pytest.mark.parametrize(
    ("kind", "wrong", "message"),
    [
        (ListenerSettings, {"port": 70_000, "head_bytes": 1}, "port is 70000.*head_bytes is 1"),
        (ListenerSettings, {"max_connections": 0, "linger_seconds": -1}, "max_connections is 0.*linger_seconds"),
        (IngestSettings, {"bytes_in_flight": 1}, "largest frames are never taken"),
        (IngestSettings, {"requests_per_second": 0, "inline_bytes": -1}, "requests_per_second is 0.*inline_bytes"),
        (IngestSettings, {"decode_threads": 0}, "decode_threads is 0"),
        (ReadinessSettings, {"check_seconds": 0}, "check_seconds is 0"),
        (GatewaySettings, {"stop_seconds": 0}, "stop_seconds is 0"),
    ],
)
def test_settings_that_make_no_sense_are_refused_all_at_once(kind: Any, wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(Misconfigured, match=message):
        kind(**wrong)


def test_the_password_of_a_key_is_not_shown() -> None:
    assert "s3cret" not in repr(TlsSettings(cert_file="c", key_file="k", key_password="s3cret"))


def test_a_rate_is_kept_on_average_after_the_burst_is_used_up() -> None:
    clock = ManualClock()
    limits = RateLimits(per_second=10, burst=5, clock=clock)
    allowed = 0
    for _ in range(1_000):
        allowed += limits.take("a") == 0
        clock.seconds += 0.01
    assert 100 <= allowed <= 106
    assert limits.take("b") == 0


def test_one_agent_cannot_hold_the_bytes_of_all_others() -> None:
    """With the default settings, by uploads that say that they are large and then are slow."""
    settings = IngestSettings()
    admission = Admission(settings)
    with ExitStack() as under_way:
        for _ in range(settings.agent_bytes // settings.body_bytes):
            under_way.enter_context(admission.admit("greedy", settings.body_bytes))
        with pytest.raises(Refusal) as refused:
            under_way.enter_context(admission.admit("greedy", 1))
        assert refused.value.code is ErrorCode.RATE_LIMITED
        with admission.admit("modest", settings.body_bytes) as admitted:
            admitted.shrink(10)
            assert admission.bytes_held == settings.agent_bytes + 10
    with admission.admit("greedy", settings.body_bytes):
        assert admission.bytes_held == settings.body_bytes
    assert (admission.bytes_held, admission._by_agent, admission._bytes_by_agent) == (0, {}, {})


def test_agents_that_ask_no_more_are_forgotten() -> None:
    clock = ManualClock()
    limits = RateLimits(per_second=1, burst=1, clock=clock)
    for n in range(PRUNE_AT):
        limits.take(f"agent-{n}")
    clock.seconds += 10
    limits.take("agent-0")
    limits.take("new")
    assert set(limits._buckets) == {"agent-0", "new"}
    assert limits.take("agent-0") > 0


@dataclass(eq=False)
class FakeConnection:
    name: str
    log: list[str] = field(repr=False)

    def evict(self) -> None:
        self.log.append(self.name)


def test_the_connection_that_waits_for_the_longest_makes_room() -> None:
    log: list[str] = []
    a, b, c, d, e = (FakeConnection(name, log) for name in "abcde")
    connections = Connections(ListenerSettings(max_connections=3))
    assert all(connections.opened(each) for each in (a, b, c))
    connections.works(a)
    connections.works(b)
    connections.waits(a)  # after c
    assert connections.opened(d)
    connections.works(d)
    assert connections.opened(e)
    assert log == ["c", "a"]
    connections.works(e)
    assert not connections.opened(FakeConnection("f", log))
    connections.closed(b)
    assert connections.opened(FakeConnection("g", log))
    assert (connections.count, connections.evicted, connections.refused) == (3, 2, 1)


@async_test
async def test_every_request_to_the_store_is_passed_on_and_measured_also_one_that_fails() -> None:
    metrics, clock, inner = GatewayMetrics(), ManualClock(), ScriptedStore()
    store = MeasuredStore(inner, metrics.store_seconds, clock)
    created = await store.create("folder/a", b"1")
    assert isinstance(created, Created)
    assert isinstance(await store.replace("folder/a", b"2", created.version), Replaced)
    await store.put("folder/b", b"3")
    found = await store.get("folder/a", start=0, end=1)
    assert found is not None
    assert found.body == b"2"
    assert await store.head("folder/c") is None
    assert [each.key async for page in store.list("folder") for each in page] == ["folder/a", "folder/b"]
    await store.delete("folder/a")
    inner.next("down", DOWN)
    with pytest.raises(Unavailable):
        await store.create("down/a", b"")
    for operation in ("create", "replace", "put", "get", "head", "delete"):
        assert _count(metrics, operation, "folder") == 1
    assert _count(metrics, "create", "down") == 1


def _count(metrics: GatewayMetrics, operation: str, folder: str) -> float | None:
    labels = {"operation": operation, "folder": folder}
    return metrics.registry.get_sample_value("lakehead_gateway_store_request_seconds_count", labels)


def test_the_same_warning_is_told_now_and_then_with_how_many_were_left_out(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    log = LimitedLog(log=logging.getLogger("lakehead.test"), clock=clock)
    for n in range(1_000):
        log.warning("%s was not accepted.", n)
        clock.seconds += 0.015
    log.warning("Another, of %s.", "yours")
    assert [record.getMessage() for record in caplog.records] == [
        "0 was not accepted.",
        "667 was not accepted. (666 more like it since the last one)",
        "Another, of yours.",
    ]
