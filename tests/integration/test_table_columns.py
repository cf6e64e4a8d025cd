"""Values reach the columns of their names, whatever order columns stand in and whatever a session's defaults are."""

# ruff: noqa: S608 - tests write their SQL in place, about tables of their own

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lakehead.spark.jobs import PINNED, UNSET, ThreadSessions
from tests.integration.increment_support import broken_at
from tests.integration.pipeline_support import MARKS, PLUGINS, Scene
from tests.pipeline import DAY
from tests.support.effort import effort

pytest_plugins = PLUGINS
pytestmark = MARKS

NEXT_DAY = DAY.replace(day=2)
WRONG = {
    "spark.sql.ansi.enabled": "false",
    "spark.sql.caseSensitive": "true",
    "spark.sql.parser.escapedStringLiterals": "true",
    "spark.sql.parser.quotedRegexColumnNames": "true",
    "spark.sql.session.timeZone": "America/New_York",
    "spark.sql.sources.partitionOverwriteMode": "dynamic",
    "spark.sql.storeAssignmentPolicy": "LEGACY",
    "spark.sql.timestampType": "TIMESTAMP_NTZ",
    "spark.sql.variable.substitute": "true",
    "spark.wap.branch": "audit",
    "spark.wap.id": "someones",
}
"""What people have for queries of their own, and what would change what ours mean."""


@contextmanager
def defaults(session: SparkSession, conf: Mapping[str, str]) -> Iterator[None]:
    """Let new sessions begin with these settings, as `spark-defaults.conf` or a configuration's would."""
    shared = session._jsparkSession.sharedState().conf()
    for key, value in conf.items():
        shared.set(key, value)
    try:
        yield
    finally:
        for key in conf:
            shared.remove(key)


@pytest.fixture
def abc(on_sqlite: Scene) -> str:
    """A table of two columns that could be taken for each other."""
    name = on_sqlite.name()
    on_sqlite.sql(
        f"CREATE TABLE {name} (id INTEGER PRIMARY KEY, a TEXT, b TEXT)",
        f"INSERT INTO {name} VALUES (1, 'a1', 'b1'), (2, 'a2', 'b2')",
    )
    return name


def in_both_modes(name: str) -> list[dict[str, Any]]:
    scd1 = {"mode": "scd1", "incremental_column": "id", "primary_keys": ["id"]}
    return [
        {"table": name, "name": f"{name}_full", "mode": "full"},
        {"table": name, "name": f"{name}_scd1", **scd1},
    ]


def letters(scene: Scene, table: str) -> list[tuple[int, str, str]]:
    rows = scene.rows(table).select(["id", "a", "b"]).to_pylist()
    return sorted((row["id"], row["a"], row["b"]) for row in rows)


def test_columns_that_stand_in_another_order_get_the_values_of_their_names(on_sqlite: Scene, abc: str) -> None:
    scene, tables = on_sqlite, in_both_modes(abc)
    outs = [f"final.{abc}_full", f"mirror.{abc}_scd1"]
    assert scene.run(*tables).errors == {}
    for out in outs:
        scene.spark.sql(f"ALTER TABLE lake.{out} ALTER COLUMN b AFTER id")
    scene.sql(f"INSERT INTO {abc} VALUES (3, 'a3', 'b3')")
    expected = [(number, f"a{number}", f"b{number}") for number in (1, 2, 3)]

    assert scene.run(*tables, load_date=NEXT_DAY).errors == {}
    assert [letters(scene, out) for out in outs] == [expected, expected]

    assert scene.run(*tables, load_date=NEXT_DAY, reload=True).errors == {}
    assert [letters(scene, out) for out in outs] == [expected, expected]


ALTERED = {
    "a wider type": ("ALTER COLUMN size TYPE bigint", None),
    "one more": ("ADD COLUMN more string", "the raw table has no column 'more' any more"),
    "one less": ("DROP COLUMN b", "the raw table has a new column 'b'"),
}


@pytest.mark.parametrize("altered", ALTERED)
def test_a_mirror_is_merged_into_only_as_long_as_raw_fits_it(on_sqlite: Scene, altered: str) -> None:
    scene, name = on_sqlite, on_sqlite.name()
    scene.sql(f"CREATE TABLE {name} (id INT PRIMARY KEY, b TEXT, size INT)", f"INSERT INTO {name} VALUES (1, 'b', 7)")
    table = {"table": name, "mode": "scd1", "incremental_column": "id", "primary_keys": ["id"]}
    assert scene.run(table).errors == {}
    scene.sql(f"INSERT INTO {name} VALUES (2, 'b', 8)")
    assert scene.run(table, wiring=broken_at("commit_incremental")).exit_code == 1
    statement, refused = ALTERED[altered]
    scene.spark.sql(f"ALTER TABLE lake.mirror.{name} {statement}")
    before = scene.rows(f"mirror.{name}").to_pylist()

    ran = scene.elsewhere().run(scene.spark, [table])  # it merges what is in raw, and then misses the source

    rows = scene.rows(f"mirror.{name}").to_pylist()
    if refused:
        assert refused in ran.errors[name]
        assert rows == before
    else:
        assert sorted(row["size"] for row in rows) == [7, 8]


@pytest.mark.parametrize("mode", ["full", "scd1"])
def test_a_partition_that_the_source_no_longer_has_goes_whatever_a_session_overwrites(
    on_sqlite: Scene, abc: str, mode: str
) -> None:
    scene = on_sqlite
    [table] = [{**each, "partition_by": ["a"]} for each in in_both_modes(abc) if each["mode"] == mode]
    out = f"{'final' if mode == 'full' else 'mirror'}.{table['name']}"
    with defaults(scene.spark, {"spark.sql.sources.partitionOverwriteMode": "dynamic"}):
        assert scene.run(table).errors == {}
        scene.sql(f"DELETE FROM {abc} WHERE id = 1")
        assert scene.run(table, load_date=NEXT_DAY, reload=True).errors == {}
        assert letters(scene, out) == [(2, "a2", "b2")]

        scene.sql(f"DELETE FROM {abc}")
        ran = scene.run({**table, "allow_empty": True}, load_date=NEXT_DAY, reload=True)

    assert letters(scene, out) == ([] if mode == "full" else [(2, "a2", "b2")])
    assert bool(ran.errors) == (mode == "scd1")


@pytest.mark.parametrize("wrong", effort([WRONG], soak=[WRONG, *({key: WRONG[key]} for key in WRONG)]), ids=len)
def test_what_people_set_for_queries_of_their_own_changes_nothing_of_ours(
    on_sqlite: Scene, wrong: dict[str, str]
) -> None:
    scene, name = on_sqlite, on_sqlite.name()
    odd = "${env:HOME}|i."  # a variable to Spark's parser, or a pattern of columns
    scene.sql(
        f'CREATE TABLE {name} (id INTEGER PRIMARY KEY, "{odd}" TEXT, at TIMESTAMP)',
        f"INSERT INTO {name} VALUES (1, 'a\\tb', '2024-03-10 02:30:00'), (2, 'other', '2024-03-31 02:30:00')",
    )
    scd1: dict[str, Any] = {"mode": "scd1", "incremental_column": "at", "primary_keys": ["ID"]}
    tables: list[dict[str, Any]] = [
        {"table": name, "name": f"{name}_plain", **scd1},
        {"table": name, "name": f"{name}_filtered", **scd1, "merge_filters": ["at > '2024-03-10 02:00:00'"]},
        {"table": name, "name": f"{name}_full", "mode": "full", "primary_keys": ["Id"], "null_keys": "exclude"},
    ]

    with defaults(scene.spark, wrong):
        assert scene.run(*tables, lag_seconds=60).errors == {}
        scene.sql(  # a second ago: the present one is read when it is over
            f"INSERT INTO {name} VALUES (3, 'third', datetime('now', '-1 second'))",
            f"UPDATE {name} SET at = datetime('now', '-1 second') WHERE id = 1",
        )
        assert scene.run(*tables, load_date=NEXT_DAY).errors == {}

    source = sorted(tuple(row) for row in scene.database.run(f'SELECT id, "{odd}", at FROM {name}'))
    for out in (f"mirror.{name}_plain", f"mirror.{name}_filtered", f"final.{name}_full"):
        rows = sorted((row["id"], row[odd], f"{row['at']:%Y-%m-%d %H:%M:%S}") for row in scene.rows(out).to_pylist())
        assert rows == source


def test_a_threads_session_has_what_statements_depend_on(spark: SparkSession) -> None:
    assert {*PINNED, *UNSET} == set(WRONG)
    with defaults(spark, WRONG):
        mine = ThreadSessions(spark).mine()
        pinned = {key: mine.conf.get(key) for key in PINNED}
        unset = {key: mine.conf.get(key, "unset") for key in UNSET}

    assert pinned == PINNED
    assert unset == dict.fromkeys(UNSET, "unset")


@pytest.mark.parametrize("mode", ["full", "scd1"])
def test_a_key_that_the_source_has_not_is_told_before_anything_is_read_or_made(
    on_sqlite: Scene, abc: str, mode: str
) -> None:
    [table] = [{**each, "primary_keys": ["nokey"]} for each in in_both_modes(abc) if each["mode"] == mode]

    ran = on_sqlite.run(table)

    assert "has no column 'nokey'" in ran.errors[table["name"]]
    assert not on_sqlite.pipeline.exists(f"raw.{table['name']}")


def test_a_table_of_format_version_3_is_refused_before_anything_is_read(on_sqlite: Scene, abc: str) -> None:
    scene, tables = on_sqlite, in_both_modes(abc)
    assert scene.run(*tables).errors == {}
    raised = {f"{abc}_full": f"final.{abc}_full", f"{abc}_scd1": f"raw.{abc}_scd1"}
    for table in raised.values():
        scene.spark.sql(f"ALTER TABLE lake.{table} SET TBLPROPERTIES ('format-version' = '3')")
    scene.sql(f"INSERT INTO {abc} VALUES (3, 'a3', 'b3')")
    before = [scene.pipeline.snapshots(f"raw.{name}") for name in raised]

    ran = scene.run(*tables, load_date=NEXT_DAY)

    for name, table in raised.items():
        assert f"The table {table} has format version 3, and Lakehead writes version 2" in ran.errors[name]
    assert [scene.pipeline.snapshots(f"raw.{name}") for name in raised] == before
