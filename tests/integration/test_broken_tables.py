"""A table that cannot be opened, or a catalog that cannot be reached, fails by itself: the others are loaded."""

# ruff: noqa: S608 - tests write their SQL in place, about tables of their own

import json
import os
import re
import resource
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from lakehead.lake.ports import CONFIG_OPTION
from tests.integration.pipeline_support import MARKS, PLUGINS, Scene
from tests.pipeline import Pipeline
from tests.support.commands import lakehead_command

pytest_plugins = PLUGINS
pytestmark = MARKS


def small(scene: Scene) -> str:
    """A table with a row in the source."""
    name = scene.name()
    scene.sql(f"CREATE TABLE {name} (id int PRIMARY KEY, v int)", f"INSERT INTO {name} VALUES (1, 1)")
    return name


def full(table: str, **more: object) -> dict[str, object]:
    return {"table": table, "mode": "full", **more}


def metadata_of(pipeline: Pipeline, table: str) -> Path:
    """The file that the catalog says is the table's present metadata."""
    catalog = pipeline.catalog()
    try:
        return Path(urlsplit(catalog.load_table(table).metadata_location).path)
    finally:
        catalog.close()


def lose(metadata: Path) -> None:
    metadata.unlink()


def garble(metadata: Path) -> None:
    metadata.write_text("{")


def of_another_version(metadata: Path) -> None:
    metadata.write_text(json.dumps({**json.loads(metadata.read_text()), "format-version": 99}))


@pytest.mark.parametrize("spoil", [lose, garble, of_another_version])
def test_a_table_whose_metadata_cannot_be_read_fails_alone(on_sqlite: Scene, spoil: Callable[[Path], None]) -> None:
    broken, whole = small(on_sqlite), small(on_sqlite)
    assert on_sqlite.run(full(broken), full(whole)).errors == {}
    metadata = metadata_of(on_sqlite.pipeline, f"raw.{broken}")
    spoil(metadata)
    on_sqlite.sql(f"INSERT INTO {whole} VALUES (2, 2)")

    ran = on_sqlite.run(full(broken), full(whole), reload=True)

    assert ran.exit_code == 1
    assert set(ran.errors) == {broken}
    assert "\n" not in ran.errors[broken]
    assert ran.errors[broken].startswith(
        f"The table raw.{broken} or final.{broken} in the catalog 'lake' cannot be opened"
    )
    assert metadata.name in ran.errors[broken] or metadata.exists()
    assert sorted(on_sqlite.rows(f"final.{whole}")["id"].to_pylist()) == [1, 2]


def out_of_reach(folder: Path) -> dict[str, Any]:
    del folder
    return {"type": "rest", "uri": "http://127.0.0.1:1"}


def in_no_folder(folder: Path) -> dict[str, Any]:
    return {"type": "jdbc", "uri": f"jdbc:sqlite:{folder}/nowhere/catalog.sqlite", "warehouse": str(folder)}


def no_database(folder: Path) -> dict[str, Any]:
    (folder / "catalog.sqlite").write_text("This is no database, however long one looks at it. " * 40)
    return {"type": "jdbc", "uri": f"jdbc:sqlite:{folder}/catalog.sqlite", "warehouse": str(folder)}


@pytest.mark.parametrize("properties", [out_of_reach, in_no_folder, no_database])
def test_a_catalog_that_cannot_be_opened_fails_its_own_tables_alone(
    on_sqlite: Scene, tmp_path: Path, properties: Callable[[Path], dict[str, Any]]
) -> None:
    there, gone = small(on_sqlite), small(on_sqlite)
    sinks = {
        "whole": {"type": "iceberg"},
        "broken": {"type": "iceberg", "catalog": "other", "properties": properties(tmp_path)},
    }
    pipeline = replace(on_sqlite.pipeline, sinks=sinks)

    ran = pipeline.run(on_sqlite.spark, [full(gone, sink="broken"), full(there, sink="whole")])

    assert ran.exit_code == 1
    assert set(ran.errors) == {gone}
    assert ran.errors[gone].startswith(
        ("The catalog 'other' cannot be opened: ", "The catalog other does not answer (")
    )
    assert "\n" not in ran.errors[gone]
    assert on_sqlite.rows(f"final.{there}")["id"].to_pylist() == [1]


def test_the_command_that_a_message_suggests_does_what_it_says(on_sqlite: Scene) -> None:
    name = small(on_sqlite)
    for day in (1, 2):
        assert on_sqlite.run(full(name), load_date=date(2026, 1, day)).errors == {}
    first = on_sqlite.pipeline.snapshots(f"raw.{name}")[0]
    on_sqlite.spark.sql(f"CALL lake.system.rollback_to_snapshot('raw.{name}', {first})")

    broken = on_sqlite.run(full(name), load_date=date(2026, 1, 3))
    found = re.search(r"accept the table as it is: (lakehead .*)", broken.errors[name])
    assert found is not None, broken.errors
    assert not [told.event for told in broken.told if CONFIG_OPTION in str(told.event)], "also phases name the file"
    suggested = lakehead_command(*shlex.split(found[1])[1:])
    mended = on_sqlite.run(full(name), load_date=date(2026, 1, 3))

    swept = lakehead_command("maintain", "sweep", f"raw.{name}", "--dry-run", *shlex.split(found[1])[-2:])

    assert (suggested.returncode, suggested.stderr) == (0, "")
    assert (swept.returncode, swept.stderr) == (0, "")
    assert f"raw.{name} is settled up to snapshot {first}" in suggested.stdout
    assert mended.errors == {}


@contextmanager
def files_up_to(size: int, process: int) -> Iterator[None]:
    """Let a process write no file that is larger: to it, that is a full disk."""
    before = resource.prlimit(process, resource.RLIMIT_FSIZE)
    resource.prlimit(process, resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.prlimit(process, resource.RLIMIT_FSIZE, before)


def test_a_disk_that_is_full_for_spark_is_told_with_the_tables_path_and_the_next_run_goes_on(on_sqlite: Scene) -> None:
    name = on_sqlite.name()
    on_sqlite.sql(f"CREATE TABLE {name} (id INTEGER PRIMARY KEY, content BLOB)")
    on_sqlite.sql(f"INSERT INTO {name} VALUES (1, randomblob(10))")
    table = {"table": name, "mode": "scd1", "incremental_column": "id", "primary_keys": ["id"]}
    assert (
        on_sqlite.run(table, merge_lane="spark").errors == {}
    )  # also starts Python workers, which are not to be limited
    on_sqlite.sql(f"INSERT INTO {name} SELECT id + 1, randomblob(3000000) FROM {name}")
    gateway = on_sqlite.spark.sparkContext._gateway
    assert gateway is not None

    with files_up_to(2**20, gateway.proc.pid):
        full_disk = on_sqlite.run(table, merge_lane="spark")
    mended = on_sqlite.run(table, merge_lane="spark")

    location = f"{on_sqlite.pipeline.lakehouse}/warehouse/mirror/{name}"
    assert full_disk.errors[name].startswith(
        f"The disk of {location}, or of Spark's temporary files, is full (File too"
    )
    assert "\n" not in full_disk.errors[name]
    assert mended.errors == {}
    assert sorted(on_sqlite.rows(f"mirror.{name}")["id"].to_pylist()) == [1, 2]


def test_a_disk_that_is_full_for_the_keys_of_changes_is_told_and_the_next_run_goes_on(on_sqlite: Scene) -> None:
    name = on_sqlite.name()
    on_sqlite.sql(f"CREATE TABLE {name} (id TEXT PRIMARY KEY, version INTEGER)")
    on_sqlite.sql(f"INSERT INTO {name} VALUES ('a', 1)")
    table = {"table": name, "mode": "scd1", "incremental_column": "version", "primary_keys": ["id"]}
    assert on_sqlite.run(table).errors == {}
    on_sqlite.sql(f"INSERT INTO {name} VALUES ('{'b' * 3_000_000}', 2)")

    with files_up_to(2**20, os.getpid()):  # tasks write rows, and this process the keys of changes
        full_disk = on_sqlite.run(table)
    mended = on_sqlite.run(table)

    assert re.match(r"The disk of .*/mirror/.* is full \(File too large\)\. Make room", full_disk.errors[name])
    assert mended.errors == {}
    assert on_sqlite.rows(f"mirror.{name}")["version"].to_pylist() == [1, 2]
