"""Which snapshots an expiry may remove, by count and by age."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from lakehead.lake.iceberg_table import IcebergTable
from lakehead.maintain.expiry import ExpiryLimits, _old
from tests.unit.lake.local_table import create, local_catalog, publish

SNAPSHOTS = 8
HOUR_MS = 3_600_000


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Iterator[IcebergTable]:
    """A table with eight snapshots, all of this minute."""
    folder: Path = tmp_path_factory.mktemp("limits")
    with local_catalog(folder) as catalog:
        made = create(catalog, "t", Schema(NestedField(1, "v", LongType())))
        for number in range(SNAPSHOTS):
            publish(made, pa.RecordBatch.from_pydict({"v": pa.array([number], pa.int64())}))
        yield made


def expiring(table: IcebergTable, limits: ExpiryLimits, *, after_ms: int = 0, landing: int = -1) -> list[int]:
    """The numbers of the snapshots that may go, so long after the last one; `landing` is that of the last landing."""
    metadata = table.load().metadata
    numbers = {snapshot.snapshot_id: number for number, snapshot in enumerate(metadata.snapshots)}
    now_ms = metadata.last_updated_ms + after_ms
    last = metadata.snapshots[landing].snapshot_id
    return [numbers[one.snapshot_id] for one in _old(metadata, metadata.refs, now_ms, limits, last)]


def test_young_snapshots_are_kept_however_many_there_are(table: IcebergTable) -> None:
    assert expiring(table, ExpiryLimits(older_than=timedelta(hours=2)), after_ms=HOUR_MS) == []


def test_old_snapshots_go_but_for_the_newest(table: IcebergTable) -> None:
    limits = ExpiryLimits(older_than=timedelta(hours=1), min_snapshots=3)

    assert expiring(table, limits, after_ms=2 * HOUR_MS) == [0, 1, 2, 3, 4]


def test_of_more_young_snapshots_than_the_limit_the_oldest_go(table: IcebergTable) -> None:
    limits = ExpiryLimits(older_than=timedelta(hours=1), most_for_age=5, min_snapshots=2)

    assert expiring(table, limits) == [0, 1, 2]


def test_the_limit_of_young_snapshots_does_not_keep_old_ones(table: IcebergTable) -> None:
    limits = ExpiryLimits(older_than=timedelta(hours=1), most_for_age=5, min_snapshots=2)

    assert expiring(table, limits, after_ms=2 * HOUR_MS) == [0, 1, 2, 3, 4, 5]


def test_snapshots_that_no_branch_leads_to_go_by_an_age_of_their_own(table: IcebergTable) -> None:
    """As what a job has staged that audits before it publishes."""
    metadata = table.load().metadata
    staged = [one.model_copy(update={"snapshot_id": number}) for number, one in enumerate(metadata.snapshots)]
    metadata = metadata.model_copy(update={"snapshots": [*metadata.snapshots, *staged]})
    last = metadata.refs["main"].snapshot_id
    limits = ExpiryLimits(older_than=timedelta(0), most_for_age=1, unpublished_older_than=timedelta(hours=2))

    def gone(after_ms: int) -> set[int]:
        return {
            one.snapshot_id for one in _old(metadata, metadata.refs, metadata.last_updated_ms + after_ms, limits, last)
        }

    everything = {one.snapshot_id for one in metadata.snapshots} - {last}
    assert gone(HOUR_MS) == everything - set(range(SNAPSHOTS))
    assert gone(3 * HOUR_MS) == everything


def test_the_last_landing_and_all_after_it_stay_whatever_the_limits_say(table: IcebergTable) -> None:
    limits = ExpiryLimits(older_than=timedelta(0), most_for_age=1)

    assert expiring(table, limits, after_ms=HOUR_MS, landing=3) == [0, 1, 2]
