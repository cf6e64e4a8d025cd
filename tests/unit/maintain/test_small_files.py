"""Which small files are worth compacting, counted from manifests alone."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.manifest import ManifestFile
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType

from lakehead.lake.iceberg_table import IcebergTable
from lakehead.lake.staged_rows import Change
from lakehead.maintain.small_files import SmallFileCounter, SmallFiles, size_classes
from lakehead.maintain.upkeep_schedule import Figures
from tests.unit.lake.local_table import create, local_catalog, publish

TARGET = 4 * 2**20
"""The classes of small files end at 3 KiB, 96 KiB and 3 MiB."""


@pytest.fixture
def table(tmp_path: Path) -> Iterator[IcebergTable]:
    schema = Schema(NestedField(1, "v", LongType()), NestedField(2, "text", StringType()))
    by_value = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "v"))
    properties = {"write.target-file-size-bytes": str(TARGET), "write.parquet.compression-codec": "uncompressed"}
    with local_catalog(tmp_path) as catalog:
        yield create(catalog, "t", schema, partition_spec=by_value, properties=properties)


def put(table: IcebergTable, partition: int, *, files: int = 1, size: int = 0) -> None:
    for _ in range(files):
        batch = {"v": pa.array([partition], pa.int64()), "text": ["x" * size]}
        publish(table, pa.RecordBatch.from_pydict(batch))


def counted(table: IcebergTable, enough: int) -> SmallFiles:
    return SmallFileCounter().count(table.load(), enough)


def test_a_table_without_rows_has_none(table: IcebergTable) -> None:
    assert counted(table, 2) == SmallFiles(most=0, data_files=0, below_bytes=None)
    assert Figures.of(table.load()) == Figures(0, 0)


def test_files_of_different_partitions_are_not_compacted_together(table: IcebergTable) -> None:
    for partition in range(3):
        put(table, partition, files=2)

    assert counted(table, 3) == SmallFiles(most=2, data_files=6, below_bytes=None)
    assert counted(table, 2) == SmallFiles(most=2, data_files=6, below_bytes=size_classes(table.load())[0])
    assert Figures.of(table.load()) == Figures(6, 6)


def test_only_files_of_about_one_size_are_compacted_together_and_the_smallest_first(table: IcebergTable) -> None:
    tiny, middle, large = size_classes(table.load())
    put(table, 1, files=2)
    put(table, 1, files=2, size=tiny)
    assert counted(table, 3).below_bytes is None
    put(table, 1, size=tiny)
    assert counted(table, 3).below_bytes == middle
    put(table, 1)
    assert counted(table, 3).below_bytes == tiny
    put(table, 2, files=3, size=large)
    assert counted(table, 3) == SmallFiles(most=3, data_files=9, below_bytes=tiny)


def test_files_that_were_replaced_do_not_count(table: IcebergTable) -> None:
    put(table, 1, files=3)
    batch = pa.RecordBatch.from_pydict({"v": pa.array([1], pa.int64()), "text": ["new"]})
    publish(table, batch, change=Change.REPLACE)

    assert counted(table, 2) == SmallFiles(most=1, data_files=1, below_bytes=None)


def test_a_manifest_is_read_once(table: IcebergTable, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[str] = []
    fetch = ManifestFile.fetch_manifest_entry

    def fetched(self: ManifestFile, *args: Any, **kwargs: Any) -> Any:
        reads.append(self.manifest_path)
        return fetch(self, *args, **kwargs)

    put(table, 1, files=3)
    monkeypatch.setattr(ManifestFile, "fetch_manifest_entry", fetched)
    counter = SmallFileCounter()
    counter.count(table.load(), 9)
    assert len(reads) == 3
    put(table, 1)
    assert counter.count(table.load(), 9).most == 4
    assert len(reads) == 4
