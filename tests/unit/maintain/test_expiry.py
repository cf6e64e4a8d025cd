"""An expiry beside other writers: what has not been settled stays, and so does what the table's settings keep."""

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from lakehead.clock import SystemClock
from lakehead.errors import Misconfigured
from lakehead.ids import RandomIds
from lakehead.lake.iceberg_table import IcebergTable
from lakehead.lake.ledger import StoreLedger
from lakehead.lake.protocol import fence
from lakehead.lake.state_progress import StateProgress
from lakehead.maintain import expiry
from lakehead.maintain.expiry import Expired, ExpiryLimits, expire
from lakehead.state.opening import open_state
from lakehead.state.state import State
from lakehead.storage.memory_store import MemoryStore
from tests.unit.lake.local_table import create, local_catalog, publish

ALL = ExpiryLimits(older_than=timedelta(0), most_for_age=1)


@pytest.fixture
def state(tmp_path: Path) -> Iterator[State]:
    opened = open_state(f"sqlite:///{tmp_path}/state.db", SystemClock(), RandomIds())
    try:
        yield opened
    finally:
        opened.close()


@pytest.fixture
def table(tmp_path: Path) -> Iterator[IcebergTable]:
    with local_catalog(tmp_path) as catalog:
        yield create(catalog, "t", Schema(NestedField(1, "v", LongType())))


def land(table: IcebergTable, number: int) -> None:
    publish(table, pa.RecordBatch.from_pydict({"v": pa.array([number], pa.int64())}))


def expired(table: IcebergTable, state: State, limits: ExpiryLimits = ALL) -> Expired:
    ledger = StoreLedger(MemoryStore(clock=SystemClock()))
    return asyncio.run(expire(table, StateProgress(state=state, owner="expiry"), ledger, SystemClock(), limits=limits))


def ids(table: IcebergTable) -> list[int]:
    return [snapshot.snapshot_id for snapshot in table.load().metadata.snapshots]


def test_landings_that_were_published_after_the_fence_stay_with_all_from_the_settled_one_on(
    table: IcebergTable, state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        land(table, number)
    settled = ids(table)[-1]

    async def land_after(*given: Any) -> Any:
        fenced = await fence(*given)
        for number in range(3, 6):
            await asyncio.to_thread(land, table, number)
        return fenced

    monkeypatch.setattr(expiry, "fence", land_after)

    expired(table, state)

    assert ids(table)[0] == settled
    assert len(ids(table)) == 4


@pytest.mark.parametrize(
    ("properties", "kept"),
    [
        ({}, 1),
        ({"history.expire.min-snapshots-to-keep": "3"}, 3),
        ({"history.expire.max-snapshot-age-ms": "3600000"}, 5),
        ({"history.expire.max-snapshot-age-ms": "0"}, 1),
    ],
)
def test_what_the_tables_own_settings_keep_stays(
    table: IcebergTable, state: State, properties: dict[str, str], kept: int
) -> None:
    for number in range(5):
        land(table, number)
    before = ids(table)
    with table.load().transaction() as change:
        change.set_properties(properties)

    expired(table, state)

    assert ids(table) == before[-kept:]


def test_settings_of_a_branch_go_before_those_of_the_table(table: IcebergTable, state: State) -> None:
    for number in range(5):
        land(table, number)
    with table.load().transaction() as change:
        change.set_properties({"history.expire.min-snapshots-to-keep": "4"})
    main = table.load().current_snapshot()
    assert main is not None
    with table.load().manage_snapshots() as change_of_refs:
        change_of_refs.create_branch(main.snapshot_id, "main", min_snapshots_to_keep=2)

    expired(table, state)

    assert len(ids(table)) == 2


def test_settings_that_are_no_numbers_stop_it(table: IcebergTable, state: State) -> None:
    for number in range(3):
        land(table, number)
    with table.load().transaction() as change:
        change.set_properties({"history.expire.max-snapshot-age-ms": "5d"})

    with pytest.raises(Misconfigured, match=r"history\.expire\.max-snapshot-age-ms"):
        expired(table, state)

    assert len(ids(table)) == 3
