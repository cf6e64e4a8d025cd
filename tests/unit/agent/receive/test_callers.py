"""Whose requests are taken: those of programs, not those of web pages."""

import httpx
import pytest

from lakehead.agent.receive.callers import host_name, is_loopback
from lakehead.agent.receive.receiver_settings import ReceiverSettings
from tests.support.async_tests import async_test
from tests.unit.agent.receive.app_support import JSON_LOGS, METRICS, NDJSON, PROTOBUF, WRITE, WRITE_V1, Receivers

LOG_LINE = b'{"time": 1760000000000000000, "body": "hello"}\n'
KNOWN = ["localhost", "LOCALHOST:4318", "localhost.", "127.0.0.1", "127.0.0.1:4318", "127.9.9.9:1", "[::1]", "[::1]:80"]
FOREIGN = [
    *("evil.example", "evil.example:4318", "localhost.evil.example", "127.0.0.1.nip.io", "0.0.0.0:4318"),
    *("", ":4318", "[::1", "::1", "localhost:4318:80", "localhost:http", "127.0.0.1@evil.example", "10.0.0.1:4318"),
]


async def sent(receivers: Receivers, *headers: tuple[str, str], path: str = JSON_LOGS) -> httpx.Response:
    transport = httpx.ASGITransport(receivers.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost:4318") as http:
        request = http.build_request("POST", path, content=LOG_LINE, headers=[("Content-Type", NDJSON), *headers])
        return await http.send(request)


@pytest.mark.parametrize("host", KNOWN)
@async_test
async def test_a_name_of_loopback_is_known(host: str) -> None:
    assert (await sent(Receivers(), ("Host", host))).status_code == 200


@pytest.mark.parametrize("host", FOREIGN)
@async_test
async def test_a_foreign_name_is_403_and_nothing_is_kept(host: str) -> None:
    receivers = Receivers()

    answer = await sent(receivers, ("Host", host))

    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "foreign_host")
    assert receivers.recorder.appended == []


@async_test
async def test_two_names_are_403_even_if_both_are_known() -> None:
    answer = await sent(Receivers(), ("Host", "localhost"), ("Host", "localhost"))

    assert answer.status_code == 403


@async_test
async def test_a_configured_name_is_known_with_any_port() -> None:
    receivers = Receivers(ReceiverSettings(hosts=("Metrics.Example", "10.0.0.1")))

    answers = [await sent(receivers, ("Host", host)) for host in ("metrics.example:80", "METRICS.example", "10.0.0.1")]
    other = await sent(receivers, ("Host", "other.example"))

    assert [each.status_code for each in (*answers, other)] == [200, 200, 200, 403]


@async_test
async def test_the_address_that_was_connected_to_is_known_where_others_may_connect() -> None:
    receivers = Receivers()
    transport = httpx.ASGITransport(receivers.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://10.1.2.3:4318") as http:
        answer = await http.post(JSON_LOGS, content=LOG_LINE, headers={"Content-Type": NDJSON})

    assert answer.status_code == 200


@async_test
async def test_through_a_unix_socket_any_name_is_known() -> None:
    receivers = Receivers()

    answer = await receivers.request(
        "POST", JSON_LOGS, LOG_LINE, {"Content-Type": NDJSON, "Host": "agent"}, client=None
    )
    page = await receivers.request(
        "POST", JSON_LOGS, LOG_LINE, {"Content-Type": NDJSON, "Origin": "https://evil.example"}, client=None
    )

    assert (answer.status_code, page.status_code) == (200, 403)


@pytest.mark.parametrize("origin", ["https://evil.example", "http://localhost:4318", "null", ""])
@async_test
async def test_any_origin_is_403(origin: str) -> None:
    receivers = Receivers()

    answer = await sent(receivers, ("Origin", origin))

    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "foreign_origin")
    assert receivers.recorder.appended == []


@async_test
async def test_a_configured_origin_is_known_and_no_other_beside_it() -> None:
    receivers = Receivers(ReceiverSettings(origins=("https://app.example",)))

    known = await sent(receivers, ("Origin", "https://app.example"))
    both = await sent(receivers, ("Origin", "https://app.example"), ("Origin", "https://evil.example"))
    longer = await sent(receivers, ("Origin", "https://app.example.evil"))

    assert [each.status_code for each in (known, both, longer)] == [200, 403, 403]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/healthz"),
        ("GET", "/metrics"),
        ("GET", "/v1/status"),
        ("GET", "/v1/parked"),
        ("GET", "/v1/parked/7"),
        ("DELETE", "/v1/parked/7"),
        ("POST", "/v1/parked/retry"),
        ("POST", "/v1/flush"),
        ("POST", METRICS),
        ("POST", WRITE),
        ("OPTIONS", JSON_LOGS),
        ("GET", "/nowhere"),
    ],
)
@async_test
async def test_every_route_is_closed_to_web_pages(method: str, path: str) -> None:
    receivers = Receivers()
    for headers in ({"Origin": "https://evil.example"}, {"Host": "evil.example"}):
        answer = await receivers.request(method, path, headers=headers)
        assert answer.status_code == 403
        assert not {name for name in answer.headers if name.startswith("access-control")}


@async_test
async def test_a_foreign_caller_is_told_in_the_form_of_the_protocol() -> None:
    receivers = Receivers()
    foreign = {"Origin": "https://evil.example"}

    otlp = await receivers.post(METRICS, b"", {"Content-Type": PROTOBUF, **foreign})
    write = await receivers.post(WRITE, b"", {**WRITE_V1, **foreign})

    assert (otlp.status_code, otlp.headers["content-type"]) == (403, PROTOBUF)
    assert (write.status_code, write.headers["content-type"]) == (403, "text/plain; charset=utf-8")


def test_names_of_loopback_are_known() -> None:
    loopback = ("localhost", "127.0.0.1", "127.255.255.254", "::1")
    others = ("localhost.localdomain", "::", "10.0.0.1", "128.0.0.1", "127.1", "2130706433", "", "::ffff:1.2.3.4")

    assert {is_loopback(name) for name in loopback} == {True}
    assert {is_loopback(name) for name in others} == {False}


def test_the_name_is_told_from_the_port() -> None:
    assert host_name("Example.COM.:80") == "example.com"
    assert host_name("[2001:db8::1]:80") == "2001:db8::1"
