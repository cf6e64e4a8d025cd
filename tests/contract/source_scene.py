"""A database that a test may fill, and the source that reads it."""

# ruff: noqa: S608 - tests write their SQL in place, about tables of their own

from collections.abc import Callable
from dataclasses import dataclass, field
from uuid import uuid4

import pyarrow as pa

from lakehead.source.opening import open_source
from lakehead.source.port import Overrides, Query, ReadPart, Source, TableInfo, TableName
from lakehead.source.reading import read
from lakehead.source.settings import SourceSettings


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
        self.settings = SourceSettings.parse(self.url)
        self.source = open_source(self.settings)

    def name(self) -> str:
        """A table that no other test knows."""
        return f"t{uuid4().hex}"

    def table(self, name: str, overrides: Overrides | None = None) -> TableInfo:
        return self.source.catalogue(TableName(name), overrides or Overrides())

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
    return pa.Table.from_batches(list(read(part)), part.schema)


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
