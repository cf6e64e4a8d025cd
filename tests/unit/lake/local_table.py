"""Iceberg tables in a folder, without a JVM: files are staged here and published as a lander publishes them."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.schema import Schema

from lakehead.clock import SystemClock
from lakehead.ids import RandomIds
from lakehead.lake.catalog import open_catalog
from lakehead.lake.datafiles import DataFiles
from lakehead.lake.iceberg_table import IcebergTable, head_of
from lakehead.lake.landing import Landing
from lakehead.lake.ledger import StoreLedger
from lakehead.lake.ports import Staged
from lakehead.lake.retries import Retries
from lakehead.lake.staged_rows import Change, NewFiles
from lakehead.lake.stagers import target_of
from lakehead.spark.settings import embedded_catalog
from lakehead.storage.memory_store import MemoryStore


@contextmanager
def local_catalog(folder: Path) -> Iterator[Catalog]:
    """The embedded catalog of a folder, with the namespace `t`."""
    catalog = open_catalog("lake", embedded_catalog(folder))
    try:
        catalog.create_namespace("t")
        yield catalog
    finally:
        catalog.close()


def create(catalog: Catalog, name: str, schema: Schema, **more: Any) -> IcebergTable:
    """Make a table in the namespace `t`, and open it."""
    catalog.create_table(f"t.{name}", schema, **more)
    ledger = StoreLedger(MemoryStore(clock=SystemClock()))
    return IcebergTable(catalog, f"t.{name}", ledger, Retries(pause=lambda _: None))


def stage(table: IcebergTable, *batches: pa.RecordBatch, change: Change = Change.APPEND) -> Staged[Any]:
    """Rows as data files that no snapshot has."""
    iceberg = table.load()
    files = DataFiles(target_of(iceberg), RandomIds().uuid())
    for batch in batches:
        files.write(batch)
    rows = NewFiles(
        files=tuple(files.close()),
        change=change,
        schema_id=iceberg.schema().schema_id,
        spec_id=iceberg.spec().spec_id,
        sort_order_id=iceberg.sort_order().order_id or None,
    )
    return Staged(rows, Landing("token", ()), head_of(iceberg.metadata))


def publish(table: IcebergTable, *batches: pa.RecordBatch, change: Change = Change.APPEND) -> None:
    """Rows as main's next snapshot."""
    staged = stage(table, *batches, change=change)
    asyncio.run(table.publish(staged, staged.at))
