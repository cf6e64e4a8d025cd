"""The client: what it makes of each answer, and when it sends the same bytes again."""

import asyncio
from random import Random

import httpx
import pyarrow as pa
import pytest

from lakehead.agent.errors import (
    AgentRefused,
    BadRecord,
    BatchInDoubt,
    BatchRefused,
    BatchTooLarge,
    BootQuarantined,
    EncodingRefused,
    ForeignAuthority,
    FrameRefused,
    GatewayUnavailable,
    IdentityConflict,
    TokenRefused,
    UnexpectedAnswer,
    VoidBatch,
)
from lakehead.agent.gateway_client import Gateway, SendDeps, SendSettings
from lakehead.agent.plain_records import PlainRecord
from lakehead.errors import Misconfigured
from lakehead.ids import SeededIds
from lakehead.retry import TimedBackoff
from lakehead.wire.errors import BadFrame, InvalidIdentity
from tests.support.async_tests import async_test
from tests.unit.agent.support import AGENT, TOKEN, Script, accepted, error, scripted

RECORDS: list[PlainRecord] = [(1, "up", {}, 1.0), (2, "up", {}, 1.0)]
RESET = httpx.ReadError("the connection was reset")
NO_CONNECTION = httpx.ConnectError("refused")


@async_test
async def test_sequence_numbers_go_on_from_batch_to_batch() -> None:
    gateway, _, _ = scripted(accepted)

    first, second = await gateway.send(RECORDS), await gateway.send(RECORDS[:1])

    assert (first.identity.seq_start, first.identity.seq_end) == (0, 1)
    assert (second.identity.seq_start, second.identity.seq_end) == (2, 2)
    assert first.identity.boot_id == second.identity.boot_id == "boot-1"
    assert gateway.next_sequence == 3


@async_test
async def test_a_batch_that_cannot_be_framed_uses_no_sequence_number() -> None:
    gateway, script, _ = scripted(accepted)

    with pytest.raises(BadRecord):
        await gateway.send([(1, "up", {}, "one")])
    with pytest.raises(Misconfigured, match="no records"):
        await gateway.send([])
    with pytest.raises(BadFrame):
        await gateway.send(pa.table({"a": [1]}))

    assert (gateway.next_sequence, script.bodies) == (0, [])


@async_test
async def test_whether_it_was_a_duplicate_is_in_the_receipt() -> None:
    gateway, _, _ = scripted(lambda request: accepted(request, duplicate=True))

    receipt = await gateway.send(RECORDS)

    assert (receipt.duplicate, receipt.authority) == (True, "authority-1")


@pytest.mark.parametrize(
    "failure",
    [
        RESET,
        NO_CONNECTION,
        httpx.ReadTimeout("slow"),
        httpx.RemoteProtocolError("closed"),
        error(503, "store_unavailable"),
        error(503, "outcome_unknown"),
        error(429, "rate_limited"),
        error(408, "body_timeout"),
        error(500, "internal_error"),
        httpx.Response(502, text="Bad gateway"),
    ],
    ids=repr,
)
@async_test
async def test_the_same_bytes_are_sent_again_after_a_failure_that_may_pass(failure: httpx.Response | Exception) -> None:
    gateway, script, clock = scripted(failure, failure, accepted)

    receipt = await gateway.send(RECORDS)

    assert not receipt.duplicate
    assert len(script.bodies) == 3
    assert len(set(script.bodies)) == 1
    assert len(set(clock.slept)) == 2, "pauses are drawn by lot"


@pytest.mark.parametrize(("header", "least"), [("7", 7.0), ("Tue, 18 Nov 2025 08:30:20 GMT", 20.0)])
@async_test
async def test_a_retry_after_is_waited_for(header: str, least: float) -> None:
    gateway, _, clock = scripted(error(503, "stopping", retry_after=header), accepted)

    await gateway.send(RECORDS)

    [slept] = clock.slept
    assert least <= slept <= least + 0.2


@pytest.mark.parametrize(
    "header", ["soon", "-3", "1e9", "Tue, 18 Nov 2025 08:29:00 GMT", "1 Jan 2026 0:0:0 +9999999999999999"]
)
@async_test
async def test_a_retry_after_that_says_nothing_is_left_out(header: str) -> None:
    gateway, _, clock = scripted(error(503, "stopping", retry_after=header), accepted)

    await gateway.send(RECORDS)

    assert max(clock.slept) <= 0.2


@async_test
async def test_a_gateway_that_never_took_the_batch_is_unavailable() -> None:
    gateway, script, clock = scripted(NO_CONNECTION, error(429, "rate_limited"), error(503, "overloaded"))

    with pytest.raises(GatewayUnavailable, match="Send the same batch again later") as failed:
        await gateway.send(RECORDS)

    assert 60 < clock.seconds < 120
    assert failed.value.batch.body == script.bodies[0]


@async_test
async def test_one_attempt_without_an_answer_leaves_the_batch_in_doubt_for_good() -> None:
    gateway, _, _ = scripted(RESET, NO_CONNECTION)

    with pytest.raises(BatchInDoubt, match="may have been accepted"):
        await gateway.send(RECORDS)


@async_test
async def test_a_batch_in_doubt_is_sent_again_with_the_same_bytes_and_its_own_numbers() -> None:
    gateway, script, _ = scripted(RESET)
    with pytest.raises(BatchInDoubt) as failed:
        await gateway.send(RECORDS)
    script.answers = [accepted]

    receipt = await gateway.send_batch(failed.value.batch)

    assert (receipt.identity.seq_start, gateway.next_sequence) == (0, 2)
    assert len(set(script.bodies)) == 1


@async_test
async def test_a_retry_after_beyond_the_time_ends_the_attempts_at_once() -> None:
    gateway, script, clock = scripted(error(429, "rate_limited", retry_after="3600"))

    with pytest.raises(GatewayUnavailable):
        await gateway.send(RECORDS)

    assert (len(script.bodies), clock.slept) == (1, [])


@async_test
async def test_an_attempt_without_an_answer_ends_after_its_time() -> None:
    class Silent(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            del request
            await asyncio.Event().wait()
            raise AssertionError

    settings = SendSettings(attempt_seconds=0.01, retry=TimedBackoff(seconds=0.02, first_seconds=0.001))
    gateway = Gateway(
        "http://gateway", token=TOKEN, agent_id=AGENT, settings=settings, deps=SendDeps(transport=Silent())
    )

    with pytest.raises(BatchInDoubt, match="No answer within"):
        await gateway.send(RECORDS)


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (error(400, "bad_records"), FrameRefused),
        (error(401, "unauthenticated"), TokenRefused),
        (error(403, "agent_mismatch"), AgentRefused),
        (error(409, "identity_conflict"), IdentityConflict),
        (error(410, "identity_void"), VoidBatch),
        (error(413, "too_large"), BatchTooLarge),
        (httpx.Response(413, text="<html>Entity too large"), BatchTooLarge),
        (error(415, "content_encoding"), EncodingRefused),
        (error(423, "identity_quarantined"), BootQuarantined),
    ],
)
@async_test
async def test_a_refusal_has_a_class_of_its_own_and_is_not_tried_again(
    answer: httpx.Response, kind: type[BatchRefused]
) -> None:
    gateway, script, _ = scripted(answer)

    with pytest.raises(kind) as refused:
        await gateway.send(RECORDS)

    assert type(refused.value) is kind
    assert not refused.value.in_doubt
    assert "0-1" in str(refused.value)
    assert len(script.bodies) == 1


@pytest.mark.parametrize(
    ("answer", "in_doubt"),
    [
        (error(401, "unauthenticated"), True),
        (error(423, "identity_quarantined"), True),
        (error(409, "identity_conflict"), False),
        (error(410, "identity_void"), False),
    ],
)
@async_test
async def test_a_refusal_after_an_unanswered_attempt_says_whether_that_one_may_have_been_accepted(
    answer: httpx.Response, *, in_doubt: bool
) -> None:
    gateway, _, _ = scripted(RESET, answer)

    with pytest.raises(BatchRefused) as refused:
        await gateway.send(RECORDS)

    assert refused.value.in_doubt is in_doubt
    assert ("may have been accepted" in str(refused.value)) is in_doubt


@pytest.mark.parametrize(
    "code", [(409, "identity_conflict"), (410, "identity_void"), (423, "identity_quarantined")], ids=str
)
@pytest.mark.parametrize("authority", ["authority-2", ""])
@async_test
async def test_what_another_authority_says_of_an_identity_is_not_believed(
    code: tuple[int, str], authority: str
) -> None:
    """A void of another deployment would double the records, and a decision there would drop them."""
    foreign = error(*code, authority=authority, resolution="accept_existing")
    gateway, _, _ = scripted(foreign)
    gateway.authority = "authority-1"

    with pytest.raises(ForeignAuthority):
        await gateway.send(RECORDS)


@async_test
async def test_a_decision_about_another_frame_is_not_taken_for_one_about_this() -> None:
    for_another = error(409, "identity_conflict", resolution="accept_existing", submitted_frame_sha256="0" * 64)
    gateway, script, _ = scripted(for_another)
    batch = gateway.frame(RECORDS)

    with pytest.raises(IdentityConflict) as undecided:
        await gateway.send_batch(batch)
    script.answers = [
        error(409, "identity_conflict", resolution="accept_existing", submitted_frame_sha256=batch.sha256)
    ]
    with pytest.raises(IdentityConflict) as decided:
        await gateway.send_batch(batch)

    assert (undecided.value.resolution, decided.value.resolution) == ("", "accept_existing")


@pytest.mark.parametrize(
    "answer",
    [
        httpx.Response(200, text="<html>Please log in"),
        httpx.Response(200, json={"duplicate": False}),
        httpx.Response(204),
        httpx.Response(302, headers={"Location": "https://elsewhere"}),
        httpx.Response(404, text="nothing here"),
        httpx.Response(409, text="conflict"),
        httpx.Response(410, text="gone"),
        httpx.Response(423, json={"error": {"code": "locked", "message": ""}}),
        lambda request: accepted(request, frame_sha256="0" * 64),
        lambda request: accepted(request, seq_end=7),
        lambda request: accepted(request, boot_id="another"),
        lambda request: accepted(request, authority=""),
        httpx.Response(200, content=b'{"more":' + b"[" * 100_000),
        httpx.Response(409, content=b'{"more":' + b"[" * 100_000),
    ],
)
@async_test
async def test_what_no_gateway_answers_about_the_batch_decides_nothing(answer: httpx.Response) -> None:
    gateway, script, _ = scripted(answer)

    with pytest.raises(UnexpectedAnswer):
        await gateway.send(RECORDS)

    assert len(script.bodies) == 1


@async_test
async def test_the_answer_of_another_authority_is_no_receipt() -> None:
    """What was accepted there is not where the batches before it are: something sends requests to two deployments."""
    gateway, script, _ = scripted(accepted)
    await gateway.send(RECORDS)
    script.answers = [lambda request: accepted(request, authority="authority-2")]

    with pytest.raises(UnexpectedAnswer, match=r"authority-2.*authority-1"):
        await gateway.send(RECORDS)


@async_test
async def test_the_authority_may_be_told_beforehand() -> None:
    script = Script(accepted)
    deps = SendDeps(transport=script)
    for authority, is_right in (("authority-1", True), ("authority-2", False)):
        settings = SendSettings(authority=authority)
        gateway = Gateway("http://gateway", token=TOKEN, agent_id=AGENT, settings=settings, deps=deps)
        if is_right:
            assert (await gateway.send(RECORDS)).authority == authority
        else:
            with pytest.raises(UnexpectedAnswer, match="authority-2"):
                await gateway.send(RECORDS)


@async_test
async def test_what_a_server_says_is_shown_short_and_without_control_characters() -> None:
    message = "\x1b[2J\n" + "x" * 100_000
    said = {"error": {"code": "identity_conflict", "message": message}, "authority": "authority-1"}
    gateway, _, _ = scripted(httpx.Response(409, json=said))

    with pytest.raises(IdentityConflict) as refused:
        await gateway.send(RECORDS)

    assert len(str(refused.value)) < 1_000
    assert str(refused.value).isprintable()


@async_test
async def test_a_token_is_sent_nowhere_else() -> None:
    """Neither to where a redirect points, nor to a proxy of the environment."""
    seen: list[httpx.URL] = []

    def redirect(request: httpx.Request) -> httpx.Response:
        seen.append(request.url)
        return httpx.Response(307, headers={"Location": "http://elsewhere/ingest/v1/batch"})

    gateway, _, _ = scripted(redirect)
    with pytest.raises(UnexpectedAnswer, match="307"):
        await gateway.send(RECORDS)

    assert [url.host for url in seen] == ["gateway"]
    assert gateway._connection._http.trust_env is False
    assert gateway._connection._http.follow_redirects is False


@pytest.mark.parametrize(
    "url",
    ["", "gateway:80", "ftp://gateway", "http://", "http://user:secret@gateway", "http://gateway?x=1", "http://[::"],
)
def test_a_url_that_cannot_be_right_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(Misconfigured, match="URL") as refused:
        Gateway(url, token=TOKEN, agent_id=AGENT)

    assert "user:secret@" not in str(refused.value)


@pytest.mark.parametrize("token", ["", "two words", "line\n", "tök"])
def test_a_token_that_no_header_can_hold_is_refused_and_not_shown(token: str) -> None:
    with pytest.raises(Misconfigured, match="token") as refused:
        Gateway("http://gateway", token=token, agent_id=AGENT)

    assert not token or token not in str(refused.value)


def test_ids_that_no_batch_can_have_are_refused_at_once() -> None:
    with pytest.raises(InvalidIdentity):
        Gateway("http://gateway", token=TOKEN, agent_id="")
    with pytest.raises(InvalidIdentity):
        Gateway("http://gateway", token=TOKEN, agent_id=AGENT, boot_id="\n")
    with pytest.raises(Misconfigured, match="samples, logs"):
        Gateway("http://gateway", token=TOKEN, agent_id=AGENT, kind="traces")  # type: ignore[arg-type]  # refused


def test_each_client_opens_a_boot_of_its_own() -> None:
    deps = SendDeps(ids=SeededIds(Random(1)), transport=Script(accepted))

    boots = {Gateway("http://gateway", token=TOKEN, agent_id=AGENT, deps=deps).boot_id for _ in range(2)}

    assert len(boots) == 2
