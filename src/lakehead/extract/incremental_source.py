"""Translates between a source and the planner: the source's facts for a plan, and a plan's windows as queries."""

import re
from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa
import pyarrow.types as kinds

from lakehead.errors import Misconfigured
from lakehead.extract.planning.axis import Kind
from lakehead.extract.planning.planner import Capabilities, SourceFacts
from lakehead.extract.planning.watermarks import Reach
from lakehead.extract.planning.windows import Window
from lakehead.extract.table_settings import Rule
from lakehead.source.port import Column, Filter, Nulls, OpenTransactions, Query, Source, SourceWindow, TableInfo


@dataclass(frozen=True, slots=True)
class IncrementalSource:
    """A source table that is read in windows of one of its columns."""

    source: Source
    info: TableInfo
    column: Column
    kind: Kind
    filter: Filter | None
    null_watermarks: Rule
    columns: tuple[str, ...] | None = None
    """The columns to read. Default: all."""

    def query(self, window: Window | None = None, *, last: bool = True) -> Query:
        """The query for a window. Rows without a watermark, if included, belong to the last window of a plan."""
        nulls = Nulls(self.null_watermarks.value)
        if nulls is Nulls.INCLUDE and not last:
            nulls = Nulls.EXCLUDE
        bounded = SourceWindow(column=self.column.name, nulls=nulls)
        if window is not None:
            lower, upper = window.lower, window.upper
            bounded = SourceWindow(
                column=self.column.name,
                lower=lower.value if lower else None,
                upper=upper.value,
                lower_included=lower.included if lower else False,
                upper_included=upper.included,
                nulls=nulls,
            )
        return Query(table=self.info, columns=self.columns, filter=self.filter, window=bounded)

    def count(self, window: Window) -> int:
        """How many rows a window holds."""
        return self.source.count(self.query(window))

    def count_without_watermark(self) -> int:
        """How many rows have NULL as their watermark."""
        lacking = f"{self.source.quote(self.column.name)} IS NULL"
        kept = f"({self.filter.sql}) AND {lacking}" if self.filter else lacking
        return self.source.count(Query(table=self.info, filter=Filter(kept)))

    def check_possible(self) -> None:
        """Raise `Misconfigured` if the source cannot be read in windows."""
        if not self.source.capabilities.incremental:
            raise Misconfigured(
                f"{self.source.settings} cannot be read incrementally. Set the mode of {self.info} to full."
            )

    def answers(self) -> "Answers":
        """Ask the source for its time, the column's bounds and its open transactions, in this order.

        The time first: a transaction that begins after that has a later time. Open transactions last: one that took a
        number not above the highest either has ended by then, or is among them.
        """
        self.check_possible()
        can = Capabilities(
            incremental=self.source.capabilities.incremental,
            literal=lambda value: self.source.literal(value, self.column),
        )
        now = self.source.now()
        bounds = self.source.bounds(Query(table=self.info, filter=self.filter), self.column.name)
        asked_at = now.utc if self.kind.follows_the_clock else self.source.now().utc
        transactions = self.source.open_transactions()
        lowest, highest = bounds or (None, None)
        reach = Reach(
            now=now.utc,
            oldest_open=transactions.oldest,
            earliest_local=self.source.earliest_local,
            second_digits=self._second_digits(),
            lowest=lowest,
            highest=highest,
        )
        return Answers(SourceFacts(capabilities=can, reach=reach, probe=self), asked_at, transactions)

    def _second_digits(self) -> int:
        """How many digits of a second the column's moments have, as in timestamp(3)."""
        said = re.search(r"\(([0-6])\)", self.column.declared)
        return int(said[1]) if said else self.source.capabilities.second_digits


@dataclass(frozen=True, slots=True)
class Answers:
    """What a source answered before a plan is made."""

    facts: SourceFacts
    asked_at: datetime
    """The source's time: transactions that began later have later times, and numbers above the highest."""

    transactions: OpenTransactions


def kind_of_column(column: Column, wanted: Kind | None, info: TableInfo) -> Kind:
    """The kind of watermark a column holds. Raises `Misconfigured` if it cannot be one, or is not the wanted one."""
    kind = _kind(column.arrow) if column.arrow is not None else None
    if kind is None:
        raise Misconfigured(
            f"Column {column.name!r} of {info} is of type {column.declared}, which cannot be a watermark. Choose an "
            "integer, decimal, date, timestamp or text column whose value grows with every change."
        )
    if wanted is not None and wanted is not kind:
        raise Misconfigured(
            f"Column {column.name!r} of {info} is of type {column.declared}, a watermark of the kind {kind}. Its "
            f"incr_col_type says {wanted}: set it to {kind}, or remove it."
        )
    return kind


def _kind(arrow: pa.DataType) -> Kind | None:
    if kinds.is_timestamp(arrow):
        return Kind.TIMESTAMP if arrow.tz is None else Kind.TIMESTAMPTZ
    found = {
        Kind.INTEGER: kinds.is_integer,
        Kind.DECIMAL: kinds.is_decimal,
        Kind.DATE: kinds.is_date,
        Kind.TEXT: kinds.is_string,
    }
    return next((kind for kind, belongs in found.items() if belongs(arrow)), None)
