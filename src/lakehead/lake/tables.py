"""Tables as Lakehead makes them."""

from collections.abc import Mapping
from contextlib import suppress

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import TableAlreadyExistsError
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, SortOrder

DEFAULTS = {
    "format-version": "2",
    # Every commit writes the table's metadata anew; the last few are enough to look back.
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
    # PyIceberg leaves this off. Without it a table has one manifest for each landing, and every landing lists them all.
    "commit.manifest-merge.enabled": "true",
    "commit.manifest.min-count-to-merge": "20",
    "write.parquet.compression-codec": "zstd",
    # A dictionary of a column whose values are all different is given up after this, not after eight times as much.
    "write.parquet.dict-size-bytes": "131072",
}
"""The properties of a table that many small landings reach."""


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
    """Make the table `namespace.table`, and its namespace, unless it is there: then it stays as it is."""
    ensure_namespace(catalog, name.rpartition(".")[0])
    with suppress(TableAlreadyExistsError):
        catalog.create_table(name, schema, location, partition, order, {**DEFAULTS, **(properties or {})})


def ensure_namespace(catalog: Catalog, name: str) -> None:
    """Make the namespace, though others make it at this very moment: catalogs say that in many ways."""
    try:
        catalog.create_namespace_if_not_exists(name)
    except Exception:
        if not catalog.namespace_exists(name):
            raise
