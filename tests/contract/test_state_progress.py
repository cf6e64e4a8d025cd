"""Watermarks, day status, stored plans, events, figures and leases, on every server."""

from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from uuid import uuid4

import pytest

from lakehead.errors import Misconfigured
from lakehead.ids import RandomIds
from lakehead.state.buffered import BufferedState
from lakehead.state.model import DayState, DayStatus, Mark, Metric, SlicePlan, StoredSlice, Value, Watermark
from lakehead.state.opening import open_state
from lakehead.state.state import State
from tests.support.state_tools import HOUR, NOON, PATIENT, HandClock, statements

pytest_plugins = ["tests.support.state_fixtures"]

DAY = date(2026, 3, 1)


@pytest.mark.parametrize(
    "value",
    [
        0,
        -(2**63),
        10**30,
        Decimal("123456789012345678901234567890.123456789"),
        Decimal("1.10"),
        datetime(1, 1, 1, 0, 0, 0, 1),  # noqa: DTZ001 - without a zone on purpose
        datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
        datetime(2026, 3, 1, 12, 0, 0, 123456),  # noqa: DTZ001 - without a zone on purpose
        datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=timezone(timedelta(hours=5, minutes=30))),
        date(2026, 3, 1),
        "Ünïcode \N{GRINNING FACE} and a space at the end ",
        "",
        "a NUL \0 and half a pair \ud83d",
    ],
    ids=ascii,
)
def test_a_watermark_of_any_kind_reads_back_equal(state: State, table: str, value: Value) -> None:
    assert state.progress.advance(Watermark(table=table, mark=Mark.DONE, value=value))

    read = state.progress.watermark(table, Mark.DONE)
    assert read is not None
    assert read.value == value
    assert type(read.value) is type(value)


def test_the_two_marks_of_a_table_are_apart_and_neither_goes_back(state: State, table: str) -> None:
    at = datetime(2026, 3, 1, 0, 0, 0, 1, tzinfo=UTC)
    state.progress.advance(Watermark(table=table, mark=Mark.LANDED, value=at))

    assert state.progress.advance(Watermark(table=table, mark=Mark.DONE, value=at - HOUR))
    assert state.progress.advance(Watermark(table=table, mark=Mark.DONE, value=at))
    assert not state.progress.advance(Watermark(table=table, mark=Mark.DONE, value=at - timedelta(microseconds=1)))
    assert state.progress.advance(Watermark(table=table, mark=Mark.DONE, value=at)), "the same again is no step back"

    read = state.progress.watermarks([table])
    assert {mark: watermark.value for (_, mark), watermark in read.items()} == {Mark.LANDED: at, Mark.DONE: at}


def test_day_status_is_the_last_word_on_each_phase(state: State, table: str) -> None:
    def status(phase: str, how: DayState, **detail: object) -> DayStatus:
        return DayStatus(table=table, load_date=DAY, phase=phase, state=how, run="run 1", detail=detail)

    state.progress.mark_days([status("raw", DayState.RUNNING), status("final", DayState.FAILED)])
    state.progress.mark_days(
        [status("raw", DayState.RUNNING), status("raw", DayState.DONE, rows=7, where="é\N{GRINNING FACE}")]
    )

    found = {each.phase: each for each in state.progress.days([table], DAY)}
    assert found == {
        "raw": status("raw", DayState.DONE, rows=7, where="é\N{GRINNING FACE}"),
        "final": status("final", DayState.FAILED),
    }
    assert state.progress.days([table], DAY + timedelta(days=1)) == []


@pytest.mark.parametrize("count", [1, 100])
def test_a_run_preloads_any_number_of_tables_with_the_same_few_queries(
    state: State, clock: HandClock, count: int
) -> None:
    tables = [str(uuid4()) for _ in range(count)]
    for table in tables:
        state.progress.advance(Watermark(table=table, mark=Mark.DONE, value=5))
        state.slices.save(SlicePlan(id="p", table=table, slices=()))
    state.progress.mark_days([DayStatus(table=t, load_date=DAY, phase="raw", state=DayState.DONE) for t in tables])
    buffered = BufferedState(state, clock)

    with statements(state) as sent:
        buffered.preload(tables, DAY)
        for table in tables:
            assert buffered.watermark(table) is not None
            assert buffered.watermark(table, Mark.LANDED) is None
            assert buffered.day(table, DAY)["raw"].state is DayState.DONE
            assert buffered.plan(table) is not None

    assert len(sent) == 4, sent


class TestSlicePlans:
    @staticmethod
    def plan(table: str, plan: str = "first", slices: int = 3) -> SlicePlan:
        return SlicePlan(
            id=plan,
            table=table,
            generation=2,
            detail={"upper": "2026-03-01T00:00:00.123456", "estimate": 10},
            slices=tuple(StoredSlice(unit=f"slice {n}", bounds={"from": n, "to": n + 1}) for n in range(slices)),
        )

    def test_a_plan_is_resumed_as_it_was_with_what_is_done_of_it(self, state: State, table: str) -> None:
        plan = self.plan(table, slices=2_500)
        assert state.slices.save(plan) == plan
        assert state.slices.load(table) == plan

        assert state.slices.mark_done(table, plan.id, 1, 77)

        resumed = state.slices.load(table)
        assert resumed is not None
        assert [n for n, each in enumerate(resumed.slices) if each.done] == [1]
        assert resumed.slices[1].snapshot == 77

    def test_a_second_run_gets_the_plan_that_is_there(self, state: State, table: str) -> None:
        state.slices.save(self.plan(table))
        state.slices.mark_done(table, "first", 0)

        shared = state.slices.save(self.plan(table, "second", slices=5))

        assert shared == state.slices.load(table)
        assert (shared.id, len(shared.slices), shared.slices[0].done) == ("first", 3, True)

    def test_saving_again_after_an_unknown_outcome_changes_nothing(self, state: State, table: str) -> None:
        state.slices.save(self.plan(table))
        state.slices.mark_done(table, "first", 2, 5)

        again = state.slices.save(self.plan(table))

        assert again.slices[2].done

    def test_marking_twice_keeps_the_first_and_marking_a_discarded_plan_is_refused(
        self, state: State, table: str
    ) -> None:
        state.slices.save(self.plan(table))
        assert state.slices.mark_done(table, "first", 0, 5)
        assert state.slices.mark_done(table, "first", 0, 6)
        read = state.slices.load(table)
        assert read is not None
        assert read.slices[0].snapshot == 5

        assert state.slices.discard(table, "first")

        assert not state.slices.mark_done(table, "first", 1)
        assert state.slices.load(table) is None

    def test_discarding_an_older_plan_leaves_the_newer_alone(self, state: State, table: str) -> None:
        state.slices.save(self.plan(table))
        state.slices.discard(table, "first")
        newer = state.slices.save(self.plan(table, "second"))

        assert not state.slices.discard(table, "first")
        assert state.slices.load(table) == newer


class TestHistory:
    def test_events_read_back_equal_oldest_first_and_are_written_once(
        self, state: State, table: str, clock: HandClock
    ) -> None:
        run = str(uuid4())
        first = state.history.event(
            "started", table=table, run=run, payload={"n": 1, "deep": {"é": [None, 1.5, "\N{GRINNING FACE}"]}}
        )
        clock.at += timedelta(microseconds=3)
        second = state.history.event("done", table=table, run=run)
        whole_run = state.history.event("run_done", run=run)

        state.history.add_events([second, whole_run, first])
        state.history.add_events([first, second])

        assert state.history.events(table=table) == [first, second]
        assert state.history.events(run=run) == [first, second, whole_run]
        assert state.history.events(run=run, since=second.at) == [second, whole_run]
        assert state.history.events(run=run, limit=1) == [first]

    def test_a_restart_sees_every_flushed_event(
        self, state_url: str, state: State, table: str, clock: HandClock
    ) -> None:
        with BufferedState(state, clock) as buffered:
            told = [buffered.emit("step", table=table, payload={"n": n}) for n in range(1_234)]

        with open_state(state_url, clock, RandomIds(), settings=PATIENT) as again:
            assert again.history.events(table=table, limit=10_000) == told

    def test_a_figure_that_a_server_cannot_keep_is_refused(self, state: State) -> None:
        with pytest.raises(Misconfigured, match="cannot store"):
            state.history.record_metrics([Metric(run="r", name="ratio", value=float("nan"))])

    def test_figures_of_a_run_are_the_last_word(self, state: State, table: str) -> None:
        run = str(uuid4())
        state.history.record_metrics([Metric(run=run, name="rows", value=1.0, table=table)])
        state.history.record_metrics(
            [Metric(run=run, name="rows", value=2.5, table=table), Metric(run=run, name="seconds", value=1e-9)]
        )

        assert state.history.metrics(run) == [
            Metric(run=run, name="seconds", value=1e-9),
            Metric(run=run, name="rows", value=2.5, table=table),
        ]


class TestLeases:
    def test_one_owner_has_it_until_its_time_is_over(self, state: State, table: str, clock: HandClock) -> None:
        assert state.leases.take("land", "us", NOON + HOUR, table=table)
        assert not state.leases.take("land", "them", NOON + HOUR, table=table)
        assert state.leases.take("compact", "them", NOON + HOUR, table=table), "another kind is another lease"
        assert state.leases.holder("land", table=table) == ("us", NOON + HOUR)

        clock.at += HOUR

        assert state.leases.take("land", "them", NOON + 2 * HOUR, table=table)
        assert not state.leases.take("land", "us", NOON + 2 * HOUR, table=table)

    def test_what_is_ours_can_be_extended_and_given_back(self, state: State, table: str) -> None:
        assert state.leases.take("land", "us", NOON + HOUR, table=table)
        assert state.leases.take("land", "us", NOON + 2 * HOUR, table=table)
        assert not state.leases.drop("land", "them", table=table)
        assert state.leases.drop("land", "us", table=table)
        assert state.leases.take("land", "them", NOON + HOUR, table=table)

    def test_a_lease_need_not_be_of_a_table(self, state: State) -> None:
        kind = uuid4().hex
        assert state.leases.take(kind, "us", NOON + HOUR)
        assert not state.leases.take(kind, "them", NOON + HOUR)
