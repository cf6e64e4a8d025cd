"""Every event is one line of JSON, and no log can stop a load."""

import io
import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pydantic import ValidationError

from lakehead.errors import Misconfigured
from lakehead.run.config.runtime_config import LoggingConfig
from lakehead.run.observe.json_lines import StructuredLogSubscriber
from lakehead.run.observe.levels import Level
from lakehead.telemetry.events import Heartbeat, PhaseMarked, RunDone, TablePlanned, TableStep
from tests.unit.run.observe.fake_run import FakeRun

BEAT = Heartbeat(total=2, done=1, failed=0)


def read(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def emit_all(run: FakeRun) -> None:
    """Events of every level."""
    run.start(1)
    run.begin("shop.orders")
    run.reach("shop.orders", 1, 1, 5)
    run.emit(BEAT)
    run.emit(PhaseMarked(phase="raw", state="done", rows=5), "shop.orders")
    run.emit(PhaseMarked(phase="intermediate", state="failed"), "shop.orders")
    run.fail("shop.orders", "The mirror is away.")
    run.emit(RunDone(done=0, skipped=0, failed=1, seconds=5))


def test_every_event_is_one_valid_line_with_the_same_fields_in_the_same_order(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    with StructuredLogSubscriber(sink=str(path), level=Level.DEBUG) as log:
        run = FakeRun(log)
        emit_all(run)

    lines = read(path)
    assert len(lines) == len(run.received) == 9
    assert {tuple(line) for line in lines} == {("at", "run", "table", "job_group", "kind", "level", "payload")}
    assert lines[0] == {
        "at": "2026-03-01T12:00:00.123456+00:00",
        "run": "run-7",
        "table": None,
        "job_group": None,
        "kind": "run_start",
        "level": "info",
        "payload": {"pipeline": "shop", "tables": 1, "load_date": "2026-03-01"},
    }
    assert (lines[3]["table"], lines[3]["job_group"]) == ("shop.orders", "run-7/shop.orders")


@pytest.mark.parametrize(
    ("level", "kinds"),
    [
        (Level.DEBUG, ["run_start", "table_start", "table_planned", "table_progress", "heartbeat", "phase"]),
        (Level.INFO, ["run_start", "table_start", "table_planned", "heartbeat", "phase"]),
        (Level.WARNING, []),
        (Level.ERROR, []),
    ],
)
def test_what_matters_less_than_the_level_is_not_written(level: Level, kinds: list[str]) -> None:
    stream = io.StringIO()
    emit_all(FakeRun(StructuredLogSubscriber(stream=stream, level=level)))

    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    errors = ["phase", "table_failed"]
    assert [line["kind"] for line in lines] == kinds + errors + (["run_done"] if level < Level.ERROR else [])
    assert [line["level"] for line in lines if line["kind"] in errors][-2:] == ["error", "error"]


def test_what_nobody_expects_in_an_event_is_still_one_line_of_ascii() -> None:
    stream = io.StringIO()
    run = FakeRun(StructuredLogSubscriber(stream=stream))
    planner = {"estimated": float("nan"), "at": datetime(2026, 3, 1, tzinfo=UTC), "by": object}

    run.emit(TablePlanned(slices=1, done=0, resumed=False, planner=planner), "größe\u2028\n\ud800")

    [line] = stream.getvalue().splitlines()
    assert line.isascii()
    assert json.loads(line)["table"] == "größe\u2028\n\ud800"


def test_lines_are_there_at_once_and_earlier_ones_stay(tmp_path: Path) -> None:
    path = tmp_path / "not" / "there" / "yet.jsonl"
    for run in ("first", "second"):
        with StructuredLogSubscriber(run=run, sink=str(path)) as log:
            FakeRun(log, run=run).start(1)
            assert read(path)[-1]["run"] == run

    assert [line["run"] for line in read(path)] == ["first", "second"]


def test_in_a_folder_every_run_has_a_file_of_its_own(tmp_path: Path) -> None:
    for run, sink in (("run-7", f"{tmp_path}"), ("a/b é", f"{tmp_path}/"), ("c", f"file://{tmp_path}/new%20one/")):
        with StructuredLogSubscriber(run=run, sink=sink) as log:
            FakeRun(log, run=run).start(1)

    files = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.jsonl"))
    assert files == ["a_b__.jsonl", "new one/c.jsonl", "run-7.jsonl"]


def test_a_sink_on_another_machine_is_refused_and_its_password_not_repeated() -> None:
    sinks = ("hdfs://me:hunter2@name/logs", "hdfs:/logs", "s3://", "file://far/logs", "file:", "LOGS:x")
    for sink in sinks:
        with pytest.raises(ValidationError, match="must be a path, a file: URL, or s3://"):
            LoggingConfig.model_validate({"sink": sink})
        with pytest.raises(Misconfigured, match=r"Set runtime\.logging\.sink to a path, a file: URL") as refused:
            StructuredLogSubscriber(sink=sink)
        assert "hunter2" not in str(refused.value)


def test_a_sink_that_cannot_be_opened_is_refused_when_the_log_is_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(Misconfigured, match="cannot be written"):
        StructuredLogSubscriber(sink=f"{tmp_path}/file/log.jsonl")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a disk that is always full")
def test_a_full_disk_stops_nothing_and_is_reported_once() -> None:
    warnings: list[str] = []
    stream = io.StringIO()
    with StructuredLogSubscriber(sink="/dev/full", stream=stream, warn=warnings.append) as log:
        run = FakeRun(log)
        run.start(1)
        run.emit(TableStep(step="not logged"), "shop.orders")
        run.begin("shop.orders")

    assert log.dropped == 3
    assert warnings == [
        "The log /dev/full cannot be written (No space left on device). The run continues; lines are lost until it can."
    ]
    assert len(stream.getvalue().splitlines()) == 3, "the other output has them all"


def test_a_stream_that_was_closed_stops_nothing_and_is_reported_once() -> None:
    warnings: list[str] = []
    stream = io.StringIO()
    log = StructuredLogSubscriber(stream=stream, warn=warnings.append)
    stream.close()

    FakeRun(log).begin("shop.orders")

    assert log.dropped == 2
    assert len(warnings) == 1


CUT = """
import resource, sys
from datetime import datetime, UTC
from lakehead.run.observe.json_lines import StructuredLogSubscriber
from lakehead.telemetry.emitter import EventEnvelope
from lakehead.telemetry.events import Heartbeat

warnings = []
log = StructuredLogSubscriber(sink=sys.argv[1], level=10, warn=warnings.append)
for number, limit in enumerate([10**6, 300, 300, 10**6]):
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    at = datetime(2026, 3, 1, tzinfo=UTC)
    log(EventEnvelope(id="", at=at, run="run", table=None, event=Heartbeat(total=number, done=0, failed=0)))
print(log.dropped, len(warnings))
"""


@pytest.mark.slow
def test_a_line_that_was_cut_spoils_no_other(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"

    ran = subprocess.run([sys.executable, "-c", CUT, path], capture_output=True, text=True, check=True, timeout=60)

    assert ran.stdout.split() == ["2", "1"]
    first, cut, last = path.read_text().splitlines()
    assert json.loads(first)["payload"]["total"] == 0
    assert json.loads(last)["payload"]["total"] == 3
    assert len(first) + len(cut) + 1 == 300


def test_a_log_that_a_killed_run_left_within_a_line_goes_on_with_a_line_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text('{"at": "2026')
    with StructuredLogSubscriber(sink=str(path)) as log:
        FakeRun(log).start(1)

    left, line = path.read_text().splitlines()
    assert left == '{"at": "2026'
    assert json.loads(line)["kind"] == "run_start"
