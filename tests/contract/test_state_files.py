"""The history of files, on every server."""

from datetime import timedelta

from lakehead.state.files import LONGEST_ERROR
from lakehead.state.model import FileOutcome, FileRecord, FileState
from lakehead.state.state import State
from tests.support.state_tools import FIRST, HOUR, MINUTE, NOON, HandClock

pytest_plugins = ["tests.support.state_fixtures"]


def test_a_file_reads_back_as_it_was_recorded(state: State, table: str) -> None:
    outcome = FileOutcome(
        unit="s3://bucket/\N{GRINNING FACE}",
        generation=2,
        state=FileState.LANDED,
        rows=2**40,
        bytes=2**41,
        rescued_rows=3,
        tries=4,
        error="line 3, column 7: a date was expected",
        snapshot=FIRST.snapshot,
    )
    state.files.record(table, [outcome])

    found = state.files.find(table, outcome.unit, generation=2)

    assert found is not None
    assert found == FileRecord(
        table=table,
        unit=outcome.unit,
        generation=2,
        state=FileState.LANDED,
        rows=2**40,
        bytes=2**41,
        rescued_rows=3,
        tries=4,
        first_error=outcome.error,
        last_error=outcome.error,
        snapshot=FIRST.snapshot,
        first_seen=found.first_seen,
        changed_at=found.first_seen,
    )
    assert NOON <= found.first_seen < NOON + MINUTE
    assert state.files.find(table, outcome.unit) is None, "another generation is another file"


def test_the_first_error_and_the_first_time_stay_and_the_last_error_too_until_there_is_another(
    state: State, table: str, clock: HandClock
) -> None:
    for error in (None, "first", "second", None):
        changed = FileOutcome(
            unit="a", state=FileState.FAILED if error else FileState.LANDED, error=error, tries=1, rows=7
        )
        state.files.record(table, [changed])
        clock.at += MINUTE

    found = state.files.find(table, "a")

    assert found is not None
    assert (found.first_error, found.last_error, found.state) == ("first", "second", FileState.LANDED)
    assert found.first_seen < NOON + MINUTE
    assert found.changed_at >= NOON + 3 * MINUTE


def test_the_same_file_twice_in_one_batch_is_one_record(state: State, table: str) -> None:
    failed = FileOutcome(unit="a", state=FileState.FAILED, error="first")
    state.files.record(table, [failed, FileOutcome(unit="a", state=FileState.DEAD_LETTER, error="last")])

    [found] = state.files.list(table)

    assert (found.first_error, found.last_error, found.state) == ("first", "last", FileState.DEAD_LETTER)


def test_a_long_or_strange_error_is_cut_to_what_every_server_stores(state: State, table: str) -> None:
    state.files.record(table, [FileOutcome(unit="a", state=FileState.FAILED, error="\0\ud800" + "x" * 1_000_000)])

    found = state.files.find(table, "a")

    assert found is not None
    assert found.first_error is not None
    assert found.first_error.startswith("\N{REPLACEMENT CHARACTER}?x")
    assert len(found.first_error) == LONGEST_ERROR
    assert found.first_error.endswith("…")


def test_pages_hold_every_file_once_in_the_order_of_their_changes(state: State, table: str, clock: HandClock) -> None:
    for batch in range(3):
        units = [f"unit {number}" for number in range(batch * 1_200, (batch + 1) * 1_200)]
        state.files.record(table, [FileOutcome(unit=unit, state=FileState.LANDED) for unit in units])
        clock.at += MINUTE
    state.files.record(table, [FileOutcome(unit="unit 7", state=FileState.DROPPED)])

    seen: list[FileRecord] = []
    while page := state.files.list(table, after=seen[-1] if seen else None, limit=701):
        seen += page

    assert len(seen) == len({record.unit for record in seen}) == 3_600
    assert [record.changed_at for record in seen] == sorted(record.changed_at for record in seen)
    assert seen[-1].unit == "unit 7"


def test_files_are_listed_by_state_and_by_time(state: State, table: str, clock: HandClock) -> None:
    state.files.record(table, [FileOutcome(unit="old", state=FileState.FAILED)])
    clock.at += HOUR
    state.files.record(table, [FileOutcome(unit="new", state=FileState.FAILED)])
    state.files.record(table, [FileOutcome(unit="fine", state=FileState.LANDED)])
    state.files.record(f"{table[:-1]}-", [FileOutcome(unit="elsewhere", state=FileState.FAILED)])

    def units(**which: object) -> list[str]:
        return [record.unit for record in state.files.list(table, **which)]  # type: ignore[arg-type]

    assert units() == ["old", "new", "fine"]
    assert units(state=FileState.FAILED) == ["old", "new"]
    assert units(state=FileState.FAILED, since=NOON + HOUR) == ["new"]
    assert units(since=NOON + HOUR) == ["new", "fine"]
    assert units(state=FileState.FAILED, limit=1) == ["old"]


def test_old_history_is_forgotten(state: State, table: str, clock: HandClock) -> None:
    state.files.record(table, [FileOutcome(unit=f"old {number}", state=FileState.LANDED) for number in range(1_100)])
    clock.at += HOUR
    state.files.record(table, [FileOutcome(unit="new", state=FileState.LANDED)])

    assert state.files.forget(table, NOON + timedelta(minutes=30)) == 1_100

    assert [record.unit for record in state.files.list(table)] == ["new"]
