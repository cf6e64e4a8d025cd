"""The newest row of each key, in Spark's SQL: what a mirror is made of."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from pyspark.sql import SparkSession

from lakehead.extract.rows import GENERATION, INGEST_SCHEMA, SLICE
from lakehead.spark.names import quoted


@dataclass(frozen=True, slots=True, kw_only=True)
class Newest:
    """Which of the rows of one key counts.

    The one with the larger watermark; then with the larger values in the tiebreak columns, one after the other; then
    the one that was read later. NULL is smaller than any value. Rows that are still alike differ at most in columns
    that nobody ordered by: a hash of the source's own columns decides, so that every run decides alike.

    The rule is the same among rows of raw and between a row of raw and one of the mirror: see `order`.
    """

    keys: tuple[str, ...]
    watermark: str
    tiebreaks: tuple[str, ...] = ()
    null_keys: bool = False
    """Whether rows without a whole key are kept: NULL is then a value of the key like any other. If not, they stay
    behind in raw."""

    filters: tuple[str, ...] = ()
    """Conditions, in SQL, that every row of the mirror that is merged into satisfies; its name is `t`."""

    @property
    def order(self) -> tuple[str, ...]:
        """The columns that rows of one key are compared by, one after the other; the larger value counts."""
        return (self.watermark, *self.tiebreaks, SLICE)


@dataclass(frozen=True, slots=True, kw_only=True)
class RawRows:
    """Slices of a raw table, at one of its snapshots."""

    table: str
    """In SQL."""

    snapshot: int
    columns: tuple[str, ...]
    generation: int | None = None
    """None: of any generation."""

    after: int
    upto: int

    def sql(self, *conditions: str) -> str:
        """The statement that reads them."""
        where = [f"{SLICE} > {self.after}", f"{SLICE} <= {self.upto}"]
        where += [] if self.generation is None else [f"{GENERATION} = {self.generation}"]
        names = ", ".join(map(quoted, self.columns))
        which = " AND ".join([*where, *conditions])
        return f"SELECT {names} FROM {self.table} VERSION AS OF {self.snapshot} WHERE {which}"  # noqa: S608 - quoted names and numbers


class Rows(Protocol):
    """Rows that SQL can read."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Their columns."""
        ...

    def sql(self, *conditions: str) -> str:
        """The statement that reads those of them that satisfy all conditions."""
        ...


def newest_first(newest: Newest) -> str:
    """The order of rows of one key, in SQL, the one that counts first. Rows of different slices are never alike."""
    return ", ".join(f"{quoted(name)} DESC NULLS LAST" for name in newest.order)


def counts_over(newest: Newest, row: str, other: str) -> str:
    """Whether a row comes before another one of its key in that order, in SQL; both are named by their aliases."""
    *before, last = [(f"{row}.{quoted(name)}", f"{other}.{quoted(name)}") for name in newest.order]
    decided = _larger(*last)
    for one, two in reversed(before):
        decided = f"({_larger(one, two)} OR ({one} <=> {two} AND {decided}))"
    return decided


def _larger(one: str, two: str) -> str:
    return f"({one} > {two} OR ({one} IS NOT NULL AND {two} IS NULL))"


def overwrite(session: SparkSession, target: str, rows: RawRows, *conditions: str) -> None:
    """Make a table exactly these rows. By name: its columns may stand in another order."""
    session.sql(f"INSERT OVERWRITE {target} BY NAME {rows.sql(*conditions)}")


def overwrite_newest(session: SparkSession, target: str, rows: Rows, newest: Newest) -> None:
    """Make a table the newest of these rows, one for each key."""
    session.sql(f"INSERT OVERWRITE {target} BY NAME {newest_of(session, rows, newest)}")


def merge_newest(session: SparkSession, target: str, rows: RawRows, newest: Newest) -> None:
    """Merge the newest of these rows into a table. A row that is older than the table's own changes nothing."""
    same = "<=>" if newest.null_keys else "="
    met = [f"t.{quoted(key)} {same} s.{quoted(key)}" for key in newest.keys]
    names = [quoted(name) for name in rows.columns]
    session.sql(
        f"MERGE INTO {target} t USING ({newest_of(session, rows, newest)}) s "  # noqa: S608 - quoted names and numbers
        f"ON {' AND '.join([*met, *(f'({condition})' for condition in newest.filters)])} "
        f"WHEN MATCHED AND {counts_over(newest, 's', 't')} "
        f"THEN UPDATE SET {', '.join(f't.{name} = s.{name}' for name in names)} "
        f"WHEN NOT MATCHED THEN INSERT ({', '.join(names)}) VALUES ({', '.join(f's.{name}' for name in names)})"
    )


def whole_keys(keys: Sequence[str]) -> list[str]:
    """Conditions that rows with a whole key satisfy."""
    return [f"{quoted(key)} IS NOT NULL" for key in keys]


def newest_of(session: SparkSession, rows: Rows, newest: Newest) -> str:
    """The statement for the newest rows. They are ranked only where a key comes more than once."""
    kept = () if newest.null_keys else whole_keys(newest.keys)
    all_rows = rows.sql(*kept)
    keys = ", ".join(map(quoted, newest.keys))
    twice = f"SELECT 1 FROM ({all_rows}) GROUP BY {keys} HAVING count(*) > 1 LIMIT 1"  # noqa: S608 - quoted names
    if not session.sql(twice).collect():
        return all_rows
    names = ", ".join(map(quoted, rows.columns))
    # Spark's hash leaves NULLs out: that they are there, and where, is hashed too.
    own = [quoted(name) for name in rows.columns if name not in INGEST_SCHEMA.names]
    alike = ", ".join(f"{name} IS NULL, {name}" for name in own)
    rank = f"row_number() OVER (PARTITION BY {keys} ORDER BY {newest_first(newest)}, xxhash64({alike}) DESC)"
    return (
        f"SELECT {names} FROM (SELECT *, {rank} AS `_lakehead_rank` FROM ({all_rows})) "  # noqa: S608 - quoted names
        "WHERE `_lakehead_rank` = 1"
    )
