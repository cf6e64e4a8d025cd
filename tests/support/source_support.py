"""A database that a test may fill, and the source that reads it."""

# ruff: noqa: S608 - tests write their SQL in place, about tables of their own

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from uuid import uuid4

import pyarrow as pa

from lakehead.source.dialects import open_source, parse_source_url, read_part
from lakehead.source.mysql_source import connect
from lakehead.source.port import Overrides, Query, ReadPart, Source, TableInfo, TableName
from lakehead.source.source_settings import SourceSettings
from tests.servers.postgres import Postgres


@dataclass
class Database:
    """A database that a test may fill, and the source that reads it."""

    kind: str
    url: str
    run: Callable[[str], list[tuple[object, ...]]]
    """Run a statement of the test's own, by the database's own driver."""
    settings: SourceSettings = field(init=False)
    source: Source = field(init=False)

    def __post_init__(self) -> None:
        self.settings = parse_source_url(self.url)
        self.source = open_source(self.settings)

    def name(self) -> str:
        """A table that no other test knows."""
        return f"t{uuid4().hex}"

    def table(self, name: str, overrides: Overrides | None = None) -> TableInfo:
        return self.source.describe_table(TableName(name), overrides or Overrides())

    def numbers(self, name: str, count: int, **columns: str) -> None:
        """Make a table of numbers from 1, `id`, with more columns of numbers made of `n`."""
        declared = "".join(f", {column} bigint" for column in columns)
        self.run(f"CREATE TABLE {name} (id bigint{declared})")
        rows = {
            "postgresql": f"generate_series(1::bigint, {count}) AS g(n)",
            "mysql": f"(SELECT seq AS n FROM seq_1_to_{count}) AS g",
            "sqlite": (
                f"(WITH RECURSIVE g(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM g WHERE n < {count}) SELECT n FROM g)"
            ),
        }[self.kind]
        self.run(f"INSERT INTO {name} SELECT n{''.join(f', {made}' for made in columns.values())} FROM {rows}")


def rows_of(part: ReadPart) -> pa.Table:
    """Everything of one part."""
    return pa.Table.from_batches(list(read_part(part)), part.schema)


def all_rows(database: Database, query: Query, number: int = 1) -> pa.Table:
    """Everything of a query, read in parts."""
    with database.source.snapshot() as snapshot:
        return pa.concat_tables([rows_of(part) for part in database.source.parts(query, number, snapshot)])


def skewed(database: Database, count: int = 20_000) -> str:
    """A table with 99 % of its keys in one small range, and one moment for half of the rows."""
    name = database.name()
    wide = "CASE WHEN n % 100 = 0 THEN n * 10000000 ELSE n END"
    stamp = "CASE WHEN n % 2 = 0 THEN 7 ELSE n END"
    database.numbers(name, count, k=wide, v=stamp)
    if database.kind == "sqlite":
        database.run(f"CREATE UNIQUE INDEX u{name} ON {name} (k)")
    else:
        database.run(f"ALTER TABLE {name} ADD PRIMARY KEY (k)")
    return name


@contextmanager
def careless(mysql: Database) -> Iterator[str]:
    """A table of ten rows and an eleventh that is not committed, while the server's sessions see what is not committed
    and return five rows at most, unless they say otherwise."""
    name = mysql.name()
    mysql.numbers(name, 10)
    other = connect(mysql.settings)
    before = mysql.run("SELECT @@global.tx_isolation, @@global.sql_select_limit")[0]
    try:
        other.begin()
        other.cursor().execute(f"INSERT INTO {name} VALUES (11)")
        mysql.run("SET GLOBAL tx_isolation = 'READ-UNCOMMITTED', sql_select_limit = 5")
        yield name
    finally:
        mysql.run(f"SET GLOBAL tx_isolation = '{before[0]}', sql_select_limit = {before[1]}")
        other.rollback()
        other.close()


AS_TEXT = {"f": "0.30000000000000004", "r": "{1.1}", "b": "\\xff00"}
"""What the columns of `wilful` are as text."""


def wilful(postgres: Postgres) -> str:
    """The URL of a database whose settings write values otherwise than by default, with one row in the table `t`."""
    url = postgres.database()
    name = url.rpartition("/")[2]
    with postgres.connect(name) as connection:
        connection.execute("CREATE TABLE t (f float8, r real[], b bytea)")
        connection.execute("INSERT INTO t VALUES (0.1::float8 + 0.2, '{1.1}', decode('ff00', 'hex'))")
        for setting in ("extra_float_digits = -10", "bytea_output = 'escape'"):
            connection.execute(f'ALTER DATABASE "{name}" SET {setting}'.encode())
    return url
