"""How every table of a run stands, from what was told of it."""

import threading
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from lakehead.telemetry.emitter import Told
from lakehead.telemetry.events import (
    Happened,
    LateCommitsUnknown,
    PhaseMarked,
    RunDone,
    RunStart,
    TableDone,
    TableFailed,
    TableHeldBack,
    TablePlanned,
    TableProgress,
    TableSkipped,
    TableStart,
)


class Outcome(StrEnum):
    """What has come of a table."""

    RUNNING = "running"
    DONE = "done"
    SKIPPED = "skipped"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """One table, as far as it was told of."""

    table: str
    began: datetime
    outcome: Outcome = Outcome.RUNNING
    mode: str = ""
    step: str = ""
    slice: int | None = None
    slices: int | None = None
    rows: int | None = None
    """Read from the source."""
    published: int | None = None
    """Written for readers."""
    seconds: float | None = None
    watermark: str | None = None
    said: str = ""
    """Why it was skipped, or the sentence with which it failed."""
    held_back: TableHeldBack | None = None
    late_commits: LateCommitsUnknown | None = None

    def after(self, event: Happened) -> "Standing":
        """How it stands when that has happened too."""
        match event:
            case TableStart():
                return replace(self, mode=event.mode)
            case TableProgress():
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
                    outcome=Outcome.DONE,
                    rows=event.rows,
                    published=event.published,
                    seconds=event.seconds,
                    slices=self.slices if event.slices is None else event.slices,
                    watermark=event.watermark,
                )
            case TableSkipped():
                return replace(self, outcome=Outcome.SKIPPED, said=event.reason)
            case TableFailed():
                return replace(self, outcome=Outcome.FAILED, said=event.error, seconds=event.seconds)
            case _:
                return self

    def _after_phase(self, event: PhaseMarked) -> "Standing":
        step = f"{event.phase} {event.state}"
        if event.phase != "raw":  # these rows were read before, by this run or by an earlier one
            return replace(self, step=step)
        rows = max((rows for rows in (self.rows, event.rows) if rows is not None), default=None)
        return replace(self, step=step, rows=rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """How many tables there are, and what has come of them."""

    total: int
    running: int
    done: int
    skipped: int
    failed: int
    rows: int
    """Rows of all tables so far."""

    @property
    def waiting(self) -> int:
        """Those that nothing was told of yet."""
        return self.total - self.running - self.done - self.skipped - self.failed


class Standings:
    """Listens, and remembers how every table stands. It may be asked from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tables: dict[str, Standing] = {}
        self._total = 0
        self.began: datetime | None = None
        """When the run began."""
        self.seconds: float | None = None
        """How long the run took, when it has ended."""

    def __call__(self, told: Told) -> None:
        """Hear of an event."""
        event, table = told.event, told.table
        with self._lock:
            if isinstance(event, RunStart):
                self._total = event.tables
                self.began = told.at
            elif isinstance(event, RunDone):
                self.seconds = event.seconds
            elif table is not None:
                begun = Standing(table=table, began=told.at)
                known = begun if isinstance(event, TableStart) else self._tables.get(table, begun)
                self._tables[table] = known.after(event)

    def of(self, table: str) -> Standing | None:
        """How one table stands; None if nothing was told of it."""
        with self._lock:
            return self._tables.get(table)

    def all(self, *outcomes: Outcome) -> list[Standing]:
        """All tables that were told of, or those with an outcome, in the order in which they were first told of."""
        with self._lock:
            return [each for each in self._tables.values() if not outcomes or each.outcome in outcomes]

    def counts(self) -> Counts:
        """The numbers of now. There are as many tables as the run said, or as were told of if those are more."""
        tables = self.all()
        outcomes = [each.outcome for each in tables]
        return Counts(
            total=max(self._total, len(outcomes)),
            running=outcomes.count(Outcome.RUNNING),
            done=outcomes.count(Outcome.DONE),
            skipped=outcomes.count(Outcome.SKIPPED),
            failed=outcomes.count(Outcome.FAILED),
            rows=sum(each.rows or 0 for each in tables),
        )
