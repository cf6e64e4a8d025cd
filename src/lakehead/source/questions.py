"""Questions that every SQL source is asked in the same words, and the conditions that they share."""

from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any, Protocol

import pyarrow.types as kinds

from lakehead.errors import Misconfigured
from lakehead.source.errors import NotExact
from lakehead.source.port import EVERY_REFUSED, Column, Nulls, Overrides, Query, ReadPart, TableInfo, TableName, Window
from lakehead.source.settings import SourceSettings
from lakehead.source.splits import Cut, cut_evenly, ranges
from lakehead.state.model import Value

SAMPLE = 20_000
"""About how many values show where a query is cut."""
_VALUE_BYTES = 8
"""What a value takes beside its own bytes."""
_PER_PART = 100
"""Below so many rows a part is not worth a task."""
_PARTS = 10_000


class Asker(Protocol):
    """What a source answers these questions with."""

    @property
    def settings(self) -> SourceSettings: ...  # noqa: D102 - see Source

    def rows(self, sql: str) -> Sequence[tuple[Any, ...]]:
        """All rows of a statement."""
        ...

    def literal(self, value: Value, column: Column) -> str: ...  # noqa: D102 - see Source

    def quote(self, identifier: str) -> str: ...  # noqa: D102 - see Source

    def by_code_points(self, text: str) -> str:
        """An expression of text that compares as Python and Spark compare text, whatever its collation is."""
        ...

    def chance(self, share: float) -> str:
        """A condition that is true for about such a share of the rows, by chance."""
        ...


def where_of(source: Asker, query: Query) -> str:
    """The query's condition, in SQL; empty for all rows."""
    parts = [f"({query.filter.sql})"] if query.filter else []
    if query.window and (inside := _inside(source, query.window, query.table)):
        parts.append(f"({inside})")
    return " AND ".join(parts)


def count(source: Asker, query: Query) -> int:
    """How many rows the query has."""
    return int(source.rows(_select("count(*)", query.table, where_of(source, query)))[0][0])


def row_bytes(source: Asker, query: Query, *, rows: int) -> int:
    """How many bytes a row of the query has on average, as a reader gets it; at least 1. So many rows are looked at, as
    the server gives them: all of a view may take as long as reading it."""
    columns = query.table.readable(query.columns)
    sizes = " + ".join(f"coalesce(octet_length({column.expression}), 0)" for column in columns)
    measured = f"{_select(f'{sizes} AS size', query.table, where_of(source, query))} LIMIT {rows}"
    [(average,)] = source.rows(f"SELECT avg(size) FROM ({measured}) AS measured")  # noqa: S608 - as above
    return int(average or 0) + _VALUE_BYTES * len(columns)


def bounds(source: Asker, query: Query, name: str) -> tuple[Value, Value] | None:
    """The least and the greatest value of a column, none if it has none."""
    column = query.table.column(name)
    value = _comparable(source, column)
    [(least, greatest)] = source.rows(_select(f"min({value}), max({value})", query.table, where_of(source, query)))
    return None if least is None else (value_of(least, column, query.table), value_of(greatest, column, query.table))


def check_nulls(source: Asker, query: Query) -> None:
    """Raise `NotExact` if the window's rule is to fail and a row has no value in its column."""
    if query.window is None or query.window.nulls is not Nulls.FAIL:
        return
    column = query.table.column(query.window.column)
    kept = f" AND ({query.filter.sql})" if query.filter else ""
    lacking = int(source.rows(_select("count(*)", query.table, f"{source.quote(column.name)} IS NULL{kept}"))[0][0])
    if lacking:
        raise NotExact(
            f"Table {query.table}: {lacking} rows have no value in {column.name!r}, by which the table is read. Give "
            "them one, or say whether such rows are to be included or excluded."
        )


def key_ranges(
    source: Asker,
    query: Query,
    number: int,
    *,
    extra: Sequence[Column] = (),
    part_rows: int | None = None,
    largest: float | None = None,
) -> list[str]:
    """Conditions that part the query's rows by ranges of one column, as evenly as its columns allow.

    Values are sampled, so that it does not matter how they are spread. The conditions exclude one another and leave
    out no row, NULL or not, whatever happens to the rows meanwhile. With `part_rows`, parts have about that many at
    most; with `largest`, a query is not parted if one part would be so many times what it should be.
    """
    rows = count(source, query)
    number = min(number, max(1, rows // _PER_PART))
    number = min(max(number, -(-rows // part_rows)) if part_rows else number, _PARTS)
    if number == 1:
        return [""]
    best: tuple[Column, Cut] | None = None
    for column in [*extra, *candidates(query)]:
        cut = cut_evenly(_sample(source, query, column, rows), number)
        if best is None or cut.largest < best[1].largest:
            best = column, cut
        if cut.is_even:
            break
    if best is None or (largest is not None and best[1].largest > largest):
        return [""]
    column, cut = best
    raw = source.quote(column.name)
    return ranges(raw, [source.literal(value, column) for value in cut.at])


def candidates(query: Query) -> list[Column]:
    """Columns that ranges can be made of, the ones with an index first; none twice."""
    table, names = query.table, []
    if query.window:
        names.append(table.column(query.window.column).name)
    names += [*table.primary_key, *(name for key in table.unique_keys for name in key)]
    names = names or [column.name for column in table.columns]
    return [column for column in map(table.column, dict.fromkeys(names)) if column.splits]


def read_parts(
    source: Asker, query: Query, conditions: Sequence[str], snapshot: str | None = None
) -> tuple[ReadPart, ...]:
    """One part for each condition."""
    base, columns = where_of(source, query), query.table.readable(query.columns)
    return tuple(
        ReadPart(
            settings=source.settings,
            table=str(query.table),
            columns=columns,
            relation=query.table.quoted,
            where=" AND ".join(part for part in (base, f"({condition})" if condition else "") if part),
            snapshot=snapshot,
            number=number,
        )
        for number, condition in enumerate(conditions)
    )


def value_of(raw: Any, column: Column, table: TableInfo) -> Value:
    """What a driver answered, as the column's own kind of value; raises `NotExact` for what Python cannot hold."""
    kind = column.arrow
    try:
        if kind is None or kinds.is_string(kind):
            return raw if isinstance(raw, int) else raw.decode() if isinstance(raw, bytes) else str(raw)
        if kinds.is_integer(kind):
            return int(raw)
        if kinds.is_decimal(kind):
            number = Decimal(str(raw))
            return number if number.is_finite() else _no_bound(raw, column, table)
        if kinds.is_timestamp(kind):
            return _moment(raw, zoned=kind.tz is not None)
        if kinds.is_date(kind):
            return raw if isinstance(raw, date) else date.fromisoformat(raw)
    except (ValueError, TypeError, InvalidOperation):
        return _no_bound(raw, column, table)
    raise Misconfigured(
        f"Column {column.name!r} of {table} is of type {column.declared}, which no window can be made of. Choose a "
        "column of numbers, dates, moments or text."
    )


def checked(table: TableInfo, overrides: Overrides) -> TableInfo:
    """The table, if every column that the overrides name is one, and a number where a decimal is wanted."""
    names = {column.name: column for column in table.columns}
    for name in sorted({*overrides.as_text, *overrides.decimals} - {EVERY_REFUSED}):
        if name not in names:
            near = [other for other in names if other.lower() == name.lower()]
            hint = f"It has {near[0]!r}." if near else f"It has: {', '.join(names)}."
            raise Misconfigured(f"The table {table} has no column {name!r} to read in another way. {hint}")
    for name in overrides.decimals:
        kind = names[name].arrow
        if kind is None or not kinds.is_decimal(kind):
            raise Misconfigured(f"Column {name!r} of {table} is of type {names[name].declared}, and no decimal.")
    return table


def match_name(wanted: TableName, names: Sequence[tuple[str, str]], where: SourceSettings) -> tuple[str, str]:
    """The schema and table that a name means, among those that the server has; else `Misconfigured`."""
    exact = [(s, n) for s, n in names if n == wanted.name and wanted.schema in (None, s)]
    alike = exact or [
        (s, n)
        for s, n in names
        if n.lower() == wanted.name.lower() and (wanted.schema is None or s.lower() == wanted.schema.lower())
    ]
    if len(alike) == 1:
        return alike[0]
    if alike:
        raise Misconfigured(f"Several tables of {where} are named like {str(wanted)!r}. Write it as it is there.")
    raise Misconfigured(
        f"There is no table {str(wanted)!r} in {where} that this user may see. Check its name and schema, and the "
        "user's rights."
    )


def _select(what: str, table: TableInfo, where: str) -> str:
    return f"SELECT {what} FROM {table.quoted}{f' WHERE {where}' if where else ''}"  # noqa: S608 - quoted and typed


def _inside(source: Asker, window: Window, table: TableInfo) -> str:
    column = table.column(window.column)
    raw, value, bounded = source.quote(column.name), _comparable(source, column), []
    if window.lower is not None:
        bounded.append(f"{value} {'>=' if window.lower_included else '>'} {source.literal(window.lower, column)}")
    if window.upper is not None:
        bounded.append(f"{value} {'<=' if window.upper_included else '<'} {source.literal(window.upper, column)}")
    if window.nulls is Nulls.INCLUDE:
        return f"{' AND '.join(bounded)} OR {raw} IS NULL" if bounded else ""
    return " AND ".join(bounded or [f"{raw} IS NOT NULL"])


def _comparable(source: Asker, column: Column) -> str:
    """The column as windows compare it. Which text is greater must be the same here, in the state and in a merge."""
    raw = source.quote(column.name)
    return source.by_code_points(raw) if column.arrow is not None and kinds.is_string(column.arrow) else raw


def _sample(source: Asker, query: Query, column: Column, rows: int) -> list[Value]:
    """Some values of the column, in the server's own order."""
    raw = source.quote(column.name)
    drawn = [source.chance(SAMPLE / rows)] if rows > 2 * SAMPLE else []
    where = " AND ".join(part for part in (where_of(source, query), f"{raw} IS NOT NULL", *drawn) if part)
    return [
        value_of(value, column, query.table)
        for (value,) in source.rows(f"{_select(raw, query.table, where)} ORDER BY {raw}")
    ]


def _moment(raw: Any, *, zoned: bool) -> datetime:
    moment = raw if isinstance(raw, datetime) else datetime.fromisoformat(raw)
    if not zoned:
        return moment
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def _no_bound(raw: object, column: Column, table: TableInfo) -> Value:
    raise NotExact(
        f"Table {table}: column {column.name!r} of type {column.declared} has the value {str(raw)!r}, which cannot be "
        "a bound. Mend the value, or leave such rows out by a filter."
    )
