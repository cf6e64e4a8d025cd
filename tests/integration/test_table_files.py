"""Tables in directories of files: what is there decides, also after somebody has removed a part of it."""

# ruff: noqa: S608 - tests write their SQL in place, about tables of their own

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lakehead.extract import file_table_sink
from lakehead.extract.file_marks import FileMark, encode_mark
from lakehead.extract.file_table_sink import FileTableSink
from lakehead.telemetry.events import TableDone, TableSkipped
from tests.integration.pipeline_support import Scene
from tests.integration.sink_support import Kept, add, full, numbers, scd1
from tests.pipeline import DAY

pytest_plugins = (
    "tests.support.state_fixtures",
    "tests.support.source_fixtures",
    "tests.integration.pipeline_fixtures",
    "tests.integration.sink_fixtures",
)
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

NEXT_DAY = DAY.replace(day=2)


def in_both_modes(table: str) -> list[dict[str, Any]]:
    return [full(table, name=f"{table}_full"), scd1(table, name=f"{table}_scd1")]


def everything_in(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*"))


def test_a_column_that_has_another_type_now_is_refused_before_anything_is_written(in_files: Kept) -> None:
    name = in_files.scene.name()
    in_files.scene.sql(f"CREATE TABLE {name} (id integer primary key, at integer, v integer)")
    in_files.scene.sql(f"INSERT INTO {name} VALUES (1, 1, 7)")
    tables = in_both_modes(name)
    in_files.run(*tables)
    before = everything_in(in_files.root)
    in_files.scene.sql(
        f"DROP TABLE {name}",
        f"CREATE TABLE {name} (id integer primary key, at integer, v text)",
        f"INSERT INTO {name} VALUES (1, 1, 'seven'), (2, 2, 'eight')",
    )

    ran = in_files.run(*tables, load_date=NEXT_DAY)

    for mode, out in (("full", "final"), ("scd1", "mirror")):
        told, root = ran.errors[f"{name}_{mode}"], in_files.root
        assert "column 'v' was int64 and is TEXT (string) now" in told
        assert f"remove {root}/raw/{name}_{mode} and {root}/{out}/{name}_{mode}, and load it again" in told
    assert everything_in(in_files.root) == before

    shutil.rmtree(in_files.root)
    assert in_files.run(*tables, load_date=NEXT_DAY).errors == {}, "the way out is one"
    assert in_files.rows("mirror", f"{name}_scd1", "id", "v") == [(1, "seven"), (2, "eight")]


@pytest.mark.parametrize("removed", [("raw", "final", "mirror"), ("raw",), ("final", "mirror")], ids="+".join)
def test_what_was_removed_is_there_after_the_next_run(in_files: Kept, removed: tuple[str, ...]) -> None:
    name = numbers(in_files, 1, 2)
    tables = in_both_modes(name)
    in_files.run(*tables)
    in_files.scene.sql(f"UPDATE {name} SET v = 'changed behind the watermark' WHERE id = 1")
    for place in removed:
        shutil.rmtree(in_files.root / place)

    ran = in_files.run(*tables)

    assert ran.errors == {}
    read_again = "raw" in removed
    expected = [(1, "changed behind the watermark" if read_again else "x"), (2, "x")]
    for place, table in (("final", f"{name}_full"), ("mirror", f"{name}_scd1")):
        assert in_files.rows("raw", table, "id", "v") == in_files.rows(place, table, "id", "v") == expected
    assert [event.rows for event in ran.of(TableDone, f"{name}_full")] == [2 if read_again else 0]
    again = in_files.run(*tables)
    assert len(again.of(TableSkipped)) == 2


@pytest.mark.parametrize("finalize", ["table", "view"])
def test_a_final_that_was_dropped_is_made_again_without_the_source(on_sqlite: Scene, finalize: str) -> None:
    kept = Kept(on_sqlite, "iceberg")
    table = full(name := numbers(kept, 1, 2), finalize=finalize)
    assert kept.run(table).errors == {}
    on_sqlite.spark.sql(f"DROP {finalize} lake.final.{name}")

    ran = on_sqlite.elsewhere().run(on_sqlite.spark, [table])

    assert ran.errors == {}
    assert kept.rows("final", name, "id") == [(1,), (2,)]


def test_a_table_of_a_version_that_wrote_no_ids_is_known_and_loaded_no_second_time(
    in_files: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = numbers(in_files, 1, 2)
    tables = in_both_modes(name)

    def without_id(mark: FileMark) -> str:
        return encode_mark(replace(mark, table=None))

    with monkeypatch.context() as old_version:
        old_version.setattr(FileTableSink, "id", property(lambda self: self._place))
        old_version.setattr(file_table_sink, "encode_mark", without_id)
        in_files.run(*tables)

    again = in_files.run(*tables)
    assert [event.reason for event in again.of(TableSkipped, f"{name}_full")] == [f"loaded for {DAY}"]
    assert len(again.of(TableSkipped, f"{name}_scd1")) == 1

    add(in_files, name, 3)
    assert in_files.run(*tables, load_date=NEXT_DAY).errors == {}
    assert in_files.rows("raw", f"{name}_scd1", "id") == [(1,), (2,), (2,), (3,)], "only the watermark is read again"
    assert len(in_files.run(*tables, load_date=NEXT_DAY).of(TableSkipped)) == 2


def test_what_was_only_in_a_directory_that_was_removed_is_read_again(in_files: Kept) -> None:
    name = numbers(in_files, 1, 2)
    in_files.run(scd1(name))
    add(in_files, name, 3)
    in_files.run(scd1(name))
    newest = max((in_files.root / "raw" / name / "published").iterdir(), key=lambda path: path.stat().st_mtime_ns)
    shutil.rmtree(newest)

    ran, idle = in_files.run(scd1(name)), in_files.run(scd1(name))

    assert ran.errors == {}
    assert in_files.rows("raw", name, "id", "_slice") == [(1, 1), (2, 1), (2, 3), (3, 3)]
    assert in_files.rows("mirror", name, "id") == [(1,), (2,), (3,)]
    assert len(idle.of(TableSkipped)) == 1
