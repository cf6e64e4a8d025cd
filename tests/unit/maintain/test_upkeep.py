"""Upkeep whose steps fail: landings never notice, and people read about it once."""

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from lakehead.clock import SystemClock
from lakehead.ids import system_random
from lakehead.lake.iceberg_table import IcebergTable
from lakehead.lake.ledger import StoreLedger
from lakehead.maintain.upkeep import Upkeep, UpkeepReport
from lakehead.maintain.upkeep_schedule import UpkeepKind, UpkeepSettings
from lakehead.storage.memory_store import MemoryStore
from tests.unit.lake.local_table import create, local_catalog, publish

RETRY = 30


class Stepped(SystemClock):
    """Time that passes when it is told to."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def table(tmp_path: Path) -> Iterator[IcebergTable]:
    with local_catalog(tmp_path) as catalog:
        yield create(catalog, "t", Schema(NestedField(1, "v", LongType())))


def upkeep_of(table: IcebergTable, clock: Stepped) -> Upkeep:
    nothing = cast(Any, None)  # no step gets as far as to use them
    return Upkeep(
        catalog=table.catalog,
        ledger=StoreLedger(MemoryStore(clock=clock)),
        state=nothing,
        session=nothing,
        owner="upkeep",
        clock=clock,
        random=system_random(),
        settings=UpkeepSettings(small_files=2, retry_seconds=RETRY),
    )


def ended(upkeep: Upkeep) -> UpkeepReport:
    report = upkeep._collect()
    assert report is not None
    return report


def test_a_step_that_fails_is_reported_each_time_and_logged_once(
    table: IcebergTable, caplog: pytest.LogCaptureFixture
) -> None:
    clock, row = Stepped(), pa.RecordBatch.from_pydict({"v": pa.array([1], pa.int64())})
    publish(table, row)
    publish(table, row)
    table.catalog.drop_table(table.name)  # all that upkeep does from here on fails
    with caplog.at_level(logging.WARNING, "lakehead.maintain"), upkeep_of(table, clock) as upkeep:
        assert asyncio.run(upkeep.after_landing(table)) is None
        first = ended(upkeep)
        assert asyncio.run(upkeep.after_landing(table)) is None
        assert upkeep._running is None, "it is not tried again at once"
        clock.now += RETRY
        asyncio.run(upkeep.after_landing(table))
        second = ended(upkeep)

    assert (first.step.kind, first.failures, second.failures) == (UpkeepKind.COMPACT, 1, 2)
    assert first.error is not None
    assert "There is no table t.t" in first.error
    assert first.error == second.error
    assert [record.getMessage() for record in caplog.records] == [
        f"Upkeep of t.t (compact) failed and will be tried again; landings go on. {first.error}"
    ]


def test_a_table_with_little_in_it_is_left_alone(table: IcebergTable) -> None:
    publish(table, pa.RecordBatch.from_pydict({"v": pa.array([1], pa.int64())}))
    with upkeep_of(table, Stepped()) as upkeep:
        assert asyncio.run(upkeep.after_landing(table)) is None
        assert upkeep.close() is None


def test_a_landing_costs_no_request(table: IcebergTable, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(table, pa.RecordBatch.from_pydict({"v": pa.array([1], pa.int64())}))
    with upkeep_of(table, Stepped()) as upkeep:
        monkeypatch.setattr(table.catalog, "load_table", lambda _: pytest.fail("the table was loaded"))
        monkeypatch.setattr(type(table.seen().io), "new_input", lambda *_: pytest.fail("a file was read"))
        asyncio.run(upkeep.after_landing(table))
