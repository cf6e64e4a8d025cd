"""What a transaction comes to, and how often it is tried."""

import sqlite3
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError, OperationalError

from lakehead.errors import DiskFull, Unavailable
from lakehead.ids import RandomIds
from lakehead.retry import Backoff
from lakehead.state.database import Contended
from lakehead.state.faults import Fault, fault_of, first_line
from lakehead.state.opening import StateSettings, open_state
from lakehead.state.state import State
from tests.support.state_tools import NOON, HandClock

TRIES = 4


@pytest.fixture
def pauses() -> list[float]:
    return []


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def state(tmp_path: Path, pauses: list[float], clock: HandClock) -> Iterator[State]:
    settings = StateSettings(backoff=Backoff(attempts=TRIES, first_seconds=1, cap_seconds=2))
    url = f"sqlite:///{tmp_path}/state.db"
    with open_state(url, clock, RandomIds(), settings=settings, pause=pauses.append) as opened:
        yield opened


def test_contention_is_tried_again_with_pauses_and_ends_in_unavailable(state: State, pauses: list[float]) -> None:
    calls: list[None] = []

    def work(_: Connection) -> None:
        calls.append(None)
        raise Contended

    said = r"in 4 attempts \(other transactions keep changing the same rows\). Nothing was changed"
    with pytest.raises(Unavailable, match=said):
        state.database.write(work)

    assert len(calls) == TRIES
    assert len(pauses) == TRIES - 1
    assert all(0 < pause <= 2 for pause in pauses)


def test_an_error_of_ours_rolls_back_and_is_raised_as_it_is(state: State) -> None:
    def work(connection: Connection) -> None:
        connection.exec_driver_sql("DELETE FROM lakehead_schema")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        state.database.write(work)

    assert state.database.read(
        lambda connection: connection.exec_driver_sql("SELECT version FROM lakehead_schema").scalar()
    )


def test_a_wrong_statement_is_raised_without_the_rows_values(state: State) -> None:
    with pytest.raises(OperationalError) as caught:
        state.database.write(
            lambda connection: connection.exec_driver_sql("SELECT * FROM nothing WHERE a = ?", ("pa55",))
        )
    assert "pa55" not in str(caught.value)


def test_moments_only_grow_even_if_the_clock_stands_still_or_is_set_back(state: State, clock: HandClock) -> None:
    first = state.now()
    second = state.now()
    clock.at -= timedelta(days=1)
    third = state.now()
    clock.at = NOON + timedelta(days=1)

    assert first < second < third < state.now() == clock.at


def test_a_disk_that_is_full_is_told_at_once_and_is_not_the_databases_fault(state: State, pauses: list[float]) -> None:
    def fill(connection: Connection) -> None:
        connection.exec_driver_sql("PRAGMA max_page_count = 1")  # it becomes what there is, so that none can be added
        connection.exec_driver_sql("CREATE TABLE more AS SELECT randomblob(100000)")

    with pytest.raises(DiskFull, match=r"The disk of the state database sqlite:///.*/state\.db is full \(database or"):
        state.database.write(fill)

    assert pauses == []


class FromPostgres(Exception):
    def __init__(self, text: str, sqlstate: str | None = None) -> None:
        super().__init__(text)
        self.sqlstate = sqlstate


class FromMySQL(FromPostgres):
    def __init__(self, number: int, text: str) -> None:
        super().__init__(text, "HY000")
        self.args = (number, text)


def from_sqlite(name: str) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("trouble")
    error.sqlite_errorname = name
    return error


@pytest.mark.parametrize(
    ("cause", "fault"),
    [
        (FromPostgres("deadlock", "40P01"), Fault.CONTENDED),
        (FromPostgres("serialization", "40001"), Fault.CONTENDED),
        (FromPostgres("lock timeout", "55P03"), Fault.LOCKED),
        (FromPostgres("admin shutdown", "57P01"), Fault.LOST),
        (FromPostgres("statement timeout", "57014"), Fault.LOCKED),
        (FromPostgres("disk full", "53100"), Fault.FULL),
        (FromPostgres("out of memory", "53200"), Fault.LOST),
        (FromPostgres("no right", "42501"), Fault.REFUSED),
        (FromPostgres("no table", "42P01"), Fault.OTHER),
        (FromPostgres('connection failed: FATAL:  password authentication failed for user "u"'), Fault.REFUSED),
        (FromPostgres("connection failed: FATAL:  the database system is starting up"), Fault.LOST),
        (FromPostgres("connection failed: FATAL:  sorry, too many clients already"), Fault.LOST),
        (FromPostgres("connection failed: Connection refused"), Fault.LOST),
        (FromMySQL(1213, "Deadlock"), Fault.CONTENDED),
        (FromMySQL(1205, "Lock wait"), Fault.LOCKED),
        (FromMySQL(2013, "Lost"), Fault.LOST),
        (FromMySQL(1021, "Disk full"), Fault.FULL),
        (FromMySQL(1045, "Access denied"), Fault.REFUSED),
        (FromMySQL(1146, "No such table"), Fault.OTHER),
        (from_sqlite("SQLITE_BUSY"), Fault.LOCKED),
        (from_sqlite("SQLITE_BUSY_SNAPSHOT"), Fault.CONTENDED),
        (from_sqlite("SQLITE_IOERR_WRITE"), Fault.LOST),
        (from_sqlite("SQLITE_FULL"), Fault.FULL),
        (from_sqlite("SQLITE_READONLY_DBMOVED"), Fault.REFUSED),
        (from_sqlite("SQLITE_ERROR"), Fault.OTHER),
    ],
    ids=str,
)
def test_a_drivers_error_means(cause: Exception, fault: Fault) -> None:
    assert fault_of(DBAPIError("SELECT 1", None, cause)) is fault


def test_a_drivers_words_are_said_in_one_line() -> None:
    assert first_line(DBAPIError("SELECT 1", None, FromMySQL(1045, "Access denied"))) == "Access denied"
    assert first_line(DBAPIError("SELECT 1", None, FromPostgres("\n one \n two"))) == "one"
