"""The state as one run uses it: read once for all tables, events written in batches, decisions written at once."""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from datetime import date, timedelta
from types import TracebackType
from typing import Self

from lakehead.clock import Clock
from lakehead.errors import LakeheadError
from lakehead.periodic_task import PeriodicTask
from lakehead.state.model import DayStatus, EventRecord, JsonObject, Mark, SlicePlan, Watermark
from lakehead.state.state import State


class TimeAwareBufferedSink:
    """Buffers events and writes them when there are many, when the oldest has waited long enough, and on `flush`.

    Events that could not be written are kept and written with the next; beyond a limit the oldest are dropped and
    counted. Events are an audit trail only, so a killed process loses at worst those that it had not written.
    """

    def __init__(
        self,
        write: Callable[[Sequence[EventRecord]], None],
        clock: Clock,
        *,
        size: int = 500,
        age: timedelta = timedelta(seconds=5),
        limit: int = 100_000,
    ) -> None:
        self._write = write
        self._clock = clock
        self._size = size
        self._age = age.total_seconds()
        self._limit = limit
        self._waiting: deque[EventRecord] = deque()
        self._since = 0.0
        self._not_before = clock.monotonic()
        self._buffer = threading.Lock()
        self._writing = threading.Lock()
        self.dropped = 0
        """Events that were dropped because the state could not be written for too long."""

    def add(self, event: EventRecord) -> None:
        """Add an event. Does not raise if the state cannot be written now."""
        with self._buffer:
            if not self._waiting:
                self._since = self._clock.monotonic()
            self._waiting.append(event)
            if len(self._waiting) > self._limit:
                self._waiting.popleft()
                self.dropped += 1
        self.tick()

    def tick(self) -> None:
        """Write the buffered events if they are due. If that fails, they are kept and written later."""
        with self._buffer:
            now = self._clock.monotonic()
            due = len(self._waiting) >= self._size or now - self._since >= self._age
        if due and self._waiting and now >= self._not_before:
            try:
                self.flush()
            except LakeheadError:
                self._not_before = self._clock.monotonic() + self._age

    def flush(self) -> None:
        """Write all buffered events now. If the state raises, the error is raised and the events are kept."""
        with self._writing:  # one writer at a time, or events would be written out of order
            with self._buffer:
                taken = list(self._waiting)
            if not taken:
                return
            self._write(taken)  # safe to repeat after an unknown outcome, because events have ids
            with self._buffer:
                written = {event.id for event in taken}
                self._waiting = deque(event for event in self._waiting if event.id not in written)
                self._since = self._clock.monotonic()


class BufferedState:
    """A state with a cache, for one run. Use it in a `with`: buffered events are written at its end in any case.

    Events are buffered in a sink. Watermarks, day status and plans decide what is done next, so they are written to the
    database before they are cached, and the cache only ever holds what this run has read or written.
    """

    def __init__(self, state: State, clock: Clock, *, size: int = 500, age: timedelta = timedelta(seconds=5)) -> None:
        self.state = state
        self.sink = TimeAwareBufferedSink(state.history.add_events, clock, size=size, age=age)
        self._flushing = PeriodicTask(age.total_seconds() / 2, self.sink.tick, name="lakehead-state-sink")
        self._watermarks: dict[tuple[str, Mark], Watermark] = {}
        self._days: dict[tuple[str, date], dict[str, DayStatus]] = {}
        self._plans: dict[str, SlicePlan] = {}
        self._known: set[str] = set()

    def preload(self, tables: Iterable[str], load_date: date) -> None:
        """Read watermarks, day status and plans of many tables into the cache: four queries for up to 1,000 tables."""
        wanted = set(tables)
        progress = self.state.progress
        self._watermarks.update(progress.watermarks(wanted))
        for status in progress.days(wanted, load_date):
            self._days.setdefault((status.table, load_date), {})[status.phase] = status
        for table in wanted:
            self._days.setdefault((table, load_date), {})
        self._plans.update(self.state.slices.load_many(wanted))
        self._known |= wanted

    def watermark(self, table: str, mark: Mark = Mark.DONE) -> Watermark | None:
        """The table's watermark."""
        if table not in self._known and (table, mark) not in self._watermarks:
            found = self.state.progress.watermark(table, mark)
            if found is not None:
                self._watermarks[table, mark] = found
        return self._watermarks.get((table, mark))

    def day(self, table: str, load_date: date) -> dict[str, DayStatus]:
        """The status of each phase of the table for the load date."""
        if (table, load_date) not in self._days:
            read = self.state.progress.days([table], load_date)
            self._days[table, load_date] = {status.phase: status for status in read}
        return dict(self._days[table, load_date])

    def plan(self, table: str) -> SlicePlan | None:
        """The table's plan as this run last read or saved it. To land a slice, read it from the state instead."""
        if table not in self._known and table not in self._plans:
            found = self.state.slices.load(table)
            if found is not None:
                self._plans[table] = found
        return self._plans.get(table)

    def advance(self, reached: Watermark) -> bool:
        """Move a watermark forward, durably. False if another run was further; then that one is cached."""
        moved = self.state.progress.advance(reached)
        now = reached if moved else self.state.progress.watermark(reached.table, reached.mark)
        if now is not None:
            self._watermarks[reached.table, reached.mark] = now
        return moved

    def mark_day(self, status: DayStatus) -> None:
        """Write the status of a phase, durably."""
        self.state.progress.mark_days([status])
        self._days.setdefault((status.table, status.load_date), {})[status.phase] = status

    def save_plan(self, plan: SlicePlan) -> SlicePlan:
        """Store a plan before it runs, durably. Returns the plan to run, which may be another run's."""
        kept = self.state.slices.save(plan)
        self._plans[plan.table] = kept
        return kept

    def discard_plan(self, table: str, plan: str) -> bool:
        """Delete a plan, durably. False if it is no longer the table's plan."""
        discarded = self.state.slices.discard(table, plan)
        self._plans.pop(table, None)
        return discarded

    def emit(
        self, kind: str, *, table: str | None = None, run: str | None = None, payload: JsonObject | None = None
    ) -> EventRecord:
        """Add an event. It is written with the next flush."""
        event = self.state.history.event(kind, table=table, run=run, payload=payload)
        self.sink.add(event)
        return event

    def flush(self) -> None:
        """Write all buffered events now."""
        self.sink.flush()

    def __enter__(self) -> Self:
        self._flushing.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._flushing.__exit__(kind, error, at)
        try:
            self.flush()
        except LakeheadError as lost:
            if error is None:
                raise
            error.add_note(f"Events of this run could not be written: {lost}")
