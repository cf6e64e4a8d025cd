"""On a terminal a run is bars that stay at the bottom, whatever else is printed."""

import codecs
import io
import json
import os
import pty
import subprocess
import sys
import termios
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from rich.console import Console

from lakehead.run.config.runtime_config import LoggingConfig
from lakehead.run.observe.bars import bars
from lakehead.run.observe.display import display_for
from lakehead.run.observe.run_status import RunStatus
from lakehead.telemetry.events import TableSkipped
from tests.unit.run.observe.fake_run import FakeRun, Terminal

ROOT = Path(__file__).parents[4]
OURS = {"lakehead-display", "lakehead-output-capture"}


def drawn(run: FakeRun, status: RunStatus, width: int = 100, height: int = 24) -> list[str]:
    console = Console(file=io.StringIO(), width=width, height=height, color_system=None)
    with console.capture() as captured:
        console.print(bars(status, run.clock.at, width, height))
    return [line.rstrip() for line in captured.get().splitlines()]


def never(ended: threading.Event, _seconds: float) -> bool:
    """Nothing is drawn by time: only events draw."""
    return ended.wait()


class Display:
    """A display on a terminal that is only a text, and what is seen there."""

    def __init__(self, run: FakeRun, wait: Callable[[threading.Event, float], bool] = never) -> None:
        self.stream = io.StringIO()
        self.warnings: list[str] = []
        self.shown = display_for(
            LoggingConfig(), terminal=True, stream=self.stream, clock=run.clock, warn=self.warnings.append, wait=wait
        )
        run.emitter.subscribe(self.shown)

    def lines(self) -> list[str]:
        terminal = Terminal(100)
        terminal.write(self.stream.getvalue())
        return terminal.lines


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> FakeRun:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("LINES", "24")
    monkeypatch.setenv("TERM", "xterm")
    return FakeRun()


def test_tables_that_run_have_a_line_with_all_that_is_known_of_them() -> None:
    status = RunStatus()
    run = FakeRun(status)
    run.start(5)
    run.begin("shop.orders", slices=10)
    run.reach("shop.orders", 6, 10, 120_000, "merging into the mirror")
    run.begin("shop.cities", "full")
    run.begin("shop.items")
    run.fail("shop.items", "The source does not answer.\nStart it.")
    run.begin("shop.a_name_that_is_longer_than_a_quarter_of_the_line", slices=2)
    run.clock.at += timedelta(minutes=2)

    assert drawn(run, status) == [
        "shop.orders                scd1  merging into the…  ━━━━━━        6 of 10  120,000 rows  960/s  2:05",
        "shop.cities                full  planned                                                        2:03",
        "…an_a_quarter_of_the_line  scd1  planned                           1 of 2                       2:00",
        "shop.items failed: The source does not answer. Start it.",
        "5 tables: 1 failed, 3 running, 1 waiting; 120,000 rows, 2:06",
    ]
    assert drawn(run, status, width=60)[0] == "shop.orders      scd1  merging…  6 of 10  120,000 rows  2:05"


@pytest.mark.slow
def test_a_hundred_tables_at_once_fit_and_the_totals_are_seen() -> None:
    status = RunStatus()
    run = FakeRun(status)
    run.start(120)
    for number in range(100):
        run.begin(f"shop.table_{number}")
    for number in range(90, 100):
        run.fail(f"shop.table_{number}", f"Fault {number}.")

    for height in (5, 10, 24, 60, 200):
        lines = drawn(run, status, height=height)
        assert len(lines) < max(height, 6)
        assert lines[-1].startswith("120 tables: 10 failed, 90 running, 20 waiting; ")
        assert lines[-2] == "shop.table_99 failed: Fault 99."
    assert "and 75 tables more" in drawn(run, status, height=24)
    assert all(len(line) <= 60 for line in drawn(run, status, width=60))


@pytest.mark.slow
def test_what_has_ended_scrolls_by_and_the_bars_leave_nothing_behind(run: FakeRun) -> None:
    display = Display(run)
    with display.shown:
        run.start(100)
        for number in range(100):
            run.begin(f"shop.table_{number}", slices=3)
            if number > 3:
                run.finish(f"shop.table_{number - 4}", number)
        run.emit(TableSkipped(reason="nothing new"), "shop.table_96")
        run.fail("shop.table_97", "It is away.")
        during = display.lines()

    assert during[-5].startswith("12:03:18 shop.table_97  failed after 0:09: It is away. [")
    assert [line.split()[0] for line in during[-4:-2]] == ["shop.table_98", "shop.table_99"]
    assert during[-2] == "shop.table_97 failed: It is away."
    assert during[-1].startswith("100 tables: 96 done, 1 skipped, 1 failed, 2 running; ")
    after = display.lines()
    assert after == during[:-4], "the bars are gone, the lines stay"
    assert len(after) == 98
    assert after[0] == "12:00:06 shop.table_0  done: 4 rows, in 1:02"
    assert after[-2] == "12:03:17 shop.table_96  skipped: nothing new"


def test_time_draws_too_and_its_thread_ends(run: FakeRun) -> None:
    ticks = iter([False, False])
    drew = threading.Event()

    def wait(ended: threading.Event, seconds: float) -> bool:
        assert 0 < seconds < 1
        if next(ticks, None) is None:
            drew.set()
            return ended.wait()
        return False

    display = Display(run, wait)
    run.start(1)
    run.begin("shop.orders")
    with display.shown:
        assert drew.wait(60)
        assert display.lines()[-1].startswith("1 table: 1 running")

    assert not OURS & {each.name for each in threading.enumerate()}
    assert display.lines() == []


def test_an_exception_leaves_neither_thread_nor_bars_nor_a_hidden_cursor(run: FakeRun) -> None:
    display = Display(run)

    def load() -> None:
        with display.shown:
            run.begin("shop.orders")
            run.fail("shop.orders", "It is away.")
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        load()

    assert not OURS & {each.name for each in threading.enumerate()}
    assert len(display.lines()) == 1
    assert display.stream.getvalue().rindex("\x1b[?25h") > display.stream.getvalue().rindex("\x1b[?25l")


def test_a_terminal_that_is_gone_stops_nothing_and_is_reported_at_the_end(run: FakeRun) -> None:
    display = Display(run)
    with display.shown:
        display.stream.close()
        run.begin("shop.orders")
        run.finish("shop.orders", 5)
        assert display.warnings == []

    assert display.shown.dropped >= 2
    assert len(display.warnings) == 1
    assert display.warnings[0].startswith("The terminal cannot be written")


def test_events_outside_of_the_display_are_counted_and_not_shown(run: FakeRun) -> None:
    display = Display(run)
    run.start(1)
    run.begin("shop.orders")
    run.finish("shop.orders", 5)

    assert display.stream.getvalue() == ""


CHILD = """
import os, subprocess, sys, threading, warnings
from lakehead.clock import SystemClock
from lakehead.ids import RandomIds
from lakehead.run.config.runtime_config import LoggingConfig
from lakehead.run.observe.display import display_for
from lakehead.telemetry.emitter import Emitter
from lakehead.telemetry.events import TableDone, TableStep, TableStart
from datetime import date

print("before", flush=True)
display = display_for(LoggingConfig(), terminal=sys.stderr.isatty(), stream=sys.stderr, clock=SystemClock())
emitter = Emitter("run", SystemClock(), RandomIds(), [display])
with display:
    for table in ("shop.orders", "shop.items", "shop.cities"):
        emitter.emit(TableStart(mode="scd1", load_date=date(2026, 3, 1), reload=False), table)
        emitter.emit(TableStep(step="reading", rows=5, slice=2, slices=4), table)
    os.write(2, b"26/03/01 ERROR Executor: lost\\n\\tat java.lang.Thread.run\\n")
    print("printed", end=" "); print("in parts")
    warnings.warn("something is old")
    subprocess.run(["sh", "-c", "printf 'of a \\\\033[31mchild\\\\033[0m\\\\033[2J\\\\n' >&2"], check=True)
    left = subprocess.Popen(["sh", "-c", "read word"], stdin=subprocess.PIPE)  # it holds our outputs, and outlives us
    emitter.emit(TableDone(rows=9, seconds=1), "shop.items")
    sys.stdin.readline()
    sys.stderr.write("no line break")
print(sorted(each.name for each in threading.enumerate()), flush=True)
left.communicate(b"x")
os.write(2, b"after\\n")
"""


@contextmanager
def on_a_terminal(code: str, stdout: int | None = None) -> Iterator[tuple["subprocess.Popen[str]", int]]:
    """A process whose outputs are a terminal of 30 lines, and the other side of that terminal."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (30, 100))
    environment = {**os.environ, "TERM": "xterm", "PYTHONPATH": f"{ROOT}/src"}
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=theirs if stdout is None else stdout,
        stderr=theirs,
        env=environment,
        text=True,
    ) as process:
        os.close(theirs)
        try:
            yield process, ours
        finally:
            process.kill()
    os.close(ours)


def read(terminal: int, seen: Terminal, until: Callable[[list[str]], bool]) -> None:
    """Read until that is seen, or the terminal is closed."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    while not until(seen.lines):
        try:
            seen.write(decoder.decode(os.read(terminal, 65_536)))
        except OSError:  # the last process that had it open has ended
            return


@pytest.mark.slow
def test_what_others_print_on_the_terminal_stands_whole_above_the_bars() -> None:
    seen = Terminal(100)
    with on_a_terminal(CHILD) as (process, terminal):
        assert process.stdin is not None

        def settled(lines: list[str]) -> bool:
            shown = "\n".join(lines)
            words = ("of a child", "shop.items  done", "in parts", "something is old", "Thread.run")
            return all(word in shown for word in words) and lines[-1].startswith("3 tables: 1 done, 2 running")

        read(terminal, seen, settled)
        during = seen.lines
        process.stdin.write("go on\n")
        process.stdin.flush()
        read(terminal, seen, lambda lines: "after" in lines)
        after = seen.lines
        assert process.wait(60) == 0

    assert [line.split()[0] for line in during[-3:-1]] == ["shop.orders", "shop.cities"]
    above = during[:-3]
    assert above[0] == "before"
    assert "26/03/01 ERROR Executor: lost" in above
    assert any(line.strip() == "at java.lang.Thread.run" for line in above)
    assert "printed in parts" in above
    assert "of a child" in above
    assert any(line.endswith("UserWarning: something is old") for line in above)
    assert not any("reading" in line for line in above), "no bar was left behind"
    assert after[: len(above)] == above
    assert after[len(above) :] == ["no line break", "['MainThread']", "after"]


@pytest.mark.slow
def test_only_what_goes_to_the_terminal_is_overheard(tmp_path: Path) -> None:
    seen = Terminal(100)
    with (tmp_path / "out").open("w") as out, on_a_terminal(CHILD, stdout=out.fileno()) as (process, terminal):
        assert process.stdin is not None
        process.stdin.write("go on\n")
        process.stdin.flush()
        read(terminal, seen, lambda lines: "after" in lines)
        assert process.wait(60) == 0

    assert (tmp_path / "out").read_text() == "before\nprinted in parts\n['MainThread']\n"
    assert "no line break" in seen.lines


FLOOD = """
import os, sys, threading
from lakehead.clock import SystemClock
from lakehead.run.config.runtime_config import LoggingConfig
from lakehead.run.observe.display import display_for

with display_for(LoggingConfig(), terminal=True, stream=sys.stderr, clock=SystemClock()):
    many = [
        threading.Thread(target=lambda: [os.write(2, b"x" * 60 + b"\\n") for _ in range(1000)]) for _ in range(4)
    ]
    for each in many: each.start()
    for each in many: each.join()
os.write(2, b"after\\n")
"""


@pytest.mark.slow
def test_more_than_a_pipe_holds_is_shown_to_the_last_line() -> None:
    seen = Terminal(100)
    with on_a_terminal(FLOOD) as (process, terminal):
        read(terminal, seen, lambda lines: bool(lines) and lines[-1] == "after")
        assert process.wait(60) == 0

    assert seen.lines == ["x" * 60] * 4000 + ["after"]


NO_COLOUR = """
import os, sys
from lakehead.clock import SystemClock
from lakehead.run.config.runtime_config import LoggingConfig
from lakehead.run.observe.display import display_for

with display_for(LoggingConfig(), terminal=True, stream=sys.stderr, clock=SystemClock()):
    os.write(2, b"\\033[" + b"9" * 5000 + b"mno colour\\nnext\\n")
os.write(2, b"after\\n")
"""


@pytest.mark.slow
def test_a_line_whose_colours_cannot_be_read_is_shown_without_them() -> None:
    seen = Terminal(100)
    with on_a_terminal(NO_COLOUR) as (process, terminal):
        read(terminal, seen, lambda lines: bool(lines) and lines[-1] == "after")
        assert process.wait(60) == 0

    shown = "".join(seen.lines)
    assert shown.endswith("mno colournextafter")
    assert "Traceback" not in shown


LOADED = """
import json, sys
import lakehead.run.observe.display, lakehead.run.observe.heartbeat, lakehead.run.observe.stack_hash
import lakehead.run.observe.state_events, lakehead.run.observe.summary
print(json.dumps([name for name in ("pyspark", "py4j", "pyiceberg", "pyarrow") if name in sys.modules]))
"""


@pytest.mark.slow
def test_nobody_who_listens_loads_spark_or_iceberg() -> None:
    ran = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True, timeout=60)

    assert json.loads(ran.stdout) == []
