"""Delete files that delete nothing any more: found among all, and dropped without touching a row."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestContent
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table as Iceberg
from pyiceberg.table.snapshots import Operation
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField

from lakehead.lake.commits import Changes, _data_files, as_loaded, live_files, updates_of, without_files
from lakehead.lake.dangling_deletes import dangling_deletes
from lakehead.lake.iceberg_table import IcebergTable
from lakehead.lake.merge_commit import MergeFiles, delete_file
from lakehead.lake.position_deletes import PATH_ID, write_positions
from lakehead.lake.stagers import target_of
from lakehead.maintain.compaction import drop_dangling
from lakehead.maintain.compaction_plan import plan_compaction
from tests.unit.lake.local_table import create, local_catalog, publish, stage

SCHEMA = Schema(NestedField(1, "p", LongType()), NestedField(2, "v", LongType()))
BY_P = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "p"))


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    with local_catalog(tmp_path) as opened:
        yield opened


def table_of(catalog: Catalog, name: str, partitions: Sequence[int], spec: PartitionSpec) -> IcebergTable:
    """A table with a data file of ten rows for each of these partitions."""
    table = create(catalog, name, SCHEMA, partition_spec=spec)
    for partition in partitions:
        add_rows(table, partition)
    return table


def rows_of(table: IcebergTable, partition: int) -> pa.RecordBatch:
    columns = [pa.array([partition] * 10, pa.int64()), pa.array(range(10), pa.int64())]
    return pa.RecordBatch.from_arrays(columns, schema=target_of(table.load()).schema)


def add_rows(table: IcebergTable, partition: int) -> None:
    publish(table, rows_of(table, partition))


def data_files(table: IcebergTable) -> dict[int, DataFile]:
    """The data files by their partition."""
    return {
        pq.read_table(file.file_path.removeprefix("file://"))["p"][0].as_py(): file for file in live_files(table.load())
    }


def add_deletes(table: IcebergTable, *files: DataFile) -> None:
    def changes(iceberg: Iceberg) -> Changes:
        producer = MergeFiles(as_loaded(iceberg), iceberg.io, {})
        for file in files:
            producer.add_deletes(file)
        return updates_of(producer), ()

    table.commit(None, changes)


def own(table: IcebergTable, of: DataFile, name: str) -> DataFile:
    """A file of position deletes that is about one data file."""
    target = target_of(table.load())
    made = write_positions(target.filesystem, target.folder, target.uri, name, of.file_path, np.array([1, 2]))
    return delete_file(made, of)


def shared(table: IcebergTable, *of: DataFile) -> DataFile:
    """One that is about several."""
    file = own(table, of[0], "shared")
    paths = sorted(each.file_path for each in of)
    schema = pq.read_schema(file.file_path.removeprefix("file://"))
    rows = pa.Table.from_arrays([pa.array(paths), pa.array([3] * len(paths), pa.int64())], schema=schema)
    pq.write_table(rows, file.file_path.removeprefix("file://"))
    file.lower_bounds[PATH_ID], file.upper_bounds[PATH_ID] = paths[0].encode(), paths[-1].encode()
    return file


def equality(of: DataFile) -> DataFile:
    """A file of equality deletes, which is never opened here."""
    file = DataFile.from_args(
        content=DataFileContent.EQUALITY_DELETES,
        file_path=f"{of.file_path}-equality.parquet",
        file_format=FileFormat.PARQUET,
        partition=of.partition,
        record_count=1,
        file_size_in_bytes=100,
        column_sizes={},
        value_counts={},
        null_value_counts={},
        nan_value_counts={},
        lower_bounds={},
        upper_bounds={},
        key_metadata=None,
        split_offsets=[4],
        equality_ids=[2],
        sort_order_id=None,
    )
    file.spec_id = of.spec_id
    return file


def remove(table: IcebergTable, *files: DataFile) -> None:
    table.commit(None, lambda iceberg: (without_files(iceberg, files), ()))


def deletes_of(table: IcebergTable) -> set[str]:
    iceberg = table.load()
    head = iceberg.current_snapshot()
    assert head is not None
    return {
        entry.data_file.file_path
        for manifest in head.manifests(iceberg.io)
        if manifest.content is ManifestContent.DELETES
        for entry in manifest.fetch_manifest_entry(iceberg.io, discard_deleted=True)
    }


def test_a_delete_file_goes_with_the_last_data_file_that_it_is_about(catalog: Catalog) -> None:
    table = table_of(catalog, "plain", [1, 2, 3], UNPARTITIONED_PARTITION_SPEC)
    there = data_files(table)
    one, two, both = own(table, there[1], "one"), own(table, there[2], "two"), shared(table, there[1], there[2])
    add_deletes(table, one, two, both)
    assert dangling_deletes(table.load()) == ()

    remove(table, there[1])
    assert {each.path for each in dangling_deletes(table.load())} == {one.file_path}
    before = table.load().scan().to_arrow().to_pylist()
    assert drop_dangling(table) == (one.file_path,)
    assert deletes_of(table) == {two.file_path, both.file_path}
    assert table.load().scan().to_arrow().to_pylist() == before
    assert len(before) == 17

    remove(table, there[2])
    assert len(drop_dangling(table)) == 2
    assert deletes_of(table) == set()
    assert len(table.load().scan().to_arrow()) == 10


def test_a_maintenance_plan_names_what_it_drops(catalog: Catalog) -> None:
    table = table_of(catalog, "planned", [1, 2, 3], UNPARTITIONED_PARTITION_SPEC)
    there = data_files(table)
    both, three = shared(table, there[1], there[2]), own(table, there[3], "three")
    add_deletes(table, both, three)
    assert plan_compaction(table.load()).delete_files == ()

    remove(table, there[1], there[2])

    assert plan_compaction(table.load()).delete_files == (both.file_path,)


def test_dropping_them_changes_files_and_no_rows_and_is_said_so(catalog: Catalog) -> None:
    table = table_of(catalog, "said", [1, 2], UNPARTITIONED_PARTITION_SPEC)
    there = data_files(table)
    add_deletes(table, own(table, there[1], "one"))
    remove(table, there[1])

    drop_dangling(table)

    head = table.load().current_snapshot()
    assert head is not None
    assert head.summary is not None
    assert head.summary.operation is Operation.REPLACE
    assert (head.summary["total-delete-files"], head.summary["total-position-deletes"]) == ("0", "0")
    assert (head.summary["total-data-files"], head.summary["total-records"]) == ("1", "10")
    assert drop_dangling(table) == ()
    assert table.load().current_snapshot() == head, "nothing is committed for nothing"


@pytest.mark.parametrize("spec", [UNPARTITIONED_PARTITION_SPEC, BY_P], ids=["all", "partitioned"])
def test_equality_deletes_go_when_no_data_file_is_older(catalog: Catalog, spec: PartitionSpec) -> None:
    table = table_of(catalog, "equality", [1, 2], spec)
    there = data_files(table)
    deletes = equality(there[1])
    add_deletes(table, deletes)
    assert dangling_deletes(table.load()) == ()

    remove(table, there[1])
    # Without partitions it may be about the other file too, which is older.
    assert len(drop_dangling(table)) == (0 if spec is UNPARTITIONED_PARTITION_SPEC else 1)
    if spec is UNPARTITIONED_PARTITION_SPEC:
        remove(table, there[2])
        assert len(drop_dangling(table)) == 1
    assert deletes_of(table) == set()


def test_equality_deletes_without_partitions_are_about_files_of_every_partitioning(catalog: Catalog) -> None:
    table = table_of(catalog, "evolved", [2], BY_P)
    with table.load().update_spec() as update:
        update.remove_field("p")
    add_rows(table, 1)
    there = data_files(table)
    add_deletes(table, equality(there[1]))

    remove(table, there[1])

    assert drop_dangling(table) == (), "the file of the earlier partitioning is older than they are"


def test_equality_deletes_are_not_about_files_of_the_same_commit(catalog: Catalog) -> None:
    table = table_of(catalog, "same", [1], UNPARTITIONED_PARTITION_SPEC)
    there = data_files(table)
    staged = stage(table, rows_of(table, 2))

    def changes(iceberg: Iceberg) -> Changes:
        producer = MergeFiles(as_loaded(iceberg), iceberg.io, {})
        for file in _data_files(iceberg.metadata, staged.rows):
            file.spec_id = staged.rows.spec_id
            producer.append_data_file(file)
        producer.add_deletes(equality(there[1]))
        return updates_of(producer), ()

    table.commit(None, changes)
    assert drop_dangling(table) == ()
    remove(table, there[1])

    assert len(drop_dangling(table)) == 1


def test_a_delete_file_that_cannot_be_looked_into_stays(catalog: Catalog) -> None:
    table = table_of(catalog, "avro", [1, 2], UNPARTITIONED_PARTITION_SPEC)
    there = data_files(table)
    both = shared(table, there[1], there[2])
    both[2] = FileFormat.AVRO
    assert both.file_format is FileFormat.AVRO
    add_deletes(table, both)
    remove(table, there[1])
    remove(table, there[2])

    assert drop_dangling(table) == ()
    assert deletes_of(table) == {both.file_path}
