"""What is said of a table whose metadata grows."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from lakehead.lake.iceberg_table import IcebergTable
from lakehead.maintain import growth
from lakehead.maintain.growth import growth_of
from tests.unit.lake.local_table import create, local_catalog, publish

SCHEMA = Schema(NestedField(1, "v", LongType()))
FIT = {
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "2",
    "commit.manifest-merge.enabled": "true",
    "commit.manifest.min-count-to-merge": "2",
}


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let four be many: a thousand commits take a minute."""
    monkeypatch.setattr(growth, "MANY_SNAPSHOTS", 4)
    monkeypatch.setattr(growth, "MANY_MANIFESTS", 4)


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., IcebergTable]]:
    with local_catalog(tmp_path) as catalog:

        def made(landings: int, **properties: str) -> IcebergTable:
            table = create(catalog, "orders", SCHEMA, properties=properties)
            for value in range(landings):
                publish(table, pa.RecordBatch.from_pydict({"v": pa.array([value], pa.int64())}))
            return table

        yield made


@pytest.mark.usefixtures("few")
def test_a_table_that_is_kept_small_needs_nothing(make: Callable[..., IcebergTable]) -> None:
    found = growth_of(make(3, **FIT).load(), catalog="lake")

    assert (found.snapshots, found.metadata_files, found.advice) == (3, 3, ())
    assert found.metadata_bytes > 1_000


@pytest.mark.usefixtures("few")
def test_snapshots_that_nobody_expires_are_told_with_what_they_cost(make: Callable[..., IcebergTable]) -> None:
    table = make(4, **FIT).load()

    (advice,) = growth_of(table, catalog="lake").advice

    size = len(table.io.new_input(table.metadata_location))
    assert advice.startswith(f"It has 4 snapshots, and each commit writes {size} bytes of metadata.")
    assert advice.endswith("lakehead maintain expire t.orders --state URL --ledger URL")


@pytest.mark.usefixtures("few")
def test_metadata_files_that_nothing_deletes_and_manifests_that_nothing_merges_are_told(
    make: Callable[..., IcebergTable],
) -> None:
    left = {"write.metadata.previous-versions-max": "2"}

    _, files, manifests = growth_of(make(4, **left).load(), catalog="lake").advice

    assert "ALTER TABLE lake.t.orders SET TBLPROPERTIES ('write.metadata.delete-after-commit.enabled' = 'true'" in files
    assert files.endswith("lakehead maintain sweep t.orders")
    assert "reads its 4 manifests" in manifests
    assert "'commit.manifest-merge.enabled' = 'true'" in manifests
