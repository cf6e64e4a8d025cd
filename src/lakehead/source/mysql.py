"""MySQL and MariaDB as a source: the catalogue, the clock, and parts by ranges of keys."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

from lakehead.errors import Misconfigured
from lakehead.source import questions
from lakehead.source.local_time import moments_from
from lakehead.source.mysql_types import column_of
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
from lakehead.source.tls import for_python
from lakehead.state.model import Value

_MEASURED_ROWS = 1_000
SESSION = ("SET time_zone = '+00:00'", "SET sql_mode = 'ANSI_QUOTES'", "SET NAMES utf8mb4")
"""What every connection is told first: moments are UTC, and what a text means does not depend on the server."""

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
_SIZES = """
SELECT table_rows, avg_row_length, table_type FROM information_schema.tables
WHERE table_schema = {schema} AND table_name = {name}
"""


class MySQL:
    """A MySQL or MariaDB database that is open."""

    dialect = "mysql"

    def __init__(self, settings: SourceSettings) -> None:
        self.settings = settings
        only_by_jdbc = settings.tls is not None and settings.tls.certificate is not None
        self.can = Capabilities(incremental=True, snapshots=False, arrow=not only_by_jdbc, second_digits=0)
        with told(settings):
            self._connection = connect(settings)
            for statement in SESSION:
                self._execute(statement)

    def close(self) -> None:
        """End the connection."""
        self._connection.close()

    def rows(self, sql: str) -> Sequence[tuple[Any, ...]]:
        """All rows of a statement."""
        with told(self.settings):
            return self._execute(sql)

    def catalogue(self, table: TableName, overrides: Overrides = Overrides()) -> TableInfo:  # noqa: B008 - frozen
        """What the table has."""
        where = f"lower(table_schema) = lower({_text(table.schema)})" if table.schema else "table_schema = database()"
        names = [(str(s), str(n)) for s, n in self.rows(_NAMES.format(name=_text(table.name)) + where)]
        schema, name = questions.match_name(table, names, self.settings)
        told_of = {"schema": _text(schema), "name": _text(name)}
        [(rows, row_bytes, kind)] = self.rows(_SIZES.format(**told_of))
        keys: dict[str, list[str | None]] = {}
        for index, column, cut in self.rows(_KEYS.format(**told_of)):
            keys.setdefault(index, []).append(None if cut else column)  # an index of a beginning is no key of the whole
        whole = {
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
                for column, declared, base, nullable in self.rows(_COLUMNS.format(**told_of))
            ),
            primary_key=whole.get("PRIMARY", ()),
            unique_keys=tuple(columns for index, columns in whole.items() if index != "PRIMARY"),
            estimated_rows=None if rows is None else int(rows),
            estimated_bytes=None if rows is None else int(rows) * int(row_bytes or 0),
            plain="VIEW" not in str(kind),
        )
        return questions.checked(info, overrides)

    def now(self) -> ServerTime:
        """The server's clock."""
        [(utc, local)] = self._in_its_zone("SELECT UTC_TIMESTAMP(6), NOW(6)")
        return ServerTime(utc.replace(tzinfo=UTC), local)

    def earliest_local(self, since: datetime) -> datetime:
        """The earliest value that the server writes into columns without a zone from that moment on."""
        seconds = [(moment - _EPOCH) // _MICROSECOND for moment in moments_from(since)]
        moments = ", ".join(f"FROM_UNIXTIME({each // 10**6}.{each % 10**6:06})" for each in seconds)
        [row] = self._in_its_zone(f"SELECT {moments}")
        local: datetime = min(row)
        return local

    def open_transactions(self) -> OpenTransactions:
        """Unknown: the server tells it only to administrators."""
        return OpenTransactions(unknown="MySQL tells of open transactions only to administrators")

    def count(self, query: Query) -> int:
        """How many rows there are, counted."""
        return questions.count(self, query)

    def bounds(self, query: Query, column: str) -> tuple[Value, Value] | None:
        """The least and the greatest value, none if there is none."""
        return questions.bounds(self, query, column)

    def quote(self, identifier: str) -> str:
        """A name in SQL."""
        return quoted(identifier, "mysql")

    def literal(self, value: Value, column: Column) -> str:
        """A value in SQL, to be compared with a column."""
        match value:
            case bool():
                raise Misconfigured(f"Column {column.name!r} cannot be compared with a truth value.")
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
        """An expression of text that compares by its code points, which in UTF-8 is the order of its bytes."""
        return f"CAST(CONVERT({text} USING utf8mb4) AS BINARY)"

    def chance(self, share: float) -> str:
        """A condition that is true for about such a share of the rows, by chance."""
        return f"RAND() < {share:.9f}"

    @contextmanager
    def snapshot(self) -> Iterator[str | None]:
        """None: connections of this server cannot share one view. Each part is consistent by itself."""
        yield None

    def parts(self, query: Query, number: int, snapshot: str | None = None) -> tuple[ReadPart, ...]:
        """By ranges of the window's column or a key; more than asked for where parts would grow too large to hold.

        A row whose key or watermark is changed meanwhile may be read in two parts or in none.
        """
        questions.check_nulls(self, query)
        held = max(1, self.settings.part_bytes // self._row_bytes(query))
        conditions = questions.key_ranges(self, query, number, part_rows=held)
        return questions.read_parts(self, query, conditions, snapshot)

    def _row_bytes(self, query: Query) -> int:
        """About how large a row is: what statistics say or what some rows have, whichever is more. A view has no
        statistics, and those of a table may be older than its rows."""
        table = query.table
        said = (table.estimated_bytes or 0) // (table.estimated_rows or 1)
        return max(said, questions.row_bytes(self, query, rows=_MEASURED_ROWS))

    def _in_its_zone(self, sql: str) -> Sequence[tuple[Any, ...]]:
        """All rows of a statement in the server's own time zone."""
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
    """A connection of PyMySQL, for questions. It raises what the driver raises."""
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
        ssl=for_python(settings.tls) if settings.tls else None,
    )


def _text(text: str) -> str:
    # In hexadecimal no server setting can find a quote or a backslash in it.
    return f"_utf8mb4 X'{text.encode().hex()}'" if text else "''"
