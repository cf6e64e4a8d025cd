"""How a table's Parquet files are written, from its properties and its schema."""

from collections.abc import Mapping
from typing import Any

from pyiceberg.io.pyarrow import _get_parquet_writer_kwargs
from pyiceberg.schema import Schema
from pyiceberg.table import Table as Iceberg
from pyiceberg.types import BooleanType, NestedField

from lakehead.errors import Misconfigured
from lakehead.lake.bloom_filters import BloomFilters

_BLOOM = "write.parquet.bloom-filter-"
_ENABLED, _FPP, _MAX_BYTES = f"{_BLOOM}enabled.column.", f"{_BLOOM}fpp.column.", f"{_BLOOM}max-bytes"
_DEFAULT_FPP = 0.01


def writer_options(table: Iceberg) -> dict[str, Any]:
    """Options of PyArrow's writer. Files of a sorted table have a page index, by which readers leave out pages."""
    # PyIceberg warns of what it does not write: Bloom filters, which we write.
    options = _get_parquet_writer_kwargs({k: v for k, v in table.properties.items() if not k.startswith(_BLOOM)})
    return {**options, "write_page_index": bool(table.sort_order().fields)}


def bloom_filters(table: Iceberg) -> BloomFilters:
    """The columns with Bloom filters: the identifier fields, and what Iceberg's properties say of any column.

    Raises `Misconfigured` if a property is no number.
    """
    properties, schema = table.properties, table.schema()
    columns = {
        each.name: _number(table, f"{_FPP}{each.name}", _DEFAULT_FPP)
        for each in schema.fields
        if _has_filter(each, schema, properties)
    }
    return BloomFilters(columns=columns, max_bytes=int(_number(table, _MAX_BYTES, BloomFilters().max_bytes)))


def _has_filter(column: NestedField, schema: Schema, properties: Mapping[str, str]) -> bool:
    if not column.field_type.is_primitive or isinstance(column.field_type, BooleanType):  # of which there are none
        return False
    is_key = column.field_id in schema.identifier_field_ids
    return properties.get(f"{_ENABLED}{column.name}", str(is_key)).lower() == "true"


def _number(table: Iceberg, name: str, default: float) -> float:
    given = table.properties.get(name)
    try:
        number = default if given is None else float(given)
    except ValueError:
        number = 0
    if number <= 0 or (name.startswith(_FPP) and number >= 1):
        raise Misconfigured(
            f"The property {name}={given!r} of the table {'.'.join(table.name())} is no number that it may have. "
            "Change it with ALTER TABLE … SET TBLPROPERTIES."
        )
    return number
