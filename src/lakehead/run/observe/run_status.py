"""The current status of a run and of each of its tables, kept from the run's events."""

import threading
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from lakehead.telemetry.emitter import EventEnvelope
from lakehead.telemetry.events import (
    Event,
    LateCommitsUnknown,
    PhaseMarked,
    RunDone,
    RunStart,
    TableDone,
    TableFailed,
    TableHeldBack,
    TablePlanned,
    TableReconciled,
    TableSkipped,
    TableStale,
    TableStart,
    TableStep,
)

ABOUT_TABLES = (TableStale, TableReconciled)
"""What is told of tables that need not have started."""


class TableOutcome(StrEnum):
    """Whether a table is running, or how it ended."""

    RUNNING = "running"
    DONE = "done"
    SKIPPED = "skipped"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableStatus:
    """The status of one table after the events seen so far."""

    table: str
    started_at: datetime
    outcome: TableOutcome = TableOutcome.RUNNING
    mode: str = ""
    step: str = ""
    slice: int | None = None
    slices: int | None = None
    rows: int | None = None
    """Rows read from the source."""
    published: int | None = None
    """Rows written to the mirror or final table."""
    seconds: float | None = None
    watermark: str | None = None
    message: str = ""
    """Why the table was skipped, or its error message."""
    held_back: TableHeldBack | None = None
    late_commits: LateCommitsUnknown | None = None

    def after(self, event: Event) -> "TableStatus":
        """Return the status after one more event."""
        match event:
            case TableStart():
                return replace(self, mode=event.mode)
            case TableStep():
                return replace(
                    self,
                    step=event.step,
                    rows=self.rows if event.rows is None else event.rows,
                    slice=self.slice if event.slice is None else event.slice,
                    slices=self.slices if event.slices is None else event.slices,
                )
            case TablePlanned():
                return replace(
                    self, step="planned", slices=event.slices, slice=min(event.done + 1, event.slices) or None
                )
            case PhaseMarked():
                return self._after_phase(event)
            case TableHeldBack():
                return replace(self, held_back=event)
            case LateCommitsUnknown():
                return replace(self, late_commits=event)
            case TableDone():
                return replace(
                    self,
                    outcome=TableOutcome.DONE,
                    rows=event.rows,
                    published=event.published,
                    seconds=event.seconds,
                    slices=self.slices if event.slices is None else event.slices,
                    watermark=event.watermark,
                )
            case TableSkipped():
                return replace(self, outcome=TableOutcome.SKIPPED, message=event.reason)
            case TableFailed():
                return replace(self, outcome=TableOutcome.FAILED, message=event.error, seconds=event.seconds)
            case _:
                return self

    def _after_phase(self, event: PhaseMarked) -> "TableStatus":
        step = f"{event.phase} {event.state}"
        if event.phase != "raw":  # these rows were already counted when raw was written
            return replace(self, step=step)
        rows = max((rows for rows in (self.rows, event.rows) if rows is not None), default=None)
        return replace(self, step=step, rows=rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableCounts:
    """The number of tables by outcome."""

    total: int
    running: int
    done: int
    skipped: int
    failed: int
    rows: int
    """Rows read so far, over all tables."""

    @property
    def waiting(self) -> int:
        """Tables that have not started."""
        return self.total - self.running - self.done - self.skipped - self.failed


class RunStatus:
    """A subscriber that keeps the status of every table. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tables: dict[str, TableStatus] = {}
        self._total = 0
        self.started_at: datetime | None = None
        """When the run started; None before."""
        self.seconds: float | None = None
        """How long the run took; None until it has ended."""

    def __call__(self, envelope: EventEnvelope) -> None:
        """Update the status."""
        event, table = envelope.event, envelope.table
        with self._lock:
            if isinstance(event, RunStart):
                self._total = event.tables
                self.started_at = envelope.at
            elif isinstance(event, RunDone):
                self.seconds = event.seconds
            elif table is not None and (table in self._tables or not isinstance(event, ABOUT_TABLES)):
                new = TableStatus(table=table, started_at=envelope.at)
                known = new if isinstance(event, TableStart) else self._tables.get(table, new)
                self._tables[table] = known.after(event)

    def table(self, name: str) -> TableStatus | None:
        """Return the status of one table; None if it had no event yet."""
        with self._lock:
            return self._tables.get(name)

    def tables(self, *outcomes: TableOutcome) -> list[TableStatus]:
        """Return the tables with one of these outcomes (default: any), in the order of their first events."""
        with self._lock:
            return [each for each in self._tables.values() if not outcomes or each.outcome in outcomes]

    def counts(self) -> TableCounts:
        """Count tables by outcome. The total is the number that `RunStart` gave, or of tables seen if that is more."""
        tables = self.tables()
        outcomes = [each.outcome for each in tables]
        return TableCounts(
            total=max(self._total, len(outcomes)),
            running=outcomes.count(TableOutcome.RUNNING),
            done=outcomes.count(TableOutcome.DONE),
            skipped=outcomes.count(TableOutcome.SKIPPED),
            failed=outcomes.count(TableOutcome.FAILED),
            rows=sum(each.rows or 0 for each in tables),
        )
