"""Rows that are committed after their window was read: found later, or the table is not read at all."""

# ruff: noqa: S608 - tests write their SQL in place, about tables of their own

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

import pytest

from lakehead.run.observe.summary import RunSummary
from lakehead.telemetry.events import LateCommitsUnknown, TableHeldBack, TableSkipped
from tests.integration.increment_support import (
    append,
    at,
    done,
    lake_rows,
    make,
    now,
    other_session,
    reached,
    scd1,
    source_rows,
)
from tests.integration.pipeline_support import MARKS, PASSWORD, PLUGINS, Scene
from tests.pipeline import Pipeline, Ran
from tests.servers.postgres import PASSWORD as SECRET
from tests.servers.postgres import USER, Postgres
from tests.support.source_support import Database

pytest_plugins = PLUGINS
pytestmark = MARKS

ACCEPT = {"late_commits": "accept"}


@pytest.fixture
def as_reader(on_postgresql: Scene) -> Scene:
    """PostgreSQL, read by a user who may read tables and not see what others do."""
    scene = on_postgresql
    if not scene.database.run("SELECT 1 FROM pg_roles WHERE rolname = 'plain_reader'"):
        scene.sql("CREATE ROLE plain_reader LOGIN PASSWORD 'plain'")
    scene.sql("GRANT pg_read_all_data TO plain_reader")
    source = {**scene.pipeline.source, "url": with_user(scene.pipeline.source["url"], "plain_reader")}
    return replace(scene, pipeline=replace(scene.pipeline, source=source, environment={PASSWORD: "plain"}))


def with_user(url: str, user: str) -> str:
    parts = urlsplit(url)
    return parts._replace(netloc=f"{user}@{parts.hostname}:{parts.port}").geturl()


def unknown(ran: Ran) -> LateCommitsUnknown:
    [event] = ran.of(LateCommitsUnknown)
    return event


def note_of(ran: Ran) -> str:
    """What the summary says of the only table."""
    summary = RunSummary()
    for told in ran.told:
        summary(told)
    return summary.render().splitlines()[1]


# --- a source that does not tell of all open transactions


def test_a_user_who_may_not_see_open_transactions_reads_nothing_without_a_lag(
    as_reader: Scene, request: pytest.FixtureRequest
) -> None:
    table = make(as_reader, "id bigint, at timestamptz DEFAULT now(), v text")
    as_reader.sql(f"INSERT INTO {table} (id, v) VALUES (1, 'before')")
    with other_session(as_reader, request) as other:
        other.execute(f"INSERT INTO {table} (id, v) VALUES (2, 'open during the run')")
        as_reader.sql(f"INSERT INTO {table} (id, v) VALUES (3, 'after')")

        ran = as_reader.run(scd1(table))

        other.execute("COMMIT")
    assert "'plain_reader' may not see" in ran.errors[table]
    assert "grant pg_read_all_stats" in ran.errors[table]
    assert "Set lag_seconds" in ran.errors[table]
    assert "late_commits to accept" in ran.errors[table]
    assert not as_reader.pipeline.exists(f"raw.{table}"), "nothing was made, and nothing read"
    assert (unknown(ran).lag_seconds, unknown(ran).accepted) == (0, False)


def test_with_a_lag_the_row_of_an_open_transaction_is_read_by_a_later_run(
    as_reader: Scene, request: pytest.FixtureRequest
) -> None:
    table = make(as_reader)
    began = now(as_reader)
    as_reader.sql(f"INSERT INTO {table} VALUES (1, {at(began - timedelta(hours=1))}, 'early')")
    with other_session(as_reader, request) as other:
        other.execute(f"INSERT INTO {table} VALUES (2, {at(began - timedelta(seconds=30))}, 'open during the run')")

        ran = as_reader.run(scd1(table), lag_seconds=60)

        other.execute("COMMIT")
    done(ran)
    assert unknown(ran).lag_seconds == 60
    assert "late commits within 60 s" in note_of(ran)
    done(as_reader.run(scd1(table, **ACCEPT)))
    assert lake_rows(as_reader, f"mirror.{table}") == source_rows(as_reader, table)


def test_who_accepts_late_commits_is_told_of_them_and_reads(as_reader: Scene, request: pytest.FixtureRequest) -> None:
    tables = make(as_reader), make(as_reader, "id bigint, at bigint, v text")
    as_reader.sql(f"INSERT INTO {tables[0]} VALUES (1, {at(now(as_reader))}, 'x')")
    as_reader.sql(f"INSERT INTO {tables[1]} VALUES (1, 5, 'x')")
    with other_session(as_reader, request):
        for table in tables:
            ran = as_reader.run(scd1(table, **ACCEPT))

            done(ran)
            assert unknown(ran).accepted
            assert "late commits accepted" in note_of(ran)
            assert lake_rows(as_reader, f"mirror.{table}") == source_rows(as_reader, table)


def test_mysql_tells_of_no_open_transaction_so_a_lag_must_be_given(on_mysql: Scene) -> None:
    timed, numbered = make(on_mysql), make(on_mysql, "id bigint, at bigint, v text")
    refused = {"late_commits": "refuse"}

    ran = on_mysql.run(scd1(timed, **refused), append(numbered, **refused))

    assert "Set lag_seconds" in ran.errors[timed]
    assert "cannot have a lag" in ran.errors[numbered]
    with_a_lag = on_mysql.run(scd1(timed, **refused), append(numbered, **refused), lag_seconds=5)
    assert list(with_a_lag.errors) == [numbered], "seconds mean nothing to a number"


def test_sqlite_has_one_writer_and_is_read_without_a_lag_and_that_is_said(on_sqlite: Scene) -> None:
    table = on_sqlite.name()
    on_sqlite.sql(f"CREATE TABLE {table} (id bigint, at TIMESTAMP, v text)")
    on_sqlite.sql(f"INSERT INTO {table} VALUES (1, '2024-05-01 12:00:00', 'x')")

    ran = on_sqlite.run(scd1(table))

    done(ran)
    assert "SQLite does not show" in unknown(ran).reason
    assert "no lag for late commits" in note_of(ran)
    assert on_sqlite.rows(f"mirror.{table}").num_rows == 1


@pytest.fixture
def publisher(on_postgresql: Scene, postgres: Postgres) -> Iterator[tuple[Any, str]]:
    """A database that publishes a table, and that table's name in the scene's own, which subscribes to it."""
    scene, name = on_postgresql, on_postgresql.name()
    database = postgres.database().rpartition("/")[2]
    with postgres.connect(database) as published:
        made = f"CREATE TABLE {name} (id bigint PRIMARY KEY, at timestamptz DEFAULT now(), v text)"
        published.execute(made.encode())
        scene.sql(made)
        published.execute(f"CREATE PUBLICATION {name} FOR TABLE {name}".encode())
        # Made here: a server that subscribes to itself would wait for itself to make it.
        published.execute(f"SELECT pg_create_logical_replication_slot('{name}', 'pgoutput')".encode())
        address = f"host=127.0.0.1 port={postgres.port} user={USER} password={SECRET} dbname={database}"
        scene.sql(
            f"CREATE SUBSCRIPTION {name} CONNECTION '{address}' PUBLICATION {name} "
            "WITH (create_slot = false, copy_data = false)"
        )
        try:
            yield published, name
        finally:
            scene.sql(f"DROP SUBSCRIPTION {name}")


def test_rows_that_a_subscription_brings_are_older_than_they_look_so_a_lag_must_be_given(
    on_postgresql: Scene, publisher: tuple[Any, str]
) -> None:
    scene, (published, table) = on_postgresql, publisher
    scene.sql(f"ALTER SUBSCRIPTION {table} DISABLE")
    published.execute(f"INSERT INTO {table} VALUES (1, now(), 'not here yet')")
    scene.sql(f"INSERT INTO {table} VALUES (2, now() - interval '1 hour', 'here')")

    refused = scene.run(scd1(table))
    done(scene.run(scd1(table), lag_seconds=600))

    scene.sql(f"ALTER SUBSCRIPTION {table} ENABLE")
    while len(source_rows(scene, table)) < 2:
        pass
    done(scene.run(scd1(table, **ACCEPT)))
    assert f"{table!r} is replicated by a subscription" in refused.errors[table]
    assert "Set lag_seconds" in refused.errors[table]
    assert lake_rows(scene, f"mirror.{table}") == source_rows(scene, table)


# --- numbers


def test_a_lower_number_that_is_committed_after_a_higher_one_is_not_passed_by(
    on_postgresql: Scene, request: pytest.FixtureRequest
) -> None:
    scene = on_postgresql
    table = make(scene, "id bigint, at bigserial, v text")
    scene.sql(f"INSERT INTO {table} (id, v) VALUES (1, 'before')")
    done(scene.run(scd1(table)))
    with other_session(scene, request) as other:
        other.execute(f"INSERT INTO {table} (id, v) VALUES (2, 'open during the run')")
        scene.sql(f"INSERT INTO {table} (id, v) VALUES (3, 'higher')")

        ran = scene.run(scd1(table))

        done(ran)
        [held] = ran.of(TableHeldBack)
        assert held.by.startswith("lakehead (")
        [skipped] = ran.of(TableSkipped)
        assert skipped.reason.startswith("nothing new since 1; held back by lakehead (")
        assert "cannot be reloaded: it is held back by" in scene.run(scd1(table), reload=True).errors[table]
        other.execute("COMMIT")

    done(scene.run(scd1(table)))

    assert lake_rows(scene, f"mirror.{table}") == source_rows(scene, table)


def test_numbers_of_a_source_in_which_a_transaction_is_always_open_are_read_up_to_where_the_run_before_looked(
    on_postgresql: Scene, request: pytest.FixtureRequest
) -> None:
    scene = on_postgresql
    table = make(scene, "id bigint, at bigserial, v text")
    scene.sql(f"INSERT INTO {table} (id, v) VALUES (1, 'before')")
    with other_session(scene, request) as first:
        first.execute(f"INSERT INTO {table} (id, v) VALUES (2, 'open during the first run')")
        scene.sql(f"INSERT INTO {table} (id, v) VALUES (3, 'higher')")
        held = scene.run(scd1(table))
        with other_session(scene, request) as second:
            second.execute(f"INSERT INTO {table} (id, v) VALUES (4, 'open during the second run')")
            scene.sql(f"INSERT INTO {table} (id, v) VALUES (5, 'higher still')")
            first.execute("COMMIT")

            ran = scene.run(scd1(table))

            done(ran)
            assert [row[0] for row in lake_rows(scene, f"mirror.{table}")] == [1, 2, 3]
            second.execute("COMMIT")
    assert "held back by lakehead (" in held.of(TableSkipped)[0].reason
    done(scene.run(scd1(table)))
    assert lake_rows(scene, f"mirror.{table}") == source_rows(scene, table)


# --- held back


def test_a_table_that_an_open_transaction_holds_back_says_by_whom_and_since_when_until_it_fails(
    on_postgresql: Scene, request: pytest.FixtureRequest
) -> None:
    scene = on_postgresql
    table = make(scene, "id bigint, at timestamptz DEFAULT now(), v text")
    scene.sql(f"INSERT INTO {table} (id, v) VALUES (1, 'before')")
    with other_session(scene, request) as other:
        other.execute("SET LOCAL application_name = 'forgetful'")
        other.execute("SELECT now(), pg_sleep(1.1)")
        [began, _] = other.fetchone()
        scene.sql(f"INSERT INTO {table} (id, v) VALUES (2, 'fresh')")

        first, second = scene.run(scd1(table)), scene.run(scd1(table))

        for ran in (first, second):
            done(ran)
            [held] = ran.of(TableHeldBack)
            assert "(forgetful, process" in held.by
            assert held.since == began
            assert held.seconds > 1
            assert "held back" in note_of(ran)
            assert "(forgetful, process" in note_of(ran)
        [skipped] = second.of(TableSkipped)
        assert "nothing new since" in skipped.reason
        assert f"since {began.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC" in skipped.reason

        failed = scene.run(scd1(table, max_held_back_seconds=1))

        assert "held back by lakehead (forgetful, process" in failed.errors[table]
        assert "max_held_back_seconds (1)" in failed.errors[table]
        done(scene.run(scd1(table, max_held_back_seconds=0)))


# --- a hot standby


@pytest.fixture
def standby(postgres: Postgres) -> Iterator[Postgres]:
    """A hot standby of the module's server: it needs a server of its own."""
    made = postgres.standby()
    try:
        made.start()
        yield made
    finally:
        made.stop()


def read_from(scene: Scene, server: Postgres) -> Pipeline:
    """The scene's pipeline, reading another server."""
    parts = urlsplit(scene.pipeline.source["url"])
    url = parts._replace(netloc=f"{parts.username}@127.0.0.1:{server.port}").geturl()
    return replace(scene.pipeline, source={**scene.pipeline.source, "url": url})


def test_a_standby_that_is_behind_its_primary_loses_no_row(on_postgresql: Scene, standby: Postgres) -> None:
    scene = on_postgresql
    table = make(scene, "id bigint, at timestamptz DEFAULT clock_timestamp(), v text")
    orders = scd1(table)
    scene.sql(f"INSERT INTO {table} VALUES (1, now() - interval '1 hour', 'long ago'), (2, DEFAULT, 'replayed')")
    pipeline = read_from(scene, standby)
    caught_up(scene.database, standby)
    with standby.connect() as control:
        control.execute("SELECT pg_wal_replay_pause()")
        while control.execute("SELECT pg_get_wal_replay_pause_state()").fetchone() != ("paused",):
            pass
        scene.sql(f"INSERT INTO {table} (id, v) VALUES (3, 'not replayed yet')")
        [(stamped, _)] = scene.database.run(
            f"SELECT at, pg_sleep(1.5) FROM {table} WHERE id = 3"
        )  # longer than the lag

        assert "it is a standby" in pipeline.run(scene.spark, [orders]).errors[table], "without a lag it is refused"
        done(pipeline.run(scene.spark, [orders], lag_seconds=1))

        assert [row[0] for row in lake_rows(scene, f"mirror.{table}")] == [1]
        assert isinstance(stamped, datetime)
        assert reached(scene, f"raw.{table}") < stamped, "the bound is the primary's time, as far as it was replayed"
        control.execute("SELECT pg_wal_replay_resume()")
    scene.sql(f"INSERT INTO {table} VALUES (4, now() + interval '1 day', 'ahead')")
    caught_up(scene.database, standby)

    done(pipeline.run(scene.spark, [scd1(table, **ACCEPT)]))

    assert [row[0] for row in lake_rows(scene, f"mirror.{table}")] == [1, 2, 3]


def caught_up(primary: Database, standby: Postgres) -> None:
    """Wait until the standby has replayed all that the primary has written."""
    [(written,)] = primary.run("SELECT pg_current_wal_lsn()::text")
    with standby.connect() as connection:
        while connection.execute(f"SELECT pg_last_wal_replay_lsn() >= '{written}'::pg_lsn".encode()).fetchone() != (
            True,
        ):
            pass
