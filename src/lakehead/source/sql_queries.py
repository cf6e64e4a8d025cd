"""SQL queries that are the same for every source: counts, bounds, samples, and the conditions of windows."""

from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any, Protocol

import pyarrow.types as kinds

from lakehead.errors import Misconfigured
from lakehead.source.errors import NotExact
from lakehead.source.port import (
    EVERY_REFUSED,
    Column,
    Nulls,
    Overrides,
    Query,
    ReadPart,
    SourceWindow,
    TableInfo,
    TableName,
)
from lakehead.source.source_settings import SourceSettings
from lakehead.source.splits import SplitPoints, range_conditions, split_evenly
from lakehead.state.model import Value

SAMPLE = 20_000
"""About how many values are sampled to split a query."""
_VALUE_BYTES = 8
"""The overhead of a value in memory, in bytes."""
_MIN_PART_ROWS = 100
"""Parts with fewer rows are not worth a task."""
_MAX_PARTS = 10_000


class SqlConnection(Protocol):
    """What these queries need of a source."""

    @property
    def settings(self) -> SourceSettings: ...  # noqa: D102 - see Source

    def rows(self, sql: str) -> Sequence[tuple[Any, ...]]:
        """Run a statement and return all its rows."""
        ...

    def literal(self, value: Value, column: Column) -> str: ...  # noqa: D102 - see Source

    def quote(self, identifier: str) -> str: ...  # noqa: D102 - see Source

    def by_code_points(self, text: str) -> str:
        """Return a text expression that compares by code points, as Python and Spark do, whatever the collation."""
        ...

    def sample_condition(self, fraction: float) -> str:
        """Return a condition that is true for a random fraction of the rows."""
        ...


def where_of(source: SqlConnection, query: Query) -> str:
    """Return the SQL condition of a query; empty for all rows."""
    parts = [f"({query.filter.sql})"] if query.filter else []
    if query.window and (condition := _window_condition(source, query.window, query.table)):
        parts.append(f"({condition})")
    return " AND ".join(parts)


def count(source: SqlConnection, query: Query) -> int:
    """Count the rows of a query."""
    return int(source.rows(_select("count(*)", query.table, where_of(source, query)))[0][0])


def row_bytes(source: SqlConnection, query: Query, *, rows: int) -> int:
    """Return the average size of a row in bytes, at least 1, as a reader gets it.

    Only the first rows are measured, because measuring all rows of a view may take as long as reading it.
    """
    columns = query.table.readable(query.columns)
    sizes = " + ".join(f"coalesce(octet_length({column.expression}), 0)" for column in columns)
    measured = f"{_select(f'{sizes} AS size', query.table, where_of(source, query))} LIMIT {rows}"
    [(average,)] = source.rows(f"SELECT avg(size) FROM ({measured}) AS measured")  # noqa: S608 - as above
    return int(average or 0) + _VALUE_BYTES * len(columns)


def bounds(source: SqlConnection, query: Query, name: str) -> tuple[Value, Value] | None:
    """Return the lowest and highest value of a column; None if there is no value."""
    column = query.table.column(name)
    value = comparable(source, column)
    [(least, greatest)] = source.rows(_select(f"min({value}), max({value})", query.table, where_of(source, query)))
    return None if least is None else (value_of(least, column, query.table), value_of(greatest, column, query.table))


def check_nulls(source: SqlConnection, query: Query) -> None:
    """Raise `NotExact` if the window's rule is to fail and a row has NULL in its column."""
    if query.window is None or query.window.nulls is not Nulls.FAIL:
        return
    column = query.table.column(query.window.column)
    kept = f" AND ({query.filter.sql})" if query.filter else ""
    lacking = int(source.rows(_select("count(*)", query.table, f"{source.quote(column.name)} IS NULL{kept}"))[0][0])
    if lacking:
        raise NotExact(
            f"Table {query.table}: {lacking} rows have NULL in their incremental column {column.name!r}. Set a value, "
            "or set null_watermarks to include or exclude."
        )


def key_ranges(
    source: SqlConnection,
    query: Query,
    number: int,
    *,
    extra: Sequence[Column] = (),
    part_rows: int | None = None,
    largest: float | None = None,
) -> list[str]:
    """Return SQL conditions that split a query by ranges of one column, as evenly as its columns allow.

    Values are sampled, so that their distribution does not matter. Exactly one condition holds for every row, also for
    NULL and for rows that change meanwhile. With `part_rows`, parts have at most about that many rows. With `largest`,
    a query is not split if one part would be that many times larger than the average.
    """
    rows = count(source, query)
    number = min(number, max(1, rows // _MIN_PART_ROWS))
    number = min(max(number, -(-rows // part_rows)) if part_rows else number, _MAX_PARTS)
    if number == 1:
        return [""]
    best: tuple[Column, SplitPoints] | None = None
    for column in [*extra, *split_columns(query)]:
        cut = split_evenly(_sample(source, query, column, rows), number)
        if best is None or cut.largest < best[1].largest:
            best = column, cut
        if cut.is_even:
            break
    if best is None or (largest is not None and best[1].largest > largest):
        return [""]
    column, cut = best
    raw = source.quote(column.name)
    return range_conditions(raw, [source.literal(value, column) for value in cut.at])


def split_columns(query: Query) -> list[Column]:
    """Return the columns that a query can be split by, indexed ones first, without duplicates."""
    table, names = query.table, []
    if query.window:
        names.append(table.column(query.window.column).name)
    names += [*table.primary_key, *(name for key in table.unique_keys for name in key)]
    names = names or [column.name for column in table.columns]
    return [column for column in map(table.column, dict.fromkeys(names)) if column.splits]


def read_parts(
    source: SqlConnection, query: Query, conditions: Sequence[str], snapshot: str | None = None
) -> tuple[ReadPart, ...]:
    """Return one part for each condition."""
    base, columns = where_of(source, query), query.table.readable(query.columns)
    return tuple(
        ReadPart(
            settings=source.settings,
            table=str(query.table),
            columns=columns,
            relation=query.table.quoted,
            where=" AND ".join(part for part in (base, f"({condition})" if condition else "") if part),
            snapshot=snapshot,
        )
        for condition in conditions
    )


def value_of(raw: Any, column: Column, table: TableInfo) -> Value:
    """Convert a driver's value to the type of its column. Raises `NotExact` for a value that Python cannot hold."""
    kind = column.arrow
    try:
        if kind is None or kinds.is_string(kind):
            return raw if isinstance(raw, int) else raw.decode() if isinstance(raw, bytes) else str(raw)
        if kinds.is_integer(kind):
            return int(raw)
        if kinds.is_decimal(kind):
            number = Decimal(str(raw))
            return number if number.is_finite() else _invalid_bound(raw, column, table)
        if kinds.is_timestamp(kind):
            return _datetime(raw, zoned=kind.tz is not None)
        if kinds.is_date(kind):
            return raw if isinstance(raw, date) else date.fromisoformat(raw)
    except (ValueError, TypeError, InvalidOperation):
        return _invalid_bound(raw, column, table)
    raise Misconfigured(
        f"Column {column.name!r} of {table} is of type {column.declared}, which cannot be a watermark. Choose a "
        "column of numbers, dates, timestamps or text."
    )


def check_overrides(table: TableInfo, overrides: Overrides) -> TableInfo:
    """Return the table. Raises `Misconfigured` if an override names a missing column, or a decimal that is none."""
    names = {column.name: column for column in table.columns}
    for name in sorted({*overrides.as_text, *overrides.decimals} - {EVERY_REFUSED}):
        if name not in names:
            near = [other for other in names if other.lower() == name.lower()]
            hint = f"It has {near[0]!r}." if near else f"It has: {', '.join(names)}."
            raise Misconfigured(f"The table {table} has no column {name!r}, which as_text or as_decimal names. {hint}")
    for name in overrides.decimals:
        kind = names[name].arrow
        if kind is None or not kinds.is_decimal(kind):
            raise Misconfigured(
                f"Column {name!r} of {table} is of type {names[name].declared}, not a decimal. Remove it "
                "from as_decimal."
            )
    return table


def match_name(given: TableName, names: Sequence[tuple[str, str]], where: SourceSettings) -> tuple[str, str]:
    """Return schema and name of a table as the server has them. Raises `Misconfigured` if there is not exactly one."""
    exact = [(s, n) for s, n in names if n == given.name and given.schema in (None, s)]
    alike = exact or [
        (s, n)
        for s, n in names
        if n.lower() == given.name.lower() and (given.schema is None or s.lower() == given.schema.lower())
    ]
    if len(alike) == 1:
        return alike[0]
    if alike:
        raise Misconfigured(
            f"Several tables of {where} differ from {str(given)!r} only in letter case. Write the exact name."
        )
    raise Misconfigured(
        f"There is no table {str(given)!r} in {where} that this user may see. Check its name and schema, and the "
        "user's privileges."
    )


def _select(what: str, table: TableInfo, where: str) -> str:
    return f"SELECT {what} FROM {table.quoted}{f' WHERE {where}' if where else ''}"  # noqa: S608 - quoted and typed


def _window_condition(source: SqlConnection, window: SourceWindow, table: TableInfo) -> str:
    column = table.column(window.column)
    raw, value, bounded = source.quote(column.name), comparable(source, column), []
    if window.lower is not None:
        bounded.append(f"{value} {'>=' if window.lower_included else '>'} {source.literal(window.lower, column)}")
    if window.upper is not None:
        bounded.append(f"{value} {'<=' if window.upper_included else '<'} {source.literal(window.upper, column)}")
    if window.nulls is Nulls.INCLUDE:
        return f"{' AND '.join(bounded)} OR {raw} IS NULL" if bounded else ""
    return " AND ".join(bounded or [f"{raw} IS NOT NULL"])


def comparable(source: SqlConnection, column: Column) -> str:
    """Return the column as windows compare it. Text must have the same order here, in the state and in a merge."""
    raw = source.quote(column.name)
    return source.by_code_points(raw) if column.arrow is not None and kinds.is_string(column.arrow) else raw


def _sample(source: SqlConnection, query: Query, column: Column, rows: int) -> list[Value]:
    """Return a sample of the column's values, in the server's order."""
    raw = source.quote(column.name)
    sampled = [source.sample_condition(SAMPLE / rows)] if rows > 2 * SAMPLE else []
    where = " AND ".join(part for part in (where_of(source, query), f"{raw} IS NOT NULL", *sampled) if part)
    return [
        value_of(value, column, query.table)
        for (value,) in source.rows(f"{_select(raw, query.table, where)} ORDER BY {raw}")
    ]


def _datetime(raw: Any, *, zoned: bool) -> datetime:
    value = raw if isinstance(raw, datetime) else datetime.fromisoformat(raw)
    if not zoned:
        return value
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


def _invalid_bound(raw: object, column: Column, table: TableInfo) -> Value:
    raise NotExact(
        f"Table {table}: column {column.name!r} of type {column.declared} has the value {str(raw)!r}, which cannot be "
        "a bound. Fix the value, or exclude such rows by a filter."
    )
