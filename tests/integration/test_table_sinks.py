"""Tables are kept as Iceberg tables or as directories of files, and strategies cannot tell the difference."""

# ruff: noqa: S608 - tests write their SQL in place, about tables of their own

import sqlite3
from contextlib import closing
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path

import pytest

from lakehead.telemetry.events import PhaseMarked, StagingCleaned, TableSkipped
from tests.integration.increment_support import broken_at
from tests.integration.sink_support import FILES_IN_SOAK, Kept, add, full, numbers, scd1
from tests.pipeline import DAY

pytest_plugins = (
    "tests.support.state_fixtures",
    "tests.support.source_fixtures",
    "tests.integration.pipeline_fixtures",
    "tests.integration.sink_fixtures",
)
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

NEXT_DAY = DAY + timedelta(days=1)


def test_a_full_refresh_is_loaded_once_a_day_and_replaced_the_next(kept: Kept) -> None:
    name = numbers(kept, 1, 2)

    first, again = kept.run(full(name)), kept.run(full(name))
    kept.scene.sql(f"DELETE FROM {name} WHERE id = 1")
    add(kept, name, 3)
    next_day = kept.run(full(name), load_date=NEXT_DAY)

    assert (first.errors, next_day.errors) == ({}, {})
    assert [event.reason for event in again.of(TableSkipped)] == ["loaded for 2026-01-01"]
    assert kept.rows("final", name, "id") == [(2,), (3,)]
    assert kept.rows("raw", name, "_load_date", "id") == [(DAY, 1), (DAY, 2), (NEXT_DAY, 2), (NEXT_DAY, 3)]


@FILES_IN_SOAK
def test_a_reload_of_a_day_takes_the_place_of_what_was_there(kept: Kept) -> None:
    name = numbers(kept, 1, 2)
    kept.run(full(name))
    kept.scene.sql(f"DELETE FROM {name} WHERE id = 1")

    ran = kept.run(full(name), reload=True)

    assert ran.errors == {}
    assert kept.rows("final", name, "id", "_generation") == [(2, 1)]


@FILES_IN_SOAK
def test_a_refresh_to_nothing_needs_leave(kept: Kept) -> None:
    name = numbers(kept, 1)
    kept.run(full(name))
    kept.scene.sql(f"DELETE FROM {name}")

    refused = kept.run(full(name), load_date=NEXT_DAY)
    allowed = kept.run(full(name, allow_empty=True), load_date=NEXT_DAY)

    assert "has no rows, but had some before" in refused.errors[name]
    assert allowed.errors == {}
    assert kept.rows("final", name, "id") == []


def test_slices_reach_raw_and_their_newest_rows_the_mirror(kept: Kept) -> None:
    name = numbers(kept, *range(1, 31))
    slicing = {"target_rows": 10}

    kept.run(scd1(name), scd1_slicing=slicing)
    kept.scene.sql(f"UPDATE {name} SET at = 40, v = 'new' WHERE id = 5")
    add(kept, name, 41)
    ran, idle = kept.run(scd1(name), scd1_slicing=slicing), kept.run(scd1(name), scd1_slicing=slicing)

    assert ran.errors == {}
    assert idle.of(TableSkipped)
    mirror = kept.rows("mirror", name, "id", "v")
    assert mirror == [(number, "new" if number == 5 else "x") for number in (*range(1, 31), 41)]
    raw = kept.rows("raw", name, "id", "_slice")
    assert len({number for _, number in raw}) > 3, "the first run had several slices, and the second one"
    assert [number for number, _ in raw].count(5) == 2


def test_a_run_that_ends_before_the_mirror_is_finished_without_the_source(kept: Kept) -> None:
    name = numbers(kept, 1, 2)
    kept.run(scd1(name), wiring=broken_at("commit_incremental"))

    off = replace(kept, scene=replace(kept.scene, pipeline=kept.scene.elsewhere()))
    ran = off.run(scd1(name))

    assert name in ran.errors, "the source is off"
    assert kept.rows("mirror", name, "id") == [(1,), (2,)]


def test_a_run_that_ends_after_some_slices_goes_on_with_the_next(kept: Kept) -> None:
    name = numbers(kept, *range(1, 31))
    slicing = {"target_rows": 10}
    kept.run(scd1(name), wiring=broken_at("stage_incremental_slice", after=1), scd1_slicing=slicing)

    ran = kept.run(scd1(name), scd1_slicing=slicing)

    assert ran.errors == {}
    raw = kept.rows("raw", name, "id")
    assert raw == [(number,) for number in range(1, 31)], "no row was read twice"
    assert kept.rows("mirror", name, "id") == raw


@FILES_IN_SOAK
def test_a_reload_makes_the_mirror_of_its_own_rows_alone(kept: Kept) -> None:
    name = numbers(kept, 1, 2, 3)
    kept.run(scd1(name))
    kept.scene.sql(f"DELETE FROM {name} WHERE id = 2")

    ran = kept.run(scd1(name), reload=True)

    assert ran.errors == {}
    assert kept.rows("mirror", name, "id", "_generation") == [(1, 1), (3, 1)]


@FILES_IN_SOAK
@pytest.mark.parametrize("rule", ["fail", "exclude", "include"])
def test_rows_without_a_key_are_counted_and_kept_as_is_said(kept: Kept, rule: str) -> None:
    name = kept.scene.name()
    kept.scene.sql(
        f"CREATE TABLE {name} (id integer, at integer, v text)",
        f"INSERT INTO {name} VALUES (1, 1, 'x'), (NULL, 2, 'y')",
    )

    ran = kept.run(scd1(name, null_keys=rule))

    if rule == "fail":
        assert "have no value in their key: 1 in 'id'" in ran.errors[name]
        return
    assert ran.errors == {}
    assert [event.detail["null_keys"] for event in ran.of(PhaseMarked) if event.phase == "raw"] == [{"id": 1}]
    assert [v for (v,) in kept.rows("mirror", name, "v")] == (["x"] if rule == "exclude" else ["x", "y"])


@FILES_IN_SOAK
@pytest.mark.parametrize("mode", ["full", "scd1", "append"])
def test_keys_in_another_case_are_the_columns_keys(kept: Kept, mode: str) -> None:
    name = kept.scene.name()
    kept.scene.sql(
        f"CREATE TABLE {name} (Id integer, at integer, v text)",
        f"INSERT INTO {name} VALUES (1, 1, 'x'), (2, 1, 'x'), (NULL, 1, 'x')",
    )
    rule = "include" if mode == "append" else "exclude"
    increments = {} if mode == "full" else {"incremental_column": "AT"}
    table = {"table": name, "mode": mode, "primary_keys": ["iD"], "null_keys": rule, **increments}

    first = kept.run(table)
    kept.scene.sql(f"INSERT INTO {name} VALUES (1, 2, 'new')")
    second = kept.run(table, load_date=NEXT_DAY)

    assert first.errors == second.errors == {}
    raw = [event.detail["null_keys"] for event in first.of(PhaseMarked) if event.phase == "raw"]
    assert raw == [{"Id": 1}]
    place = {"full": "final", "scd1": "mirror", "append": "raw"}[mode]
    wanted = {
        "full": [(1, "new"), (1, "x"), (2, "x")],
        "scd1": [(1, "new"), (2, "x")],
        "append": [(-1, "x"), (1, "new"), (1, "x"), (2, "x")],
    }
    assert kept.rows(place, name, "coalesce(id, -1)", "v") == wanted[mode]


def test_append_adds_what_is_new(kept: Kept) -> None:
    name = numbers(kept, 1, 2)
    table = {"table": name, "mode": "append", "incremental_column": "at"}

    kept.run(table)
    add(kept, name, 3)
    ran = kept.run(table)

    assert ran.errors == {}
    assert kept.rows("raw", name, "id", "_slice") == [(1, 1), (2, 1), (3, 2)]


@FILES_IN_SOAK
def test_the_readers_give_the_same_rows(kept: Kept) -> None:
    name = numbers(kept, 1, 2, 3)

    ran = kept.run(full(name), full(name, name=f"{name}_jdbc", reader="jdbc"))

    assert ran.errors == {}
    assert kept.rows("final", name, "id", "at", "v") == kept.rows("final", f"{name}_jdbc", "id", "at", "v")


def test_staging_directories_go_when_they_have_had_their_time(in_files: Kept) -> None:
    name = numbers(in_files, 1)
    in_files.run(full(name))

    ran = in_files.run(full(name), reload=True, staging={"enabled": True, "ttl_hours": 1})
    raw = Path(ran.of(StagingCleaned)[0].root.removeprefix("file://"))
    killed = raw / "_staging" / "killed.g0" / "attempt" / "part.parquet"
    killed.parent.mkdir(parents=True)
    killed.write_bytes(b"rows")
    after = in_files.run(full(name), reload=True, staging={"enabled": True, "ttl_hours": 1})
    off = in_files.run(full(name), reload=True, staging={"enabled": False})

    assert [Path(event.root).name for event in ran.of(StagingCleaned)] == [name, name]
    assert {(event.error, event.not_landed) for event in ran.of(StagingCleaned)} == {(None, 0)}
    assert [event.not_landed for event in after.of(StagingCleaned)] == [1, 0]
    assert off.of(StagingCleaned) == []


def test_an_appended_table_cannot_be_loaded_anew_into_files(in_files: Kept) -> None:
    name = numbers(in_files, 1)
    table = {"table": name, "mode": "append", "incremental_column": "at"}
    in_files.run(table)

    ran = in_files.run(table, reload=True)

    assert "cannot be reloaded in a file sink" in ran.errors[name]
    assert in_files.rows("raw", name, "id") == [(1,)]


@FILES_IN_SOAK
def test_the_load_date_is_that_of_the_run(kept: Kept) -> None:
    name = numbers(kept, 1)

    kept.run(full(name), load_date=date(2020, 2, 29))

    assert kept.rows("raw", name, "_load_date") == [(date(2020, 2, 29),)]


@FILES_IN_SOAK
def test_a_table_that_was_read_by_another_column_or_filter_is_refused_with_the_way_out(kept: Kept) -> None:
    name = kept.scene.name()
    kept.scene.sql(f"CREATE TABLE {name} (id integer primary key, at integer, v text)")
    kept.scene.sql(f"INSERT INTO {name} VALUES (1, 100, 'x'), (2, 200, 'x')")
    before = scd1(name, source_filter="v = 'x'")
    assert kept.run(before).errors == {}
    kept.scene.sql(f"INSERT INTO {name} VALUES (3, 300, 'x'), (4, 400, 'y')")

    by_id = kept.run(scd1(name, source_filter="v = 'x'", incremental_column="id"))
    unfiltered = kept.run(scd1(name))
    filtered = kept.run(scd1(name, source_filter="v <> 'x'"))

    assert "read by 'at' with the filter \"v = 'x'\" up to 200" in by_id.errors[name]
    assert "now says 'id' with the filter" in by_id.errors[name]
    assert "now says 'at' without a filter" in unfiltered.errors[name]
    assert "with --reload" in filtered.errors[name]
    assert kept.rows("mirror", name, "id") == [(1,), (2,)], "nothing was read, and nothing changed"
    assert kept.run(scd1(name, source_filter="V  =  'x'", incremental_column="AT")).errors == {}, "written otherwise"
    assert kept.rows("mirror", name, "id") == [(1,), (2,), (3,)]

    assert kept.run(scd1(name, incremental_column="id"), reload=True).errors == {}

    assert kept.rows("mirror", name, "id") == [(1,), (2,), (3,), (4,)]
    kept.scene.sql(f"INSERT INTO {name} VALUES (5, 1, 'z')")
    assert kept.run(scd1(name, incremental_column="id")).errors == {}
    assert (5,) in kept.rows("mirror", name, "id")
    assert "with --reload" in kept.run(before).errors[name]


@FILES_IN_SOAK
def test_the_number_of_a_full_load_is_not_taken_for_a_watermark(kept: Kept) -> None:
    name = numbers(kept, 0, 1, 2)
    assert kept.run(full(name)).errors == {}

    refused = kept.run(scd1(name))

    assert "was loaded in full" in refused.errors[name]
    assert "with --reload, or set its mode back to full" in refused.errors[name]
    assert kept.run(scd1(name), reload=True).errors == {}
    assert kept.rows("mirror", name, "id") == [(0,), (1,), (2,)]


@FILES_IN_SOAK
def test_a_table_that_is_loaded_in_full_from_now_on_is_read_whole_though_its_day_has_increments(kept: Kept) -> None:
    name = numbers(kept, 1, 2)
    kept.run(scd1(name))
    add(kept, name, 3)
    kept.run(scd1(name))

    ran = kept.run(full(name))

    assert ran.errors == {}
    assert kept.rows("final", name, "id") == [(1,), (2,), (3,)]
    assert kept.run(full(name)).of(TableSkipped)[0].reason.startswith("loaded for")


@pytest.mark.parametrize("kept", ["iceberg"], indirect=True)
def test_a_watermark_of_an_older_version_is_taken_as_it_is_and_says_more_from_then_on(kept: Kept) -> None:
    name = numbers(kept, 1, 2)
    assert kept.run(scd1(name)).errors == {}
    with closing(sqlite3.connect(kept.scene.pipeline.folder / "state.sqlite")) as state, state:
        state.execute("UPDATE lakehead_watermarks SET read_by = NULL")  # as an upgraded database has them
    add(kept, name, 3)

    assert kept.run(scd1(name)).errors == {}

    assert kept.rows("mirror", name, "id") == [(1,), (2,), (3,)]
    assert "read by 'at'" in kept.run(scd1(name, incremental_column="id")).errors[name]
