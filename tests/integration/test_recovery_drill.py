"""The drill of docs/recovery.md: state, catalog and ledger, each lost alone, and all but the store lost together."""

import shutil
from pathlib import Path

import pytest

from tests.integration.maintenance_modes import all_rows
from tests.integration.pipeline_support import Scene
from tests.integration.sink_support import Kept, add, numbers, scd1
from tests.support.commands import lakehead_command

pytest_plugins = (
    "tests.support.state_fixtures",
    "tests.support.source_fixtures",
    "tests.integration.pipeline_fixtures",
    "tests.integration.sink_fixtures",
)
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def typed(*words: object, code: int = 0) -> str:
    ran = lakehead_command(*words)
    assert ran.returncode == code, (ran.stdout, ran.stderr)
    return ran.stdout + ran.stderr


def remove(*files: Path) -> None:
    for file in files:
        for part in file.parent.glob(f"{file.name}*"):  # with the files of SQLite's write-ahead log
            part.unlink()


@pytest.mark.parametrize(
    "lost",
    [*(pytest.param(one, marks=pytest.mark.soak) for one in ("state", "catalog")), "ledger", "all but the store"],
)
def test_what_was_lost_is_brought_back_and_loads_go_on(on_sqlite: Scene, tmp_path: Path, lost: str) -> None:
    kept = Kept(on_sqlite, "iceberg")
    lakehouse = kept.scene.pipeline.lakehouse
    state, catalog, ledger = (
        kept.scene.pipeline.folder / "state.sqlite",
        lakehouse / "catalog.sqlite",
        lakehouse / "ledger",
    )
    name = numbers(kept, 1)
    kept.run(scd1(name))
    add(kept, name, 2)
    kept.run(scd1(name))
    config, before = kept.scene.pipeline.config([scd1(name)]), all_rows(kept, f"mirror.{name}")
    backup = tmp_path / "backup"
    if lost == "ledger":  # the only one that must be restored: its objects never change
        shutil.copytree(ledger, backup)
        shutil.rmtree(ledger)
    if lost in ("state", "all but the store"):
        remove(state)
    if lost in ("catalog", "all but the store"):
        remove(catalog)

    if lost == "ledger":
        assert "lacks landing" in typed("state", "rebuild", f"raw.{name}", "--config", config, code=1)
        shutil.copytree(backup, ledger, dirs_exist_ok=True)
    if lost in ("catalog", "all but the store"):
        assert f"raw.{name}: would be registered" in typed("tables", "recover", config, "--dry-run")
        assert f"raw.{name}: registered" in typed("tables", "recover", config)
    for place in ("raw", "mirror"):
        assert "2 landings of 2 units" in typed("state", "rebuild", f"{place}.{name}", "--config", config)

    assert all_rows(kept, f"mirror.{name}") == before
    add(kept, name, 3)
    assert kept.run(scd1(name)).errors == {}
    assert [row["id"] for row in all_rows(kept, f"mirror.{name}")] == [1, 2, 3]
    assert [row["id"] for row in all_rows(kept, f"raw.{name}")] == [1, 1, 2, 2, 3], "nothing was read from the start"
