"""References that our commits move: what they keep of their settings, and what they keep of the data."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.schema import Schema
from pyiceberg.table import Table as Iceberg
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.update import AssertRefSnapshotId, SetSnapshotRefUpdate
from pyiceberg.types import LongType, NestedField

from lakehead.lake.commits import FOR_EVER_MS, LAST_LANDING, Changes, added, empty, empty_table, set_ref, set_tag
from lakehead.lake.iceberg_table import IcebergTable, head_of
from lakehead.lake.landing import Landing
from lakehead.lake.ports import Staged
from lakehead.lake.staged_rows import Branch, Change
from tests.unit.lake.local_table import create, local_catalog, publish

SCHEMA = Schema(NestedField(1, "v", LongType()))
DAY_MS = 86_400_000


@pytest.fixture
def table(tmp_path: Path) -> Iterator[IcebergTable]:
    with local_catalog(tmp_path) as catalog:
        yield one_table(catalog)


def one_table(catalog: Catalog) -> IcebergTable:
    table = create(catalog, "t", SCHEMA)
    publish(table, rows(1))
    return table


def rows(value: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"v": pa.array([value], pa.int64())})


def set_retention(table: IcebergTable, name: str, kind: SnapshotRefType, **settings: int) -> None:
    at = table.load().metadata.refs[name].snapshot_id
    update = SetSnapshotRefUpdate(ref_name=name, type=kind, snapshot_id=at, **settings)
    with table.load().transaction() as transaction:
        transaction._apply((update,), ())


def retention(table: IcebergTable, name: str = MAIN_BRANCH) -> tuple[int | None, int | None, int | None]:
    ref = table.load().metadata.refs[name]
    return ref.max_ref_age_ms, ref.max_snapshot_age_ms, ref.min_snapshots_to_keep


def publish_a_branch(table: IcebergTable) -> None:
    """What a merge does: a snapshot on a branch of its own, which then becomes main."""
    at = head_of(table.load().metadata)
    assert at.snapshot is not None
    started = set_ref("lakehead_1_a", SnapshotRefType.BRANCH, at.snapshot)
    table.commit(at, lambda _: ((started,), (AssertRefSnapshotId(ref="lakehead_1_a", snapshot_id=None),)))
    moved = table.commit(at, lambda iceberg: (empty(iceberg, {}, "lakehead_1_a"), ()))
    head = moved.metadata.refs["lakehead_1_a"].snapshot_id
    asyncio.run(table.publish(Staged(Branch("lakehead_1_a", head), Landing("token", ()), at), at))


@pytest.mark.parametrize("change", [*Change, "branch"])
def test_a_landing_leaves_the_retention_settings_of_main_as_they_are(table: IcebergTable, change: Change | str) -> None:
    set_retention(table, MAIN_BRANCH, SnapshotRefType.BRANCH, max_snapshot_age_ms=DAY_MS, min_snapshots_to_keep=7)
    before = table.load().metadata.refs[MAIN_BRANCH].snapshot_id

    if isinstance(change, Change):
        publish(table, rows(2), change=change)
    else:
        publish_a_branch(table)

    assert table.load().metadata.refs[MAIN_BRANCH].snapshot_id != before
    assert retention(table) == (None, DAY_MS, 7)


def test_every_landing_moves_one_tag_to_its_snapshot(table: IcebergTable) -> None:
    for landing in (publish, publish_a_branch, publish):
        landing(table)
        refs = table.load().metadata.refs
        assert refs.keys() == {MAIN_BRANCH, LAST_LANDING}
        assert refs[LAST_LANDING].snapshot_ref_type is SnapshotRefType.TAG
        assert refs[LAST_LANDING].snapshot_id == refs[MAIN_BRANCH].snapshot_id


def test_our_tag_never_grows_too_old_unless_somebody_has_said_so(table: IcebergTable) -> None:
    assert retention(table, LAST_LANDING) == (FOR_EVER_MS, None, None)
    set_retention(table, LAST_LANDING, SnapshotRefType.TAG, max_ref_age_ms=DAY_MS)

    publish(table, rows(2))

    assert retention(table, LAST_LANDING) == (DAY_MS, None, None)


def test_an_empty_table_is_a_snapshot_without_parent_and_files_that_leaves_main_alone(table: IcebergTable) -> None:
    main = table.load().metadata.refs[MAIN_BRANCH].snapshot_id
    at = head_of(table.load().metadata)

    def changes(iceberg: Iceberg) -> Changes:
        updates = empty_table(iceberg)
        return (*updates, set_tag("theirs", added(updates))), ()

    table.commit(at, changes)

    iceberg = table.load()
    made = iceberg.metadata.snapshot_by_name("theirs")
    assert made is not None
    assert (made.parent_snapshot_id, made.manifests(iceberg.io)) == (None, [])
    assert iceberg.metadata.refs[MAIN_BRANCH].snapshot_id == iceberg.metadata.current_snapshot_id == main
    assert iceberg.scan(snapshot_id=made.snapshot_id).to_arrow().num_rows == 0
    assert iceberg.scan().to_arrow().num_rows == 1
