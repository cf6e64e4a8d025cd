"""Mirrors that were merged in Arrow, read by engines that are not ours: they see the same rows."""

from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from random import Random

import duckdb
import polars as pl
import pyarrow as pa
import pytest

from lakehead.lake.iceberg_table import IcebergTable
from tests.integration.merge_support import LONG, MOVING, TEXT, Mirrors, NoFallback, Shape
from tests.integration.test_merge_lane import unique
from tests.lakehouse import Lakehouse
from tests.support.spark import shared_session

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def lakehouse(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lakehouse]:
    folder = tmp_path_factory.mktemp("readers")
    settings = Lakehouse.settings(folder)
    lakehouse = Lakehouse(folder, shared_session(settings), settings.catalogs)
    yield lakehouse
    lakehouse.close()


@pytest.fixture(autouse=True)
def planner(monkeypatch: pytest.MonkeyPatch) -> None:
    """Polars plans with PyIceberg and reads data and delete files itself; its own planner is another package."""
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")


def by_polars(table: IcebergTable) -> pa.Table:
    return pl.scan_iceberg(table.load()).collect().to_arrow()


def by_duckdb(table: IcebergTable) -> pa.Table:
    """DuckDB with the extensions of its wheels: nothing is fetched."""
    location = table.load().metadata_location.removeprefix("file://")
    with duckdb.connect(config={"autoinstall_known_extensions": False, "autoload_known_extensions": False}) as session:
        for name in ("avro", "iceberg"):
            spec = find_spec(f"duckdb_extension_{name}")
            assert spec is not None
            assert spec.origin is not None
            [extension] = Path(spec.origin).parent.rglob("*.duckdb_extension")
            session.load_extension(str(extension))
        session.execute("SET TimeZone = 'UTC'")
        return session.execute("SELECT * FROM iceberg_scan(?)", [location]).to_arrow_table()


def rows_of(found: pa.Table, columns: Sequence[str]) -> list[str]:
    return sorted(map(repr, found.select(list(columns)).to_pylist()))


@pytest.mark.parametrize("read", [by_polars, by_duckdb], ids=["polars", "duckdb"])
@pytest.mark.parametrize("shape", [LONG, TEXT, MOVING], ids=lambda shape: shape.name)
def test_another_engine_reads_what_was_merged_in_arrow(
    lakehouse: Lakehouse, shape: Shape, read: Callable[[IcebergTable], pa.Table]
) -> None:
    there = Mirrors(lakehouse, shape, Random(1), f"read_{shape.name}_{read.__name__}", keys=400)
    there.start(unique(there, 0, 400))
    for _ in range(3):
        there.land(there.rows(30))
        there.merge_both(NoFallback())

    table = there.lane.load()
    expected = table.scan().to_arrow()
    deletes = [task.delete_files for task in table.scan().plan_files()]
    assert any(deletes), "the mirror has files with rows that are deleted by position"
    assert expected.num_rows > 0
    columns = [name for name in expected.schema.names if not pa.types.is_timestamp(expected.schema.field(name).type)]
    assert rows_of(read(there.lane), columns) == rows_of(expected, columns)
