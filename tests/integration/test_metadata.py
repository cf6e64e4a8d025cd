"""Catalogues are snapshotted before a run, and used by its tables: cache, requirement, guardrail, file sinks."""

# ruff: noqa: S608 - tests write their SQL in place, about tables of their own

from dataclasses import replace
from typing import Any

import pytest

from lakehead.source.postgresql_source import PostgreSQLSource
from lakehead.telemetry.events import MetadataCollected, SchemaDrifted, SnapshotDamaged, TableStart
from tests.integration.pipeline_support import MARKS, PLUGINS, Scene
from tests.integration.sink_support import Kept, full, numbers, scd1
from tests.pipeline import DAY, Ran

pytest_plugins = (*PLUGINS, "tests.integration.sink_fixtures")
pytestmark = [pytest.mark.slow, *MARKS]


def followed(scene: Scene, **metadata: Any) -> Scene:
    given = {"enabled": True, "cache_path": str(scene.pipeline.folder / "metadata"), **metadata}
    return replace(scene, pipeline=replace(scene.pipeline, metadata=given))


def made(scene: Scene, columns: str = "id int PRIMARY KEY, at int, n numeric(10,2)") -> str:
    name = scene.name()
    scene.sql(f"CREATE TABLE {name} ({columns})", f"INSERT INTO {name} VALUES (1, 1, 1.5)")
    return name


def collected(ran: Ran) -> list[MetadataCollected]:
    return ran.of(MetadataCollected)


def test_snapshots_are_there_before_the_first_table_starts_and_are_kept(
    on_postgresql: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, snapshot_tables = list[int](), PostgreSQLSource.snapshot_tables

    def counted(self: PostgreSQLSource, schema: str | None, names: Any) -> Any:
        asked.append(len(names))
        return snapshot_tables(self, schema, names)

    monkeypatch.setattr(PostgreSQLSource, "snapshot_tables", counted)
    scene = on_postgresql
    names = [made(scene) for _ in range(2)]
    tables = [full(name) for name in names]
    assert scene.run(*tables).errors == {}
    assert asked == [], "nobody asked for metadata"

    required = {"require_snapshot": True}
    first = followed(scene, schema_policy=required).run(*tables, load_date=DAY.replace(day=2))
    again = followed(scene, schema_policy=required).run(*tables, load_date=DAY.replace(day=3))

    assert (first.errors, again.errors, asked) == ({}, {}, [2])
    kinds = [type(each.event) for each in first.told]
    assert kinds.index(MetadataCollected) < kinds.index(TableStart)
    assert [(each.tables, each.from_cache) for each in (*collected(first), *collected(again))] == [
        (2, False),
        (2, True),
    ]


def test_a_damaged_cache_is_collected_again_and_a_damaged_load_is_told(on_postgresql: Scene) -> None:
    scene = followed(on_postgresql)
    name = made(scene)
    assert scene.run(full(name)).errors == {}
    for file in (scene.pipeline.folder / "metadata").rglob("*.json"):
        file.write_text("{")

    ran = scene.run(full(name), load_date=DAY.replace(day=2))

    assert ran.errors == {}
    assert collected(ran)[0].damaged
    assert len(ran.of(SnapshotDamaged)) == 1


def test_a_source_that_does_not_answer_stops_only_tables_that_require_a_snapshot(on_postgresql: Scene) -> None:
    scene = on_postgresql
    name = made(scene)
    tables = [full(name), full(name, name="required", schema_policy={"require_snapshot": True})]
    assert followed(scene).run(*tables).errors == {}
    dead = replace(scene, pipeline=scene.elsewhere())

    ran = followed(dead, cache_path=str(scene.pipeline.folder / "other")).run(*tables)  # both are loaded for the day

    assert collected(ran)[0].error
    assert ran.errors == {}
    ran = followed(dead, cache_path=str(scene.pipeline.folder / "other")).run(*tables, load_date=DAY.replace(day=2))
    assert set(ran.errors) == {name, "required"}


def test_a_table_without_the_snapshot_that_it_requires_is_not_read(on_postgresql: Scene) -> None:
    scene = on_postgresql
    name = scene.name()
    scene.sql(f"CREATE VIEW {name} AS SELECT 1 AS id")
    scene = followed(scene, schema_policy={"require_snapshot": True})
    scene.pipeline.folder.joinpath("metadata").write_text("in the way")

    ran = scene.run(full(name))

    assert "there is no snapshot of it" in ran.errors[name]
    assert not scene.pipeline.exists(f"raw.{name}")


def test_decimals_beyond_the_guardrail_or_the_table_stop_it_before_it_is_read(on_postgresql: Scene) -> None:
    scene = on_postgresql
    limited = full(made(scene), name="limited", guardrails={"max_precision": 9})
    ignored = full(made(scene), name="ignored", schema_policy={"widened": "ignore"})
    evolved = full(made(scene), name="evolved")
    assert set(scene.run(limited, ignored, evolved).errors) == {"limited"}
    for table in (ignored, evolved):
        scene.sql(f"ALTER TABLE {table['table']} ALTER COLUMN n TYPE numeric(12,2)")
        scene.sql(f"UPDATE {table['table']} SET n = 1234567890.12")

    ran = scene.run(limited, ignored, evolved, load_date=DAY.replace(day=2))

    assert set(ran.errors) == {"limited", "ignored"}
    assert (
        "column 'n' is numeric(10,2) in the source, read as decimal(10,2), and guardrails allow at most a precision of "
        "9 and a scale of 38" in ran.errors["limited"]
    )
    assert (
        "column 'n' is numeric(12,2) in the source, read as decimal(12,2), and decimal(10,2) in the table"
        in ran.errors["ignored"]
    )
    assert not scene.pipeline.exists("raw.limited")
    assert [str(row["n"]) for row in scene.rows("final.evolved").to_pylist()] == ["1234567890.12"]


def test_files_are_not_changed_and_the_table_says_what_to_do(in_files: Kept) -> None:
    kept = in_files
    ignoring, evolving = numbers(kept, 1), numbers(kept, 1)
    tables = [scd1(ignoring, schema_policy={"new": "ignore"}), scd1(evolving)]
    assert kept.run(*tables).errors == {}
    for name in (ignoring, evolving):
        kept.scene.sql(f"ALTER TABLE {name} ADD COLUMN more text", f"INSERT INTO {name} VALUES (2, 2, 'y', 'm')")

    ran = kept.run(*tables)

    assert list(ran.errors) == [evolving]
    assert "the source has a new column 'more' of type TEXT (string)" in ran.errors[evolving]
    assert "columns of a file sink cannot be changed: rename the table" in ran.errors[evolving]
    assert kept.rows("mirror", ignoring, "id", "v") == [(1, "x"), (2, "y")]
    assert [(each.action, each.column) for each in ran.of(SchemaDrifted, evolving)] == [("freeze", "more")]
