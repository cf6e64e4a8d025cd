"""Whole tables that are written in Arrow, against Spark's INSERT OVERWRITE of the same rows: row for row the same."""

# ruff: noqa: S608 - tests write their SQL in place, about tables of their own

from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random
from typing import Any, cast

import pytest
from pyiceberg.manifest import DataFileContent
from pyiceberg.types import DoubleType, IntegerType, LongType

from lakehead.extract.merging import overwrite, overwrite_newest, whole_keys
from lakehead.ids import RandomIds
from lakehead.lake import whole_table
from lakehead.lake.iceberg_table import IcebergTable
from lakehead.lake.merge import MergeStager
from lakehead.lake.ports import AuditFailed
from lakehead.lake.staged_rows import Branch, NewFiles
from lakehead.lake.whole_table import RowSource, WholeTableStager
from tests.integration.merge_support import LONG, MOVING, NULLS, SHAPES, START, TEXT, Mirrors, NoFallback, Shape
from tests.lakehouse import Lakehouse
from tests.support.effort import effort
from tests.support.spark import shared_session

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def lakehouse(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lakehouse]:
    folder = tmp_path_factory.mktemp("wholes")
    settings = Lakehouse.settings(folder)
    lakehouse = Lakehouse(folder, shared_session(settings), settings.catalogs)
    yield lakehouse
    lakehouse.close()


class Wholes(Mirrors):
    """A raw table and two tables made of it: one in Arrow, the other with Spark's INSERT OVERWRITE."""

    newest: bool = True
    """Whether they have the newest row of each key, or all."""

    def source(self) -> RowSource:
        rows, rule = self.raw_rows(), self.rule
        return RowSource(
            table=self.raw,
            snapshot=rows.snapshot,
            conditions=rows.ranges,
            not_null=() if rule.null_keys else rule.keys,
            keys=rule.keys if self.newest else (),
            order=rule.order if self.newest else (),
        )

    def by_tasks(self, fallback: Any = None, **more: Any) -> WholeTableStager:
        return WholeTableStager(
            session=self.spark,
            table=self.lane,
            ids=RandomIds(),
            source=self.source(),
            fallback=cast(Any, fallback or NoFallback()),
            **more,
        )

    def by_insert(self, table: IcebergTable) -> MergeStager:
        rows, rule = self.raw_rows(), self.rule
        kept = () if rule.null_keys else whole_keys(rule.keys)

        def insert(session: Any, target: str, _: object) -> None:
            if self.newest:
                overwrite_newest(session, target, rows=rows, rule=rule)
            else:
                overwrite(session, target, rows=rows, conditions=kept)

        return MergeStager(session=self.spark.newSession(), table=table, ids=RandomIds(), merge=insert)

    def write_both(self, unit: str, fallback: Any = None) -> Any:
        staged = self.land_by(self.by_tasks(fallback), unit)
        self.land_by(self.by_insert(self.merge), unit)
        return staged


def wholes(lakehouse: Lakehouse, shape: Shape, seed: int, name: str = "w") -> Wholes:
    return Wholes(lakehouse, shape, Random(f"{shape.name} {seed}"), f"{name}_{shape.name}_{seed}")


def raw_of(there: Wholes, slices: int, rows: int) -> None:
    for number in range(slices):
        there.land(there.rows(rows, late=number % 2 == 1))


def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Divide the work as with millions of rows."""
    monkeypatch.setattr(whole_table, "BUCKET_ROWS", 7)
    monkeypatch.setattr(whole_table, "TASK_ROWS", 5)


@pytest.mark.parametrize("newest", [True, False], ids=["newest", "all"])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
@pytest.mark.parametrize("seed", range(effort(1, soak=20)))
def test_random_rows_are_written_as_spark_writes_them(
    lakehouse: Lakehouse, monkeypatch: pytest.MonkeyPatch, shape: Shape, seed: int, *, newest: bool
) -> None:
    small(monkeypatch)
    there = wholes(lakehouse, shape, seed, f"random{newest}")
    there.newest = newest
    raw_of(there, 3, 20)
    there.write_both("first")
    there.check()

    # Over what is there, with delete files, and from a raw table with deletes, other columns and another order.
    there.sql("DELETE FROM {table} WHERE n % 7 = 1")
    there.spark.sql(f"DELETE FROM lake.{there.raw.name} WHERE n % 5 = 1")
    for table in (there.raw, there.lane, there.merge):
        there.spark.sql(f"ALTER TABLE lake.{table.name} ADD COLUMN `added later` bigint")
    there.sql("ALTER TABLE {table} ALTER COLUMN v FIRST")
    there.raw.load()
    there.land([row | {"added later": number} for number, row in enumerate(there.rows(10))])
    there.merged = 1  # not the first slice
    there.write_both("again")

    there.check()
    assert there.spark.table(f"lake.{there.lane.name}").count() > 0


def test_rows_of_other_slices_and_generations_are_left_out(lakehouse: Lakehouse) -> None:
    there = wholes(lakehouse, LONG, 1, "ranges")
    raw_of(there, 3, 10)
    raw = f"lake.{there.raw.name}"
    there.spark.sql(f"INSERT INTO {raw} SELECT k0 + 500, at, tie0, v, n, 2, 1 FROM {raw}")
    there.raw.load()
    there.merged, there.slice = 1, 2

    there.write_both("some")

    there.check()
    assert {row["_slice"] for row in there.spark.table(f"lake.{there.lane.name}").collect()} == {2}


def test_keys_of_a_narrower_type_are_written_to_a_wider_column(lakehouse: Lakehouse) -> None:
    there = wholes(lakehouse, Shape("narrow", keys=(IntegerType(),)), 0)
    there.sql("ALTER TABLE {table} ALTER COLUMN k0 TYPE bigint")
    raw_of(there, 2, 20)

    there.write_both("wide")

    there.check()
    assert there.lane.load().schema().find_type("k0") == LongType()


def test_no_rows_empty_a_table(lakehouse: Lakehouse) -> None:
    there = wholes(lakehouse, LONG, 2, "none")
    there.start(there.rows(5))
    raw_of(there, 1, 5)
    there.merged, there.slice = 5, 6

    there.write_both("none")

    there.check()
    assert there.spark.table(f"lake.{there.lane.name}").count() == 0


def test_everything_that_was_there_goes_delete_files_too(lakehouse: Lakehouse) -> None:
    there = wholes(lakehouse, MOVING, 3, "gone")
    raw_of(there, 2, 20)
    there.write_both("first")
    there.sql("DELETE FROM {table} WHERE n % 3 = 1")
    old = entries(there.lane)
    assert {file.content for file in old.values()} == {DataFileContent.DATA, DataFileContent.POSITION_DELETES}

    staged = there.write_both("second")

    there.check()
    found = entries(there.lane)
    assert set(found) == {file.uri for file in staged.rows.files}
    assert not set(found) & set(old)


def test_files_that_are_staged_are_published_over_what_others_committed_meanwhile(lakehouse: Lakehouse) -> None:
    there = wholes(lakehouse, LONG, 4, "moved")
    raw_of(there, 2, 20)
    stager = there.by_tasks()
    stages = list[str]()
    copy = WholeTableStager._copy

    class Counting(WholeTableStager):
        def _copy(self, iceberg: Any, name: str) -> Any:
            stages.append(name)
            found = copy(self, iceberg, name)
            there.start(there.rows(3))
            return found

    there.land_by(Counting(**{name: getattr(stager, name) for name in WholeTableStager.__dataclass_fields__}), "one")
    there.land_by(there.by_insert(there.merge), "one")

    assert len(stages) == 1
    there.check()


def test_columns_that_change_while_files_are_written_are_looked_at_again(lakehouse: Lakehouse) -> None:
    there = wholes(lakehouse, LONG, 5, "altered")
    raw_of(there, 1, 5)
    checks = list[str]()
    stager = there.by_tasks(check=lambda: checks.append("checked"))
    copy = WholeTableStager._copy

    class Altered(WholeTableStager):
        def _copy(self, iceberg: Any, name: str) -> Any:
            found = copy(self, iceberg, name)
            if len(checks) == 1:
                there.sql("ALTER TABLE {table} ADD COLUMN new string")
                there.start(there.rows(1))
            return found

    there.land_by(Altered(**{name: getattr(stager, name) for name in WholeTableStager.__dataclass_fields__}), "one")
    there.land_by(there.by_insert(there.merge), "one")

    assert checks == ["checked", "checked"]
    there.check()


class Recording:
    """Spark's statement, and whether it was asked."""

    def __init__(self, stager: MergeStager) -> None:
        self._stager = stager
        self.asked = 0

    async def stage(self, *args: Any, **more: Any) -> Any:
        self.asked += 1
        return await self._stager.stage(*args, **more)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stager, name)


def orc(there: Wholes) -> None:
    there.spark.sql(f"ALTER TABLE lake.{there.raw.name} SET TBLPROPERTIES ('write.format.default' = 'orc')")
    there.spark.sql(f"INSERT INTO lake.{there.raw.name} SELECT * FROM lake.{there.raw.name}")
    there.raw.load()


def ties(there: Wholes) -> None:
    row = there.rows(1, keys=[3])[0] | {"at": START.replace(year=2040), "tie0": 1}
    there.land([row | {"v": "a"}, row | {"v": "b"}])


@pytest.mark.parametrize(
    ("name", "shape", "spoil"),
    [("ties", LONG, ties), ("orc", LONG, orc), ("floats", Shape("doubles", keys=(DoubleType(),)), lambda _: None)],
)
def test_what_tasks_cannot_copy_is_written_by_spark(lakehouse: Lakehouse, name: str, shape: Shape, spoil: Any) -> None:
    there = wholes(lakehouse, shape, 6, f"by_spark_{name}")
    there.start(there.rows(5))
    raw_of(there, 2, 10)
    spoil(there)
    by_spark = Recording(there.by_insert(there.lane))

    staged = there.write_both("both", by_spark)

    assert by_spark.asked == 1
    assert isinstance(staged.rows, Branch)
    there.check()


def test_rows_that_are_tied_with_older_ones_only_are_copied(lakehouse: Lakehouse) -> None:
    there = wholes(lakehouse, TEXT, 7, "old_ties")
    row = there.rows(1, keys=[3])[0]
    there.land([row | {"at": START, "v": "a"}, row | {"at": START, "v": "b"}])
    there.land([row | {"at": START.replace(year=2040), "v": "new"}])

    staged = there.write_both("old")

    assert isinstance(staged.rows, NewFiles)
    there.check()


def test_a_file_that_is_not_the_last_of_its_landing_is_not_lost(
    lakehouse: Lakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the tasks wrote is counted against the keys that they saw."""
    there = wholes(lakehouse, NULLS, 8, "lost")
    raw_of(there, 2, 20)
    results = WholeTableStager._results

    def lossy(self: Any, job: Any, files: Sequence[Any], name: str) -> list[Any]:
        return [replace(result, files=result.files[:-1]) for result in results(self, job, files, name)]

    monkeypatch.setattr(WholeTableStager, "_results", lossy)
    with pytest.raises(AuditFailed, match="were to be written"):
        there.land_by(there.by_tasks(), "lossy")

    assert there.lane.load().current_snapshot() is None


def entries(table: IcebergTable) -> dict[str, Any]:
    """The data and delete files of the table's head."""
    iceberg = table.load()
    head = iceberg.current_snapshot()
    assert head is not None
    return {
        entry.data_file.file_path: entry.data_file
        for manifest in head.manifests(iceberg.io)
        for entry in manifest.fetch_manifest_entry(iceberg.io, discard_deleted=True)
    }
