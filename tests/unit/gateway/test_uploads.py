"""Every answer of the upload route, in the order in which a request is looked at."""

import asyncio
import re
import threading
from hashlib import sha256
from pathlib import Path
from random import Random

import msgspec
import pytest
import zstandard

import lakehead.wire.frame_header
from lakehead.accept.acceptance import Conflict
from lakehead.errors import Misconfigured, Unavailable
from lakehead.gateway import frame_decoder
from lakehead.gateway.error_codes import ErrorCode
from lakehead.gateway.settings import IngestSettings
from lakehead.wire import acceptance_keys as keys
from lakehead.wire.batch_identity import BatchIdentity
from lakehead.wire.conflict_records import ConflictResolution
from lakehead.wire.errors import BadFrame
from lakehead.wire.frame import encode_frame
from lakehead.wire.frame_limits import FrameLimits
from lakehead.wire.record_schemas import FrameKind
from tests.support.async_tests import async_test
from tests.unit.accept.support import DOWN, NOT_APPLIED, submitted, void_of
from tests.unit.gateway.support import AGENT, BOOT, FRAME, OTHER_FRAME, TOKEN, Gateway, client
from tests.unit.wire.frames import IDENTITY, around, logs, mutated, samples, with_number

SHA256, OTHER_SHA256 = sha256(FRAME).hexdigest(), sha256(OTHER_FRAME).hexdigest()


def code_of(body: bytes) -> str:
    """The code of an error, whose body has the one form that errors have."""
    error = msgspec.json.decode(body)["error"]
    assert set(error) == {"code", "message"}
    assert error["message"]
    return str(error["code"])


class ChangedAuthority:
    def check(self) -> None:
        raise Unavailable("Its mode has changed.")


@async_test
async def test_a_new_batch_is_accepted_and_its_side_effects_follow_once() -> None:
    gateway = Gateway()
    answer = await gateway.post()
    await gateway.close()
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    body = answer.json()
    assert body.pop("accepted_at_unix_ns") > 0
    assert body == {
        "duplicate": False,
        "authority": "authority-1",
        "agent_id": AGENT,
        "boot_id": BOOT,
        "seq_start": 10,
        "seq_end": 16,
        "frame_sha256": SHA256,
    }
    assert await gateway.store.keys("accepted") == [keys.accepted(IDENTITY)]
    assert [each.kind for each in gateway.queue.queued] == ["samples"]
    assert gateway.metric("accepted_total") == gateway.metric("queued_total") == gateway.metric("indexed_total") == 1
    assert gateway.metric("body_bytes_total") == len(FRAME)
    assert gateway.metric("requests_total", listener="ingest", status="200", code="") == 1


@async_test
async def test_the_same_bytes_again_are_a_duplicate_without_side_effects() -> None:
    gateway = Gateway()
    await gateway.post()
    answer = await gateway.post()
    await gateway.close()
    assert (answer.status_code, answer.json()["duplicate"]) == (200, True)
    assert len(gateway.queue.queued) == 1
    assert gateway.metric("duplicates_total") == 1


@async_test
async def test_logs_are_queued_as_logs() -> None:
    gateway = Gateway()
    await gateway.post(encode_frame(IDENTITY, FrameKind.LOGS, logs()))
    await gateway.close()
    assert [each.kind for each in gateway.queue.queued] == ["logs"]


@async_test
async def test_another_frame_under_the_identity_is_a_recorded_conflict() -> None:
    gateway = Gateway()
    await gateway.post()
    accepted = await gateway.store.get(keys.accepted(IDENTITY))
    answer = await gateway.post(OTHER_FRAME)
    await gateway.close()
    body = answer.json()
    assert answer.status_code == 409
    assert body.pop("error")["code"] == "identity_conflict"
    hashes = {"submitted_frame_sha256": OTHER_SHA256, "accepted_frame_sha256": SHA256}
    assert body == {"authority": "authority-1", **hashes}
    assert await gateway.store.get(keys.accepted(IDENTITY)) == accepted
    assert await gateway.store.get(keys.identity_conflict(IDENTITY, OTHER_SHA256)) is not None
    assert (gateway.metric("conflicts_total"), gateway.metric("conflicts_not_recorded_total")) == (1, 0)


@async_test
async def test_a_conflict_that_cannot_be_recorded_is_still_a_conflict_and_counted() -> None:
    gateway = Gateway()
    await gateway.post()
    gateway.store.next("quarantine", DOWN)
    answer = await gateway.post(OTHER_FRAME)
    await gateway.close()
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "identity_conflict")
    assert gateway.metric("conflicts_not_recorded_total") == 1


def resolved(accepted: str) -> ConflictResolution:
    return ConflictResolution(
        agent_id=AGENT,
        boot_id=BOOT,
        seq_start=10,
        seq_end=16,
        submitted_frame_sha256=OTHER_SHA256,
        accepted_frame_sha256=accepted,
        resolution="accept_existing",
        resolved_at_unix_ns=1,
        resolved_by="ann",
        version=1,
    )


@async_test
async def test_a_conflict_says_what_was_decided_about_this_frame() -> None:
    gateway = Gateway()
    await gateway.post()
    gateway.conflicts.decided[OTHER_SHA256] = resolved(SHA256)
    assert (await gateway.post(OTHER_FRAME)).json()["resolution"] == "accept_existing"
    await gateway.close()


@async_test
async def test_a_decision_for_another_accepted_frame_lets_nobody_drop_this_one() -> None:
    gateway = Gateway()
    await gateway.post()
    gateway.conflicts.decided[OTHER_SHA256] = resolved("ab" * 32)
    answer = await gateway.post(OTHER_FRAME)
    await gateway.close()
    assert answer.status_code == 409
    assert "resolution" not in answer.json()


@async_test
async def test_a_decision_that_cannot_be_read_is_left_out_of_a_conflict() -> None:
    gateway = Gateway()
    await gateway.post()
    gateway.conflicts.error = Unavailable("503")
    answer = await gateway.post(OTHER_FRAME)
    await gateway.close()
    assert answer.status_code == 409
    assert "resolution" not in answer.json()


@async_test
async def test_a_void_identity_is_gone() -> None:
    gateway = Gateway()
    void = void_of(submitted(FRAME, IDENTITY))
    await gateway.store.create(void.key, void.encode())
    answer = await gateway.post()
    await gateway.close()
    assert (answer.status_code, code_of(answer.content)) == (410, "identity_void")
    assert answer.json()["authority"] == "authority-1"
    assert not gateway.queue.queued


@pytest.mark.parametrize(
    ("prefix", "failures", "code"),
    [
        ("raw-blobs", [DOWN], "store_unavailable"),
        ("accepted", [DOWN], "store_unavailable"),
        ("accepted", [NOT_APPLIED] * 3, "outcome_unknown"),
    ],
)
@async_test
async def test_a_store_that_fails_is_503_with_a_time_and_the_retry_is_accepted(
    prefix: str, failures: list[str], code: str
) -> None:
    gateway = Gateway()
    gateway.store.next(prefix, *failures)
    answer = await gateway.post()
    assert (answer.status_code, code_of(answer.content)) == (503, code)
    assert int(answer.headers["retry-after"]) >= 1
    assert not gateway.queue.queued
    assert gateway.metric("unavailable_total", code=code) == 1
    assert (await gateway.post()).json()["duplicate"] is False
    await gateway.close()


@async_test
async def test_a_store_that_an_operator_must_mend_is_503_to_agents(monkeypatch: pytest.MonkeyPatch) -> None:
    gateway = Gateway()

    async def refuse(key: str, body: bytes) -> None:
        raise Misconfigured(f"no bucket for {key} of {len(body)}")

    monkeypatch.setattr(gateway.store, "create", refuse)
    answer = await gateway.post()
    await gateway.close()
    assert (answer.status_code, code_of(answer.content)) == (503, "store_unavailable")


@pytest.mark.parametrize(
    "authorization",
    ["", TOKEN, f"Basic {TOKEN}", "Bearer", "Bearer ", "Bearer wrong", f"Bearer {TOKEN}x", "Bearer view-token"],
)
@async_test
async def test_whoever_has_no_agents_token_is_401_and_reaches_nothing(authorization: str) -> None:
    gateway = Gateway()
    answer = await gateway.post(Authorization=authorization)
    await gateway.close()
    assert (answer.status_code, code_of(answer.content)) == (401, "unauthenticated")
    assert answer.headers["www-authenticate"].startswith("Bearer")
    assert answer.headers["connection"] == "close"
    assert not gateway.store.calls


@async_test
async def test_a_revoked_token_is_401_and_two_tokens_of_an_agent_both_work() -> None:
    gateway = Gateway()
    gateway.tokens.agents["second"] = AGENT
    assert (await gateway.post(Authorization="Bearer second")).status_code == 200
    assert (await gateway.post()).status_code == 200
    del gateway.tokens.agents[TOKEN]
    assert (await gateway.post()).status_code == 401
    await gateway.close()


@async_test
async def test_tokens_that_are_too_old_are_503() -> None:
    gateway = Gateway()
    gateway.tokens.is_stale = True
    answer = await gateway.post()
    await gateway.close()
    assert (answer.status_code, code_of(answer.content)) == (503, "store_unavailable")
    assert "retry-after" in answer.headers
    assert not gateway.store.calls


@pytest.mark.parametrize("encoding", ["gzip", "identity", "zstd"])
@async_test
async def test_any_content_encoding_is_415(encoding: str) -> None:
    gateway = Gateway()
    answer = await gateway.post(Content_Encoding=encoding)
    await gateway.close()
    assert (answer.status_code, code_of(answer.content)) == (415, "content_encoding")
    assert not gateway.store.calls


@async_test
async def test_an_agent_that_asks_too_often_is_429_until_time_has_passed() -> None:
    gateway = Gateway(IngestSettings(requests_per_second=0.5, burst=2))
    assert [(await gateway.post()).status_code for _ in range(2)] == [200, 200]
    answer = await gateway.post()
    assert (answer.status_code, code_of(answer.content)) == (429, "rate_limited")
    assert answer.headers["retry-after"] == "2"
    assert (await gateway.post(Authorization="Bearer token-of-agent-b")).status_code == 403  # its own bucket is full
    gateway.clock.seconds += 2
    assert (await gateway.post()).status_code == 200
    await gateway.close()


@pytest.mark.parametrize(
    ("settings", "status", "code"),
    [
        (IngestSettings(requests_in_flight=1), 503, "overloaded"),
        (IngestSettings(bytes_in_flight=len(FRAME) + 10, body_bytes=len(FRAME)), 503, "overloaded"),
        (IngestSettings(agent_requests=1), 429, "rate_limited"),
    ],
)
@async_test
async def test_what_is_too_much_at_once_is_refused_until_the_first_is_answered(
    settings: IngestSettings, status: int, code: str
) -> None:
    gateway = Gateway(settings)
    gateway.store.is_open.clear()
    first = asyncio.ensure_future(gateway.post())
    await gateway.store.is_asked.wait()
    assert gateway.metric("requests_in_flight") == 1
    assert gateway.metric("bytes_in_flight") == len(FRAME)
    answer = await gateway.post()
    assert (answer.status_code, code_of(answer.content)) == (status, code)
    assert int(answer.headers["retry-after"]) >= 1
    gateway.store.is_open.set()
    assert (await first).status_code == 200
    assert (await gateway.post()).json()["duplicate"] is True
    assert gateway.metric("requests_in_flight") == gateway.metric("bytes_in_flight") == 0
    await gateway.close()


@async_test
async def test_a_gateway_whose_authority_has_changed_accepts_nothing_and_is_not_ready() -> None:
    gateway = Gateway()
    gateway.uploads.authority = ChangedAuthority()
    gateway.readiness.copies = {"authority": ChangedAuthority()}
    answer, ready = await gateway.post(), await gateway.get("/readyz", role=None)
    await gateway.close()
    assert (answer.status_code, code_of(answer.content)) == (503, "store_unavailable")
    assert answer.headers["retry-after"]
    assert not [call for call in gateway.store.calls if call.startswith("create ") and "probe" not in call]
    assert (ready.status_code, ready.json()["checks"]["authority"]) == (503, "Its mode has changed.")


@async_test
async def test_an_upload_does_not_wait_for_ever_for_a_store_that_does_not_answer() -> None:
    gateway = Gateway(IngestSettings(accept_seconds=0.05))
    gateway.store.is_open.clear()
    answer = await gateway.post()
    assert (answer.status_code, code_of(answer.content)) == (503, "outcome_unknown")
    assert gateway.metric("requests_in_flight") == 0
    gateway.store.is_open.set()
    assert (await gateway.post()).json()["duplicate"] is False
    await gateway.close()


@async_test
async def test_a_conflict_that_cannot_be_recorded_in_time_is_a_conflict() -> None:
    gateway = Gateway(IngestSettings(accept_seconds=0.05))
    await gateway.post()

    async def hang(conflict: Conflict) -> None:
        del conflict
        await asyncio.Event().wait()

    gateway.conflicts.record = hang  # type: ignore[method-assign]  # for this one test
    answer = await gateway.post(OTHER_FRAME)
    await gateway.close()
    assert (answer.status_code, code_of(answer.content)) == (409, "identity_conflict")
    assert gateway.metric("conflicts_not_recorded_total") == 1


@async_test
async def test_a_body_above_the_limit_is_413() -> None:
    gateway = Gateway(IngestSettings(body_bytes=len(FRAME) - 1))
    answer = await gateway.post()
    await gateway.close()
    assert (answer.status_code, code_of(answer.content)) == (413, "too_large")
    assert answer.headers["connection"] == "close"
    assert not gateway.store.calls


BOMB = around(zstandard.ZstdCompressor().compress(bytes(40 << 20)), payload_bytes=40 << 20, zstd=True)
DAMAGED = bytearray(FRAME)
DAMAGED[-1] ^= 1


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"", 400, "truncated"),
        (b"{}", 400, "bad_magic"),
        (FRAME[:-1], 400, "truncated"),
        (FRAME + b"x", 400, "trailing_bytes"),
        (bytes(DAMAGED), 400, "bad_checksum"),
        (with_number(FRAME, 8, 2, 2), 400, "newer_format"),
        (around(b"no arrow"), 400, "bad_payload"),
        (around(b"no zstd", payload_bytes=100, zstd=True), 400, "bad_compression"),
        (BOMB, 413, "too_large"),
    ],
)
@async_test
async def test_what_is_no_frame_is_refused_with_its_reason_and_stores_nothing(
    body: bytes, status: int, code: str
) -> None:
    gateway = Gateway()
    answer = await gateway.post(body)
    await gateway.close()
    assert (answer.status_code, code_of(answer.content)) == (status, code)
    assert not gateway.store.calls


@async_test
async def test_mutated_frames_are_refused_or_accepted_and_never_an_error_of_the_gateway() -> None:
    gateway = Gateway(IngestSettings(requests_per_second=None))
    random = Random(7)
    plain = encode_frame(IDENTITY, FrameKind.SAMPLES, samples(), compress=False)
    statuses = {(await gateway.post(mutated(plain, random))).status_code for _ in range(60)}
    await gateway.close()
    assert statuses <= {200, 400, 409, 413}
    assert 400 in statuses


def test_every_reason_of_a_bad_frame_has_its_code() -> None:
    folder = Path(lakehead.wire.frame_header.__file__).parent
    named = {word for path in folder.glob("*.py") for word in re.findall(r'BadFrame\(\s*"([a-z_]+)"', path.read_text())}
    assert len(named) >= 13
    assert named <= {code.value for code in ErrorCode}
    assert {ErrorCode(word).status for word in named} == {400}


@async_test
async def test_a_reason_that_is_not_known_here_is_a_bad_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(body: bytes, limits: object) -> None:
        raise BadFrame("brand_new", f"{len(body)} bytes, {limits}")

    monkeypatch.setattr(frame_decoder, "decode_frame", refuse)
    gateway = Gateway()
    answer = await gateway.post()
    await gateway.close()
    assert (answer.status_code, code_of(answer.content)) == (400, "bad_frame")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("X-Lightmetrics-Agent", "agent-b"),
        ("X-Lightmetrics-Seq-Start", "11"),
        ("X-Lightmetrics-Seq-Start", "010"),
        ("X-Lightmetrics-Seq-End", "x"),
        ("X-Lightmetrics-Seq-End", "15"),
    ],
)
@async_test
async def test_a_header_that_contradicts_the_frame_is_400(name: str, value: str) -> None:
    gateway = Gateway()
    answer = await gateway.post(FRAME, **{name: value})
    await gateway.close()
    assert (answer.status_code, code_of(answer.content)) == (400, "header_mismatch")
    assert not gateway.store.calls


@async_test
async def test_headers_that_say_what_the_frame_says_are_fine() -> None:
    gateway = Gateway()
    headers = {"X-Lightmetrics-Agent": AGENT, "X-Lightmetrics-Seq-Start": "10", "X-Lightmetrics-Seq-End": "16"}
    assert (await gateway.post(FRAME, **headers)).status_code == 200
    await gateway.close()


@async_test
async def test_another_agents_frame_is_403_before_any_store_call() -> None:
    gateway = Gateway()
    foreign = encode_frame(BatchIdentity("agent-b", BOOT, 10, 16), FrameKind.SAMPLES, samples())
    answer = await gateway.post(foreign)
    await gateway.close()
    assert (answer.status_code, code_of(answer.content)) == (403, "agent_mismatch")
    assert not gateway.store.calls


@async_test
async def test_a_quarantined_boot_is_423_before_any_store_call_and_another_boot_is_not() -> None:
    gateway = Gateway()
    gateway.boots.quarantined.add((AGENT, BOOT))
    answer = await gateway.post()
    assert (answer.status_code, code_of(answer.content)) == (423, "identity_quarantined")
    assert answer.json()["authority"] == "authority-1"
    assert not gateway.store.calls
    other = encode_frame(BatchIdentity(AGENT, "boot-2", 10, 16), FrameKind.SAMPLES, samples())
    assert (await gateway.post(other)).status_code == 200
    await gateway.close()


@async_test
async def test_a_quarantine_that_is_too_old_is_503() -> None:
    gateway = Gateway()
    gateway.boots.is_stale = True
    answer = await gateway.post()
    await gateway.close()
    assert (answer.status_code, code_of(answer.content)) == (503, "store_unavailable")
    assert not gateway.store.calls


@async_test
async def test_an_unexpected_failure_is_500_in_the_form_of_all_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(body: bytes, limits: object) -> None:
        raise RuntimeError(f"a mistake of ours with {len(body)} bytes, {limits}")

    monkeypatch.setattr(frame_decoder, "decode_frame", fail)
    gateway = Gateway()
    answer = await gateway.post()
    await gateway.close()
    assert (answer.status_code, code_of(answer.content)) == (500, "internal_error")
    assert b"mistake" not in answer.content


@async_test
async def test_large_frames_are_decoded_on_a_thread_and_small_ones_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[threading.Thread] = []
    decode = frame_decoder.submission_of

    def noted(body: bytes, limits: FrameLimits) -> object:
        threads.append(threading.current_thread())
        return decode(body, limits)

    monkeypatch.setattr(frame_decoder, "submission_of", noted)
    small, large, inflated = (
        Gateway(),
        Gateway(IngestSettings(inline_bytes=100)),
        Gateway(IngestSettings(inline_bytes=len(FRAME))),
    )
    for gateway in (small, large, inflated):
        assert (await gateway.post()).status_code == 200
        await gateway.close()
    assert [thread is threading.main_thread() for thread in threads] == [True, False, False]


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "/ingest/v1/batch", 405), ("POST", "/", 404)])
@async_test
async def test_other_routes_and_methods_have_the_same_form_of_errors(method: str, path: str, status: int) -> None:
    gateway = Gateway()
    async with client(gateway.ingest) as http:
        answer = await http.request(method, path, content=b"body")
    await gateway.close()
    assert answer.status_code == status
    assert code_of(answer.content) in {"method_not_allowed", "not_found"}
    assert answer.headers["connection"] == "close"
