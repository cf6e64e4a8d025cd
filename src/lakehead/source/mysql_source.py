"""MySQL and MariaDB as a source: catalog, clock, and parts by key ranges."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

from lakehead.errors import Misconfigured
from lakehead.metadata.snapshot import TableSnapshot
from lakehead.source import sql_queries
from lakehead.source.driver_errors import translate_errors
from lakehead.source.hash_sql import HashSql
from lakehead.source.local_time import instants_from
from lakehead.source.mysql import MYSQL, QUOTE_MARK, SESSION
from lakehead.source.mysql_hashes import MYSQL_HASHES
from lakehead.source.mysql_types import column_of
from lakehead.source.port import (
    Column,
    OpenTransactions,
    Overrides,
    Query,
    ReadPart,
    ServerTime,
    SourceCapabilities,
    TableInfo,
    TableName,
    quote_identifier,
)
from lakehead.source.source_settings import SourceSettings
from lakehead.source.table_snapshots import tables_of
from lakehead.source.tls import pymysql_ssl_context
from lakehead.state.model import Value

_MEASURED_ROWS = 1_000
_EPOCH, _MICROSECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(microseconds=1)

_NAMES = "SELECT table_schema, table_name FROM information_schema.tables WHERE lower(table_name) = lower({name}) AND "
_COLUMNS = """
SELECT column_name, column_type, data_type, is_nullable = 'YES' FROM information_schema.columns
WHERE table_schema = {schema} AND table_name = {name} ORDER BY ordinal_position
"""
_KEYS = """
SELECT index_name, column_name, sub_part FROM information_schema.statistics
WHERE table_schema = {schema} AND table_name = {name} AND non_unique = 0 ORDER BY index_name = 'PRIMARY' DESC, 1,
seq_in_index
"""
_SNAPSHOT = """
SELECT c.table_schema, c.table_name, NULL, c.column_name, c.column_type, c.is_nullable = 'YES', NULL, k.seq_in_index
FROM information_schema.columns c LEFT JOIN information_schema.statistics k ON k.table_schema = c.table_schema
AND k.table_name = c.table_name AND k.index_name = 'PRIMARY' AND k.column_name = c.column_name
WHERE lower(c.table_name) IN ({names}) AND {where} ORDER BY c.table_schema, c.table_name, c.ordinal_position
"""
_SIZES = """
SELECT table_rows, avg_row_length, table_type FROM information_schema.tables
WHERE table_schema = {schema} AND table_name = {name}
"""


class MySQLSource:
    """An open connection to a MySQL or MariaDB database."""

    sql_dialect = MYSQL.sqlglot
    hash_sql: HashSql | None = MYSQL_HASHES

    def __init__(self, settings: SourceSettings) -> None:
        self.settings = settings
        only_by_jdbc = settings.tls is not None and settings.tls.certificate is not None
        self.capabilities = SourceCapabilities(incremental=True, arrow=not only_by_jdbc, second_digits=0)
        with translate_errors(settings):
            self._connection = connect(settings)
            for statement in SESSION:
                self._execute(statement)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def rows(self, sql: str) -> Sequence[tuple[Any, ...]]:
        """Run a statement and return all its rows."""
        with translate_errors(self.settings):
            return self._execute(sql)

    def describe_table(self, table: TableName, overrides: Overrides = Overrides()) -> TableInfo:  # noqa: B008 - frozen
        """Return the columns and keys of a table."""
        where = f"lower(table_schema) = lower({_text(table.schema)})" if table.schema else "table_schema = database()"
        names = [(str(s), str(n)) for s, n in self.rows(_NAMES.format(name=_text(table.name)) + where)]
        schema, name = sql_queries.match_name(table, names, self.settings)
        names_in_sql = {"schema": _text(schema), "name": _text(name)}
        [(rows, row_bytes, kind)] = self.rows(_SIZES.format(**names_in_sql))
        keys: dict[str, list[str | None]] = {}
        for index, column, cut in self.rows(_KEYS.format(**names_in_sql)):
            keys.setdefault(index, []).append(
                None if cut else column
            )  # an index on a prefix is not a key of the column
        complete = {
            index: tuple(column for column in columns if column)
            for index, columns in keys.items()
            if None not in columns
        }
        info = TableInfo(
            schema=schema,
            name=name,
            quoted=f"{self.quote(schema)}.{self.quote(name)}",
            columns=tuple(
                column_of(column, str(declared), str(base).lower(), nullable=bool(nullable), overrides=overrides)
                for column, declared, base, nullable in self.rows(_COLUMNS.format(**names_in_sql))
            ),
            primary_key=complete.get("PRIMARY", ()),
            unique_keys=tuple(columns for index, columns in complete.items() if index != "PRIMARY"),
            estimated_rows=None if rows is None else int(rows),
            estimated_bytes=None if rows is None else int(rows) * int(row_bytes or 0),
            has_row_ids="VIEW" not in str(kind),
        )
        return sql_queries.check_overrides(info, overrides)

    def snapshot_tables(self, schema: str | None, names: Sequence[str]) -> tuple[TableSnapshot, ...]:
        """Snapshot the tables with these names, in one query."""
        if not names:
            return ()
        wanted = ", ".join(f"lower({_text(name)})" for name in names)
        where = f"lower(c.table_schema) = lower({_text(schema)})" if schema else "c.table_schema = database()"
        return tables_of(self.rows(_SNAPSHOT.format(names=wanted, where=where)))

    def now(self) -> ServerTime:
        """Return the server's current time."""
        [(utc, local)] = self._in_server_zone("SELECT UTC_TIMESTAMP(6), NOW(6)")
        return ServerTime(utc.replace(tzinfo=UTC), local)

    def earliest_local(self, since: datetime) -> datetime:
        """Return the earliest local time that the server's clock will show from an instant on."""
        microseconds = [(instant - _EPOCH) // _MICROSECOND for instant in instants_from(since)]
        instants = ", ".join(f"FROM_UNIXTIME({each // 10**6}.{each % 10**6:06})" for each in microseconds)
        [row] = self._in_server_zone(f"SELECT {instants}")
        local: datetime = min(row)
        return local

    def open_transactions(self) -> OpenTransactions:
        """Return that they are unknown: the server shows them only to administrators."""
        return OpenTransactions(unknown="MySQL shows open transactions only to administrators")

    def count(self, query: Query) -> int:
        """Count the rows."""
        return sql_queries.count(self, query)

    def bounds(self, query: Query, column: str) -> tuple[Value, Value] | None:
        """Return the lowest and highest value of a column; None if there is no value."""
        return sql_queries.bounds(self, query, column)

    def quote(self, identifier: str) -> str:
        """Return a quoted name."""
        return quote_identifier(identifier, QUOTE_MARK)

    def literal(self, value: Value, column: Column) -> str:
        """Return a value as an SQL literal, to compare it with a column."""
        match value:
            case bool():
                raise Misconfigured(f"Column {column.name!r} cannot be compared with a boolean.")
            case int():
                return f"({value})"
            case Decimal():
                return f"({value:f})"
            case datetime() if value.tzinfo is not None:
                return f"TIMESTAMP'{value.astimezone(UTC).replace(tzinfo=None).isoformat(sep=' ')}'"
            case datetime():
                return f"TIMESTAMP'{value.isoformat(sep=' ')}'"
            case date():
                return f"DATE'{value.isoformat()}'"
            case str():
                return _text(value)

    def by_code_points(self, text: str) -> str:
        """Return a text expression that compares by code points, which in UTF-8 is the order of bytes."""
        return f"CAST(CONVERT({text} USING utf8mb4) AS BINARY)"

    def sample_condition(self, fraction: float) -> str:
        """Return a condition that is true for a random fraction of the rows."""
        return f"RAND() < {fraction:.9f}"

    @contextmanager
    def consistent_reads(self) -> Iterator[None]:
        """All statements within the `with` see one snapshot."""
        self.rows("START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY")
        try:
            yield
        finally:
            self.rows("ROLLBACK")

    @contextmanager
    def snapshot(self) -> Iterator[str | None]:
        """Yield None: the server exports no snapshots. Each part is consistent in itself."""
        yield None

    def parts(self, query: Query, number: int, snapshot: str | None = None) -> tuple[ReadPart, ...]:
        """Split by ranges of the window's column or a key, into more parts than asked for if they would be too large.

        A row whose key or watermark changes during the read may be read in two parts or in none.
        """
        sql_queries.check_nulls(self, query)
        part_rows = max(1, self.settings.part_bytes // self._row_bytes(query))
        conditions = sql_queries.key_ranges(self, query, number, part_rows=part_rows)
        return sql_queries.read_parts(self, query, conditions, snapshot)

    def _row_bytes(self, query: Query) -> int:
        """Return the approximate size of a row: the larger of the statistics and a measured sample. Views have no
        statistics, and those of a table may be outdated."""
        table = query.table
        by_statistics = (table.estimated_bytes or 0) // (table.estimated_rows or 1)
        return max(by_statistics, sql_queries.row_bytes(self, query, rows=_MEASURED_ROWS))

    def _in_server_zone(self, sql: str) -> Sequence[tuple[Any, ...]]:
        """Run a statement in the server's own time zone."""
        self.rows("SET time_zone = DEFAULT")
        try:
            return self.rows(sql)
        finally:
            self.rows(SESSION[0])

    def _execute(self, sql: str) -> Sequence[tuple[Any, ...]]:
        with self._connection.cursor() as cursor:
            cursor.execute(sql)
            rows: Sequence[tuple[Any, ...]] = cursor.fetchall()
            return rows


def connect(settings: SourceSettings) -> Any:
    """Connect by PyMySQL. Raises the driver's errors."""
    import pymysql  # type: ignore[import-untyped]  # noqa: PLC0415 - ships no types; only this source needs it

    return pymysql.connect(
        host=settings.host,
        port=settings.port or 3306,
        user=settings.user,
        password=settings.password or "",
        database=settings.database,
        connect_timeout=settings.connect_timeout,
        charset="utf8mb4",
        autocommit=True,
        ssl=pymysql_ssl_context(settings.tls) if settings.tls else None,
    )


def _text(text: str) -> str:
    # In hexadecimal, so that quotes and backslashes mean nothing under any server setting.
    return f"_utf8mb4 X'{text.encode().hex()}'" if text else "''"
