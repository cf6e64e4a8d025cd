"""What a request may cost: sizes, also of what is compressed, time, and how many are under way."""

import asyncio
import gzip
import zlib
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress

import cramjam
import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehead.agent.receive.admission import Admission
from lakehead.agent.receive.content_encoding import Encoding, decompressed, decompressed_at_once
from lakehead.agent.receive.decoded import BadBody
from lakehead.agent.receive.receiver_settings import ListenerSettings, ReceiverSettings
from lakehead.agent.receive.refusals import ErrorCode, Refusal
from lakehead.errors import Misconfigured
from tests.support.async_tests import async_test
from tests.unit.agent.receive.app_support import (
    JSON_LOGS,
    METRICS,
    NDJSON,
    PROTOBUF,
    WRITE,
    WRITE_V1,
    Receivers,
    snappy,
    until,
)
from tests.unit.agent.receive.write_requests import MS, UP, v1

LINES = {"Content-Type": NDJSON}
GZIPPED = {**LINES, "Content-Encoding": "gzip"}
LOG_LINE = b'{"time": 1760000000000000000, "body": "hello"}\n'
KIB = 1 << 10


def codes(*answers: httpx.Response) -> list[str]:
    return [each.json()["error"]["code"] for each in answers]


async def parts(*given: bytes) -> AsyncIterator[bytes]:
    for each in given:
        yield each


# --- sizes


@async_test
async def test_a_body_of_the_largest_size_is_taken_and_one_byte_more_is_413() -> None:
    receivers = Receivers(ReceiverSettings(body_bytes=1_000))
    largest = LOG_LINE.ljust(1_000)

    fits = await receivers.post(JSON_LOGS, largest, LINES)
    declared = await receivers.post(JSON_LOGS, largest + b"\n", LINES)
    chunked = await receivers.post(JSON_LOGS, parts(largest, b"\n"), LINES)

    assert [each.status_code for each in (fits, declared, chunked)] == [200, 413, 413]
    assert receivers.metric("body_bytes_total", route=JSON_LOGS) == 1_000  # the declared one was never read


@pytest.mark.slow
@pytest.mark.parametrize("path", [METRICS, JSON_LOGS])
@async_test
async def test_a_gzip_bomb_is_413_and_never_becomes_large(path: str) -> None:
    limit = 4 << 20
    receivers = Receivers(ReceiverSettings(body_bytes=limit, bytes_in_flight=2 * limit))
    held: list[int] = []
    change = Admission.change

    def watched(admission: Admission, *args: object) -> None:
        change(admission, *args)  # type: ignore[arg-type]
        held.append(admission.bytes_held)

    Admission.change = watched  # type: ignore[method-assign, assignment]
    try:
        bomb = gzip.compress(b"\n" * (64 << 20), 9)
        assert len(bomb) < 80 * KIB
        headers = {"Content-Type": PROTOBUF if path == METRICS else NDJSON, "Content-Encoding": "gzip"}
        answer = await receivers.post(path, bomb, headers)
    finally:
        Admission.change = change  # type: ignore[method-assign]

    assert answer.status_code == 413
    assert max(held) <= limit + (2 << 20)
    assert receivers.recorder.appended == []


@async_test
async def test_a_length_that_snappy_only_claims_is_refused_before_it_is_believed() -> None:
    receivers = Receivers()
    four_gib = b"\xff\xff\xff\xff\x0f"

    lies = await receivers.post(WRITE, four_gib, WRITE_V1)
    small_lie = await receivers.post(WRITE, b"\x80\x01" + snappy(b"x" * 100)[1:], WRITE_V1)

    assert (lies.status_code, small_lie.status_code) == (400, 400)


@async_test
async def test_what_snappy_makes_too_large_is_413_although_it_is_small() -> None:
    receivers = Receivers(ReceiverSettings(body_bytes=100_000))
    large = snappy(b"x" * 100_001)
    assert len(large) < 10_000

    assert (await receivers.post(WRITE, large, WRITE_V1)).status_code == 413
    assert (await receivers.post(WRITE, snappy(b"x" * 100_000), WRITE_V1)).status_code == 400  # no protobuf


@pytest.mark.parametrize("length", ["", "-1", "1e3", "0x10", "9" * 20])
@async_test
async def test_a_length_that_is_none_is_400(length: str) -> None:
    answer = await Receivers().post(JSON_LOGS, parts(LOG_LINE), {**LINES, "Content-Length": length})

    assert answer.status_code == 400


@pytest.mark.parametrize("length", [len(LOG_LINE) - 1, len(LOG_LINE) + 1])
@async_test
async def test_a_length_that_lies_is_400_and_nothing_is_kept(length: int) -> None:
    receivers = Receivers()

    answer = await receivers.post(JSON_LOGS, parts(LOG_LINE), {**LINES, "Content-Length": str(length)})

    assert (answer.status_code, receivers.recorder.appended) == (400, [])


# --- compression


@given(st.binary(max_size=3_000), st.integers(0, 9))
def test_gzip_of_anything_is_what_it_was(content: bytes, level: int) -> None:
    body = gzip.compress(content, level)

    assert decompressed(Encoding.GZIP, body, 3_000, lambda _: None) == content
    assert decompressed_at_once(Encoding.GZIP, body, 10_000) == content


@given(st.lists(st.binary(max_size=50), min_size=2, max_size=16))
def test_several_members_of_gzip_are_one_content(contents: list[bytes]) -> None:
    body = b"".join(map(gzip.compress, contents))

    assert decompressed(Encoding.GZIP, body, 1_000, lambda _: None) == b"".join(contents)
    assert decompressed_at_once(Encoding.GZIP, body, 1_000) is None


def test_very_many_members_of_gzip_are_refused() -> None:
    with pytest.raises(BadBody):
        decompressed(Encoding.GZIP, gzip.compress(b"") * 100_000, 1_000, lambda _: None)


@given(st.binary(max_size=300))
def test_any_bytes_are_decompressed_or_a_bad_body(body: bytes) -> None:
    for encoding in (Encoding.GZIP, Encoding.SNAPPY):
        with suppress(BadBody, Refusal):
            decompressed(encoding, body, 10_000, lambda _: None)
        with suppress(BadBody, Refusal):
            decompressed_at_once(encoding, body, 10_000)


@given(st.binary(min_size=1, max_size=2_000), st.integers(0, 5_000))
def test_snappy_of_anything_is_what_it_was(content: bytes, zeros: int) -> None:
    body = bytes(cramjam.snappy.compress_raw(content + bytes(zeros)))

    assert decompressed(Encoding.SNAPPY, body, 7_000, lambda _: None) == content + bytes(zeros)


def test_memory_is_asked_for_before_it_is_used() -> None:
    asked: list[int] = []
    body = gzip.compress(bytes(5 << 20))

    assert len(decompressed(Encoding.GZIP, body, 5 << 20, asked.append)) == 5 << 20

    assert asked[:5] == [size << 20 for size in range(1, 6)]


def test_a_gzip_whose_checksum_is_wrong_is_a_bad_body() -> None:
    body = bytearray(gzip.compress(b"content"))
    body[-5] ^= 1

    with pytest.raises(BadBody):
        decompressed(Encoding.GZIP, bytes(body), 100, lambda _: None)
    with pytest.raises(BadBody):
        decompressed_at_once(Encoding.GZIP, bytes(body), 100)


def test_zlib_without_the_head_of_gzip_is_a_bad_body() -> None:
    with pytest.raises(BadBody):
        decompressed(Encoding.GZIP, zlib.compress(b"content"), 100, lambda _: None)


# --- time, and how many


@async_test
async def test_a_body_that_does_not_come_in_time_is_503_and_its_place_is_free_again() -> None:
    receivers = Receivers(ReceiverSettings(read_seconds=0.05, requests_in_flight=1))
    never = asyncio.Event()

    async def slow() -> AsyncIterator[bytes]:
        yield LOG_LINE
        await never.wait()

    answer = await receivers.post(JSON_LOGS, slow(), LINES)

    assert (answer.status_code, codes(answer), answer.headers["retry-after"]) == (503, ["body_timeout"], "5")
    assert receivers.recorder.appended == []
    assert (await receivers.post(JSON_LOGS, LOG_LINE, LINES)).status_code == 200


@async_test
async def test_more_requests_than_may_be_under_way_are_503() -> None:
    receivers = Receivers(ReceiverSettings(requests_in_flight=2))
    receivers.recorder.is_open.clear()
    bodies = [LOG_LINE.replace(b"hello", b"%d" % each) for each in range(3)]
    first = [asyncio.create_task(receivers.post(JSON_LOGS, body, LINES)) for body in bodies[:2]]
    await until(lambda: receivers.metric("requests_in_flight") == 2)

    refused = await receivers.post(JSON_LOGS, bodies[2], LINES)
    receivers.recorder.is_open.set()

    assert (refused.status_code, codes(refused)) == (503, ["overloaded"])
    assert [(await each).status_code for each in first] == [200, 200]
    assert receivers.metric("requests_in_flight") == 0
    assert receivers.metric("bytes_in_flight") == 0


@async_test
async def test_bytes_are_counted_before_a_body_is_read() -> None:
    receivers = Receivers(ReceiverSettings(body_bytes=1_000, bytes_in_flight=1_500))
    receivers.recorder.is_open.clear()
    waiting = asyncio.create_task(receivers.post(JSON_LOGS, LOG_LINE.ljust(1_000), LINES))
    await receivers.recorder.is_asked.wait()

    declared = await receivers.post(JSON_LOGS, LOG_LINE.ljust(501), LINES)
    chunked = await receivers.post(JSON_LOGS, parts(LOG_LINE, b" " * 454), LINES)  # counted before it is kept
    read = receivers.metric("body_bytes_total", route=JSON_LOGS)
    receivers.recorder.is_open.set()

    assert codes(declared, chunked) == ["overloaded"] * 2
    assert read == 1_000
    assert (await waiting).status_code == 200


@async_test
async def test_slow_chunked_bodies_hold_what_has_come_of_them_and_leave_room_for_others() -> None:
    receivers = Receivers(ReceiverSettings(body_bytes=1_000, bytes_in_flight=1_500))
    goes_on, waiting = asyncio.Event(), list[None]()

    async def slow() -> AsyncIterator[bytes]:
        yield LOG_LINE
        waiting.append(None)
        await goes_on.wait()
        yield LOG_LINE

    senders = [asyncio.create_task(receivers.post(JSON_LOGS, slow(), LINES)) for _ in range(4)]
    await until(lambda: len(waiting) + sum(each.done() for each in senders) == 4)

    held = receivers.metric("bytes_in_flight")
    other = await receivers.post(JSON_LOGS, LOG_LINE.ljust(1_000), LINES)
    goes_on.set()

    assert (held, other.status_code) == (4 * len(LOG_LINE), 200)
    assert [(await each).status_code for each in senders] == [200] * 4
    assert receivers.metric("bytes_in_flight") == 0


@async_test
async def test_bytes_are_counted_before_a_body_is_decompressed() -> None:
    receivers = Receivers(ReceiverSettings(body_bytes=4 << 20, bytes_in_flight=2 << 20, inline_bytes=0))
    receivers.recorder.is_open.clear()
    waiting = asyncio.create_task(receivers.post(JSON_LOGS, LOG_LINE, LINES))
    await receivers.recorder.is_asked.wait()
    spaces = LOG_LINE.ljust(3 << 20)

    zipped = await receivers.post(JSON_LOGS, gzip.compress(spaces), GZIPPED)
    snapped = await receivers.post(WRITE, snappy(spaces), WRITE_V1)
    receivers.recorder.is_open.set()
    await waiting
    alone = await receivers.post(JSON_LOGS, gzip.compress(spaces), GZIPPED)

    assert codes(zipped) == ["overloaded"]
    assert (snapped.status_code, alone.status_code) == (503, 200)  # who is alone is always taken
    assert receivers.metric("bytes_in_flight") == 0


@async_test
async def test_others_are_answered_while_a_large_body_is_decoded() -> None:
    receivers = Receivers(ReceiverSettings(inline_bytes=1_000))
    many = LOG_LINE * 20_000
    large = asyncio.create_task(receivers.post(JSON_LOGS, many, LINES))
    await until(lambda: receivers.metric("body_bytes_total", route=JSON_LOGS) == len(many))

    small = await receivers.post(WRITE, snappy(v1((UP, [(MS, 1)]))), WRITE_V1)

    assert (small.status_code, large.done()) == (204, False)
    assert (await large).json() == {"records": 20_000, "duplicate": False}


@async_test
async def test_a_request_that_is_cancelled_is_answered_and_leaves_no_bytes_behind() -> None:
    receivers = Receivers()
    receivers.recorder.is_open.clear()
    request = asyncio.create_task(receivers.post(JSON_LOGS, LOG_LINE, LINES))
    await receivers.recorder.is_asked.wait()

    request.cancel("the server stops")
    answer = await request

    assert (answer.status_code, codes(answer), answer.headers["retry-after"]) == (503, ["stopping"], "5")
    assert receivers.metric("bytes_in_flight") == 0
    receivers.recorder.is_open.set()


def test_a_thread_that_is_still_at_work_for_a_request_holds_nothing_any_more() -> None:
    admission = Admission(ReceiverSettings())
    with admission.admit(100) as admitted:
        admitted.hold(200)
        assert (admission.requests, admission.bytes_held) == (1, 200)

    with pytest.raises(Refusal) as refused:
        admitted.hold(300)

    assert refused.value.code is ErrorCode.OVERLOADED
    assert (admission.requests, admission.bytes_held) == (0, 0)


@async_test
async def test_a_sender_that_goes_away_leaves_nothing_behind() -> None:
    receivers = Receivers()

    async def gone() -> Mapping[str, object]:
        return {"type": "http.disconnect"}

    async def nobody(message: object) -> None:
        raise AssertionError(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": JSON_LOGS,
        "query_string": b"",
        "client": ("127.0.0.1", 1),
        "headers": [(b"host", b"localhost"), (b"content-type", NDJSON.encode()), (b"content-length", b"10")],
    }
    await receivers.app(scope, gone, nobody)  # type: ignore[arg-type]

    assert receivers.metric("disconnected_total", route=JSON_LOGS) == 1
    assert receivers.metric("bytes_in_flight") == 0


# --- settings


def test_settings_that_cannot_be_are_told_at_once() -> None:
    with pytest.raises(Misconfigured, match="body_bytes is 0, and must be positive; read_seconds is -1"):
        ReceiverSettings(body_bytes=0, read_seconds=-1)
    with pytest.raises(Misconfigured, match="neither a port nor a Unix socket"):
        ListenerSettings(port=None)
    with pytest.raises(Misconfigured, match="port is 65536"):
        ListenerSettings(port=65_536)
