"""`lakehead consume files`: what is printed is what the state has."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from lakehead.ids import RandomIds
from lakehead.run.consume_files import PAGE, files_command
from lakehead.run.consumed_tables import ConsumedTables
from lakehead.state.model import FileOutcome, FileState
from lakehead.state.opening import open_state
from lakehead.state.state import State
from lakehead.storage.memory_store import MemoryStore
from tests.support.state_tools import HOUR, HandClock

TABLES = {"raw.files": "uuid-1", "raw.more": "uuid-2"}


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def state(tmp_path: Path, clock: HandClock) -> Iterator[State]:
    with open_state(f"sqlite:///{tmp_path}/state.db", clock, RandomIds()) as opened:
        yield opened


@pytest.fixture
def files(state: State, clock: HandClock) -> Callable[..., Result]:
    @contextmanager
    def open_tables(_config: Path, _pipeline: str | None) -> Iterator[ConsumedTables]:
        yield ConsumedTables(state=state, store=MemoryStore(clock=clock), tables=TABLES)

    app = typer.Typer()
    app.command("files")(files_command(open_tables))
    return lambda *arguments: CliRunner().invoke(app, ["files.json", *arguments])


def test_every_file_is_printed_as_the_state_has_it(files: Callable[..., Result], state: State) -> None:
    state.files.record(
        "uuid-1", [FileOutcome(unit="a", state=FileState.LANDED, rows=1_000, bytes=2_000, rescued_rows=3, snapshot=7)]
    )
    state.files.record("uuid-2", [FileOutcome(unit="b", state=FileState.FAILED, tries=2, error="line 1, column 2")])

    printed, shown = json.loads(files("--json").stdout)["files"], files().stdout

    stored = [asdict(record) for uuid in TABLES.values() for record in state.files.list(uuid)]
    names = {uuid: name for name, uuid in TABLES.items()}
    for record in stored:
        for moment in ("first_seen", "changed_at"):
            record[moment] = record[moment].isoformat()
        record["table"] = names[record["table"]]
    assert printed == stored
    assert "line 1, column 2" in shown
    assert "1,000" in shown
    assert shown.splitlines()[-1] == "2 files"


def test_files_are_chosen_by_table_state_time_and_name(
    files: Callable[..., Result], state: State, clock: HandClock
) -> None:
    state.files.record("uuid-1", [FileOutcome(unit="old", state=FileState.DEAD_LETTER)])
    clock.at += 2 * HOUR
    state.files.record("uuid-1", [FileOutcome(unit="new", state=FileState.DEAD_LETTER)])
    state.files.record("uuid-2", [FileOutcome(unit="fine", state=FileState.LANDED)])

    def units(*arguments: str) -> list[str]:
        return [each["unit"] for each in json.loads(files(*arguments, "--json").stdout)["files"]]

    assert units() == ["old", "new", "fine"]
    assert units("--table", "raw.more") == ["fine"]
    assert units("--state", "dead-letter") == ["old", "new"]
    assert units("--state", "dead-letter", "--since", "1h") == ["new"]
    assert units("--file", "new") == ["new"]
    assert units("--file", "old", "--since", "1h") == []
    assert units("--file", "new", "--state", "landed") == []
    assert units("--limit", "1") == ["old", "fine"]
    assert files("--table", "raw.more").stdout.splitlines()[-1] == "1 file"


def test_a_state_that_no_file_comes_to_is_not_offered(files: Callable[..., Result]) -> None:
    assert files("--state", "skipped").exit_code == 2


def test_more_than_a_page_is_printed_once(files: Callable[..., Result], state: State) -> None:
    units = {f"unit {number}" for number in range(2 * PAGE + 1)}
    state.files.record("uuid-1", [FileOutcome(unit=unit, state=FileState.LANDED) for unit in units])

    printed = [each["unit"] for each in json.loads(files("--json", "--limit", "100000").stdout)["files"]]

    assert len(printed) == len(units)
    assert set(printed) == units


def test_help_has_an_example(files: Callable[..., Result]) -> None:
    assert "Example: lakehead consume files files.json" in files("--help").stdout
