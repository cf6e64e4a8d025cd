"""`lakehead agent`: a running agent and its commands, and what they show while none runs."""

import asyncio
import json
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.datastructures import Headers

from lakehead.agent.receive.callers import check_caller
from lakehead.gateway.settings import IngestSettings
from lakehead.run.agent_command import agent_config
from lakehead.run.agent_wiring import AgentWiring
from tests.unit.agent.real_gateway import gateway_in_a_thread, url_of
from tests.unit.gateway.support import AGENT, TOKEN
from tests.unit.run.queue_support import Done

Lakehead = Callable[..., Done]
NDJSON = {"Content-Type": "application/x-ndjson"}
SAMPLE = '{"time": 1, "metric": "up", "value": 1}\n'
GONE = "http://127.0.0.1:9"
"""Where no gateway is."""


def written(folder: Path, gateway: str = GONE, **changed: Any) -> Path:
    """A configuration whose agent listens on a Unix socket alone."""
    (folder / "token").write_text(f"{TOKEN}\n")
    agent = {
        "agent_id": AGENT,
        "gateways": [gateway],
        "token": {"file": str(folder / "token")},
        "spool_folder": str(folder / "spool"),
        "listener": {"port": None, "unix_socket": str(folder / "agent.sock")},
    }
    path = folder / "agent.json"
    path.write_text(json.dumps({"agent": agent | changed}))
    return path


@contextmanager
def running(config: Path) -> Iterator[httpx.Client]:
    """The agent of a configuration in a thread, and a client of it."""
    started, ends = threading.Event(), list[tuple[asyncio.AbstractEventLoop, asyncio.Event]]()

    async def serve() -> None:
        stop = asyncio.Event()
        ends.append((asyncio.get_running_loop(), stop))
        await AgentWiring(agent_config(config), {}).serve(stop, lambda _agent, _server: started.set())

    thread = threading.Thread(target=lambda: asyncio.run(serve()), name="test-agent")
    thread.start()
    try:
        assert started.wait(60), "the agent does not start"
        socket = json.loads(config.read_text())["agent"]["listener"]["unix_socket"]
        with httpx.Client(transport=httpx.HTTPTransport(uds=socket), base_url="http://localhost", timeout=60) as client:
            yield client
    finally:
        for loop, stop in ends:
            loop.call_soon_threadsafe(stop.set)
        thread.join(60)
    assert not thread.is_alive()


@pytest.mark.slow
def test_what_a_program_sends_is_accepted_and_shown(lakehead: Lakehead, tmp_path: Path) -> None:
    with gateway_in_a_thread() as gateway, running(config := written(tmp_path, url_of(gateway))) as client:
        sent = client.post("/v1/json/samples", content=SAMPLE, headers=NDJSON)
        flushed = lakehead("agent", "flush", config)
        status = lakehead("agent", "status", config)
        as_json = json.loads(lakehead("agent", "status", config, "--json").out)

    assert sent.status_code == 200
    assert (flushed.code, flushed.out) == (0, "All that the agent was given is accepted.\n")
    assert status.code == 0
    assert f"agent      {AGENT}, running\nauthority  authority-1\nwaiting    0 batches, 0 bytes\n" in status.out
    assert (as_json["runs"], as_json["authority"], as_json["parked"]) == (True, "authority-1", [])


@pytest.mark.slow
def test_what_gateways_do_not_take_yet_waits_also_when_the_agent_has_stopped(
    lakehead: Lakehead, tmp_path: Path
) -> None:
    config = written(tmp_path)
    with running(config) as client:
        client.post("/v1/json/samples", content=SAMPLE, headers=NDJSON)
        flushed = lakehead("agent", "flush", config, "--timeout", "0.01")
    stopped = lakehead("agent", "status", config)

    assert flushed.code == 1
    assert flushed.err.startswith("Not all is accepted: 1 batch waiting, 0 batches parked, 0 files damaged.")
    assert stopped.code == 0
    assert "not running\nauthority  none has answered yet\nwaiting    1 batch, " in stopped.out


@pytest.mark.slow
def test_parked_batches_are_listed_with_their_reasons_and_dropped_by_number(lakehead: Lakehead, tmp_path: Path) -> None:
    refuses_all = IngestSettings(body_bytes=8, requests_per_second=None)
    with gateway_in_a_thread(refuses_all) as gateway:
        config = written(tmp_path, url_of(gateway))
        with running(config) as client:
            client.post("/v1/json/samples", content=SAMPLE, headers=NDJSON)
            flushed = lakehead("agent", "flush", config)
            listed = lakehead("agent", "parked", "list", config)
            status = lakehead("agent", "status", config)
        at_rest = lakehead("agent", "parked", "list", config)
        not_running = lakehead("agent", "parked", "drop", config, "0", "--yes")
        with running(config):
            [parked] = json.loads(lakehead("agent", "parked", "list", config, "--json").out)["parked"]
            retried = lakehead("agent", "parked", "retry", config)
            unknown = lakehead("agent", "parked", "drop", config, "77", "--yes")
            dropped = lakehead("agent", "parked", "drop", config, str(parked["number"]), "--yes")
            left = lakehead("agent", "parked", "list", config)

    assert (flushed.code, status.code) == (1, 1)
    for each in (listed, at_rest):
        assert "samples" in each.out
        assert "too_large" in each.out
        assert each.out.endswith("1 batch parked\n")
    assert (not_running.code, not_running.err.count("No agent answers")) == (1, 1)
    assert (retried.code, retried.out.startswith("1 batch offered again.")) == (0, True)
    assert flushed.out.count("Send smaller batches.") == 1
    assert (unknown.code, unknown.err) == (2, "lakehead: There are no parked batches 77. See the list.\n")
    assert (dropped.code, f"Dropped {parked['number']}, sequence numbers 0 to 0." in dropped.out) == (0, True)
    assert left.out == "0 batches parked\n"


def test_what_is_missing_is_said_with_what_to_do(lakehead: Lakehead, tmp_path: Path) -> None:
    other = tmp_path / "gateway.json"
    other.write_text(json.dumps({"gateway": {"store": "memory://"}}))
    config = written(tmp_path)
    no_agent, no_spool = lakehead("agent", "status", other), lakehead("agent", "status", config)
    (tmp_path / "token").unlink()
    no_token = lakehead("agent", config)

    assert [each.code for each in (no_agent, no_spool, no_token)] == [2, 2, 2]
    assert "has no agent. Add one under agent" in no_agent.err
    assert "is no spool of an agent" in no_spool.err
    assert "Put the secret there. Make one at the gateway: lakehead gateway token add CONFIG --agent " in no_token.err


def test_a_folder_of_something_else_is_not_taken_for_a_spool(lakehead: Lakehead, tmp_path: Path) -> None:
    (tmp_path / "spool").mkdir()
    (tmp_path / "spool" / "accepted").mkdir()
    refused = lakehead("agent", written(tmp_path))

    assert (refused.code, [each.name for each in (tmp_path / "spool").iterdir()]) == (2, ["accepted"])
    assert "is not empty, and no spool of an agent: it has accepted. Choose a new folder." in refused.err


def test_a_gateway_that_cannot_be_one_is_told_when_the_configuration_is_checked(
    lakehead: Lakehead, tmp_path: Path
) -> None:
    checked = lakehead("config", "check", written(tmp_path, gateway="htp://gateway:8480"))

    assert checked.code == 2
    assert "must be like https://gateway:8443" in checked.err


def test_a_port_that_is_taken_is_told_once(lakehead: Lakehead, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused = lakehead("agent", written(tmp_path, listener={"port": port}))

    assert refused.code == 2
    assert f"cannot listen at 127.0.0.1 port {port}: Address already in use. Correct" in refused.err


def test_an_agent_is_known_by_the_name_at_which_it_listens(tmp_path: Path) -> None:
    config = agent_config(written(tmp_path, listener={"host": "Web-1.internal", "hosts": ["metrics.internal"]}))
    settings = AgentWiring(config, {}).receiver_settings()
    headers = Headers({"Host": "web-1.internal:4318"})
    scope = {"client": ("127.0.0.1", 1), "server": ("127.0.0.1", 4318)}

    check_caller(scope, headers, hosts=settings.hosts, origins=settings.origins)
    assert "metrics.internal" in settings.hosts


def test_a_second_agent_does_not_get_the_spool_and_remote_addresses_are_refused(
    lakehead: Lakehead, tmp_path: Path
) -> None:
    config = written(tmp_path)
    with running(config):
        second = written(tmp_path, listener={"port": 0})
        locked = lakehead("agent", second)
    open_to_all = lakehead("agent", written(tmp_path, listener={"host": "0.0.0.0", "port": 0}))  # noqa: S104 - it is refused

    assert (locked.code, open_to_all.code) == (2, 2)
    assert "Another process has the spool" in locked.err
    assert "set allow_remote" in open_to_all.err


@pytest.mark.slow
def test_it_runs_as_people_start_it_and_stops_when_it_is_told_to(tmp_path: Path) -> None:
    config = written(tmp_path)
    words = [sys.executable, "-c", "from lakehead.run.main import command; command()", "agent", str(config)]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        first = process.stderr.readline()
        assert process.stderr.readline().startswith("  listens  unix:")
        assert process.stderr.readline().startswith("  sends")
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(tmp_path / "agent.sock"))) as client:
            client.post("http://localhost/v1/json/samples", content=SAMPLE, headers=NDJSON).raise_for_status()
        logged = process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        rest = process.stderr.read()

    assert first.startswith(f"Agent {AGENT} takes samples and log records")
    assert re.match(r"[0-9-]{10}T[0-9:.]{12}Z WARNING No gateway: No gateway takes batches, and they wait", logged)
    assert process.returncode == 0
    assert "Stopped by SIGTERM: what was not accepted yet stays on disk." in rest
