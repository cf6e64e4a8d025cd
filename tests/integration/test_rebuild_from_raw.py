"""Mirrors and final tables that are rebuilt from raw, and raw tables that lose old slices."""

# ruff: noqa: S608 - tests write their SQL in place, about tables of their own

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from lakehead.extract import iceberg_table_sink
from lakehead.lake import run_context
from lakehead.lake.merge_lane import LaneStager
from lakehead.lake.raw_floor import RawFloor, floor_of
from lakehead.lake.table_leases import StateTableLeases
from lakehead.lake.whole_table import WholeTableStager
from lakehead.retry import Backoff
from tests.integration.increment_support import broken_at
from tests.integration.maintenance_modes import TODAY, all_rows, maintained, part
from tests.integration.pipeline_support import Scene
from tests.integration.sink_support import Kept, add, full, numbers, scd1
from tests.integration.test_raw_and_mirror import meanwhile
from tests.pipeline import DAY, Ran

pytest_plugins = (
    "tests.support.state_fixtures",
    "tests.support.source_fixtures",
    "tests.integration.pipeline_fixtures",
    "tests.integration.sink_fixtures",
)
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

MONTH: dict[str, Any] = {"raw_retention_days": 30}


MERGES = pytest.mark.parametrize(
    ("lane", "owner", "step"),
    [("arrow", LaneStager, "_check_once"), ("spark", iceberg_table_sink, "merge_newest")],
    ids=["arrow", "spark"],
)
"""What a merge does when its rows are chosen and nothing is published."""


def before_first(monkeypatch: pytest.MonkeyPatch, owner: Any, step: str, act: Callable[[], object]) -> list[object]:
    """Act once, in another thread, right before a step that writes is first taken: its rows are chosen by then.

    Whoever acts does not wait for the lease on the table, which the other one holds: it may have expired.
    """
    monkeypatch.setattr(run_context, "StateTableLeases", partial(StateTableLeases, patience=Backoff(attempts=1)))
    run, acted = getattr(owner, step), list[object]()

    def later(*args: Any, **named: Any) -> Any:
        if not acted:
            acted.append(None)
            with ThreadPoolExecutor(1) as other:
                acted[0] = other.submit(act).result()
        return run(*args, **named)

    monkeypatch.setattr(owner, step, later)
    return acted


def rebuilt(kept: Kept, *tables: dict[str, Any], **more: Any) -> list[dict[str, Any]]:
    results, _ = maintained(kept, "rebuild-from-raw", *tables, **more)
    return [{**each, **part} for each in results["tables"] for part in each["results"] or [{}]]


def test_a_rebuilt_mirror_equals_the_incremental_one_row_for_row(on_sqlite: Scene) -> None:
    kept = Kept(on_sqlite, "iceberg")
    name, other = numbers(kept, 1, 2, 3), numbers(kept, 8, 9)
    for number in (4, 5):
        kept.run(scd1(name), full(other))
        add(kept, name, number)
        kept.scene.sql(f"UPDATE {name} SET at = {number}, v = 'v{number}' WHERE id IN (1, {number - 1})")
    kept.run(scd1(name))
    mirror, final = all_rows(kept, f"mirror.{name}"), all_rows(kept, f"final.{other}")
    kept.scene.spark.sql(f"DELETE FROM lake.mirror.{name} WHERE id < 3")  # somebody has damaged them
    kept.scene.spark.sql(f"UPDATE lake.final.{other} SET v = 'wrong'")

    one, two = rebuilt(kept, scd1(name), full(other))

    assert (one["rebuilt_rows"], two["rebuilt_rows"]) == (5, 2)
    assert all_rows(kept, f"mirror.{name}") == mirror
    assert all_rows(kept, f"final.{other}") == final
    add(kept, name, 6)
    assert kept.run(scd1(name)).errors == {}
    assert [row["id"] for row in all_rows(kept, f"mirror.{name}")] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    ("lane", "owner", "step"), [("spark", iceberg_table_sink, "overwrite_newest"), ("arrow", WholeTableStager, "_copy")]
)
def test_a_load_beside_a_rebuild_loses_nothing(
    on_sqlite: Scene, monkeypatch: pytest.MonkeyPatch, lane: str, owner: Any, step: str
) -> None:
    kept = Kept(on_sqlite, "iceberg")
    name = numbers(kept, 1, 2)
    kept.run(scd1(name), merge_lane=lane)

    def load() -> Ran:
        meanwhile(kept, f"INSERT INTO {name} VALUES (3, 3, 'x')")
        return kept.run(scd1(name), merge_lane=lane)

    loads = before_first(monkeypatch, owner, step, load)
    (done,) = rebuilt(kept, scd1(name), merge_lane=lane)

    assert [load.errors for load in loads if isinstance(load, Ran)] == [{}]
    assert done["slice"] == 2, "it was made anew, with the slice that was merged meanwhile"
    assert [row["id"] for row in all_rows(kept, f"mirror.{name}")] == [1, 2, 3]


@MERGES
def test_a_rebuild_beside_a_load_loses_nothing(
    on_sqlite: Scene, monkeypatch: pytest.MonkeyPatch, lane: str, owner: Any, step: str
) -> None:
    kept = Kept(on_sqlite, "iceberg")
    name = numbers(kept, 1, 2)
    kept.run(scd1(name), merge_lane=lane)
    add(kept, name, 3)

    acted = before_first(monkeypatch, owner, step, lambda: rebuilt(kept, scd1(name), merge_lane=lane))
    assert kept.run(scd1(name), merge_lane=lane).errors == {}

    assert acted
    assert [row["id"] for row in all_rows(kept, f"mirror.{name}")] == [1, 2, 3]


def test_retention_keeps_what_is_not_merged_and_refuses_a_rebuild_below_its_floor(on_sqlite: Scene) -> None:
    kept = Kept(on_sqlite, "iceberg")
    name = numbers(kept, 1)
    kept.run(scd1(name))
    add(kept, name, 2)
    unmerged = kept.run(scd1(name), wiring=broken_at("commit_incremental"))
    assert unmerged.errors != {}

    applied, done = maintained(kept, "apply", scd1(name, **MONTH))

    assert done, applied
    removed = part(applied, "raw", name)["raw_retention"]
    assert (removed["rows"], removed["floor"]) == (1, {"generation": 0, "slice": 1})
    assert {row["_slice"] for row in all_rows(kept, f"raw.{name}")} == {2}, "the mirror lacks that slice"
    assert floor(kept, name) == RawFloor(0, 1)

    (refused,) = rebuilt(kept, scd1(name))
    assert "raw retention has removed" in refused["error"]
    assert f"--only-tables {name} --reload" in refused["error"]
    assert [row["id"] for row in all_rows(kept, f"mirror.{name}")] == [1]

    assert kept.run(scd1(name)).errors == {}, "the next run merges what is left"
    assert [row["id"] for row in all_rows(kept, f"mirror.{name}")] == [1, 2]

    kept.scene.spark.sql(f"DROP TABLE lake.mirror.{name}")
    assert "raw retention has removed" in kept.run(scd1(name)).errors[name], "a part of the rows is no mirror"

    assert kept.run(scd1(name), reload=True).errors == {}
    (done_again,) = rebuilt(kept, scd1(name))
    assert done_again["rebuilt_rows"] == 2
    assert [row["id"] for row in all_rows(kept, f"mirror.{name}")] == [1, 2]


def test_retention_keeps_a_full_tables_last_load_and_young_ones(on_sqlite: Scene) -> None:
    kept = Kept(on_sqlite, "iceberg")
    old, young = numbers(kept, 1), numbers(kept, 1)
    for day in (DAY, DAY + timedelta(days=1)):
        kept.run(full(old), load_date=day)
    for day in (TODAY - timedelta(days=31), TODAY - timedelta(days=30), TODAY):
        kept.run(full(young), load_date=day)

    applied, done = maintained(kept, "apply", full(old), full(young), **MONTH)

    assert done, applied
    assert [row["_load_date"] for row in all_rows(kept, f"raw.{old}")] == [DAY + timedelta(days=1)]
    assert {row["_load_date"] for row in all_rows(kept, f"raw.{young}")} == {TODAY, TODAY - timedelta(days=30)}
    (still,) = rebuilt(kept, full(old))
    assert still["rebuilt_rows"] == 1


def floor(kept: Kept, name: str) -> RawFloor | None:
    with closing(kept.scene.pipeline.catalog()) as catalog:
        return floor_of(catalog.load_table(f"raw.{name}").metadata)
