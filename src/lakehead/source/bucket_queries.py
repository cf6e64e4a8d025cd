"""Counts, sums and hashes of a table's rows by bucket of their keys, computed by the source."""

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Protocol, runtime_checkable

import pyarrow.types as kinds

from lakehead.source.hash_sql import HashSql
from lakehead.source.port import Column, Query
from lakehead.source.sql_queries import SqlConnection, where_of

BUCKETS = 4_096
"""A power of two."""

NUMBER_BUCKETS = 4_093
"""For integer keys: a prime number, because keys that are made of a time and a counter share their lowest bits."""


@runtime_checkable
class HashingConnection(SqlConnection, Protocol):
    """What these queries need of a source."""

    hash_sql: HashSql | None
    """None if the source's SQL is unknown: then only counts and sums are possible."""

    def consistent_reads(self) -> AbstractContextManager[None]:
        """All statements within the `with` see one snapshot, as far as the source can."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class HashedColumns:
    """What is compared of a table's rows."""

    keys: tuple[Column, ...]
    """The columns that identify a row."""

    rows: tuple[Column, ...]
    """The columns whose values are hashed, with the keys."""

    sums: tuple[Column, ...] = ()
    """Number columns whose sums, minima and maxima are computed."""

    spread: bool = False
    """Whether neighbouring keys must be in different buckets, as for a sample."""

    @property
    def by_number(self) -> bool:
        """Whether the bucket is the remainder of an integer key, which needs no hash."""
        return not self.spread and len(self.keys) == 1 and kinds.is_integer(self.keys[0].arrow)


@dataclass(frozen=True, slots=True)
class Bucket:
    """What the rows of one bucket add up to."""

    rows: int
    hash_sum: int
    numbers: tuple[tuple[Decimal | None, Decimal | None, Decimal | None], ...] = ()
    """Sum, minimum and maximum of each number column."""


@dataclass(frozen=True, slots=True)
class KeyHash:
    """All rows of one key: how many, and the hash of their values."""

    rows: int
    digests: str
    """The smallest and the largest hash."""


def count_and_sum(source: HashingConnection, query: Query, sums: Sequence[Column]) -> Bucket:
    """Return the count and the sums of all rows, in plain SQL."""
    items = ["count(*)", *_numbers(source, sums)]
    [row] = source.rows(_select(items, query, where_of(source, query)))
    return bucket_of((row[0], 0, *row[1:]))


def buckets(source: HashingConnection, query: Query, hashed: HashedColumns, below: int = BUCKETS) -> dict[int, Bucket]:
    """Return what each bucket below a number adds up to. Empty buckets are left out."""
    sql = _hash_sql(source)
    number = sql.number(sql.md5(sql.row_text(hashed.rows)))
    numbers = _numbers(source, hashed.sums)
    bucket = _bucket(source, hashed)
    where = _and(where_of(source, query), f"{bucket} < {below}" if below < BUCKETS else "")
    statement = f"{_select([bucket, 'count(*)', f'sum({number})', *numbers], query, where)} GROUP BY 1"
    return {int(row[0]): bucket_of(row[1:]) for row in source.rows(statement)}


def keys_of(
    source: HashingConnection, query: Query, hashed: HashedColumns, which: Iterable[int]
) -> dict[tuple[int, str], KeyHash]:
    """Return the keys of some buckets, as bucket and canonical text, and the hashes of their rows."""
    sql = _hash_sql(source)
    digest, bucket = sql.md5(sql.row_text(hashed.rows)), _bucket(source, hashed)
    chosen = f"{bucket} IN ({', '.join(map(str, which))})"
    items = [bucket, sql.row_text(hashed.keys), "count(*)", f"min({digest})", f"max({digest})"]
    statement = f"{_select(items, query, _and(where_of(source, query), chosen))} GROUP BY 1, 2"
    return {
        (int(number), _text(key)): KeyHash(int(rows), f"{_text(least)}{_text(most)}")
        for number, key, rows, least, most in source.rows(statement)
    }


def key_texts(source: HashingConnection, query: Query, keys: Sequence[Column], most: int) -> list[str]:
    """Return the canonical texts of the keys of a query, at most so many."""
    text = _hash_sql(source).row_text(keys)
    return [_text(key) for (key,) in source.rows(f"{_select([text], query, where_of(source, query))} LIMIT {most}")]


def bucket_of(row: Sequence[Any]) -> Bucket:
    """Convert count, sum of hashes, and three numbers for each summed column."""
    numbers = [None if value is None else Decimal(str(value)) for value in row[2:]]
    triples = tuple((numbers[at], numbers[at + 1], numbers[at + 2]) for at in range(0, len(numbers), 3))
    return Bucket(int(row[0]), int(row[1] or 0), triples)


def _numbers(source: HashingConnection, sums: Sequence[Column]) -> list[str]:
    total = source.hash_sql.total if source.hash_sql else "sum({})".format
    names = [source.quote(column.name) for column in sums]
    return [item for name in names for item in (total(name), f"min({name})", f"max({name})")]


def _bucket(source: HashingConnection, hashed: HashedColumns) -> str:
    sql = _hash_sql(source)
    if hashed.by_number:
        return number_bucket(sql.integer(hashed.keys[0]))
    return f"({sql.number(sql.md5(sql.row_text(hashed.keys)))} & {BUCKETS - 1})"


def number_bucket(number: str) -> str:
    """Return the SQL expression of the bucket of an integer of 64 bits, in any dialect."""
    return f"coalesce((({number}) % {NUMBER_BUCKETS} + {NUMBER_BUCKETS}) % {NUMBER_BUCKETS}, 0)"


def _hash_sql(source: HashingConnection) -> HashSql:
    assert source.hash_sql is not None  # noqa: S101 - for the type checker: callers have looked
    return source.hash_sql


def _select(items: Sequence[str], query: Query, where: str) -> str:
    condition = f" WHERE {where}" if where else ""
    return f"SELECT {', '.join(items)} FROM {query.table.quoted}{condition}"  # noqa: S608 - quoted names, typed literals


def _and(*conditions: str) -> str:
    return " AND ".join(condition for condition in conditions if condition)


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
