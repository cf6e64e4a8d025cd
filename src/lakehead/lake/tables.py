"""Creates tables and namespaces."""

from collections.abc import Mapping, Sequence
from contextlib import suppress

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import TableAlreadyExistsError
from pyiceberg.io.pyarrow import _ConvertToIcebergWithoutIDs, visit_pyarrow
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, SortField, SortOrder
from pyiceberg.transforms import DayTransform, IdentityTransform
from pyiceberg.types import DoubleType, FloatType

_FIRST_PARTITION_ID = 1000

_FLOATS = (FloatType, DoubleType)

DEFAULTS = {
    "format-version": "2",
    # Every commit writes a new metadata file; the last few are enough to find expired snapshots.
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
    # PyIceberg leaves this off. Without it a table has one manifest for each landing, and every landing lists them all.
    "commit.manifest-merge.enabled": "true",
    "commit.manifest.min-count-to-merge": "20",
    # For Spark's commits. With four retries, the default, a compaction loses to landings that come one after another.
    "commit.retry.num-retries": "20",
    "commit.retry.max-wait-ms": "500",
    "write.parquet.compression-codec": "zstd",
    # Stops building a dictionary for a column of distinct values after this size, an eighth of the default.
    "write.parquet.dict-size-bytes": "131072",
}
"""Table properties that suit many small landings."""


def create_table(
    catalog: Catalog,
    name: str,
    schema: Schema | pa.Schema,
    *,
    partition: PartitionSpec = UNPARTITIONED_PARTITION_SPEC,
    order: SortOrder = UNSORTED_SORT_ORDER,
    location: str | None = None,
    properties: Mapping[str, str] | None = None,
) -> None:
    """Create the table `namespace.table` and its namespace. An existing table is not changed."""
    ensure_namespace(catalog, name.rpartition(".")[0])
    with suppress(TableAlreadyExistsError):
        catalog.create_table(name, schema, location, partition, order, {**DEFAULTS, **(properties or {})})


def with_field_ids(columns: pa.Schema) -> Schema:
    """Columns of Arrow as a schema of Iceberg, whose field ids partitions and sort orders can refer to."""
    converted = visit_pyarrow(columns, _ConvertToIcebergWithoutIDs())
    assert isinstance(converted, Schema)  # noqa: S101 - for the type checker: a schema is converted to a schema
    return assign_fresh_schema_ids(converted)


def by_day(schema: Schema, column: str | None) -> PartitionSpec:
    """Partitions by the day of a column; none without a column."""
    if column is None:
        return UNPARTITIONED_PARTITION_SPEC
    source = schema.find_field(column).field_id
    return PartitionSpec(PartitionField(source, _FIRST_PARTITION_ID, DayTransform(), f"{column}_day"))


def sorted_by(schema: Schema, columns: Sequence[str]) -> SortOrder:
    """The order by columns, ascending; none without columns, or if one is nested."""
    if not columns or not all(schema.find_field(name).field_type.is_primitive for name in columns):
        return UNSORTED_SORT_ORDER
    return SortOrder(*(SortField(schema.find_field(name).field_id, IdentityTransform()) for name in columns))


def identified_by(schema: Schema, keys: Sequence[str]) -> Schema:
    """The same schema with the keys as its identifier fields, which Iceberg requires to have a value in every row.

    Unchanged if a key cannot be one: no floats and nothing nested can.
    """
    fields = {name: schema.find_field(name) for name in keys}
    if any(not each.field_type.is_primitive or isinstance(each.field_type, _FLOATS) for each in fields.values()):
        return schema
    columns = [each.model_copy(update={"required": each.required or each.name in fields}) for each in schema.fields]
    return Schema(*columns, identifier_field_ids=[each.field_id for each in fields.values()])


def ensure_namespace(catalog: Catalog, name: str) -> None:
    """Create the namespace. Other processes may create it at the same time, which catalogs report in many ways."""
    try:
        catalog.create_namespace_if_not_exists(name)
    except Exception:
        if not catalog.namespace_exists(name):
            raise
