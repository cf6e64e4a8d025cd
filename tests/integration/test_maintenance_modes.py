"""`--maintenance-mode dry-run` and `apply`: what one lists the other does, and loads never notice."""

# ruff: noqa: S608 - tests write their SQL in place, about tables of their own

import json
from contextlib import closing
from datetime import timedelta
from typing import Any

import pytest
from pyiceberg.table.refs import SnapshotRefType
from pyspark.sql import SparkSession

from lakehead.clock import SystemClock
from lakehead.lake.commits import set_ref
from lakehead.lake.iceberg_table import IcebergTable
from lakehead.lake.ledger import StoreLedger
from lakehead.storage.memory_store import MemoryStore
from tests.integration.maintenance_modes import TODAY, all_rows, iceberg, maintained, part
from tests.integration.maintenance_support import Later, make_old, plant
from tests.integration.pipeline_support import Scene
from tests.integration.sink_support import Kept, add, full, numbers, scd1
from tests.pipeline import DAY
from tests.support.commands import lakehead_command

pytest_plugins = (
    "tests.support.state_fixtures",
    "tests.support.source_fixtures",
    "tests.integration.pipeline_fixtures",
    "tests.integration.sink_fixtures",
)
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

FEW = {"min_input_files": 2, "max_snapshots": 1}
STRAY = "lakehead_1000000000000_aa"


def no_spark() -> SparkSession:
    raise AssertionError("Spark was started for nothing")


def stray_branch(kept: Kept, name: str) -> None:
    with closing(kept.scene.pipeline.catalog()) as catalog:
        table = IcebergTable(catalog, name, StoreLedger(MemoryStore(clock=SystemClock())))
        head = table.load().metadata.current_snapshot_id
        assert head is not None
        table.commit(None, lambda _: ((set_ref(STRAY, SnapshotRefType.BRANCH, head),), ()))


def test_a_dry_run_lists_exactly_what_apply_then_does_and_no_row_changes(on_sqlite: Scene) -> None:
    kept = Kept(on_sqlite, "iceberg")
    name = numbers(kept, 1, 2, 3)
    table = scd1(name, raw_retention_days=30)
    # Merged with Spark's MERGE, which leaves delete files even where a third of a file is deleted.
    for number in (4, 5):
        assert kept.run(table, merge_lane="spark").errors == {}
        add(kept, name, number)
        kept.scene.sql(f"UPDATE {name} SET at = {number}, v = 'new' WHERE id = 1")
    kept.run(table, merge_lane="spark", load_date=TODAY - timedelta(days=1))
    add(kept, name, 6)
    kept.run(table, merge_lane="spark", load_date=TODAY)
    make_old(*(strays := plant(iceberg(kept, f"raw.{name}"), "data/stray.parquet")))
    stray_branch(kept, f"mirror.{name}")
    before = all_rows(kept, f"mirror.{name}")

    dry, planned = maintained(kept, "dry-run", table, maintenance=FEW, session=no_spark)
    again, _ = maintained(kept, "dry-run", table, maintenance=FEW)
    applied, done = maintained(kept, "apply", table, maintenance=FEW)
    after, _ = maintained(kept, "dry-run", table, maintenance={"min_input_files": 2})

    assert planned
    assert done, applied
    assert again == dry, "a dry run changes nothing"
    assert {**applied, "mode": "dry-run"} == dry
    raw, mirror = part(dry, "raw", name), part(dry, "mirror", name)
    assert raw["orphan_files"] == tuple(strays)
    assert (len(raw["raw_retention"]["files"]), raw["raw_retention"]["rows"]) == (2, 6), "of the oldest load date"
    assert mirror["stray_branches"] == (STRAY,)
    assert raw["expired_snapshots"]
    assert len(mirror["compaction"]["data_files"]) > 1
    assert mirror["compaction"]["delete_files"]
    assert [each["compaction"] for each in after["tables"][0]["results"]] == [
        {"data_files": (), "delete_files": ()}
    ] * 2
    assert all_rows(kept, f"mirror.{name}") == before
    assert {row["_load_date"] for row in all_rows(kept, f"raw.{name}")} == {TODAY, TODAY - timedelta(days=1)}
    add(kept, name, 7)
    assert kept.run(table, load_date=TODAY).errors == {}
    assert [row["id"] for row in all_rows(kept, f"mirror.{name}")] == [1, 2, 3, 4, 5, 6, 7]


def test_snapshots_expire_by_their_age_and_by_their_number(on_sqlite: Scene) -> None:
    kept = Kept(on_sqlite, "iceberg")
    name = numbers(kept, 1)
    for number in (2, 3, 4):
        kept.run(scd1(name))
        add(kept, name, number)

    def expiring(clock: SystemClock, **settings: int) -> int:
        shown, _ = maintained(kept, "dry-run", scd1(name), clock=clock, maintenance=settings)
        return len(part(shown, "raw", name)["expired_snapshots"])

    later = Later(by=timedelta(hours=50))
    assert expiring(later, expire_after_hours=51) == 0
    assert expiring(later, expire_after_hours=49) == 2, "all but the last landing"
    assert expiring(later, expire_after_hours=49, min_snapshots=2) == 1
    assert expiring(SystemClock(), max_snapshots=2) == 1


def test_a_failing_table_does_not_stop_the_others(on_sqlite: Scene) -> None:
    kept = Kept(on_sqlite, "iceberg")
    broken, whole = numbers(kept, 1), numbers(kept, 1)
    kept.run(full(broken), full(whole))
    kept.scene.spark.sql(f"ALTER TABLE lake.raw.{broken} SET TBLPROPERTIES ('gc.enabled' = 'false')")

    results, done = maintained(kept, "dry-run", full(broken), full(whole))

    assert not done
    assert "gc.enabled" in part(results, "raw", broken)["error"]
    assert "error" not in part(results, "raw", whole)


def test_the_command_prints_json_and_nothing_else_and_loads_nothing(on_sqlite: Scene) -> None:
    kept = Kept(on_sqlite, "iceberg")
    one, other = numbers(kept, 1), numbers(kept, 1)
    kept.run(scd1(one), scd1(other))
    add(kept, one, 2)
    config = kept.scene.pipeline.config([scd1(one), scd1(other)])
    before = kept.scene.pipeline.snapshots(f"raw.{one}")

    results: dict[str, Any] = {}
    for mode in ("dry-run", "apply"):
        ran = lakehead_command("run", config, "--maintenance-mode", mode, "--only-tables", one)
        assert (ran.returncode, ran.stderr) == (0, "")
        results[mode] = json.loads(ran.stdout)

    assert [each["table"] for each in results["apply"]["tables"]] == [one]
    assert results["apply"].pop("mode") == "apply"
    assert results["dry-run"].pop("mode") == "dry-run"
    assert results["apply"] == results["dry-run"]
    assert kept.scene.pipeline.snapshots(f"raw.{one}") == before
    refused = lakehead_command("run", config, "--maintenance-mode", "apply", "--reload")
    assert (refused.returncode, refused.stdout) == (2, "")


def test_staged_directories_of_file_sinks_go_by_their_age(in_files: Kept) -> None:
    name = numbers(in_files, 1)
    in_files.run(full(name))
    in_files.run(full(name), reload=True)
    later = Later(by=timedelta(hours=80))

    young, _ = maintained(in_files, "apply", full(name))
    dry, _ = maintained(in_files, "dry-run", full(name), clock=later)
    applied, done = maintained(in_files, "apply", full(name), clock=later)

    assert done
    assert [each["staging_directories"] for each in young["tables"][0]["results"]] == [[], []]
    assert applied["tables"] == dry["tables"]
    assert in_files.rows("final", name, "id") == [(1,)]


def test_a_table_that_was_never_loaded_has_nothing_to_maintain(on_sqlite: Scene) -> None:
    kept = Kept(on_sqlite, "iceberg")
    name = numbers(kept, 1)
    assert maintained(kept, "apply", scd1(name)) == (
        {"mode": "apply", "tables": [{"table": name, "mode": "scd1", "results": []}]},
        True,
    )
    assert DAY < TODAY
