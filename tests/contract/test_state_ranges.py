"""The record numbers that have landed, on every server."""

from collections.abc import Iterator
from datetime import timedelta

import pytest
from sqlalchemy import event

from lakehead.errors import Misconfigured, Unavailable
from lakehead.ids import RandomIds
from lakehead.state.model import LAST_NUMBER, Numbered, Planned, PointerMoved, Spans, StoredPointer
from lakehead.state.opening import StateSettings, open_state
from lakehead.state.state import State
from tests.support.state_tools import FIRST, SECOND, THIRD, HandClock, hold, landing, numbers, removed, statements

pytest_plugins = ["tests.support.state_fixtures"]

STREAM = "agent/boot"


def land(state: State, table: str, *numbered: Numbered) -> None:
    """Settle one more landing, from wherever the table is."""
    seen = state.landings.pointer(table)
    new = StoredPointer(seen.snapshot + 1, None) if seen else StoredPointer(1, None)
    assert state.landings.settle(table, seen, new, [landing(new, numbered=numbered)])


def spans(state: State, table: str, stream: str = STREAM) -> Spans:
    return state.landings.ranges(table, [stream])[stream]


def test_a_stream_of_which_nothing_has_landed_has_no_spans(state: State, table: str) -> None:
    assert state.landings.ranges(table, [STREAM, "other"]) == {STREAM: (), "other": ()}
    assert state.landings.ranges(table, []) == {}


def test_a_stream_that_lands_in_order_is_one_span(state: State, table: str) -> None:
    for start in range(0, 50, 10):
        land(state, table, Numbered(STREAM, ((start, start + 10),)))

    assert spans(state, table) == ((0, 50),)


@pytest.mark.parametrize(
    ("new", "after"),
    [
        ((0, 5), ((0, 5), (10, 20), (30, 40))),
        ((0, 10), ((0, 20), (30, 40))),
        ((12, 15), ((10, 20), (30, 40))),
        ((10, 25), ((10, 25), (30, 40))),
        ((20, 30), ((10, 40),)),
        ((0, 100), ((0, 100),)),
        ((40, 41), ((10, 20), (30, 41))),
        ((50, 60), ((10, 20), (30, 40), (50, 60))),
        ((25, 25), ((10, 20), (30, 40))),
    ],
)
def test_a_span_joins_those_that_it_overlaps_or_touches(
    state: State, table: str, new: tuple[int, int], after: Spans
) -> None:
    land(state, table, Numbered(STREAM, ((10, 20), (30, 40))))

    land(state, table, Numbered(STREAM, (new,)))

    assert spans(state, table) == after


def test_landings_that_are_settled_together_are_merged_together(state: State, table: str) -> None:
    chain = [
        landing(FIRST, numbered=(*numbers(STREAM, (20, 30), (0, 10)), *numbers("other", (5, 6)))),
        landing(SECOND, numbered=numbers(STREAM, (5, 12))),
        landing(THIRD, generation=1, numbered=(*numbers(STREAM, (12, 20)), *numbers(STREAM, (50, 51)))),
    ]

    state.landings.settle(table, None, THIRD, chain)

    assert state.landings.ranges(table, ["other", STREAM]) == {"other": ((5, 6),), STREAM: ((0, 30), (50, 51))}


def test_streams_are_told_apart_byte_by_byte_and_by_their_tables(state: State, table: str) -> None:
    long = "x" * 5_000
    names = ["a/b", "A/b", "a/b ", "á/b", "a\u0301/b", long + "1", long + "2"]
    for number, name in enumerate(names):
        land(state, table, Numbered(name, ((number, number + 1),)))
    other = f"{table[:-1]}x"
    land(state, other, Numbered("a/b", ((70, 80),)))

    assert state.landings.ranges(table, names) == {name: ((n, n + 1),) for n, name in enumerate(names)}
    assert state.landings.ranges(other, names[:2]) == {"a/b": ((70, 80),), "A/b": ()}


def test_the_highest_number_can_land_and_a_higher_is_refused_in_a_sentence(state: State, table: str) -> None:
    land(state, table, Numbered(STREAM, ((0, 1), (LAST_NUMBER, LAST_NUMBER + 1))))

    assert spans(state, table) == ((0, 1), (LAST_NUMBER, LAST_NUMBER + 1))
    for wrong in ((LAST_NUMBER, LAST_NUMBER + 2), (-1, 5), (7, 6)):
        with pytest.raises(Misconfigured, match=r"'agent/boot' cannot have the records from .* numbered upwards"):
            Numbered(STREAM, (wrong,))


@pytest.mark.parametrize("stream", ["", "a\0b", "\ud800"])
def test_a_stream_that_a_server_cannot_store_is_refused_and_nothing_is_settled(
    state: State, table: str, stream: str
) -> None:
    with pytest.raises(Misconfigured, match="The stream"):
        state.landings.settle(table, None, FIRST, [landing(FIRST, "a", numbered=numbers(stream, (0, 1)))])

    assert state.landings.pointer(table) is None


def test_a_settle_from_a_pointer_that_has_moved_adds_no_numbers(state: State, table: str) -> None:
    state.landings.settle(table, None, FIRST, [landing(FIRST, numbered=numbers(STREAM, (0, 10)))])

    assert not state.landings.settle(table, None, SECOND, [landing(SECOND, numbered=numbers(STREAM, (10, 20)))])
    assert spans(state, table) == ((0, 10),)


def test_ten_thousand_units_of_one_stream_are_merged_in_few_statements(state: State, table: str) -> None:
    def every_second(first: int) -> tuple[Numbered, ...]:
        return tuple(Numbered(STREAM, ((n, n + 1),)) for n in range(first, 20_000, 2))

    with statements(state) as sent:
        land(state, table, *every_second(0))
        assert len(spans(state, table)) == 10_000
        land(state, table, *every_second(1))

    assert len(sent) < 40
    assert spans(state, table) == ((0, 20_000),)


def test_thousands_of_streams_are_merged_in_few_statements(state: State, table: str) -> None:
    streams = [f"agent {n}/boot" for n in range(2_500)]

    with statements(state) as sent:
        for span in ((10, 20), (20, 30), (0, 10)):
            land(state, table, *(Numbered(stream, (span,)) for stream in streams))

    assert len(sent) < 50
    assert state.landings.ranges(table, streams) == dict.fromkeys(streams, ((0, 30),))


def test_numbers_outlive_the_window_of_their_units(state: State, table: str, clock: HandClock) -> None:
    state.landings.settle(table, None, FIRST, [landing(FIRST, "a", numbered=numbers(STREAM, (0, 10)))])
    state.shards.acknowledge(table, ["a"])
    clock.at += timedelta(days=5_000)

    assert removed(state, table, timedelta(days=14)) == 1
    assert spans(state, table) == ((0, 10),)


class TestPlan:
    @pytest.fixture
    def other(self, state_url: str) -> Iterator[State]:
        """The same state over connections of its own, and in a hurry."""
        with open_state(state_url, HandClock(), RandomIds(), settings=StateSettings(lock_timeout=1)) as opened:
            yield opened

    def test_it_answers_what_has_landed_in_the_streams_that_it_is_asked_for(self, state: State, table: str) -> None:
        landed = (*numbers(STREAM, (0, 10), (20, 30)), *numbers("not asked for", (0, 1)))
        state.landings.settle(table, None, FIRST, [landing(FIRST, numbered=landed)])
        fenced_at = state.now()
        hold(state, table, "a")

        planned = state.landings.plan(
            table, FIRST.snapshot, ["a"], owner="us", fenced_at=fenced_at, streams=iter([STREAM, "unknown"])
        )

        assert planned == Planned(
            taken=("a",), landed=(), lost=(), gone=(), ranges={STREAM: ((0, 10), (20, 30)), "unknown": ()}
        )

    def test_it_answers_no_numbers_but_the_pointer_when_that_has_moved(self, state: State, table: str) -> None:
        moved = StoredPointer(THIRD.snapshot, SECOND.snapshot)
        state.landings.settle(table, None, FIRST, [])
        state.landings.settle(table, FIRST, moved, [landing(SECOND, numbered=numbers(STREAM, (0, 10)))])

        planned = state.landings.plan(table, FIRST.snapshot, [], owner="us", fenced_at=state.now(), streams=[STREAM])

        assert planned == PointerMoved(moved)

    def test_no_numbers_land_between_its_choice_and_its_end(self, state: State, other: State, table: str) -> None:
        state.landings.settle(table, None, FIRST, [landing(FIRST, numbered=numbers(STREAM, (0, 10)))])
        refused: list[str] = []

        def settle_meanwhile(_connection: object, _cursor: object, statement: str, *_: object) -> None:
            if "lakehead_ranges" in statement:
                with pytest.raises(Unavailable, match="A lock in the state database"):
                    other.landings.settle(table, FIRST, SECOND, [landing(SECOND, numbered=numbers(STREAM, (10, 20)))])
                refused.append(statement)

        event.listen(state.database.engine, "after_cursor_execute", settle_meanwhile)
        planned = state.landings.plan(table, FIRST.snapshot, [], owner="us", fenced_at=state.now(), streams=[STREAM])

        assert len(refused) == 1
        assert isinstance(planned, Planned)
        assert planned.ranges == {STREAM: ((0, 10),)}


class TestRebuild:
    def test_it_replaces_the_numbers_of_its_table_and_of_no_other(self, state: State, table: str) -> None:
        other = f"{table[:-1]}x"
        for each in (table, other):
            land(state, each, *numbers(STREAM, (0, 10), (90, 99)), *numbers("rolled back", (0, 5)))

        chain = [landing(FIRST, numbered=numbers(STREAM, (5, 20))), landing(SECOND, numbered=numbers(STREAM, (20, 30)))]
        state.landings.rebuild(table, SECOND, chain)

        asked = [STREAM, "rolled back"]
        assert state.landings.ranges(table, asked) == {STREAM: ((5, 30),), "rolled back": ()}
        assert state.landings.ranges(other, asked) == {STREAM: ((0, 10), (90, 99)), "rolled back": ((0, 5),)}

    def test_it_gives_back_what_was_settled_one_by_one(self, state: State, table: str) -> None:
        chain = [
            landing(StoredPointer(n, None), numbered=numbers(STREAM, (n * 7 % 20, n * 7 % 20 + 3))) for n in range(1, 9)
        ]
        seen = None
        for each in chain:
            new = StoredPointer(each.snapshot, each.snapshot)
            assert state.landings.settle(table, seen, new, [each])
            seen = new
        before = spans(state, table)
        state.landings.rebuild(table, None, [])
        assert spans(state, table) == ()

        state.landings.rebuild(table, seen, chain)

        assert spans(state, table) == before
        assert state.landings.pointer(table) == seen
