"""Raw and what readers read, when they no longer belong together: others were faster, or raw is not what it was."""

# ruff: noqa: S608 - tests write their SQL in place, about tables of their own

import sqlite3
from contextlib import closing
from datetime import date, timedelta
from typing import Any

import pytest
from typer.testing import CliRunner

from lakehead.clock import SystemClock
from lakehead.extract import iceberg_table_sink
from lakehead.extract.iceberg_table_sink import IcebergTableSink
from lakehead.extract.iceberg_view import show_slice
from lakehead.extract.sink import TableProgress
from lakehead.ids import RandomIds
from lakehead.run.main import app
from lakehead.state.opening import open_state
from lakehead.telemetry.emitter import EventEnvelope
from lakehead.telemetry.events import PhaseMarked, TableDone, TablePlanned, TableSkipped, TableStep
from tests.integration.increment_support import broken_at
from tests.integration.pipeline_support import Scene
from tests.integration.sink_support import Kept, add, full, numbers, scd1
from tests.pipeline import DAY, Ran

pytest_plugins = (
    "tests.support.state_fixtures",
    "tests.support.source_fixtures",
    "tests.integration.pipeline_fixtures",
    "tests.integration.sink_fixtures",
)
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

NEXT_DAY = DAY + timedelta(days=1)


def discard_plans(scene: Scene) -> None:
    """Let the state know of no plan, as if each run had made its own before it saw the other's."""
    with open_state(f"sqlite:///{scene.pipeline.folder}/state.sqlite", SystemClock(), RandomIds()) as state:
        for table in known_tables(scene):
            if plan := state.slices.load(table):
                state.slices.discard(plan.table, plan.id)


def meanwhile(kept: Kept, statement: str) -> None:
    """Change the source from the thread of a table, where the test's own connection cannot be used."""
    with closing(sqlite3.connect(kept.scene.database.url.removeprefix("sqlite:///"))) as connection, connection:
        connection.execute(statement)


def known_tables(scene: Scene) -> list[str]:
    catalog = scene.pipeline.catalog()
    try:
        return [str(catalog.load_table(name).metadata.table_uuid) for name in catalog.list_tables("raw")]
    finally:
        catalog.close()


def test_of_two_plans_of_one_table_the_slower_is_made_anew_and_no_row_comes_twice(on_sqlite: Scene) -> None:
    kept = Kept(on_sqlite, "iceberg")
    name, others = numbers(kept, 1, 2, 9), list[Ran]()

    def another(told: EventEnvelope) -> None:
        if isinstance(told.event, TablePlanned) and not others:
            discard_plans(on_sqlite)
            meanwhile(kept, f"UPDATE {name} SET id = 3, at = 3 WHERE id = 9")
            others.append(kept.run(scd1(name)))
            meanwhile(kept, f"INSERT INTO {name} VALUES (4, 4, 'x')")

    ran = kept.run(scd1(name), hears=another)

    assert [other.errors for other in others] == [{}]
    assert ran.errors == {}
    assert [event.resumed for event in ran.of(TablePlanned)] == [False, False], "it was planned a second time"
    # What is at the watermark is read again with what comes after it.
    assert kept.rows("raw", name, "_slice", "id") == [(1, 1), (1, 2), (1, 3), (2, 3), (2, 4)]
    assert kept.rows("mirror", name, "id") == [(1,), (2,), (3,), (4,)]


# --- a final of an older day


def test_a_run_of_an_older_day_that_is_slower_leaves_the_newer_days_final(kept: Kept) -> None:
    name, others = numbers(kept, 1), list[Ran]()

    def another(told: EventEnvelope) -> None:
        if isinstance(told.event, PhaseMarked) and told.event.phase == "raw" and not others:
            meanwhile(kept, f"INSERT INTO {name} VALUES (2, 2, 'x')")
            others.append(kept.run(full(name), load_date=NEXT_DAY))

    ran = kept.run(full(name), hears=another)

    assert (ran.errors, others[0].errors) == ({}, {})
    assert kept.rows("final", name, "id", "_load_date") == [(1, NEXT_DAY), (2, NEXT_DAY)]


def test_a_final_that_was_decided_on_before_a_newer_one_came_is_not_published(
    on_sqlite: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = Kept(on_sqlite, "iceberg")
    name, others = numbers(kept, 1), list[Ran]()
    land = IcebergTableSink._land_out

    def later(self: IcebergTableSink, *args: Any) -> TableProgress:
        if not others:
            others.append(Ran((), 0))
            meanwhile(kept, f"INSERT INTO {name} VALUES (2, 2, 'x')")
            others.append(kept.run(full(name), load_date=NEXT_DAY))
        return land(self, *args)

    monkeypatch.setattr(IcebergTableSink, "_land_out", later)
    ran = kept.run(full(name))

    assert (ran.errors, others[-1].errors) == ({}, {})
    assert kept.rows("final", name, "id", "_load_date") == [(1, NEXT_DAY), (2, NEXT_DAY)]


def test_a_view_never_goes_back_to_an_older_day(on_sqlite: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Kept(on_sqlite, "iceberg")
    name, others, shown = numbers(kept, 1), list[Ran](), list[int]()
    show = IcebergTableSink._show

    def later(self: IcebergTableSink, *args: Any) -> TableProgress:
        if not others:
            others.append(Ran((), 0))
            others.append(kept.run(full(name, finalize="view"), load_date=NEXT_DAY))
        return show(self, *args)

    def watched(session: Any, view: str, raw: str, columns: Any, number: int, conditions: Any) -> None:
        shown.append(number)
        show_slice(session, view, raw, columns, number, conditions)

    monkeypatch.setattr(IcebergTableSink, "_show", later)
    monkeypatch.setattr(iceberg_table_sink, "show_slice", watched)
    ran = kept.run(full(name, finalize="view"))

    assert (ran.errors, others[-1].errors) == ({}, {})
    assert shown == [2]
    assert kept.rows("final", name, "_load_date") == [(NEXT_DAY,)]


# --- raw is not what it was


def two_loads(kept: Kept) -> str:
    """A table whose second load has changed a row and brought another."""
    name = numbers(kept, 1, 2)
    assert kept.run(scd1(name)).errors == {}
    kept.scene.sql(f"UPDATE {name} SET at = 3, v = 'new' WHERE id = 1")
    add(kept, name, 4)
    assert kept.run(scd1(name)).errors == {}
    return name


def test_a_raw_table_that_was_dropped_is_loaded_anew_and_the_mirror_with_it(on_sqlite: Scene) -> None:
    kept = Kept(on_sqlite, "iceberg")
    name = two_loads(kept)
    on_sqlite.spark.sql(f"DROP TABLE lake.raw.{name}")
    on_sqlite.sql(f"DELETE FROM {name} WHERE id = 2")

    ran = kept.run(scd1(name))

    assert ran.errors == {}
    assert [event.rows for event in ran.of(TableDone)] == [2]
    assert kept.rows("mirror", name, "id", "v", "_generation") == [(1, "new", 1), (4, "x", 1)]


def test_a_raw_table_that_was_rolled_back_is_an_operators_to_decide_and_then_goes_on(on_sqlite: Scene) -> None:
    kept = Kept(on_sqlite, "iceberg")
    name = two_loads(kept)
    first = on_sqlite.pipeline.snapshots(f"raw.{name}")[0]
    on_sqlite.spark.sql(f"CALL lake.system.rollback_to_snapshot('raw.{name}', {first})")

    refused = kept.run(scd1(name))
    before = kept.rows("mirror", name, "id", "v")
    folder, lakehouse = on_sqlite.pipeline.folder, on_sqlite.pipeline.lakehouse
    rebuilt = CliRunner().invoke(
        app,
        [
            *("state", "rebuild", f"raw.{name}", "--state", f"sqlite:///{folder}/state.sqlite"),
            *("--ledger", (lakehouse / "ledger").as_uri(), "--lakehouse", str(lakehouse)),
        ],
    )
    ran, idle = kept.run(scd1(name)), kept.run(scd1(name))

    assert name in refused.errors
    assert rebuilt.exit_code == 0, rebuilt.output
    assert ran.errors == {}
    assert before == kept.rows("mirror", name, "id", "v") == [(1, "new"), (2, "x"), (4, "x")]
    assert len({number for (number,) in kept.rows("raw", name, "_slice")}) == 2, "what was taken back is read again"
    assert len(idle.of(TableSkipped)) == 1


def test_a_mirror_is_merged_from_a_raw_table_whose_older_snapshots_have_expired(on_sqlite: Scene) -> None:
    kept = Kept(on_sqlite, "iceberg")
    name = two_loads(kept)
    add(kept, name, 5)
    kept.run(scd1(name), wiring=broken_at("commit_incremental"))
    on_sqlite.spark.sql(
        f"CALL lake.system.expire_snapshots(table => 'raw.{name}', retain_last => 1, "
        f"older_than => TIMESTAMP '{date.max - timedelta(days=1)} 00:00:00')"
    )
    assert len(on_sqlite.spark.sql(f"SELECT 1 FROM lake.raw.{name}.snapshots").collect()) == 1

    ran = kept.run(scd1(name))

    assert ran.errors == {}
    assert kept.rows("mirror", name, "id", "v") == [(1, "new"), (2, "x"), (4, "x"), (5, "x")]


def test_a_slice_that_another_run_landed_after_this_one_opened_raw_is_merged_whole(on_sqlite: Scene) -> None:
    kept = Kept(on_sqlite, "iceberg")
    name, others = two_loads(kept), list[Ran]()
    add(kept, name, 5)

    def another(told: EventEnvelope) -> None:
        if isinstance(told.event, TablePlanned) and not others:  # it lands the same slice, and dies before the merge
            others.append(Ran((), 0))
            others.append(kept.run(scd1(name), wiring=broken_at("commit_incremental")))

    ran = kept.run(scd1(name), hears=another)

    assert name in others[-1].errors
    assert ran.errors == {}
    assert kept.rows("mirror", name, "id") == [(1,), (2,), (4,), (5,)]


def test_a_load_that_another_run_landed_after_this_one_opened_raw_is_published_whole(on_sqlite: Scene) -> None:
    kept = Kept(on_sqlite, "iceberg")
    name, others = numbers(kept, 1), list[Ran]()
    assert kept.run(full(name)).errors == {}
    add(kept, name, 2)

    def another(told: EventEnvelope) -> None:
        if isinstance(told.event, TableStep) and told.event.step == "reading" and not others:
            others.append(Ran((), 0))
            others.append(kept.run(full(name), wiring=broken_at("finalize_full"), load_date=NEXT_DAY))

    ran = kept.run(full(name), hears=another, load_date=NEXT_DAY)

    assert name in others[-1].errors
    assert ran.errors == {}
    assert kept.rows("final", name, "id", "_load_date") == [(1, NEXT_DAY), (2, NEXT_DAY)]


def test_a_mirror_that_was_altered_while_rows_were_read_is_refused(on_sqlite: Scene) -> None:
    kept = Kept(on_sqlite, "iceberg")
    name, altered = two_loads(kept), list[bool]()
    add(kept, name, 5)

    def alter(told: EventEnvelope) -> None:
        if isinstance(told.event, TablePlanned) and not altered:
            altered.append(True)
            on_sqlite.spark.sql(f"ALTER TABLE lake.mirror.{name} ADD COLUMN more int")

    ran = kept.run(scd1(name), hears=alter)

    assert "has no column 'more' any more" in str(ran.errors[name])
    assert kept.rows("mirror", name, "id") == [(1,), (2,), (4,)]
