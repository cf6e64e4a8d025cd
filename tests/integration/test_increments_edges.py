"""Tables read in increments, over several runs: lags, re-readings, appends, crashes and a state that was lost."""

# ruff: noqa: S608 - tests write their SQL in place, about tables of their own

from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from typer.testing import CliRunner

from lakehead.errors import Misconfigured
from lakehead.run.main import app
from lakehead.state.model import Mark
from lakehead.telemetry.events import PhaseMarked, TableSkipped
from tests.integration.increment_support import (
    DAY,
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
    raw_rows,
    reached,
    scd1,
    source_rows,
)
from tests.integration.pipeline_support import MARKS, ONE_SERVER, PLUGINS, Scene
from tests.support.effort import effort

pytest_plugins = PLUGINS
pytestmark = MARKS

# --- re-readings


@ONE_SERVER
def test_an_older_row_never_replaces_a_newer_one(scene: Scene) -> None:
    """What a lag reads again is merged again: by its watermark, not by when it was read."""
    table = make(scene)
    began = now(scene)
    fill(scene, table, 1, 2, v="first", since=began - timedelta(seconds=90))
    done(scene.run(scd1(table, lag_seconds=60)))
    scene.sql(f"UPDATE {table} SET v = 'older', at = {at(began - timedelta(seconds=100))} WHERE id = 1")
    scene.sql(f"UPDATE {table} SET v = 'alike' WHERE id = 2")

    done(scene.run(scd1(table, lag_seconds=60)))

    assert raw_rows(scene, table) == [(1, 1), (1, 2), (2, 1), (2, 2)], "both were read again"
    assert [(row[0], row[2]) for row in lake_rows(scene, f"mirror.{table}")] == [(1, "first"), (2, "alike")]


@ONE_SERVER
def test_a_merge_filter_that_would_double_a_row_is_refused(scene: Scene) -> None:
    table = make(scene)
    fill(scene, table, 1, 2)
    done(scene.run(scd1(table)))
    old = lake_rows(scene, f"mirror.{table}")
    scene.sql(f"UPDATE {table} SET v = 'new', at = {at(now(scene))} WHERE id = 1")

    wrong = scene.run(scd1(table, merge_filters=["at > CAST('2025-01-01' AS TIMESTAMP)"]))

    assert wrong.exit_code == 1
    assert "are duplicated: (1,)" in wrong.errors[table]
    assert lake_rows(scene, f"mirror.{table}") == old
    right = scene.elsewhere().run(scene.spark, [scd1(table, merge_filters=["id < 10", "v <> 'z'"])])
    assert right.exit_code == 1, "its source is switched off, and not needed for this"
    assert lake_rows(scene, f"mirror.{table}") == source_rows(scene, table)


# --- lag


def moment(literal: object) -> datetime | None:
    """The moment that a literal of the source writes."""
    return None if literal is None else datetime.fromisoformat(str(literal).split("'")[1])


def test_the_lag_holds_both_bounds_back_and_the_larger_of_two_counts(scene: Scene) -> None:
    given = {"incr_col_type": "timestamp", "initial_watermark": "2024-05-01T12:00:01.5"}
    initial = datetime.fromisoformat(given["initial_watermark"])
    for of_the_run in effort((600,), soak=(0, 600)):
        tables = {own: make(scene) for own in effort((60, 3600), soak=(0, 60, 3600))}
        orders = [scd1(table, lag_seconds=own, **given) for own, table in tables.items()]
        for table in tables.values():
            fill(scene, table, 1, 2, 3)
        before = now(scene)
        first = scene.run(*orders, lag_seconds=of_the_run)
        after = now(scene)
        uppers: dict[str, datetime] = {}
        for own, table in tables.items():
            lag, plan = timedelta(seconds=max(own, of_the_run)), planned(first, table).planner
            upper = moment(plan["upper_literal"])
            assert upper is not None
            assert plan["lag_seconds"] == lag.total_seconds()
            assert moment(plan["lower_literal"]) == initial - lag
            assert before - lag <= upper <= after - lag
            assert reached(scene, f"raw.{table}") == upper
            scene.sql(f"INSERT INTO {table} VALUES (4, {at(upper)}, 'x')")
            uppers[table] = upper
        later = scene.run(*orders, lag_seconds=of_the_run)
        for own, table in tables.items():
            plan = planned(later, table).planner
            assert moment(plan["current_literal"]) == uppers[table]
            assert moment(plan["lower_literal"]) == uppers[table] - timedelta(seconds=max(own, of_the_run))
            assert lake_rows(scene, f"mirror.{table}")[-1][0] == 4, "what was not read is read now"


def test_numbers_have_no_lag(scene: Scene) -> None:
    table = make(scene, "id bigint, at bigint, v text")
    scene.sql(f"INSERT INTO {table} VALUES (1, 5, 'x')")

    ran = scene.run(scd1(table), lag_seconds=3600)

    done(ran)
    assert planned(ran).planner["lag_seconds"] == 0
    assert lake_rows(scene, f"mirror.{table}") == [(1, 5, "x")]


@ONE_SERVER
def test_a_tables_lag_on_a_column_without_seconds_is_refused_before_anything_is_read(scene: Scene) -> None:
    tables = {kind: make(scene, f"id bigint, at {kind}, v text") for kind in ("bigint", "numeric(9,2)", "text")}

    ran = scene.run(*(scd1(table, lag_seconds=60) for table in tables.values()))

    for kind, table in tables.items():
        message = ran.errors[table].replace(" varying", "").replace("decimal", "numeric")  # as MariaDB calls it
        assert f"lag_seconds is 60, but column 'at' of type {kind}" in message
        assert "has no seconds. Remove lag_seconds" in ran.errors[table]
        assert not scene.pipeline.exists(f"raw.{table}")


# --- append


@ONE_SERVER
def test_appended_rows_come_once_and_a_reload_replaces_them_all_at_once(scene: Scene) -> None:
    kinds = {"moment": make(scene), "number": make(scene, "id bigint, at bigint, v text")}
    orders = [append(table, lag_seconds=60 if kind == "moment" else 0) for kind, table in kinds.items()]
    long_ago = {"moment": at(DAY), "number": "1"}
    for kind, table in kinds.items():
        scene.sql(f"INSERT INTO {table} VALUES (1, {long_ago[kind]}, 'x'), (2, {long_ago[kind]}, 'x')")
    done(scene.run(*orders, scd1_slicing=ONE_A_SLICE))
    scene.sql(f"INSERT INTO {kinds['number']} VALUES (3, 2, 'x'), (4, 3, 'x')")
    # Exactly where the first reading ended, which it did not read.
    scene.sql(f"INSERT INTO {kinds['moment']} VALUES (3, {at(reached(scene, 'raw.' + kinds['moment']))}, 'x')")
    for _ in range(2):
        done(scene.run(*orders, scd1_slicing=ONE_A_SLICE))
    for table in kinds.values():
        assert lake_rows(scene, f"raw.{table}") == source_rows(scene, table)
        scene.sql(f"DELETE FROM {table} WHERE id = 1")
    before = {table: scene.pipeline.snapshots(f"raw.{table}") for table in kinds.values()}

    done(scene.run(*orders, reload=True, scd1_slicing=ONE_A_SLICE))

    for table in kinds.values():
        assert lake_rows(scene, f"raw.{table}") == source_rows(scene, table)
        assert len(scene.pipeline.snapshots(f"raw.{table}")) == len(before[table]) + 1, "in one snapshot"
        assert not scene.pipeline.exists(f"mirror.{table}")
    scene.sql(f"INSERT INTO {kinds['number']} VALUES (5, 4, 'x')")
    done(scene.run(*orders))
    assert lake_rows(scene, f"raw.{kinds['number']}") == source_rows(scene, kinds["number"])


def test_rows_without_a_watermark_are_not_appended_time_and_again(scene: Scene) -> None:
    table = make(scene)
    scene.sql(f"INSERT INTO {table} VALUES (1, {at(DAY)}, 'x'), (2, NULL, 'lacks')")

    with pytest.raises(Misconfigured, match="every run would add such rows again"):
        scene.run(append(table, null_watermarks="include"))
    ran = scene.run(append(table, null_watermarks="exclude"))

    done(ran)
    assert [each.detail["null_watermarks"] for each in ran.of(PhaseMarked) if each.phase == "raw"] == [1]
    assert [row[0] for row in lake_rows(scene, f"raw.{table}")] == [1]


# --- crashes between raw and mirror


@ONE_SERVER
def test_a_mirror_that_a_crash_left_behind_is_finished_without_the_source(scene: Scene) -> None:
    table = make(scene)
    fill(scene, table, 1, 2, 3)
    done(scene.run(scd1(table)))
    scene.sql(f"UPDATE {table} SET v = 'new', at = {at(now(scene))} WHERE id = 2")
    add(scene, table, 4)
    crashed = scene.run(scd1(table), wiring=broken_at("commit_incremental"))
    assert crashed.errors[table] == "commit_incremental was cut short"
    old = reached(scene, f"raw.{table}")

    ran = scene.elsewhere().run(scene.spark, [scd1(table)])

    assert ran.exit_code == 1
    assert list(ran.errors) == [table]
    [sentence] = ran.errors.values()
    assert "127.0.0.1" in sentence
    assert "\n" not in sentence
    phases = [(each.phase, each.state) for each in ran.of(PhaseMarked)]
    # What was left behind is done; what fails then is what comes next, the source.
    assert phases == [("intermediate", "done"), ("watermark", "done"), ("raw", "failed")]
    assert lake_rows(scene, f"mirror.{table}") == source_rows(scene, table)
    assert reached(scene, f"raw.{table}") > old
    done_up_to, landed = mark_of(scene, f"raw.{table}"), mark_of(scene, f"raw.{table}", Mark.LANDED)
    assert done_up_to is not None
    assert landed == replace(done_up_to, mark=Mark.LANDED)
    quiet = scene.run(scd1(table))
    done(quiet)
    assert [type(each) for each in quiet.of(TableSkipped)] == [TableSkipped]


# --- a state that was lost


def forget(scene: Scene) -> None:
    """Lose the state, all of it."""
    for file in scene.pipeline.folder.glob("state.sqlite*"):
        file.unlink()


def rebuild(scene: Scene, *tables: str) -> None:
    """Rebuild what the state knew of tables, by the command."""
    folder, lakehouse = scene.pipeline.folder, scene.pipeline.lakehouse
    for table in tables:
        told = CliRunner().invoke(
            app,
            [
                *("state", "rebuild", table, "--state", f"sqlite:///{folder}/state.sqlite"),
                *("--ledger", (lakehouse / "ledger").as_uri(), "--lakehouse", str(lakehouse)),
            ],
        )
        assert told.exit_code == 0, told.output


@ONE_SERVER
def test_nothing_is_doubled_or_lost_by_a_run_after_the_state_was_lost_and_rebuilt(scene: Scene) -> None:
    """After a whole increment or reload, in the middle of its slices, and between raw and mirror."""
    cuts = (None, "stage_incremental_slice", "commit_incremental")
    tables = {(reload, cut): make(scene) for reload in (False, True) for cut in cuts}
    orders = [scd1(table) for table in tables.values()]
    for table in tables.values():
        fill(scene, table, 1, 2, 3)
    done(scene.run(*orders))
    for (reload, cut), table in tables.items():
        if reload:
            scene.sql(f"DELETE FROM {table} WHERE id = 2")
        else:
            add(scene, table, 4, 5)
        if cut is None:
            done(scene.run(scd1(table), reload=reload))
        else:
            cut_short = broken_at(cut, after=1 if cut == "stage_incremental_slice" else 0)
            ran = scene.run(scd1(table), reload=reload, scd1_slicing=ONE_A_SLICE, wiring=cut_short)
            assert ran.errors[table] == f"{cut} was cut short"
    before = {table: raw_rows(scene, table) for table in tables.values()}
    forget(scene)
    rebuild(scene, *(f"{place}.{table}" for table in tables.values() for place in ("raw", "mirror")))

    done(scene.run(*orders, scd1_slicing=ONE_A_SLICE))
    again = scene.run(*orders)

    done(again)
    assert len(again.of(TableSkipped)) == len(tables)
    for which, table in tables.items():
        assert lake_rows(scene, f"mirror.{table}") == source_rows(scene, table), which
        assert set(before[table]) <= set(raw_rows(scene, table)), which
        raw = scene.rows(f"raw.{table}", ingest=True)
        held = list(zip(raw["_generation"].to_pylist(), raw["id"].to_pylist(), strict=True))
        assert len(held) == len(set(held)), which
