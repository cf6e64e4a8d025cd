"""`lakehead erase`: one key goes from every file of raw and mirror, and nothing brings it back but the source."""

# ruff: noqa: S608 - tests write their SQL in place, about tables of their own

from contextlib import closing
from functools import partial
from typing import Any

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from lakehead.lake.commits import SWEEP, live_files
from lakehead.lake.table_leases import StateTableLeases
from lakehead.lake.whole_table import WholeTableStager
from lakehead.retry import Backoff
from lakehead.run import erase_landing
from lakehead.run.main import app
from tests.integration.increment_support import broken_at
from tests.integration.maintenance_modes import all_rows
from tests.integration.pipeline_support import Scene
from tests.integration.sink_support import Kept, add, full, numbers, scd1
from tests.integration.test_raw_and_mirror import meanwhile
from tests.integration.test_rebuild_from_raw import MERGES, before_first, rebuilt
from tests.support.commands import lakehead_command

pytest_plugins = (
    "tests.support.state_fixtures",
    "tests.support.source_fixtures",
    "tests.integration.pipeline_fixtures",
    "tests.integration.sink_fixtures",
)
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def erase(kept: Kept, table: dict[str, Any], *keys: str, more: tuple[str, ...] = ("--yes",), code: int = 0) -> str:
    config = kept.scene.pipeline.config([table])
    ran = lakehead_command("erase", table["table"], "--config", config, *(f"--key={key}" for key in keys), *more)
    assert ran.returncode == code, ran.stderr
    return ran.stdout if code == 0 else ran.stderr


def stored_ids(kept: Kept, name: str) -> set[int]:
    """Every id in a table's data files, also of rows that delete files hide."""
    with closing(kept.scene.pipeline.catalog()) as catalog:
        paths = [file.file_path.removeprefix("file://") for file in live_files(catalog.load_table(name))]
    return {number for path in paths for number in pq.read_table(path, columns=["id"]).column("id").to_pylist()}


def sweep_tag(kept: Kept, name: str) -> int | None:
    with closing(kept.scene.pipeline.catalog()) as catalog:
        ref = catalog.load_table(name).metadata.refs.get(SWEEP)
        return ref.snapshot_id if ref else None


def ids(kept: Kept, name: str) -> list[Any]:
    return [row["id"] for row in all_rows(kept, name)]


def test_a_key_goes_from_all_files_and_the_rest_stays_as_it_was(on_sqlite: Scene) -> None:
    kept = Kept(on_sqlite, "iceberg")
    others = list(range(10, 20))  # so many that a merge deletes by position
    name = numbers(kept, 1, 2, 3, *others)
    kept.run(scd1(name))
    kept.scene.sql(f"UPDATE {name} SET at = 25, v = 'new' WHERE id IN (1, 2)")
    kept.run(scd1(name))
    before = {at: all_rows(kept, f"{at}.{name}") for at in ("raw", "mirror")}
    kept.scene.sql(f"DELETE FROM {name} WHERE id = 1")

    dry = erase(kept, scd1(name), "id=1", more=("--dry-run",))
    assert {at: all_rows(kept, f"{at}.{name}") for at in ("raw", "mirror")} == before
    assert f"raw.{name}: 2 rows in 2 files would be erased" in dry
    assert f"mirror.{name}: 1 rows and 1 that delete files hide in 2 files would be erased" in dry
    assert "Abort" in erase(kept, scd1(name), "id=1", more=(), code=1)
    done = erase(kept, scd1(name), "ID=1")

    assert f"mirror.{name}: 1 rows and 1 that delete files hide in 2 files erased" in done
    for at, rows in before.items():
        assert all_rows(kept, f"{at}.{name}") == [row for row in rows if row["id"] != 1]
        assert 1 not in stored_ids(kept, f"{at}.{name}")
        assert sweep_tag(kept, f"{at}.{name}") is not None
    for word in ("older snapshots of raw", "older snapshots of mirror", "the source of", "backups"):
        assert f"{word}" in done
    assert "0 rows" in erase(kept, scd1(name), "id=1", more=("--dry-run",))
    add(kept, name, 30)
    assert kept.run(scd1(name)).errors == {}
    assert sorted(ids(kept, f"mirror.{name}")) == [2, 3, *others, 30]
    rebuilt(kept, scd1(name))
    assert sorted(ids(kept, f"mirror.{name}")) == [2, 3, *others, 30]


def test_exactly_a_composite_key_is_erased(on_sqlite: Scene) -> None:
    kept = Kept(on_sqlite, "iceberg")
    name = kept.scene.name()
    kept.scene.sql(f"CREATE TABLE {name} (id integer, part text, at integer)")
    for number, part in ((1, "a"), (1, "b"), (2, "a"), (1, "ab")):
        kept.scene.sql(f"INSERT INTO {name} VALUES ({number}, '{part}', 1)")
    table = {**scd1(name), "primary_keys": ["id", "part"]}
    kept.run(table)

    assert "for each of these columns" in erase(kept, table, "id=1", code=2)
    assert "for no other" in erase(kept, table, "id=1", "part=a", "at=1", code=2)
    assert "not a value of column 'id'" in erase(kept, table, "id=one", "part=a", code=2)
    erase(kept, table, "id=1", "part=a")

    for at in ("raw", "mirror"):
        rows = sorted((row["id"], row["part"]) for row in all_rows(kept, f"{at}.{name}"))
        assert rows == [(1, "ab"), (1, "b"), (2, "a")]


def erase_meanwhile(kept: Kept, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Erase the key 2, which the source has no more, without waiting for who holds the lease on the table."""
    meanwhile(kept, f"DELETE FROM {name} WHERE id = 2")
    impatient = partial(StateTableLeases, patience=Backoff(attempts=1))
    monkeypatch.setattr(erase_landing, "StateTableLeases", impatient)
    config = str(kept.scene.pipeline.folder / "config.json")
    ran = CliRunner().invoke(app, ["erase", name, "--config", config, "--key=id=2", "--yes"])
    assert ran.exit_code == 0, ran.output


@MERGES
def test_a_merge_that_had_read_the_key_does_not_bring_it_back(
    on_sqlite: Scene, monkeypatch: pytest.MonkeyPatch, lane: str, owner: Any, step: str
) -> None:
    kept = Kept(on_sqlite, "iceberg")
    name = numbers(kept, 1)
    kept.run(scd1(name), merge_lane=lane)
    add(kept, name, 2, 3)

    acted = before_first(monkeypatch, owner, step, lambda: erase_meanwhile(kept, name, monkeypatch))
    assert kept.run(scd1(name), merge_lane=lane).errors == {}

    assert acted
    assert ids(kept, f"mirror.{name}") == [1, 3]
    assert stored_ids(kept, f"mirror.{name}") == {1, 3}
    assert stored_ids(kept, f"raw.{name}") == {1, 3}


def test_a_rebuild_that_had_read_the_key_does_not_bring_it_back(
    on_sqlite: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = Kept(on_sqlite, "iceberg")
    name = numbers(kept, 1, 2, 3)
    kept.run(scd1(name), merge_lane="arrow")

    acted = before_first(monkeypatch, WholeTableStager, "_copy", lambda: erase_meanwhile(kept, name, monkeypatch))
    (done,) = rebuilt(kept, scd1(name), merge_lane="arrow")

    assert acted
    assert done["rebuilt_rows"] == 2
    assert ids(kept, f"mirror.{name}") == [1, 3]
    assert stored_ids(kept, f"mirror.{name}") == {1, 3}


def test_a_full_table_loses_the_key_in_every_load_and_in_its_final(on_sqlite: Scene) -> None:
    kept = Kept(on_sqlite, "iceberg")
    name = numbers(kept, 1, 2)
    kept.run(full(name))

    erase(kept, full(name), "id=2")

    assert (ids(kept, f"raw.{name}"), ids(kept, f"final.{name}")) == ([1], [1])


def test_unmerged_slices_lose_the_key_too(on_sqlite: Scene) -> None:
    kept = Kept(on_sqlite, "iceberg")
    name = numbers(kept, 1)
    kept.run(scd1(name))
    add(kept, name, 2)
    kept.run(scd1(name), wiring=broken_at("commit_incremental"))
    kept.scene.sql(f"DELETE FROM {name} WHERE id = 2")

    erase(kept, scd1(name), "id=2")

    assert kept.run(scd1(name)).errors == {}
    assert ids(kept, f"mirror.{name}") == [1]
