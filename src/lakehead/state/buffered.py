"""State for a run: read once for all tables, told in batches, durable at once where it decides."""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from datetime import date, timedelta
from types import TracebackType
from typing import Self

from lakehead.clock import Clock
from lakehead.errors import LakeheadError
from lakehead.state.model import DayStatus, Event, JsonObject, Mark, SlicePlan, Watermark
from lakehead.state.state import State


class TimeAwareBufferedSink:
    """Events on their way to the state: written when there are many, when the oldest has waited, and when asked.

    What could not be written stays and is written with the next; beyond a limit the oldest are dropped and counted.
    Events are history, so a killed process loses at worst what it had not written.
    """

    def __init__(
        self,
        write: Callable[[Sequence[Event]], None],
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
        self._waiting: deque[Event] = deque()
        self._since = 0.0
        self._not_before = clock.monotonic()
        self._buffer = threading.Lock()
        self._writing = threading.Lock()
        self.dropped = 0
        """Events that were given up because the state took none for too long."""

    def add(self, event: Event) -> None:
        """Take an event. A state that does not take it now is no reason to stop whoever tells it."""
        with self._buffer:
            if not self._waiting:
                self._since = self._clock.monotonic()
            self._waiting.append(event)
            if len(self._waiting) > self._limit:
                self._waiting.popleft()
                self.dropped += 1
        self.tick()

    def tick(self) -> None:
        """Write what waits if it is due. A failure is kept for the next time."""
        with self._buffer:
            now = self._clock.monotonic()
            due = len(self._waiting) >= self._size or now - self._since >= self._age
        if due and self._waiting and now >= self._not_before:
            try:
                self.flush()
            except LakeheadError:
                self._not_before = self._clock.monotonic() + self._age

    def flush(self) -> None:
        """Write all that waits, now. Raises what the state raises, and then keeps it all."""
        with self._writing:  # one writer at a time, or events would be written out of order
            with self._buffer:
                taken = list(self._waiting)
            if not taken:
                return
            self._write(taken)  # repeated after an unknown outcome it writes nothing twice: events have ids
            with self._buffer:
                written = {event.id for event in taken}
                self._waiting = deque(event for event in self._waiting if event.id not in written)
                self._since = self._clock.monotonic()


class BufferedState:
    """A state with a memory, for one run. Use it in a `with`: what waits is written at its end, whatever happened.

    Events wait in a sink. Watermarks, day status and plans decide what is done next, so they are written through before
    they are remembered, and the memory is only ever a copy of what this run read or wrote.
    """

    def __init__(self, state: State, clock: Clock, *, size: int = 500, age: timedelta = timedelta(seconds=5)) -> None:
        self.state = state
        self.sink = TimeAwareBufferedSink(state.history.add_events, clock, size=size, age=age)
        self._age = age.total_seconds()
        self._watermarks: dict[tuple[str, Mark], Watermark] = {}
        self._days: dict[tuple[str, date], dict[str, DayStatus]] = {}
        self._plans: dict[str, SlicePlan] = {}
        self._known: set[str] = set()
        self._stopped = threading.Event()
        self._ticker = threading.Thread(target=self._tick, name="lakehead-state-sink", daemon=True)

    def preload(self, tables: Iterable[str], load_date: date) -> None:
        """Read watermarks, day status and plans of many tables: four queries, be it 1 table or 1,000."""
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
        """How each phase of the table stands for the load date."""
        if (table, load_date) not in self._days:
            read = self.state.progress.days([table], load_date)
            self._days[table, load_date] = {status.phase: status for status in read}
        return dict(self._days[table, load_date])

    def plan(self, table: str) -> SlicePlan | None:
        """The plan that the table had when it was read, or the one saved since. Who lands a slice asks the state."""
        if table not in self._known and table not in self._plans:
            found = self.state.slices.load(table)
            if found is not None:
                self._plans[table] = found
        return self._plans.get(table)

    def advance(self, reached: Watermark) -> bool:
        """Move a watermark forward, durably. False if another run was further; then the memory takes that over."""
        moved = self.state.progress.advance(reached)
        now = reached if moved else self.state.progress.watermark(reached.table, reached.mark)
        if now is not None:
            self._watermarks[reached.table, reached.mark] = now
        return moved

    def mark_day(self, status: DayStatus) -> None:
        """Say how a phase stands, durably."""
        self.state.progress.mark_days([status])
        self._days.setdefault((status.table, status.load_date), {})[status.phase] = status

    def save_plan(self, plan: SlicePlan) -> SlicePlan:
        """Store a plan before it runs, durably; the one to run, which may be another run's."""
        kept = self.state.slices.save(plan)
        self._plans[plan.table] = kept
        return kept

    def discard_plan(self, table: str, plan: str) -> bool:
        """Forget a plan, durably."""
        discarded = self.state.slices.discard(table, plan)
        self._plans.pop(table, None)
        return discarded

    def emit(
        self, kind: str, *, table: str | None = None, run: str | None = None, payload: JsonObject | None = None
    ) -> Event:
        """Tell an event. It is written with the next flush."""
        event = self.state.history.event(kind, table=table, run=run, payload=payload)
        self.sink.add(event)
        return event

    def flush(self) -> None:
        """Write all events that wait, now."""
        self.sink.flush()

    def __enter__(self) -> Self:
        self._ticker.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stopped.set()
        self._ticker.join()
        try:
            self.flush()
        except LakeheadError as lost:
            if error is None:
                raise
            error.add_note(f"Besides, events of this run could not be written: {lost}")

    def _tick(self) -> None:
        while not self._stopped.wait(self._age / 2):
            self.sink.tick()
