"""Runs of every mode and sink that are killed at each step that lasts: the next one goes on, readers never see a part.

`test_run_crashes` does this for a mirror in Iceberg, with a server's own types and a reread watermark.
"""

# ruff: noqa: S608 - tests write their SQL in place, about tables of their own

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakehead.lake.filesink.published import published
from tests.chaos.file_sink_child import DiskFiles
from tests.chaos.run_child import DIE, running
from tests.chaos.test_run_crashes import rows_read, waits
from tests.integration.pipeline_support import source_of
from tests.pipeline import Pipeline
from tests.support.source_support import Database
from tests.support.spark import Borrowed, shared_session

pytest_plugins = ["tests.support.state_fixtures", "tests.support.source_fixtures"]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

Moments = Sequence[tuple[str, int | None]]
"""Where run after run dies, and how many slices or loads are then in raw; None: as many as the plan has."""

MODES: dict[str, dict[str, Any]] = {
    "full": {"mode": "full"},
    "append": {"mode": "append", "incremental_column": "at"},
    "scd1": {"mode": "scd1", "incremental_column": "at", "primary_keys": ["id"]},
}
PUBLISHED = {"full": "final", "append": "raw", "scd1": "mirror"}

FULL: Moments = (
    ("before load 1", 0),
    ("before publish raw 1", 0),
    ("after publish raw 1", 1),
    ("before day 1", 1),
    ("after day 1", 1),
    ("before publish final 1", 1),
    ("after publish final 1", 1),
    ("before day 1", 1),
)
APPEND: Moments = (
    ("before plan 1", 0),
    ("after plan 1", 0),
    ("before publish raw 1", 0),
    ("after publish raw 1", 1),
    ("before slice 1", 1),
    ("after slice 1", 2),
    ("after slice 1", 3),
    ("before mark 1", 3),
)
FULL_IN_FILES: Moments = (
    ("before load 1", 0),
    ("before publish 1", 0),
    ("after publish 1", 1),
    ("before day 1", 1),
    ("before publish 1", 1),
    ("after publish 1", 1),
    ("before day 1", 1),
)
APPEND_IN_FILES: Moments = (
    ("after plan 1", 0),
    ("before publish 1", 0),
    ("after publish 1", 1),
    ("after slice 1", 2),
    ("after slice 1", 3),
    ("before mark 1", 3),
)
SCD1_IN_FILES: Moments = (
    ("after plan 1", 0),
    ("before publish 1", 0),
    ("after publish 1", 1),
    ("after slice 1", 2),
    ("after slice 1", 3),
    ("before publish 1", 3),
    ("after publish 1", 3),
    ("before mark 1", 3),
)
MERGE_IN_FILES: Moments = (("before merge 1", None), ("before publish 1", None), ("after publish 1", None))


def publishing(moments: Moments) -> Moments:
    """Those of the moments that tell whether readers of a table see its old rows or its new ones, and no mixture."""
    return [each for each in moments if "publish" in each[0]]


MATRIX = [
    pytest.param("full", "iceberg", FULL, publishing(FULL), id="full"),
    pytest.param("append", "iceberg", APPEND, publishing(APPEND), id="append"),
    pytest.param("full", "files", FULL_IN_FILES, publishing(FULL_IN_FILES), id="full in files"),
    pytest.param("append", "files", APPEND_IN_FILES, publishing(APPEND_IN_FILES), id="append in files"),
    pytest.param("scd1", "files", SCD1_IN_FILES, MERGE_IN_FILES, id="scd1 in files"),
]
"""For each mode and sink: when a table is loaded for the first time, and when it has rows already."""


@pytest.fixture(scope="module")
def jvm(tmp_path_factory: pytest.TempPathFactory) -> Borrowed:
    """A JVM that runs may borrow: it outlives whoever is killed, and starts once."""
    return Borrowed.of(shared_session(Pipeline.spark_settings(tmp_path_factory.mktemp("jvm"))))


class Table:
    """One table of a database, and the pipeline that keeps it in one mode and sink."""

    def __init__(self, database: Database, folder: Path, mode: str, sink: str) -> None:
        self.database, self.mode, self.name = database, mode, database.name()
        source, environment = source_of(database)
        self.files = folder / "files" if sink == "files" else None
        sinks = {"kept": {"type": "files", "root": str(self.files)}} if self.files else None
        self.pipeline = Pipeline(folder, folder / "lakehouse", source, environment, sinks=sinks)
        self.pipeline.lakehouse.mkdir()
        database.run(f"CREATE TABLE {self.name} (id integer, at integer, v text)")
        self.config = self.pipeline.config(
            [{"table": self.name, **MODES[mode]}], logging={"json": True}, scd1_slicing={"target_rows": 1}
        )

    def add(self, *ids: int) -> None:
        for number in ids:
            self.database.run(f"INSERT INTO {self.name} VALUES ({number}, {number}, 'x')")

    def rows(self, place: str) -> list[tuple[int, int]]:
        """The slice and the id of each row that readers of a place see."""
        if self.files is not None:
            found = published(f"{self.files}/{place}/{self.name}", files=DiskFiles())
            parts = [part for each in found for part in Path(each).glob("[!._]*")]
            tables = [pq.ParquetFile(part).read().select(["_slice", "id"]) for part in parts]
            rows = pa.concat_tables(tables) if tables else None
        elif self.pipeline.exists(f"{place}.{self.name}"):
            rows = self.pipeline.rows(f"{place}.{self.name}", ingest=True)
        else:
            rows = None
        return sorted(zip(*(rows[name].to_pylist() for name in ("_slice", "id")), strict=True)) if rows else []

    def readers_see(self) -> list[int]:
        """The ids that readers see, each as often as they see it."""
        return sorted(number for _, number in self.rows(PUBLISHED[self.mode]))


def kill_at(
    table: Table, moments: Moments, jvm: Borrowed, day: str, *, landed: int, before: list[int], after: list[int]
) -> None:
    """Kill run after run. Whenever one dies, readers see what was there before, or what comes after, and no part."""
    for moment, slices in moments:
        with running(table.config, {}, DIE, moment, jvm=jvm, options=("--load-date", day)) as run:
            run.dead()
        in_raw = table.rows("raw")
        if slices is not None:
            assert len({number for number, _ in in_raw}) == landed + slices, moment
        if table.mode == "append":  # each slice is whole, and readers see it at once
            assert table.readers_see() == [*before, *after[len(before) : len(before) + (slices or 0)]], moment
        else:
            assert table.readers_see() in (before, after), moment


@pytest.mark.parametrize(("mode", "sink", "first", "later"), MATRIX)
def test_a_run_that_is_killed_at_every_step_is_gone_on_with(
    sqlite: Database, tmp_path: Path, jvm: Borrowed, mode: str, sink: str, first: Moments, later: Moments
) -> None:
    table, slices = Table(sqlite, tmp_path, mode, sink), first[-1][1] or 0
    rounds = (("2026-01-01", (1, 2, 3), list[int](), first), ("2026-01-02", (4, 5, 6), [1, 2, 3], later))
    for day, ids, before, moments in rounds:
        table.add(*ids)
        after, landed = [*before, *ids], len({number for number, _ in table.rows("raw")})

        kill_at(table, moments, jvm, day, landed=landed, before=before, after=after)
        with running(table.config, {}, jvm=jvm, options=("--load-date", day)) as last:
            told = last.done()

        reached = moments[-1][1]
        assert rows_read(told) == (0 if reached is None else slices - reached), "nothing is read again"
        assert waits(told) == [], "who was killed on this machine is known to be gone"
        assert table.readers_see() == after
        in_raw = table.rows("raw")
        assert len(in_raw) == len(set(in_raw)), "each slice landed once"
        if reached is not None:
            assert len({number for number, _ in in_raw}) == landed + slices


def test_a_rebuild_that_is_killed_leaves_readers_their_rows_and_loads_go_on(
    sqlite: Database, tmp_path: Path, jvm: Borrowed
) -> None:
    table = Table(sqlite, tmp_path, "scd1", "iceberg")
    table.add(1, 2, 3)
    with running(table.config, {}, jvm=jvm) as first:
        first.done()

    for moment in ("before publish mirror 1", "after publish mirror 1"):
        options = ("--maintenance-mode", "rebuild-from-raw")
        with running(table.config, {}, DIE, moment, jvm=jvm, options=options) as rebuild:
            rebuild.dead()
        assert table.readers_see() == [1, 2, 3], moment

    table.add(4)
    with running(table.config, {}, jvm=jvm) as last:
        last.done()
    assert table.readers_see() == [1, 2, 3, 4]
