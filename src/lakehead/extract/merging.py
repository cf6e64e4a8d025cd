"""Writing raw's rows to a mirror or a final table, all of them or the newest of each key: in Spark SQL, or in Arrow."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from pyspark.sql import SparkSession

from lakehead.extract.raw_rows import GENERATION, INGEST_SCHEMA, SLICE
from lakehead.lake.iceberg_landing import IcebergLanding
from lakehead.lake.iceberg_table import IcebergTable
from lakehead.lake.merge import MergeStager
from lakehead.lake.merge_changes import ColumnRange
from lakehead.lake.merge_choice import MergeLane
from lakehead.lake.merge_lane import Changes, LaneStager
from lakehead.lake.whole_table import RowSource, WholeTableStager
from lakehead.spark.names import quoted


@dataclass(frozen=True, slots=True, kw_only=True)
class DedupRule:
    """Which row of each key is kept.

    The one with the larger watermark; then the larger values in the tiebreak columns, in order; then the one that was
    read later. NULL is smaller than any value. Rows that are still equal differ at most in columns that are not
    compared: a hash of the source's own columns decides, so that every run decides the same.

    The same rule applies among rows of raw, and between a row of raw and one of the mirror: see `order`.
    """

    keys: tuple[str, ...]
    watermark: str
    tiebreaks: tuple[str, ...] = ()
    null_keys: bool = False
    """Whether rows with NULL in their key are merged, where NULL then equals NULL. If not, they stay in raw only."""

    filters: tuple[str, ...] = ()
    """SQL conditions that every mirror row that a merge may match satisfies; the mirror's alias is `t`."""

    @property
    def order(self) -> tuple[str, ...]:
        """The columns by which rows of one key are compared, in order; the larger value wins."""
        return (self.watermark, *self.tiebreaks, SLICE)


@dataclass(frozen=True, slots=True, kw_only=True)
class RawRows:
    """Slices of a raw table, at one of its snapshots."""

    table: str
    """The quoted name for SQL."""

    snapshot: int
    columns: tuple[str, ...]
    absent: frozenset[str] = frozenset()
    """Those of the columns that the table did not have yet at the snapshot. They are NULL."""

    generation: int | None = None
    """None: any generation."""

    after: int
    upto: int

    @property
    def ranges(self) -> tuple[ColumnRange, ...]:
        """The slices and the generation as conditions on columns."""
        slices = ColumnRange(SLICE, self.after + 1, self.upto)
        return (
            (slices,)
            if self.generation is None
            else (slices, ColumnRange(GENERATION, self.generation, self.generation))
        )

    def sql(self, *conditions: str) -> str:
        """The SELECT statement for the rows that satisfy all conditions."""
        where = [f"{SLICE} > {self.after}", f"{SLICE} <= {self.upto}"]
        where += [] if self.generation is None else [f"{GENERATION} = {self.generation}"]
        names = ", ".join(f"NULL AS {quoted(name)}" if name in self.absent else quoted(name) for name in self.columns)
        which = " AND ".join([*where, *conditions])
        return f"SELECT {names} FROM {self.table} VERSION AS OF {self.snapshot} WHERE {which}"  # noqa: S608 - quoted names and numbers


class Rows(Protocol):
    """Rows that a SELECT can read."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Their columns."""
        ...

    def sql(self, *conditions: str) -> str:
        """The SELECT statement for the rows that satisfy all conditions."""
        ...


def newest_first(rule: DedupRule) -> str:
    """An ORDER BY list for the rows of one key: the row to keep first. Rows of different slices are never equal."""
    return ", ".join(f"{quoted(name)} DESC NULLS LAST" for name in rule.order)


def counts_over(rule: DedupRule, row: str, other: str) -> str:
    """A SQL condition: whether the row of one alias comes before that of another in the rule's order."""
    *before, last = [(f"{row}.{quoted(name)}", f"{other}.{quoted(name)}") for name in rule.order]
    decided = _larger(*last)
    for one, two in reversed(before):
        decided = f"({_larger(one, two)} OR ({one} <=> {two} AND {decided}))"
    return decided


def _larger(one: str, two: str) -> str:
    return f"({one} > {two} OR ({one} IS NOT NULL AND {two} IS NULL))"


class Statement(Protocol):
    """A SQL statement that writes to a table."""

    def __call__(self, session: SparkSession, target: str) -> None:
        """Run it on the table with this quoted name."""
        ...


def overwrite(session: SparkSession, target: str, *, rows: RawRows, conditions: Sequence[str] = ()) -> None:
    """Replace a table's rows with these. By name, because its columns may have another order."""
    session.sql(f"INSERT OVERWRITE {target} BY NAME {rows.sql(*conditions)}")


def overwrite_newest(session: SparkSession, target: str, *, rows: Rows, rule: DedupRule) -> None:
    """Replace a table's rows with the newest of these, one for each key."""
    session.sql(f"INSERT OVERWRITE {target} BY NAME {newest_of(session, rows, rule)}")


def merge_newest(session: SparkSession, target: str, *, rows: RawRows, rule: DedupRule) -> None:
    """Merge the newest of these rows into a table. A row older than the one in the table is ignored."""
    same = "<=>" if rule.null_keys else "="
    same_key = [f"t.{quoted(key)} {same} s.{quoted(key)}" for key in rule.keys]
    names = [quoted(name) for name in rows.columns]
    session.sql(
        f"MERGE INTO {target} t USING ({newest_of(session, rows, rule)}) s "  # noqa: S608 - quoted names and numbers
        f"ON {' AND '.join([*same_key, *(f'({condition})' for condition in rule.filters)])} "
        f"WHEN MATCHED AND {counts_over(rule, 's', 't')} "
        f"THEN UPDATE SET {', '.join(f't.{name} = s.{name}' for name in names)} "
        f"WHEN NOT MATCHED THEN INSERT ({', '.join(names)}) VALUES ({', '.join(f's.{name}' for name in names)})"
    )


def merge_stager(
    landing: IcebergLanding,
    by_spark: MergeStager,
    *,
    raw: IcebergTable,
    rows: RawRows,
    rule: DedupRule,
    check: Callable[[], None],
) -> MergeStager | LaneStager:
    """The stager of a merge: here it is chosen whether changes are merged in Arrow or with Spark's MERGE.

    `by_spark` runs `merge_newest`. Merge filters are SQL, so rows with them are merged by it.
    """
    if landing.merge_lane is MergeLane.SPARK or rule.filters:
        return by_spark
    changes = Changes(
        table=raw,
        snapshot=rows.snapshot,
        conditions=rows.ranges,
        keys=rule.keys,
        order=rule.order,
        null_keys=rule.null_keys,
    )
    run = landing.run
    return LaneStager(
        session=run.session, table=by_spark.table, ids=run.ids, changes=changes, fallback=by_spark, check=check
    )


def overwrite_stager(
    landing: IcebergLanding,
    by_spark: MergeStager,
    *,
    raw: IcebergTable,
    rows: RawRows,
    not_null: Sequence[str] = (),
    rule: DedupRule | None = None,
    check: Callable[[], None],
) -> MergeStager | WholeTableStager:
    """The stager that replaces a whole table: here it is chosen whether tasks copy the rows, or Spark's INSERT does.

    `by_spark` runs `overwrite` or, with a rule, `overwrite_newest`. Rows with NULL in a column of `not_null` are left
    out; a rule adds its keys to them, unless it merges such rows.
    """
    if landing.merge_lane is MergeLane.SPARK:
        return by_spark
    source = RowSource(table=raw, snapshot=rows.snapshot, conditions=rows.ranges, not_null=tuple(not_null))
    if rule is not None:
        left_out = () if rule.null_keys else rule.keys
        source = replace(source, not_null=(*not_null, *left_out), keys=rule.keys, order=rule.order)
    run = landing.run
    return WholeTableStager(
        session=run.session, table=by_spark.table, ids=run.ids, source=source, fallback=by_spark, check=check
    )


def whole_keys(keys: Sequence[str]) -> list[str]:
    """SQL conditions: no key column is NULL."""
    return [f"{quoted(key)} IS NOT NULL" for key in keys]


def newest_of(session: SparkSession, rows: Rows, rule: DedupRule) -> str:
    """The SELECT statement for the newest row of each key. Rows are ranked only if a key occurs more than once."""
    kept = () if rule.null_keys else whole_keys(rule.keys)
    all_rows = rows.sql(*kept)
    keys = ", ".join(map(quoted, rule.keys))
    twice = f"SELECT 1 FROM ({all_rows}) GROUP BY {keys} HAVING count(*) > 1 LIMIT 1"  # noqa: S608 - quoted names
    if not session.sql(twice).collect():
        return all_rows
    names = ", ".join(map(quoted, rows.columns))
    # Spark's hash skips NULLs, so whether each column is NULL is hashed too.
    own = [quoted(name) for name in rows.columns if name not in INGEST_SCHEMA.names]
    hashed = ", ".join(f"{name} IS NULL, {name}" for name in own)
    rank = f"row_number() OVER (PARTITION BY {keys} ORDER BY {newest_first(rule)}, xxhash64({hashed}) DESC)"
    return (
        f"SELECT {names} FROM (SELECT *, {rank} AS `_lakehead_rank` FROM ({all_rows})) "  # noqa: S608 - quoted names
        "WHERE `_lakehead_rank` = 1"
    )
