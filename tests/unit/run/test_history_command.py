"""`lakehead history`: runs, tables, growth and repeated failures, from the state alone."""

import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from lakehead.clock import SystemClock
from lakehead.ids import RandomIds
from lakehead.run.observe.state_events import StateEventSubscriber
from lakehead.state.buffered import BufferedState
from lakehead.state.opening import open_state
from lakehead.telemetry.emitter import Emitter
from lakehead.telemetry.events import RunDone, RunStart, TableDone, TableFailed, TableSkipped, TableStart
from tests.support.state_tools import HandClock
from tests.unit.run.config_files import changed, written
from tests.unit.run.observe.fake_run import DAY
from tests.unit.run.queue_support import Done

LAKEHEAD = Path(sys.executable).with_name("lakehead")
Lakehead = Callable[..., Done]
LONG = "public." + "a_long_name_" * 8


class Runs:
    """Runs whose events the real subscriber writes to a state."""

    def __init__(self, folder: Path) -> None:
        self.url = f"sqlite:///{folder}/state.db"
        self.config = written(folder, changed({("runtime", "state"): {"url": self.url}}))
        self.clock = HandClock()

    def run(self, name: str, rows: dict[str, int | str | None], *, ends: bool = True) -> None:
        """A number of rows is a load that is done, a text one that failed, None one that had nothing to do."""
        self.clock.at += timedelta(hours=1)
        with (
            open_state(self.url, SystemClock(), RandomIds()) as state,
            BufferedState(state, SystemClock()) as buffered,
        ):
            emitter = Emitter(name, self.clock, RandomIds(), [StateEventSubscriber(buffered)], load_date=DAY)
            emitter.emit(RunStart(pipeline="shop", tables=len(rows), load_date=DAY))
            for table, outcome in rows.items():
                emitter.emit(TableStart(mode="scd1", load_date=DAY, reload=False), table)
                self.clock.at += timedelta(seconds=1)
                match outcome:
                    case int():
                        emitter.emit(TableDone(rows=outcome, seconds=1.0, watermark=f"mark-{name}"), table)
                    case str():
                        hashed = f"{len(outcome):012}"
                        failure = TableFailed(error=outcome, error_kind="Unavailable", stack_hash=hashed, seconds=1)
                        emitter.emit(failure, table)
                    case None:
                        emitter.emit(TableSkipped(reason="nothing new"), table)
            if ends:
                failed = sum(isinstance(outcome, str) for outcome in rows.values())
                emitter.emit(RunDone(done=len(rows) - failed, skipped=0, failed=failed, seconds=9.0))
            assert emitter.first_failure is None


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(tmp_path)


@pytest.mark.slow
def test_of_100_tables_3_failures_of_one_kind_are_one_group(lakehead: Lakehead, runs: Runs) -> None:
    bad = {"t10", "t50", "t90"}
    runs.run("first", {f"t{number}": "No answer." if f"t{number}" in bad else 10 for number in range(100)})

    shown, document = lakehead("history", runs.config), lakehead("history", runs.config, "--json").json

    assert (shown.code, shown.err) == (0, "")
    [run] = document["runs"]
    assert (run["tables"], run["done"], run["failed"], run["rows"], run["state"]) == (100, 97, 3, 970, "failed")
    [group] = document["failures"]
    assert (group["count"], group["tables"]) == (3, ["t10", "t50", "t90"])
    assert len(document["tables"]) == 100
    assert shown.out.count("No answer.") == 1


@pytest.mark.slow
def test_growth_compares_with_the_median_of_the_loads_before(lakehead: Lakehead, runs: Runs) -> None:
    for number, rows in enumerate([100, 90, 1000, None, 110, 200]):
        runs.run(f"run-{number}", {"public.orders": rows})

    shown, document = (lakehead("history", runs.config, "--table", "public.orders", *more) for more in ([], ["--json"]))

    loads = document.json["loads"]
    assert [load["usual_rows"] for load in loads] == [None, 100, 95, 100, 100, 105]
    assert loads[-1]["growth"] == pytest.approx(200 / 105)
    assert "+90%" in shown.out.splitlines()[-1]
    assert document.json["tables"][0]["last_watermark"] == "mark-run-5"
    # A limit shows fewer, and compares with the same.
    limited = lakehead("history", runs.config, "--limit", "1", "--json").json
    assert [load["usual_rows"] for load in limited["loads"]] == [105]


@pytest.mark.slow
def test_filters_choose_runs_and_loads(lakehead: Lakehead, runs: Runs) -> None:
    runs.run("old", {"a": 1, "b": "x"})
    middle = runs.clock.at + timedelta(minutes=1)
    runs.run("new", {"a": 2, "b": 3})
    runs.run("killed", {"a": 4}, ends=False)

    def chosen(*options: str) -> tuple[list[str], list[tuple[str, str]]]:
        found = lakehead("history", runs.config, "--json", *options).json
        return [run["run"] for run in found["runs"]], [(load["run"], load["table"]) for load in found["loads"]]

    assert chosen("--failed") == (["old", "killed"], [("old", "b")])
    assert chosen("--since", middle.isoformat()) == (["new", "killed"], [("new", "a"), ("new", "b"), ("killed", "a")])
    assert chosen("--limit", "1") == (["killed"], [("killed", "a")])
    assert chosen("--since", "2999-01-01") == ([], [])
    assert lakehead("history", runs.config, "--since", "2999-01-01").out == "Nothing to show.\n"


def test_a_run_without_an_end_is_not_finished(lakehead: Lakehead, runs: Runs) -> None:
    runs.run("killed-run", {"a": 4}, ends=False)

    lines = lakehead("history", runs.config).out.splitlines()

    assert lines[1].startswith("killed-r")
    assert "not finished" in lines[1]


def test_a_name_too_long_for_the_states_keys_is_whole(lakehead: Lakehead, runs: Runs) -> None:
    runs.run("first", {LONG: 1})

    assert lakehead("history", runs.config, "--table", LONG, "--json").json["loads"][0]["table"] == LONG


@pytest.mark.parametrize(
    ("options", "message"),
    [(["--since", "soon"], "--since must be a date"), (["--table", "nowhere"], "have a table nowhere")],
)
def test_wrong_input_is_one_sentence(lakehead: Lakehead, runs: Runs, options: list[str], message: str) -> None:
    runs.run("first", {"a": 1})

    done = lakehead("history", runs.config, *options)

    assert (done.code, done.out) == (2, "")
    assert message in done.err


def test_a_state_that_is_not_there_is_not_made(lakehead: Lakehead, runs: Runs, tmp_path: Path) -> None:
    done = lakehead("history", runs.config)

    assert (done.code, done.out) == (2, "")
    assert "The first run creates it" in done.err
    assert not (tmp_path / "state.db").exists()


@pytest.mark.slow  # a process of its own
def test_history_needs_no_java(runs: Runs, tmp_path: Path) -> None:
    runs.run("first", {"a": 1})

    done = subprocess.run(
        [LAKEHEAD, "history", runs.config],
        env={"PATH": "/nowhere", "JAVA_HOME": "/nowhere", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert "first" in done.stdout


def test_help_shows_an_example(lakehead: Lakehead) -> None:
    example = "lakehead history conf/shop.json --table public.orders --since 7d"
    assert example in " ".join(lakehead("history", "--help").out.split())
