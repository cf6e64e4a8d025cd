"""Columns of a source change: each kind of change under each policy, on real servers, in raw and what readers read."""

# ruff: noqa: S608 - tests write their SQL in place, about tables of their own

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from lakehead.extract import iceberg_tables
from lakehead.metadata.policy import Action, Drift
from lakehead.telemetry.emitter import EventEnvelope
from lakehead.telemetry.events import SchemaDrifted, TableSkipped, TableStep
from tests.integration.increment_support import broken_at
from tests.integration.pipeline_support import MARKS, PLUGINS, SERVERS, Scene
from tests.pipeline import DAY, Ran
from tests.support.effort import effort

pytest_plugins = PLUGINS
pytestmark = [pytest.mark.slow, *MARKS]

NEXT_DAY = DAY.replace(day=2)
COLUMNS = "id int PRIMARY KEY, at int, n int NOT NULL, v varchar(20), w bigint"

STATEMENTS: dict[Drift, tuple[str, ...]] = {
    Drift.NEW: ("ALTER TABLE {t} ADD COLUMN more varchar(10)",),
    Drift.DROPPED: ("ALTER TABLE {t} DROP COLUMN v",),
    Drift.RENAMED: ("ALTER TABLE {t} RENAME COLUMN v TO other",),
    Drift.WIDENED: ("ALTER TABLE {t} {n_bigint}",),
    Drift.NARROWED: ("ALTER TABLE {t} {w_int}",),
    Drift.CHANGED: ("ALTER TABLE {t} {n_text}",),
    Drift.REORDERED: ("ALTER TABLE {t} MODIFY COLUMN w bigint AFTER id",),
    Drift.NULLABILITY: ("ALTER TABLE {t} {n_nullable}",),
    Drift.KEY: ("ALTER TABLE {t} DROP {key}", "ALTER TABLE {t} ADD PRIMARY KEY (id, n)"),
}
WORDS = {
    "postgresql": {
        "n_bigint": "ALTER COLUMN n TYPE bigint",
        "w_int": "ALTER COLUMN w TYPE int",
        "n_text": "ALTER COLUMN n TYPE text",
        "n_nullable": "ALTER COLUMN n DROP NOT NULL",
        "key": "CONSTRAINT {t}_pkey",
    },
    "mysql": {
        "n_bigint": "MODIFY COLUMN n bigint NOT NULL",
        "w_int": "MODIFY COLUMN w int",
        "n_text": "MODIFY COLUMN n text NOT NULL",
        "n_nullable": "MODIFY COLUMN n int",
        "key": "PRIMARY KEY",
    },
}
ONLY = {Drift.RENAMED: "postgresql", Drift.REORDERED: "mysql"}
"""The only server that can: MariaDB does not number columns, and PostgreSQL does not reorder them."""


def alter(scene: Scene, drift: Drift, table: str) -> None:
    words = {name: word.format(t=table) for name, word in WORDS[scene.database.kind].items()}
    scene.sql(*(statement.format(t=table, **words) for statement in STATEMENTS[drift]))


def followed(scene: Scene, metadata: dict[str, Any] | None = None) -> Scene:
    """The scene with snapshots."""
    given = {"enabled": True, "cache_path": str(scene.pipeline.folder / "metadata"), **(metadata or {})}
    return replace(scene, pipeline=replace(scene.pipeline, metadata=given))


def made(scene: Scene, columns: str = COLUMNS) -> str:
    name = scene.name()
    scene.sql(
        f"CREATE TABLE {name} ({columns})", f"INSERT INTO {name} VALUES (1, 1, 10, 'a', 100), (2, 2, 20, 'b', 200)"
    )
    return name


def scd1(name: str, **more: Any) -> dict[str, Any]:
    return {"table": name, "mode": "scd1", "incremental_column": "at", "primary_keys": ["id"], **more}


def add_row(scene: Scene, table: str, number: int, **values: str) -> None:
    there = {"id": str(number), "at": str(number), **values}
    scene.sql(f"INSERT INTO {table} ({', '.join(there)}) VALUES ({', '.join(there.values())})")


def new_values(scene: Scene, table: str, drift: Drift, number: int, *, wide: bool) -> None:
    """Another row, and one changed, under the columns of now."""
    values = {"n": "30", "v": "'c'", "w": "300"}
    if drift is Drift.NEW:
        values["more"] = "'m'"
    if drift is Drift.DROPPED:
        del values["v"]
    if drift is Drift.RENAMED:
        values["other"] = values.pop("v")
    if drift is Drift.WIDENED and wide:
        values["n"] = str(2**40)
    add_row(scene, table, number, **values)
    scene.sql(f"UPDATE {table} SET at = {number}, w = 201 WHERE id = 2")


def drifts(ran: Ran, table: str) -> list[SchemaDrifted]:
    return ran.of(SchemaDrifted, table)


def rows(scene: Scene, table: str) -> list[dict[str, Any]]:
    found = sorted(scene.rows(table).to_pylist(), key=lambda row: (row["id"], row["at"]))
    return [dict(row) for row in found]


def types(scene: Scene, table: str) -> dict[str, str]:
    catalog = scene.pipeline.catalog()
    try:
        return {field.name: str(field.field_type) for field in catalog.load_table(table).schema().fields}
    finally:
        catalog.close()


EXPECTED: dict[Drift, dict[str, Any]] = {
    Drift.NEW: {"n": 30, "v": "c", "w": 300, "more": "m"},
    Drift.DROPPED: {"n": 30, "v": None, "w": 300},
    Drift.RENAMED: {"n": 30, "v": None, "w": 300, "other": "c"},
    Drift.WIDENED: {"n": 2**40, "v": "c", "w": 300},
    Drift.NARROWED: {"n": 30, "v": "c", "w": 300},
    Drift.REORDERED: {"n": 30, "v": "c", "w": 300},
    Drift.NULLABILITY: {"n": 30, "v": "c", "w": 300},
    Drift.KEY: {"n": 30, "v": "c", "w": 300},
}
"""What becomes of row 3 where the table goes on."""

GOES_ON = {
    Action.EVOLVE: set(Drift) - {Drift.CHANGED},
    Action.IGNORE: set(Drift) - {Drift.CHANGED, Drift.RENAMED},
}


@pytest.mark.parametrize("action", Action)
@pytest.mark.parametrize("scene", SERVERS, indirect=True)
def test_each_change_under_each_policy(scene: Scene, action: Action) -> None:
    scene = followed(scene)
    kinds = [drift for drift in Drift if ONLY.get(drift, scene.database.kind) == scene.database.kind]
    if action in GOES_ON:
        kinds = [drift for drift in kinds if drift in GOES_ON[action]]
    kinds = effort(kinds if action is Action.EVOLVE else kinds[:6], soak=kinds)
    tables = {drift: made(scene) for drift in kinds}
    configured = [scd1(name, schema_policy={drift.value: action.value}) for drift, name in tables.items()]
    assert scene.run(*configured).errors == {}
    for drift, name in tables.items():
        alter(scene, drift, name)
        new_values(scene, name, drift, 3, wide=action is not Action.IGNORE)
    before = {drift: rows(scene, f"mirror.{name}") for drift, name in tables.items()}

    ran = scene.run(*configured, load_date=NEXT_DAY)

    for drift, name in tables.items():
        told = [each for each in drifts(ran, name) if each.drift == drift]
        assert told, f"{drift} was not told: {drifts(ran, name)}"
        assert told[0].action == action
        assert told[0].old or told[0].new
        there = rows(scene, f"mirror.{name}")
        if action in GOES_ON:
            assert name not in ran.errors, ran.errors[name]
            expected = {"id": 3, "at": 3, **EXPECTED[drift]}
            if action is Action.IGNORE and drift is Drift.NEW:
                del expected["more"]
            if action is Action.IGNORE and drift is Drift.WIDENED:
                expected["n"] = 30
            assert there[2] == expected
            assert [row["w"] for row in there] == [100, 201, 300]
            assert there[0]["v"] == "a", "what was there stays"
        else:
            assert there == before[drift], "nothing was changed"
            if action is Action.FREEZE:
                assert "does not match its source" in ran.errors[name]
                assert name in ran.errors
            else:
                [skipped] = ran.of(TableSkipped, name)
                assert skipped.reason.startswith("set aside: ")
    if action is Action.QUARANTINE:
        assert ran.exit_code == 0


@pytest.mark.parametrize("lane", ["spark", "arrow"])
def test_a_mirror_is_merged_into_after_it_has_evolved_twice(on_postgresql: Scene, lane: str) -> None:
    """Keys and other columns are widened, columns added and dropped, and rows merged before and after."""
    scene = on_postgresql
    name = made(scene)
    table = scd1(name, schema_policy={"dropped": "evolve"})
    assert scene.run(table, merge_lane=lane).errors == {}
    alter(scene, Drift.NEW, name)
    alter(scene, Drift.WIDENED, name)
    scene.sql(f"ALTER TABLE {name} ALTER COLUMN id TYPE bigint")
    add_row(scene, name, 3, n=str(2**40), v="'c'", w="300", more="'m'")
    scene.sql(f"UPDATE {name} SET at = 3, more = 'n' WHERE id = 2")
    assert scene.run(table, merge_lane=lane).errors == {}
    scene.sql(f"ALTER TABLE {name} DROP COLUMN v, ADD COLUMN late int")
    scene.sql(
        f"INSERT INTO {name} (id, at, n, late) VALUES ({2**40}, 4, 1, 7)", f"UPDATE {name} SET at = 4 WHERE id = 1"
    )

    assert scene.run(table, merge_lane=lane).errors == {}

    one = {"id": 1, "at": 4, "n": 10, "v": None, "w": 100, "more": None, "late": None}
    # The rows at the watermark are read again, without the column that is gone.
    two = {"id": 2, "at": 3, "n": 20, "v": None, "w": 200, "more": "n", "late": None}
    three = {"id": 3, "at": 3, "n": 2**40, "v": None, "w": 300, "more": "m", "late": None}
    last = {"id": 2**40, "at": 4, "n": 1, "v": None, "w": None, "more": None, "late": 7}
    assert rows(scene, f"mirror.{name}") == [one, two, three, last]
    assert types(scene, f"mirror.{name}") == types(scene, f"raw.{name}")
    spark = scene.spark.read.table(f"lake.mirror.{name}").orderBy("id").collect()
    assert [{key: row[key] for key in one} for row in spark] == [one, two, three, last]


class Died(Exception):
    """The process."""


def dies_after(patch: pytest.MonkeyPatch, tables: int) -> None:
    """Let a run die when so many tables have evolved."""
    evolved, evolve = list[object](), iceberg_tables.evolve

    def counted(*args: Any) -> None:
        evolve(*args)
        evolved.append(args)
        if len(evolved) == tables:
            raise Died

    patch.setattr(iceberg_tables, "evolve", counted)


ONE_A_SLICE = {"target_rows": 1}


@pytest.mark.parametrize("lane", effort(["arrow"], soak=["spark", "arrow"]))
@pytest.mark.parametrize("evolved", [1, 2])
def test_a_run_that_dies_while_tables_evolve_is_finished_by_the_next(
    on_postgresql: Scene, monkeypatch: pytest.MonkeyPatch, evolved: int, lane: str
) -> None:
    scene, more = on_postgresql, {"merge_lane": lane, "scd1_slicing": ONE_A_SLICE}
    name = made(scene)
    assert scene.run(scd1(name), **more).errors == {}
    add_row(scene, name, 3, n="30", v="'c'", w="300")
    add_row(scene, name, 4, n="40", v="'d'", w="400")
    # The first slice of a plan is in raw, read under the columns of before.
    assert scene.run(scd1(name), wiring=broken_at("stage_incremental_slice", 1), **more).exit_code == 1
    alter(scene, Drift.NEW, name)
    alter(scene, Drift.WIDENED, name)
    add_row(scene, name, 5, n=str(2**40), v="'e'", w="500", more="'m'")
    scene.sql(f"UPDATE {name} SET more = 'late' WHERE id = 4")
    with monkeypatch.context() as patch:
        dies_after(patch, evolved)
        assert scene.run(scd1(name), **more).exit_code == 1
    before = types(scene, f"mirror.{name}")
    assert ("more" in types(scene, f"raw.{name}"), "more" in before) == (True, evolved == 2)

    assert scene.run(scd1(name), **more).errors == {}
    assert scene.run(scd1(name), **more).errors == {}

    assert [(row["id"], row["n"], row["v"], row["more"]) for row in rows(scene, f"mirror.{name}")] == [
        (1, 10, "a", None),
        (2, 20, "b", None),
        (3, 30, "c", None),
        (4, 40, "d", "late"),
        (5, 2**40, "e", "m"),
    ]


@pytest.mark.parametrize("finalize", ["table", "view"])
def test_rows_that_landed_before_raw_evolved_are_published_under_its_columns_of_now(
    on_postgresql: Scene, monkeypatch: pytest.MonkeyPatch, finalize: str
) -> None:
    scene = on_postgresql
    name = made(scene)
    full = {"table": name, "mode": "full", "finalize": finalize}
    assert scene.run(full, load_date=DAY.replace(day=3)).errors == {}
    add_row(scene, name, 3, n="30", v="'c'", w="300")
    assert scene.run(full, wiring=broken_at("finalize_full")).exit_code == 1
    alter(scene, Drift.NEW, name)
    alter(scene, Drift.WIDENED, name)
    with monkeypatch.context() as patch:
        dies_after(patch, 1)
        assert scene.run(full, load_date=NEXT_DAY).exit_code == 1

    assert scene.elsewhere().run(scene.spark, [full]).errors == {}

    there = scene.spark.sql(f"SELECT id, n, more FROM lake.final.{name} ORDER BY id").collect()
    assert [tuple(row) for row in there] == [(1, 10, None), (2, 20, None), (3, 30, None)]


Happens = Callable[[], None]


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE {t} ADD COLUMN more int DEFAULT 7",
        "ALTER TABLE {t} RENAME COLUMN v TO other",
        "ALTER TABLE {t} DROP COLUMN v",
        "ALTER TABLE {t} RENAME n TO x; ALTER TABLE {t} RENAME m TO n; ALTER TABLE {t} RENAME x TO m",
    ],
)
@pytest.mark.parametrize("mode", ["full", "scd1"])
def test_columns_that_change_while_a_table_is_read_are_neither_lost_nor_swapped(
    on_postgresql: Scene, statement: str, mode: str
) -> None:
    scene = on_postgresql
    name = made(scene, f"{COLUMNS}, m int")
    table = scd1(name) if mode == "scd1" else {"table": name, "mode": "full"}
    out = f"{'mirror' if mode == 'scd1' else 'final'}.{name}"

    def change() -> None:
        scene.sql(*statement.format(t=name).split(";"))

    ran = scene.run(table, hears=once(change, "reading"))

    assert "changed in the source while it was read" in ran.errors[name] or "does not exist" in ran.errors[name]
    assert not scene.pipeline.exists(out) or rows(scene, out) == []
    again = scene.run({**table, "schema_policy": {"allow_missing_columns": True}})
    assert again.errors == {}
    source = scene.database.run(f"SELECT id, n FROM {name} ORDER BY id")
    assert [(row["id"], row["n"]) for row in rows(scene, out)] == source


def once(happens: Happens, step: str) -> Callable[[EventEnvelope], None]:
    """A listener that lets something happen at the first step of a name."""
    left = [happens]

    def hear(envelope: EventEnvelope) -> None:
        if isinstance(envelope.event, TableStep) and envelope.event.step == step and left:
            left.pop()()

    return hear
