"""Windows, names and filters: the same rows from every kind of source, each exactly once."""

# ruff: noqa: S608, DTZ001 - tests write their SQL in place, about tables of their own, and of moments without a zone

import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from uuid import uuid4

import pytest

from lakehead.errors import Misconfigured
from lakehead.source.dialects import open_source, parse_source_url
from lakehead.source.errors import NotExact
from lakehead.source.filters import parse_filter
from lakehead.source.port import Nulls, OpenTransactions, Overrides, Query, Source, SourceWindow, TableName
from lakehead.source.source_settings import APPLICATION_NAME
from tests.servers.postgres import Postgres
from tests.support.source_support import Database, all_rows, careless, rows_of

pytest_plugins = ["tests.support.state_fixtures", "tests.support.source_fixtures"]

MOMENT = {"postgresql": "timestamp", "mysql": "datetime(6)", "sqlite": "TIMESTAMP"}
HOSTILE = ["Id", "select", "a b", "dot.ted", "it's", 'dou"ble', "back`tick", "ünï", "per%cent %s", "a$1?:x", "semi;--"]


def moments(database: Database) -> str:
    """Ten rows: three of one microsecond, its neighbours, and two that have no moment."""
    name = database.name()
    database.run(f"CREATE TABLE {name} (id integer PRIMARY KEY, at {MOMENT[database.kind]} NULL)")
    fractions = ["123455", "123456", "123456", "123456", "123457", "999999", "000001", "500000"]
    values = [f"({number}, '2024-03-31 02:30:00.{fraction}')" for number, fraction in enumerate(fractions)]
    database.run(f"INSERT INTO {name} VALUES {', '.join(values)}, (8, NULL), (9, NULL)")
    return name


AT = datetime(2024, 3, 31, 2, 30, 0, 123456)
WINDOWS = [
    (SourceWindow(column="at", lower=AT), {4, 5, 7}),
    (SourceWindow(column="at", lower=AT, lower_included=True), {1, 2, 3, 4, 5, 7}),
    (SourceWindow(column="at", upper=AT), {0, 1, 2, 3, 6}),
    (SourceWindow(column="at", upper=AT, upper_included=False), {0, 6}),
    (SourceWindow(column="at", lower=AT, upper=AT + timedelta(microseconds=1)), {4}),
    (SourceWindow(column="at"), {0, 1, 2, 3, 4, 5, 6, 7}),
    (SourceWindow(column="at", lower=AT, nulls=Nulls.INCLUDE), {4, 5, 7, 8, 9}),
    (SourceWindow(column="at", nulls=Nulls.INCLUDE), set(range(10))),
]


def test_a_window_has_the_rows_between_its_bounds_to_the_microsecond(database: Database) -> None:
    table = database.table(moments(database))

    for window, wanted in WINDOWS:
        query = Query(table=table, window=window)
        assert set(all_rows(database, query)["id"].to_pylist()) == wanted, window
        assert database.source.count(query) == len(wanted)


def test_windows_that_follow_one_another_share_no_row_and_lose_none(database: Database) -> None:
    table = database.table(moments(database))
    bounds = database.source.bounds(Query(table=table), "at")
    assert bounds == (datetime(2024, 3, 31, 2, 30, 0, 1), datetime(2024, 3, 31, 2, 30, 0, 999999))

    cuts = [None, AT - timedelta(microseconds=1), AT, bounds[1]]
    got: list[int] = []
    for lower, upper in pairwise(cuts):
        window = SourceWindow(column="at", lower=lower, upper=upper)
        got += all_rows(database, Query(table=table, window=window))["id"].to_pylist()

    assert sorted(got) == list(range(8))


def test_rows_without_a_watermark_stop_a_table_whose_rule_is_to_fail_and_are_counted(
    database: Database,
) -> None:
    name = moments(database)
    table = database.table(name)
    window = SourceWindow(column="at", upper=AT, nulls=Nulls.FAIL)

    with pytest.raises(NotExact, match="2 rows have NULL in their incremental column 'at'"):
        database.source.parts(Query(table=table, window=window), 2)
    kept = parse_filter("id < 8", table.column_names, database.source.sql_dialect)
    assert database.source.parts(Query(table=table, window=window, filter=kept), 1)


def test_bounds_of_nothing_are_none_and_nothing_is_read_of_an_empty_table(database: Database) -> None:
    name = database.name()
    database.run(f"CREATE TABLE {name} (id integer PRIMARY KEY, t varchar(9), at {MOMENT[database.kind]} NULL)")
    query = Query(table=database.table(name))

    assert database.source.bounds(query, "at") is None
    read = all_rows(database, query, 4)
    assert read.num_rows == 0
    assert [str(kind) for kind in read.schema.types][1:] == ["string", "timestamp[us]"]


def test_the_servers_clock_is_told_with_and_without_its_zone(database: Database) -> None:
    now = database.source.now()

    assert now.utc.tzinfo is not None
    assert now.local.tzinfo is None
    assert abs(now.utc - datetime.now(UTC)) < timedelta(minutes=5)
    assert abs(now.utc.replace(tzinfo=None) - now.local) <= timedelta(hours=15)


IN_VIENNA = [
    ("2026-10-24T23:59:59.999999+00:00", "2026-10-25T01:59:59.999999"),
    ("2026-10-25T00:00:00+00:00", "2026-10-25T02:00:00"),
    ("2026-10-25T00:59:59.999999+00:00", "2026-10-25T02:00:00"),  # 2:59, and a moment later 2:00 again
    ("2026-10-25T01:00:00.000001+00:00", "2026-10-25T02:00:00.000001"),
    ("2026-10-25T01:30:00+00:00", "2026-10-25T02:30:00"),
    ("2026-03-29T00:59:59+00:00", "2026-03-29T01:59:59"),
    ("2026-03-29T01:00:00+00:00", "2026-03-29T03:00:00"),
    ("2026-07-01T12:34:56.789012+00:00", "2026-07-01T14:34:56.789012"),
]
"""Moments, and the earliest local time that a clock in Vienna shows from then on."""


MARIADB_VIENNA = (
    "REPLACE INTO mysql.time_zone VALUES (9999, 'N')",
    "REPLACE INTO mysql.time_zone_name VALUES ('Europe/Vienna', 9999)",
    "REPLACE INTO mysql.time_zone_transition_type VALUES (9999, 0, 3600, 0, 'CET'), (9999, 1, 7200, 1, 'CEST')",
    "REPLACE INTO mysql.time_zone_transition VALUES (9999, 1761440400, 0), (9999, 1774746000, 1)",
    "REPLACE INTO mysql.time_zone_transition VALUES (9999, 1792890000, 0)",
)
"""The zone as far as the moments go: MariaDB knows none by name until somebody loads them."""


@pytest.mark.parametrize("kind", ["postgresql", "mysql"])
def test_local_time_that_will_come_again_when_clocks_are_put_back_is_not_taken_as_past(
    kind: str, request: pytest.FixtureRequest
) -> None:
    database = request.getfixturevalue(kind)
    with in_vienna(database) as source:
        told = [(moment, source.earliest_local(datetime.fromisoformat(moment)).isoformat()) for moment, _ in IN_VIENNA]
        now = source.now()

    assert now.local - now.utc.replace(tzinfo=None) >= timedelta(minutes=59), "it is ahead of UTC there"
    assert told == IN_VIENNA


@contextmanager
def in_vienna(database: Database) -> Iterator[Source]:
    """The source, with its server's clock in Vienna for whoever connects now."""
    if database.kind == "postgresql":
        name = database.settings.database
        change, back = (f'ALTER DATABASE "{name}" {what}' for what in ("SET timezone TO 'Europe/Vienna'", "RESET ALL"))
    else:
        for statement in MARIADB_VIENNA:
            database.run(statement)
        change, back = "SET GLOBAL time_zone = 'Europe/Vienna'", "SET GLOBAL time_zone = 'SYSTEM'"
    database.run(change)
    source = open_source(database.settings)
    try:
        yield source
    finally:
        source.close()
        database.run(back)


def test_sqlite_writes_in_utc(sqlite: Database) -> None:
    moment = datetime.fromisoformat("2026-10-25T02:30:00+02:00")

    assert sqlite.source.earliest_local(moment).isoformat() == "2026-10-25T00:30:00"


def test_an_open_transaction_holds_back_what_may_be_taken_as_committed(
    postgresql: Database,
    postgres: Postgres,
) -> None:
    with postgres.connect(postgresql.settings.database) as late:
        late.execute("SET application_name = 'forgetful'")
        late.execute("BEGIN")
        [(began, process)] = late.execute("SELECT now(), pg_backend_pid()").fetchall()

        with postgresql.source.snapshot():  # our own readers never write, and hold back nothing
            told = postgresql.source.open_transactions()

        assert told.unknown is None
        assert f"(forgetful, process {process})" in (told.whose or "")
        assert told.oldest is not None
        assert told.oldest <= began
        late.execute("ROLLBACK")
        with postgresql.source.snapshot():
            assert postgresql.source.open_transactions() == OpenTransactions()


TIMEOUTS = {
    16: ("statement_timeout", "idle_in_transaction_session_timeout", "idle_session_timeout"),
    18: ("transaction_timeout",),
}


@pytest.fixture(params=TIMEOUTS)
def hasty(request: pytest.FixtureRequest) -> Iterator[tuple[Postgres, str]]:
    """A server whose databases end every session that lasts for more than a second, and a view that takes longer."""
    server: Postgres = request.getfixturevalue("postgres") if request.param == 16 else Postgres(request.param)
    try:
        if request.param != 16:
            server.start()
        url = server.database()
        database = url.rpartition("/")[2]
        with server.connect(database) as connection:
            connection.execute(
                "CREATE VIEW slow AS SELECT id, pg_sleep(0.75) IS NULL AS late FROM (VALUES (1), (2)) v(id)"
            )
            for timeout in TIMEOUTS[request.param]:
                connection.execute(f"ALTER DATABASE \"{database}\" SET {timeout} = '1s'".encode())
        yield server, url
    finally:
        if request.param != 16:
            server.stop()


def test_timeouts_of_a_role_or_database_end_neither_a_snapshot_nor_a_read_in_it(hasty: tuple[Postgres, str]) -> None:
    server, url = hasty
    source = open_source(parse_source_url(url))
    ours = (
        "SELECT count(*) FILTER (WHERE backend_xmin IS NOT NULL), min(clock_timestamp() - state_change) FROM "
        f"pg_stat_activity WHERE datname = '{source.settings.database}' AND application_name = '{APPLICATION_NAME}'"
    )
    try:
        with source.snapshot() as snapshot, server.connect() as other:
            holders, idle = 1, timedelta()
            while holders and idle < timedelta(seconds=1.5):  # until it has ended, or has lasted longer than it may
                [(holders, least)] = other.execute(ours.encode()).fetchall()
                idle = least or idle
                time.sleep(0.05)  # how often is asked; nothing depends on it
            parts = source.parts(Query(table=source.describe_table(TableName("slow"))), 1, snapshot)

            assert rows_of(parts[0])["id"].to_pylist() == [1, 2]
    finally:
        source.close()


@pytest.fixture(params=["a database in LATIN1", "a default of the database"])
def other_encoding(request: pytest.FixtureRequest, postgres: Postgres) -> str:
    """A database whose sessions do not have the encoding UTF8 by themselves."""
    name = f"t{uuid4().hex}"
    with postgres.connect() as connection:
        if request.param == "a database in LATIN1":
            made = "ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0"
            connection.execute(f'CREATE DATABASE "{name}" {made}'.encode())
        else:
            connection.execute(f'CREATE DATABASE "{name}"'.encode())
            connection.execute(f"ALTER DATABASE \"{name}\" SET client_encoding = 'LATIN1'".encode())
    return postgres.url(name)


def test_text_is_read_as_it_is_whatever_encoding_sessions_have_by_themselves(
    other_encoding: str, postgres: Postgres
) -> None:
    with postgres.connect(other_encoding.rpartition("/")[2]) as connection:
        connection.execute(b"SET client_encoding = 'UTF8'")
        connection.execute('CREATE TABLE "t\u00e9" (id integer, "\u00fc" text)'.encode())
        # In LATIN1 the bytes of the second text are those of the first one in UTF-8.
        connection.execute("INSERT INTO \"t\u00e9\" VALUES (1, '\u00e9'), (2, '\u00c3\u00a9'), (3, 'e')".encode())
    source = open_source(parse_source_url(other_encoding))
    try:
        table = source.describe_table(TableName("t\u00e9"))
        chosen = parse_filter("\u00fc IN ('\u00e9', '\u00c3\u00a9')", table.column_names, source.sql_dialect)
        [part] = source.parts(Query(table=table, filter=chosen), 1)

        assert rows_of(part).sort_by("id").to_pydict() == {"id": [1, 2], "\u00fc": ["\u00e9", "\u00c3\u00a9"]}
        assert source.bounds(Query(table=table), "\u00fc") == ("e", "\u00e9")
    finally:
        source.close()


def test_settings_of_a_mysql_server_neither_cut_what_is_read_nor_show_what_is_not_committed(mysql: Database) -> None:
    with careless(mysql) as name, closing(open_source(mysql.settings)) as source:
        query = Query(table=source.describe_table(TableName(name)))
        [part] = source.parts(query, 1)

        assert sorted(rows_of(part)["id"].to_pylist()) == list(range(1, 11))
        assert source.count(query) == 10


def test_a_server_that_does_not_tell_of_open_transactions_says_so(
    mysql: Database,
    sqlite: Database,
) -> None:
    assert "only to administrators" in (mysql.source.open_transactions().unknown or "")
    assert "does not show" in (sqlite.source.open_transactions().unknown or "")


def test_a_prepared_transaction_does_not_say_when_it_began(postgresql: Database, postgres: Postgres) -> None:
    name = postgresql.name()
    postgresql.run(f"CREATE TABLE {name} (id bigint)")
    with postgres.connect(postgresql.settings.database) as other:
        other.execute("BEGIN")
        other.execute(f"INSERT INTO {name} VALUES (1)".encode())
        other.execute(f"PREPARE TRANSACTION '{name}'".encode())
        try:
            told = postgresql.source.open_transactions()
        finally:
            other.execute(f"ROLLBACK PREPARED '{name}'".encode())

    assert told.unknown == "1 prepared transactions do not report when they started"
    assert f"prepared as {name}" in (told.whose or "")


def test_a_user_who_may_not_see_others_does_not_take_them_for_absent(
    postgresql: Database,
    postgres: Postgres,
) -> None:
    postgresql.run("CREATE ROLE nosy LOGIN PASSWORD 'nosy'")
    source = open_source(parse_source_url(postgres.url(postgresql.settings.database, user="nosy", password="nosy")))
    try:
        with postgres.connect(postgresql.settings.database) as other:
            other.execute("BEGIN")
            unknown = source.open_transactions().unknown
            assert unknown is not None
            assert unknown.startswith("'nosy' may not see ")
            assert "grant pg_read_all_stats" in unknown
            postgresql.run("GRANT pg_read_all_stats TO nosy")
            assert source.open_transactions().unknown is None
    finally:
        source.close()


def test_a_session_that_tells_of_no_activity_is_not_taken_for_one_without_a_transaction(
    postgresql: Database, postgres: Postgres
) -> None:
    with postgres.connect(postgresql.settings.database) as silent:
        silent.execute("SET track_activities = off")
        silent.execute("BEGIN")
        silent.execute("CREATE TEMP TABLE written (id bigint)")

        told = postgresql.source.open_transactions()

    assert told.unknown == "1 sessions do not report transactions, because their track_activities is off"


def test_a_table_whose_rows_come_from_elsewhere_says_so_also_where_a_view_shows_it(postgresql: Database) -> None:
    here, parent, foreign, shown = (postgresql.name() for _ in range(4))
    postgresql.run(f"CREATE FOREIGN DATA WRAPPER {foreign}_wrapper")
    postgresql.run(f"CREATE SERVER {foreign}_server FOREIGN DATA WRAPPER {foreign}_wrapper")
    postgresql.run(f"CREATE TABLE {here} (id bigint)")
    postgresql.run(f"CREATE TABLE {parent} (id bigint) PARTITION BY RANGE (id)")
    postgresql.run(
        f"CREATE FOREIGN TABLE {foreign} PARTITION OF {parent} FOR VALUES FROM (0) TO (9) SERVER {foreign}_server"
    )
    postgresql.run(f"CREATE MATERIALIZED VIEW {shown} AS SELECT id FROM {here}")
    for name in (here, parent, shown):
        postgresql.run(f"CREATE VIEW {name}_seen AS SELECT id FROM {name}")
    expected = {here: None, parent: f"'{foreign}' is a foreign table", shown: f"'{shown}' is a materialized view"}

    for name, why in expected.items():
        for read in (name, f"{name}_seen"):
            said = postgresql.table(read).written_elsewhere
            assert said == why or (why is not None and (said or "").startswith(why))


# --- names and filters ---------------------------------------------------------------------------------------------


def test_a_column_that_is_to_be_read_in_another_way_must_be_there(database: Database) -> None:
    name = database.name()
    database.run(f"CREATE TABLE {name} (id integer, t varchar(9))")

    with pytest.raises(Misconfigured, match=r"no column 'T', .* It has 't'"):
        database.table(name, Overrides(as_text=frozenset({"T"})))
    with pytest.raises(Misconfigured, match="no column 'x'"):
        database.table(name, Overrides(decimals={"x": (10, 2)}))
    with pytest.raises(Misconfigured, match="cannot be a decimal"):
        Overrides(decimals={"x": (39, 2)})


def test_hostile_names_are_read_as_they_are(database: Database) -> None:
    quote = database.source.quote
    name = f"{database.name()} se\"l`ect.from's %s;--"
    columns = ", ".join(f"{quote(column)} integer" for column in HOSTILE)
    database.run(f"CREATE TABLE {quote(name)} ({columns}, PRIMARY KEY ({quote('select')}))")
    for row in range(100):
        database.run(f"INSERT INTO {quote(name)} VALUES ({', '.join([str(row)] * len(HOSTILE))})")

    table = database.table(name)
    window = SourceWindow(column="per%cent %s", lower=9)
    kept = parse_filter(
        f"{quote('a b')} < 60 AND {quote('dot.ted')} <> 20", table.column_names, database.source.sql_dialect
    )
    rows = all_rows(database, Query(table=table, window=window, filter=kept), 2)

    assert rows.schema.names == HOSTILE
    assert sorted(rows["semi;--"].to_pylist()) == [value for value in range(10, 60) if value != 20]
    assert table.primary_key == ("select",)


def test_a_name_in_other_case_is_found_if_there_is_but_one(database: Database) -> None:
    name = database.name()
    quote = database.source.quote
    database.run(f"CREATE TABLE {quote(name)} ({quote('Id')} integer)")

    assert database.table(name.upper()).name == name
    assert database.table(name).column("ID").name == "Id"
    with pytest.raises(Misconfigured, match="no column 'other'"):
        database.table(name).column("other")


@pytest.mark.parametrize("name", ["nothing", "x; DROP TABLE y", "a' OR '1'='1", 'a" --', "information_schema.tables"])
def test_a_table_that_is_not_there_is_one_sentence(database: Database, name: str) -> None:
    with pytest.raises(Misconfigured, match=r"There is no table .* Check its name and schema"):
        database.source.describe_table(TableName(name))


def test_a_filter_keeps_what_the_server_itself_would_keep(database: Database) -> None:
    name = database.name()
    database.run(f"CREATE TABLE {name} (id integer, t varchar(20), n decimal(10,2))")
    database.run(
        f"INSERT INTO {name} VALUES (1, 'it''s', 1.5), (2, 'back\\\\slash', NULL), (3, NULL, -2), (4, 'OPEN', 7)"
    )
    table = database.table(name)

    for text in (
        "id = 1",
        "t = 'it''s'",
        "T IS NOT NULL AND (n > 1 OR n IS NULL)",
        "lower(t) LIKE 'op%'",
        "id IN (1, 3) AND NOT id = 3",
        "n BETWEEN -2 AND 1.5",
        "coalesce(n, 0) * 2 + 1 >= 3",
        f"{name}.id <> 4",
        "TRUE",
    ):
        kept = parse_filter(text, table.column_names, database.source.sql_dialect)
        said = sorted(int(str(row[0])) for row in database.run(f"SELECT id FROM {name} WHERE {text}"))
        assert sorted(all_rows(database, Query(table=table, filter=kept))["id"].to_pylist()) == said, text


HOLD = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1])
connection.execute("BEGIN EXCLUSIVE")
print("held", flush=True)
input()
"""
"""Another process: locks of one process are not seen by its other copies of SQLite."""


def test_a_sqlite_file_that_somebody_writes_to_is_waited_for(tmp_path: Path) -> None:
    file = tmp_path / "shop.db"
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("CREATE TABLE t (id INTEGER)")
    with closing(open_source(parse_source_url(f"sqlite:///{file}"))) as source:
        [part] = source.parts(Query(table=source.describe_table(TableName("t"))), 1)
    rows_of(part)  # the driver is loaded

    holder = [sys.executable, "-c", HOLD, str(file)]
    with (
        ThreadPoolExecutor(1) as pool,
        subprocess.Popen(holder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as writer,
    ):
        assert writer.stdout is not None
        assert writer.stdout.readline() == "held\n"
        reading = pool.submit(rows_of, part)
        gave_up = wait([reading], timeout=0.5).done
        writer.communicate("\n")

        assert not gave_up
        assert reading.result().num_rows == 0
