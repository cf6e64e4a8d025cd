"""Adding columns to real tables of a SQLite catalog, also while others do."""

import asyncio
import threading
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StructType

from lakehead.clock import SystemClock
from lakehead.lake.catalog import open_catalog
from lakehead.lake.evolution import add_columns, addable
from lakehead.lake.iceberg_table import IcebergTable
from lakehead.lake.ledger import StoreLedger
from lakehead.lake.retries import Retries
from lakehead.spark.settings import embedded_catalog
from lakehead.storage.memory_store import MemoryStore
from tests.unit.lake.local_table import create, local_catalog

NUMBER = Schema(NestedField(1, "n", LongType(), required=False))
NESTED = Schema(
    NestedField(1, "n", LongType(), required=False),
    NestedField(2, "a", StructType(NestedField(3, "b", LongType(), required=False)), required=False),
)


def add(table: IcebergTable, **columns: pa.DataType) -> None:
    asyncio.run(add_columns(table, columns, SystemClock(), Random(1)))


def names(table: IcebergTable) -> list[str]:
    return [field.name for field in table.load().schema().fields]


def test_columns_are_added_optional_and_old_ones_left_alone(tmp_path: Path) -> None:
    with local_catalog(tmp_path) as catalog:
        table = create(catalog, "t", NUMBER)
        before = table.load().metadata.current_snapshot_id
        add(table, n=pa.string(), text=pa.string(), at=pa.timestamp("us", "UTC"))

        schema = table.seen().schema()
        assert [(field.name, str(field.field_type), field.required) for field in schema.fields] == [
            ("n", "long", False),
            ("text", "string", False),
            ("at", "timestamptz", False),
        ]
        assert table.load().metadata.current_snapshot_id == before


def test_columns_that_are_there_change_nothing(tmp_path: Path) -> None:
    with local_catalog(tmp_path) as catalog:
        table = create(catalog, "t", NUMBER)
        at = table.load().metadata_location
        add(table, n=pa.int64())
        add(table)

        assert table.load().metadata_location == at


@pytest.mark.parametrize("name", ["a.b", "a b", "M", "ß", "日本", "select", 'quote"', "a/b", "$x", "%", "1", "_"])
def test_a_column_may_have_any_name(tmp_path: Path, name: str) -> None:
    with local_catalog(tmp_path) as catalog:
        table = create(catalog, "t", NUMBER)
        add(table, **{name: pa.int64()})

        assert names(table) == ["n", name]


@pytest.mark.parametrize(
    ("columns", "added"),
    [
        ({"a.b": pa.int64(), "c": pa.int64()}, ["c"]),
        ({"x": pa.struct([("y", pa.int64())]), "x.y": pa.int64()}, ["x"]),
        ({"x.y": pa.int64(), "x": pa.struct([("y", pa.int64())])}, ["x.y"]),
        ({"l": pa.list_(pa.struct([("z", pa.int64())])), "l.element": pa.int64(), "l.element.z": pa.int64()}, ["l"]),
        ({"N": pa.int64(), "_file": pa.int64(), "A.B": pa.int64(), "": pa.int64(), "c": pa.int64()}, ["c"]),
        ({"c": pa.int64(), "C": pa.int64(), "d": pa.struct([("x", pa.int64()), ("X", pa.int64())])}, ["c"]),
        ({"m": pa.map_(pa.string(), pa.int64()), "m.value": pa.int64(), "m.other": pa.int64()}, ["m", "m.other"]),
    ],
)
def test_a_column_named_like_another_or_like_a_field_of_another_is_left_out(
    tmp_path: Path, columns: dict[str, pa.DataType], added: list[str]
) -> None:
    """Iceberg takes no table that has both, or Spark does not read it."""
    with local_catalog(tmp_path) as catalog:
        table = create(catalog, "t", NESTED)
        table.load()
        assert list(addable(table, columns)) == added
        add(table, **columns)

        assert names(table) == ["n", "a", *added]
        assert set(addable(table, columns)) == set(added)


def test_nested_columns_are_added_whole(tmp_path: Path) -> None:
    with local_catalog(tmp_path) as catalog:
        table = create(catalog, "t", NUMBER)
        add(table, a=pa.struct([("b", pa.int64()), ("c", pa.list_(pa.string()))]))

        assert str(table.load().schema().find_type("a.b")) == "long"
        assert names(table) == ["n", "a"]


@pytest.mark.slow
def test_many_who_add_columns_at_once_all_succeed(tmp_path: Path) -> None:
    errors: list[BaseException] = []
    with local_catalog(tmp_path) as catalog:
        create(catalog, "t", NUMBER)

        def adds(number: int) -> None:
            own = open_catalog("lake", embedded_catalog(tmp_path))
            ledger = StoreLedger(MemoryStore(clock=SystemClock()))
            try:
                table = IcebergTable(own, "t.t", ledger, Retries(pause=lambda _: None))
                add(table, **{f"own_{number}": pa.int64(), "shared": pa.string()})
                seen = [field.name for field in table.seen().schema().fields]
                assert {f"own_{number}", "shared"} <= set(seen)
            except BaseException as error:  # noqa: BLE001 - told in the test's thread
                errors.append(error)
            finally:
                own.close()

        threads = [threading.Thread(target=adds, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert errors == []
        table = IcebergTable(
            catalog, "t.t", StoreLedger(MemoryStore(clock=SystemClock())), Retries(pause=lambda _: None)
        )
        found = names(table)
        assert sorted(found) == ["n", *(f"own_{number}" for number in range(4)), "shared"]
        ids = [field.field_id for field in table.load().schema().fields]
        assert len(set(ids)) == len(ids)
