"""The Iceberg tables of a source's table: created once, and checked against the source's columns later."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import pyarrow as pa
from pyiceberg.io.pyarrow import _ConvertToIcebergWithoutIDs, schema_to_pyarrow, visit_pyarrow
from pyiceberg.partitioning import PartitionField as IcebergField
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.table import Table as Iceberg
from pyiceberg.transforms import parse_transform
from pyiceberg.types import NestedField

from lakehead.errors import Misconfigured
from lakehead.extract.evolving import can_hold, growth
from lakehead.extract.raw_rows import LOAD_DATE, raw_schema
from lakehead.extract.table_settings import PartitionField
from lakehead.lake.evolution import evolve_columns
from lakehead.lake.iceberg_landing import IcebergLanding
from lakehead.lake.iceberg_table import IcebergTable
from lakehead.lake.tables import create_table, identified_by, sorted_by
from lakehead.spark.names import quoted, readable

RAW_PARTITIONS = (PartitionField(LOAD_DATE, "identity"),)

_FIRST_PARTITION_ID = 1000


@dataclass(frozen=True, slots=True)
class Place:
    """A table's name in the catalog, and the location of its files."""

    name: str
    """`namespace.table`; the namespace may have several parts."""

    location: str | None = None
    """Default: chosen by the catalog."""


def place_of(root: str, table: str) -> Place:
    """A table below a root, which is a namespace, or a URL whose last part is the namespace."""
    if "://" not in root:
        return Place(f"{root}.{table}")
    folder = root.rstrip("/")
    return Place(f"{folder.rpartition('/')[2]}.{table}", f"{folder}/{table.replace('.', '/')}")


def iceberg_schema(columns: pa.Schema) -> Schema:
    """The schema of the raw, mirror and final tables for a source's columns."""
    converted = visit_pyarrow(raw_schema(columns), _ConvertToIcebergWithoutIDs())
    assert isinstance(converted, Schema)  # noqa: S101 - for the type checker: a schema is converted to a schema
    return assign_fresh_schema_ids(converted)


@dataclass(frozen=True, slots=True)
class TableSpec:
    """A table that must exist, and how to create it if it does not."""

    place: Place
    partitions: Sequence[PartitionField] = ()
    as_configured: bool = False
    """Whether an existing table must have exactly these partitions."""
    properties: Mapping[str, str] = field(default_factory=dict)
    keys: Sequence[str] = ()
    """The columns by which a new table's files are sorted."""
    null_keys: bool = False
    """Whether rows may have NULL in their key. If not, the keys of a new table are its identifier fields."""


def ensure_tables(
    landing: IcebergLanding, schema: Schema, specs: Sequence[tuple[TableSpec, IcebergTable | None]]
) -> list[IcebergTable]:
    """Create the tables that do not exist, let the others grow to hold the schema, and return all of them, opened.

    The first is raw, which the others follow. Raises `Misconfigured` if one cannot be as specified, before any is
    created or grows. If it is interrupted between two tables, calling it again does the rest.
    """
    partitions = [_partition_spec(schema, spec.partitions, spec.place.name) for spec, _ in specs]
    tables = [table or landing.find(spec.place.name) for spec, table in specs]
    raw = tables[0]
    for (spec, _), table, partition in zip(specs, tables, partitions, strict=True):
        if table is not None:
            followed = raw.seen() if raw is not None and table is not raw else None
            _check(table, spec, schema, partition, growth(table.seen(), schema, followed))
    for table in tables:
        if table is not None:
            evolve(landing, table, schema, raw if table is not raw else None)
    for number, ((spec, _), partition) in enumerate(zip(specs, partitions, strict=True)):
        if tables[number] is None:
            made = tables[number] = _make(landing, spec, schema, partition)
            _check(made, spec, schema, partition)  # if another run has created it first, that one must match too
    return [table for table in tables if table is not None]


def evolve(landing: IcebergLanding, table: IcebergTable, schema: Schema, raw: IcebergTable | None = None) -> None:
    """Let a table grow to hold a schema, by field id and without changing a row; with `raw`, as one that follows it."""

    def needed(there: Iceberg) -> Sequence[pa.Field]:
        fields = growth(there, schema, raw.seen() if raw else None)
        return list(schema_to_pyarrow(Schema(*fields), include_field_ids=False)) if fields else []

    if needed(table.seen()):
        asyncio.run(evolve_columns(table, needed, landing.run.clock, landing.run.random))


def _make(landing: IcebergLanding, spec: TableSpec, schema: Schema, partition: PartitionSpec) -> IcebergTable:
    place, order = spec.place, sorted_by(schema, spec.keys)
    if not spec.null_keys:
        schema = identified_by(schema, spec.keys)
    create = partial(
        create_table, partition=partition, order=order, location=place.location, properties=spec.properties
    )
    landing.retries.call(f"The catalog {landing.catalog.name}", lambda: create(landing.catalog, place.name, schema))
    return IcebergTable(landing.catalog, place.name, landing.ledger, landing.retries)


def _check(
    table: IcebergTable,
    spec: TableSpec,
    schema: Schema,
    partition: PartitionSpec,
    grows: Sequence[NestedField] = (),
) -> None:
    """Raise `Misconfigured` if an existing table cannot hold these columns once it has grown, or is partitioned
    otherwise."""
    there = table.seen()
    grown = {field.name: field for field in (*there.schema().fields, *grows)}
    _check_fits(table.name, schema, Schema(*grown.values()))
    if spec.null_keys:
        _check_may_be_null(table, spec.keys)
    if spec.as_configured:
        _check_partitions(table.name, _described(partition, schema), _described(there.spec(), there.schema()))


def _check_may_be_null(table: IcebergTable, keys: Sequence[str]) -> None:
    schema = table.seen().schema()
    if required := [key for key in keys if schema.find_field(key).required]:
        name = readable(table.catalog.name, *table.name.split("."))
        statements = [f"ALTER TABLE {name} DROP IDENTIFIER FIELDS {', '.join(map(quoted, required))}"]
        statements += [f"ALTER TABLE {name} ALTER COLUMN {quoted(key)} DROP NOT NULL" for key in required]
        raise Misconfigured(
            f"The table {table.name} requires a value in its key ({', '.join(required)}), and null_keys says that rows "
            f"without one are merged. Change it: {'; '.join(statements)}."
        )


def _described(spec: PartitionSpec, schema: Schema) -> list[str]:
    """A table's partition fields as text, for example `kind` and `day(at)`."""
    columns = [(schema.find_field(field.source_id).name, str(field.transform)) for field in spec.fields]
    return [column if transform == "identity" else f"{transform}({column})" for column, transform in columns]


def _check_partitions(name: str, wanted: list[str], there: list[str]) -> None:
    if wanted != there:
        raise Misconfigured(
            f"The table {name} is partitioned by {', '.join(there) or 'nothing'}, and partition_by says "
            f"{', '.join(wanted)}. Change the table with ALTER TABLE, or change partition_by."
        )


def _partition_spec(schema: Schema, partitions: Sequence[PartitionField], table: str) -> PartitionSpec:
    ids = {field.name: field.field_id for field in schema.fields}
    exact = {name.lower(): name for name in ids}
    fields = []
    for number, wanted in enumerate(partitions):
        column = wanted.column if wanted.column in ids else exact.get(wanted.column.lower())
        if column is None:
            raise Misconfigured(f"The table {table} cannot be partitioned by {wanted.column!r}: it has no such column.")
        transform = wanted.transform if wanted.size is None else f"{wanted.transform}[{wanted.size}]"
        parsed = parse_transform(transform)
        kind = schema.find_type(ids[column])
        if not parsed.can_transform(kind):
            raise Misconfigured(f"The table {table} cannot be partitioned by {transform} of {column!r}, a {kind}.")
        name = column if wanted.transform == "identity" else f"{column}_{wanted.transform}"
        fields.append(IcebergField(ids[column], _FIRST_PARTITION_ID + number, parsed, name))
    return PartitionSpec(*fields)


def check_same_columns(name: str, raw: Schema, there: Schema) -> None:
    """Raise `Misconfigured` if raw's columns do not match those of the table: either may have been altered."""
    _check_fits(name, raw, there, "raw table")


def _check_fits(name: str, wanted: Schema, there: Schema, of: str = "source") -> None:
    """Raise `Misconfigured` if a table's columns, or their types, are others: somebody has altered it."""
    has = {field.name: field.field_type for field in there.fields}
    needs = {field.name: field.field_type for field in wanted.fields}
    faults = [f"the {of} has a new column {column!r}" for column in needs if column not in has]
    faults += [f"the {of} has no column {column!r} any more" for column in has if column not in needs]
    for column in needs.keys() & has.keys():
        if not can_hold(has[column], needs[column]):
            faults.append(f"column {column!r} is {needs[column]} in the {of} and {has[column]} here")
    if faults:
        raise Misconfigured(
            f"The table {name} does not match its {of}: {'; '.join(sorted(faults))}. Change it with ALTER TABLE, or "
            "give the table another name and load it again."
        )
