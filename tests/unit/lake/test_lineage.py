"""What a table's older metadata files tell of its snapshots' parents, and what they do not."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from lakehead.lake.iceberg_table import IcebergTable
from lakehead.lake.lineage import Lineage
from lakehead.maintain.places import place
from tests.unit.lake.local_table import create, local_catalog, publish


@pytest.fixture
def cut_off(tmp_path: Path) -> Iterator[IcebergTable]:
    """A table of two snapshots, of which PyIceberg has expired the first."""
    with local_catalog(tmp_path) as catalog:
        table = create(catalog, "t", Schema(NestedField(1, "v", LongType())))
        for value in range(2):
            publish(table, pa.RecordBatch.from_pydict({"v": pa.array([value], pa.int64())}))
        first = table.load().metadata.snapshots[0].snapshot_id
        table.load().maintenance.expire_snapshots().by_id(first).commit()
        yield table


def left(table: IcebergTable) -> int:
    (snapshot,) = table.load().metadata.snapshots
    assert snapshot.parent_snapshot_id is None
    return snapshot.snapshot_id


def test_the_parent_that_pyiceberg_took_is_in_the_metadata_from_before(cut_off: IcebergTable) -> None:
    lineage = Lineage(cut_off.load())

    assert lineage.parent(left(cut_off)) is not None
    assert not lineage.begins_at(left(cut_off))


def test_nothing_begins_with_a_snapshot_whose_own_metadata_file_is_missing(cut_off: IcebergTable) -> None:
    made_it = cut_off.load().metadata.metadata_log[-1].metadata_file
    Path(place(made_it)).unlink()
    lineage = Lineage(cut_off.load())

    assert lineage.parent(left(cut_off)) is None, "nothing tells of it"
    assert not lineage.begins_at(left(cut_off))
