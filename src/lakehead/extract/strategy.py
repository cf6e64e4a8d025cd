"""What a mode of loading is, what it is given, and which there are."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date
from typing import Protocol

from lakehead.clock import Clock
from lakehead.errors import LakeheadError, Misconfigured
from lakehead.extract.planning.planner import Planner
from lakehead.extract.planning.slicing import SlicingPolicy
from lakehead.extract.sink import Overtaken, TableSink, Written
from lakehead.extract.table import TableSettings
from lakehead.ids import Ids
from lakehead.source.filters import parse_filter
from lakehead.source.port import Filter, Overrides, Source, TableInfo
from lakehead.state.buffered import BufferedState
from lakehead.state.model import DayState, DayStatus
from lakehead.telemetry.events import Happened, PhaseMarked, TableProgress


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """A table that was loaded."""

    rows: int
    """Read from the source."""

    published: int | None = None
    """Written for readers, whoever has read them: merged into the mirror, or into the final. None where nobody has
    counted them, or raw is what readers read."""

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
    """Written for readers; None where nothing was, or nobody has counted."""

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
    """Reaches the source, when it is needed: what is done already needs none."""

    state: BufferedState
    emit: Callable[[Happened], None]
    sentence: Callable[[Exception], str] = str
    """What a person is told of an error that ends a phase."""

    run: str
    load_date: date
    lag_seconds: int = 0
    """Of the whole run; the larger of it and the table's counts."""

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

    def described(self, source: Source) -> tuple[TableInfo, Filter | None]:
        """The source's table, every column of which can be read and every one that we need is there; and the filter."""
        overrides = Overrides(as_text=frozenset(self.table.as_text), decimals=self.table.as_decimal)
        info = source.catalogue(self.table.source, overrides)
        info.readable()
        for name in (*self.table.primary_keys, *self.table.tiebreak_columns):
            info.column(name)
        written = self.table.source_filter
        return info, parse_filter(written, info, source.dialect) if written else None

    def progress(self, step: str, *, slice: int | None = None, slices: int | None = None) -> None:  # noqa: A002 - the event's word
        """Tell what is being done."""
        self.emit(TableProgress(step=step, rows=self.tally.rows, slice=slice, slices=slices))

    def pause(self, seconds: float) -> None:
        """Let time pass."""
        asyncio.run(_sleep(self.clock, seconds))

    def day(self) -> dict[str, DayState]:
        """How each phase of the table stands for the load date."""
        table = self.sink.id
        return {} if table is None else {phase: d.state for phase, d in self.state.day(table, self.load_date).items()}

    def reopen(self, phase: str) -> None:
        """Say that a phase is done no more: what it was done with is about to change, and a rerun is to see to it."""
        if self.day().get(phase) is DayState.DONE:
            self._mark(phase, DayState.RUNNING, {})

    @contextmanager
    def phase(self, phase: str) -> Iterator["Phase"]:
        """A phase of the table: marked as done, or as failed if it raises."""
        marked = Phase()
        try:
            yield marked
        except Overtaken:
            raise  # nothing has failed: it is decided anew
        except Exception as error:
            detail = {"error": self.sentence(error)}
            try:
                self._mark(phase, DayState.FAILED, dict(detail))
            except LakeheadError as unmarked:  # the first error says more, as where both are on a disk that is full
                error.add_note(f"Besides, that it failed could not be written: {unmarked}")
            self.emit(PhaseMarked(phase=phase, state=DayState.FAILED, detail=detail))
            raise
        written = marked.written
        told = {} if written is None else {"rows": written.rows, "location": written.location, **written.detail}
        self._mark(phase, DayState.DONE, {**told, **marked.detail})
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
    """What a phase has to tell."""

    written: Written | None = None
    detail: dict[str, object] = field(default_factory=dict)


class Strategy(Protocol):
    """A mode of loading."""

    def run(self, context: ExecutionContext) -> Done | Skipped:
        """Load the table. What raises has changed nothing that a rerun would not find."""
        ...


class StrategyRegistry:
    """The modes that a run knows."""

    def __init__(self) -> None:
        self._strategies: dict[str, Strategy] = {}

    def register(self, mode: str, strategy: Strategy) -> None:
        """Make a mode known. Raises `Misconfigured` if its name is taken."""
        if mode in self._strategies:
            raise Misconfigured(f"There is a strategy for the mode {mode!r} already.")
        self._strategies[mode] = strategy

    def of(self, mode: str) -> Strategy:
        """The strategy of a mode. Raises `Misconfigured` for one that is not known."""
        if mode not in self._strategies:
            raise Misconfigured(f"The mode {mode!r} is not known. There are {', '.join(sorted(self._strategies))}.")
        return self._strategies[mode]
