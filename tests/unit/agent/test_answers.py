"""What an agent does after each answer of a gateway: each row of the table in docs/gateway.md."""

from pathlib import Path

import httpx
import pytest

from lakehead.agent.alerts import AlertKind
from lakehead.wire.frame import frame_sha256
from lakehead.wire.record_schemas import FrameKind
from tests.support.async_tests import async_test
from tests.unit.agent.agents import FLUSH_SECONDS, agent, identities, sample, until, values
from tests.unit.agent.support import Answer, Script, accepted, error


@async_test
async def test_an_accepted_batch_leaves_the_spool(tmp_path: Path) -> None:
    gateway = Script(accepted)
    async with agent(tmp_path, gateway) as one:
        await one.add_samples([sample(1)])
        flushed = await one.flush(FLUSH_SECONDS)

        assert flushed.is_accepted
        assert (one.counts.accepted, one.counts.accepted_before, one.counts.attempts) == (1, 0, 1)
        assert one.status().spool.entries == 0
    assert [values(body) for body in gateway.bodies] == [[1.0]]
    assert left_in(tmp_path, "entries") == []


@async_test
async def test_a_batch_that_was_accepted_before_leaves_the_spool_too(tmp_path: Path) -> None:
    async with agent(tmp_path, Script(lambda request: accepted(request, duplicate=True))) as one:
        await one.add_samples([sample(1)])

        assert (await one.flush(FLUSH_SECONDS)).is_accepted
        assert (one.counts.accepted, one.counts.accepted_before) == (1, 1)


def of_other_bytes(request: httpx.Request) -> httpx.Response:
    return accepted(request, frame_sha256="0" * 64)


def of_another_range(request: httpx.Request) -> httpx.Response:
    return accepted(request, seq_end=17)


def described(failure: object) -> str:
    return getattr(failure, "__name__", None) or repr(failure)


@pytest.mark.parametrize(
    "failure",
    [
        error(408, "body_timeout"),
        error(429, "rate_limited"),
        error(500, "internal_error"),
        error(503, "overloaded"),
        error(503, "store_unavailable"),
        error(503, "outcome_unknown"),
        error(503, "stopping"),
        error(503, "spool_full"),
        error(503, "spool_unavailable"),
        error(503, "too_many_connections"),
        httpx.Response(502, text="Bad gateway"),
        httpx.Response(504, text="Gateway timeout"),
        httpx.Response(501, text="as no gateway answers"),
        httpx.Response(404, text="Not found"),
        httpx.Response(307, headers={"Location": "http://elsewhere"}),
        httpx.Response(200, text="<html>Log in</html>"),
        httpx.Response(409, text="a conflict of something else"),
        httpx.Response(410, text="gone, says something else"),
        httpx.Response(423, text="locked, says something else"),
        of_other_bytes,
        of_another_range,
        httpx.ConnectError("refused"),
        httpx.ReadError("reset"),
        httpx.ReadTimeout("slow"),
        httpx.RemoteProtocolError("closed"),
    ],
    ids=described,
)
@async_test
async def test_after_what_may_pass_the_same_bytes_are_sent_again_and_nothing_is_parked(
    failure: Answer, tmp_path: Path
) -> None:
    gateway = Script(failure, failure, accepted)
    async with agent(tmp_path, gateway) as one:
        await one.add_samples([sample(1)])

        assert (await one.flush(FLUSH_SECONDS)).is_accepted
        assert (one.counts.attempts, one.counts.failed_attempts, one.counts.requeued) == (3, 2, 0)
        assert not one.counts.parked
        assert one.status().gateways[0].last_error == ""
    assert len(gateway.bodies) == 3
    assert len(set(gateway.bodies)) == 1


@pytest.mark.parametrize(
    ("refusal", "code"),
    [
        (error(400, "bad_checksum"), "bad_checksum"),
        (error(400, "newer_format"), "newer_format"),
        (error(400, "header_mismatch"), "header_mismatch"),
        (httpx.Response(400, text="Bad request, says a proxy"), ""),
        (error(413, "too_large"), "too_large"),
        (error(415, "content_encoding"), "content_encoding"),
        (error(431, "head_too_large"), "head_too_large"),
        (error(409, "identity_conflict"), "identity_conflict"),
    ],
    ids=repr,
)
@async_test
async def test_a_refused_batch_is_parked_and_told_and_later_ones_go_on(
    refusal: httpx.Response, code: str, tmp_path: Path
) -> None:
    gateway = Script(refusal, accepted)
    async with agent(tmp_path, gateway) as one:
        await one.add_samples([sample(1)])
        refused = await one.flush(FLUSH_SECONDS)
        await one.add_samples([sample(2)])
        await one.flush(FLUSH_SECONDS)

        [parked] = refused.parked
        assert (parked.code, parked.identity.seq_start, refused.waiting) == (code, 0, 0)
        assert one.status().parked == refused.parked
        assert one.counts.parked == {code: 1}
        assert [alert.kind for alert in one.status().alerts] == [AlertKind.PARKED]
        assert one.counts.accepted == 1
    assert [values(body) for body in gateway.bodies] == [[1.0], [2.0]]
    [name] = left_in(tmp_path, "parked")
    assert (tmp_path / "spool" / "parked" / name).read_bytes() == gateway.bodies[0]


@async_test
async def test_an_operators_decision_about_this_very_frame_lets_it_go(tmp_path: Path) -> None:
    def decided(request: httpx.Request) -> httpx.Response:
        sha256 = frame_sha256(request.content)
        return error(409, "identity_conflict", submitted_frame_sha256=sha256, resolution="accept_existing")

    async with agent(tmp_path, Script(decided)) as one:
        await one.add_samples([sample(1)])

        assert (await one.flush(FLUSH_SECONDS)).is_accepted
        assert (one.counts.dropped, one.counts.accepted) == (1, 0)
    assert left_in(tmp_path, "entries") + left_in(tmp_path, "parked") == []


@pytest.mark.parametrize(
    ("submitted", "resolution"),
    [("of this", "quarantine_identity"), ("of this", ""), ("0" * 64, "accept_existing"), ("", "accept_existing")],
)
@async_test
async def test_any_other_decision_lets_a_conflict_stay(submitted: str, resolution: str, tmp_path: Path) -> None:
    def decided(request: httpx.Request) -> httpx.Response:
        sha256 = frame_sha256(request.content) if submitted == "of this" else submitted
        return error(409, "identity_conflict", submitted_frame_sha256=sha256, resolution=resolution)

    async with agent(tmp_path, Script(decided)) as one:
        await one.add_samples([sample(1)])

        assert len((await one.flush(FLUSH_SECONDS)).parked) == 1
        assert one.counts.dropped == 0


@async_test
async def test_the_records_of_a_void_batch_are_sent_under_the_next_numbers(tmp_path: Path) -> None:
    gateway = Script(error(410, "identity_void"), accepted)
    async with agent(tmp_path, gateway) as one:
        await one.add_samples([sample(1), sample(2)])
        assert (await one.flush(FLUSH_SECONDS)).is_accepted
        await one.add_samples([sample(3)])
        assert (await one.flush(FLUSH_SECONDS)).is_accepted
        assert one.counts.requeued == 1

    void, again, after = identities(gateway.bodies)
    assert [values(body) for body in gateway.bodies] == [[1.0, 2.0], [1.0, 2.0], [3.0]]
    assert void.boot_id == again.boot_id == after.boot_id
    assert [(each.seq_start, each.seq_end) for each in (void, again, after)] == [(0, 1), (2, 3), (4, 4)]


@async_test
async def test_a_boot_in_quarantine_is_kept_whole_and_further_records_have_another(tmp_path: Path) -> None:
    quarantined: set[str] = set()

    def answer(request: httpx.Request) -> httpx.Response:
        [identity] = identities([request.content])
        return error(423, "identity_quarantined") if identity.boot_id in quarantined else accepted(request)

    gateway = Script(error(503, "stopping"))
    async with agent(tmp_path, gateway) as one:
        await one.add_logs([(1, "not of that boot")])
        logs = one.status().spool.boots[FrameKind.LOGS]
        quarantined.add(before := one.status().spool.boots[FrameKind.SAMPLES])
        for value in range(6):
            await one.add_samples([sample(value)])
            await one.spool.seal_now()
        gateway.answers = [answer]
        assert len((await one.flush(FLUSH_SECONDS)).parked) == 6
        await one.add_samples([sample(9)])
        await one.flush(FLUSH_SECONDS)

        status = one.status()
        assert {each.identity.boot_id for each in status.parked} == {before}
        assert status.spool.boots[FrameKind.SAMPLES] != before
        assert status.spool.boots[FrameKind.LOGS] == logs
        assert (one.counts.accepted, one.counts.quarantined_boots) == (2, 1)
        assert one.counts.parked == {"identity_quarantined": 6}
        assert AlertKind.BOOT_QUARANTINED in {alert.kind for alert in status.alerts}
    [last] = [each for each in identities(gateway.bodies) if each.boot_id not in (before, logs)]
    assert (last.seq_start, values(gateway.bodies[-1])) == (0, [9.0])


@pytest.mark.parametrize("refusal", [error(401, "unauthenticated"), error(403, "agent_mismatch")], ids=repr)
@async_test
async def test_a_refused_token_pauses_all_is_told_and_read_again(refusal: httpx.Response, tmp_path: Path) -> None:
    tokens = ["old"]

    def answer(request: httpx.Request) -> httpx.Response:
        return refusal if request.headers["Authorization"] == "Bearer old" else accepted(request)

    gateway = Script(answer)
    async with agent(tmp_path, gateway, token=lambda: tokens[-1], pause_seconds=0.02) as one:
        await one.add_samples([sample(1)])
        await one.add_logs([(1, "a line")])
        await until(lambda: one.counts.pauses > 1)
        waiting = await one.flush(0.0)
        assert (waiting.waiting, waiting.parked) == (2, ())
        assert AlertKind.PAUSED in {alert.kind for alert in one.status().alerts}

        tokens.append("new")
        assert (await one.flush(FLUSH_SECONDS)).is_accepted

        assert (one.status().alerts, one.status().paused) == ((), "")
    assert set(gateway.tokens) == {"old", "new"}
    assert len(set(gateway.bodies)) == 2, "each in the same bytes each time"


@async_test
async def test_a_pause_is_a_pause(tmp_path: Path) -> None:
    gateway = Script(error(401, "unauthenticated"))
    async with agent(tmp_path, gateway, pause_seconds=3600.0) as one:
        for value in range(5):
            await one.add_samples([sample(value)])
            await one.spool.seal_now()
        await until(lambda: bool(one.status().paused))
        attempts = one.counts.attempts

        await one.flush(0.05)

        assert one.counts.attempts == attempts <= one.settings.in_flight
        assert "401" in one.status().paused


def left_in(tmp_path: Path, folder: str) -> list[str]:
    return sorted(each.name for each in (tmp_path / "spool" / folder).iterdir() if each.suffix != ".json")
