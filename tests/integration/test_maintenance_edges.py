"""What maintenance must never do to tables in an odd state, and what it still does beside a table that fails."""

# ruff: noqa: S608 - tests write their SQL in place, about tables of their own

import asyncio
import shutil
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from lakehead.maintain.sweep import move_sweep_tag
from tests.integration.increment_support import broken_at
from tests.integration.maintenance_modes import all_rows, iceberg, maintained, part
from tests.integration.maintenance_support import Later, files_of, make_old
from tests.integration.pipeline_support import Scene
from tests.integration.sink_support import Kept, add, full, numbers, scd1
from tests.integration.test_erase import erase
from tests.integration.test_rebuild_from_raw import rebuilt
from tests.support.commands import lakehead_command

pytest_plugins = (
    "tests.support.state_fixtures",
    "tests.support.source_fixtures",
    "tests.integration.pipeline_fixtures",
    "tests.integration.sink_fixtures",
)
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

ARROW: dict[str, Any] = {"merge_lane": "arrow"}


def ids(kept: Kept, name: str) -> list[Any]:
    return sorted(row["id"] for row in all_rows(kept, name))


def typed(*words: object, code: int = 0) -> str:
    ran = lakehead_command(*words)
    assert ran.returncode == code, (ran.stdout, ran.stderr)
    return ran.stdout + ran.stderr


def stored_files(kept: Kept, name: str) -> Iterator[Path]:
    """Every Parquet file that lies where the table does, also those of older snapshots."""
    return (Path(file) for file in files_of(iceberg(kept, name)) if file.endswith(".parquet"))


def kept_ids(kept: Kept, name: str) -> set[int]:
    """Every id in any data file below a table's location."""
    found = (pq.read_table(file) for file in stored_files(kept, name))
    return {number for rows in found if "id" in rows.column_names for number in rows.column("id").to_pylist()}


def metadata_of(kept: Kept, name: str) -> Path:
    with closing(kept.scene.pipeline.catalog()) as catalog:
        return Path(catalog.load_table(name).metadata_location.removeprefix("file://"))


def test_a_rebuild_never_empties_a_mirror_that_raw_knows_nothing_of(on_sqlite: Scene) -> None:
    kept = Kept(on_sqlite, "iceberg")
    name = numbers(kept, 1, 2)
    kept.run(scd1(name))
    kept.scene.spark.sql(f"DROP TABLE lake.raw.{name}")
    kept.run(scd1(name), wiring=broken_at("commit_incremental"))  # raw is made anew, and not merged yet

    (refused,) = rebuilt(kept, scd1(name))

    assert ids(kept, f"mirror.{name}") == [1, 2]
    assert "error" in refused
    assert kept.run(scd1(name)).errors == {}
    (done,) = rebuilt(kept, scd1(name))
    assert done["rebuilt_rows"] == 2


def test_a_rebuild_from_a_raw_that_was_rolled_back_is_refused(on_sqlite: Scene) -> None:
    kept = Kept(on_sqlite, "iceberg")
    name = numbers(kept, 1)
    kept.run(scd1(name))
    first = kept.scene.pipeline.snapshots(f"raw.{name}")[-1]
    add(kept, name, 2)
    kept.run(scd1(name))
    kept.scene.spark.sql(f"CALL lake.system.rollback_to_snapshot('raw.{name}', {first})")
    config = kept.scene.pipeline.config([scd1(name)])
    typed("state", "rebuild", f"raw.{name}", "--config", config)

    (refused,) = rebuilt(kept, scd1(name))

    assert ids(kept, f"mirror.{name}") == [1, 2]
    assert "error" in refused


def test_what_was_erased_is_gone_from_the_store_once_older_snapshots_have_expired(on_sqlite: Scene) -> None:
    kept = Kept(on_sqlite, "iceberg")
    name = numbers(kept, 1, 2)
    kept.run(scd1(name))
    kept.scene.sql(f"DELETE FROM {name} WHERE id = 1")

    erase(kept, scd1(name), "id=1")
    config = kept.scene.pipeline.config([scd1(name)])
    for place in ("raw", "mirror"):
        typed("maintain", "expire", f"{place}.{name}", "--older-than", "0s", "--config", config)

    assert kept_ids(kept, f"mirror.{name}") == {2}
    assert kept_ids(kept, f"raw.{name}") == {2}
    add(kept, name, 3)
    assert kept.run(scd1(name)).errors == {}
    assert ids(kept, f"mirror.{name}") == [2, 3]


def test_a_table_whose_metadata_is_damaged_does_not_stop_the_others(on_sqlite: Scene) -> None:
    kept = Kept(on_sqlite, "iceberg")
    broken, whole = numbers(kept, 1), numbers(kept, 1)
    kept.run(full(broken), full(whole))
    damaged = metadata_of(kept, f"raw.{broken}")
    text = damaged.read_text()
    damaged.write_text(text[:100])
    try:
        for mode in ("dry-run", "apply", "rebuild-from-raw"):
            results, done = maintained(kept, mode, full(broken), full(whole))
            assert not done
            assert "error" in str(results["tables"][0])
            assert mode == "rebuild-from-raw" or "error" not in part(results, "final", broken)
            assert "error" not in str(results["tables"][1])
        dry = typed("tables", "recover", kept.scene.pipeline.config([full(broken), full(whole)]), "--dry-run")
        assert f"raw.{broken}: is in the catalog, and was not changed" in dry
    finally:
        damaged.write_text(text)  # other tests have the same lakehouse


def test_a_table_that_was_dropped_and_loaded_again_is_maintained(on_sqlite: Scene) -> None:
    kept = Kept(on_sqlite, "iceberg")
    name = numbers(kept, 1)
    kept.run(scd1(name))
    config = kept.scene.pipeline.config([scd1(name)])
    typed("tables", "drop", config, name, "--yes")
    for number in (2, 3, 4):
        kept.run(scd1(name))
        add(kept, name, number)

    applied, _ = maintained(kept, "apply", scd1(name), maintenance={"min_input_files": 2})

    raw = part(applied, "raw", name)
    assert "sweep with --dropped" in raw["error"], "whether anybody wants the old files is not known"
    assert raw["orphan_files"] == ()
    assert len(raw["compaction"]["data_files"]) > 1


def test_a_dry_run_lists_what_apply_does_with_many_metadata_files(on_sqlite: Scene) -> None:
    kept = Kept(on_sqlite, "iceberg")
    name = numbers(kept, 1)
    for number in range(2, 5):
        kept.run(scd1(name))
        add(kept, name, number)
    with closing(kept.scene.pipeline.catalog()) as catalog:
        for number in range(25):
            with catalog.load_table(f"raw.{name}").transaction() as transaction:
                transaction.set_properties({"note": f"{number}"})
    make_old(*files_of(iceberg(kept, f"raw.{name}")), *files_of(iceberg(kept, f"mirror.{name}")))
    settings = {"min_input_files": 2, "max_snapshots": 1}

    dry, _ = maintained(kept, "dry-run", scd1(name), maintenance=settings)
    applied, done = maintained(kept, "apply", scd1(name), maintenance=settings)

    assert done, applied
    assert {**applied, "mode": "dry-run"} == dry


def test_a_mirror_merged_in_arrow_is_maintained_erased_from_and_rebuilt(on_sqlite: Scene) -> None:
    kept = Kept(on_sqlite, "iceberg")
    name = numbers(kept, 1, 2, 3, 4)
    kept.run(scd1(name), **ARROW)
    for number in (5, 6, 7):
        add(kept, name, number)
        kept.scene.sql(f"UPDATE {name} SET at = {number}, v = 'v{number}' WHERE id IN (1, {number - 1})")
        assert kept.run(scd1(name), **ARROW).errors == {}
    mirror = all_rows(kept, f"mirror.{name}")
    settings = {"min_input_files": 2, "max_snapshots": 1}

    dry, _ = maintained(kept, "dry-run", scd1(name), maintenance=settings, **ARROW)
    applied, done = maintained(kept, "apply", scd1(name), maintenance=settings, **ARROW)
    assert done, applied
    assert {**applied, "mode": "dry-run"} == dry
    assert all_rows(kept, f"mirror.{name}") == mirror
    maintained(kept, "apply", scd1(name), maintenance=settings, clock=Later(by=timedelta(days=9)), **ARROW)
    assert all_rows(kept, f"mirror.{name}") == mirror
    rebuilt(kept, scd1(name), **ARROW)
    assert all_rows(kept, f"mirror.{name}") == mirror, "row for row"

    kept.scene.sql(f"UPDATE {name} SET at = 9, v = 'v9' WHERE id IN (1, 2)")
    assert kept.run(scd1(name), **ARROW).errors == {}
    kept.scene.sql(f"DELETE FROM {name} WHERE id = 1")
    erase(kept, scd1(name), "id=1")
    assert ids(kept, f"mirror.{name}") == [2, 3, 4, 5, 6, 7]
    assert kept.run(scd1(name), **ARROW).errors == {}
    kept.scene.sql(f"UPDATE {name} SET at = 10, v = 'v10' WHERE id IN (3, 2)")
    assert kept.run(scd1(name), **ARROW).errors == {}
    mirror = all_rows(kept, f"mirror.{name}")
    assert [row["id"] for row in mirror] == [2, 3, 4, 5, 6, 7]
    rebuilt(kept, scd1(name), **ARROW)
    assert all_rows(kept, f"mirror.{name}") == mirror


def test_of_two_folders_with_one_table_only_one_is_registered(on_sqlite: Scene) -> None:
    kept = Kept(on_sqlite, "iceberg")
    name = numbers(kept, 1)
    kept.run(scd1(name))
    config = kept.scene.pipeline.config([scd1(name)])
    folder = metadata_of(kept, f"raw.{name}").parent.parent
    copy = folder.parent.parent / "backup" / name
    shutil.copytree(folder, copy)
    with closing(kept.scene.pipeline.catalog()) as catalog:
        catalog.drop_table(f"raw.{name}")

    said = typed("tables", "recover", config)

    assert f"raw.{name}: registered" in said
    assert f"backup.{name}: registered" not in said
    assert not kept.scene.pipeline.exists(f"backup.{name}")


def test_recover_does_not_put_an_older_table_in_the_place_of_a_damaged_one(on_sqlite: Scene) -> None:
    kept = Kept(on_sqlite, "iceberg")
    name = numbers(kept, 1)
    kept.run(scd1(name))
    add(kept, name, 2)
    kept.run(scd1(name))
    config, newest = kept.scene.pipeline.config([scd1(name)]), metadata_of(kept, f"raw.{name}")
    whole = newest.read_bytes()
    with closing(kept.scene.pipeline.catalog()) as catalog:
        catalog.drop_table(f"raw.{name}")
    newest.write_bytes(whole[:200])

    typed("tables", "recover", config, code=1)

    assert not kept.scene.pipeline.exists(f"raw.{name}")
    newest.write_bytes(whole)
    assert f"raw.{name}: registered" in typed("tables", "recover", config)
    assert ids(kept, f"raw.{name}") == [1, 1, 2]


def test_a_drop_says_that_another_table_has_its_files_in_the_same_folder(on_sqlite: Scene) -> None:
    kept = Kept(on_sqlite, "iceberg")
    name = numbers(kept, 1)
    kept.run(scd1(name))
    typed("tables", "rename", kept.scene.pipeline.config([scd1(name)]), name, f"{name}_kept", "--yes")
    kept.run(scd1(name))

    said = typed("tables", "drop", kept.scene.pipeline.config([scd1(name)]), name, "--yes")

    assert "another table" in said


def test_a_table_is_not_renamed_to_what_the_configuration_calls_another_one(on_sqlite: Scene) -> None:
    kept = Kept(on_sqlite, "iceberg")
    name, other = numbers(kept, 1), numbers(kept, 9)
    kept.run(scd1(name))

    said = typed("tables", "rename", kept.scene.pipeline.config([scd1(name), scd1(other)]), name, other, code=2)

    assert other in said
    assert kept.scene.pipeline.exists(f"raw.{name}")


def test_a_commit_that_failed_is_not_registered_for_an_expiry_that_came_after_it(on_sqlite: Scene) -> None:
    kept = Kept(on_sqlite, "iceberg")
    name = numbers(kept, 1)
    kept.run(scd1(name))
    add(kept, name, 2)
    kept.run(scd1(name))
    config, before = kept.scene.pipeline.config([scd1(name)]), metadata_of(kept, f"raw.{name}")
    with closing(kept.scene.pipeline.catalog()) as catalog:
        table = iceberg(kept, f"raw.{name}")
        asyncio.run(move_sweep_tag(table))  # a snapshot of its own, so a higher sequence number
        metadata_of(kept, f"raw.{name}").rename(before.with_name("00099-failed.metadata.json"))
        catalog.drop_table(f"raw.{name}")
        catalog.register_table(f"raw.{name}", str(before))
    typed("maintain", "expire", f"raw.{name}", "--older-than", "0s", "--config", config)
    newest = metadata_of(kept, f"raw.{name}")
    with closing(kept.scene.pipeline.catalog()) as catalog:
        catalog.drop_table(f"raw.{name}")

    said = typed("tables", "recover", config)

    assert f"raw.{name}: registered: {newest} (1 others are as new" in said
    assert ids(kept, f"raw.{name}") == [1, 1, 2]
