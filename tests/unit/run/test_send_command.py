"""`lakehead send`: a file of JSON lines reaches a gateway once, or the line that is wrong is named."""

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lakehead.agent.ndjson_file import CheckedFile, NdjsonFile
from lakehead.run.environment import gateway_token
from lakehead.run.send_command import PROGRESS_SECONDS, _Progress
from lakehead.wire.frame import decode_frame
from tests.unit.agent.real_gateway import gateway_in_a_thread, url_of
from tests.unit.agent.support import SleepingClock
from tests.unit.gateway.running import Running
from tests.unit.gateway.support import AGENT, TOKEN
from tests.unit.run.queue_support import Done

Lakehead = Callable[..., Done]
LAKEHEAD = Path(sys.executable).with_name("lakehead")


@pytest.fixture(scope="module")
def shared() -> Iterator[Running]:
    with gateway_in_a_thread() as server:
        yield server


@pytest.fixture
def server(shared: Running) -> Running:
    """The module's gateway, with nothing in its store."""
    shared.gateway.store.created.clear()
    shared.gateway.store._objects.clear()
    return shared


@pytest.fixture
def token(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n")
    return path


def written(path: Path, count: int = 25, **changed: object) -> Path:
    rows = ({"time": number, "metric": "up", "labels": {"n": str(number)}, "value": number} for number in range(count))
    path.write_text("".join(json.dumps(row | changed) + "\n" for row in rows))
    return path


def frames(server: Running) -> dict[str, bytes]:
    return {key: each.body for key, each in server.gateway.store._objects.items() if key.startswith("raw-blobs/")}


@pytest.mark.slow
def test_a_file_is_sent_in_batches_and_a_second_run_sends_the_same(
    lakehead: Lakehead, server: Running, token: Path, tmp_path: Path
) -> None:
    file = written(tmp_path / "samples.ndjson")
    words = ("send", file, "--to", url_of(server), "--agent", AGENT, "--token-file", token, "--batch", "10")

    first = lakehead(*words)
    stored = frames(server)
    again = lakehead(*words)

    assert (first.code, first.err) == (again.code, again.err) == (0, "")
    assert first.out.startswith("25 records accepted in 3 batches, 0 duplicates (agent agent-a, boot samples-")
    assert again.out == first.out.replace("0 duplicates", "3 duplicates")
    assert frames(server) == stored
    assert sorted(decode_frame(body).identity.record_count for body in stored.values()) == [5, 10, 10]
    assert len({decode_frame(body).identity.boot_id for body in stored.values()}) == 1


def test_another_boot_makes_the_records_new_ones(
    lakehead: Lakehead, server: Running, token: Path, tmp_path: Path
) -> None:
    file = written(tmp_path / "samples.ndjson", 1)

    for boot in ("one", "two"):
        done = lakehead(
            *("send", file, "--to", url_of(server), "--agent", AGENT, "--token-file", token, "--boot", boot)
        )
        assert done.out == f"1 record accepted in 1 batch, 0 duplicates (agent agent-a, boot {boot})\n"


def test_the_default_boot_depends_on_content_and_kind_and_on_nothing_else(
    lakehead: Lakehead, server: Running, token: Path, tmp_path: Path
) -> None:
    def boot_of(file: Path, *more: str) -> str:
        done = lakehead("send", file, "--to", url_of(server), "--agent", AGENT, "--token-file", token, *more)
        assert done.code == 0, done.err
        return done.out.partition("boot ")[2]

    (tmp_path / "logs").write_text('{"time": 1, "body": "x"}\n')
    one = boot_of(written(tmp_path / "one"))

    assert boot_of(written(tmp_path / "copy"), "--batch", "7") == one
    assert boot_of(written(tmp_path / "two", 24)) != one
    assert boot_of(tmp_path / "logs", "--kind", "logs").startswith("logs-")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"time": 1, "metric": "up"}', "no value"),
        ('{"time": "noon", "metric": "up", "value": 1}', "time is 'noon'"),
        ('{"time": 1, "metric": "up", "value": 1, "host": "a"}', "There is no column host"),
        ('{"time": 1, "metric": "up", ', "truncated"),
        ("[1]", "It is not a JSON object"),
        ("{}{}", "trailing characters"),
        ('{"time": 1, "metric": "\\ud800", "value": 1}', ""),
        ("[" * 100_000, ""),
        ("\ufeff{}", "byte order mark"),
    ],
)
def test_a_bad_line_is_named_by_its_number_and_nothing_is_sent(
    lakehead: Lakehead, server: Running, token: Path, tmp_path: Path, line: str, reason: str
) -> None:
    file = written(tmp_path / "samples.ndjson", 12)
    file.write_text(f"{file.read_text()}\n\n{line}\n")

    done = lakehead("send", file, "--to", url_of(server), "--agent", AGENT, "--token-file", token, "--batch", "10")

    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"lakehead: {file}, line 15: ")
    assert reason in done.err
    assert frames(server) == {}


def test_a_line_without_an_end_is_refused_before_it_fills_the_memory(
    lakehead: Lakehead, server: Running, token: Path, tmp_path: Path
) -> None:
    file = written(tmp_path / "samples.ndjson", 2)
    with file.open("ab") as grown:
        grown.truncate(3 << 30)  # of zeros, which take no room on disk

    done = lakehead("send", file, "--to", url_of(server), "--agent", AGENT, "--token-file", token)

    assert (done.code, done.out) == (2, "")
    assert "line 3: It has more than" in done.err
    assert frames(server) == {}


@pytest.mark.slow
def test_a_pipe_cannot_be_read_twice_and_is_refused_in_one_sentence(server: Running, token: Path) -> None:
    ran = subprocess.run(
        [LAKEHEAD, "send", "/dev/stdin", "--to", url_of(server), "--agent", AGENT, "--token-file", token],
        input='{"time": 1, "metric": "up", "value": 1}\n',
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )

    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.count("\n") == 1
    assert "Write it to a file first" in ran.stderr


def test_a_file_that_cannot_be_read_to_its_end_is_one_sentence(lakehead: Lakehead, token: Path) -> None:
    done = lakehead("send", "/proc/self/mem", "--to", "http://127.0.0.1:9", "--agent", AGENT, "--token-file", token)

    assert (done.code, done.out) == (2, "")
    assert done.err == "lakehead: /proc/self/mem cannot be read (Input/output error).\n"


@pytest.mark.slow
def test_ctrl_c_tells_how_far_it_came(tmp_path: Path) -> None:
    file = written(tmp_path / "samples.ndjson")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        process = subprocess.Popen(
            [LAKEHEAD, "send", file, "--to", f"http://127.0.0.1:{silent.getsockname()[1]}", "--agent", AGENT],
            env={"LAKEHEAD_TOKEN": TOKEN},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        silent.settimeout(60)
        connection, _ = silent.accept()
        with connection:
            connection.recv(1)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=60)

    assert (process.returncode, out) == (130, "")
    assert err == "0 of 25 records accepted (0 %)\n"


def test_a_file_that_changes_meanwhile_is_not_sent_as_something_else(
    lakehead: Lakehead, server: Running, token: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = written(tmp_path / "samples.ndjson", 12)
    check = NdjsonFile.check

    def check_and_change(ndjson: NdjsonFile) -> CheckedFile:
        checked = check(ndjson)
        with file.open("a") as more:
            more.write('{"time": 99, "metric": "late", "value": 1}\n')
        return checked

    monkeypatch.setattr(NdjsonFile, "check", check_and_change)
    done = lakehead("send", file, "--to", url_of(server), "--agent", AGENT, "--token-file", token, "--batch", "10")

    assert (done.code, done.out) == (2, "")
    assert "was changed while it was sent" in done.err
    assert len(frames(server)) == 1, "the first batch had not changed"


def test_what_stops_it_is_told_with_how_far_it_came(
    lakehead: Lakehead, server: Running, token: Path, tmp_path: Path
) -> None:
    words = ("--to", url_of(server), "--agent", AGENT, "--token-file", token, "--boot", "b", "--batch", "10")
    one, two = written(tmp_path / "one", 20), tmp_path / "two"
    assert lakehead("send", one, *words).code == 0
    two.write_text(one.read_text().replace('"value": 19', '"value": 7'))

    done = lakehead("send", two, *words)

    assert (done.code, done.out) == (1, "")
    told, error = done.err.splitlines()
    assert told == "10 of 20 records accepted (50 %)"
    assert error.startswith("lakehead: The batch 10-19 of the agent 'agent-a', boot 'b', was refused: Another frame")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--token-file", "no-such-file"), "The token in no-such-file cannot be read"),
        ((), "There is no token"),
        (("--to", "nonsense"), "The gateway's URL nonsense must be like"),
        (("--agent", "agent-b"), "The token is of the agent 'agent-a', and the frame of 'agent-b'"),
        (("--ca-file", "no-such-file", "--to", "https://127.0.0.1:1"), "The certificates in no-such-file cannot"),
    ],
)
def test_an_option_that_is_wrong_is_one_sentence(
    lakehead: Lakehead, server: Running, token: Path, tmp_path: Path, words: tuple[str, ...], message: str
) -> None:
    file = written(tmp_path / "samples.ndjson", 1)
    given = ("--token-file", str(token)) if words and "--token-file" not in words else ()

    done = lakehead("send", file, "--to", url_of(server), "--agent", AGENT, *given, *words)

    assert (done.code, done.out) == (2, "")
    assert message in done.err
    assert frames(server) == {}


def test_a_file_that_is_not_there_is_one_sentence(lakehead: Lakehead, token: Path) -> None:
    done = lakehead("send", "missing", "--to", "http://127.0.0.1:1", "--agent", AGENT, "--token-file", token)

    assert (done.code, done.err) == (2, "lakehead: missing cannot be read (No such file or directory).\n")


def test_an_empty_file_needs_no_gateway(lakehead: Lakehead, token: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("\n\n")

    done = lakehead("send", tmp_path / "empty", "--to", "http://127.0.0.1:1", "--agent", AGENT, "--token-file", token)

    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("0 records accepted in 0 batches")


def test_the_token_may_be_in_the_environment() -> None:
    assert gateway_token({"LAKEHEAD_TOKEN": "secret"}) == "secret"
    assert gateway_token({"LAKEHEAD_TOKEN": ""}) is None


def test_progress_is_told_every_few_seconds() -> None:
    told: list[str] = []
    clock = SleepingClock()
    progress = _Progress(4_000, clock, told.append)

    for _ in range(4):
        progress.accepted(1_000)
        clock.seconds += PROGRESS_SECONDS / 2

    assert told == ["3,000 of 4,000 records accepted (75 %)"]


@pytest.mark.slow
def test_the_command_as_people_start_it_takes_its_token_from_the_environment(server: Running, tmp_path: Path) -> None:
    file = written(tmp_path / "samples.ndjson")
    done = subprocess.run(
        [LAKEHEAD, "send", file, "--to", url_of(server), "--agent", AGENT],
        env={"PATH": "", "HOME": "/nonexistent", "LAKEHEAD_TOKEN": TOKEN},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("25 records accepted in 1 batch, 0 duplicates")
