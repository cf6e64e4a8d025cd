"""Runs that are killed, and runs that race: whoever comes after goes on, and each slice lands once."""

# ruff: noqa: S608 - tests write their SQL in place, about tables of their own

import signal
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from lakehead.clock import SystemClock
from lakehead.ids import RandomIds
from lakehead.lake.commits import LAST_LANDING
from lakehead.lake.merge import BRANCH
from lakehead.state.model import Mark
from lakehead.state.opening import open_state
from tests.chaos.run_child import DIE, HOLD, running
from tests.integration.pipeline_support import source_of
from tests.pipeline import Pipeline
from tests.servers.postgres import Postgres
from tests.support.source_support import Database
from tests.support.spark import Borrowed, shared_session

pytest_plugins = ["tests.support.state_fixtures", "tests.support.source_fixtures"]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),  # up to a dozen processes, each with a JVM; the very first start fetches jars
]

MOMENT = {"postgresql": "timestamp(6)", "mysql": "datetime(6)"}
DAY = datetime.fromisoformat("2024-05-01 12:00")
SLICES = 3

FIRST_LOAD = (
    ("before plan 1", 0),
    ("after plan 1", 0),
    ("after publish raw 1", 1),
    ("after slice 1", 2),
    ("after slice 1", 3),
    ("before publish mirror 1", 3),
    ("after publish mirror 1", 3),
    ("before mark 1", 3),
)
"""Where run after run dies, and how many slices are then in raw."""

INCREMENT = (
    ("after plan 1", 0),
    ("after publish raw 1", 1),
    ("before merge 1", 3),
    ("after publish mirror 1", 3),
)

WITH_ITS_JVM = (("after slice 1", 2), ("before merge 1", 3))
"""Where a run dies that has a JVM of its own, though others borrow one."""


@pytest.fixture(scope="module")
def jvm(tmp_path_factory: pytest.TempPathFactory) -> Borrowed:
    """A JVM that runs may borrow: it outlives whoever is killed, and starts once."""
    return Borrowed.of(shared_session(Pipeline.spark_settings(tmp_path_factory.mktemp("jvm"))))


@pytest.fixture(params=["borrowed", pytest.param("own", marks=pytest.mark.soak)])
def spark(request: pytest.FixtureRequest) -> Borrowed | None:
    """What runs have of Spark: a JVM of the test's or, in a soak, each its own."""
    if request.param == "own":
        return None
    borrowed: Borrowed = request.getfixturevalue("jvm")
    return borrowed


class Table:
    """One table of a server, and the pipeline that keeps it, its state where the test says."""

    def __init__(self, database: Database, folder: Path, state: str | None = None) -> None:
        self.database = database
        self.name = database.name()
        self.state = state or f"sqlite:///{folder}/state.sqlite"
        source, environment = source_of(database)
        url = urlsplit(self.state)
        bare = url._replace(netloc=url.netloc.replace(f":{url.password}@", "@")).geturl()
        self.environment = {**environment, "STATE_PASSWORD": unquote(url.password or "")}
        self.pipeline = Pipeline(folder, folder / "lakehouse", source, environment)
        database.run(f"CREATE TABLE {self.name} (id bigint, at {MOMENT[database.kind]}, v text)")
        self.config = self.pipeline.config(
            [{"table": self.name, "mode": "scd1", "incremental_column": "at", "primary_keys": ["id"]}],
            state={"url": bare, "password": {"env": "STATE_PASSWORD"}} if url.password else {"url": self.state},
            logging={"json": True},
            scd1_slicing={"target_rows": 1},
        )

    def fill(self, first: int = 1, since: datetime = DAY) -> None:
        """As many rows as there are to be slices."""
        for number in range(first, first + SLICES):
            moment = since + timedelta(milliseconds=number)
            self.database.run(f"INSERT INTO {self.name} VALUES ({number}, TIMESTAMP '{moment}', 'x')")

    def in_raw(self) -> list[tuple[Any, Any]]:
        """The slice and the id of each raw row."""
        if not self.pipeline.exists(f"raw.{self.name}"):
            return []
        rows = self.pipeline.rows(f"raw.{self.name}", ingest=True)
        return sorted(zip(rows["_slice"].to_pylist(), rows["id"].to_pylist(), strict=True))

    def assert_whole(self, rows: int = SLICES) -> None:
        """The mirror is the source, raw has each row once, a slice each, and the state says so too."""
        wanted = sorted(self.database.run(f"SELECT id, at, v FROM {self.name}"), key=str)
        mirror = self.pipeline.rows(f"mirror.{self.name}")
        assert sorted((tuple(row.values()) for row in mirror.to_pylist()), key=str) == wanted
        assert len(wanted) == rows
        assert self.in_raw() == [(number, number) for number in range(1, rows + 1)]
        assert len(self.pipeline.snapshots(f"raw.{self.name}")) == rows, "each slice landed once"
        catalog = self.pipeline.catalog()
        try:
            uuid = str(catalog.load_table(f"raw.{self.name}").metadata.table_uuid)
            refs = catalog.load_table(f"mirror.{self.name}").metadata.refs
        finally:
            catalog.close()
        assert all(name.startswith(BRANCH) for name in refs.keys() - {"main", LAST_LANDING})
        with open_state(self.state, SystemClock(), RandomIds()) as state:
            marks = state.progress.watermarks([uuid])
            assert marks[uuid, Mark.DONE].value == marks[uuid, Mark.LANDED].value
            assert marks[uuid, Mark.DONE].slice == rows
            assert state.slices.load(uuid) is None


def rows_read(told: list[dict[str, Any]]) -> int:
    """How many rows a run has read from its source."""
    phases = [line["payload"] for line in told if line["kind"] == "phase"]
    return sum(phase.get("rows") or 0 for phase in phases if phase["phase"] == "raw")


def waits(told: list[dict[str, Any]]) -> list[str]:
    """What a run has said of its waits for others."""
    return [line["payload"]["reason"] for line in told if line["kind"] == "table_waits"]


def kill_one_after_the_other(
    table: Table, moments: tuple[tuple[str, int], ...], spark: Borrowed | None, landed: int = 0
) -> None:
    for moment, slices in moments:
        own = (moment, slices) in WITH_ITS_JVM
        with running(table.config, table.environment, DIE, moment, jvm=None if own else spark) as run:
            run.dead()
        assert len(table.in_raw()) == landed + slices, moment


def test_a_first_load_that_is_killed_at_every_step_is_gone_on_with(
    postgresql: Database, tmp_path: Path, spark: Borrowed | None
) -> None:
    table = Table(postgresql, tmp_path)
    table.fill()

    kill_one_after_the_other(table, FIRST_LOAD, spark)
    with running(table.config, table.environment, jvm=spark) as last:
        told = last.done()

    assert rows_read(told) == 0, "nothing is read again"
    assert waits(told) == [], "who was killed on this machine is known to be gone"
    table.assert_whole()


def test_an_increment_that_is_killed_at_every_step_is_gone_on_with(
    mysql: Database, tmp_path: Path, spark: Borrowed | None
) -> None:
    table = Table(mysql, tmp_path)
    table.fill()
    with running(table.config, table.environment, jvm=spark) as first:
        assert rows_read(first.done()) == SLICES
    table.fill(SLICES + 1, mysql.source.now().local)

    kill_one_after_the_other(table, INCREMENT, spark, landed=SLICES)
    with running(table.config, table.environment, jvm=spark) as last:
        told = last.done()

    assert rows_read(told) == 0, "nothing is read again"
    assert waits(told) == [], "who was killed on this machine is known to be gone"
    table.assert_whole(2 * SLICES)


@pytest.mark.parametrize("kind", ["postgresql", pytest.param("mysql", marks=pytest.mark.soak)])
def test_two_runs_of_one_table_land_each_slice_once(
    kind: str, postgres: Postgres, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Their state is in PostgreSQL, as it is where runs are on several machines."""
    table = Table(request.getfixturevalue(kind), tmp_path, postgres.database())
    table.fill()
    with (
        running(table.config, table.environment, HOLD, "before slice 1") as one,
        running(table.config, table.environment, HOLD, "before slice 1") as other,
    ):
        one.arrive()
        other.arrive()
        one.go()
        other.go()
        told = [one.done(), other.done()]

    assert sum(map(rows_read, told)) == SLICES, "each slice is read by one of them"
    table.assert_whole()


def test_when_one_of_two_runs_is_killed_the_other_does_its_work(
    postgresql: Database, tmp_path: Path, spark: Borrowed | None
) -> None:
    table = Table(postgresql, tmp_path)
    table.fill()
    with (
        running(table.config, table.environment, DIE, "before publish raw 2", jvm=spark) as doomed,
        running(table.config, table.environment, HOLD, "before slice 2", jvm=spark) as other,
    ):
        doomed.dead()
        other.arrive()
        other.go()
        told = other.done()

    assert rows_read(told) >= 2
    table.assert_whole()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_run_that_waits_for_another_ends_at_once_when_it_is_told_to(
    postgresql: Database, tmp_path: Path, jvm: Borrowed, number: signal.Signals
) -> None:
    table = Table(postgresql, tmp_path)
    table.fill()
    with running(table.config, table.environment, HOLD, "before publish raw 1", jvm=jvm) as one:
        one.arrive()
        with running(table.config, table.environment, jvm=jvm) as other:
            [reason] = waits(other.await_told("table_waits"))
            code, told = other.stopped_by(number)
        one.go()
        one.done()

    assert f"another run (process {one.pid} of this machine) holds the lease on raw.{table.name} " in reason
    assert reason.endswith("(expires within 60 s if that run dies)")
    assert code == 128 + number
    who = {signal.SIGTERM: "SIGTERM", signal.SIGINT: "you (Ctrl-C)"}[number]
    [failed] = [line["payload"] for line in told if line["kind"] == "table_failed"]
    assert failed["error"] == f"Stopped by {who}. Landed rows are kept; run the command again to continue."
    assert told[-1]["kind"] == "run_done"
    table.assert_whole()
