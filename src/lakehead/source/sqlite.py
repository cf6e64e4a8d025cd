"""SQLite as a source: a file, its catalogue, and parts by ranges of keys or row numbers."""

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
from lakehead.source import questions
from lakehead.source.port import (
    Capabilities,
    Column,
    OpenTransactions,
    Overrides,
    Query,
    ReadPart,
    ServerTime,
    TableInfo,
    TableName,
    quoted,
)
from lakehead.source.sentences import told
from lakehead.source.settings import SourceSettings
from lakehead.source.sqlite_types import column_of
from lakehead.state.model import Value

_ROW = Column(name="rowid", declared="INTEGER", arrow=pa.int64(), splits=True)


class SQLite:
    """A SQLite file that is open for reading."""

    can = Capabilities(incremental=True, snapshots=False, second_digits=0, one_writer=True)
    dialect = "sqlite"

    def __init__(self, settings: SourceSettings) -> None:
        self.settings = settings
        with told(settings):
            self._connection = sqlite3.connect(address(settings), uri=True, timeout=settings.connect_timeout)
        self.rows("SELECT 1 FROM sqlite_master LIMIT 1")  # what is no database is told at once

    def close(self) -> None:
        """End the connection."""
        self._connection.close()

    def rows(self, sql: str) -> Sequence[tuple[Any, ...]]:
        """All rows of a statement."""
        with told(self.settings):
            return self._connection.execute(sql).fetchall()

    def catalogue(self, table: TableName, overrides: Overrides = Overrides()) -> TableInfo:  # noqa: B008 - frozen
        """What the table has. Its only schema is `main`."""
        found = self.rows("SELECT 'main', name FROM main.sqlite_master WHERE type IN ('table', 'view')")
        _, name = questions.match_name(table, [(str(s), str(n)) for s, n in found], self.settings)
        [(kind, without_rows)] = self._ask("SELECT type, wr FROM pragma_table_list(?) WHERE schema = 'main'", name)
        columns = self._ask('SELECT name, type, "notnull", pk FROM pragma_table_xinfo(?) WHERE hidden <> 1', name)
        indexes = self._ask(
            "SELECT name FROM pragma_index_list(?) WHERE \"unique\" AND NOT partial AND origin <> 'pk'", name
        )
        keys = [
            tuple(column for (column,) in self._ask("SELECT name FROM pragma_index_info(?)", index))
            for (index,) in indexes
        ]
        numbered = kind == "table" and not without_rows
        last = self.rows(f"SELECT max(rowid) FROM main.{self.quote(name)}")[0][0] if numbered else None  # noqa: S608 - quoted
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
            plain=numbered,
        )
        return questions.checked(info, overrides)

    def now(self) -> ServerTime:
        """This machine's clock, to the millisecond, as SQLite's own functions tell it: in UTC."""
        [(told_of,)] = self.rows("SELECT strftime('%Y-%m-%d %H:%M:%f', 'now')")
        moment = datetime.fromisoformat(told_of)
        return ServerTime(moment.replace(tzinfo=UTC), moment)

    def earliest_local(self, since: datetime) -> datetime:
        """That moment in UTC, in which SQLite's own functions write."""
        return since.astimezone(UTC).replace(tzinfo=None)

    def open_transactions(self) -> OpenTransactions:
        """Unknown: SQLite does not tell. There is at most one."""
        return OpenTransactions(unknown="SQLite does not tell of an open transaction")

    def count(self, query: Query) -> int:
        """How many rows there are, counted."""
        return questions.count(self, query)

    def bounds(self, query: Query, column: str) -> tuple[Value, Value] | None:
        """The least and the greatest value, none if there is none."""
        return questions.bounds(self, query, column)

    def quote(self, identifier: str) -> str:
        """A name in SQL."""
        return quoted(identifier, "sqlite")

    def literal(self, value: Value, column: Column) -> str:
        """A value in SQL, to be compared with a column. Moments are text, and are compared as text."""
        match value:
            case bool():
                raise Misconfigured(f"Column {column.name!r} cannot be compared with a truth value.")
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
        """An expression of text that compares by its code points."""
        return f"{text} COLLATE BINARY"

    def chance(self, share: float) -> str:
        """A condition that is true for about such a share of the rows, by chance."""
        return f"abs(random() % 1000000) < {round(share * 1_000_000)}"

    @contextmanager
    def snapshot(self) -> Iterator[str | None]:
        """None: connections cannot share one view. Each part is consistent by itself."""
        yield None

    def parts(self, query: Query, number: int, snapshot: str | None = None) -> tuple[ReadPart, ...]:
        """By ranges of the window's column, a key or the row's number."""
        questions.check_nulls(self, query)
        hidden = any(column.name.lower() == _ROW.name for column in query.table.columns)
        rows = [_ROW] if query.table.plain and not hidden and query.window is None else []
        conditions = questions.key_ranges(self, query, number, extra=rows) if number > 1 else [""]
        return questions.read_parts(self, query, conditions, snapshot)

    def _ask(self, sql: str, name: str) -> Sequence[tuple[Any, ...]]:
        with told(self.settings):
            return self._connection.execute(sql, (name,)).fetchall()


def address(settings: SourceSettings) -> str:
    """The file as a URI that opens it for reading and never makes it."""
    return f"file:{quote(str(Path(settings.database).absolute()))}?mode=ro"


def _text(text: str) -> str:
    if "\0" in text:
        return f"CAST(X'{text.encode().hex()}' AS TEXT)"
    doubled = text.replace("'", "''")
    return f"'{doubled}'"
