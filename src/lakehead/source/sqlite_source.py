"""SQLite as a source: catalog, clock, and parts by ranges of keys or row ids."""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa

from lakehead.errors import Misconfigured
from lakehead.metadata.snapshot import TableSnapshot
from lakehead.source import sql_queries
from lakehead.source.driver_errors import translate_errors
from lakehead.source.hash_sql import HashSql
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
from lakehead.source.sqlite import SQLITE
from lakehead.source.sqlite_hashes import SQLITE_HASHES, add_hash_functions
from lakehead.source.sqlite_types import column_of
from lakehead.source.table_snapshots import tables_of
from lakehead.state.model import Value

_SNAPSHOT = """
SELECT NULL, t.name, NULL, c.name, coalesce(nullif(c.type, ''), '(none)'), NOT c."notnull", NULL, nullif(c.pk, 0)
FROM main.sqlite_master t JOIN pragma_table_xinfo(t.name) c WHERE t.type IN ('table', 'view') AND c.hidden <> 1
ORDER BY t.name, c.cid
"""
_ROWID = Column(name="rowid", declared="INTEGER", arrow=pa.int64(), splits=True)


class SQLiteSource:
    """A SQLite file, opened for reading."""

    capabilities = SourceCapabilities(incremental=True, second_digits=0, one_writer=True)
    sql_dialect = SQLITE.sqlglot
    hash_sql: HashSql | None = SQLITE_HASHES

    def __init__(self, settings: SourceSettings) -> None:
        self.settings = settings
        with translate_errors(settings):
            self._connection = sqlite3.connect(file_uri(settings), uri=True, timeout=settings.connect_timeout)
        self.rows("SELECT 1 FROM sqlite_master LIMIT 1")  # raises for a file that is not a database

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def rows(self, sql: str) -> Sequence[tuple[Any, ...]]:
        """Run a statement and return all its rows."""
        with translate_errors(self.settings):
            return self._connection.execute(sql).fetchall()

    def describe_table(self, table: TableName, overrides: Overrides = Overrides()) -> TableInfo:  # noqa: B008 - frozen
        """Return the columns and keys of a table. The only schema is `main`."""
        found = self.rows("SELECT 'main', name FROM main.sqlite_master WHERE type IN ('table', 'view')")
        _, name = sql_queries.match_name(table, [(str(s), str(n)) for s, n in found], self.settings)
        [(kind, without_rows)] = self._rows_for("SELECT type, wr FROM pragma_table_list(?) WHERE schema = 'main'", name)
        columns = self._rows_for('SELECT name, type, "notnull", pk FROM pragma_table_xinfo(?) WHERE hidden <> 1', name)
        indexes = self._rows_for(
            "SELECT name FROM pragma_index_list(?) WHERE \"unique\" AND NOT partial AND origin <> 'pk'", name
        )
        keys = [
            tuple(column for (column,) in self._rows_for("SELECT name FROM pragma_index_info(?)", index))
            for (index,) in indexes
        ]
        has_row_ids = kind == "table" and not without_rows
        last = self.rows(f"SELECT max(rowid) FROM main.{self.quote(name)}")[0][0] if has_row_ids else None  # noqa: S608 - quoted
        info = TableInfo(
            schema=None,
            name=name,
            quoted=f"main.{self.quote(name)}",
            columns=tuple(
                column_of(column, declared, nullable=not required, overrides=overrides)
                for column, declared, required, _ in columns
            ),
            primary_key=tuple(
                column for _, column in sorted((place, column) for column, _, _, place in columns if place)
            ),
            unique_keys=tuple(key for key in keys if None not in key),
            estimated_rows=last,
            has_row_ids=has_row_ids,
        )
        return sql_queries.check_overrides(info, overrides)

    def snapshot_tables(self, schema: str | None, names: Sequence[str]) -> tuple[TableSnapshot, ...]:
        """Snapshot the tables with these names, in one query. The only schema is `main`."""
        wanted = {name.lower() for name in names}
        found = [row for row in self.rows(_SNAPSHOT) if row[1].lower() in wanted]
        return tables_of([(schema, *row[1:]) for row in found])

    def now(self) -> ServerTime:
        """Return this machine's time in milliseconds, which SQLite's functions give in UTC."""
        [(text,)] = self.rows("SELECT strftime('%Y-%m-%d %H:%M:%f', 'now')")
        now = datetime.fromisoformat(text)
        return ServerTime(now.replace(tzinfo=UTC), now)

    def earliest_local(self, since: datetime) -> datetime:
        """Return the instant in UTC, in which SQLite's functions write."""
        return since.astimezone(UTC).replace(tzinfo=None)

    def open_transactions(self) -> OpenTransactions:
        """Return that they are unknown: SQLite does not show them. There is at most one."""
        return OpenTransactions(unknown="SQLite does not show open transactions")

    def count(self, query: Query) -> int:
        """Count the rows."""
        return sql_queries.count(self, query)

    def bounds(self, query: Query, column: str) -> tuple[Value, Value] | None:
        """Return the lowest and highest value of a column; None if there is no value."""
        return sql_queries.bounds(self, query, column)

    def quote(self, identifier: str) -> str:
        """Return a quoted name."""
        return quote_identifier(identifier)

    def literal(self, value: Value, column: Column) -> str:
        """Return a value as an SQL literal, to compare it with a column. Timestamps are compared as text."""
        match value:
            case bool():
                raise Misconfigured(f"Column {column.name!r} cannot be compared with a boolean.")
            case int():
                return f"({value})"
            case Decimal():
                return f"({value:f})"
            case datetime():
                plain = value.astimezone(UTC).replace(tzinfo=None) if value.tzinfo else value
                return _text(plain.isoformat(sep=" "))
            case date():
                return _text(value.isoformat())
            case str():
                return _text(value)

    def by_code_points(self, text: str) -> str:
        """Return a text expression that compares by code points."""
        return f"{text} COLLATE BINARY"

    def sample_condition(self, fraction: float) -> str:
        """Return a condition that is true for a random fraction of the rows."""
        return f"abs(random() % 1000000) < {round(fraction * 1_000_000)}"

    @contextmanager
    def consistent_reads(self) -> Iterator[None]:
        """All statements within the `with` see one snapshot."""
        add_hash_functions(self._connection)
        self.rows("BEGIN")
        try:
            yield
        finally:
            self.rows("ROLLBACK")

    @contextmanager
    def snapshot(self) -> Iterator[str | None]:
        """Yield None: SQLite exports no snapshots. Each part is consistent in itself."""
        yield None

    def parts(self, query: Query, number: int, snapshot: str | None = None) -> tuple[ReadPart, ...]:
        """Split by ranges of the window's column, a key or the row id."""
        sql_queries.check_nulls(self, query)
        hidden = any(column.name.lower() == _ROWID.name for column in query.table.columns)
        rows = [_ROWID] if query.table.has_row_ids and not hidden and query.window is None else []
        conditions = sql_queries.key_ranges(self, query, number, extra=rows) if number > 1 else [""]
        return sql_queries.read_parts(self, query, conditions, snapshot)

    def _rows_for(self, sql: str, name: str) -> Sequence[tuple[Any, ...]]:
        with translate_errors(self.settings):
            return self._connection.execute(sql, (name,)).fetchall()


def file_uri(settings: SourceSettings) -> str:
    """Return the file as a URI that opens it for reading and never creates it."""
    return f"file:{quote(str(Path(settings.database).absolute()))}?mode=ro"


def _text(text: str) -> str:
    if "\0" in text:
        return f"CAST(X'{text.encode().hex()}' AS TEXT)"
    doubled = text.replace("'", "''")
    return f"'{doubled}'"
