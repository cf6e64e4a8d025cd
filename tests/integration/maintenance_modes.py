"""What tests of maintenance modes share: a maintenance run within this process, of a pipeline of a test."""

from collections.abc import Callable
from contextlib import closing
from datetime import UTC, date, datetime
from typing import Any

from pyspark.sql import SparkSession

from lakehead.clock import Clock, SystemClock
from lakehead.ids import RandomIds, system_random
from lakehead.lake.iceberg_table import IcebergTable
from lakehead.lake.ledger import StoreLedger
from lakehead.run.config.config_file import read_config
from lakehead.run.maintenance_mode import Maintenance, MaintenanceMode
from lakehead.run.wiring import Wiring
from lakehead.storage.memory_store import MemoryStore
from tests.integration.sink_support import Kept

TODAY = datetime.now(UTC).date()


def maintained(
    kept: Kept,
    mode: str,
    *tables: dict[str, Any],
    clock: Clock | None = None,
    today: date = TODAY,
    session: Callable[[], SparkSession] | None = None,
    **runtime: Any,
) -> tuple[dict[str, Any], bool]:
    """Maintain these tables of a pipeline. Returns what the command prints, and whether all was done."""
    pipeline, clock, ids = kept.scene.pipeline, clock or SystemClock(), RandomIds()
    wiring = Wiring(read_config(pipeline.config(tables, **runtime)), pipeline.environment)
    with wiring.open_state(clock, ids) as state:
        return Maintenance(
            wiring=wiring,
            state=state,
            session=session or (lambda: kept.scene.spark),
            clock=clock,
            ids=ids,
            random=system_random(),
            today=today,
            run_id=ids.uuid(),
        ).run(wiring.config.tables, MaintenanceMode(mode))


def part(results: dict[str, Any], place: str, table: str) -> dict[str, Any]:
    """The result of one table of the lakehouse."""
    found: list[dict[str, Any]] = [part for each in results["tables"] for part in each["results"]]
    return next(each for each in found if each["table"] == f"{place}.{table}")


def iceberg(kept: Kept, name: str) -> IcebergTable:
    """A table of the lakehouse, as maintenance opens it; its catalog is closed."""
    with closing(kept.scene.pipeline.catalog()) as catalog:
        return IcebergTable(catalog, name, StoreLedger(MemoryStore(clock=SystemClock())))


def all_rows(kept: Kept, name: str) -> list[dict[str, Any]]:
    """Every row with every column, in order."""
    rows = kept.scene.rows(name, ingest=True)
    return sorted(rows.to_pylist(), key=str)
