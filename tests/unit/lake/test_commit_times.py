"""The times of commits never go back, whatever the clock of whoever commits says."""

import asyncio
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.types import LongType, NestedField

from lakehead.lake.catalog import open_catalog
from lakehead.lake.commit_times import last_time_ms
from lakehead.lake.iceberg_table import IcebergTable, head_of
from lakehead.maintain.sweep import sweep
from lakehead.spark.settings import embedded_catalog
from tests.lakehouse import commit_a_branch
from tests.support.clocks import Shifted
from tests.unit.lake.local_table import create, local_catalog, publish

SCHEMA = Schema(NestedField(1, "v", LongType()))
ROWS = pa.RecordBatch.from_pydict({"v": pa.array([1], pa.int64())})


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    with local_catalog(tmp_path) as opened:
        yield opened


def seen_by(minutes: int, table: IcebergTable, folder: Path) -> IcebergTable:
    """The table as a driver has it whose clock is so many minutes wrong."""
    catalog = open_catalog("lake", embedded_catalog(folder), Shifted(minutes))
    return IcebergTable(catalog, table.name, table._ledger)


def times(metadata: TableMetadata) -> dict[str, list[int]]:
    """Every row of times that Iceberg expects to grow."""
    snapshots = [snapshot.timestamp_ms for snapshot in metadata.snapshots]
    return {
        "snapshots": snapshots,
        "snapshot log": [*(entry.timestamp_ms for entry in metadata.snapshot_log), metadata.last_updated_ms],
        "metadata log": [*(entry.timestamp_ms for entry in metadata.metadata_log), metadata.last_updated_ms],
    }


def assert_in_order(table: IcebergTable) -> None:
    for name, told in times(table.load().metadata).items():
        assert told == sorted(told), name


def test_a_driver_whose_clock_is_behind_dates_its_commits_after_the_last_one(catalog: Catalog, tmp_path: Path) -> None:
    table = create(catalog, "behind", SCHEMA)
    publish(table, ROWS)
    late = seen_by(-10, table, tmp_path)
    last = last_time_ms(table.load().metadata)

    publish(late, ROWS)
    assert_in_order(table)
    assert last_time_ms(table.load().metadata) == last + 1
    commit_a_branch(late)
    assert_in_order(table)
    with late.load().transaction() as transaction:
        transaction.set_properties({"a": "b"})
    assert_in_order(table)

    late.catalog.close()


def test_a_sweep_by_a_driver_whose_clock_is_behind_is_dated_after_the_last_commit(
    catalog: Catalog, tmp_path: Path
) -> None:
    table = create(catalog, "swept", SCHEMA)
    publish(table, ROWS)
    data = Path(table.load().location().removeprefix("file://")) / "data"
    (data / "stray.parquet").write_bytes(b"nobody's")
    late = seen_by(-10, table, tmp_path)

    swept = asyncio.run(sweep(late, Shifted(60 * 24 * 30)))

    assert swept.snapshot == head_of(table.load().metadata).sweep
    assert swept.snapshot is not None
    assert_in_order(table)
    late.catalog.close()


@pytest.mark.parametrize("minutes", [[10, 0, -10, 5], [-10, -20, 0, 10]])
def test_drivers_whose_clocks_differ_take_turns_and_times_only_grow(
    catalog: Catalog, tmp_path: Path, minutes: Iterable[int]
) -> None:
    table = create(catalog, "turns", SCHEMA)
    for number, shift in enumerate(minutes):
        driver = seen_by(shift, table, tmp_path)
        publish(driver, ROWS)
        commit_a_branch(driver, f"b{number}")
        driver.catalog.close()
        assert_in_order(table)


def test_a_commit_has_the_clocks_time_where_that_is_the_later_one(catalog: Catalog, tmp_path: Path) -> None:
    table = create(catalog, "ahead", SCHEMA)
    ahead = seen_by(10, table, tmp_path)
    before = Shifted(10).now_ns() // 10**6

    publish(ahead, ROWS)

    metadata = table.load().metadata
    assert before <= metadata.last_updated_ms <= Shifted(10).now_ns() // 10**6
    assert {metadata.last_updated_ms} == {metadata.snapshots[0].timestamp_ms, metadata.snapshot_log[0].timestamp_ms}
    ahead.catalog.close()


def test_a_commit_that_changes_nothing_is_no_commit(catalog: Catalog) -> None:
    table = create(catalog, "same", SCHEMA, properties={"a": "b"})
    before = table.load()

    with before.transaction() as transaction:
        transaction.set_properties({})

    assert table.load().metadata_location == before.metadata_location
