"""`lakehead progress`: what logs say, live or as a summary, whatever has become of the files."""

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from lakehead.errors import Unavailable
from lakehead.run.observe.json_lines import StructuredLogSubscriber, json_line
from lakehead.run.observe.levels import Level
from lakehead.run.observe.stack_hash import stack_hash
from lakehead.run.progress_log import LogFile, Logs, NotAnEvent, parse_line
from lakehead.run.progress_view import live_view, summary_json, summary_lines
from lakehead.run.run_progress import Runs
from lakehead.telemetry.events import (
    Heartbeat,
    RunDone,
    TableDone,
    TableFailed,
    TableReconciled,
    TableSkipped,
    TableStale,
    TableStart,
)
from tests.unit.run.observe.fake_run import DAY, FakeRun
from tests.unit.run.queue_support import Done

LAKEHEAD = Path(sys.executable).with_name("lakehead")
Lakehead = Callable[..., Done]
WITHOUT_JAVA = {"PATH": "/nowhere", "JAVA_HOME": "/nowhere", "TERM": "xterm-256color", "COLUMNS": "120", "LINES": "30"}


@contextmanager
def logged(path: Path, run: str = "run-7") -> Iterator[FakeRun]:
    """A run whose events the real subscriber writes to a file."""
    with StructuredLogSubscriber(run=run, sink=str(path), level=Level.DEBUG) as log:
        yield FakeRun(log, run=run)


def refuse(message: str) -> None:
    raise Unavailable(message)


def raised(message: str) -> Exception:
    with pytest.raises(Unavailable) as refused:
        refuse(message)
    return refused.value


def fail(run: FakeRun, table: str, error: Exception) -> None:
    kind, text = type(error).__name__, str(error)
    run.emit(TableFailed(error=text, error_kind=kind, stack_hash=stack_hash(error), seconds=1), table)


def hundred_tables(path: Path) -> None:
    with logged(path) as run:
        run.start(100)
        for number in range(100):
            name = f"public.t{number}"
            run.emit(TableStart(mode="full", load_date=DAY, reload=False), name, after=0.1)
            if number in {10, 50, 90}:
                fail(run, name, raised(f"The server of {name} does not answer."))
            else:
                run.emit(TableDone(rows=10, seconds=1.0), name, after=0.1)
        run.emit(RunDone(done=97, skipped=0, failed=3, seconds=25.0))


def test_of_100_tables_3_failures_of_one_kind_are_one_group(lakehead: Lakehead, tmp_path: Path) -> None:
    hundred_tables(log := tmp_path / "log.jsonl")

    shown, document = lakehead("progress", log), lakehead("progress", log, "--json").json

    [group] = document["failures"]
    assert (group["count"], group["tables"]) == (3, ["public.t10", "public.t50", "public.t90"])
    assert document["runs"][0]["counts"] == {
        "total": 100,
        "done": 97,
        "skipped": 0,
        "failed": 3,
        "running": 0,
        "waiting": 0,
    }
    assert (document["runs"][0]["state"], document["runs"][0]["rows"]) == ("failed", 970)
    assert (shown.code, shown.err) == (0, "")
    assert f"3 x Unavailable [{group['stack_hash']}]: public.t10, public.t50, public.t90" in shown.out
    assert shown.out.count("does not answer") == 1


def test_failures_of_several_runs_and_of_other_kinds_are_told_apart(lakehead: Lakehead, tmp_path: Path) -> None:
    for number in range(3):
        with logged(tmp_path / f"{number}.jsonl", run=f"run-{number}") as run:
            run.start(2)
            fail(run, "a", raised("No answer."))
            fail(run, "b", ValueError("other"))
            run.emit(RunDone(done=0, skipped=0, failed=2, seconds=1))

    groups = lakehead("progress", tmp_path, "--json").json["failures"]

    assert sorted((each["error_kind"], each["count"], each["runs"], each["tables"]) for each in groups) == [
        ("Unavailable", 3, 3, ["a"]),
        ("ValueError", 3, 3, ["b"]),
    ]


@pytest.mark.parametrize(
    "line",
    [
        b"Exception in thread main",
        b"{}",
        b"[1]",
        b'"x"',
        b"\xff\xfe",
        b'{"at": "2026-01-01T00:00:00+00:00", "run": 7, "table": null, "kind": "run_done", "payload": {}}',
        b'{"at": "2026-01-01T00:00:00+00:00", "run": "a", "table": null, "kind": "run_done", "payload": {}}',
        b"[" * 100_000,
    ],
)
def test_a_line_that_no_run_has_written_is_no_event(line: bytes) -> None:
    with pytest.raises(NotAnEvent):
        parse_line(line)


def test_every_event_of_a_run_is_read_as_it_was_written() -> None:
    run = FakeRun()
    run.start(1)
    run.begin("a", slices=3)
    run.reach("a", 2, 3, rows=5)
    run.emit(TableSkipped(reason="nothing new"), "a")
    run.emit(Heartbeat(total=1, done=1, failed=0, rows=5))

    read = [parse_line(json_line(each).encode()) for each in run.received]

    assert [(each.at, each.run, each.table, each.event) for each in read if each] == [
        (each.at, each.run, each.table, each.event) for each in run.received
    ]


def test_an_event_of_a_newer_version_is_passed_over() -> None:
    line: dict[str, object] = {
        "at": "2026-01-01T00:00:00Z",
        "run": "a",
        "table": None,
        "kind": "table_levitates",
        "payload": {},
    }

    assert parse_line(json.dumps(line).encode()) is None


def test_garbage_is_counted_and_a_torn_last_line_too(lakehead: Lakehead, tmp_path: Path) -> None:
    hundred_tables(log := tmp_path / "log.jsonl")
    log.write_bytes(b"garbage\n" + log.read_bytes() + b'{"at": "2026-0')

    done = lakehead("progress", log)

    assert "2 lines could not be read as events and were passed over." in done.out
    assert lakehead("progress", log, "--json").json["unreadable_lines"] == 2


def line_of(number: int) -> bytes:
    run = FakeRun(run=f"run-{number}")
    run.start(number)
    return json_line(run.received[0]).encode() + b"\n"


def read(file: LogFile) -> list[str]:
    return [each.run for each in file.read()]


def test_a_growing_log_is_read_on_and_a_torn_line_waits_for_its_end(tmp_path: Path) -> None:
    log = tmp_path / "log"
    file, first, second = LogFile(log), line_of(1), line_of(2)

    assert read(file) == []  # not there yet
    log.write_bytes(first + second[:20])
    assert read(file) == ["run-1"]
    with log.open("ab") as more:
        more.write(second[20:])
    assert read(file) == ["run-2"]
    assert (read(file), file.garbage) == ([], 0)
    file.close()


def test_a_rotated_log_is_read_to_its_end_and_then_the_new_one(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(line_of(1))
    file = LogFile(log)
    assert read(file) == ["run-1"]

    with log.open("ab") as more:
        more.write(line_of(2))
    log.rename(tmp_path / "log.1")
    assert read(file) == ["run-2"]  # moved, and the new one is not there yet
    with (tmp_path / "log.1").open("ab") as late:
        late.write(line_of(3))
    log.write_bytes(line_of(4))

    assert read(file) == ["run-3", "run-4"]
    file.close()


def test_a_log_that_was_cut_off_is_read_from_its_beginning(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(line_of(1) + line_of(2))
    file = LogFile(log)
    assert read(file) == ["run-1", "run-2"]

    log.write_bytes(line_of(3))  # the same file

    assert read(file) == ["run-3"]
    file.close()


def test_new_logs_of_a_folder_are_found_and_rotated_ones_are_not_read_twice(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(line_of(1))
    with closing(Logs([tmp_path])) as logs:
        assert [each.run for each in logs.read()] == ["run-1"]

        (tmp_path / "a.jsonl").rename(tmp_path / "a.jsonl.1")
        (tmp_path / "a.jsonl").write_bytes(line_of(2))
        (tmp_path / "b.jsonl").write_bytes(line_of(3))

        assert sorted(each.run for each in logs.read()) == ["run-2", "run-3"]
        assert list(logs.read()) == []


@pytest.fixture
def half_done() -> tuple[Runs, datetime]:
    """Two of four tables are done after 20 seconds, one is at its third slice of four."""
    runs = Runs()
    run = FakeRun(runs.add)
    run.start(4)
    for name in ("a", "b"):
        run.emit(TableStart(mode="full", load_date=DAY, reload=False), name, after=0)
        run.emit(TableDone(rows=100, seconds=1), name, after=1)
    run.begin("orders", slices=4)
    run.reach("orders", 3, 4, rows=900)
    run.emit(Heartbeat(total=4, done=2, failed=0), after=7)
    run.emit(Heartbeat(total=4, done=2, failed=0), after=10)
    return runs, run.received[-1].at


def rendered(runs: Runs, now: datetime, width: int = 120, height: int = 30) -> str:
    console = Console(width=width, height=height, color_system=None, highlight=False, markup=False)
    with console.capture() as captured:
        console.print(live_view(runs, now, width, height))
    return captured.get()


def test_the_view_shows_slices_rates_and_what_is_left(half_done: tuple[Runs, datetime]) -> None:
    runs, now = half_done

    [about_run, about_tables, about_table] = rendered(runs, now).splitlines()

    assert about_run == "run run-7 of shop for 2026-03-01: running for 0:21, about 0:12 left"  # 2.5 of 4 tables
    assert about_tables == "4 tables: 2 done, 1 running, 1 waiting; 1,100 rows, 52/s"
    words = ["orders", "reading", "3", "of", "4", "900", "rows", "50/s", "0:18", "0:18", "left"]
    assert [word for word in about_table.split() if word.isascii()] == words


def test_a_run_without_heartbeats_is_not_shown_as_running(half_done: tuple[Runs, datetime]) -> None:
    runs, last = half_done

    assert "running for" in rendered(runs, last + timedelta(seconds=29))
    silent = rendered(runs, last + timedelta(seconds=31))
    assert f"no heartbeat since {last:%Y-%m-%d %H:%M:%S} UTC, most likely killed" in silent
    assert "left" not in silent
    [run] = runs.all()
    assert run.state(last + timedelta(seconds=31)) == "silent"
    assert any("no heartbeat since" in line for line in summary_lines(runs, last + timedelta(days=1), colour=False))


def test_a_comparison_with_the_source_is_no_run_that_was_killed(lakehead: Lakehead, tmp_path: Path) -> None:
    hundred_tables(log := tmp_path / "log.jsonl")
    with logged(log, run="recon-1") as run:
        run.emit(TableReconciled(outcome="different", differences={"missing": 1}, seconds=1.0), "public.t1")

    done = lakehead("progress", log, "--json")

    assert [(run["run"], run["state"]) for run in done.json["runs"]] == [("run-7", "failed")]
    assert done.json["unreadable_lines"] == 0


def test_a_stale_table_that_has_not_started_is_not_running() -> None:
    runs = Runs()
    run = FakeRun(runs.add)
    run.start(3)
    run.emit(TableStale(when="start", by="landing", fresh_at=None, seconds=9.0, max_seconds=1.0), "a")
    run.begin("b")

    counts = runs.all()[0].status.counts()

    assert (counts.running, counts.waiting) == (1, 2)


def test_what_is_left_is_unknown_for_a_silent_run_and_never_negative(half_done: tuple[Runs, datetime]) -> None:
    runs, last = half_done

    def told(now: datetime) -> dict[str, Any]:
        document: Any = summary_json(runs, now, garbage=0)
        [run] = document["runs"]
        return dict(run)

    silent, early = told(last + timedelta(days=1)), told(last - timedelta(days=1))
    assert (silent["state"], silent["seconds_left"], silent["seconds"]) == ("silent", None, 21.0)
    assert (early["state"], early["seconds_left"], early["seconds"]) == ("running", 0.0, 0.0)
    assert "-" not in rendered(runs, last - timedelta(days=1)).replace("run-7", "").replace("2026-03-01", "")


@pytest.mark.parametrize(("slice_", "slices"), [(9, 4), (-3, 4), (1, -1), (2, 0)])
def test_slices_that_cannot_be_do_not_show_nonsense(slice_: int, slices: int) -> None:
    runs = Runs()
    run = FakeRun(runs.add)
    run.start(2)
    run.begin("a", slices=4)
    run.reach("a", slice_, slices, rows=5)

    [found] = runs.all()

    left = found.seconds_left(run.received[-1].at)
    assert left is None or 0 <= left <= 10
    rendered(runs, run.received[-1].at)


@pytest.mark.slow  # processes of its own
@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
@pytest.mark.parametrize("options", [[], ["--json"], ["--follow", "--until-done"]])
def test_what_the_output_cannot_encode_ends_nothing(tmp_path: Path, encoding: str, options: list[str]) -> None:
    with logged(log := tmp_path / "log.jsonl") as run:
        run.start(1)
        fail(run, "a", raised("No answer from Zürich ☃."))
        run.emit(RunDone(done=0, skipped=0, failed=1, seconds=1.0))

    done = subprocess.run(
        [LAKEHEAD, "progress", log, *options],
        env={**WITHOUT_JAVA, "PYTHONIOENCODING": encoding},
        capture_output=True,
        check=False,
        timeout=60,
    )

    assert (done.returncode, done.stderr) == (len(options) // 2, b"")
    assert b"No answer from Z" in done.stdout


@pytest.mark.parametrize(("width", "height"), [(20, 3), (40, 5), (80, 24), (200, 60)])
def test_the_view_fits_the_terminal(width: int, height: int) -> None:
    runs = Runs()
    run = FakeRun(runs.add)
    run.start(200)
    for number in range(100):
        run.begin(f"public.a_rather_long_name_of_a_table_{number}", slices=9)
    for number in range(10):
        run.emit(TableFailed(error="x" * 500, error_kind="E", stack_hash=f"{number}", seconds=1), f"f{number}")

    lines = rendered(runs, run.received[-1].at, width, height).splitlines()

    assert len(lines) <= height
    assert all(len(line) <= width for line in lines)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.jsonl"], "There is no log nowhere.jsonl."),
        (["."], "has no logs (*.jsonl)"),
        ([".", "--json", "--follow"], "--json is for a summary"),
        ([".", "--until-done"], "--until-done is for --follow"),
    ],
)
def test_wrong_input_is_one_sentence(
    lakehead: Lakehead, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)

    done = lakehead("progress", *arguments)

    assert (done.code, done.out) == (2, "")
    assert message in done.err


def test_help_shows_an_example(lakehead: Lakehead) -> None:
    assert "lakehead progress logs/shop.jsonl --follow" in " ".join(lakehead("progress", "--help").out.split())


WRITER = """
import sys, threading
from datetime import date
from lakehead.clock import SystemClock
from lakehead.ids import RandomIds
from lakehead.run.observe.heartbeat import HeartbeatEmitter
from lakehead.run.observe.json_lines import StructuredLogSubscriber
from lakehead.telemetry.emitter import Emitter
from lakehead.telemetry.events import RunStart, TableStart
emitter = Emitter("run-9", SystemClock(), RandomIds(), [StructuredLogSubscriber(sink=sys.argv[1])])
with HeartbeatEmitter(emitter, 0.2):
    emitter.emit(RunStart(pipeline="shop", tables=2, load_date=date(2026, 3, 1)))
    emitter.emit(TableStart(mode="full", load_date=date(2026, 3, 1), reload=False), "public.orders")
    print("ready", flush=True)
    threading.Event().wait()
"""


def until(wanted: str, terminal: int, seen: str = "") -> str:
    """Read a terminal until it has shown some text."""
    deadline = time.monotonic() + 100
    while wanted not in seen:
        assert time.monotonic() < deadline, seen
        if select.select([terminal], [], [], 1)[0]:
            seen += os.read(terminal, 65536).decode(errors="replace")
    return seen


@pytest.mark.slow  # two processes
def test_a_killed_run_is_followed_on_a_terminal_until_its_heartbeat_is_missing(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    run = subprocess.Popen([sys.executable, "-c", WRITER, str(log)], stdout=subprocess.PIPE)
    outside, inside = pty.openpty()
    follower = None
    try:
        assert run.stdout is not None
        assert run.stdout.readline() == b"ready\n"
        follower = subprocess.Popen(
            [LAKEHEAD, "progress", log, "--follow", "--silent-after", "2"], stdout=inside, env=WITHOUT_JAVA
        )
        until("public.orders", outside, until("running for", outside))
        run.send_signal(signal.SIGKILL)
        run.wait()
        until("no heartbeat since", outside)
        follower.send_signal(signal.SIGINT)
        assert follower.wait(60) == 130
    finally:
        for process in (run, follower):
            if process is not None:
                process.kill()
                process.wait()
        if run.stdout is not None:
            run.stdout.close()
        os.close(outside)
        os.close(inside)


@pytest.mark.slow  # a process of its own
def test_followed_lines_end_with_the_run_and_tell_how_it_ended(tmp_path: Path) -> None:
    hundred_tables(log := tmp_path / "log.jsonl")

    done = subprocess.run(
        [LAKEHEAD, "progress", log, "--follow", "--until-done"],
        env=WITHOUT_JAVA,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert (done.returncode, done.stderr) == (1, "")
    assert "100 tables: 97 done, 3 failed" in done.stdout


def test_times_of_a_log_without_a_zone_are_utc() -> None:
    line = json.loads(line_of(1))
    line["at"] = "2026-03-01T00:00:00"

    found = parse_line(json.dumps(line).encode())

    assert found is not None
    assert found.at == datetime(2026, 3, 1, tzinfo=UTC)
