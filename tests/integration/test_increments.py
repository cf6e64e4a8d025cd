"""Tables read in increments, from real servers: every row is read, whenever it comes and however many are alike."""

# ruff: noqa: S608 - tests write their SQL in place, about tables of their own

from datetime import timedelta

import pyarrow.compute as pc
import pytest

from lakehead.state.model import Mark
from lakehead.telemetry.emitter import EventEnvelope
from lakehead.telemetry.events import PhaseMarked, TablePlanned, TableSkipped
from tests.integration.increment_support import (
    DAY,
    SECOND,
    at,
    done,
    lake_rows,
    make,
    mark_of,
    now,
    other_session,
    planned,
    reached,
    scd1,
    series,
    source_rows,
)
from tests.integration.pipeline_support import MARKS, PLUGINS, Scene

pytest_plugins = PLUGINS
pytestmark = MARKS


# --- ties


def test_ten_thousand_rows_of_one_moment_are_never_parted_and_none_is_lost(scene: Scene) -> None:
    table = make(scene, "id bigint PRIMARY KEY, at {moment}, v text")
    tie, step = DAY, timedelta(seconds=1)
    for first, moment, interval in ((0, tie - 1_500 * step, 1), (20_000, tie + step, 1), (10_000, tie, 0)):
        count = 10_000 if interval == 0 else 1_200
        added = f"n * {interval}"
        moved = {
            "postgresql": f"{at(moment)} + {added} * interval '1 second'",
            "mysql": f"{at(moment)} + INTERVAL {added} SECOND",
        }[scene.database.kind]
        scene.sql(f"INSERT INTO {table} SELECT {first} + n, {moved}, 'x' FROM {series(scene, count)}")

    ran = scene.run(scd1(table), scd1_slicing={"target_rows": 1_000})

    done(ran)
    assert planned(ran).slices >= 4, "its neighbours are divided"
    raw = scene.rows(f"raw.{table}", ingest=True)
    tied = raw.filter(pc.equal(raw["at"], tie))
    assert tied.num_rows == 10_000
    assert len(set(tied["_slice"].to_pylist())) == 1, "rows of one moment are one slice"
    assert pc.count_distinct(raw["id"]).as_py() == raw.num_rows == 12_400, "each row is in one slice"
    assert lake_rows(scene, f"mirror.{table}") == source_rows(scene, table)


# --- late commits


def test_a_row_stamped_before_the_read_and_committed_after_it_is_found_inside_the_lag(
    scene: Scene, request: pytest.FixtureRequest
) -> None:
    """The lag holds the bound back, so that a row which is not there yet is not passed by."""
    table = make(scene)
    began = now(scene)
    scene.sql(f"INSERT INTO {table} VALUES (1, {at(began - timedelta(hours=1))}, 'early')")
    with other_session(scene, request) as other:
        other.execute(f"INSERT INTO {table} VALUES (2, {at(began - timedelta(seconds=30))}, 'late')")
        done(scene.run(scd1(table, lag_seconds=60)))
        other.execute("COMMIT")
    assert [row[0] for row in lake_rows(scene, f"mirror.{table}")] == [1]

    done(scene.run(scd1(table)))

    assert lake_rows(scene, f"mirror.{table}") == source_rows(scene, table)


def test_a_row_stamped_below_the_watermark_and_committed_later_is_found_inside_the_lag(
    scene: Scene, request: pytest.FixtureRequest
) -> None:
    """The lag lowers the lower bound too: what was read is read again, and what was not there is found."""
    table = make(scene)
    began = now(scene)
    scene.sql(f"INSERT INTO {table} VALUES (1, {at(began - timedelta(hours=1))}, 'early')")
    with other_session(scene, request) as other:
        other.execute(f"INSERT INTO {table} VALUES (2, {at(began - timedelta(seconds=90))}, 'late')")
        done(scene.run(scd1(table, lag_seconds=60)))
        other.execute("COMMIT")

    done(scene.run(scd1(table, lag_seconds=60)))

    assert lake_rows(scene, f"mirror.{table}") == source_rows(scene, table)


def test_a_transaction_that_is_open_across_the_run_holds_the_bound_below_its_start(
    on_postgresql: Scene, request: pytest.FixtureRequest
) -> None:
    scene = on_postgresql
    table = make(scene, "id bigint, at timestamptz DEFAULT now(), v text")
    scene.sql(f"INSERT INTO {table} (id, v) VALUES (1, 'before')")
    with other_session(scene, request) as other:
        other.execute(f"INSERT INTO {table} (id, v) VALUES (2, 'held') RETURNING at")
        [stamped] = other.fetchone()
        scene.sql(f"INSERT INTO {table} (id, v) VALUES (3, 'after')")
        done(scene.run(scd1(table)))
        other.execute("COMMIT")
    assert reached(scene, f"raw.{table}") <= stamped, "nothing that may still be committed is passed by"
    assert [row[0] for row in lake_rows(scene, f"mirror.{table}")] == [1]

    done(scene.run(scd1(table)))

    assert lake_rows(scene, f"mirror.{table}") == source_rows(scene, table)


def test_a_row_that_is_written_in_the_second_in_which_its_table_was_read_is_found(scene: Scene) -> None:
    """A column of whole seconds says of it that it was written before the source's time."""
    kind = {"postgresql": "timestamp(0)", "mysql": "datetime"}[scene.database.kind]
    table = make(scene, f"id bigint, at {kind}, v text")
    scene.sql(f"INSERT INTO {table} VALUES (1, {at(DAY)}, 'x')")
    done(scene.run(scd1(table)))
    second = reached(scene, f"raw.{table}").replace(microsecond=0)
    scene.sql(f"INSERT INTO {table} VALUES (2, {at(second)}, 'written later in that second')")
    while now(scene) < second + SECOND:
        pass  # until it is over, nothing of it is read

    done(scene.run(scd1(table)))

    assert lake_rows(scene, f"mirror.{table}") == source_rows(scene, table)


# --- rows that come between plan and read


@pytest.mark.parametrize("kind", ["moment", "number"])
def test_rows_that_come_at_the_bound_between_plan_and_read_are_there_in_the_end(scene: Scene, kind: str) -> None:
    table = make(scene, "id bigint, at {moment}, v text" if kind == "moment" else "id bigint, at bigint, v text")
    early, more = (at(DAY), at(DAY + timedelta(seconds=1))) if kind == "moment" else ("5", "7")
    scene.sql(f"INSERT INTO {table} VALUES (1, {early}, 'x'), (2, {more}, 'x')")
    bounds: list[object] = []

    def between(told: EventEnvelope) -> None:
        if isinstance(told.event, TablePlanned) and not bounds:
            bounds.append(upper := told.event.planner["upper_literal"])
            # At the largest value there is, and exactly where the reading ends.
            scene.sql(f"INSERT INTO {table} VALUES (3, {more}, 'between'), (4, {upper}, 'between')")

    done(scene.run(scd1(table), hears=between))
    after = at(now(scene)) if kind == "moment" else "9"
    scene.sql(f"INSERT INTO {table} VALUES (5, {after}, 'later')")
    done(scene.run(scd1(table)))

    assert len(bounds) == 1
    assert lake_rows(scene, f"mirror.{table}") == source_rows(scene, table)


def test_a_row_at_the_maximum_that_came_after_the_read_is_seen_when_a_higher_one_comes(scene: Scene) -> None:
    table = make(scene, "id bigint, at bigint, v text")
    scene.sql(f"INSERT INTO {table} VALUES (1, 5, 'x')")
    done(scene.run(scd1(table)))
    scene.sql(f"INSERT INTO {table} VALUES (2, 5, 'a tie'), (3, 6, 'higher')")

    done(scene.run(scd1(table)))

    assert lake_rows(scene, f"mirror.{table}") == source_rows(scene, table)


# --- nothing


def test_an_empty_table_and_an_empty_increment_make_no_snapshot_and_move_no_watermark(scene: Scene) -> None:
    kinds = {"moment": make(scene), "number": make(scene, "id bigint, at bigint, v text")}
    orders = [scd1(table) for table in kinds.values()]

    def standing() -> list[object]:
        return [
            (
                scene.pipeline.snapshots(f"raw.{table}"),
                scene.pipeline.snapshots(f"mirror.{table}"),
                mark_of(scene, f"raw.{table}"),
                mark_of(scene, f"raw.{table}", Mark.LANDED),
            )
            for table in kinds.values()
        ]

    nothing = scene.run(*orders)
    done(nothing)
    assert [each.reason for each in nothing.of(TableSkipped)] == ["the source has no rows yet"] * 2
    assert standing() == [([], [], None, None)] * 2
    scene.sql(f"INSERT INTO {kinds['moment']} VALUES (1, {at(DAY)}, 'x')")
    scene.sql(f"INSERT INTO {kinds['number']} VALUES (1, 5, 'x')")
    done(scene.run(*orders))
    before = standing()

    again = scene.run(*orders)

    done(again)
    assert standing() == before
    assert all(each.reason.startswith("nothing new since") for each in again.of(TableSkipped))
    assert len(again.of(TableSkipped)) == 2
    assert again.of(PhaseMarked) == []
