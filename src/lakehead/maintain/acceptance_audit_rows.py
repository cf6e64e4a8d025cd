"""Whether each accepted record is in one row of its Iceberg table. Read by PyIceberg, without Spark.

Of each data file only agent, boot and sequence number are read, some rows at a time, and folded into ranges: memory
holds the sequence numbers of one file, and the ranges of all boots. Deletes by position are applied; equality deletes
are refused by PyIceberg.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import ArrowScan, _read_all_delete_files
from pyiceberg.table import Table

from lakehead.errors import LakeheadError
from lakehead.maintain.acceptance_audit_numbers import AcceptedNumbers, Boot
from lakehead.maintain.acceptance_audit_report import AuditReport, FindingKind, numbers_of
from lakehead.wire.record_schemas import FrameKind
from lakehead.wire.spans import Span, Spans, common, merged, without

AGENT, BOOT, SEQ = COLUMNS = ("agent", "boot", "seq")
"""The columns that say which record a row is."""

Numbers = npt.NDArray[np.int64]


class RowsUnread(LakeheadError):
    """The rows of a table cannot be read, and the message says why."""


@dataclass(slots=True)
class TableRows:
    """The records of a table, as ranges of sequence numbers by boot."""

    boots: dict[Boot, Spans] = field(default_factory=dict)
    doubled: dict[Boot, Spans] = field(default_factory=dict)
    """Those that are in several rows."""

    rows: int = 0
    without_identity: int = 0
    """Rows that do not say which record they are."""

    def add(self, boot: Boot, numbers: Numbers) -> None:
        """Add the sequence numbers of rows of a boot, in any order. Those that are there already are doubled."""
        spans, doubled = folded(numbers)
        known = self.boots.get(boot, ())
        doubled = merged([*doubled, *common(known, spans)])
        self.boots[boot] = merged([*known, *spans])
        if doubled:
            self.doubled[boot] = merged([*self.doubled.get(boot, ()), *doubled])

    def only(self, agents: Collection[str]) -> "TableRows":
        """The same of some agents alone."""
        return TableRows(
            boots={boot: spans for boot, spans in self.boots.items() if boot[0] in agents},
            doubled={boot: spans for boot, spans in self.doubled.items() if boot[0] in agents},
            rows=self.rows,
        )


def read_rows(table: Table, *, progress: Callable[[int], object] = lambda _rows: None) -> TableRows:
    """Read which records are in the current snapshot of a table, a data file at a time.

    `progress` is called with the number of rows so far. Raises what PyIceberg raises if it cannot read the table.
    """
    found = TableRows()
    scan = table.scan(selected_fields=COLUMNS)
    arrow = ArrowScan(table.metadata, table.io, scan.projection(), AlwaysTrue())
    for task in scan.plan_files():
        numbers: dict[Boot, list[Numbers]] = {}
        deletes = _read_all_delete_files(table.io, [task])
        # `to_record_batches` would hold all columns of the file in memory.
        for batch in arrow._record_batches_from_scan_tasks_and_deletes([task], deletes):  # noqa: SLF001 - see above
            _fold(batch, numbers, found)
        for boot, parts in numbers.items():
            found.add(boot, np.concatenate(parts))
        progress(found.rows)
    return found


def compare_rows(kind: FrameKind, rows: TableRows, accepted: AcceptedNumbers, report: AuditReport) -> dict[Boot, Spans]:
    """Tell which accepted records are in no row or in several. Returns rows of no batch that the scan has seen."""
    report.rows += rows.rows
    for boot, required in accepted.boots(kind):
        if missing := without(required, rows.boots.get(boot, ())):
            report.add(FindingKind.ROWS_MISSING, numbers_of(*boot, missing), f"in the table of {kind.word}")
    for boot, doubled in rows.doubled.items():
        report.add(FindingKind.ROWS_DOUBLED, numbers_of(*boot, doubled), f"in the table of {kind.word}")
    if rows.without_identity:
        report.add(
            FindingKind.ROWS_UNKNOWN,
            f"{rows.without_identity:,} rows in the table of {kind.word}",
            f"{', '.join(COLUMNS)} are not set",
        )
    unknown = {boot: without(spans, accepted.allowed_of(kind, boot)) for boot, spans in rows.boots.items()}
    return {boot: spans for boot, spans in unknown.items() if spans}


def folded(numbers: Numbers) -> tuple[Spans, Spans]:
    """Return numbers in any order as spans, and those that are there more than once."""
    ordered = np.sort(numbers)
    steps = np.diff(ordered)
    again = np.unique(ordered[1:][steps == 0])
    return _spans(ordered[np.concatenate(([True], steps != 0))]), _spans(again)


def _spans(ordered: Numbers) -> Spans:
    """Numbers that only grow, as spans."""
    if not len(ordered):
        return ()
    breaks = np.flatnonzero(np.diff(ordered) > 1)
    starts = ordered[np.concatenate(([0], breaks + 1))]
    ends = ordered[np.concatenate((breaks, [len(ordered) - 1]))] + 1
    found: Iterable[Span] = zip(starts.tolist(), ends.tolist(), strict=True)
    return tuple(found)


def _fold(batch: pa.RecordBatch, numbers: dict[Boot, list[Numbers]], found: TableRows) -> None:
    """Divide the rows of a batch by boot."""
    found.rows += batch.num_rows
    columns: Mapping[str, pa.Array] = {name: batch.column(name) for name in COLUMNS}
    valid = pc.and_(pc.and_(columns[AGENT].is_valid(), columns[BOOT].is_valid()), columns[SEQ].is_valid())
    if not (complete := bool(pc.all(valid).as_py() if len(valid) else True)):
        found.without_identity += batch.num_rows - pc.sum(valid).as_py()
    agents, boots = (
        (columns[name] if complete else columns[name].filter(valid)).dictionary_encode() for name in (AGENT, BOOT)
    )
    sequence = np.asarray((columns[SEQ] if complete else columns[SEQ].filter(valid)).to_numpy(zero_copy_only=False))
    pairs = _indices(agents) * max(1, len(boots.dictionary)) + _indices(boots)
    order = np.argsort(pairs, kind="stable")
    for pair, some in zip(*_groups(pairs[order], sequence[order]), strict=True):
        agent, boot = divmod(int(pair), max(1, len(boots.dictionary)))
        name = (agents.dictionary[agent].as_py(), boots.dictionary[boot].as_py())
        numbers.setdefault(name, []).append(some.astype(np.int64))


def _groups(pairs: Numbers, sequence: Numbers) -> tuple[Numbers, list[Numbers]]:
    starts = np.flatnonzero(np.concatenate(([True], np.diff(pairs) != 0))) if len(pairs) else np.array([], np.int64)
    return pairs[starts], np.split(sequence, starts[1:]) if len(pairs) else []


def _indices(values: pa.DictionaryArray) -> Numbers:
    return np.asarray(values.indices.to_numpy(zero_copy_only=False)).astype(np.int64)
