"""Counts, sums and hashes of the rows that readers see, computed by Spark in the same form as by the source."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.types as kinds
from pyspark.sql import SparkSession

from lakehead.source.bucket_queries import BUCKETS, Bucket, HashedColumns, KeyHash, bucket_of, number_bucket
from lakehead.source.hash_sql import SUMMED_DIGITS
from lakehead.source.port import Column
from lakehead.spark.names import quoted

_PENDING = "_lakehead_pending"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconTarget:
    """The rows that readers see, at one point."""

    session: SparkSession
    table: str
    """The quoted name."""

    snapshot: int | None = None
    """The snapshot to read; None for a view."""

    shown: int | None = None
    """The slice that a view shows."""

    condition: str = ""
    """Which rows readers see; empty for all."""

    def columns(self) -> tuple[str, ...]:
        """The names of its columns."""
        return tuple(self.session.sql(f"SELECT * FROM {self._relation} LIMIT 0").columns)  # noqa: S608 - quoted

    def last_loaded(self) -> object:
        """When its newest rows were loaded, in UTC."""
        [row] = self.session.sql(f"SELECT CAST(max(`_loaded_at`) AS STRING) FROM {self._relation}").collect()  # noqa: S608 - quoted
        return row[0]

    def count_and_sum(self, hashed: HashedColumns, pending: Sequence[str] = ()) -> Bucket:
        """Return the count and the sums of all rows, without those of pending keys."""
        items = ["count(*)", "0", *_numbers(hashed.sums)]
        [row] = self.session.sql(self._select(items, "", pending, hashed.keys)).collect()
        return bucket_of(tuple(row))

    def buckets(self, hashed: HashedColumns, pending: Sequence[str], below: int = BUCKETS) -> dict[int, Bucket]:
        """Return what each bucket below a number adds up to, without the rows of pending keys."""
        bucket = _bucket(hashed)
        where = f"{bucket} < {below}" if below < BUCKETS else ""
        items = [f"{bucket} AS bucket", "count(*)", f"sum({_number(_md5(row_text(hashed.rows)))})"]
        statement = self._select([*items, *_numbers(hashed.sums)], where, pending, hashed.keys)
        return {int(row[0]): bucket_of(tuple(row)[1:]) for row in self.session.sql(f"{statement} GROUP BY 1").collect()}

    def keys_of(
        self, hashed: HashedColumns, which: Iterable[int], pending: Sequence[str]
    ) -> dict[tuple[int, str], KeyHash]:
        """Return the keys of some buckets, as bucket and canonical text, and the hashes of their rows."""
        bucket, digest = _bucket(hashed), _md5(row_text(hashed.rows))
        items = [bucket, row_text(hashed.keys), "count(*)", f"min({digest})", f"max({digest})"]
        chosen = f"{bucket} IN ({', '.join(map(str, which))})"
        rows = self.session.sql(f"{self._select(items, chosen, pending, hashed.keys)} GROUP BY 1, 2").collect()
        return {
            (int(number), str(key)): KeyHash(int(count), f"{least}{most}") for number, key, count, least, most in rows
        }

    @property
    def _relation(self) -> str:
        return self.table if self.snapshot is None else f"{self.table} VERSION AS OF {self.snapshot}"

    def _select(self, items: Sequence[str], where: str, pending: Sequence[str], keys: Sequence[Column] = ()) -> str:
        conditions = [condition for condition in (self.condition, where) if condition]
        if pending:
            given = pa.table({"key": pa.array(sorted(set(pending)), pa.string())})
            self.session.createDataFrame(given).createOrReplaceTempView(_PENDING)
            conditions.append(f"{row_text(keys)} NOT IN (SELECT `key` FROM {_PENDING})")  # noqa: S608 - quoted names
        condition = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        return f"SELECT {', '.join(items)} FROM {self._relation}{condition}"  # noqa: S608 - quoted names


def row_text(columns: Sequence[Column]) -> str:
    """Return the Spark SQL expression of the canonical text of some columns: see `source.hash_sql`."""
    parts = ", ',', ".join(map(_part, columns))
    return f"concat({parts})"


def _part(column: Column) -> str:
    name, kind = quoted(column.name), column.arrow
    if kinds.is_string(kind):
        return f"coalesce(concat(CAST(octet_length({name}) AS STRING), ':', {name}), '-')"
    if kinds.is_boolean(kind):
        text = f"CAST(CAST({name} AS INT) AS STRING)"
    elif kinds.is_binary(kind):
        text = f"lower(hex({name}))"
    else:
        text = f"CAST({name} AS STRING)"
    return f"coalesce({text}, '-')"


def _md5(text: str) -> str:
    return f"md5(CAST({text} AS BINARY))"


def _number(digest: str) -> str:
    return f"CAST(conv(substr({digest}, 1, {SUMMED_DIGITS}), 16, 10) AS BIGINT)"


def _bucket(hashed: HashedColumns) -> str:
    if hashed.by_number:
        return number_bucket(f"CAST({quoted(hashed.keys[0].name)} AS BIGINT)")
    return f"({_number(_md5(row_text(hashed.keys)))} & {BUCKETS - 1})"


def _numbers(sums: Sequence[Column]) -> list[str]:
    items = []
    for column in sums:
        name = quoted(column.name)
        items += [f"sum(CAST({name} AS DECIMAL(38, {_scale(column)})))", f"min({name})", f"max({name})"]
    return items


def _scale(column: Column) -> int:
    kind: Any = column.arrow
    return int(kind.scale) if kinds.is_decimal(kind) else 0
