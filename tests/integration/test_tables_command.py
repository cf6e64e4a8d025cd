"""`lakehead tables`, as it is typed: on tables that were loaded."""

# ruff: noqa: S608 - tests write their SQL in place, about tables of their own

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from lakehead.clock import SystemClock
from lakehead.ids import RandomIds
from lakehead.state.opening import open_state
from tests.integration.maintenance_modes import all_rows
from tests.integration.pipeline_support import Scene
from tests.integration.sink_support import Kept, add, full, numbers, scd1
from tests.support.commands import lakehead_command

pytest_plugins = (
    "tests.support.state_fixtures",
    "tests.support.source_fixtures",
    "tests.integration.pipeline_fixtures",
    "tests.integration.sink_fixtures",
)
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def typed(*words: object, code: int = 0) -> str:
    ran = lakehead_command("tables", *words)
    assert ran.returncode == code, ran.stderr
    return ran.stdout if code == 0 else ran.stderr


def uuid_of(kept: Kept, name: str) -> str:
    with closing(kept.scene.pipeline.catalog()) as catalog:
        return str(catalog.load_table(name).metadata.table_uuid)


def pointer(kept: Kept, uuid: str) -> object:
    with open_state(f"sqlite:///{kept.scene.pipeline.folder}/state.sqlite", SystemClock(), RandomIds()) as state:
        return state.landings.pointer(uuid) or state.progress.watermark(uuid)


def ids(kept: Kept, name: str) -> list[Any]:
    return [row["id"] for row in all_rows(kept, name)]


def test_tables_are_listed_with_rows_size_freshness_and_watermark(on_sqlite: Scene) -> None:
    kept = Kept(on_sqlite, "iceberg")
    name, never = numbers(kept, 1, 2, 3), numbers(kept)
    kept.run(scd1(name))
    kept.scene.sql(f"UPDATE {name} SET at = 7 WHERE id = 1")
    kept.run(scd1(name))
    config = kept.scene.pipeline.config([scd1(name), full(never)])

    raw, mirror, *others = json.loads(typed("list", config, "--json"))
    text = typed("list", config).splitlines()

    assert (raw["table"], raw["rows"], raw["files"], raw["watermark"]) == (f"raw.{name}", 5, 2, "7")
    assert (mirror["table"], mirror["rows"], mirror["slice"]) == (f"mirror.{name}", 3, 2), "deleted rows do not count"
    assert raw["bytes"] > 0
    assert raw["age_seconds"] < 3600
    assert [each["exists"] for each in others] == [False, False]
    assert text[0].split() == ["table", "rows", "bytes", "files", "landed", "watermark"]
    assert text[1].startswith(f"raw.{name}")
    assert text[3].endswith("does not exist")


def test_a_table_is_dropped_with_its_state_and_only_after_a_yes(on_sqlite: Scene) -> None:
    kept = Kept(on_sqlite, "iceberg")
    name = numbers(kept, 1)
    kept.run(scd1(name))
    config, known = (
        kept.scene.pipeline.config([scd1(name)]),
        [uuid_of(kept, f"{at}.{name}") for at in ("raw", "mirror")],
    )

    assert f"raw.{name}: will be dropped with its state" in typed("drop", config, name, "--dry-run")
    assert "Abort" in typed("drop", config, name, code=1), "nobody said yes"
    assert all(pointer(kept, uuid) for uuid in known)
    assert kept.scene.pipeline.exists(f"raw.{name}")

    assert f"mirror.{name}: dropped\nraw.{name}: dropped\n" in typed("drop", config, name, "--yes")

    assert not any(pointer(kept, uuid) for uuid in known)
    assert not kept.scene.pipeline.exists(f"raw.{name}")
    assert "nothing to drop" in typed("drop", config, name, "--yes", code=2)
    assert f"raw.{name}: was dropped on purpose" in typed("recover", config, "--dry-run")
    assert kept.run(scd1(name)).errors == {}, "it is loaded from the beginning"
    assert ids(kept, f"mirror.{name}") == [1]


def test_a_renamed_table_keeps_its_rows_and_state_and_goes_on(on_sqlite: Scene) -> None:
    kept = Kept(on_sqlite, "iceberg")
    name = numbers(kept, 1)
    kept.run(scd1(name))
    config, new = kept.scene.pipeline.config([scd1(name)]), f"other.{name}_new"

    assert f"raw.{name}: will be renamed to raw.{new}" in typed("rename", config, name, new, "--dry-run")
    assert kept.scene.pipeline.exists(f"raw.{name}")
    assert f'"name": "{new}"' in typed("rename", config, name, new, "--yes")

    add(kept, name, 2)
    ran = kept.run(scd1(name, name=new))
    assert ran.errors == {}
    assert len(kept.scene.pipeline.snapshots(f"raw.{new}")) == 2, "it went on where it was"
    assert ids(kept, f"mirror.{new}") == [1, 2]
    assert not kept.scene.pipeline.exists(f"mirror.{name}")


def test_an_interrupted_rename_is_finished_by_the_next_one(on_sqlite: Scene) -> None:
    kept = Kept(on_sqlite, "iceberg")
    name = numbers(kept, 1)
    kept.run(scd1(name))
    config, new = kept.scene.pipeline.config([scd1(name)]), f"{name}_new"
    with closing(kept.scene.pipeline.catalog()) as catalog:
        catalog.rename_table(f"mirror.{name}", f"mirror.{new}")

    typed("rename", config, name, new, "--yes")

    assert (ids(kept, f"raw.{new}"), ids(kept, f"mirror.{new}")) == ([1], [1])


def test_the_newest_metadata_is_found_by_its_content_and_never_put_over_a_table(on_sqlite: Scene) -> None:
    kept = Kept(on_sqlite, "iceberg")
    name, other = numbers(kept, 1), numbers(kept, 8)
    kept.run(scd1(name), full(other))
    add(kept, name, 2)
    kept.run(scd1(name), full(other))
    config = kept.scene.pipeline.config([scd1(name), full(other)])
    with closing(kept.scene.pipeline.catalog()) as catalog:
        table = catalog.load_table(f"raw.{name}")
        newest = Path(table.metadata_location.removeprefix("file://"))
        oldest = Path(table.metadata.metadata_log[0].metadata_file.removeprefix("file://"))
        misleading = newest.with_name("99999-misleading.metadata.json")
        misleading.write_bytes(oldest.read_bytes())
        catalog.drop_table(f"raw.{name}")
        catalog.drop_table(f"mirror.{name}")
    (newest.parent / "00009-damaged.metadata.json").write_text('{"table-uuid": ')

    dry = typed("recover", config, "--dry-run")
    assert f"raw.{name}: would be registered: {newest}" in dry
    assert f"raw.{other}: is in the catalog, and was not changed" in dry
    assert not kept.scene.pipeline.exists(f"raw.{name}")
    assert f"mirror.{name}: registered" in typed("recover", config)

    assert ids(kept, f"raw.{name}") == [1, 1, 2], "the row at the watermark was read again"
    add(kept, name, 3)
    assert kept.run(scd1(name), full(other)).errors == {}
    assert ids(kept, f"mirror.{name}") == [1, 2, 3]
