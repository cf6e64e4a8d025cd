"""Opening, and being refused in one sentence."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import Connection, Engine, column, create_engine, event, insert, inspect, make_url, select, text
from sqlalchemy import table as some_table

from lakehead.clock import SystemClock
from lakehead.errors import LakeheadError, Misconfigured, Unavailable
from lakehead.ids import RandomIds
from lakehead.retry import Backoff
from lakehead.state import migrations
from lakehead.state.migrations import Step, bring_up
from lakehead.state.model import (
    DayState,
    DayStatus,
    FileOutcome,
    FileState,
    Mark,
    Metric,
    PruneLimits,
    SlicePlan,
    StoredSlice,
)
from lakehead.state.opening import StateSettings, open_state
from lakehead.state.schema import metadata, schema_version
from lakehead.state.state import State
from tests.servers.mariadb import MariaDB
from tests.servers.ports import free_ports
from tests.servers.postgres import Postgres
from tests.support.state_tools import FIRST, HOUR, NOON, PATIENT, HandClock, hold, landing, numbers

pytest_plugins = ["tests.support.state_fixtures"]

GOLDEN = Path(__file__).parents[1] / "unit" / "state" / "golden"
CANARY = "c4nary-pa55word"
FEW_TRIES = StateSettings(connect_timeout=60, backoff=Backoff(attempts=2, first_seconds=0.001))


def opening(url: str, settings: StateSettings = FEW_TRIES) -> State:
    return open_state(url, SystemClock(), RandomIds(), settings=settings)


def refused(url: str, kind: type[LakeheadError], settings: StateSettings = FEW_TRIES) -> str:
    """The one sentence with which opening is refused, or two."""
    with pytest.raises(kind) as caught:
        opening(url, settings)
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert CANARY not in sentence
    assert caught.value.__cause__ is None, "the driver's own error, with its statement, stays out of logs"
    return sentence


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("", "cannot be read"),
        ("no url", "cannot be read"),
        (f"postgresql://u:{CANARY}@h:port/d", "cannot be read"),
        (f"oracle://u:{CANARY}@h/d", "unknown scheme 'oracle'"),
        (f"postgresql://u:{CANARY}@h", "lacks a user, a host or a database"),
        (f"mysql://:{CANARY}@h/d", "lacks a user, a host or a database"),
        (f"mysql://u@h/d?password={CANARY}", "'password' after '?'"),
        ("sqlite://", "must be a local file"),
        ("sqlite:///:memory:", "must be a local file"),
        ("sqlite:////no/such/folder/state.db", "'/no/such/folder' of the state database does not exist"),
        ("sqlite:////tmp", "is a folder"),
    ],
)
def test_a_url_that_means_nothing_is_refused(url: str, says: str) -> None:
    assert says in refused(url, Misconfigured)


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "state.db").write_text("these are not the bytes of a database" * 100)

    assert "not a database" in refused(f"sqlite:///{tmp_path}/state.db", Misconfigured)


def test_an_unknown_setting_in_a_url_is_refused(postgres: Postgres, mariadb: MariaDB) -> None:
    for server in (postgres, mariadb):
        assert "nonsense" in refused(f"{server.database()}?nonsense=1", Misconfigured)


def test_a_refused_password_is_told_without_it(postgres: Postgres, mariadb: MariaDB) -> None:
    for server in (postgres, mariadb):
        sentence = refused(server.url("some", password=CANARY), Misconfigured)
        assert "refused access" in sentence
        assert f"127.0.0.1:{server.port}/some" in sentence


def test_a_database_that_does_not_exist_is_told(postgres: Postgres, mariadb: MariaDB) -> None:
    for server in (postgres, mariadb):
        assert "nowhere" in refused(server.url("nowhere"), Misconfigured)


def test_a_server_that_does_not_answer_is_unavailable(postgres: Postgres, mariadb: MariaDB) -> None:
    [nobody] = free_ports(1)
    for server in (postgres, mariadb):
        sentence = refused(server.url("some", password=CANARY, port=nobody), Unavailable)
        assert "cannot be reached" in sentence
        assert f":{nobody}/some" in sentence


def test_a_password_given_as_a_setting_opens_and_is_in_no_repr(postgres: Postgres, mariadb: MariaDB) -> None:
    for server, password in ((postgres, "s3cret/of:a@test"), (mariadb, "s3cret/of:a@test")):
        url = server.database()
        without = url.replace(":s3cret%2Fof%3Aa%40test", "")
        settings = StateSettings(password=password)
        with opening(without, settings) as state:
            assert password not in repr(state) + repr(settings) + repr(state.database) + repr(state.database.engine)


def test_a_relative_path_is_a_file_in_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    opening("sqlite:///state.db").close()

    assert (tmp_path / "state.db").is_file()


def test_sqlite_writes_ahead_and_waits_for_the_disk(tmp_path: Path) -> None:
    with opening(f"sqlite:///{tmp_path}/state.db") as state, state.database.engine.connect() as connection:
        assert connection.execute(text("PRAGMA journal_mode")).scalar() == "wal"
        assert connection.execute(text("PRAGMA synchronous")).scalar() == 2
        assert connection.execute(text("PRAGMA busy_timeout")).scalar() == 15_000


def fill(state: State) -> None:
    """Something in every table."""
    hold(state, "t", "a", "b")
    told = state.history.event("landed", table="t", run="r", payload={"rows": 1})
    landed = landing(FIRST, "a", watermark=NOON, numbered=numbers("agent/boot", (10, 21)), events=(told,))
    state.landings.settle("t", None, FIRST, [landed])
    state.slices.save(SlicePlan(id="p", table="t", slices=(StoredSlice(unit="s", bounds={"to": 1}),)))
    state.history.bury("t", "b", "bad", owner="us")
    state.history.record_metrics([Metric(run="r", name="rows", value=0.1)])
    state.leases.take("land", "us", NOON + HOUR, table="t")
    state.pruning.record("t", "pipeline", PruneLimits(HOUR, 7))
    state.pruning.pause("t", "us", NOON + HOUR)
    state.files.record("t", [FileOutcome(unit="a", state=FileState.FAILED, error="line 1")])
    state.progress.mark_days([DayStatus(table="t", load_date=NOON.date(), phase="raw", state=DayState.DONE)])


def everything(state: State) -> dict[str, list[dict[str, object]]]:
    def read(connection: Connection) -> dict[str, list[dict[str, object]]]:
        return {
            name: [dict(row) for row in connection.execute(select(known)).mappings()]
            for name, known in metadata.tables.items()
            if known is not schema_version
        }

    return state.database.read(read)


def _add_a_column(connection: Connection) -> None:
    columns = {each["name"] for each in inspect(connection).get_columns("lakehead_shards")}
    if "colour" not in columns:
        connection.execute(text("ALTER TABLE lakehead_shards ADD COLUMN colour VARCHAR(10)"))
    connection.execute(text("UPDATE lakehead_shards SET colour = 'grey'"))


def _add_a_table(connection: Connection) -> None:
    connection.execute(text("CREATE TABLE IF NOT EXISTS lakehead_later (id INT PRIMARY KEY, note VARCHAR(10))"))


NEWEST = migrations.STEPS[-1].version
LATER = (*migrations.STEPS, Step(NEWEST + 1, "a column", _add_a_column), Step(NEWEST + 2, "a table", _add_a_table))


def make(url: str, version: int) -> None:
    """Make a database as that version of Lakehead made it."""
    target = make_url(url)
    driver = {"sqlite": "sqlite", "postgresql": "postgresql+psycopg", "mysql": "mysql+pymysql"}[target.drivername]
    engine = create_engine(target.set(drivername=driver))
    with engine.begin() as connection:
        for statement in (GOLDEN / f"v{version}.{target.drivername}.sql").read_text().split(";\n\n"):
            connection.exec_driver_sql(statement.rstrip(";\n"))
        connection.execute(insert(schema_version), {"id": 1, "version": version})
    engine.dispose()


@pytest.mark.parametrize("version", [1, 2, 3, 4])
def test_a_migration_from_every_earlier_version_keeps_every_row(new_state_url: Callable[[], str], version: int) -> None:
    url = new_state_url()
    make(url, version)
    with open_state(url, HandClock(), RandomIds(), settings=PATIENT) as state:
        fill(state)
        before = everything(state)
        assert all(before.values()), "there is something in every table"

        bring_up(state.database, LATER)
        bring_up(state.database, LATER)

        assert everything(state) == before
        with state.database.engine.connect() as connection:
            assert connection.execute(select(schema_version.c.version)).scalars().all() == [NEWEST + 2]
            shards = some_table("lakehead_shards", column("colour"))
            assert set(connection.execute(select(shards.c.colour)).scalars()) == {"grey"}


def shape(state: State) -> dict[str, object]:
    """The tables as the server describes them."""
    with state.database.engine.connect() as connection:
        seen = inspect(connection)
        return {
            name: (
                {each["name"]: (str(each["type"]), each["nullable"]) for each in seen.get_columns(name)},
                seen.get_pk_constraint(name)["constrained_columns"],
                {each["name"]: each["column_names"] for each in seen.get_indexes(name)},
            )
            for name in metadata.tables
        }


@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_migrated_database_has_the_tables_of_a_new_one(new_state_url: Callable[[], str], version: int) -> None:
    old = new_state_url()
    make(old, version)

    with opening(old) as migrated, opening(new_state_url()) as new:
        assert shape(migrated) == shape(new)


def test_a_step_that_was_cut_off_after_any_of_its_statements_is_taken_again(new_state_url: Callable[[], str]) -> None:
    class PowerCut(Exception):
        pass

    with opening(new_state_url()) as new:
        expected = shape(new)
    for statements in range(1, 20):
        url = new_state_url()
        make(url, 2)
        sent = 0

        def cut(_connection: object, _cursor: object, statement: str, *_: object) -> None:
            nonlocal sent
            sent += statement.startswith(("CREATE", "ALTER", "DROP", "\nCREATE"))
            if sent > statements:  # noqa: B023 - used within its turn only
                raise PowerCut

        event.listen(Engine, "before_cursor_execute", cut)
        try:
            opening(url).close()
        except PowerCut:
            pass
        else:
            break
        finally:
            event.remove(Engine, "before_cursor_execute", cut)
        with opening(url) as migrated:
            assert shape(migrated) == expected
            fill(migrated)
    assert statements > 5, "the step was cut off in the middle"


def test_a_migration_cut_off_in_the_middle_is_taken_again(new_state_url: Callable[[], str]) -> None:
    class PowerCut(Exception):
        pass

    def half(connection: Connection) -> None:
        _add_a_column(connection)
        raise PowerCut

    with open_state(new_state_url(), HandClock(), RandomIds(), settings=PATIENT) as state:
        fill(state)
        before = everything(state)
        with pytest.raises(PowerCut):
            bring_up(state.database, (*migrations.STEPS, Step(NEWEST + 1, "a column, and half of something", half)))

        bring_up(state.database, LATER)

        assert everything(state) == before


def test_a_database_of_a_newer_lakehead_is_refused_and_left_alone(new_state_url: Callable[[], str]) -> None:
    url = new_state_url()
    with open_state(url, HandClock(), RandomIds(), settings=PATIENT) as state:
        bring_up(state.database, LATER)
        fill(state)

        assert f"has version {NEWEST + 2}, but this Lakehead supports {NEWEST} at most" in refused(url, Misconfigured)
        assert state.progress.watermark("t", Mark.LANDED) is not None


def test_tables_that_were_only_half_made_are_completed(new_state_url: Callable[[], str]) -> None:
    url = new_state_url()
    with open_state(url, HandClock(), RandomIds(), settings=PATIENT) as state:

        def undo(connection: Connection) -> None:
            connection.execute(text("DROP TABLE lakehead_shards"))
            connection.execute(text("DELETE FROM lakehead_schema"))

        state.database.write(undo)

    with open_state(url, HandClock(), RandomIds(), settings=PATIENT) as state:
        fill(state)


def test_the_server_keeps_what_does_not_fit_out_instead_of_cutting_it(mariadb: MariaDB) -> None:
    with opening(mariadb.database()) as state, pytest.raises(Exception, match="too long"):
        state.database.write(
            lambda connection: connection.execute(
                insert(metadata.tables["lakehead_plans"]),
                {"table_uuid": "x" * 65, "plan_id": "p", "generation": 0, "detail": {}, "saved_at": NOON},
            )
        )


def test_a_limit_that_the_server_sets_for_results_hides_nothing_of_the_state(mariadb: MariaDB) -> None:
    units = [f"unit {number}" for number in range(5)]
    with closing(mariadb.connect()) as admin, admin.cursor() as cursor:
        cursor.execute("SELECT @@global.sql_select_limit")
        [(before,)] = cursor.fetchall()
        cursor.execute("SET GLOBAL sql_select_limit = 2")
        try:
            with opening(mariadb.database()) as state:
                assert [shard.unit for shard in state.shards.open("t", units, token="p")] == units
        finally:
            cursor.execute(f"SET GLOBAL sql_select_limit = {before}")


def test_a_sqlite_backup_opens_as_it_is(tmp_path: Path) -> None:
    with opening(f"sqlite:///{tmp_path}/state.db") as state:
        fill(state)
        with sqlite3.connect(tmp_path / "state.db") as source, sqlite3.connect(tmp_path / "copy.db") as copy:
            source.backup(copy)
        source.close()
        copy.close()

    with opening(f"sqlite:///{tmp_path}/copy.db") as state:
        assert state.landings.pointer("t") == FIRST
