"""Rows of tables that are read in increments: which of several counts, and what watermarks, keys and names may be."""

# ruff: noqa: S608 - tests write their SQL in place, about tables of their own

from datetime import date, datetime, timedelta
from itertools import permutations

import pytest

from lakehead.state.model import Mark
from lakehead.telemetry.events import PhaseMarked, TableDone, TableSkipped
from tests.integration.increment_support import (
    DAY,
    MOMENT,
    at,
    done,
    lake_rows,
    make,
    mark_of,
    now,
    scd1,
    source_rows,
    told_by_snapshot,
)
from tests.integration.pipeline_support import MARKS, ONE_SERVER, PLUGINS, Scene

pytest_plugins = PLUGINS
pytestmark = MARKS


# --- duplicate keys


@ONE_SERVER
def test_of_one_key_the_newest_row_wins_in_whatever_order_they_came(scene: Scene) -> None:
    """By the watermark, then the tiebreaks; rows alike in both are decided alike by every run."""
    later = DAY + timedelta(microseconds=1)
    rows = (
        f"(1, {at(DAY)}, 9, 'older')",
        f"(1, {at(later)}, 1, 'lower')",
        f"(1, {at(later)}, 2, 'newest')",
        f"(2, {at(later)}, 3, 'alike')",
        f"(2, {at(later)}, 3, 'alike too')",
    )
    orders = [[rows[place] for place in order] for order in list(permutations(range(5)))[::31]]
    tables = [make(scene, "id bigint, at {moment}, version bigint, v text") for _ in orders]
    for table, order in zip(tables, orders, strict=True):
        for row in order:
            scene.sql(f"INSERT INTO {table} VALUES {row}")

    done(scene.run(*(scd1(table, tiebreak_columns=["version"]) for table in tables)))

    mirrors = [lake_rows(scene, f"mirror.{table}") for table in tables]
    assert mirrors[0][0] == (1, later, 2, "newest")
    assert len(mirrors[0]) == 2
    assert mirrors == [mirrors[0]] * len(mirrors)


# --- rows without a watermark, rows without a key


def test_rows_without_a_watermark_are_included_excluded_or_refused_and_counted(scene: Scene) -> None:
    rules = ("include", "exclude", "fail")
    tables = {rule: make(scene) for rule in rules}
    for table in tables.values():
        scene.sql(f"INSERT INTO {table} VALUES (1, {at(DAY)}, 'x'), (2, NULL, 'lacks'), (3, NULL, 'lacks too')")
    orders = [scd1(table, null_watermarks=rule) for rule, table in tables.items()]
    first = scene.run(*orders)
    for table in tables.values():
        scene.sql(f"INSERT INTO {table} VALUES (4, {at(now(scene))}, 'new')")
    again, once_more = scene.run(*orders), scene.run(*orders)

    for ran in (first, again, once_more):
        assert list(ran.errors) == [tables["fail"]]
        assert "2 rows have NULL in their incremental column 'at'" in ran.errors[tables["fail"]]
    for rule in ("include", "exclude"):
        for ran in (first, again):
            raw = [each for each in ran.of(PhaseMarked, tables[rule]) if each.phase == "raw"]
            assert [each.detail["null_watermarks"] for each in raw] == [2], rule
    assert lake_rows(scene, f"mirror.{tables['include']}") == source_rows(scene, tables["include"])
    assert [row[0] for row in lake_rows(scene, f"mirror.{tables['exclude']}")] == [1, 4]
    assert scene.pipeline.snapshots(f"raw.{tables['fail']}") == []


@ONE_SERVER
def test_rows_without_a_key_are_included_excluded_or_refused_and_counted(scene: Scene) -> None:
    rules = ("include", "exclude", "fail")
    tables = {rule: make(scene, "id bigint, half bigint, at {moment}, v text") for rule in rules}
    for table in tables.values():
        scene.sql(
            f"INSERT INTO {table} VALUES (1, 1, {at(DAY)}, 'x'), (NULL, 1, {at(DAY)}, 'older'), "
            f"(NULL, 1, {at(DAY + timedelta(seconds=1))}, 'newer'), (1, NULL, {at(DAY)}, 'half')"
        )
    orders = [scd1(table, null_keys=rule, primary_keys=["id", "half"]) for rule, table in tables.items()]
    first = scene.run(*orders)
    for table in tables.values():
        scene.sql(f"INSERT INTO {table} VALUES (2, 2, {at(now(scene))}, 'new'), (NULL, 1, {at(now(scene))}, 'newest')")
    again, later = scene.run(*orders), scene.run(*orders)

    assert list(first.errors) == list(again.errors) == list(later.errors) == [tables["fail"]]
    assert "2 in 'id', 1 in 'half'" in first.errors[tables["fail"]]
    assert scene.pipeline.snapshots(f"raw.{tables['fail']}") == []
    for rule in ("include", "exclude"):
        counted = [each.detail.get("null_keys") for each in first.of(PhaseMarked, tables[rule]) if each.phase == "raw"]
        assert counted == [{"id": 2, "half": 1}], rule
    kept = [(row[0], row[1], row[3]) for row in lake_rows(scene, f"mirror.{tables['include']}")]
    assert sorted(kept, key=str) == sorted(
        [(1, 1, "x"), (2, 2, "new"), (1, None, "half"), (None, 1, "newest")], key=str
    ), "NULL is a value of the key like any other"
    assert [row[:2] for row in lake_rows(scene, f"mirror.{tables['exclude']}")] == [(1, 1), (2, 2)]


# --- what watermarks and keys may be


def test_microseconds_survive_plan_state_snapshot_and_restart(scene: Scene) -> None:
    table = make(scene)
    moments = [DAY + timedelta(microseconds=each) for each in (123_455, 123_456, 123_457)]
    for number, moment in enumerate(moments):
        scene.sql(f"INSERT INTO {table} VALUES ({number}, {at(moment)}, 'x')")
    order = scd1(table, incr_col_type="timestamp", initial_watermark="2024-05-01T12:00:00.123456")

    first = scene.run(order, scd1_slicing={"target_rows": 1})

    done(first)
    raw = scene.rows(f"raw.{table}", ingest=True).sort_by("id")
    assert raw["at"].to_pylist() == moments[1:], "the initial watermark itself is read, and nothing below it"
    assert raw["_slice"].to_pylist() == [1, 2], "a microsecond is enough to part two slices"
    landed = mark_of(scene, f"raw.{table}", Mark.LANDED)
    assert landed is not None
    assert isinstance(landed.value, datetime)
    [reached] = first.of(TableDone)
    assert reached.watermark == landed.value.isoformat(timespec="microseconds")
    assert any(reached.watermark in value for value in told_by_snapshot(scene, f"raw.{table}").values())
    # Exactly below and at the watermark: the first of them is past.
    just_below = landed.value - timedelta(microseconds=1)
    scene.sql(f"INSERT INTO {table} VALUES (8, {at(just_below)}, 'past'), (9, {at(landed.value)}, 'new')")

    done(scene.run(order))

    assert [row[0] for row in lake_rows(scene, f"mirror.{table}")] == [1, 2, 9]


@pytest.mark.parametrize("kind", ["unsigned", "uuid"])
def test_keys_beyond_64_bits_and_uuids_name_rows(scene: Scene, kind: str) -> None:
    declared = {
        "unsigned": {"postgresql": "numeric(20,0)", "mysql": "bigint unsigned"}[scene.database.kind],
        "uuid": "uuid",
    }[kind]
    keys = {
        "unsigned": ("18446744073709551615", "18446744073709551614", "0"),
        "uuid": (
            "'00000000-0000-0000-0000-000000000001'",
            "'ffffffff-ffff-ffff-ffff-ffffffffffff'",
            "'6ba7b810-9dad-11d1-80b4-00c04fd430c8'",
        ),
    }[kind]
    table = make(scene, f"id {declared} PRIMARY KEY, at {{moment}}, v text")
    scene.sql(*(f"INSERT INTO {table} VALUES ({key}, {at(DAY)}, 'old')" for key in keys))
    done(scene.run(scd1(table)))
    scene.sql(f"UPDATE {table} SET v = 'new', at = {at(now(scene))} WHERE id <> {keys[2]}")

    done(scene.run(scd1(table)))

    found = {str(row[0]): row[2] for row in lake_rows(scene, f"mirror.{table}")}
    assert found == {keys[0].strip("'"): "new", keys[1].strip("'"): "new", keys[2].strip("'"): "old"}
    assert len(lake_rows(scene, f"mirror.{table}")) == 3


def test_text_integers_and_decimals_are_watermarks(scene: Scene) -> None:
    """Text grows by its code points, though a server may order it otherwise: a merge compares it so too."""
    collated = {"postgresql": "text", "mysql": "varchar(20) COLLATE latin1_swedish_ci"}
    kinds = {
        collated[scene.database.kind]: ("'A'", "'B'", "'a'", "'é'"),
        "bigint": ("-9223372036854775808", "0", "5", "9223372036854775807"),
        "decimal(38,6)": ("-1.5", "0.000001", "0.000002", "99999999999999999999999999999999.999999"),
    }
    tables = {declared: make(scene, f"id bigint, at {declared}, v text") for declared in kinds}
    orders = [scd1(table) for table in tables.values()]
    for declared, (first, second, _, _) in kinds.items():
        scene.sql(f"INSERT INTO {tables[declared]} VALUES (1, {first}, 'x'), (2, {second}, 'x')")
    done(scene.run(*orders))
    for declared, (_, _, third, _) in kinds.items():
        scene.sql(f"INSERT INTO {tables[declared]} VALUES (3, {third}, 'x')")
    done(scene.run(*orders))
    for declared, (_, _, _, fourth) in kinds.items():
        scene.sql(f"INSERT INTO {tables[declared]} VALUES (4, {fourth}, 'x')")
        scene.sql(f"UPDATE {tables[declared]} SET at = {fourth}, v = 'new' WHERE id = 1")
    last, after = scene.run(*orders), scene.run(*orders)

    for declared, table in tables.items():
        assert lake_rows(scene, f"mirror.{table}") == source_rows(scene, table), declared
        assert [each.slices for each in last.of(TableDone, table)] == [1], declared
    assert [len(after.of(TableSkipped, table)) for table in tables.values()] == [1, 1, 1]


def test_a_number_that_is_carried_as_text_is_no_watermark(scene: Scene) -> None:
    table = make(scene, "id bigint, at decimal(50,10), v text")
    scene.sql(f"INSERT INTO {table} VALUES (1, 9, 'x'), (2, 10, 'x')")

    for as_text in (["at"], ["*"]):
        ran = scene.run(scd1(table, as_text=as_text))

        assert ran.exit_code == 1
        assert "is read as text, which is not ordered like its values" in ran.errors[table]
    assert not scene.pipeline.exists(f"raw.{table}")


def test_days_are_read_when_they_are_over(scene: Scene) -> None:
    table = make(scene, "id bigint, at date, v text")
    today = now(scene).date()
    scene.sql(*(f"INSERT INTO {table} VALUES ({back}, '{today - timedelta(days=back)}', 'x')" for back in range(4)))

    done(scene.run(scd1(table)))

    assert [row[0] for row in lake_rows(scene, f"mirror.{table}")] == [1, 2, 3]
    mark = mark_of(scene, f"raw.{table}")
    assert mark is not None
    assert mark.value == today
    assert type(mark.value) is date


# --- names


def test_names_that_are_hard_to_spell_go_through_raw_mirror_merge_and_final(scene: Scene) -> None:
    names = ("Id", "select", "a b", "dot.`ted")
    quoted = [scene.database.source.quote(name) for name in names]
    table = scene.name()
    key, mark, tie, value = quoted
    moment = MOMENT[scene.database.kind]
    scene.sql(f"CREATE TABLE {table} ({key} bigint, {mark} {moment}, {tie} bigint, {value} varchar(20))")
    scene.sql(f"INSERT INTO {table} VALUES (1, {at(DAY)}, 1, 'a'), (2, {at(DAY)}, 1, 'b'), (2, {at(DAY)}, 2, 'c')")
    order = {
        "table": table,
        "mode": "scd1",
        "incremental_column": "select",
        "primary_keys": ["Id", "dot.`ted"],
        "tiebreak_columns": ["a b"],
        "merge_filters": ["`dot.``ted` >= 'a'"],
    }
    full = {"table": table, "name": f"full_{table}", "mode": "full", "primary_keys": ["dot.`ted"]}
    done(scene.run(order, full))
    scene.sql(f"UPDATE {table} SET {mark} = {at(now(scene))}, {tie} = 7 WHERE {key} = 1")

    done(scene.run(order, full, load_date=date(2026, 1, 2)))

    wanted = sorted(scene.database.run(f"SELECT * FROM {table}"))
    mirror = scene.rows(f"mirror.{table}")
    assert mirror.column_names == list(names)
    assert lake_rows(scene, f"mirror.{table}") == wanted
    assert lake_rows(scene, f"final.full_{table}") == wanted
    assert scene.rows(f"raw.{table}").column_names == list(names)
