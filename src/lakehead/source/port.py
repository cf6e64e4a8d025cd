"""The words of a source: tables, columns, windows, parts, and what every kind of source can be asked."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Protocol

import pyarrow as pa

from lakehead.errors import Misconfigured
from lakehead.source.errors import NotExact
from lakehead.source.settings import SourceSettings
from lakehead.state.model import Value

EVERY_REFUSED = "*"
"""Among the columns to read as text: every one that would be refused."""


@dataclass(frozen=True, slots=True)
class TableName:
    """A table as the config names it: exactly as the server has it, or in other case if that is unambiguous."""

    name: str
    schema: str | None = None
    """The schema, or MySQL's database. Default: the connection's own."""

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}" if self.schema else self.name


@dataclass(frozen=True, slots=True)
class Overrides:
    """Columns that are not to be read as their declared type says."""

    as_text: frozenset[str] = frozenset()
    """Columns that are read as the text that the server itself makes of them."""

    decimals: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Columns of numbers without a bound, or with one beyond 38 digits: precision and scale that every value must
    fit exactly."""

    def __post_init__(self) -> None:
        for name, (precision, scale) in self.decimals.items():
            if not (1 <= precision <= 38 and 0 <= scale <= precision):
                raise Misconfigured(
                    f"Column {name!r} cannot be a decimal({precision},{scale}). A precision is at most 38, and a scale "
                    "at most the precision."
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column, and how it is carried."""

    name: str
    declared: str
    """The type, as the server says it."""
    arrow: pa.DataType | None
    """What its values become, exactly; none if they are refused."""
    refused: str | None = None
    """Why it cannot be read, and what to do, as a sentence."""
    nullable: bool = True
    expression: str = ""
    """SQL that the Arrow reader asks for."""
    jdbc: str = ""
    """SQL that the JDBC reader asks for: text, where Spark's own types are not exact."""
    splits: bool = False
    """Whether ranges of its values can be told apart by what SQL and Python both hold exactly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableInfo:
    """What the server's catalogue says of a table."""

    schema: str | None
    name: str
    quoted: str
    """The name as SQL wants it."""
    columns: tuple[Column, ...]
    primary_key: tuple[str, ...] = ()
    unique_keys: tuple[tuple[str, ...], ...] = ()
    """Unique indexes without an expression or a condition; their columns may still be NULL."""
    estimated_rows: int | None = None
    estimated_bytes: int | None = None
    plain: bool = True
    """Whether it has rows of its own that the server can address (not a view)."""
    written_elsewhere: str | None = None
    """Why its rows come later than this server's transactions tell: who writes them is not among these. Or None."""

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}" if self.schema else self.name

    def column(self, name: str) -> Column:
        """The column of that name: exactly, or in other case if that is unambiguous; else `Misconfigured`."""
        exact = [column for column in self.columns if column.name == name]
        alike = exact or [column for column in self.columns if column.name.lower() == name.lower()]
        if len(alike) == 1:
            return alike[0]
        if alike:
            raise Misconfigured(f"Several columns of {self} are named like {name!r}. Write it exactly as it is there.")
        known = ", ".join(column.name for column in self.columns)
        raise Misconfigured(f"The table {self} has no column {name!r}. It has: {known}.")

    def readable(self, names: Sequence[str] | None = None) -> tuple[Column, ...]:
        """The columns to read, or `NotExact` with a sentence for every one that cannot be."""
        wanted = self.columns if names is None else tuple(self.column(name) for name in names)
        if refused := [column.refused for column in wanted if column.refused]:
            raise NotExact(f"Table {self}: {' '.join(refused)}")
        return wanted


class Nulls(Enum):
    """What becomes of rows that have no value in a window's column."""

    EXCLUDE = "exclude"
    INCLUDE = "include"
    """They are in this window, as in every other one with this rule: use it for one."""
    FAIL = "fail"
    """One such row stops the table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The rows whose value in a column lies between two bounds; a bound that is none is no bound."""

    column: str
    lower: Value | None = None
    upper: Value | None = None
    lower_included: bool = False
    upper_included: bool = True
    """So windows that follow one another share no row and lose none, whatever the ties."""
    nulls: Nulls = Nulls.EXCLUDE


@dataclass(frozen=True, slots=True)
class Filter:
    """A condition of one table's columns that was parsed and written anew. `parse_filter` makes it."""

    sql: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """Which rows and columns of a table."""

    table: TableInfo
    columns: tuple[str, ...] | None = None
    """Default: all."""
    filter: Filter | None = None
    window: Window | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPart:
    """What one task reads: everything it needs, and nothing that is large."""

    settings: SourceSettings
    table: str
    """Its name, to be said aloud."""
    columns: tuple[Column, ...]
    relation: str
    where: str
    """The condition, in SQL; empty for all rows."""
    snapshot: str | None = None
    """The exported snapshot to read in."""
    number: int = 0

    def sql(self, *, jdbc: bool = False) -> str:
        """The statement that reads it. Columns come by number: no driver has to spell a name that is hard to spell."""
        items = ", ".join(
            f"{column.jdbc if jdbc else column.expression} AS c{number}" for number, column in enumerate(self.columns)
        )
        where = f" WHERE {self.where}" if self.where else ""
        return f"SELECT {items} FROM {self.relation}{where}"  # noqa: S608 - built from quoted names and typed literals

    @property
    def schema(self) -> pa.Schema:
        """What its batches look like."""
        return schema_of(self.columns)


@dataclass(frozen=True, slots=True)
class ServerTime:
    """The server's clock."""

    utc: datetime
    """With its zone."""
    local: datetime
    """What the server writes into columns without a zone, as far as it is up to its own settings."""


@dataclass(frozen=True, slots=True)
class OpenTransactions:
    """What the server tells of transactions that have begun and may yet commit."""

    oldest: datetime | None = None
    """When the oldest began, if any is open. Of a standby, the moment up to which it has its primary's commits."""
    whose: str | None = None
    """Who has the oldest, in words that an administrator can act on."""
    unknown: str | None = None
    """Why the server does not tell of all of them, or None if it does. Only a lag protects from what it does not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a kind of source can do."""

    incremental: bool
    """Whether it has a clock and literals, so that what has changed can be read in windows."""
    snapshots: bool
    """Whether parts can share one view of the database."""
    arrow: bool = True
    """Whether tasks can read its parts as Arrow; by JDBC they always can."""
    second_digits: int = 6
    """Digits of a second that moments have where a column's type does not say how many."""
    one_writer: bool = False
    """Whether only one transaction writes at a time, so that at most one can commit late."""


class Source(Protocol):
    """A database that is open. It is used by one thread at a time."""

    settings: SourceSettings
    can: Capabilities

    @property
    def dialect(self) -> str:
        """The SQL in which filters are read and written, as `parse_filter` names it. Raises `Misconfigured` if that is
        not known: then the source takes no filter."""
        ...

    def catalogue(self, table: TableName, overrides: Overrides = ...) -> TableInfo:
        """What the table has. Refused columns are told in it, not raised."""
        ...

    def now(self) -> ServerTime:
        """The server's clock."""
        ...

    def earliest_local(self, since: datetime) -> datetime:
        """The earliest value that the server writes into columns without a zone from that moment on.

        It is the server's local time of that moment, or where the clocks will go back to if that is earlier. The
        moment has a zone, the value has none.
        """
        ...

    def open_transactions(self) -> OpenTransactions:
        """How far back a commit may still come."""
        ...

    def count(self, query: Query) -> int:
        """How many rows there are, counted."""
        ...

    def bounds(self, query: Query, column: str) -> tuple[Value, Value] | None:
        """The least and the greatest value, none if there is none."""
        ...

    def literal(self, value: Value, column: Column) -> str:
        """A value in SQL, to be compared with a column."""
        ...

    def quote(self, identifier: str) -> str:
        """A name in SQL."""
        ...

    def snapshot(self) -> AbstractContextManager[str | None]:
        """One view of the database for all parts made with it; none if the server cannot share one."""
        ...

    def parts(self, query: Query, number: int, snapshot: str | None = None) -> tuple[ReadPart, ...]:
        """The query in about so many parts of about the same size, which cover every row exactly once."""
        ...

    def close(self) -> None:
        """End the connection."""
        ...


def quoted(identifier: str, kind: str) -> str:
    """A name in the SQL of a kind of source."""
    if "\0" in identifier:
        raise Misconfigured("A name cannot have a zero character in it.")
    mark = "`" if kind == "mysql" else '"'
    return f"{mark}{identifier.replace(mark, mark * 2)}{mark}"


def schema_of(columns: Sequence[Column]) -> pa.Schema:
    """What batches of these columns look like. Nothing is required: a source may lie about NULLs, a table must not."""
    return pa.schema([pa.field(column.name, column.arrow) for column in columns])


def way_out(name: str, declared: str, why: str, *, decimal: bool = False) -> str:
    """The sentence for a column that cannot be carried."""
    more = ", or give it a decimal precision and scale that its values fit" if decimal else ""
    return f"Column {name!r} of type {declared} {why}. Name it in 'as_text' to read it as text{more}."
