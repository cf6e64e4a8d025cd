"""Compares a table with its source at one consistent point: by buckets of keys, then key by key where they differ.

The target's watermark is the point: the source is asked for the rows up to it, in one snapshot. Rows that were written
in the source after it are pending: their keys are left out on both sides.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from decimal import Context, Decimal

import pyarrow.types as kinds

from lakehead.clock import Clock
from lakehead.errors import Misconfigured
from lakehead.extract.protection import exact_names
from lakehead.extract.raw_rows import INGEST_SCHEMA
from lakehead.extract.recon_queries import expected_rows
from lakehead.extract.recon_report import Difference, KeyDifference, NumberDifference, Outcome, ReconReport
from lakehead.extract.recon_target import ReconTarget
from lakehead.extract.table_settings import TableSettings
from lakehead.source import bucket_queries
from lakehead.source.bucket_queries import BUCKETS, Bucket, HashedColumns, HashingConnection, KeyHash
from lakehead.source.hash_sql import why_not_hashed
from lakehead.source.port import Column, Overrides, Query, Source, TableInfo
from lakehead.state.model import Watermark
from lakehead.state.values import to_text

MAX_PENDING = 1_000_000
"""Rows written after the watermark; with more of them a comparison says little."""
MAX_OPENED = 16
"""Buckets that are compared key by key."""
MAX_OPENED_ROWS = 1_000_000
"""Rows in these buckets, on both sides together: their keys are held in memory. One bucket is always compared."""

_EXACT = Context(prec=200)

DELETES = (
    "Rows that the source has deleted stay in the target: mode {mode} does not see deletes unless they are compared. "
    "To remove them, reload the table: lakehead run CONFIG --only-tables {table} --reload"
)
LAG = (
    "Rows that were committed late, with a watermark of the last {lag:,} seconds before the point (lag_seconds), come "
    "with the next run. If they may be what differs, run the table and compare it again."
)
RELOAD = (
    "Find out first who has changed the target: look at its snapshots. Then load it again: "
    "lakehead run CONFIG --only-tables {table} --reload"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconSettings:
    """What is compared: the table's `reconciliation`."""

    counts: bool = True
    sums: tuple[str, ...] = ()
    """Columns whose sums, minima and maxima are compared."""
    checksums: tuple[str, ...] = ()
    """Columns whose values are hashed, besides the keys. Default: all that can be."""
    sample_keys: int = 0
    """About how many keys have their rows hashed; 0: all."""
    tolerated_rows: int = 0
    max_keys: int = 20
    """How many differing keys are listed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """The columns that are compared, and why others are not."""

    hashed: HashedColumns
    skipped: Mapping[str, str] = field(default_factory=dict)


def compared_columns(info: TableInfo, table: TableSettings, settings: ReconSettings, target: Sequence[str]) -> Compared:
    """Choose the columns to compare. The only place that leaves any out: floats, what the target lacks or protects."""
    skipped: dict[str, str] = {}
    protections = exact_names(info, table.columns)
    chosen = [info.column(name) for name in settings.checksums] or list(info.columns)
    keys = [info.column(name) for name in table.primary_keys or info.primary_key]
    for column in dict.fromkeys([*keys, *chosen]):
        if (rule := protections.get(column.name)) is not None:
            skipped[column.name] = f"it is {rule.word} in the target"
        elif (why := why_not_hashed(column.arrow)) is not None:
            skipped[column.name] = why
        elif column.name not in target:
            skipped[column.name] = "the target does not have it"
    if lacking := [key.name for key in keys if key.name in skipped]:
        raise Misconfigured(
            f"Table {table.name} cannot be compared by its key {', '.join(lacking)} ({skipped[lacking[0]]}). Set "
            "primary_keys to columns that can be compared."
        )
    rows = [column for column in dict.fromkeys([*keys, *chosen]) if column.name not in skipped]
    if not rows:
        raise Misconfigured(f"Table {table.name} has no column that can be compared. Set reconciliation.checksums.")
    summed = [info.column(name) for name in settings.sums]
    sums = tuple(column for column in summed if column.name in target)
    skipped |= {column.name: "the target does not have it" for column in summed if column.name not in target}
    known = {*INGEST_SCHEMA.names, *(column.name for column in info.columns)}
    skipped |= {name: "the source does not have it" for name in target if name not in known}
    for column in summed:
        if not (kinds.is_integer(column.arrow) or kinds.is_decimal(column.arrow)):
            raise Misconfigured(
                f"Column {column.name!r} of {table.name} is of type {column.declared}, whose sums are not exact. "
                "Remove it from reconciliation.sums."
            )
    return Compared(
        hashed=HashedColumns(keys=tuple(keys or rows), rows=tuple(rows), sums=sums, spread=settings.sample_keys > 0),
        skipped=skipped,
    )


def reconcile_table(
    table: TableSettings,
    settings: ReconSettings,
    source: Source,
    target: ReconTarget,
    reached: Watermark,
    clock: Clock,
) -> ReconReport:
    """Compare a table with its source. `reached` is the watermark up to which the target has rows.

    Raises `Misconfigured` for columns that do not exist or cannot be compared.
    """
    started = clock.monotonic()
    if not isinstance(source, HashingConnection):
        raise Misconfigured(f"{source.settings} cannot be compared with: its SQL is unknown.")
    comparison = _Comparison(table, settings, source, source, target, reached)
    with source.consistent_reads():
        report = comparison.run()
    return replace(report, seconds=clock.monotonic() - started)


@dataclass(frozen=True, slots=True)
class _Comparison:
    table: TableSettings
    settings: ReconSettings
    source: Source
    connection: HashingConnection
    target: ReconTarget
    reached: Watermark

    def run(self) -> ReconReport:
        table = self.table
        overrides = Overrides(as_text=frozenset(table.as_text), decimals=table.as_decimal)
        info = self.source.describe_table(table.source, overrides)
        compared = compared_columns(info, table, self.settings, self.target.columns())
        expected = expected_rows(table, self.source, self.connection, info, compared.hashed.keys, self.reached)
        report = ReconReport(
            table=table.name, outcome=Outcome.EQUAL, point=self._point(), skipped=compared.skipped, notes=self._notes()
        )
        if self.connection.hash_sql is None:
            return self._by_totals(report, expected.query, compared.hashed)
        pending: list[str] = []
        if expected.later is not None and not expected.replaced:
            report = replace(report, pending=self.source.count(expected.later))
        elif expected.later is not None:
            pending = bucket_queries.key_texts(self.connection, expected.later, compared.hashed.keys, MAX_PENDING + 1)
        if len(pending) > MAX_PENDING:
            return replace(
                report,
                outcome=Outcome.NOT_COMPARED,
                notes=(f"More than {MAX_PENDING:,} rows were written after the watermark. Run the table first.",),
            )
        report = replace(report, pending=report.pending + len(pending))
        return self._by_buckets(report, expected.query, compared.hashed, pending)

    def _point(self) -> str:
        if self.table.mode.incremental:
            return f"{self.table.incremental_column} up to {to_text(self.reached.value)[1]}"
        return f"the source now, and the load of {self.reached.last_loaded} at {self.target.last_loaded()} UTC"

    def _notes(self) -> tuple[str, ...]:
        if self.table.mode.incremental:
            return ()
        changed = "what the source has changed since the load counts as a difference."
        return (f"There is no watermark in mode {self.table.mode.name}: {changed}",)

    def _by_totals(self, report: ReconReport, query: Query, hashed: HashedColumns) -> ReconReport:
        """Compare counts and sums only, because the source's SQL is unknown."""
        here = bucket_queries.count_and_sum(self.connection, query, hashed.sums)
        there = self.target.count_and_sum(hashed)
        note = f"Only counts and sums were compared: the hash functions of {self.source.settings} are unknown."
        found = self._with_totals(replace(report, notes=(*report.notes, note)), here, there, hashed.sums)
        return self._judged(found, abs(here.rows - there.rows))

    def _by_buckets(
        self, report: ReconReport, query: Query, hashed: HashedColumns, pending: Sequence[str]
    ) -> ReconReport:
        """Compare buckets, on both sides at the same time, and open those that differ."""
        sample, below, notes = self.settings.sample_keys, BUCKETS, report.notes
        totals: tuple[Bucket, Bucket] | None = None
        if sample:
            plain = bucket_queries.count_and_sum(self.connection, query, hashed.sums)
            totals = plain, self.target.count_and_sum(hashed, pending)
            below = min(BUCKETS, max(1, -(-sample * BUCKETS // max(1, plain.rows))))
            notes = (*notes, f"The rows of a sample of keys were hashed: {below:,} of {BUCKETS:,} buckets.")
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(self.target.buckets, hashed, pending, below)
            here = bucket_queries.buckets(self.connection, query, hashed, below)
            there = asked.result()
        differ = sorted(bucket for bucket in {*here, *there} if here.get(bucket) != there.get(bucket))
        opened = _to_open(differ, here, there)
        found: list[KeyDifference] = []
        if opened:
            one = bucket_queries.keys_of(self.connection, query, hashed, opened)
            other = self.target.keys_of(hashed, opened, pending)
            found = differences_of(one, other)
        width = len(hashed.sums)
        sums = totals or (total_of(here.values(), width), total_of(there.values(), width))
        told = self._with_totals(replace(report, notes=notes), *sums, hashed.sums)
        told = replace(
            told,
            buckets=len(differ),
            not_opened=len(differ) - len(opened),
            differences=dict(Counter(each.kind for each in found)),
            keys=tuple(found[: self.settings.max_keys]),
        )
        rows = len(found) if len(opened) == len(differ) else None
        if totals and rows is not None:
            rows = max(rows, abs(told.source_rows - told.target_rows))  # type: ignore[operator] # both are known
        return self._judged(told, rows)

    def _with_totals(self, report: ReconReport, here: Bucket, there: Bucket, sums: Sequence[Column]) -> ReconReport:
        numbers = tuple(
            NumberDifference(column.name, what, *(None if value is None else str(value) for value in (one, other)))
            for column, ones, others in zip(sums, here.numbers, there.numbers, strict=True)
            for what, one, other in zip(("sum", "min", "max"), ones, others, strict=True)
            if one != other
        )
        return replace(report, source_rows=here.rows, target_rows=there.rows, numbers=numbers)

    def _judged(self, report: ReconReport, rows: int | None) -> ReconReport:
        """Return the report with its outcome and what to do. `rows` differ; None: unknown, and more than tolerated."""
        if not self.settings.counts and self.connection.hash_sql is None:
            rows = 0
        if rows == 0 and not report.numbers:
            return report
        if rows is not None and 0 < rows <= self.settings.tolerated_rows:
            note = f"{rows:,} rows differ, and tolerated_rows is {self.settings.tolerated_rows:,}."
            return replace(report, notes=(*report.notes, note))
        advice = [RELOAD.format(table=self.table.name)]
        if self.table.lag_seconds and self.table.mode.incremental:
            advice.insert(0, LAG.format(lag=self.table.lag_seconds))
        if report.differences.get(Difference.EXTRA) and self.table.mode.incremental:
            advice.insert(0, DELETES.format(table=self.table.name, mode=self.table.mode.name))
        return replace(report, outcome=Outcome.DIFFERENT, notes=(*report.notes, *advice))


def _to_open(differ: Sequence[int], here: Mapping[int, Bucket], there: Mapping[int, Bucket]) -> list[int]:
    """Return the first differing buckets, as many as may be compared key by key."""
    opened, rows = list[int](), 0
    for bucket in differ[:MAX_OPENED]:
        rows += sum(side[bucket].rows for side in (here, there) if bucket in side)
        if opened and rows > MAX_OPENED_ROWS:
            break
        opened.append(bucket)
    return opened


def differences_of(
    source: Mapping[tuple[int, str], KeyHash], target: Mapping[tuple[int, str], KeyHash]
) -> list[KeyDifference]:
    """Compare two sides key by key."""
    found = []
    for bucket, key in sorted({*source, *target}):
        one, other = source.get((bucket, key)), target.get((bucket, key))
        if one == other:
            continue
        if other is None:
            kind = Difference.MISSING
        elif one is None:
            kind = Difference.EXTRA
        elif one.rows != other.rows:
            kind = Difference.DOUBLED if other.rows > one.rows else Difference.FEWER
        else:
            kind = Difference.CHANGED
        found.append(KeyDifference(kind, bucket, key))
    return found


def total_of(buckets: Iterable[Bucket], width: int) -> Bucket:
    """Add up buckets of `width` number columns."""
    every = list(buckets)
    numbers: list[tuple[Decimal | None, Decimal | None, Decimal | None]] = []
    for place in range(width):
        sums, least, most = (
            [value for each in every if (value := each.numbers[place][part]) is not None] for part in range(3)
        )
        numbers.append((exact_sum(sums), min(least, default=None), max(most, default=None)))
    return Bucket(sum(each.rows for each in every), 0, tuple(numbers))


def exact_sum(values: Iterable[Decimal]) -> Decimal | None:
    """Add decimals without rounding; None if there are none."""
    total: Decimal | None = None
    for value in values:
        total = value if total is None else _EXACT.add(total, value)
    return total
