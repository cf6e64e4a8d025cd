"""Merges of a run that another writer overtakes each time: few tries, told, and nothing left behind."""

# ruff: noqa: S608 - tests write their SQL in place, about tables of their own

from contextlib import closing

import pytest

from lakehead.lake.commits import empty
from lakehead.lake.iceberg_table import IcebergTable
from lakehead.lake.landing import Head
from lakehead.lake.merge import BRANCH
from lakehead.lake.merged_files import MergedFiles
from lakehead.lake.ports import Staged
from lakehead.lake.staged_rows import Branch, NewFiles
from lakehead.telemetry.events import TableWaiting
from tests.integration.pipeline_support import MARKS, PLUGINS, Scene

pytest_plugins = PLUGINS
pytestmark = MARKS

TRIES = 5


@pytest.mark.parametrize(("lane", "merge"), [("arrow", MergedFiles), ("spark", Branch)], ids=["arrow", "spark"])
def test_a_run_whose_merges_are_overtaken_each_time_says_so_and_leaves_no_branch(
    on_sqlite: Scene, monkeypatch: pytest.MonkeyPatch, lane: str, merge: type
) -> None:
    scene, name = on_sqlite, on_sqlite.name()
    scene.sql(f"CREATE TABLE {name} (id INTEGER PRIMARY KEY, a TEXT)", f"INSERT INTO {name} VALUES (1, 'a')")
    table = {"table": name, "mode": "scd1", "incremental_column": "id", "primary_keys": ["id"]}
    assert scene.run(table).errors == {}
    scene.sql(f"INSERT INTO {name} VALUES (2, 'b')")
    publish, merges = IcebergTable.publish, 0

    async def overtaken(self: IcebergTable, staged: Staged[NewFiles | MergedFiles | Branch], at: Head) -> Head:
        nonlocal merges
        if isinstance(staged.rows, merge):
            merges += 1
            self.commit(at, lambda iceberg: (empty(iceberg, {}), ()))
        return await publish(self, staged, at)

    monkeypatch.setattr(IcebergTable, "publish", overtaken)
    ran = scene.run(table, merge_lane=lane)
    monkeypatch.undo()

    assert f"during each of {TRIES} attempts" in ran.errors[name]
    assert merges == TRIES
    told = [wait.reason for wait in ran.of(TableWaiting, name)]
    assert len(told) == TRIES - 1
    assert all("another writer has committed to the table" in reason for reason in told)
    with closing(scene.pipeline.catalog()) as catalog:
        refs = catalog.load_table(f"mirror.{name}").metadata.refs
    assert [ref for ref in refs if ref.startswith(BRANCH)] == []
    assert scene.run(table).errors == {}
    assert scene.rows(f"mirror.{name}").num_rows == 2
