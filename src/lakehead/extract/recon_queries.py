"""The rows of a source that a table should have at its watermark, and those that were written after it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from lakehead.extract.incremental_source import kind_of_column
from lakehead.extract.table_settings import Rule, TableSettings
from lakehead.source.bucket_queries import HashingConnection
from lakehead.source.filters import parse_filter
from lakehead.source.port import Column, Filter, Nulls, Query, Source, SourceWindow, TableInfo
from lakehead.source.sql_queries import comparable
from lakehead.state.model import Watermark

_NEWEST = "_lakehead_newest"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedRows:
    """Which rows of the source are compared."""

    query: Query
    """The rows up to the point."""

    later: Query | None = None
    """The rows after it; None if there is no point."""

    replaced: bool = False
    """Whether a later row has replaced an earlier one of its key in the source, so that the target's is left out."""


def expected_rows(
    table: TableSettings,
    source: Source,
    connection: HashingConnection,
    info: TableInfo,
    keys: Sequence[Column],
    reached: Watermark,
) -> ExpectedRows:
    """Return the rows that the table should have, if it was read up to this watermark."""
    written = table.source_filter
    conditions = [parse_filter(written, info.column_names, source.sql_dialect).sql] if written else []
    if table.null_keys is Rule.EXCLUDE:
        conditions += [f"{source.quote(info.column(key).name)} IS NOT NULL" for key in table.primary_keys]
    kept = " AND ".join(f"({condition})" for condition in conditions)
    if not table.mode.incremental:
        return ExpectedRows(query=Query(table=info, filter=_filter(kept)))
    column = info.column(table.incremental_column or "")
    clocked = kind_of_column(column, table.incremental_kind, info).follows_the_clock
    if table.mode.merges and not _are_unique(info, keys):
        order = [column, *map(info.column, table.tiebreak_columns)]
        info, kept = _newest_of_each_key(connection, info, keys, order, kept), ""
    window = SourceWindow(
        column=column.name,
        lower=table.initial_watermark,
        lower_included=True,
        upper=reached.value,
        upper_included=not clocked,
    )
    later = SourceWindow(column=column.name, lower=reached.value, lower_included=clocked, nulls=Nulls.INCLUDE)
    return ExpectedRows(
        query=Query(table=info, filter=_filter(kept), window=window),
        later=Query(table=info, filter=_filter(kept), window=later),
        replaced=table.mode.merges,
    )


def _filter(condition: str) -> Filter | None:
    return Filter(condition) if condition else None


def _are_unique(info: TableInfo, keys: Sequence[Column]) -> bool:
    """Whether the source has at most one row of each key."""
    names, nullable = {key.name for key in keys}, {column.name for column in info.columns if column.nullable}
    unique = [*([info.primary_key] if info.primary_key else []), *info.unique_keys]
    return any(names.issuperset(some) and (some == info.primary_key or not nullable & {*some}) for some in unique)


def _newest_of_each_key(
    source: HashingConnection, info: TableInfo, keys: Sequence[Column], order: Sequence[Column], condition: str
) -> TableInfo:
    """Return the table without the rows that a merge passes by. Rows that are alike in `order` are not told apart."""
    assert source.hash_sql is not None  # noqa: S101 - for the type checker: such a source is not read in windows
    key = source.hash_sql.row_text(keys)  # by its bytes: a collation may take different keys for equal
    by = ", ".join(
        f"CASE WHEN {source.quote(each.name)} IS NULL THEN 1 ELSE 0 END, {comparable(source, each)} DESC"
        for each in order
    )
    number = f"row_number() OVER (PARTITION BY {key} ORDER BY {by}) AS {_NEWEST}"
    where = f" WHERE {condition}" if condition else ""
    ranked = f"SELECT *, {number} FROM {info.quoted}{where}"  # noqa: S608 - quoted names, a parsed filter
    newest = f"(SELECT * FROM ({ranked}) AS ranked WHERE {_NEWEST} = 1) AS newest"  # noqa: S608 - as above
    return replace(info, quoted=newest)
