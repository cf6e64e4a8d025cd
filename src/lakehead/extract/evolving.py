"""What the tables of a source's table need to hold its columns: raw is made to, and what readers read follows raw."""

from pyiceberg.exceptions import ResolveError
from pyiceberg.schema import Schema, promote
from pyiceberg.table import Table as Iceberg
from pyiceberg.types import BinaryType, IcebergType, NestedField, StringType


def growth(table: Iceberg, wanted: Schema, raw: Iceberg | None = None) -> tuple[NestedField, ...]:
    """The columns that a table lacks, or has with a narrower type, or as required ones that may be NULL now.

    With `raw` the table is one that follows raw. Columns that it once had are not among those that it lacks: somebody
    has dropped them, and their values are gone. Its identifier fields stay required: it has no row without a key.
    """
    has = {field.name: field for field in table.schema().fields}
    identifiers = table.schema().identifier_field_ids
    found = []
    for each in wanted.fields:
        there = has.get(each.name)
        is_key = there is not None and there.field_id in identifiers
        field = each.model_copy(update={"required": True}) if is_key else each
        if there is None:
            if raw is None or _is_new(field.name, raw, table):
                found.append(field)
        elif (there.required and not field.required) or (
            not can_hold(there.field_type, field.field_type) and can_hold(field.field_type, there.field_type)
        ):
            found.append(field)
    return tuple(found)


def _is_new(name: str, raw: Iceberg, follower: Iceberg) -> bool:
    """Whether raw got a column, or is to get it, after the tables that follow it had theirs.

    A table's last field id only grows, and raw and its followers are made and grow alike.
    """
    ids = {field.name: field.field_id for field in raw.schema().fields}
    return name not in ids or ids[name] > follower.metadata.last_column_id


def can_hold(column: IcebergType, values: IcebergType) -> bool:
    """Whether a column of one type can hold all values of another.

    Binary and string are kept apart, although Iceberg's promotion treats them as the same.
    """
    if column == values:
        return True
    if {type(column), type(values)} == {BinaryType, StringType}:
        return False
    try:
        promote(values, column)
    except ResolveError:
        return False
    return True
