"""Processes killed, connections lost and locks held, on every server."""

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import psycopg
import pymysql  # type: ignore[import-untyped]
import pytest
from sqlalchemy import Connection, event, text, update

from lakehead.clock import SystemClock
from lakehead.errors import OutcomeUnknown, Unavailable
from lakehead.ids import RandomIds
from lakehead.state.model import ShardState
from lakehead.state.opening import StateSettings, open_state
from lakehead.state.schema import leases, pointers
from lakehead.state.state import State
from tests.support.costs import Mechanism, add
from tests.support.state_tools import FIRST, HOUR, NOON, PATIENT, SECOND, Child, HandClock, children, landing

pytest_plugins = ["tests.support.state_fixtures"]

# SQLite has no connection to lose, and one writer at a time, which cannot wait for another while it holds anything.
on_a_server = pytest.mark.parametrize("state_server", ["postgresql", "mariadb"], indirect=True, scope="session")

UNITS = [f"unit {n}" for n in range(30)]


@pytest.fixture(scope="module")
def child() -> Iterator[Child]:
    with children(1) as [started]:
        yield started


@pytest.fixture
def other(state_url: str) -> Iterator[State]:
    """The same state over connections of its own, and in a hurry."""
    hurried = StateSettings(lock_timeout=1)
    with open_state(state_url, HandClock(), RandomIds(), settings=hurried) as opened:
        yield opened


def test_a_process_killed_anywhere_in_a_settle_leaves_all_of_it_or_nothing(
    child: Child, state_url: str, state: State
) -> None:
    cuts = 0
    while True:
        table = str(uuid4())
        state.shards.open(table, UNITS[:10], token="us")
        state.shards.acquire(table, UNITS[:10], owner="us", lease_until=NOON + HOUR)
        stopped = child.ask(
            "settle up to",
            url=state_url,
            words=cuts + 1,
            table=table,
            expected=None,
            new=(FIRST.snapshot, FIRST.last_landing),
            units=UNITS,
            spans=[(0, 10), (20, 30)],
            watermark=7,
            who="the killed",
        )
        os.kill(stopped["process"], signal.SIGKILL)
        add(Mechanism.KILLS)
        if stopped["done"]:
            break
        cuts += 1

        assert state.landings.pointer(table) is None, f"killed before word {cuts}"
        assert state.shards.counts(table) == {ShardState.IN_PROGRESS: 10}
        assert state.landings.ranges(table, ["agent/boot"]) == {"agent/boot": ()}
        assert state.progress.watermark(table) is None
        assert state.history.events(table=table) == []
        assert state.landings.settle(table, None, SECOND, [landing(SECOND, *UNITS)]), "and the next one can"

    assert cuts >= 10, "pointer made and held, shards inserted and updated, ranges, watermark, events, pointer, commit"
    assert state.landings.pointer(table) == FIRST
    assert state.shards.counts(table) == {ShardState.COMPLETED: 30}
    assert state.landings.ranges(table, ["agent/boot"]) == {"agent/boot": ((0, 10), (20, 30))}
    assert state.progress.watermark(table) is not None
    assert len(state.history.events(table=table)) == 1


def test_a_lock_that_somebody_keeps_ends_in_one_sentence_and_changes_nothing(
    state: State, other: State, table: str
) -> None:
    state.landings.settle(table, None, FIRST, [])
    holding, enough = threading.Event(), threading.Event()

    def hold(connection: Connection) -> None:
        connection.execute(update(pointers).where(pointers.c.table_uuid == table).values(locked_at=NOON))
        holding.set()
        assert enough.wait(60)

    with ThreadPoolExecutor(1) as pool:
        held = pool.submit(state.database.write, hold)
        assert holding.wait(60)
        try:
            with pytest.raises(Unavailable, match=r"A lock in the state database.*Nothing was changed"):
                other.landings.settle(table, FIRST, SECOND, [])
        finally:
            enough.set()
        held.result(60)
        assert other.landings.pointer(table) == FIRST
        assert other.landings.settle(table, FIRST, SECOND, [])


def test_readers_go_on_while_somebody_writes(state: State, table: str) -> None:
    def write(connection: Connection) -> None:
        connection.execute(update(pointers).where(pointers.c.table_uuid == table).values(locked_at=NOON))
        assert state.landings.pointer(table) == FIRST

    state.landings.settle(table, None, FIRST, [])
    state.database.write(write)


@on_a_server
def test_a_deadlock_is_tried_again_and_both_get_through(state: State, table: str) -> None:
    for kind in ("a", "b"):
        state.leases.take(kind, "nobody", NOON, table=table)
    meeting = threading.Barrier(2, timeout=60)
    through = {kind: threading.Event() for kind in ("a", "b")}
    calls: list[str] = []

    def crossing(first: str, second: str) -> None:
        def work(connection: Connection) -> None:
            calls.append(first)
            if len(calls) > 2:  # else it may come before the other, which has not woken up yet, and they meet again
                assert through[second].wait(60)
            here = leases.c.table_uuid == table
            connection.execute(update(leases).where(here, leases.c.kind == first).values(owner=first))
            if len(calls) <= 2:
                meeting.wait()
            connection.execute(update(leases).where(here, leases.c.kind == second).values(owner=first))

        state.database.write(work)
        through[first].set()

    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(crossing, "a", "b"), pool.submit(crossing, "b", "a")]:
            done.result(60)

    assert len(calls) == 3
    owners = {kind: state.leases.holder(kind, table=table) for kind in ("a", "b")}
    assert owners["a"] == owners["b"] != ("nobody", NOON)


@on_a_server
def test_a_connection_lost_before_the_commit_is_tried_again_over_a_new_one(
    state: State, other: State, table: str
) -> None:
    lost: list[int] = []

    def cut(connection: Connection, *_: object) -> None:
        if not lost:
            lost.append(_cut(connection, other))

    event.listen(state.database.engine, "before_cursor_execute", cut)

    assert state.landings.settle(table, None, FIRST, [landing(FIRST, "a")])
    assert len(lost) == 1
    assert state.landings.pointer(table) == FIRST


@on_a_server
def test_a_connection_lost_before_a_commit_arrived_is_an_unknown_outcome(
    state: State, other: State, table: str
) -> None:
    other.landings.settle(table, None, FIRST, [])

    event.listen(state.database.engine, "commit", lambda connection: _cut(connection, other))
    with pytest.raises(OutcomeUnknown, match="lost during a commit"):
        state.landings.settle(table, FIRST, SECOND, [])

    assert other.landings.pointer(table) == FIRST


@on_a_server
def test_a_connection_lost_after_a_commit_was_done_is_an_unknown_outcome_too(
    state_server: str, state: State, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = {
        "postgresql": psycopg.OperationalError("consuming input failed: server closed the connection unexpectedly"),
        "mariadb": pymysql.OperationalError(2013, "Lost connection to MySQL server during query"),
    }[state_server]
    dialect = state.database.engine.dialect
    commit = dialect.do_commit

    def commit_and_lose_the_answer(connection: object) -> None:
        commit(connection)  # type: ignore[arg-type]  # the driver's own
        raise lost

    state.landings.settle(table, None, FIRST, [])
    with monkeypatch.context() as patched:
        patched.setattr(dialect, "do_commit", commit_and_lose_the_answer)
        with pytest.raises(OutcomeUnknown, match="read the state before"):
            state.landings.settle(table, FIRST, SECOND, [])

    assert state.landings.pointer(table) == SECOND


def test_what_a_killed_process_had_not_flushed_is_telemetry_and_nothing_else(
    child: Child, state_url: str, table: str
) -> None:
    told = child.ask("emit and mark", url=state_url, table=table)
    os.kill(told["process"], signal.SIGKILL)
    add(Mechanism.KILLS)

    with open_state(state_url, SystemClock(), RandomIds(), settings=PATIENT) as state:
        assert state.history.events(table=table) == []
        assert state.progress.watermark(table) is not None
        assert state.slices.load(table) is not None
        assert len(state.progress.days([table], NOON.date())) == 1


def _cut(connection: Connection, other: State) -> int:
    """End the connection, from the server's side."""
    on_mariadb = connection.dialect.name == "mysql"
    cursor = connection.connection.cursor()
    cursor.execute("SELECT connection_id()" if on_mariadb else "SELECT pg_backend_pid()")
    [number] = cursor.fetchone() or [0]
    cursor.close()
    with other.database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as killing:
        killing.execute(text(f"KILL {number}" if on_mariadb else f"SELECT pg_terminate_backend({number}, 5000)"))
    return int(number)
