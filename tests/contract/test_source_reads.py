"""Windows, parts, names and filters: the same rows from every kind of source, each exactly once."""

# ruff: noqa: S608, DTZ001 - tests write their SQL in place, about tables of their own, and of moments without a zone

import pickle
import threading
import traceback
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from statistics import median

import pyarrow as pa
import pytest

from lakehead.errors import LakeheadError, Misconfigured, Unavailable
from lakehead.source import questions
from lakehead.source.errors import NotExact
from lakehead.source.filters import parse_filter
from lakehead.source.opening import open_source
from lakehead.source.port import Nulls, Overrides, Query, ReadPart, TableName, Window
from lakehead.source.reading import read
from lakehead.source.settings import SourceSettings
from tests.contract.source_scene import Database, all_rows, rows_of
from tests.servers.mariadb import MariaDB
from tests.servers.ports import free_ports
from tests.servers.postgres import Postgres

pytest_plugins = ["tests.contract.state_fixtures", "tests.contract.source_fixtures"]

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
    (Window(column="at", lower=AT), {4, 5, 7}),
    (Window(column="at", lower=AT, lower_included=True), {1, 2, 3, 4, 5, 7}),
    (Window(column="at", upper=AT), {0, 1, 2, 3, 6}),
    (Window(column="at", upper=AT, upper_included=False), {0, 6}),
    (Window(column="at", lower=AT, upper=AT + timedelta(microseconds=1)), {4}),
    (Window(column="at"), {0, 1, 2, 3, 4, 5, 6, 7}),
    (Window(column="at", lower=AT, nulls=Nulls.INCLUDE), {4, 5, 7, 8, 9}),
    (Window(column="at", nulls=Nulls.INCLUDE), set(range(10))),
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
        window = Window(column="at", lower=lower, upper=upper)
        got += all_rows(database, Query(table=table, window=window))["id"].to_pylist()

    assert sorted(got) == list(range(8))


def test_rows_without_a_watermark_stop_a_table_whose_rule_is_to_fail_and_are_counted(
    database: Database,
) -> None:
    name = moments(database)
    table = database.table(name)
    window = Window(column="at", upper=AT, nulls=Nulls.FAIL)

    with pytest.raises(NotExact, match="2 rows have no value in 'at'"):
        database.source.parts(Query(table=table, window=window), 2)
    kept = parse_filter("id < 8", table, database.kind)
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


def test_an_open_transaction_holds_back_what_may_be_taken_as_committed(
    postgresql: Database,
    postgres: Postgres,
) -> None:
    with postgres.connect(postgresql.settings.database) as late:
        late.execute("BEGIN")
        [(began,)] = late.execute("SELECT now()").fetchall()

        with postgresql.source.snapshot():  # our own readers never write, and hold back nothing
            told = postgresql.source.open_transactions()

        assert told.known
        assert told.oldest is not None
        assert told.oldest <= began
        late.execute("ROLLBACK")
        with postgresql.source.snapshot():
            assert postgresql.source.open_transactions().oldest is None


def test_a_server_that_does_not_tell_of_open_transactions_says_so(
    mysql: Database,
    sqlite: Database,
) -> None:
    assert not mysql.source.open_transactions().known
    assert not sqlite.source.open_transactions().known


def test_a_user_who_may_not_see_others_does_not_take_them_for_absent(
    postgresql: Database,
    postgres: Postgres,
) -> None:
    postgresql.run("CREATE ROLE nosy LOGIN PASSWORD 'nosy'")
    source = open_source(SourceSettings.parse(postgres.url(postgresql.settings.database, user="nosy", password="nosy")))
    try:
        with postgres.connect(postgresql.settings.database) as other:
            other.execute("BEGIN")
            assert not source.open_transactions().known
    finally:
        source.close()


# --- parts ---------------------------------------------------------------------------------------------------------


def skewed(database: Database, count: int = 20_000) -> str:
    """A table with 99 % of its keys in one small range, and one moment for half of the rows."""
    name = database.name()
    wide = "CASE WHEN n % 100 = 0 THEN n * 10000000 ELSE n END"
    stamp = "CASE WHEN n % 2 = 0 THEN 7 ELSE n END"
    database.numbers(name, count, k=wide, v=stamp)
    if database.kind == "sqlite":
        database.run(f"CREATE UNIQUE INDEX u{name} ON {name} (k)")
    else:
        database.run(f"ALTER TABLE {name} ADD PRIMARY KEY (k)")
    return name


def sizes(parts: tuple[ReadPart, ...]) -> list[int]:
    return [rows_of(part).num_rows for part in parts]


@pytest.mark.parametrize("window", [None, Window(column="v"), Window(column="k", upper=200_000_000)], ids=str)
def test_the_largest_part_is_at_most_twice_the_median_however_the_keys_are_spread(
    database: Database,
    window: Window | None,
) -> None:
    query = Query(table=database.table(skewed(database)), window=window)

    parts = database.source.parts(query, 8)

    counted = sizes(parts)
    assert len(parts) >= 6
    assert sum(counted) == database.source.count(query)
    assert max(counted) <= 2 * median(counted)


def test_many_rows_are_parted_by_a_sample_of_them(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(questions, "SAMPLE", 2_000)
    query = Query(table=database.table(skewed(database, 10_000)), window=Window(column="k"))

    counted = sizes(database.source.parts(query, 4))

    assert sum(counted) == 10_000
    assert max(counted) <= 2 * median(counted)


def test_a_part_of_mysql_is_never_larger_than_can_be_held(mysql: Database) -> None:
    name = skewed(mysql, 5_000)
    mysql.run(f"ANALYZE TABLE {name}")
    table = mysql.table(name)
    mysql.source.settings = replace(mysql.settings, part_bytes=(table.estimated_bytes or 0) // 8)
    try:
        counted = sizes(mysql.source.parts(Query(table=table), 1))
        few = mysql.source.parts(Query(table=table, window=Window(column="id", upper=300)), 1)
    finally:
        mysql.source.settings = mysql.settings

    assert len(counted) >= 8
    assert sum(counted) == 5_000
    assert len(few) == 1


def test_a_column_that_is_to_be_read_in_another_way_must_be_there(database: Database) -> None:
    name = database.name()
    database.run(f"CREATE TABLE {name} (id integer, t varchar(9))")

    with pytest.raises(Misconfigured, match=r"no column 'T' .* It has 't'"):
        database.table(name, Overrides(as_text=frozenset({"T"})))
    with pytest.raises(Misconfigured, match="no column 'x'"):
        database.table(name, Overrides(decimals={"x": (10, 2)}))
    with pytest.raises(Misconfigured, match="cannot be a decimal"):
        Overrides(decimals={"x": (39, 2)})


def test_parts_cover_every_row_exactly_once_and_travel(database: Database) -> None:
    query = Query(table=database.table(skewed(database, 2_000)))

    travelled = pickle.loads(pickle.dumps(database.source.parts(query, 5)))  # noqa: S301 - our own

    ids = Counter(value for part in travelled for value in rows_of(part)["id"].to_pylist())
    assert ids == Counter(range(1, 2_001))


def test_rows_with_null_in_the_column_that_parts_them_are_in_one_part(database: Database) -> None:
    name = database.name()
    database.numbers(name, 1_000, v="CASE WHEN n % 3 = 0 THEN NULL ELSE n END")
    query = Query(table=database.table(name), window=Window(column="v", nulls=Nulls.INCLUDE))

    assert Counter(all_rows(database, query, 4)["id"].to_pylist()) == Counter(range(1, 1_001))


def test_text_keys_part_a_table_too(database: Database) -> None:
    name = database.name()
    spelled = {"postgresql": "'Ä''\\' || n", "mysql": "concat('Ä''\\\\', n)", "sqlite": "'Ä''\\' || n"}[database.kind]
    numbers = database.name()
    database.numbers(numbers, 1_000)
    wide = " CHARACTER SET utf8mb4" if database.kind == "mysql" else ""
    database.run(f"CREATE TABLE {name} (id integer, k varchar(50){wide})")
    database.run(f"INSERT INTO {name} SELECT n, {spelled} FROM (SELECT id AS n FROM {numbers}) AS g")
    query = Query(table=database.table(name), window=Window(column="k"))

    parts = database.source.parts(query, 4)

    assert len(parts) == 4
    assert Counter(value for part in parts for value in rows_of(part)["id"].to_pylist()) == Counter(range(1, 1_001))


def test_a_snapshot_shows_every_part_the_table_as_it_was_while_rows_are_changed(
    postgresql: Database,
) -> None:
    name = postgresql.name()
    postgresql.run(
        f"CREATE TABLE {name} AS SELECT n AS id, 0 AS v, repeat('x', 100) AS t FROM generate_series(1, 5000) AS g(n)"
    )
    table = postgresql.table(name)

    with postgresql.source.snapshot() as snapshot:
        parts = postgresql.source.parts(Query(table=table), 4, snapshot)
        first = rows_of(parts[0])
        postgresql.run(f"UPDATE {name} SET v = 1")  # every row moves to another block
        postgresql.run(f"DELETE FROM {name} WHERE id % 2 = 0")
        postgresql.run(f"INSERT INTO {name} VALUES (9999, 2, 'new')")
        rest = [rows_of(part) for part in parts[1:]]

    rows = pa.concat_tables([first, *rest])
    assert len(parts) == 4
    assert Counter(rows["id"].to_pylist()) == Counter(range(1, 5_001))
    assert set(rows["v"].to_pylist()) == {0}


def test_a_row_that_is_updated_again_and_again_during_a_parallel_read_is_read_once(
    postgresql: Database,
    postgres: Postgres,
) -> None:
    name = postgresql.name()
    postgresql.run(f"CREATE TABLE {name} AS SELECT n AS id, 0 AS v FROM generate_series(1, 20000) AS g(n)")
    done = threading.Event()

    def update() -> None:
        with postgres.connect(postgresql.settings.database) as other:
            while not done.is_set():
                other.execute(f"UPDATE {name} SET v = v + 1 WHERE id % 1000 = 0".encode())

    writer = threading.Thread(target=update)
    writer.start()
    try:
        rows = all_rows(postgresql, Query(table=postgresql.table(name)), 6)
    finally:
        done.set()
        writer.join()

    assert Counter(rows["id"].to_pylist()) == Counter(range(1, 20_001))


def test_a_partitioned_table_is_parted_by_the_blocks_of_all_its_partitions(postgresql: Database) -> None:
    name = postgresql.name()
    postgresql.run(f"CREATE TABLE {name} (id integer, t text) PARTITION BY RANGE (id)")
    for number, (low, high) in enumerate([(0, 500), (500, 8_000), (8_000, 10_001)]):
        postgresql.run(f"CREATE TABLE {name}_{number} PARTITION OF {name} FOR VALUES FROM ({low}) TO ({high})")
    postgresql.run(f"INSERT INTO {name} SELECT n, repeat('x', 50) FROM generate_series(1, 10000) AS g(n)")

    parts = postgresql.source.parts(Query(table=postgresql.table(name)), 6)

    counted = sizes(parts)
    assert sum(counted) == 10_000
    assert max(counted) <= 2 * median(counted)


def test_a_window_whose_values_cannot_be_parted_evenly_is_parted_by_blocks(postgresql: Database) -> None:
    name = postgresql.name()
    postgresql.numbers(name, 10_000, v="CASE WHEN n % 100 = 0 THEN n ELSE 7 END")
    query = Query(table=postgresql.table(name), window=Window(column="v", lower=0))

    counted = sizes(postgresql.source.parts(query, 4))

    assert len(counted) == 4
    assert sum(counted) == 10_000
    assert max(counted) <= 2 * median(counted)


def test_a_view_is_read_whole(database: Database) -> None:
    name = skewed(database, 500)
    database.run(f"CREATE VIEW v{name} AS SELECT id FROM {name} WHERE id <= 300")

    assert Counter(all_rows(database, Query(table=database.table(f"v{name}")), 3)["id"].to_pylist()) == Counter(
        range(1, 301)
    )


def test_batches_stay_small_and_come_before_the_part_is_read_to_its_end(postgresql: Database) -> None:
    name = postgresql.name()
    postgresql.run(
        f"CREATE TABLE {name} AS SELECT n AS id, repeat('x', 1000) AS t FROM generate_series(1, 20000) AS g(n)"
    )
    [part] = postgresql.source.parts(Query(table=postgresql.table(name)), 1)
    small = SourceSettings.parse(postgresql.url)
    assert small.batch_bytes == 8 << 20

    batches = read(part)
    first = next(batches)
    batches.close()  # type: ignore[attr-defined]  # a generator; the connection ends with it

    assert first.num_rows < 20_000
    assert first.nbytes < 2 * small.batch_bytes


# --- names and filters ---------------------------------------------------------------------------------------------


def test_hostile_names_are_read_as_they_are(database: Database) -> None:
    quote = database.source.quote
    name = f"{database.name()} se\"l`ect.from's %s;--"
    columns = ", ".join(f"{quote(column)} integer" for column in HOSTILE)
    database.run(f"CREATE TABLE {quote(name)} ({columns}, PRIMARY KEY ({quote('select')}))")
    for row in range(100):
        database.run(f"INSERT INTO {quote(name)} VALUES ({', '.join([str(row)] * len(HOSTILE))})")

    table = database.table(name)
    window = Window(column="per%cent %s", lower=9)
    kept = parse_filter(f"{quote('a b')} < 60 AND {quote('dot.ted')} <> 20", table, database.kind)
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
        database.source.catalogue(TableName(name))


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
        kept = parse_filter(text, table, database.kind)
        said = sorted(int(str(row[0])) for row in database.run(f"SELECT id FROM {name} WHERE {text}"))
        assert sorted(all_rows(database, Query(table=table, filter=kept))["id"].to_pylist()) == said, text


# --- what goes wrong -----------------------------------------------------------------------------------------------

CANARY = "c4nary/p:w@d#%"


def _raised(settings: SourceSettings) -> LakeheadError:
    with pytest.raises(LakeheadError) as raised:
        open_source(settings)
    _no_canary(raised.value, settings)
    return raised.value


def _no_canary(error: BaseException, settings: SourceSettings) -> None:
    """The password is nowhere that a log would show."""
    told = "".join(traceback.format_exception(error)) + repr(error) + repr(settings) + str(settings)
    chain: BaseException | None = error
    while chain is not None:
        told += repr(chain) + repr(chain.args)
        chain = chain.__cause__ or chain.__context__
    for secret in (CANARY, "c4nary"):
        assert secret not in told


@pytest.mark.parametrize("kind", ["postgresql", "mysql"])
def test_a_wrong_password_a_wrong_database_and_a_host_out_of_reach_are_one_sentence_each(
    kind: str, request: pytest.FixtureRequest
) -> None:
    server: Postgres | MariaDB = request.getfixturevalue("postgres" if kind == "postgresql" else "mariadb")
    database: Database = request.getfixturevalue(kind)
    password = {"password": database.settings.password or ""}
    url = f"{kind}://lakehead@127.0.0.1:{server.port}"

    wrong = _raised(SourceSettings.parse(f"{url}/{database.settings.database}", password=CANARY))
    assert isinstance(wrong, Misconfigured)
    assert "refused user 'lakehead' or the password" in str(wrong)

    absent = _raised(SourceSettings.parse(f"{url}/nothing", **password))
    assert isinstance(absent, Misconfigured)
    assert "no database 'nothing'" in str(absent)

    for place in (f"127.0.0.1:{free_ports(1)[0]}", "no-such-host.invalid:1234"):
        away = _raised(SourceSettings.parse(f"{kind}://lakehead@{place}/x", password=CANARY))
        assert isinstance(away, Unavailable)
        assert "cannot be reached" in str(away)
        assert "\n" not in str(away)


@pytest.mark.parametrize("kind", ["postgresql", "mysql"])
def test_a_task_that_is_refused_says_so_at_once_and_without_the_password(
    kind: str, request: pytest.FixtureRequest
) -> None:
    database: Database = request.getfixturevalue(kind)
    name = skewed(database, 10)
    [part] = database.source.parts(Query(table=database.table(name)), 1)
    settings = SourceSettings.parse(database.url, password=CANARY)
    refused = ReadPart(settings=settings, table=name, columns=part.columns, relation=part.relation, where="")

    with pytest.raises(Misconfigured, match="refused user") as raised:
        list(read(refused))
    _no_canary(raised.value, settings)
    assert "c4nary" not in repr(refused)

    database.run(f"DROP TABLE {name}")
    with pytest.raises(LakeheadError, match=name):
        list(read(part))


def test_a_snapshot_that_has_ended_is_no_reason_to_read_without_one(postgresql: Database) -> None:
    name = skewed(postgresql, 10)
    with postgresql.source.snapshot() as snapshot:
        [part] = postgresql.source.parts(Query(table=postgresql.table(name)), 1, snapshot)

    with pytest.raises(Unavailable, match=r"snapshot .* is gone"):
        list(read(part))


def test_a_missing_file_and_one_that_is_no_database_are_one_sentence_each(tmp_path: Path) -> None:
    assert "There is no file" in str(_raised(SourceSettings.parse(f"sqlite:///{tmp_path}/none.db")))
    assert not (tmp_path / "none.db").exists()
    (tmp_path / "text.db").write_text("not a database, but long enough to be looked at as one " * 20)
    assert "is not a SQLite database" in str(_raised(SourceSettings.parse(f"sqlite:///{tmp_path}/text.db")))
