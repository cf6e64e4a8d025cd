"""Bloom filters and page indexes: for which columns, how large, and in which files."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import SortOrder
from pyiceberg.types import BooleanType, DoubleType, IcebergType, LongType, NestedField, StringType, UUIDType

from lakehead.errors import Misconfigured
from lakehead.lake.bloom_filters import BloomFilters
from lakehead.lake.parquet_options import bloom_filters
from lakehead.lake.stagers import target_of
from lakehead.lake.tables import identified_by, sorted_by
from tests.unit.lake.local_table import create, local_catalog, publish

KEYED = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "flag", BooleanType(), required=True),
    NestedField(3, "v", StringType()),
    identifier_field_ids=[1, 2],
)


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    with local_catalog(tmp_path) as opened:
        yield opened


def filter_bytes(path: str, column: int = 0) -> int:
    return pq.read_metadata(path).row_group(0).column(column).bloom_filter_length or 0


def test_identifier_fields_have_filters_as_large_as_their_file_needs(catalog: Catalog) -> None:
    table = create(catalog, "keyed", KEYED, sort_order=sorted_by(KEYED, ["id"]))
    schema = target_of(table.load()).schema
    sizes = []
    for rows in (1, 10_000):
        columns = [pa.array(range(rows))[::-1], pa.array([True] * rows), pa.array(["x"] * rows, pa.large_string())]
        batch = pa.RecordBatch.from_arrays(
            [c.cast(f.type) for c, f in zip(columns, schema, strict=True)], schema=schema
        )
        publish(table, batch)
        path = next(iter(table.load().inspect.files()["file_path"].to_pylist())).removeprefix("file://")
        sizes.append(filter_bytes(path))
        assert filter_bytes(path, 1) == filter_bytes(path, 2) == 0
        assert pq.read_metadata(path).row_group(0).column(0).has_column_index

    assert 0 < sizes[0] < 100
    assert 10_000 < sizes[1] < 40_000


def test_a_file_of_few_rows_is_begun_with_a_filter_for_few(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    table = create(catalog, "few", KEYED)
    schema, given = target_of(table.load()).schema, list[Any]()
    writer = pq.ParquetWriter

    def noted(*args: Any, **more: Any) -> Any:
        given.append(more["bloom_filter_options"])
        return writer(*args, **more)

    monkeypatch.setattr(pq, "ParquetWriter", noted)

    publish(table, pa.RecordBatch.from_pylist([{"id": n, "flag": True, "v": "x"} for n in range(3)], schema=schema))

    assert given == [{"id": {"ndv": 3, "fpp": 0.01}}]


def test_a_table_without_order_has_no_page_index(catalog: Catalog) -> None:
    table = create(catalog, "plain", Schema(NestedField(1, "v", LongType())))

    assert not target_of(table.load()).parquet["write_page_index"]
    assert target_of(table.load()).bloom == BloomFilters()


def test_properties_of_the_table_say_more(catalog: Catalog) -> None:
    bloom = "write.parquet.bloom-filter-"
    properties = {
        f"{bloom}enabled.column.id": "false",
        f"{bloom}enabled.column.v": "TRUE",
        f"{bloom}enabled.column.flag": "true",
        f"{bloom}enabled.column.gone": "true",
        f"{bloom}fpp.column.v": "0.05",
        f"{bloom}max-bytes": "4096",
    }
    table = create(catalog, "more", KEYED, properties=properties)

    target = target_of(table.load())

    assert target.bloom == BloomFilters(columns={"v": 0.05}, max_bytes=4096)
    assert target.bloom.options(10) == {"v": {"ndv": 10, "fpp": 0.05}}
    most = target.bloom.options(10**9)
    assert most is not None
    assert 4096 / 2 < most["v"]["ndv"] < 4096 * 8


@pytest.mark.parametrize(("name", "value"), [("fpp.column.id", "1"), ("fpp.column.id", "x"), ("max-bytes", "0")])
def test_a_property_that_is_no_number_is_refused(catalog: Catalog, name: str, value: str) -> None:
    table = create(catalog, "wrong", KEYED, properties={f"write.parquet.bloom-filter-{name}": value})

    with pytest.raises(Misconfigured, match=f"bloom-filter-{name}='{value}'"):
        bloom_filters(table.load())


@pytest.mark.parametrize(
    ("kinds", "identifies"),
    [([LongType()], True), ([StringType(), UUIDType()], True), ([LongType(), DoubleType()], False)],
    ids=str,
)
def test_keys_identify_rows_unless_one_is_a_float(kinds: list[IcebergType], *, identifies: bool) -> None:
    names = [f"k{n}" for n in range(len(kinds))]
    fields = [NestedField(n, name, kind) for n, (name, kind) in enumerate(zip(names, kinds, strict=True), 1)]
    schema = Schema(*fields, NestedField(9, "v", StringType()))

    keyed = identified_by(schema, names)

    assert keyed.identifier_field_ids == ([field.field_id for field in fields] if identifies else [])
    assert [field.required for field in keyed.fields] == [identifies] * len(kinds) + [False]
    assert isinstance(sorted_by(schema, names), SortOrder)
