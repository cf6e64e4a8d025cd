"""Tables that are made whole in runs with `runtime.merge_lane = "arrow"`: by tasks, and as Spark's statements do it."""

# ruff: noqa: S608 - tests write their SQL in place, about tables of their own

from typing import Any

import pyarrow.parquet as pq
import pytest

from lakehead.lake.iceberg_table import IcebergTable
from lakehead.lake.landing import Head
from lakehead.lake.ports import Staged
from lakehead.telemetry.events import PhaseMarked
from tests.integration.maintenance_modes import maintained, part
from tests.integration.pipeline_support import Scene
from tests.integration.sink_support import Kept, add, full, numbers, scd1
from tests.pipeline import Ran

pytest_plugins = (
    "tests.support.state_fixtures",
    "tests.support.source_fixtures",
    "tests.integration.pipeline_fixtures",
    "tests.integration.sink_fixtures",
)
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

NEWEST = "row_number() OVER (PARTITION BY id ORDER BY at DESC NULLS LAST, _slice DESC)"


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What kind of rows was published, in order."""
    kinds, publish = list[str](), IcebergTable.publish

    async def seen(self: IcebergTable, staged: Staged[Any], at: Head) -> Head:
        kinds.append(f"{self.name.partition('.')[0]} {type(staged.rows).__name__}")
        return await publish(self, staged, at)

    monkeypatch.setattr(IcebergTable, "publish", seen)
    return kinds


def phase_of(ran: Ran, phase: str) -> PhaseMarked:
    assert ran.errors == {}
    [marked] = [event for event in ran.of(PhaseMarked) if event.phase == phase]
    return marked


def whole(kept: Kept, name: str) -> list[dict[str, Any]]:
    """Every row with every column, in order."""
    return [row.asDict() for row in kept.scene.spark.table(f"lake.{name}").orderBy("id").collect()]


def of_raw(kept: Kept, name: str, condition: str = "true", *, newest: bool = False) -> list[dict[str, Any]]:
    """What Spark makes of raw, every column."""
    spark = kept.scene.spark
    ranked = f"SELECT *, {NEWEST} AS rank FROM lake.raw.{name} WHERE {condition}"
    frame = spark.sql(f"SELECT * FROM ({ranked}) WHERE {'rank = 1' if newest else 'true'} ORDER BY id").drop("rank")
    return [row.asDict() for row in frame.collect()]


def test_a_final_table_is_written_by_tasks(on_sqlite: Scene, published: list[str]) -> None:
    kept = Kept(on_sqlite, "iceberg")
    name = numbers(kept, 1, 2)
    kept.run(full(name), merge_lane="arrow")
    add(kept, name, 3)

    ran = kept.run(full(name), reload=True, merge_lane="arrow")

    done = phase_of(ran, "finalized")
    assert (done.rows, done.detail["total"]) == (3, 3)
    assert published == ["raw NewFiles", "final NewFiles"] * 2
    assert whole(kept, f"final.{name}") == of_raw(kept, name, "_generation = 1")


def test_rows_without_a_key_are_left_out_of_a_final_table(on_sqlite: Scene, published: list[str]) -> None:
    kept = Kept(on_sqlite, "iceberg")
    name = kept.scene.name()
    kept.scene.sql(f"CREATE TABLE {name} (id integer, v text)", f"INSERT INTO {name} VALUES (1, 'a'), (NULL, 'b')")

    ran = kept.run(full(name, primary_keys=["id"], null_keys="exclude"), merge_lane="arrow")

    assert phase_of(ran, "finalized").rows == 1
    assert published[-1] == "final NewFiles"
    assert kept.rows("final", name, "id", "v") == [(1, "a")]


def test_a_mirror_is_first_loaded_reloaded_and_rebuilt_by_tasks(on_sqlite: Scene, published: list[str]) -> None:
    kept = Kept(on_sqlite, "iceberg")
    name = numbers(kept, *range(1, 31))
    table, slicing = scd1(name), {"target_rows": 10}

    first = kept.run(table, scd1_slicing=slicing, merge_lane="arrow")
    assert phase_of(first, "intermediate").detail["total"] == 30
    assert published[-1] == "mirror NewFiles"
    assert whole(kept, f"mirror.{name}") == of_raw(kept, name, newest=True)

    kept.scene.sql(f"DELETE FROM {name} WHERE id > 20", f"UPDATE {name} SET v = 'new' WHERE id = 5")
    again = kept.run(table, reload=True, merge_lane="arrow")
    assert phase_of(again, "intermediate").rows == 20
    assert published[-1] == "mirror NewFiles"
    mirror = of_raw(kept, name, "_generation = 1", newest=True)
    assert whole(kept, f"mirror.{name}") == mirror

    kept.scene.spark.sql(f"DELETE FROM lake.mirror.{name} WHERE id < 3")  # somebody has damaged it
    published.clear()
    results, _ = maintained(kept, "rebuild-from-raw", table, merge_lane="arrow")
    assert [part["rebuilt_rows"] for part in results["tables"][0]["results"]] == [20]
    assert published == ["mirror NewFiles"]
    assert whole(kept, f"mirror.{name}") == mirror


@pytest.mark.parametrize("lane", ["arrow", pytest.param("spark", marks=pytest.mark.soak)])
def test_a_mirror_is_sorted_by_its_key_which_identifies_its_rows(on_sqlite: Scene, lane: str) -> None:
    kept = Kept(on_sqlite, "iceberg")
    name = numbers(kept, 5, 3, 9, 1)
    kept.run(scd1(name), merge_lane=lane)
    kept.scene.sql(f"UPDATE {name} SET at = 20")
    add(kept, name, 12, 11)
    assert kept.run(scd1(name), merge_lane=lane).errors == {}

    mirror = kept.scene.spark.table(f"lake.mirror.{name}")
    assert not mirror.schema["id"].nullable
    assert mirror.schema["v"].nullable
    files = kept.scene.spark.table(f"lake.mirror.{name}.files").where("content = 0").collect()
    for file in files:
        path = file["file_path"].removeprefix("file://").removeprefix("file:")
        ids = pq.read_table(path, columns=["id"])["id"].to_pylist()
        column = pq.ParquetFile(path).metadata.row_group(0).column(0)
        assert ids == sorted(ids)
        assert file["sort_order_id"] == 1
        assert column.has_column_index
        assert (column.bloom_filter_offset is not None) == (lane == "arrow")
    assert kept.rows("mirror", name, "id") == [(1,), (3,), (5,), (9,), (11,), (12,)]


def test_a_compacted_mirror_is_sorted_and_has_no_delete_files(on_sqlite: Scene) -> None:
    kept = Kept(on_sqlite, "iceberg")
    name = numbers(kept, *range(1, 31))
    kept.run(scd1(name), merge_lane="arrow")
    for at in (40, 41):
        kept.scene.sql(f"UPDATE {name} SET at = {at} WHERE id IN ({at - 35}, {at - 25})")
        add(kept, name, at + 5)
        assert kept.run(scd1(name), merge_lane="arrow").errors == {}
    before = whole(kept, f"mirror.{name}")
    files = kept.scene.spark.table(f"lake.mirror.{name}.files")
    assert files.where("content = 1").count() > 0

    results, _ = maintained(kept, "apply", scd1(name), maintenance={"min_input_files": 2})

    mirror = part(results, "mirror", name)
    assert len(mirror["compaction"]["delete_files"]) > 0
    [file] = files.collect()
    ids = pq.read_table(file["file_path"].removeprefix("file:").removeprefix("//"), columns=["id"])["id"].to_pylist()
    assert ids == sorted(row["id"] for row in before)
    assert whole(kept, f"mirror.{name}") == before


def test_rows_without_a_key_are_refused_by_a_mirror_that_was_made_for_rows_with_one(on_sqlite: Scene) -> None:
    kept = Kept(on_sqlite, "iceberg")
    name = kept.scene.name()
    kept.scene.sql(f"CREATE TABLE {name} (id integer, at integer, v text)", f"INSERT INTO {name} VALUES (1, 1, 'a')")
    kept.run(scd1(name, null_keys="exclude"), merge_lane="arrow")
    kept.scene.sql(f"INSERT INTO {name} VALUES (NULL, 2, 'b')")

    refused = kept.run(scd1(name, null_keys="include"), merge_lane="arrow").errors[name]
    statements = refused.partition("Change it: ")[2].rstrip(".").split("; ")
    for statement in statements:
        kept.scene.spark.sql(statement)

    assert len(statements) == 2, refused
    assert kept.run(scd1(name, null_keys="include"), merge_lane="arrow").errors == {}
    assert kept.rows("mirror", name, "v") == [("a",), ("b",)]
