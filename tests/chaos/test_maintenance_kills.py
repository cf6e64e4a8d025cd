"""Maintenance, erasing and renaming are killed around each commit: nothing needed is lost, the next one finishes."""

# ruff: noqa: S608 - tests write their SQL in place, about tables of their own

import os
import signal
import sys
from collections.abc import Callable, Sequence
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from lakehead.lake.iceberg_table import IcebergTable
from lakehead.run.main import command
from tests.faults.failpoints import Deadly, Reach, around
from tests.integration.maintenance_modes import TODAY, all_rows, iceberg, maintained, part
from tests.integration.maintenance_support import make_old, plant
from tests.integration.pipeline_support import Scene
from tests.integration.sink_support import Kept, add, numbers, scd1
from tests.integration.test_erase import stored_ids
from tests.integration.test_rebuild_from_raw import rebuilt
from tests.support.commands import lakehead_command
from tests.support.costs import Mechanism
from tests.support.costs import add as add_cost
from tests.support.forks import FORKS

pytest_plugins = (
    "tests.support.state_fixtures",
    "tests.support.source_fixtures",
    "tests.integration.pipeline_fixtures",
    "tests.integration.sink_fixtures",
)
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def deadly_command(moment: str, words: Sequence[str], log: Path) -> None:
    """Run `lakehead` in this process, which is killed before or after one of its commits or renames."""
    for number in (1, 2):
        os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    reach = Deadly(moment, lambda _: None)
    for owner, method, step in ((IcebergTable, "_refusal", "commit"), (SqlCatalog, "rename_table", "rename")):
        setattr(owner, method, watched(getattr(owner, method), step, reach))
    sys.argv = ["lakehead", *words]
    command()


def watched(call: Callable[..., Any], step: str, reach: Reach) -> Callable[..., Any]:
    numbers = count(1)

    def watching(*args: Any, **more: Any) -> Any:
        with around(f"{step} {next(numbers)}", reach):
            return call(*args, **more)

    return watching


def is_killed(moment: str, log: Path, *words: str) -> bool:
    """Whether the command was killed there. If not, it has ended well: it has no such commit."""
    process = FORKS.Process(target=deadly_command, args=(moment, words, log), daemon=True)
    process.start()
    process.join(120)
    assert process.exitcode in (0, -signal.SIGKILL), log.read_text()
    add_cost(Mechanism.KILLS, process.exitcode != 0)
    return process.exitcode != 0


def test_an_erasure_that_is_killed_at_any_commit_is_finished_by_the_next(on_sqlite: Scene, tmp_path: Path) -> None:
    kept = Kept(on_sqlite, "iceberg")
    name = numbers(kept, 1, 2, 3)
    kept.run(scd1(name))
    kept.scene.sql(f"UPDATE {name} SET at = 5, v = 'new' WHERE id IN (1, 2)")
    kept.run(scd1(name))
    kept.scene.sql(f"DELETE FROM {name} WHERE id = 1")
    others = {at: [row for row in all_rows(kept, f"{at}.{name}") if row["id"] != 1] for at in ("raw", "mirror")}
    config = str(kept.scene.pipeline.config([scd1(name)]))

    moments = [f"{when} commit {number}" for number in (1, 2, 3) for when in ("before", "after")]
    words = ("erase", name, "--config", config, "--key=id=1", "--yes")
    # Raw's sweep tag, then its landing; then, without a landing in raw, the mirror's sweep tag and its landing.
    assert [is_killed(moment, tmp_path / "log", *words) for moment in moments] == [True] * len(moments)
    assert lakehead_command(*words).returncode == 0

    for at, rows in others.items():
        assert all_rows(kept, f"{at}.{name}") == rows
        assert 1 not in stored_ids(kept, f"{at}.{name}")
    add(kept, name, 9)
    assert kept.run(scd1(name)).errors == {}
    assert [row["id"] for row in all_rows(kept, f"mirror.{name}")] == [2, 3, 9]


def test_maintenance_that_is_killed_at_any_commit_is_finished_by_the_next(on_sqlite: Scene, tmp_path: Path) -> None:
    kept = Kept(on_sqlite, "iceberg")
    name = numbers(kept, 1)
    table = scd1(name, raw_retention_days=30)
    for number in (2, 3):
        kept.run(table, load_date=TODAY - timedelta(days=40))
        add(kept, name, number)
    kept.run(table, load_date=TODAY)
    make_old(*plant(iceberg(kept, f"raw.{name}"), "data/stray.parquet"))
    mirror, young = all_rows(kept, f"mirror.{name}"), {"max_snapshots": 1, "compact": False}
    config = str(kept.scene.pipeline.config([table], maintenance=young))

    words = ("run", config, "--maintenance-mode", "apply")
    # Raw's expiry, its sweep (which is done by the third), its retention; then the mirror's expiry.
    moments = (
        ["before commit 1", "after commit 1"] * 2 + ["before commit 2"] + ["before commit 1", "after commit 1"] * 2
    )
    assert [is_killed(moment, tmp_path / "log", *words) for moment in moments] == [True] * len(moments)
    assert lakehead_command(*words).returncode == 0

    assert all_rows(kept, f"mirror.{name}") == mirror
    assert {row["_load_date"] for row in all_rows(kept, f"raw.{name}")} == {TODAY}
    again, done = maintained(kept, "dry-run", table, maintenance=young)
    assert done, again
    assert part(again, "raw", name)["orphan_files"] == ()
    add(kept, name, 4)
    assert kept.run(table, load_date=TODAY).errors == {}
    assert [row["id"] for row in all_rows(kept, f"mirror.{name}")] == [1, 2, 3, 4]
    assert "raw retention has removed" in rebuilt(kept, table)[0]["error"], "the floor was recorded with the removal"


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_rename_that_is_killed_is_finished_by_the_next(on_sqlite: Scene, tmp_path: Path, moment: str) -> None:
    kept = Kept(on_sqlite, "iceberg")
    name = numbers(kept, 1)
    kept.run(scd1(name))
    config, new = str(kept.scene.pipeline.config([scd1(name)])), f"{name}_new"

    for step in (1, 2):
        is_killed(f"{moment} rename {step}", tmp_path / "log", "tables", "rename", config, name, new, "--yes")
    ran = lakehead_command("tables", "rename", config, name, new, "--yes")

    # Killed after the last table, there is nothing left to rename.
    assert ran.returncode == (0 if moment == "before" else 2), ran.stderr
    add(kept, name, 2)
    assert kept.run(scd1(name, name=new)).errors == {}
    assert [row["id"] for row in all_rows(kept, f"mirror.{new}")] == [1, 2]
    assert not kept.scene.pipeline.exists(f"raw.{name}")
