"""Metadata that is known is not read again, and is what the catalog's file says, whoever has committed."""

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog import sql as sql_catalog
from pyiceberg.schema import Schema
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import Table as Iceberg
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.types import LongType, NestedField

from lakehead.lake.catalog import open_catalog
from lakehead.lake.iceberg_table import IcebergTable
from lakehead.lake.metadata_reuse import KEPT_TABLES
from lakehead.maintain.remove_snapshots import remove_snapshots
from lakehead.maintain.snapshot_files import SnapshotFiles
from lakehead.spark.settings import embedded_catalog
from tests.lakehouse import commit_a_branch
from tests.unit.lake.local_table import create, local_catalog, publish

ROWS = pa.RecordBatch.from_pydict({"v": pa.array([1], pa.int64())})


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    with local_catalog(tmp_path) as opened:
        yield opened


@pytest.fixture
def table(catalog: Catalog) -> IcebergTable:
    return create(catalog, "t", Schema(NestedField(1, "v", LongType())))


def in_file(table: Iceberg) -> TableMetadata:
    return FromInputFile.table_metadata(table.io.new_input(table.metadata_location))


def test_metadata_is_what_its_file_says_after_every_kind_of_commit_and_never_changes(table: IcebergTable) -> None:
    loaded = [table.load()]
    for _ in range(3):
        publish(table, ROWS)
        loaded.append(table.load())
    commit_a_branch(table)
    loaded.append(table.load())
    with table.load().transaction() as change:
        change.set_properties({"a": "b"})
    with table.load().update_schema() as columns:
        columns.add_column("more", LongType())
    loaded.append(table.load())
    head = table.load().current_snapshot()
    assert head is not None
    remove_snapshots(table, [table.load().metadata.snapshots[0].snapshot_id], SnapshotFiles(), head.snapshot_id)
    loaded.append(table.load())

    assert len({one.metadata_location for one in loaded}) == len(loaded)
    for one in loaded:
        assert one.metadata == in_file(one)
        assert one.metadata.model_dump_json() == in_file(one).model_dump_json()


def test_a_landing_reads_no_metadata_that_is_known(
    table: IcebergTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(table, ROWS)
    read = list[str]()

    class Noted:
        @staticmethod
        def table_metadata(file: object) -> TableMetadata:
            read.append(str(file))
            return FromInputFile.table_metadata(file)  # type: ignore[arg-type] # an input file

    monkeypatch.setattr(sql_catalog, "FromInputFile", Noted)
    publish(table, ROWS)
    assert read == []

    with open_catalog("lake", embedded_catalog(tmp_path)) as other:
        other.load_table("t.t")
    assert len(read) == 1, "another catalog has not seen it"


def test_what_others_commit_is_seen_at_once(table: IcebergTable, tmp_path: Path) -> None:
    publish(table, ROWS)
    with open_catalog("lake", embedded_catalog(tmp_path)) as other:
        theirs = IcebergTable(other, table.name, table._ledger)
        for number in range(2, 5):
            publish(theirs if number % 2 else table, ROWS)
            for each in (table, theirs):
                assert len(each.load().metadata.snapshots) == number
                assert each.load().metadata == in_file(each.load())
        other.drop_table("t.t")
        made = create(other, "t", Schema(NestedField(1, "v", LongType())))
        assert table.catalog.load_table("t.t").metadata.table_uuid == made.load().metadata.table_uuid


def test_metadata_of_the_tables_used_last_is_kept_however_many_there_are(catalog: Catalog) -> None:
    most = KEPT_TABLES + 5
    names = [create(catalog, f"t{number}", Schema(NestedField(1, "v", LongType()))).name for number in range(most)]
    loaded = [weakref.ref(catalog.load_table(name).metadata) for name in names]

    catalog.load_table(names[5])  # it would be forgotten next
    with catalog.load_table(names[0]).transaction() as change:
        change.set_properties(a="b")
    del change
    gc.collect()

    kept = [number for number, metadata in enumerate(loaded) if metadata() is not None]
    assert kept == [5, *range(7, most)]
