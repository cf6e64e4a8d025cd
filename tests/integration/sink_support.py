"""Tables of a SQLite database that are kept in one kind of sink or the other. The fixtures are in `sink_fixtures`."""

# ruff: noqa: S608 - tests write their SQL in place, about tables of their own

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakehead.extract.sink import TableSink
from lakehead.extract.table_settings import TableSettings
from lakehead.ids import RandomIds
from lakehead.lake.filesink.hadoop import HadoopFiles
from lakehead.lake.filesink.published import published
from lakehead.lake.run_context import RunContext
from lakehead.run.config.table_config import TableConfig
from lakehead.run.wiring import Wiring
from tests.integration.pipeline_support import Scene
from tests.pipeline import Ran
from tests.support.memory_sink import MemoryTable, MemoryTableSink

KINDS = ("iceberg", "files", "memory")


@dataclass
class Kept:
    """A database in SQLite, and tables of it that are kept in one kind of sink."""

    scene: Scene
    kind: str
    memory: dict[str, MemoryTable] = field(default_factory=dict)
    """The tables of a sink in memory."""

    @property
    def root(self) -> Path:
        return self.scene.pipeline.folder / "files"

    def run(self, *tables: dict[str, Any], wiring: Callable[[Wiring], Wiring] = lambda made: made, **more: Any) -> Ran:
        place = in_memory(self.memory) if self.kind == "memory" else lambda made: made
        return self.scene.run(*tables, wiring=lambda made: wiring(place(made)), **more)

    def rows(self, place: str, table: str, *columns: str) -> list[tuple[object, ...]]:
        """What readers see, in order."""
        if self.kind == "iceberg":
            frame = self.scene.spark.read.table(f"lake.{place}.{table}")
        elif self.kind == "memory":
            kept = self.memory[table]
            frame = self.scene.spark.createDataFrame(pa.concat_tables(kept.raw) if place == "raw" else kept.published)
        else:
            files = HadoopFiles(self.scene.spark, ids=RandomIds())
            frame = self.scene.spark.read.parquet(*published(f"{self.root}/{place}/{table}", files=files))
        return sorted(tuple(row) for row in frame.selectExpr(*columns).collect())

    def changed(self, **more: Any) -> "Kept":
        """The same, with its pipeline changed."""
        return replace(self, scene=replace(self.scene, pipeline=replace(self.scene.pipeline, **more)))


def in_memory(memory: dict[str, MemoryTable]) -> Callable[[Wiring], Wiring]:
    """A wiring that keeps every table in memory."""

    class InMemory(Wiring):
        def sink_of(self, table: TableConfig, settings: TableSettings, run: RunContext) -> TableSink:
            return MemoryTableSink(settings, memory.setdefault(table.full_name, MemoryTable()), run)

    return lambda made: InMemory(made.config, made.environment)


FILES_IN_SOAK = pytest.mark.parametrize(
    "kept", ["iceberg", pytest.param("files", marks=pytest.mark.soak), "memory"], indirect=True
)
"""For what a sink of files shows elsewhere in part: each run of one takes Spark a dozen jobs."""


def numbers(kept: Kept, *ids: int) -> str:
    name = kept.scene.name()
    kept.scene.sql(f"CREATE TABLE {name} (id integer primary key, at integer, v text)")
    add(kept, name, *ids)
    return name


def add(kept: Kept, table: str, *ids: int, v: str = "x") -> None:
    for number in ids:
        kept.scene.sql(f"INSERT INTO {table} VALUES ({number}, {number}, '{v}')")


def scd1(table: str, **more: Any) -> dict[str, Any]:
    return {"table": table, "mode": "scd1", "incremental_column": "at", "primary_keys": ["id"], **more}


def full(table: str, **more: Any) -> dict[str, Any]:
    return {"table": table, "mode": "full", **more}
