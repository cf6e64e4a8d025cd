"""Events wait, but not for ever; what decides does not wait at all."""

import threading
from collections.abc import Iterator, Sequence
from datetime import date, timedelta
from pathlib import Path

import pytest

from lakehead.clock import SystemClock
from lakehead.errors import OutcomeUnknown, Unavailable
from lakehead.ids import RandomIds
from lakehead.state.buffered import BufferedState, TimeAwareBufferedSink
from lakehead.state.model import DayState, DayStatus, EventRecord, Mark, SlicePlan, StoredSlice, Watermark
from lakehead.state.opening import open_state
from lakehead.state.state import State
from tests.support.state_tools import NOON, HandClock

DAY = date(2026, 3, 1)
SECOND = timedelta(seconds=1)


class Book:
    """Where events are written; it can be closed."""

    def __init__(self) -> None:
        self.written: list[str] = []
        self.calls = 0
        self.trouble: Exception | None = None

    def write(self, events: Sequence[EventRecord]) -> None:
        self.calls += 1
        if self.trouble is not None:
            raise self.trouble
        self.written += [event.id for event in events]


def event(name: str) -> EventRecord:
    return EventRecord(id=name, at=NOON, kind="told")


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def book() -> Book:
    return Book()


@pytest.fixture
def sink(book: Book, clock: HandClock) -> TimeAwareBufferedSink:
    return TimeAwareBufferedSink(book.write, clock, size=3, age=5 * SECOND, limit=5)


@pytest.fixture
def state(tmp_path: Path, clock: HandClock) -> Iterator[State]:
    with open_state(f"sqlite:///{tmp_path}/state.db", clock, RandomIds()) as opened:
        yield opened


def test_events_are_written_when_there_are_many(sink: TimeAwareBufferedSink, book: Book) -> None:
    for name in "abcd":
        sink.add(event(name))

    assert book.written == ["a", "b", "c"]


def test_events_are_written_when_the_oldest_has_waited(
    sink: TimeAwareBufferedSink, book: Book, clock: HandClock
) -> None:
    sink.add(event("a"))
    clock.at += 4 * SECOND
    sink.add(event("b"))
    assert book.written == []

    clock.at += SECOND
    sink.tick()

    assert book.written == ["a", "b"]
    sink.add(event("c"))
    assert book.written == ["a", "b"], "the next one waits from when it came"


def test_a_state_that_takes_nothing_stops_nobody_and_is_asked_again_later(
    sink: TimeAwareBufferedSink, book: Book, clock: HandClock
) -> None:
    book.trouble = Unavailable("not now")
    for name in "abcd":
        sink.add(event(name))
    assert book.calls == 1, "not asked again with every event"

    book.trouble = None
    clock.at += 5 * SECOND
    sink.tick()

    assert book.written == ["a", "b", "c", "d"]


def test_beyond_the_limit_the_oldest_are_dropped_and_counted(sink: TimeAwareBufferedSink, book: Book) -> None:
    book.trouble = Unavailable("not now")
    for name in "abcdefg":
        sink.add(event(name))

    book.trouble = None
    sink.flush()

    assert book.written == ["c", "d", "e", "f", "g"]
    assert sink.dropped == 2


def test_after_an_unknown_outcome_the_same_events_are_written_again_by_their_ids(
    state: State, clock: HandClock
) -> None:
    def write_and_not_know(events: Sequence[EventRecord]) -> None:
        state.history.add_events(events)
        if len(state.history.events()) == 1:
            raise OutcomeUnknown("who knows")

    sink = TimeAwareBufferedSink(write_and_not_know, clock, size=2)
    sink.add(event("a"))
    with pytest.raises(OutcomeUnknown):
        sink.flush()
    sink.add(event("b"))

    sink.flush()

    assert [each.id for each in state.history.events()] == ["a", "b"]


def test_what_waits_is_written_at_the_end_whatever_happened(state: State, clock: HandClock) -> None:
    def run() -> None:
        with BufferedState(state, clock) as buffered:
            buffered.emit("told", table="t")
            assert state.history.events() == []
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run()

    assert [each.kind for each in state.history.events()] == ["told"]
    assert "lakehead-state-sink" not in [thread.name for thread in threading.enumerate()]


def test_a_lone_event_is_written_by_time_though_no_other_follows(state: State) -> None:
    with BufferedState(state, SystemClock(), age=timedelta(milliseconds=20)) as buffered:
        written = threading.Event()
        add_events = buffered.sink._write

        def note(events: Sequence[EventRecord]) -> None:
            add_events(events)
            written.set()

        buffered.sink._write = note
        buffered.emit("told")

        assert written.wait(60)
        assert len(state.history.events()) == 1


def test_a_failed_flush_at_the_end_does_not_hide_why_the_run_failed(state: State, clock: HandClock) -> None:
    book = Book()
    book.trouble = Unavailable("the database is gone")
    buffered = BufferedState(state, clock)
    buffered.sink = TimeAwareBufferedSink(book.write, clock)

    def run() -> None:
        with buffered:
            buffered.emit("told")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as caught:
        run()
    assert "the database is gone" in caught.value.__notes__[0]


def test_a_failed_flush_at_the_end_of_a_good_run_is_told(state: State, clock: HandClock) -> None:
    book = Book()
    book.trouble = Unavailable("the database is gone")
    buffered = BufferedState(state, clock)
    buffered.sink = TimeAwareBufferedSink(book.write, clock)

    with pytest.raises(Unavailable, match="the database is gone"), buffered:
        buffered.emit("told")


def test_what_decides_is_durable_before_it_is_remembered(state: State, clock: HandClock) -> None:
    buffered = BufferedState(state, clock)
    buffered.preload(["t"], DAY)
    reached = Watermark(table="t", mark=Mark.DONE, value=7)
    done = DayStatus(table="t", load_date=DAY, phase="raw", state=DayState.DONE)
    plan = SlicePlan(id="p", table="t", slices=(StoredSlice(unit="s", bounds={}),))

    assert buffered.advance(reached)
    buffered.mark_day(done)
    buffered.save_plan(plan)

    assert state.progress.watermark("t", Mark.DONE) == buffered.watermark("t") == reached
    assert state.progress.days(["t"], DAY) == [buffered.day("t", DAY)["raw"]] == [done]
    assert state.slices.load("t") == buffered.plan("t") == plan
    assert buffered.discard_plan("t", "p")
    assert state.slices.load("t") is buffered.plan("t") is None


def test_a_run_that_finds_another_further_takes_that_over(state: State, clock: HandClock) -> None:
    buffered = BufferedState(state, clock)
    buffered.preload(["t"], DAY)
    further = Watermark(table="t", mark=Mark.DONE, value=9)
    state.progress.advance(further)
    state.slices.save(SlicePlan(id="theirs", table="t", slices=()))

    assert not buffered.advance(Watermark(table="t", mark=Mark.DONE, value=8))
    assert buffered.watermark("t") == further
    assert buffered.save_plan(SlicePlan(id="ours", table="t", slices=())).id == "theirs"


def test_a_table_that_was_not_preloaded_is_read_when_asked_for(state: State, clock: HandClock) -> None:
    state.progress.advance(Watermark(table="t", mark=Mark.DONE, value=9))
    state.progress.mark_days([DayStatus(table="t", load_date=DAY, phase="raw", state=DayState.DONE)])
    state.slices.save(SlicePlan(id="p", table="t", slices=()))
    buffered = BufferedState(state, clock)

    assert buffered.watermark("t") is not None
    assert buffered.plan("t") is not None
    assert set(buffered.day("t", DAY)) == {"raw"}
    assert buffered.day("t", DAY + timedelta(days=1)) == {}
