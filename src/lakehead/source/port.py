"""The interface of a source, and its records: tables, columns, windows, queries and parts."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Protocol

import pyarrow as pa

from lakehead.errors import Misconfigured
from lakehead.source.errors import NotExact
from lakehead.source.source_settings import SourceSettings
from lakehead.state.model import Value

EVERY_REFUSED = "*"
"""Stands for every column that would be refused, in the list of columns to read as text."""


@dataclass(frozen=True, slots=True)
class TableName:
    """The name of a table: exactly as on the server, or in other letter case if that is unambiguous."""

    name: str
    schema: str | None = None
    """The schema, or MySQL's database. Default: that of the connection."""

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}" if self.schema else self.name


@dataclass(frozen=True, slots=True)
class Overrides:
    """Columns that are read as another type than declared."""

    as_text: frozenset[str] = frozenset()
    """Columns that are read as text, as the server converts them."""

    decimals: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """For unbounded numeric columns or those with more than 38 digits: the precision and scale that every value must
    fit exactly."""

    def __post_init__(self) -> None:
        for name, (precision, scale) in self.decimals.items():
            if not (1 <= precision <= 38 and 0 <= scale <= precision):
                raise Misconfigured(
                    f"Column {name!r} cannot be a decimal({precision},{scale}). The precision is at most 38, and the "
                    "scale at most the precision."
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column, and how it is read."""

    name: str
    declared: str
    """The declared type, as the server writes it."""
    arrow: pa.DataType | None
    """The type of its values in Arrow; None if the column is refused."""
    refused: str | None = None
    """Why the column is refused, and what to do."""
    nullable: bool = True
    expression: str = ""
    """The SQL expression that the Arrow reader selects."""
    jdbc: str = ""
    """The SQL expression that the JDBC reader selects: text, where Spark's own types are not exact."""
    splits: bool = False
    """Whether a read can be split by ranges of this column: SQL and Python hold its values exactly."""
    number: int | None = None
    """Its permanent number in the table, which it keeps when it is renamed; None if the server has none."""
    secret: bool = False
    """Whether its values must not be shown in messages."""


@dataclass(frozen=True, slots=True)
class ColumnNames:
    """The names of a table's columns, found as a configuration spells them."""

    table: str
    """The table, for messages."""

    names: tuple[str, ...]
    qualifier: str
    """What may stand before a column, as in `orders.id`."""

    def find(self, name: str) -> str:
        """Return a column's exact name, given in other letter case if that is unambiguous. Raises `Misconfigured`."""
        alike = [name] if name in self.names else [each for each in self.names if each.lower() == name.lower()]
        if len(alike) == 1:
            return alike[0]
        if alike:
            raise Misconfigured(
                f"Several columns of {self.table} differ from {name!r} only in letter case. Write the exact name."
            )
        raise Misconfigured(f"The table {self.table} has no column {name!r}. It has: {', '.join(self.names)}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableInfo:
    """The description of a table in the server's catalog."""

    schema: str | None
    name: str
    quoted: str
    """The quoted name, with its schema."""
    columns: tuple[Column, ...]
    primary_key: tuple[str, ...] = ()
    unique_keys: tuple[tuple[str, ...], ...] = ()
    """Unique indexes without expressions and conditions; their columns may be NULL."""
    estimated_rows: int | None = None
    estimated_bytes: int | None = None
    has_row_ids: bool = True
    """Whether the server addresses its rows (by block or row id). False for views."""
    identity: str | None = None
    """The server's permanent id of the table; None if it has none."""
    written_elsewhere: str | None = None
    """Why its rows are not written by transactions of this server, as for a foreign table; None if they are."""

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}" if self.schema else self.name

    def column(self, name: str) -> Column:
        """Return a column by its name, in other letter case if that is unambiguous. Raises `Misconfigured`."""
        exact = self.column_names.find(name)
        return next(column for column in self.columns if column.name == exact)

    @property
    def column_names(self) -> ColumnNames:
        """The names of its columns."""
        return ColumnNames(str(self), tuple(column.name for column in self.columns), self.name)

    def readable(self, names: Sequence[str] | None = None) -> tuple[Column, ...]:
        """Return the columns to read (default: all). Raises `NotExact` if some of them are refused."""
        columns = self.columns if names is None else tuple(self.column(name) for name in names)
        if refused := [column.refused for column in columns if column.refused]:
            raise NotExact(f"Table {self}: {' '.join(refused)}")
        return columns


class Nulls(Enum):
    """What to do with rows that have NULL in a window's column."""

    EXCLUDE = "exclude"
    INCLUDE = "include"
    """They belong to this window. Use it for only one window of a plan."""
    FAIL = "fail"
    """Raise an error if there is such a row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceWindow:
    """The rows whose value in a column is between two bounds. None is no bound."""

    column: str
    lower: Value | None = None
    upper: Value | None = None
    lower_included: bool = False
    upper_included: bool = True
    """By default a window excludes its lower bound and includes its upper one, so that consecutive windows neither
    share nor lose a row."""
    nulls: Nulls = Nulls.EXCLUDE


@dataclass(frozen=True, slots=True)
class Filter:
    """A condition over one table's columns that was parsed and written again. `parse_filter` makes it."""

    sql: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """Which rows and columns of a table to read."""

    table: TableInfo
    columns: tuple[str, ...] | None = None
    """Default: all."""
    filter: Filter | None = None
    window: SourceWindow | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPart:
    """What one task reads. It is small and can be pickled."""

    settings: SourceSettings
    table: str
    """The name of the table, for messages."""
    columns: tuple[Column, ...]
    relation: str
    where: str
    """The SQL condition; empty for all rows."""
    snapshot: str | None = None
    """The exported snapshot to read in, if any."""

    def sql(self, *, jdbc: bool = False) -> str:
        """Return the SELECT statement. Columns are named c0, c1, …, which every driver can return."""
        items = ", ".join(
            f"{column.jdbc if jdbc else column.expression} AS c{number}" for number, column in enumerate(self.columns)
        )
        where = f" WHERE {self.where}" if self.where else ""
        return f"SELECT {items} FROM {self.relation}{where}"  # noqa: S608 - built from quoted names and typed literals

    @property
    def schema(self) -> pa.Schema:
        """The schema of its record batches."""
        return schema_of(self.columns)


@dataclass(frozen=True, slots=True)
class ServerTime:
    """The server's current time."""

    utc: datetime
    """With time zone."""
    local: datetime
    """The server's local time, which it writes into columns without time zone."""


@dataclass(frozen=True, slots=True)
class OpenTransactions:
    """Transactions that have started and may still commit, as far as the server reports them."""

    oldest: datetime | None = None
    """When the oldest started, if one is open. For a standby: up to when it has replayed its primary's commits."""
    whose: str | None = None
    """Who has the oldest one: user, program and process, for an administrator."""
    unknown: str | None = None
    """Why the server does not report all of them; None if it does. Only a lag protects against unreported ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceCapabilities:
    """What a source can do."""

    incremental: bool
    """Whether it can be read in windows, for incremental loads."""
    arrow: bool = True
    """Whether parts can be read as Arrow; by JDBC they always can."""
    second_digits: int = 6
    """Fractional digits of a second in timestamps whose type does not give a precision."""
    one_writer: bool = False
    """Whether only one transaction writes at a time, so that at most one can commit late."""


class Source(Protocol):
    """An open connection to a database. Not thread-safe."""

    settings: SourceSettings
    capabilities: SourceCapabilities

    @property
    def sql_dialect(self) -> str:
        """The name in sqlglot of the SQL in which filters are parsed and written. Raises `Misconfigured` if it is
        unknown: then the source takes no filter."""
        ...

    def describe_table(self, table: TableName, overrides: Overrides = ...) -> TableInfo:
        """Return the columns and keys of a table. Columns that cannot be read are marked as refused."""
        ...

    def now(self) -> ServerTime:
        """Return the server's current time."""
        ...

    def earliest_local(self, since: datetime) -> datetime:
        """Return the earliest local time that the server's clock will show from an instant on.

        This is its local time at that instant, or an earlier one if clocks are about to be put back. The instant has a
        time zone, the result has none.
        """
        ...

    def open_transactions(self) -> OpenTransactions:
        """Return the transactions that may still commit."""
        ...

    def count(self, query: Query) -> int:
        """Count the rows."""
        ...

    def bounds(self, query: Query, column: str) -> tuple[Value, Value] | None:
        """Return the lowest and highest value of a column; None if there is no value."""
        ...

    def literal(self, value: Value, column: Column) -> str:
        """Return a value as an SQL literal, to compare it with a column."""
        ...

    def quote(self, identifier: str) -> str:
        """Return a quoted name."""
        ...

    def snapshot(self) -> AbstractContextManager[str | None]:
        """Export a snapshot for all parts of a read, valid within the `with`; None if the server has none."""
        ...

    def parts(self, query: Query, number: int, snapshot: str | None = None) -> tuple[ReadPart, ...]:
        """Split a query into about `number` parts of similar size, which cover every row exactly once."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...


def quote_identifier(identifier: str, mark: str = '"') -> str:
    """Return a name in quotation marks."""
    if "\0" in identifier:
        raise Misconfigured(f"The name {identifier!r} contains a NUL character. Rename it in the source.")
    return f"{mark}{identifier.replace(mark, mark * 2)}{mark}"


def schema_of(columns: Sequence[Column]) -> pa.Schema:
    """Return the Arrow schema of columns. All are nullable, because a source may declare NOT NULL wrongly."""
    return pa.schema([pa.field(column.name, column.arrow) for column in columns])


def refusal(name: str, declared: str, why: str, *, decimal: bool = False) -> str:
    """Return the message for a column that cannot be read exactly."""
    more = ", or set its precision and scale in 'as_decimal'" if decimal else ""
    return f"Column {name!r} of type {declared} {why}. Add it to 'as_text' to read it as text{more}."
