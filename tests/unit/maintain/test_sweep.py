"""What a sweep knows of a file by its name and its first bytes."""

import asyncio
import gzip
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from lakehead.clock import SystemClock
from lakehead.errors import Misconfigured
from lakehead.lake.merge import BRANCH, branch_made_at
from lakehead.maintain.sweep import _is_referenced, _uuid_of, sweep
from tests.unit.lake.local_table import create, local_catalog, publish

UUID = "4b0f7ad2-93a5-4d4a-9c0e-3e6a1f9c8f10"


def test_the_uuid_of_a_metadata_file_stands_at_its_beginning_plain_or_gzipped() -> None:
    body = b'{"format-version" : 2,\n "table-uuid" : "%s", "location": "%s"}' % (UUID.encode(), b"x" * 9000)

    assert _uuid_of(body[:4096]) == UUID
    assert _uuid_of(gzip.compress(body)[:4096]) == UUID
    assert _uuid_of(b"") is None
    assert _uuid_of(b"nobody's") is None


def test_a_checksum_belongs_to_the_file_beside_it() -> None:
    referenced = {"/t/data/a.parquet"}

    assert _is_referenced("/t/data/a.parquet", referenced)
    assert _is_referenced("/t/data/.a.parquet.crc", referenced)
    assert not _is_referenced("/t/data/.b.parquet.crc", referenced)
    assert not _is_referenced("/t/other/.a.parquet.crc", referenced)
    assert not _is_referenced("/t/data/a.parquet.crc", referenced)


@pytest.mark.parametrize(
    ("name", "made_at"),
    [
        (f"{BRANCH}1700000000000_0123abcdef", 1_700_000_000_000),
        (f"{BRANCH}0123abcdef", None),
        (f"{BRANCH}1700000000000_theirs!", None),
        ("theirs_1700000000000_0123", None),
    ],
)
def test_the_name_of_a_branch_tells_when_it_was_made(name: str, made_at: int | None) -> None:
    assert branch_made_at(name) == made_at


def test_a_table_that_lies_in_the_folder_of_another_ones_data_keeps_its_files(tmp_path: Path) -> None:
    """As `a.b.data` does below `a.b` in a warehouse with namespaces in namespaces."""
    schema, rows = Schema(NestedField(1, "v", LongType())), pa.RecordBatch.from_pydict({"v": pa.array([1], pa.int64())})
    with local_catalog(tmp_path) as catalog:
        outer = create(catalog, "outer", schema)
        inner = create(catalog, "inner", schema, location=f"{outer.load().location()}/data")
        publish(outer, rows)
        publish(inner, rows)

        with pytest.raises(Misconfigured, match=f"also holds metadata of the table {inner.uuid}"):
            asyncio.run(sweep(outer, SystemClock(), older_than=timedelta(0)))

        assert inner.load().scan().to_arrow().num_rows == 1


@pytest.mark.parametrize("said", ["false", "FALSE", "no", "0", "true "])
def test_whatever_iceberg_does_not_take_for_true_keeps_files_from_being_removed(tmp_path: Path, said: str) -> None:
    with local_catalog(tmp_path) as catalog:
        table = create(catalog, "t", Schema(NestedField(1, "v", LongType())), properties={"gc.enabled": said})

        with pytest.raises(Misconfigured, match=r"gc.enabled"):
            asyncio.run(sweep(table, SystemClock(), older_than=timedelta(0)))
