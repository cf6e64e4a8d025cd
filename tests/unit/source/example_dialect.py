"""A complete dialect in one module, as docs/adding-a-dialect.md describes it. Underneath it is a SQLite file."""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from lakehead.source import sql_queries
from lakehead.source.dialect import Dialect, DriverProblem, JdbcAccess
from lakehead.source.driver_errors import translate_errors
from lakehead.source.exact_values import exact_batch
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
from lakehead.state.model import Value

TYPES = {"BIGINT": pa.int64(), "TEXT": pa.string()}


class ExampleSource:
    """An open connection to an example database."""

    capabilities = SourceCapabilities(incremental=True, one_writer=True)
    sql_dialect = "sqlite"

    def __init__(self, settings: SourceSettings) -> None:
        self.settings = settings
        with translate_errors(settings):
            self._connection = sqlite3.connect(f"file:{settings.database}?mode=ro", uri=True)

    def close(self) -> None:
        self._connection.close()

    def rows(self, sql: str) -> Sequence[tuple[Any, ...]]:
        with translate_errors(self.settings):
            return self._connection.execute(sql).fetchall()

    def describe_table(self, table: TableName, overrides: Overrides = Overrides()) -> TableInfo:  # noqa: B008 - frozen
        found = self.rows("SELECT 'main', name FROM sqlite_master WHERE type = 'table'")
        _, name = sql_queries.match_name(table, [(str(schema), str(name)) for schema, name in found], self.settings)
        columns = self.rows(f"SELECT name, type, pk FROM pragma_table_info('{name}')")  # noqa: S608 - of the catalog
        info = TableInfo(
            schema=None,
            name=name,
            quoted=self.quote(name),
            columns=tuple(
                Column(
                    name=column,
                    declared=declared,
                    arrow=TYPES.get(declared),
                    refused=None if declared in TYPES else f"Column {column!r} of type {declared} is not supported.",
                    expression=self.quote(column),
                    jdbc=self.quote(column),
                    splits=declared == "BIGINT",
                )
                for column, declared, _ in columns
            ),
            primary_key=tuple(column for column, _, is_key in columns if is_key),
        )
        return sql_queries.check_overrides(info, overrides)

    def now(self) -> ServerTime:
        [(text,)] = self.rows("SELECT datetime('now')")
        now = datetime.fromisoformat(text)
        return ServerTime(now.replace(tzinfo=UTC), now)

    def earliest_local(self, since: datetime) -> datetime:
        return since.astimezone(UTC).replace(tzinfo=None)

    def open_transactions(self) -> OpenTransactions:
        return OpenTransactions(unknown="the example does not show open transactions")

    def count(self, query: Query) -> int:
        return sql_queries.count(self, query)

    def bounds(self, query: Query, column: str) -> tuple[Value, Value] | None:
        return sql_queries.bounds(self, query, column)

    def quote(self, identifier: str) -> str:
        return quote_identifier(identifier)

    def literal(self, value: Value, column: Column) -> str:  # noqa: ARG002 - the port has it
        return f"({value})" if isinstance(value, int) else "'" + str(value).replace("'", "''") + "'"

    def by_code_points(self, text: str) -> str:
        return f"{text} COLLATE BINARY"

    def sample_condition(self, fraction: float) -> str:
        return f"abs(random() % 1000) < {round(fraction * 1000)}"

    @contextmanager
    def snapshot(self) -> Iterator[str | None]:
        yield None

    def parts(self, query: Query, number: int, snapshot: str | None = None) -> tuple[ReadPart, ...]:
        sql_queries.check_nulls(self, query)
        return sql_queries.read_parts(self, query, sql_queries.key_ranges(self, query, number), snapshot)


def read(part: ReadPart) -> Iterator[pa.RecordBatch]:
    with translate_errors(part.settings), closing(sqlite3.connect(part.settings.database)) as connection:
        rows = connection.execute(part.sql()).fetchall()
        arrays = [pa.array([row[number] for row in rows]) for number in range(len(part.columns))]
        batch = pa.RecordBatch.from_arrays(arrays, names=[column.name for column in part.columns])
        yield exact_batch(batch, part.columns, part.table)


def parse_url(dialect: str, url: str, user: str | None, password: str | None) -> SourceSettings:
    return SourceSettings(dialect=dialect, database=url.removeprefix("example:///"), user=user, password=password)


def problem_of(error: BaseException) -> DriverProblem | None:
    return DriverProblem.NO_PRIVILEGE if "no such table: secret" in str(error) else None


EXAMPLE = Dialect(
    name="example",
    url_prefixes=("example:///",),
    url_form="example:///path/to/file",
    sqlglot="sqlite",
    parse_url=parse_url,
    open=lambda settings, _: ExampleSource(settings),
    read=read,
    jdbc=JdbcAccess(url=lambda settings: f"jdbc:example:{settings.database}", jar="org.example:example-jdbc:1.0"),
    problem_of=problem_of,
)
