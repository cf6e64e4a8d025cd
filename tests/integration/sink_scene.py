"""Tables of a SQLite database that are kept in one kind of sink or the other. The fixtures are in `sink_fixtures`."""

# ruff: noqa: S608 - tests write their SQL in place, about tables of their own

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from lakehead.ids import RandomIds
from lakehead.lake.filesink.hadoop import HadoopFiles
from lakehead.lake.filesink.published import published
from tests.integration.pipeline_scene import Scene
from tests.pipeline import Ran

KINDS = ("iceberg", "files")


@dataclass
class Kept:
    """A database in SQLite, and tables of it that are kept in one kind of sink."""

    scene: Scene
    kind: str

    @property
    def root(self) -> Path:
        return self.scene.pipeline.folder / "files"

    def run(self, *tables: dict[str, Any], **more: Any) -> Ran:
        return self.scene.run(*tables, **more)

    def rows(self, place: str, table: str, *columns: str) -> list[tuple[object, ...]]:
        """What readers see, in order."""
        if self.kind == "iceberg":
            frame = self.scene.spark.read.table(f"lake.{place}.{table}")
        else:
            files = HadoopFiles(self.scene.spark, ids=RandomIds())
            frame = self.scene.spark.read.parquet(*published(f"{self.root}/{place}/{table}", files=files))
        return sorted(tuple(row) for row in frame.selectExpr(*columns).collect())

    def changed(self, **more: Any) -> "Kept":
        """The same, with its pipeline changed."""
        return replace(self, scene=replace(self.scene, pipeline=replace(self.scene.pipeline, **more)))


FILES_IN_SOAK = pytest.mark.parametrize(
    "kept", ["iceberg", pytest.param("files", marks=pytest.mark.soak)], indirect=True
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
