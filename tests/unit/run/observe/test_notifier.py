"""Notifications: at intervals and at the end, to a receiver that may be away, and without its secret in any log."""

import json
import logging
import socket
import threading
from base64 import b64encode
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from lakehead.errors import Misconfigured
from lakehead.run.observe.http_post import JsonPost
from lakehead.run.observe.notifier import NotifierSubscriber
from lakehead.telemetry.background_sender import NotSent
from lakehead.telemetry.events import RunDone, TableStale
from tests.unit.run.observe.fake_run import FakeRun
from tests.unit.run.observe.receiver import receiving
from tests.unit.run.observe.test_heartbeat import Metronome

CANARY = "c4nary"


def ended(run: FakeRun, failed: int = 1) -> None:
    run.emit(RunDone(done=1, skipped=0, failed=failed, seconds=62.0))


def test_it_notifies_at_intervals_and_once_at_the_end() -> None:
    sent: list[dict[str, Any]] = []
    run, time = FakeRun(), Metronome()
    notifier = NotifierSubscriber(lambda body: sent.append(json.loads(body)), 900, run.clock, wait=time.wait)
    run.emitter.subscribe(notifier)
    with notifier:
        assert time.asked.get() == 900
        time.beat()  # before the run there is nothing to tell
        run.start(2)
        run.begin("a")
        time.beat()
        run.finish("a", 10)
        run.begin("b")
        run.fail("b", "It is away.")
        ended(run)
        time.beat()  # nor after it
        time.stop()

    assert [each["kind"] for each in sent] == ["periodic", "final"]
    assert [each["tables"]["done"] for each in sent] == [0, 1]
    final = sent[1]
    assert (final["run"], final["pipeline"], final["load_date"], final["rows"]) == ("run-7", "shop", "2026-03-01", 10)
    assert final["failures"] == [{"table": "b", "error": "It is away."}]
    assert final["text"].splitlines() == [
        "Lakehead shop for 2026-03-01: run ended after 1:02: 2 tables, 1 done, 1 failed; 10 rows",
        "b failed: It is away.",
    ]
    assert (notifier.sent, notifier.lost) == (2, None)
    assert not [each for each in threading.enumerate() if "notifier" in each.name or "webhook" in each.name]


def test_slack_gets_its_shape_and_markup_is_escaped() -> None:
    sent: list[bytes] = []
    run = FakeRun()
    notifier = NotifierSubscriber(sent.append, 900, run.clock, shape="slack")
    run.emitter.subscribe(notifier)
    with notifier:
        run.start(1)
        run.begin("a")
        run.fail("a", "<!channel> & more")
        ended(run)

    (body,) = map(json.loads, sent)
    assert set(body) == {"text"}
    assert "a failed: &lt;!channel&gt; &amp; more" in body["text"]


def test_a_stale_table_is_an_alert() -> None:
    sent: list[bytes] = []
    run = FakeRun()
    notifier = NotifierSubscriber(sent.append, 900, run.clock)
    run.emitter.subscribe(notifier)
    with notifier:
        run.start(1)
        stale = TableStale(when="end", by="watermark", fresh_at=run.clock.at, seconds=7200.0, max_seconds=3600.0)
        run.emit(stale, "orders")

    (body,) = map(json.loads, sent)
    assert body["kind"] == "alert"
    assert (body["alert"]["table"], body["alert"]["seconds"]) == ("orders", 7200.0)
    assert "stale: its watermark is 2:00:00 old, at most 1:00:00 allowed" in body["text"]


@pytest.mark.parametrize("fault", ["down", "slow", "500"])
def test_a_receiver_in_trouble_holds_up_no_event_and_is_only_counted(
    fault: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setattr("lakehead.run.observe.notifier.CLOSE_SECONDS", 0.2)
    run = FakeRun()
    with receiving() as receiver:
        url = "http://127.0.0.1:1" if fault == "down" else receiver.url
        if fault == "slow":
            receiver.gate.clear()
        receiver.status = 500 if fault == "500" else 200
        notifier = NotifierSubscriber(JsonPost(f"{url}/{CANARY}", timeout=30), 900, run.clock, pause=lambda *_: None)
        run.emitter.subscribe(notifier)
        with notifier:
            run.start(100)
            for number in range(100):  # every one of them is through before any answer has come
                run.begin(f"t{number}")
                run.finish(f"t{number}", 1)
            assert notifier.sent == 0
            ended(run, failed=0)
        lost, sent = notifier.lost, notifier.sent

    assert lost is not None
    assert (lost.count, sent) == (1, 0)
    assert CANARY not in caplog.text + lost.reason


def test_an_answer_that_never_ends_holds_up_no_message() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:
        closed = pool.submit(answer_for_ever, server)

        JsonPost(f"http://127.0.0.1:{server.getsockname()[1]}/")(b"{}")

        assert closed.result(60)


def answer_for_ever(server: socket.socket) -> bool:
    """Answer with a byte now and then, until the client has gone. Returns whether it has."""
    connection, _ = server.accept()
    with connection:
        connection.recv(65_536)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
        for _ in range(900):  # too few for an answer that is read to its end
            try:
                connection.sendall(b"x")
                connection.settimeout(0.02)
                if not connection.recv(1):
                    return True
            except TimeoutError:
                pass
            except OSError:
                return True
    return False


def test_a_user_and_password_before_the_host_are_sent_as_a_header() -> None:
    with receiving() as receiver:
        JsonPost(receiver.url.replace("http://", f"http://us%40er:{CANARY}@"))(b"{}")

    [headers] = receiver.headers
    assert headers["Authorization"] == f"Basic {b64encode(f'us@er:{CANARY}'.encode()).decode()}"
    assert CANARY not in headers["Host"]


def test_a_refusal_names_the_status_and_no_redirect_is_followed() -> None:
    with receiving() as receiver:
        post = JsonPost(f"{receiver.url}/{CANARY}", {"Authorization": "Bearer x"})
        post(b"{}")
        for status, again in ((404, False), (302, False), (429, True), (503, True)):
            receiver.status = status
            with pytest.raises(NotSent, match=f"^it answered {status}$") as refused:
                post(b"{}")
            assert refused.value.try_again is again
        assert len(receiver.bodies) == 5
        assert receiver.headers[0]["Authorization"] == "Bearer x"


@pytest.mark.parametrize("url", ["ftp://x/y", "file:///etc/passwd", "http://x:y/", "http://a b/"])
def test_only_http_is_posted_to(url: str) -> None:
    with pytest.raises(Misconfigured) as refused:
        JsonPost(url)
    assert url not in str(refused.value)
