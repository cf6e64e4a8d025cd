"""The Iceberg tables of a source's table: made once, and then expected to fit."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError, ResolveError
from pyiceberg.io.pyarrow import _ConvertToIcebergWithoutIDs, visit_pyarrow
from pyiceberg.partitioning import PartitionField as IcebergField
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema, assign_fresh_schema_ids, promote
from pyiceberg.transforms import parse_transform
from pyiceberg.types import BinaryType, IcebergType, StringType

from lakehead.errors import Misconfigured
from lakehead.extract.rows import LOAD_DATE, raw_schema
from lakehead.extract.table import PartitionField
from lakehead.lake.tables import create_table

RAW_PARTITIONS = (PartitionField(LOAD_DATE, "identity"),)

MERGED_OFTEN = {
    "write.merge.mode": "merge-on-read",
    "write.update.mode": "merge-on-read",
    "write.delete.mode": "merge-on-read",
}
"""What a mirror is made with: a merge then writes what has changed, and no more."""

_FIRST_PARTITION_ID = 1000


@dataclass(frozen=True, slots=True)
class Place:
    """Where a table is: its name in the catalog, and where its files go."""

    name: str
    """`namespace.table`; the namespace may have several words."""

    location: str | None = None
    """Default: where the catalog puts it."""


def place_of(root: str, table: str) -> Place:
    """A table below a root, which is a namespace, or a location whose last part is one."""
    if "://" not in root:
        return Place(f"{root}.{table}")
    folder = root.rstrip("/")
    return Place(f"{folder.rpartition('/')[2]}.{table}", f"{folder}/{table.replace('.', '/')}")


def iceberg_schema(columns: pa.Schema) -> Schema:
    """The schema that raw, mirror and final have for a source's columns."""
    converted = visit_pyarrow(raw_schema(columns), _ConvertToIcebergWithoutIDs())
    assert isinstance(converted, Schema)  # noqa: S101 - a schema is what a schema becomes
    return assign_fresh_schema_ids(converted)


@dataclass(frozen=True, slots=True)
class Wanted:
    """A table that is to be there, and how it is made if it is not."""

    place: Place
    partitions: Sequence[PartitionField] = ()
    as_configured: bool = False
    """Whether a table that is there must be partitioned just so."""
    properties: Mapping[str, str] = field(default_factory=dict)


def ensure_tables(catalog: Catalog, schema: Schema, wanted: Sequence[Wanted]) -> None:
    """Make the tables that are not there. Raises `Misconfigured`, before any is made, if one cannot be as wanted."""
    specs = {each.place: _spec(schema, each.partitions, each.place.name) for each in wanted}
    missing = [each for each in wanted if not _is_there(catalog, each, schema, specs[each.place])]
    for each in missing:
        create_table(
            catalog,
            each.place.name,
            schema,
            partition=specs[each.place],
            location=each.place.location,
            properties=each.properties,
        )
        _is_there(catalog, each, schema, specs[each.place])  # if another run was faster, its table has to fit too


def _is_there(catalog: Catalog, wanted: Wanted, schema: Schema, spec: PartitionSpec) -> bool:
    """Whether there is such a table. Raises `Misconfigured` if there is, and it cannot hold these columns."""
    name = wanted.place.name
    try:
        table = catalog.load_table(name)
    except NoSuchTableError:
        return False
    _check_fits(name, schema, table.schema())
    if wanted.as_configured:
        _check_partitions(name, _told(spec, schema), _told(table.spec(), table.schema()))
    return True


def _told(spec: PartitionSpec, schema: Schema) -> list[str]:
    """A table's partitions in words, as in kind, day(at)."""
    columns = [(schema.find_field(field.source_id).name, str(field.transform)) for field in spec.fields]
    return [column if transform == "identity" else f"{transform}({column})" for column, transform in columns]


def _check_partitions(name: str, wanted: list[str], there: list[str]) -> None:
    if wanted != there:
        raise Misconfigured(
            f"The table {name} is partitioned by {', '.join(there) or 'nothing'}, and partition_by says "
            f"{', '.join(wanted)}. Change the table with ALTER TABLE, or partition_by."
        )


def _spec(schema: Schema, partitions: Sequence[PartitionField], table: str) -> PartitionSpec:
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
    """Whether what is merged from raw is what the table was made for: either may have been altered since."""
    _check_fits(name, raw, there, "raw table")


def _check_fits(name: str, wanted: Schema, there: Schema, of: str = "source") -> None:
    """Whether the columns that come are still those that the table was made for. This is where drift will be judged."""
    has = {field.name: field.field_type for field in there.fields}
    needs = {field.name: field.field_type for field in wanted.fields}
    faults = [f"the {of} has a new column {column!r}" for column in needs if column not in has]
    faults += [f"the {of} has no column {column!r} any more" for column in has if column not in needs]
    for column in needs.keys() & has.keys():
        if not _can_hold(has[column], needs[column]):
            faults.append(f"column {column!r} is {needs[column]} in the {of} and {has[column]} here")
    if faults:
        raise Misconfigured(
            f"The table {name} does not fit its {of}: {'; '.join(sorted(faults))}. Change it with ALTER TABLE, or "
            "give the table another name and load it anew."
        )


def _can_hold(column: IcebergType, values: IcebergType) -> bool:
    """Whether a column of one type can hold all values of another. Bytes and text are not each other, though Iceberg's
    readers take them for each other."""
    if column == values:
        return True
    if {type(column), type(values)} == {BinaryType, StringType}:
        return False
    try:
        promote(values, column)
    except ResolveError:
        return False
    return True
