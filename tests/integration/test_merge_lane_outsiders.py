"""Merging in Arrow into tables that others write to, maintain and read, with settings of their own."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest
from pyarrow.fs import FileSelector
from pyiceberg.types import DecimalType

from lakehead.lake.landing import Unit
from lakehead.lake.stagers import StagingFailed, filesystem_of
from tests.integration.merge_support import LONG, START, TEXT, VALUES, Mirrors, Shape
from tests.lakehouse import Lakehouse
from tests.servers.seaweed import Seaweed
from tests.support.effort import effort
from tests.support.spark import shared_session

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def lakehouse(tmp_path_factory: pytest.TempPathFactory, seaweed: Seaweed) -> Iterator[Lakehouse]:
    folder = tmp_path_factory.mktemp("outsiders")
    settings = Lakehouse.settings(folder, {"s3": seaweed.sqlite_catalog(folder / "s3.sqlite")})
    lakehouse = Lakehouse(folder, shared_session(settings), settings.catalogs)
    yield lakehouse
    lakehouse.close()


def started(lakehouse: Lakehouse, name: str, shape: Shape = LONG, *, keys: int = 30, catalog: str = "lake") -> Mirrors:
    there = Mirrors(lakehouse, shape, Random(name), name, catalog=catalog)
    there.start(*([row_of(there, key) for key in range(low, low + keys // 3)] for low in range(0, keys, keys // 3)))
    return there


def row_of(there: Mirrors, key: int) -> dict[str, object]:
    return there.rows(1, keys=[key])[0] | {"at": START + timedelta(hours=there.slice)}


def change(there: Mirrors, *keys: int) -> None:
    """Land a slice with a newer row for each of these keys."""
    there.slice += 1
    rows = [row_of(there, key) for key in keys]
    there.slice -= 1
    there.land(rows)


SMALL = (
    ("write.parquet.row-group-size-bytes", "1000"),
    ("write.parquet.row-group-check-min-record-count", "1"),
    ("write.parquet.page-size-bytes", "1000"),
)
SETTINGS: dict[str, tuple[tuple[str, str], ...]] = {
    "no metrics": (("write.metadata.metrics.default", "none"),),
    "counts": (("write.metadata.metrics.default", "counts"), ("write.parquet.compression-codec", "gzip")),
    "short bounds": (("write.metadata.metrics.default", "truncate(4)"), *SMALL),
    "full bounds": (("write.metadata.metrics.default", "full"), ("write.parquet.compression-codec", "snappy"), *SMALL),
    "objects": (("write.object-storage.enabled", "true"), ("write.distribution-mode", "hash"), *SMALL),
    "small files": (("write.target-file-size-bytes", "1000"), ("write.parquet.row-group-limit", "2")),
}
LONG_TEXT = replace(TEXT, name="long_text", tiebreaks=1)


@pytest.mark.filterwarnings("ignore:Parquet writer option")
@pytest.mark.parametrize("settings", SETTINGS)
def test_settings_of_a_table_change_no_row_that_is_merged(lakehouse: Lakehouse, settings: str) -> None:
    shape = replace(LONG_TEXT, properties=SETTINGS[settings])
    there = started(lakehouse, f"set_{settings.replace(' ', '_')}", shape)
    there.call("rewrite_data_files", ", options => map('rewrite-all', 'true')")
    for keys in ((1, 19, 40), (1, 2, 20, 39, 41)):
        change(there, *keys)
        there.merge_both()
        there.check()
    there.call("rewrite_data_files", ", options => map('rewrite-all', 'true')")
    change(there, *range(45))
    there.merge_both()
    there.check()


def test_files_elsewhere_are_merged(lakehouse: Lakehouse) -> None:
    elsewhere = (("write.data.path", f"file://{lakehouse.folder}/elsewhere"),)
    there = started(lakehouse, "elsewhere", replace(LONG, properties=elsewhere))
    for keys in ((1, 40), (1, 2, 41)):
        change(there, *keys)
        there.merge_both()

    there.check()
    assert list((lakehouse.folder / "elsewhere").glob("*-deletes.parquet"))


def test_keys_of_more_digits_than_python_computes_with_are_updated(
    lakehouse: Lakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = replace(LONG, name="digits", keys=(DecimalType(38, 10),))
    base = 1_234_567_890_123_456_789_012_345_678
    monkeypatch.setitem(cast(Any, VALUES), DecimalType, lambda n: Decimal(f"{'-' * (n % 2)}{base}.{n:010}"))
    there = started(lakehouse, "digits", shape)
    change(there, 1, 2, 40)
    there.merge_both()

    there.check()


def test_rows_that_spark_has_deleted_from_many_files_stay_deleted(lakehouse: Lakehouse) -> None:
    shape = replace(LONG, name="shared", partition="bucket(1, `k0`)")
    there = started(lakehouse, "shared", shape)
    there.sql("DELETE FROM {table} WHERE k0 IN (1, 11, 12, 21)")
    change(there, 1, 2, 13, 22)
    there.merge_both()
    there.check()
    there.sql("DELETE FROM {table} WHERE k0 IN (2, 3, 14, 23)")
    change(there, 2, 11, 15)
    there.merge_both()
    there.check()


def test_a_key_that_was_in_the_mirror_twice_is_merged_once_one_of_its_rows_is_deleted(lakehouse: Lakehouse) -> None:
    there = started(lakehouse, "was_twice")
    there.start([row_of(there, 3) | {"n": -1}])
    there.sql("DELETE FROM {table} WHERE n = -1")
    change(there, 3)
    there.merge_both()

    there.check()


def test_tables_are_maintained_by_others_and_merged_on(lakehouse: Lakehouse) -> None:
    properties = (("commit.manifest.min-count-to-merge", "3"),)
    there = started(lakehouse, "maintained", replace(LONG, name="maintained", properties=properties))
    steps = (
        ("rewrite_position_delete_files", ", options => map('rewrite-all', 'true')"),
        ("rewrite_manifests", ""),
        ("expire_snapshots", ", older_than => TIMESTAMP '2100-01-01', retain_last => 1"),
        ("rewrite_data_files", ", options => map('rewrite-all', 'true', 'remove-dangling-deletes', 'true')"),
        ("remove_orphan_files", ""),
    )
    for number, (procedure, options) in enumerate(steps):
        for key in range(effort(3, soak=25)):
            change(there, number + key, 10 + key, 100 + number)
            there.merge_both()
        there.call(procedure, options)
        there.check()
    change(there, 1, 2, 200)
    there.merge_both()
    there.check()


def test_a_table_on_an_object_store_is_merged(lakehouse: Lakehouse) -> None:
    there = started(lakehouse, "remote", catalog="s3")
    for keys in ((1, 40), (1, 2, 3, 4, 5, 41)):
        change(there, *keys)
        there.merge_both()

    there.check()
    assert [name for name in names(there) if name.endswith(".arrow")] == []


def names(there: Mirrors) -> list[str]:
    table = there.lane.load()
    filesystem, folder = filesystem_of(table, table.location())
    return [info.path for info in filesystem.get_file_info(FileSelector(folder, recursive=True))]


def test_a_merge_whose_task_fails_publishes_nothing(lakehouse: Lakehouse) -> None:
    there = started(lakehouse, "failing")
    change(there, 1, 11, 40)
    before = there.lane.load().metadata
    lost = next(name for name in names(there) if name.endswith(".parquet"))
    Path(lost).rename(f"{lost}.away")
    with pytest.raises(StagingFailed, match="Nothing was published"):
        there.land_by(there.by_lane(), "0..1")
    assert there.lane.load().metadata.refs == before.refs
    Path(f"{lost}.away").rename(lost)

    there.merge_both()

    there.check()


def test_of_two_runs_that_merge_the_same_one_does(lakehouse: Lakehouse) -> None:
    there = started(lakehouse, "raced")
    change(there, 1, 11, 40)

    async def one(owner: str) -> object:
        table = lakehouse.table(there.lane.name.removeprefix("t."))
        units = lakehouse.progress(owner).take(table.uuid, [Unit("0..1")])
        return await lakehouse.lander(table, replace(there.by_lane(), table=table), owner=owner, audits=[]).land(units)

    async def both() -> None:
        await asyncio.gather(one("a"), one("b"), return_exceptions=True)

    asyncio.run(both())
    there.land_by(there.by_spark(there.merge), "0..1")

    there.check()
