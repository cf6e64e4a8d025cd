"""The routes by which people and commands look at an agent, and operate it."""

import asyncio
from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from lakehead.agent.counts import AgentCounts
from lakehead.agent.framed_batch import FramedBatch
from lakehead.agent.metrics import COUNTS, AgentMetrics
from lakehead.agent.parked import ParkedBatch
from lakehead.agent.receive.receiver_settings import ReceiverSettings
from lakehead.agent.status import Flushed
from lakehead.errors import Unavailable
from tests.support.async_tests import async_test
from tests.unit.agent.receive.app_support import IDENTITY, JSON_LOGS, NDJSON, PARKED, Receivers

SHA256 = FramedBatch(IDENTITY, b"frame").sha256
SHOWN = {
    "number": 7,
    "kind": "samples",
    "agent_id": "agent-a",
    "boot_id": "boot-1",
    "seq_start": 0,
    "seq_end": 9,
    "bytes": 5,
    "code": "identity_conflict",
    "reason": "Another frame.",
}


def with_parked() -> Receivers:
    receivers = Receivers()
    receivers.agent.parked_entries = [PARKED, replace(PARKED, number=8)]
    return receivers


@async_test
async def test_an_agent_that_answers_is_healthy() -> None:
    answer = await Receivers().get("/healthz")

    assert (answer.status_code, answer.text) == (200, "ok\n")


@async_test
async def test_an_agent_with_too_many_requests_is_healthy_all_the_same() -> None:
    receivers = Receivers(ReceiverSettings(requests_in_flight=1))
    receivers.recorder.is_open.clear()
    line = b'{"time": 1, "body": "hello"}'
    waiting = asyncio.create_task(receivers.post(JSON_LOGS, line, {"Content-Type": NDJSON}))
    await receivers.recorder.is_asked.wait()

    answers = [await receivers.get(path) for path in ("/healthz", "/metrics", "/v1/status")]
    flush = await receivers.post("/v1/flush")
    receivers.recorder.is_open.set()

    assert [each.status_code for each in answers] == [200] * 3
    assert (flush.status_code, (await waiting).status_code) == (503, 200)


@async_test
async def test_the_head_of_what_can_be_looked_at_can_be_asked_for() -> None:
    assert (await Receivers().request("HEAD", "/healthz")).status_code == 200
    assert (await Receivers().request("HEAD", "/v1/flush")).status_code == 405


@async_test
async def test_the_status_tells_kinds_by_their_names() -> None:
    told = (await with_parked().get("/v1/status")).json()

    assert (told["agent_id"], told["authority"], told["paused"]) == ("agent-a", "authority-1", "")
    assert told["spool"]["boots"] == {"samples": "boot-1", "logs": "boot-2"}
    assert told["spool"]["next_sequence"] == {"samples": 10, "logs": 0}
    assert (told["spool"]["entries"], told["spool"]["oldest_seconds"]) == (3, 1.5)
    assert told["parked"] == [SHOWN, {**SHOWN, "number": 8}]


@async_test
async def test_parked_batches_are_listed_and_one_is_shown_with_its_hash() -> None:
    receivers = with_parked()

    listed = await receivers.get("/v1/parked")
    one = await receivers.get("/v1/parked/7")

    assert [each["number"] for each in listed.json()["parked"]] == [7, 8]
    assert one.json() == {**SHOWN, "frame_sha256": SHA256}


@async_test
async def test_a_parked_batch_is_dropped_by_its_number_and_its_hash() -> None:
    receivers = with_parked()

    answer = await receivers.request("DELETE", f"/v1/parked/7?sha256={SHA256.upper()}")

    assert (answer.status_code, answer.json()) == (200, {**SHOWN, "frame_sha256": SHA256})
    assert [each.number for each in receivers.agent.parked_entries] == [8]
    again = await receivers.request("DELETE", f"/v1/parked/7?sha256={SHA256}")
    assert (again.status_code, again.json()["error"]["code"]) == (404, "not_found")


@async_test
async def test_parked_batches_are_offered_again_when_somebody_asks() -> None:
    receivers = with_parked()

    answer = await receivers.post("/v1/parked/retry")

    assert (answer.status_code, [each["number"] for each in answer.json()["parked"]]) == (200, [7, 8])
    assert receivers.agent.offered == 1
    assert (await receivers.get("/v1/parked/retry")).status_code == 405
    assert receivers.agent.offered == 1


@pytest.mark.parametrize("query", ["", "?sha256=", f"?sha256={'0' * 64}", f"?sha256={SHA256[:-1]}"])
@async_test
async def test_a_parked_batch_is_not_dropped_by_its_number_alone(query: str) -> None:
    receivers = with_parked()

    answer = await receivers.request("DELETE", f"/v1/parked/7{query}")

    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "hash_mismatch")
    assert SHA256 in answer.json()["error"]["message"]
    assert len(receivers.agent.parked_entries) == 2


@pytest.mark.parametrize("number", ["9", "x", "", "-7", "7/8", "1" * 21, "\u0667"])
@async_test
async def test_what_is_not_parked_is_not_found(number: str) -> None:
    receivers = with_parked()

    for method in ("GET", "DELETE"):
        answer = await receivers.request(method, f"/v1/parked/{number}")
        assert answer.status_code == 404
    assert len(receivers.agent.parked_entries) == 2


@pytest.mark.parametrize(
    ("flushed", "status", "is_accepted"),
    [
        (Flushed(waiting=0, parked=(), damaged=0), 200, True),
        (Flushed(waiting=2, parked=(ParkedBatch.of(PARKED),), damaged=0), 503, False),
        (Flushed(waiting=0, parked=(ParkedBatch.of(PARKED),), damaged=0), 409, False),
        (Flushed(waiting=0, parked=(), damaged=1), 409, False),
    ],
)
@async_test
async def test_a_flush_is_a_success_if_all_was_accepted(flushed: Flushed, status: int, *, is_accepted: bool) -> None:
    receivers = Receivers()
    receivers.agent.flushed = flushed

    answer = await receivers.post("/v1/flush?timeout_seconds=2.5")

    assert (answer.status_code, receivers.agent.flushes) == (status, [2.5])
    assert answer.json() == {
        "accepted": is_accepted,
        "waiting": flushed.waiting,
        "parked": [SHOWN] * len(flushed.parked),
        "damaged": flushed.damaged,
    }


@async_test
async def test_a_flush_waits_a_minute_and_no_longer_than_it_may() -> None:
    receivers = Receivers(ReceiverSettings(flush_seconds=100.0))

    assert (await receivers.post("/v1/flush")).status_code == 200
    for wrong in ("101", "-1", "nan", "soon", "inf"):
        answer = await receivers.post(f"/v1/flush?timeout_seconds={wrong}")
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "bad_request")

    assert receivers.agent.flushes == [60.0]


@async_test
async def test_a_disk_that_fails_is_503() -> None:
    receivers = Receivers()
    receivers.agent.error = Unavailable("The disk is full.")

    answer = await receivers.post("/v1/flush")

    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    assert answer.json()["error"] == {"code": "spool_unusable", "message": "The disk is full."}


@async_test
async def test_metrics_are_in_prometheus_text_with_counts_and_status() -> None:
    receivers = with_parked()
    await receivers.get("/healthz")

    answer = await receivers.get("/metrics")

    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    families = {each.name: each for each in text_string_to_metric_families(answer.text)}
    values = {name: each.samples[0].value for name, each in families.items() if each.samples}
    assert values["lakehead_agent_spool_batches"] == 3
    assert values["lakehead_agent_parked_batches"] == 2
    assert values["lakehead_agent_spool_oldest_seconds"] == 1.5
    assert values["lakehead_agent_requests_in_flight"] == 0
    assert "lakehead_agent_accepted_batches" in values
    assert {each for each in families if not each.startswith("lakehead_agent_")} == set()


def test_everything_that_an_agent_counts_is_shown() -> None:
    counts = AgentCounts()
    numbers = [name for name, kind in AgentCounts.__annotations__.items() if kind is int]
    for number, name in enumerate(numbers, 1):
        setattr(counts, name, number)
    counts.parked["identity_conflict"] = 99

    shown = [value(counts) for _, value in COUNTS.values()]

    assert sorted(shown) == list(range(1, len(numbers) + 1))
    metrics = AgentMetrics()
    metrics.watch_agent(counts, Receivers().agent.status)
    assert metrics.registry.get_sample_value("lakehead_agent_batches_parked_total", {"code": "identity_conflict"}) == 99
