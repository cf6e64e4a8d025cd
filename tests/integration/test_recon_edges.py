"""Comparisons that once found differences where there were none, overlooked some, or ended early."""

# ruff: noqa: S608 - tests write their SQL in place, about tables of their own

from typing import Any

import pytest

from lakehead.extract import recon
from lakehead.extract.recon_report import Difference, Outcome
from tests.integration.increment_support import done
from tests.integration.pipeline_support import MARKS, PLUGINS, Scene
from tests.integration.recon_support import EVERY, KINDS, compare, compare_all, loaded, mirror, scd1
from tests.support.effort import effort

pytest_plugins = PLUGINS
pytestmark = MARKS


@pytest.fixture
def of_kind(kind: str, request: pytest.FixtureRequest) -> Scene:
    scene: Scene = request.getfixturevalue(f"on_{kind}")
    return scene


def found(scene: Scene, table: dict[str, Any]) -> list[tuple[str, str]]:
    report, _ = compare(scene, table)
    assert report.outcome in {Outcome.EQUAL, Outcome.DIFFERENT}, report
    return sorted((each.kind.value, each.key) for each in report.keys)


def test_decimals_of_sqlite_with_more_than_28_digits_are_compared(on_sqlite: Scene) -> None:
    scene, name = on_sqlite, on_sqlite.name()
    scene.sql(f"CREATE TABLE {name} (id bigint, at bigint, n decimal(38,18))")
    scene.sql(f"INSERT INTO {name} VALUES (1, 1, 123456789012), (2, 2, -0.5), (3, 3, 0)")
    table = scd1(name, ["id"])
    done(scene.run(table))

    assert found(scene, table) == []
    mirror(scene, name, "UPDATE {t} SET n = n + 0.1 WHERE id = 1")
    assert found(scene, table) == [("changed", "1")]


@EVERY
def test_keys_that_share_their_lowest_bits_are_spread_over_buckets(of_kind: Scene) -> None:
    scene, name = of_kind, of_kind.name()
    scene.sql(f"CREATE TABLE {name} (id bigint, at bigint)")
    keys = [*(number * 4096 for number in range(-3, 6)), -(2**63), 2**63 - 1]
    scene.sql(f"INSERT INTO {name} VALUES {', '.join(f'({key}, 1)' for key in keys)}")
    table = scd1(name, ["id"])
    done(scene.run(table))
    assert found(scene, table) == []
    mirror(scene, name, "DELETE FROM {t} WHERE id IN (-4096, 4096, 8192)")

    report, _ = compare(scene, table)

    assert sorted(each.key for each in report.keys) == ["-4096", "4096", "8192"]
    assert report.buckets == len({each.bucket for each in report.keys}) == 3


def test_a_key_of_columns_with_several_collations_is_compared_by_its_bytes(on_postgresql: Scene) -> None:
    scene, name = on_postgresql, on_postgresql.name()
    scene.sql(f"""CREATE TABLE {name} (a text COLLATE "POSIX", b text COLLATE "C", at bigint)""")
    scene.sql(f"INSERT INTO {name} VALUES ('x', 'y', 1), ('x', 'Y', 2), ('é', 'y', 3)")
    table = scd1(name, ["a", "b"])
    done(scene.run(table))

    assert found(scene, table) == []
    mirror(scene, name, "DELETE FROM {t} WHERE b = 'Y'")
    assert found(scene, table) == [("missing", "1:x,1:Y")]


@pytest.mark.parametrize("kind", effort(("postgresql",), soak=KINDS))
def test_later_rows_of_an_appended_tables_keys_do_not_hide_the_earlier_ones(of_kind: Scene) -> None:
    scene, name = of_kind, of_kind.name()
    scene.sql(f"CREATE TABLE {name} (id bigint, at bigint)", f"INSERT INTO {name} VALUES (1, 1), (2, 2), (2, 3)")
    table = {**scd1(name, ["id"]), "mode": "append"}
    done(scene.run(table))
    scene.sql(f"INSERT INTO {name} VALUES (1, 4), (2, 5)")

    report, _ = compare(scene, table)

    assert (report.outcome, report.source_rows, report.target_rows, report.pending) == (Outcome.EQUAL, 3, 3, 2), report
    scene.spark.sql(f"DELETE FROM lake.raw.{name} WHERE at = 3")
    assert found(scene, table) == [("fewer", "2")]


@EVERY
def test_of_several_rows_of_a_key_in_the_source_the_newest_is_compared(of_kind: Scene) -> None:
    scene, name = of_kind, of_kind.name()
    scene.sql(f"CREATE TABLE {name} (id varchar(9), at bigint, tie bigint, v varchar(9))")
    rows = [
        "('a', 1, 1, 'old')",
        "('a', 2, 1, 'older')",
        "('a', 2, 2, 'new')",
        "('A', 1, NULL, 'x')",
        "('b', 1, 1, 'y')",
    ]
    scene.sql(f"INSERT INTO {name} VALUES {', '.join(rows)}")
    table = scd1(name, ["id"], tiebreak_columns=["tie"])
    done(scene.run(table))
    assert found(scene, table) == []
    scene.sql(f"INSERT INTO {name} VALUES ('b', 9, 1, 'later')")

    report, _ = compare(scene, table)

    assert (report.outcome, report.source_rows, report.target_rows, report.pending) == (Outcome.EQUAL, 2, 2, 1), report
    mirror(scene, name, "UPDATE {t} SET v = 'other' WHERE id = 'a'")
    assert found(scene, table) == [("changed", "1:a")]


def test_a_table_that_cannot_be_compared_does_not_stop_the_others(on_postgresql: Scene) -> None:
    scene, name = on_postgresql, on_postgresql.name()
    scene.sql(f"CREATE TABLE {name} (id bigint, at bigint)", f"INSERT INTO {name} VALUES (1, 1)")
    lost, good = scd1(name, ["id"]), loaded(scene)
    done(scene.run(lost))
    scene.sql(f"DROP TABLE {name}")

    [(gone, event), (other, _)] = compare_all(scene, lost, good)
    unreachable = Scene(scene.database, scene.elsewhere(), scene.spark)
    [(away, _), (_, _)] = compare_all(unreachable, good, lost)

    assert (gone.outcome, event.outcome) == (Outcome.MISCONFIGURED, "failed")
    assert "There is no table" in gone.notes[0]
    assert event.reason == gone.notes[0]
    assert other.outcome is Outcome.EQUAL
    assert away.outcome is Outcome.FAILED, away


def test_columns_that_one_side_lacks_are_told(on_sqlite: Scene) -> None:
    scene = on_sqlite
    table = {**loaded(scene), "reconciliation": {"sums": ["n", "fresh"]}}
    scene.sql(f"ALTER TABLE {table['table']} ADD COLUMN fresh bigint", f"ALTER TABLE {table['table']} DROP COLUMN v")

    report, _ = compare(scene, table)

    assert report.skipped == {"fresh": "the target does not have it", "v": "the source does not have it"}
    assert report.outcome is Outcome.EQUAL, report


def test_late_commits_within_the_lag_are_named_as_what_may_differ(on_postgresql: Scene) -> None:
    scene, name = on_postgresql, on_postgresql.name()
    scene.sql(f"CREATE TABLE {name} (id bigint PRIMARY KEY, at timestamptz)")
    scene.sql(f"INSERT INTO {name} VALUES (1, now() - interval '2 days'), (2, now() - interval '1 day')")
    table = scd1(name, ["id"], lag_seconds=60)
    done(scene.run(table))
    scene.sql(f"INSERT INTO {name} VALUES (3, now() - interval '12 hours')")

    report, _ = compare(scene, table)

    assert [(each.kind, each.key) for each in report.keys] == [(Difference.MISSING, "3")]
    assert any("committed late" in note for note in report.notes)


def test_no_more_keys_are_compared_than_memory_is_meant_for(
    on_postgresql: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = on_postgresql
    table = loaded(scene)
    mirror(scene, table["table"], "DELETE FROM {t} WHERE true")
    monkeypatch.setattr(recon, "MAX_OPENED_ROWS", 4)

    report, _ = compare(scene, table)

    assert (report.buckets, report.not_opened, len(report.keys)) == (10, 6, 4)


def test_a_view_is_compared_and_one_that_is_missing_is_no_error(on_postgresql: Scene) -> None:
    scene, name = on_postgresql, on_postgresql.name()
    scene.sql(f"CREATE TABLE {name} (id bigint PRIMARY KEY)", f"INSERT INTO {name} VALUES (1), (2)")
    table = {"table": name, "mode": "full", "finalize": "view"}
    done(scene.run(table))
    assert found(scene, table) == []
    scene.sql(f"DELETE FROM {name} WHERE id = 2")
    assert found(scene, table) == [("extra", "2")]
    scene.spark.sql(f"DROP VIEW lake.final.{name}")

    report, _ = compare(scene, table)

    assert report.outcome is Outcome.NOT_COMPARED, report
