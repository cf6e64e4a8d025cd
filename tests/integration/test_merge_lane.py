"""Merging in Arrow, against Spark's MERGE of the same changes: row for row the same, whoever else writes."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any
from warnings import catch_warnings, simplefilter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.manifest import DataFile, DataFileContent, ManifestContent
from pyiceberg.types import DoubleType, IntegerType, LongType

from lakehead.lake import merge_lane
from lakehead.lake.iceberg_table import IcebergTable
from lakehead.lake.merge_commit import MergeFiles, delete_file
from lakehead.lake.merge_lane import LaneStager
from lakehead.lake.ports import AuditFailed
from lakehead.lake.position_deletes import PATH_ID, DeleteFile
from tests.integration.merge_support import LONG, MOVING, SHAPES, START, TEXT, Mirrors, Shape
from tests.lakehouse import Lakehouse
from tests.support.effort import effort
from tests.support.spark import shared_session

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def lakehouse(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lakehouse]:
    folder = tmp_path_factory.mktemp("merges")
    settings = Lakehouse.settings(folder)
    lakehouse = Lakehouse(folder, shared_session(settings), settings.catalogs)
    yield lakehouse
    lakehouse.close()


def mirrors(lakehouse: Lakehouse, shape: Shape, seed: int, name: str = "h") -> Mirrors:
    return Mirrors(lakehouse, shape, Random(f"{shape.name} {seed}"), f"{name}_{shape.name}_{seed}")


def unique(there: Mirrors, first: int, last: int) -> list[dict[str, object]]:
    """One row for each of these keys, so that the mirrors start without duplicates."""
    rows = [there.rows(1, keys=[n])[0] for n in range(first, last)]
    return list({tuple(row[key] for key in there.rule.keys): row for row in rows}.values())


def compact(there: Mirrors) -> None:
    """Let another writer compact both mirrors."""
    there.call("rewrite_data_files", ", options => map('rewrite-all', 'true')")


OUTSIDERS = (
    *("nothing", "append", "delete", "spark", "compact", "deletes"),
    *("insert", "column", "spec", "manifests", "expire"),
)


def outsider(there: Mirrors, step: int) -> None:
    """Another writer appends, deletes or compacts, or does nothing."""
    match there.random.choice(OUTSIDERS):
        case "append":
            there.start(new_rows(there, step))
        case "insert":
            for row in new_rows(there, step):
                there.start([row])
            compact(there)
        case "delete":
            with catch_warnings():
                simplefilter("ignore", UserWarning)  # PyIceberg writes files again where Spark would delete by position
                there.outside(lambda table: table.load().delete(f"n < {100_000 * (step % 5)}"))
        case "spark":
            there.sql("DELETE FROM {table} WHERE n % 5 = 1")
        case "compact":
            compact(there)
        case "deletes" if there.shape.mode == "merge-on-read":
            there.call("rewrite_position_delete_files", ", options => map('rewrite-all', 'true')")
        case "column":
            there.add_column(f"added_{step}")
        case "spec":
            field = (
                "DROP PARTITION FIELD more" if there.is_evolved else "ADD PARTITION FIELD truncate(300000, n) AS more"
            )
            there.sql(f"ALTER TABLE {{table}} {field}")
            there.is_evolved = not there.is_evolved
            there.start(new_rows(there, step))
            there.sql("DELETE FROM {table} WHERE n % 7 = 1")
        case "manifests":
            there.call("rewrite_manifests")
        case "expire":
            there.call("expire_snapshots", ", older_than => TIMESTAMP '2100-01-01', retain_last => 1")
        case _:
            pass


def new_rows(there: Mirrors, step: int) -> list[dict[str, object]]:
    """Rows of keys that are not in the mirrors."""
    made = there.rows(3, keys=range(1_000 + 10 * step, 1_003 + 10 * step))
    rows = {tuple(row[key] for key in there.rule.keys): row for row in made}
    return [row for key, row in rows.items() if None not in key]


@pytest.mark.parametrize("shape", [*SHAPES, pytest.param(TEXT, marks=pytest.mark.soak)], ids=lambda shape: shape.name)
@pytest.mark.parametrize("seed", range(effort(1, soak=20)))
def test_random_histories_are_merged_as_spark_merges_them(
    lakehouse: Lakehouse, monkeypatch: pytest.MonkeyPatch, shape: Shape, seed: int
) -> None:
    if shape.partition:
        monkeypatch.setattr(merge_lane, "CHUNK_ROWS", 3)  # as with millions of changes
    there = mirrors(lakehouse, shape, seed)
    there.start(unique(there, 0, 10), unique(there, 10, 30))
    for step in range(effort(2, soak=12)):
        for _ in range(there.random.choice((1, 1, 2))):
            there.land(there.rows(there.random.choice((1, 5, 20)), late=step % 2 == 1))
        there.merge_both(there.by_spark(there.lane) if shape.tiebreaks == 0 else None)
        there.check()
        outsider(there, step)
    there.check()


def started(lakehouse: Lakehouse, name: str, shape: Shape = LONG, *, keys: int = 20) -> Mirrors:
    """Mirrors of two files with a row for each key."""
    there = mirrors(lakehouse, shape, 0, name)
    there.start(unique(there, 0, keys // 2), unique(there, keys // 2, keys))
    return there


def change(there: Mirrors, *keys: int, hours: int = 10_000) -> None:
    """Land a slice with one row for each of these keys, which is newer than all that are there."""
    rows = [there.rows(1, keys=[key])[0] for key in keys]
    there.land([row | {"at": START + timedelta(hours=hours + there.slice), "tie0": 1} for row in rows])


def files(there: Mirrors, *, deletes: bool) -> list[DataFile]:
    """The data files, or the delete files, of the mirror that is merged in Arrow."""
    iceberg = there.lane.load()
    head = iceberg.current_snapshot()
    assert head is not None
    return [
        entry.data_file
        for manifest in head.manifests(iceberg.io)
        if (manifest.content is ManifestContent.DELETES) == deletes
        for entry in manifest.fetch_manifest_entry(iceberg.io, discard_deleted=True)
    ]


def named_by(file: DataFile) -> str:
    assert file.lower_bounds[PATH_ID] == file.upper_bounds[PATH_ID]
    return file.lower_bounds[PATH_ID].decode()


@pytest.mark.parametrize("shape", [LONG, MOVING], ids=lambda shape: shape.name)
def test_a_data_file_has_one_delete_file_however_often_its_rows_change(lakehouse: Lakehouse, shape: Shape) -> None:
    there = started(lakehouse, "often", shape, keys=60)
    old = {file.file_path: file for file in files(there, deletes=False)}
    for key in (1, 2, 31):
        change(there, key)
        there.merge_both()

    there.check()
    made = files(there, deletes=True)
    assert len({named_by(file) for file in made}) == len(made) > 0
    for file in made:
        data = old[named_by(file)]
        assert (file.spec_id, file.partition) == (data.spec_id, data.partition)


def test_a_file_of_which_a_third_is_deleted_is_written_again(lakehouse: Lakehouse) -> None:
    there = started(lakehouse, "third")
    before = {file.file_path for file in files(there, deletes=False)}
    change(there, 0, 1)
    there.merge_both()
    assert len(files(there, deletes=True)) == 1

    change(there, 2, 3)
    there.merge_both()

    there.check()
    assert files(there, deletes=True) == []
    assert len(before - {file.file_path for file in files(there, deletes=False)}) == 1


def test_rows_that_are_older_or_merged_already_change_nothing(lakehouse: Lakehouse) -> None:
    there = started(lakehouse, "stale")
    change(there, 1, 2)
    there.merge_both()
    before, head = there.by_spark_read(there.lane), there.lane.load().current_snapshot()
    there.merged = 0  # what is there is merged again
    there.land([there.rows(1, keys=[2])[0] | {"at": None}])

    staged = there.land_by(there.by_lane(), "again")

    assert there.by_spark_read(there.lane) == before
    assert (staged.rows.inserted, staged.rows.updated) == (0, 0)
    assert there.lane.load().current_snapshot() != head, "its units have landed"


def test_of_late_and_new_rows_only_the_new_ones_are_written(lakehouse: Lakehouse) -> None:
    there = started(lakehouse, "late")
    change(there, 1, 2, 3)
    there.merge_both()
    change(there, 2, hours=-10_000)
    change(there, 3, 100)

    there.merge_both()

    there.check()


def test_a_key_that_is_in_the_mirror_twice_is_not_merged(lakehouse: Lakehouse) -> None:
    there = started(lakehouse, "twice")
    there.start(unique(there, 3, 4))
    before = there.lane.load().current_snapshot()
    change(there, 3, 4)

    with pytest.raises(AuditFailed, match=r"\(k0\) of t.twice_long_0_lane are duplicated: \(3,\)"):
        there.land_by(there.by_lane(), "twice")

    assert there.lane.load().current_snapshot() == before


def test_delete_files_of_files_that_are_gone_are_dropped(lakehouse: Lakehouse) -> None:
    there = started(lakehouse, "dangling")
    change(there, 1)
    there.merge_both()
    deletes = {file.file_path for file in files(there, deletes=True)}
    compact(there)
    assert {file.file_path for file in files(there, deletes=True)} == deletes, "Iceberg leaves them"

    change(there, 100)
    there.merge_both()

    there.check()
    assert files(there, deletes=True) == []


class Overtaken:
    """A stager that another writer overtakes once, when it has staged."""

    def __init__(self, stager: LaneStager, other: Callable[[], object]) -> None:
        self.stager, self.other, self.staged = stager, other, 0
        self.table = stager.table

    def __getattr__(self, name: str) -> object:
        return getattr(self.stager, name)

    async def stage(self, *args: Any, **more: Any) -> Any:
        self.staged += 1
        staged = await self.stager.stage(*args, **more)
        if self.staged == 1:
            self.other()
        return staged


@pytest.mark.parametrize(
    "other",
    ["DELETE FROM {table} WHERE k0 IN (1, 4)", pytest.param("UPDATE {table} SET n = -1", marks=pytest.mark.soak)],
)
def test_a_merge_that_another_writer_overtakes_is_made_again(lakehouse: Lakehouse, other: str) -> None:
    there = started(lakehouse, f"overtaken_{len(other)}")
    change(there, 1, 2)
    statement = other.format(table=f"lake.{there.lane.name}")
    stager = Overtaken(there.by_lane(), lambda: there.spark.sql(statement))

    there.land_by(stager, "0..1")

    assert stager.staged == 2
    there.spark.sql(other.format(table=f"lake.{there.merge.name}"))
    there.merge.load()
    there.land_by(there.by_spark(there.merge), "0..1")
    there.check()


def test_columns_that_are_added_widened_and_renamed_later_are_read_by_their_ids(lakehouse: Lakehouse) -> None:
    there = started(lakehouse, "evolved", replace(LONG, name="evolved", keys=(IntegerType(),)))
    change(there, 1, 11)
    there.merge_both()
    for table in (there.raw, there.lane, there.merge):
        name = f"lake.{table.name}"
        for statement in (
            f"ALTER TABLE {name} ALTER COLUMN k0 TYPE bigint",
            f"ALTER TABLE {name} RENAME COLUMN v TO was_v",
            f"ALTER TABLE {name} ADD COLUMN v bigint",
            f"ALTER TABLE {name} ALTER COLUMN n FIRST",
        ):
            there.spark.sql(statement)
        table.load()
    rows = [there.rows(1, keys=[key])[0] for key in (1, 2, 3, 4, 12, 13, 99)]
    there.land([row | {"v": 7, "was_v": "w", "at": START + timedelta(hours=20_000)} for row in rows])

    there.merge_both()

    there.check()


@pytest.mark.parametrize("reason", [pytest.param("float", marks=pytest.mark.soak), "equality deletes", "tie"])
def test_what_arrow_cannot_merge_is_merged_by_spark(lakehouse: Lakehouse, reason: str) -> None:
    kind = DoubleType() if reason == "float" else LongType()
    there = started(lakehouse, f"not_{reason.replace(' ', '_')}", replace(LONG, name="fallback", keys=(kind,)))
    if reason == "equality deletes":
        there.outside(lambda table: delete_by_value(table, 5))
    change(there, 1, *((1,) if reason == "tie" else ()))

    with pytest.raises(AssertionError, match="Spark was asked to merge"):
        there.land_by(there.by_lane(), "refused")
    if reason != "equality deletes":  # PyIceberg writes the ids of those in a form that Java does not read
        there.merge_both(there.by_spark(there.lane))
        assert there.by_spark_read(there.lane) == there.by_spark_read(there.merge)


def delete_by_value(table: IcebergTable, key: int) -> None:
    """What other tools do: a file that says which keys are deleted."""
    iceberg = table.load()
    path = f"{iceberg.location()}/data/equal.parquet"
    schema = pa.schema([pa.field("k0", pa.int64(), metadata={"PARQUET:field_id": "1"})])
    pq.write_table(pa.table({"k0": [key]}, schema=schema), path.removeprefix("file://"))
    producer = MergeFiles(iceberg.transaction(), iceberg.io, {})
    made = DeleteFile("", path, path, Path(path.removeprefix("file://")).stat().st_size, 1, 0, 0)
    file = delete_file(made, next(iter(iceberg.scan().plan_files())).file)
    for number, value in ((0, DataFileContent.EQUALITY_DELETES), (10, None), (11, None), (14, [1])):
        file._data[number] = value
    producer.add_deletes(file)
    updates, requirements = producer._commit()
    iceberg._do_commit(updates, requirements)
