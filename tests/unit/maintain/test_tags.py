"""Our own tags on tables without a JVM: what a sweep and a rebuild make of them, and what they do not keep."""

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.table import Table as Iceberg
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.types import LongType, NestedField

from lakehead.clock import SystemClock
from lakehead.lake.commits import LAST_LANDING, SWEEP, Changes, added, empty, publication, set_main, set_ref
from lakehead.lake.iceberg_table import IcebergTable, head_of
from lakehead.lake.ports import Moved
from lakehead.maintain.places import place
from lakehead.maintain.sweep import Swept, sweep
from lakehead.maintain.tags import keeps_rows, misplaced, put_right
from tests.unit.lake.local_table import create, local_catalog, publish, stage


@pytest.fixture
def table(tmp_path: Path) -> Iterator[IcebergTable]:
    with local_catalog(tmp_path) as catalog:
        yield create(catalog, "t", Schema(NestedField(1, "v", LongType())))


def rows(value: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"v": pa.array([value], pa.int64())})


def plant(table: IcebergTable) -> None:
    folder = Path(place(table.load().location()), "data")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "stray.parquet").write_bytes(b"")


def swept(table: IcebergTable) -> Swept:
    return asyncio.run(sweep(table, SystemClock(), older_than=timedelta(0)))


def head(table: IcebergTable) -> int:
    at = table.load().metadata.current_snapshot_id
    assert at is not None
    return at


def tag_main_as_earlier_versions_did(table: IcebergTable) -> int:
    """An empty snapshot on main, and the sweep's tag on it: it keeps all that main held."""
    made = []

    def changes(iceberg: Iceberg) -> Changes:
        updates = empty(iceberg, {})
        made.append(added(updates))
        return (*updates, set_ref(SWEEP, SnapshotRefType.TAG, made[0])), ()

    table.commit(head_of(table.load().metadata), changes)
    return made[0]


def test_the_tag_of_a_sweep_is_on_a_snapshot_that_holds_nothing_and_main_stays(table: IcebergTable) -> None:
    publish(table, rows(1))
    main = head(table)
    plant(table)

    done = swept(table)

    metadata = table.load().metadata
    assert (head(table), metadata.refs[SWEEP].snapshot_id) == (main, done.snapshot)
    assert not keeps_rows(table.load(), SWEEP)
    assert table.load().scan().to_arrow().to_pylist() == [{"v": 1}]


def test_a_tag_of_an_earlier_version_is_moved_by_a_sweep_that_finds_nothing_else_to_do(table: IcebergTable) -> None:
    publish(table, rows(1))
    tagged = tag_main_as_earlier_versions_did(table)
    assert keeps_rows(table.load(), SWEEP)

    done = swept(table)

    assert (done.files, done.snapshot is not None) == ((), True)
    assert not keeps_rows(table.load(), SWEEP)
    assert head(table) == tagged, "main keeps the empty snapshot of then"
    assert swept(table).snapshot is None, "now there is nothing to do"


@pytest.mark.parametrize("earlier", [False, True])
def test_what_was_staged_before_a_sweep_is_not_published_after_it(table: IcebergTable, earlier: bool) -> None:  # noqa: FBT001 - a case
    publish(table, rows(1))
    if earlier:
        tag_main_as_earlier_versions_did(table)
    staged = stage(table, rows(2))

    assert len(swept(table).files) == 1

    with pytest.raises(Moved):
        asyncio.run(table.publish(staged, staged.at))
    publish(table, rows(3))
    assert sorted(row["v"] for row in table.load().scan().to_arrow().to_pylist()) == [1, 3]


def test_a_first_landing_that_is_about_to_be_published_when_a_sweep_comes_is_refused(
    table: IcebergTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged, load = stage(table, rows(1)), table.load

    def swept_after_the_look() -> Iceberg:
        monkeypatch.setattr(table, "load", load)
        seen = load()
        assert len(swept(table).files) == 1
        return seen

    monkeypatch.setattr(table, "load", swept_after_the_look)

    with pytest.raises(Moved):
        table.commit(staged.at, lambda iceberg: publication(iceberg, staged.rows, {}))
    assert table.load().scan().to_arrow().num_rows == 0


def test_after_a_rollback_the_tag_goes_to_the_landing_that_main_still_has(table: IcebergTable) -> None:
    publish(table, rows(1))
    first = head(table)
    publish(table, rows(2))
    table.commit(head_of(table.load().metadata), lambda _: ((set_main(first),), ()))
    assert misplaced(table.load(), first) == {LAST_LANDING}

    put_right(table, head_of(table.load().metadata), first)

    refs = table.load().metadata.refs
    assert (refs[MAIN_BRANCH].snapshot_id, refs[LAST_LANDING].snapshot_id) == (first, first)
    assert misplaced(table.load(), first) == set()


def test_where_main_has_no_landing_the_tag_goes(table: IcebergTable) -> None:
    publish(table, rows(1))

    for _ in range(2):
        put_right(table, head_of(table.load().metadata), None)

        assert LAST_LANDING not in table.load().metadata.refs
