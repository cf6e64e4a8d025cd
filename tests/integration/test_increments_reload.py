"""Tables read in increments and loaded anew: as a fresh load, without readers ever seeing a part of it."""

# ruff: noqa: S608 - tests write their SQL in place, about tables of their own

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog

from lakehead.telemetry.emitter import EventEnvelope
from lakehead.telemetry.events import TableDone, TableStep
from tests.integration.increment_support import (
    ONE_A_SLICE,
    add,
    append,
    at,
    broken_at,
    done,
    fill,
    lake_rows,
    make,
    mark_of,
    now,
    planned,
    scd1,
    source_rows,
)
from tests.integration.pipeline_support import MARKS, ONE_SERVER, PLUGINS, Scene
from tests.pipeline import Ran

pytest_plugins = PLUGINS
pytestmark = MARKS

# --- reload


@ONE_SERVER
def test_a_reload_equals_a_fresh_load(scene: Scene) -> None:
    """Rows that the source has deleted, or changed behind the watermark, are as the source has them now."""
    table = make(scene)
    fill(scene, table, 1, 2, 3)
    done(scene.run(scd1(table)))
    scene.sql(f"DELETE FROM {table} WHERE id = 2", f"UPDATE {table} SET v = 'behind' WHERE id = 3")
    add(scene, table, 4)
    done(scene.run(scd1(table)))
    assert len(lake_rows(scene, f"mirror.{table}")) == 4, "an increment sees neither"
    before = mark_of(scene, f"raw.{table}")

    reloaded = scene.run(scd1(table), reload=True)

    done(reloaded)
    assert lake_rows(scene, f"mirror.{table}") == source_rows(scene, table)
    after = mark_of(scene, f"raw.{table}")
    assert before is not None
    assert after is not None
    assert (before.generation, after.generation) == (0, 1)
    assert [each.rows for each in reloaded.of(TableDone)] == [3]
    scene.sql(f"UPDATE {table} SET v = 'new', at = {at(now(scene))} WHERE id = 1")
    done(scene.run(scd1(table)))
    assert lake_rows(scene, f"mirror.{table}") == source_rows(scene, table)


@ONE_SERVER
def test_readers_see_the_old_rows_or_the_new_ones_while_a_table_is_reloaded(scene: Scene) -> None:
    table = make(scene)
    fill(scene, table, *range(1, 7), v="old")
    done(scene.run(scd1(table)))
    scene.sql(f"DELETE FROM {table} WHERE id <= 2", f"UPDATE {table} SET v = 'new'")
    seen: list[frozenset[tuple[object, object]]] = []

    with reading(scene, f"mirror.{table}", seen):
        done(scene.run(scd1(table), reload=True, scd1_slicing=ONE_A_SLICE))
        assert len(scene.pipeline.snapshots(f"raw.{table}")) == 5, "it took several landings"

    old = frozenset((number, "old") for number in range(1, 7))
    new = frozenset((number, "new") for number in range(3, 7))
    assert set(seen) == {old, new}
    assert seen == sorted(seen, key=lambda rows: rows == new), "and never go back"


@contextmanager
def reading(scene: Scene, table: str, seen: list[frozenset[tuple[object, object]]]) -> Iterator[None]:
    """Look at a table again and again, and once more at the end."""
    ended = threading.Event()

    def look() -> None:
        catalog: Catalog = scene.pipeline.catalog()
        try:
            last = False
            while not last:
                last = ended.is_set()
                rows: pa.Table = catalog.load_table(table).scan(selected_fields=("id", "v")).to_arrow()
                seen.append(frozenset(zip(rows["id"].to_pylist(), rows["v"].to_pylist(), strict=True)))
        finally:
            catalog.close()

    reader = threading.Thread(target=look)
    reader.start()
    try:
        yield
    finally:
        ended.set()
        reader.join()


@pytest.mark.parametrize("step", ["stage_incremental_slice", "commit_incremental"])
@ONE_SERVER
def test_a_reload_that_was_cut_short_is_taken_up_and_readers_keep_the_old_rows_till_then(
    scene: Scene, step: str
) -> None:
    table = make(scene)
    fill(scene, table, 1, 2, 3)
    done(scene.run(scd1(table)))
    old = lake_rows(scene, f"mirror.{table}")
    scene.sql(f"DELETE FROM {table} WHERE id = 2", f"UPDATE {table} SET v = 'new'")
    fill(scene, table, 4)
    landed = 1 if step == "stage_incremental_slice" else 3
    ran = scene.run(
        scd1(table),
        reload=True,
        scd1_slicing=ONE_A_SLICE,
        wiring=broken_at(step, after=1 if step == "stage_incremental_slice" else 0),
    )
    assert ran.errors[table] == f"{step} was cut short"
    assert lake_rows(scene, f"mirror.{table}") == old

    again = scene.run(scd1(table), scd1_slicing=ONE_A_SLICE)

    done(again)
    assert lake_rows(scene, f"mirror.{table}") == source_rows(scene, table)
    [reread] = [each.rows for each in again.of(TableDone)] or [0]
    assert reread == 3 - landed, "what had landed is not read again"
    if landed < 3:
        assert planned(again).resumed
        assert (planned(again).slices, planned(again).done) == (3, landed)


@ONE_SERVER
def test_a_reload_of_a_table_that_has_lost_all_rows_keeps_what_is_there_and_says_so(scene: Scene) -> None:
    merged, appended = make(scene), make(scene)
    orders = [scd1(merged), append(appended)]
    for table in (merged, appended):
        fill(scene, table, 1, 2)
    done(scene.run(*orders))
    scene.sql(f"DELETE FROM {merged}", f"DELETE FROM {appended}")

    ran = scene.run(*orders, reload=True)

    assert sorted(filter(None, ran.errors)) == sorted([merged, appended])
    assert all("has no rows, but had some before" in sentence for sentence in ran.errors.values())
    assert len(lake_rows(scene, f"mirror.{merged}")) == len(lake_rows(scene, f"raw.{appended}")) == 2


@ONE_SERVER
def test_a_reload_is_not_lost_because_another_run_has_planned_first(scene: Scene) -> None:
    table = make(scene)
    fill(scene, table, 1, 2)
    done(scene.run(scd1(table)))
    scene.sql(f"DELETE FROM {table} WHERE id = 2")
    add(scene, table, 3)
    others: list[Ran] = []

    def another(told: EventEnvelope) -> None:
        if isinstance(told.event, TableStep) and told.event.step == "planning" and not others:
            others.append(scene.run(scd1(table), wiring=broken_at("stage_incremental_slice")))

    done(scene.run(scd1(table), reload=True, hears=another))

    assert [list(other.errors) for other in others] == [[table]], "its plan was stored, and not run"
    assert lake_rows(scene, f"mirror.{table}") == source_rows(scene, table)
