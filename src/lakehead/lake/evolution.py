"""Adds columns to tables, and widens them: what is there keeps its field ids and its values."""

from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table as Iceberg

from lakehead.clock import Clock
from lakehead.errors import Unavailable
from lakehead.ids import Random
from lakehead.lake.column_names import MOST_FIELDS, folded, is_usable
from lakehead.lake.column_paths import is_ambiguous, paths
from lakehead.lake.iceberg_table import IcebergTable
from lakehead.lake.retries import is_transient
from lakehead.retry import Backoff

ATTEMPTS = Backoff(attempts=10, first_seconds=0.05, cap_seconds=2.0)


def addable(table: IcebergTable, columns: Mapping[str, pa.DataType]) -> dict[str, pa.DataType]:
    """Those of the columns that a table can have, or has.

    It has no second one whose name differs in case alone, none by a name of Iceberg's own columns, and no `a.b` beside
    a struct `a` that has a field `b`: Spark could not read the table.
    """
    schema = table.seen().schema()
    top, taken = {each.name for each in schema.fields}, {folded(name) for name in schema.column_names}
    there = {name: kind for name, kind in columns.items() if name in top}
    new: dict[str, pa.DataType] = {}
    for name, kind in columns.items():
        if name in top or not is_usable(name) or is_ambiguous(kind):
            continue
        found = {folded(path) for path in paths(name, kind)}
        if taken.isdisjoint(found):
            new[name] = kind
            taken |= found
    return there | new


def unless_too_many(table: IcebergTable, columns: Mapping[str, pa.DataType], most: int) -> Mapping[str, pa.DataType]:
    """The columns, or none of them if a table would have more than so many, or too many fields inside of them."""
    schema = table.seen().schema()
    there = {each.name for each in schema.fields}
    new = {name: kind for name, kind in columns.items() if name not in there}
    fields = len(schema.column_names) + sum(1 for name, kind in new.items() for _ in paths(name, kind))
    return {} if len(there) + len(new) > most or fields > MOST_FIELDS else columns


async def add_columns(table: IcebergTable, columns: Mapping[str, pa.DataType], clock: Clock, random: Random) -> None:
    """Add optional columns to a table, in a commit that changes no row. A column that exists already is left alone.

    Columns that are not `addable` are left out. On return the table is loaded with its new columns. Raises
    `Unavailable` if the catalog does not answer, or other writers change the table each time.
    """

    def missing(there: Iceberg) -> list[pa.Field]:
        known = {each.name for each in there.schema().fields}
        return [pa.field(name, kind) for name, kind in addable(table, columns).items() if name not in known]

    await evolve_columns(table, missing, clock, random)


async def evolve_columns(
    table: IcebergTable, growth: Callable[[Iceberg], Sequence[pa.Field]], clock: Clock, random: Random
) -> None:
    """Add columns to a table as optional ones, widen others and make others optional, in one commit.

    It changes no row. `growth` returns the columns as they are to be, for the table as it is then; none if it is done.
    On return the table is loaded with its columns. Raises as `add_columns` does.
    """
    failure: Exception | None = None
    async for _ in ATTEMPTS.each_attempt(clock, random):
        there = table.load()
        columns = growth(there)
        if not columns:
            return
        try:
            with there.update_schema() as update:
                update.union_by_name(pa.schema(columns))
        except CommitFailedException as error:
            failure = error
        except Exception as error:
            if not is_transient(error):
                raise
            failure = error  # it may have been applied: the next attempt sees it
    raise Unavailable(
        f"Columns of the table {table.name} could not be added or widened ({failure}). Nothing was published; try "
        "again later."
    ) from failure
