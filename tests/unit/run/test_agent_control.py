"""Commands of `lakehead agent` ask the agent of their configuration, and no other program."""

import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from lakehead.errors import Misconfigured
from lakehead.run.agent_control import AgentControl, AgentRefused, NoAgentRuns
from lakehead.run.config.agent_config import AgentListenerConfig

FLUSHED = {"accepted": True, "waiting": 0, "parked": [], "damaged": 0}
STATUS = {"agent_id": "web-2", "authority": "", "spool": {"entries": 0}, "parked": []}


@contextmanager
def answering(answers: dict[str, object], asked: list[str]) -> Iterator[AgentControl]:
    """A program that gives these answers by path, and control of the agent web-1 where it listens."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            asked.append(f"{self.command} {path}")
            body = json.dumps(answers.get(path, {})).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_DELETE = do_GET  # noqa: N815 - as the class wants them

        def log_message(self, *_: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=lambda: server.serve_forever(poll_interval=0.01))
        thread.start()
        try:
            yield AgentControl(AgentListenerConfig(port=server.server_port), "web-1")
        finally:
            server.shutdown()
            thread.join()


ASKING: dict[str, Callable[[AgentControl], object]] = {
    "status": AgentControl.status,
    "parked": AgentControl.parked,
    "drop": lambda control: control.drop(1),
    "flush": lambda control: control.flush(0),
}


@pytest.mark.parametrize("ask", ASKING.values(), ids=ASKING)
def test_another_agent_that_listens_there_is_asked_for_nothing_more(ask: Callable[[AgentControl], object]) -> None:
    asked: list[str] = []
    answers = {"/v1/status": STATUS, "/v1/flush": FLUSHED, "/v1/parked/1": {"frame_sha256": "aa"}}
    with answering(answers, asked) as control, pytest.raises(NoAgentRuns, match="'web-2', and not 'web-1'"):
        ask(control)
    assert asked == ["GET /v1/status"]


@pytest.mark.parametrize("answer", [{}, [], {"error": "no"}, {"spool": 1}, 7, {**STATUS, "agent_id": 3}])
@pytest.mark.parametrize("ask", ASKING.values(), ids=ASKING)
def test_a_program_that_is_no_agent_is_told(ask: Callable[[AgentControl], object], answer: object) -> None:
    with answering({"/v1/status": answer}, []) as control, pytest.raises(AgentRefused):
        ask(control)


@pytest.mark.parametrize("host", ["[::1]", "a" * 64])
def test_an_address_that_is_none_is_told(host: str) -> None:
    with pytest.raises(Misconfigured, match=re.escape(f"agent.listener.host is {host!r}")):
        AgentControl(AgentListenerConfig(host=host, port=4318), "web-1").status()


def test_what_is_asked_of_the_right_agent_arrives() -> None:
    asked: list[str] = []
    with answering({"/v1/status": STATUS | {"agent_id": "web-1"}, "/v1/flush": FLUSHED}, asked) as control:
        assert control.flush(0) == FLUSHED
        assert control.parked() == []
    assert asked == ["GET /v1/status", "POST /v1/flush", "GET /v1/status"]


def test_status_shows_the_folder_if_another_agent_has_the_port(lakehead: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret\n")
    with answering({"/v1/status": STATUS}, []) as control:
        config = tmp_path / "agent.json"
        agent = {"agent_id": "web-1", "gateways": ["http://127.0.0.1:9"], "token": {"file": str(tmp_path / "token")}}
        agent |= {"spool_folder": str(tmp_path / "spool"), "listener": {"port": control.listener.port}}
        config.write_text(json.dumps({"agent": agent}))
        done = lakehead("agent", "flush", str(config))
        assert done.code != 0
        assert "web-2" in done.err
        assert "is no spool of an agent" in lakehead("agent", "status", str(config)).err
