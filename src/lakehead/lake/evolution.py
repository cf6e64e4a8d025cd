"""Adds columns to tables."""

from collections.abc import Iterator, Mapping

import pyarrow as pa
from pyiceberg.exceptions import CommitFailedException

from lakehead.clock import Clock
from lakehead.errors import Unavailable
from lakehead.ids import Random
from lakehead.lake.iceberg_table import IcebergTable
from lakehead.lake.retries import is_transient
from lakehead.retry import Backoff

ATTEMPTS = Backoff(attempts=10, first_seconds=0.05, cap_seconds=2.0)


def addable(table: IcebergTable, columns: Mapping[str, pa.DataType]) -> dict[str, pa.DataType]:
    """Those of the columns that a table can have, or has: `a.b` is no column beside a struct `a` that has a field `b`.

    Iceberg finds fields by such names, so it takes no second one.
    """
    schema = table.seen().schema()
    top, taken = {each.name for each in schema.fields}, set(schema.column_names)
    found: dict[str, pa.DataType] = {}
    for name, kind in columns.items():
        paths = set(_paths(name, kind))
        if name in top:
            found[name] = kind
        elif taken.isdisjoint(paths):
            found[name] = kind
            taken |= paths
    return found


def _paths(name: str, kind: pa.DataType) -> Iterator[str]:
    """The names of a column and of all fields in it, as Iceberg indexes them."""
    yield name
    if pa.types.is_map(kind):
        inside = {"key": kind.key_type, "value": kind.item_type}
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        inside = {"element": kind.value_type}
    elif pa.types.is_struct(kind):
        inside = {each.name: each.type for each in kind}
    else:
        return
    for part, inner in inside.items():
        yield from _paths(f"{name}.{part}", inner)


async def add_columns(table: IcebergTable, columns: Mapping[str, pa.DataType], clock: Clock, random: Random) -> None:
    """Add optional columns to a table, in a commit that changes no row. A column that exists already is left alone.

    Columns that are not `addable` are left out. On return the table is loaded with its new columns. Raises
    `Unavailable` if the catalog does not answer, or other writers change the table each time.
    """
    failure: Exception | None = None
    async for _ in ATTEMPTS.each_attempt(clock, random):
        there = table.load()
        known = {each.name for each in there.schema().fields}
        missing = [pa.field(name, kind) for name, kind in addable(table, columns).items() if name not in known]
        if not missing:
            return
        try:
            with there.update_schema() as update:
                update.union_by_name(pa.schema(missing))
        except CommitFailedException as error:
            failure = error
        except Exception as error:
            if not is_transient(error):
                raise
            failure = error  # it may have been applied: the next attempt sees it
    raise Unavailable(
        f"Columns could not be added to the table {table.name} ({failure}). Nothing was published; try again later."
    ) from failure
