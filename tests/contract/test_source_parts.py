"""Parts: every row of a source in exactly one of them, none much larger than the others, and all of one moment."""

# ruff: noqa: S608 - tests write their SQL in place, about tables of their own

import pickle
import threading
from collections import Counter
from dataclasses import replace
from statistics import median

import pyarrow as pa
import pytest

from lakehead.source import sql_queries
from lakehead.source.dialects import parse_source_url, read_part
from lakehead.source.port import Nulls, Query, ReadPart, SourceWindow
from tests.servers.postgres import Postgres
from tests.support.source_support import Database, all_rows, rows_of, skewed

pytest_plugins = ["tests.support.state_fixtures", "tests.support.source_fixtures"]


def sizes(parts: tuple[ReadPart, ...]) -> list[int]:
    return [rows_of(part).num_rows for part in parts]


@pytest.mark.parametrize(
    "window", [None, SourceWindow(column="v"), SourceWindow(column="k", upper=200_000_000)], ids=str
)
def test_the_largest_part_is_at_most_twice_the_median_however_the_keys_are_spread(
    database: Database,
    window: SourceWindow | None,
) -> None:
    query = Query(table=database.table(skewed(database)), window=window)

    parts = database.source.parts(query, 8)

    counted = sizes(parts)
    assert len(parts) >= 6
    assert sum(counted) == database.source.count(query)
    assert max(counted) <= 2 * median(counted)


def test_many_rows_are_parted_by_a_sample_of_them(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sql_queries, "SAMPLE", 2_000)
    query = Query(table=database.table(skewed(database, 10_000)), window=SourceWindow(column="k"))

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
        few = mysql.source.parts(Query(table=table, window=SourceWindow(column="id", upper=300)), 1)
    finally:
        mysql.source.settings = mysql.settings

    assert len(counted) >= 8
    assert sum(counted) == 5_000
    assert len(few) == 1


@pytest.mark.parametrize("kind", ["view", "table", "few large rows"])
def test_a_part_of_mysql_is_bounded_without_statistics_too(mysql: Database, kind: str) -> None:
    name, rows, size = mysql.name(), *((50, 200_000) if kind == "few large rows" else (2_000, 5_000))
    mysql.run(
        f"CREATE TABLE {name} (id bigint PRIMARY KEY, v longtext) ENGINE=InnoDB STATS_PERSISTENT=1 STATS_AUTO_RECALC=0"
    )
    mysql.run(f"INSERT INTO {name} SELECT seq, repeat('x', {size}) FROM seq_1_to_{rows}")
    if kind == "view":
        mysql.run(f"CREATE VIEW v{name} AS SELECT * FROM {name}")
    table = mysql.table(f"v{name}" if kind == "view" else name)
    assert (table.estimated_bytes or 0) < 20_000, "the server does not know"
    mysql.source.settings = replace(mysql.settings, part_bytes=1 << 20)
    try:
        parts = mysql.source.parts(Query(table=table), 1)
    finally:
        mysql.source.settings = mysql.settings

    read = [rows_of(part) for part in parts]
    assert sum(part.num_rows for part in read) == rows
    assert max(part.nbytes for part in read) < 2 << 20


def test_parts_cover_every_row_exactly_once_and_travel(database: Database) -> None:
    query = Query(table=database.table(skewed(database, 2_000)))

    travelled = pickle.loads(pickle.dumps(database.source.parts(query, 5)))  # noqa: S301 - our own

    ids = Counter(value for part in travelled for value in rows_of(part)["id"].to_pylist())
    assert ids == Counter(range(1, 2_001))


def test_rows_with_null_in_the_column_that_parts_them_are_in_one_part(database: Database) -> None:
    name = database.name()
    database.numbers(name, 1_000, v="CASE WHEN n % 3 = 0 THEN NULL ELSE n END")
    query = Query(table=database.table(name), window=SourceWindow(column="v", nulls=Nulls.INCLUDE))

    assert Counter(all_rows(database, query, 4)["id"].to_pylist()) == Counter(range(1, 1_001))


def test_text_keys_part_a_table_too(database: Database) -> None:
    name = database.name()
    spelled = {"postgresql": "'Ä''\\' || n", "mysql": "concat('Ä''\\\\', n)", "sqlite": "'Ä''\\' || n"}[database.kind]
    numbers = database.name()
    database.numbers(numbers, 1_000)
    wide = " CHARACTER SET utf8mb4" if database.kind == "mysql" else ""
    database.run(f"CREATE TABLE {name} (id integer, k varchar(50){wide})")
    database.run(f"INSERT INTO {name} SELECT n, {spelled} FROM (SELECT id AS n FROM {numbers}) AS g")
    query = Query(table=database.table(name), window=SourceWindow(column="k"))

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
    query = Query(table=postgresql.table(name), window=SourceWindow(column="v", lower=0))

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
    small = parse_source_url(postgresql.url)
    assert small.batch_bytes == 8 << 20

    batches = read_part(part)
    first = next(batches)
    batches.close()  # type: ignore[attr-defined]  # a generator; the connection ends with it

    assert first.num_rows < 20_000
    assert first.nbytes < 2 * small.batch_bytes
