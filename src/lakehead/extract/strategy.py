"""Strategies, one for each mode of loading: their interface, their context, and their registry."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date
from typing import Protocol

from lakehead.clock import Clock
from lakehead.errors import LakeheadError, Misconfigured
from lakehead.extract.modes import Mode
from lakehead.extract.planning.planner import Planner
from lakehead.extract.planning.slicing import SlicingPolicy
from lakehead.extract.protection import exact_names
from lakehead.extract.schema_checks import DescribedTable, check_unchanged, describe, loaded_as, validated
from lakehead.extract.sink import Reading, TableProgress, TableSink, Written
from lakehead.extract.table_settings import TableSettings
from lakehead.ids import Ids
from lakehead.lake.ports import Overtaken
from lakehead.metadata.drift import SchemaPlan
from lakehead.metadata.repository import MetadataAccess
from lakehead.source.filters import parse_filter
from lakehead.source.port import Query, Source, TableInfo
from lakehead.state.buffered import BufferedState
from lakehead.state.model import DayState, DayStatus, ReadBy
from lakehead.telemetry.events import Event, PhaseMarked, TableDescribed, TableStep

TRIES = 5
"""How often a step is attempted when other runs are faster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """A table that was loaded."""

    rows: int
    """Read from the source."""

    published: int | None = None
    """Rows written for readers, to the mirror or the final table, including rows that an earlier run has read. None if
    they were not counted, or if readers read raw."""

    slices: int | None = None
    watermark: str | None = None


@dataclass(frozen=True, slots=True)
class Skipped:
    """A table with nothing to do."""

    reason: str


@dataclass(slots=True)
class Tally:
    """What a run has done for a table so far."""

    rows: int = 0
    """Read from the source."""

    published: int | None = None
    """Written for readers; None if none were, or they were not counted."""

    phase_failed: bool = False
    """Whether a phase was marked as failed."""

    def publish(self, rows: int | None) -> None:
        """Count rows that were written for readers."""
        if rows is not None:
            self.published = (self.published or 0) + rows


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionContext:
    """What a strategy works with: one table in one run, in one thread."""

    table: TableSettings
    sink: TableSink
    open_source: Callable[[], Source]
    """Connects to the source. Called only if it is needed: a table that is already loaded needs no source."""

    state: BufferedState
    metadata: MetadataAccess = field(default_factory=MetadataAccess)
    """What is known of the source's table, and what is done when it changes."""

    emit: Callable[[Event], None]
    sentence: Callable[[Exception], str] = str
    """The message for users of an error that ends a phase."""

    run: str
    load_date: date
    lag_seconds: int = 0
    """The lag of the whole run; the larger of it and the table's applies."""

    planner: Planner
    slicing: SlicingPolicy
    clock: Clock
    ids: Ids
    tally: Tally = field(default_factory=Tally)

    @contextmanager
    def source(self) -> Iterator[Source]:
        """The source, for as long as it is used."""
        opened = self.open_source()
        try:
            yield opened
        finally:
            opened.close()

    def described(self, source: Source) -> DescribedTable:
        """The source's table, its changes decided. Raises if a column cannot be read or a needed one is missing."""
        info = describe(source, self.table)
        self.emit(TableDescribed(columns={column.name: column.declared for column in info.columns}))
        for name in (*self.table.primary_keys, *self.table.tiebreak_columns):
            info.column(name)
        plan = self.validate_schema(info)
        info.readable(plan.read)
        written = self.table.source_filter
        kept = parse_filter(written, info.column_names, source.sql_dialect) if written else None
        return DescribedTable(info, kept, plan)

    def validate_schema(self, info: TableInfo) -> SchemaPlan:
        """Compare the source's columns with the table's and with those of the last load, and decide what to do.

        Each change is an event. Raises if the policy stops the table, before anything is read or changed.
        """
        return validated(info, self.table, self.sink, self.metadata, self.emit)

    def prepare(self, described: DescribedTable, progress: TableProgress) -> TableProgress:
        """Prepare the sink for the table's rows. Returns the table's progress after that."""
        known = self.sink.id is not None
        self.sink.prepare(described.plan.columns)
        self.metadata.repository.keep_loaded(self.table.name, loaded_as(described, self.table))
        return progress if known else self.sink.progress()  # a mirror or final table may exist from before

    def reading(self, source: Source, query: Query, *, read_by: ReadBy | None = None) -> Reading:
        """What to read by a query of the table, and how."""
        table = self.table
        return Reading(
            source=source,
            query=query,
            reader=table.reader,
            parts=table.read_partitions,
            fetch_rows=table.fetch_rows,
            read_by=read_by,
            protections=exact_names(query.table, table.columns),
            verify=lambda: check_unchanged(source, table, query.table),
        )

    def progress(self, step: str, *, slice: int | None = None, slices: int | None = None) -> None:  # noqa: A002 - the event's word
        """Emit an event on what the table is doing."""
        self.emit(TableStep(step=step, rows=self.tally.rows, slice=slice, slices=slices))

    def pause(self, seconds: float) -> None:
        """Sleep."""
        asyncio.run(_sleep(self.clock, seconds))

    def day(self) -> dict[str, DayState]:
        """The state of each phase of the table for the load date."""
        table = self.sink.id
        return {} if table is None else {phase: d.state for phase, d in self.state.day(table, self.load_date).items()}

    def reopen(self, phase: str) -> None:
        """Mark a done phase as running again, because its input is about to change, so that a rerun repeats it."""
        if self.day().get(phase) is DayState.DONE:
            self._mark(phase, DayState.RUNNING, {})

    @contextmanager
    def phase(self, phase: str) -> Iterator["Phase"]:
        """Run a phase of the table. It is marked as done, or as failed if it raises."""
        marked = Phase()
        try:
            yield marked
        except Overtaken:
            raise  # not a failure: the step is attempted again
        except Exception as error:
            detail = {"error": self.sentence(error)}
            try:
                self._mark(phase, DayState.FAILED, dict(detail))
            except LakeheadError as unmarked:  # the first error is the cause, for example of a full disk
                error.add_note(f"The failure could not be recorded in the state: {unmarked}")
            self.tally.phase_failed = True
            self.emit(PhaseMarked(phase=phase, state=DayState.FAILED, detail=detail))
            raise
        written = marked.written
        result = {} if written is None else {"rows": written.rows, "location": written.location, **written.detail}
        self._mark(phase, DayState.DONE, {**result, **marked.detail})
        self.emit(
            PhaseMarked(
                phase=phase,
                state=DayState.DONE,
                rows=written.rows if written else None,
                location=written.location if written else None,
                snapshot=written.snapshot if written else None,
                detail={**(written.detail if written else {}), **marked.detail},
            )
        )

    def fail_before_phase(self, error: Exception) -> None:
        """Mark the next phase as failed, unless one is, for an error that came before the phase had begun.

        A phase that is done for the load date stays done in the state.
        """
        if self.tally.phase_failed:
            return
        detail: dict[str, object] = {"error": self.sentence(error)}
        try:
            if self.day().get("raw") is not DayState.DONE:
                self._mark("raw", DayState.FAILED, dict(detail))
        except LakeheadError as unmarked:
            error.add_note(f"The failure could not be recorded in the state: {unmarked}")
        self.emit(PhaseMarked(phase="raw", state=DayState.FAILED, detail=detail))

    def _mark(self, phase: str, state: DayState, detail: dict[str, object]) -> None:
        if self.sink.id is not None:
            status = DayStatus(
                table=self.sink.id, load_date=self.load_date, phase=phase, state=state, run=self.run, detail=detail
            )
            self.state.mark_day(status)


async def _sleep(clock: Clock, seconds: float) -> None:
    await clock.sleep(seconds)


@dataclass(slots=True)
class Phase:
    """The result of a phase, for its event and its state."""

    written: Written | None = None
    detail: dict[str, object] = field(default_factory=dict)


def too_slow(table: TableSettings, attempts: int = TRIES) -> Overtaken:
    """The error of a step that other runs finished first at every attempt."""
    return Overtaken(f"Other runs of {table.name} were faster {attempts} times. Run it again.")


class Strategy(Protocol):
    """A mode of loading."""

    def run(self, context: ExecutionContext) -> Done | Skipped:
        """Load the table. If it raises, a rerun finds everything that was written."""
        ...


class StrategyRegistry:
    """The strategy of each mode."""

    def __init__(self) -> None:
        self._strategies: dict[str, Strategy] = {}

    def register(self, mode: Mode, strategy: Strategy) -> None:
        """Carry out a mode by this strategy. Raises `Misconfigured` if it has one."""
        if mode.name in self._strategies:
            raise Misconfigured(f"The mode {mode.name!r} already has a strategy.")
        self._strategies[mode.name] = strategy

    def of(self, mode: Mode) -> Strategy:
        """The strategy of a mode. Raises `Misconfigured` if none is registered."""
        if mode.name not in self._strategies:
            known = ", ".join(sorted(self._strategies))
            raise Misconfigured(f"No strategy is registered for the mode {mode.name!r}. There are {known}.")
        return self._strategies[mode.name]
