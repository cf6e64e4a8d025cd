"""A run's events are in the state's history, whatever its tables are called."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from lakehead.ids import RandomIds
from lakehead.run.observe.state_events import StateEventSubscriber, event_key
from lakehead.state.buffered import BufferedState
from lakehead.state.opening import open_state
from lakehead.telemetry.events import Heartbeat, TablePlanned
from tests.support.state_tools import NOON, HandClock
from tests.unit.run.observe.fake_run import FakeRun


@pytest.fixture
def state(tmp_path: Path) -> Iterator[BufferedState]:
    clock = HandClock()
    with open_state(f"sqlite:///{tmp_path}/state.db", clock, RandomIds()) as opened:
        yield BufferedState(opened, clock)


def test_what_happened_is_in_the_history_as_it_was_emitted(state: BufferedState) -> None:
    run = FakeRun(StateEventSubscriber(state))
    run.start(1)
    run.begin("shop.orders", slices=3)
    run.finish("shop.orders", 12, slices=3, watermark="9")
    state.flush()

    stored = state.state.history.events(run="run-7")
    assert sorted(event.id for event in stored) == sorted(envelope.id for envelope in run.received)
    assert stored[0].at == NOON
    assert (stored[0].kind, stored[0].table) == ("run_start", None)
    [done] = [event for event in stored if event.kind == "table_done"]
    assert done.table == "shop.orders"
    assert done.payload == {"rows": 12, "seconds": 62.4, "slices": 3, "watermark": "9"}
    assert len(state.state.history.events(table="shop.orders")) == 3


def test_what_comes_often_is_not_kept(state: BufferedState) -> None:
    run = FakeRun(StateEventSubscriber(state))
    run.reach("shop.orders", 1, 2, 5)
    run.emit(Heartbeat(total=1, done=0, failed=0))
    state.flush()

    assert state.state.history.events() == []


NAMES = ["t" * 65, "x" * 300, "orders ", " orders", "a\nb", "a\0b", "\ud800", "é" * 65]


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_a_name_that_the_history_cannot_hold_stands_there_by_its_key(state: BufferedState, name: str) -> None:
    run = FakeRun(StateEventSubscriber(state), run=name)
    run.begin(name)
    state.flush()

    assert len(event_key(name)) <= 64
    stored = state.state.history.events(table=event_key(name), run=event_key(name))
    assert [event.kind for event in stored if event.payload["table"] == event.payload["run"] == name] == [
        envelope.event.kind for envelope in sorted(run.received, key=lambda envelope: (envelope.at, envelope.id))
    ]


def test_names_that_can_be_held_are_their_own_keys_and_long_ones_stay_apart() -> None:
    assert event_key("shop.orders") == "shop.orders"
    assert event_key("t" * 64) == "t" * 64
    assert event_key("t" * 80 + "1") != event_key("t" * 80 + "2")
    assert event_key("t" * 80).startswith("t" * 51 + "~")
    assert event_key("orders ") != event_key("orders")


def test_what_json_has_no_word_for_does_not_keep_the_others_from_the_history(state: BufferedState) -> None:
    run = FakeRun(StateEventSubscriber(state))
    run.emit(TablePlanned(slices=1, done=0, resumed=False, planner={"rows": float("inf"), "by": {1, 2}}), "a")
    run.begin("b")
    state.flush()

    assert len(state.state.history.events()) == 3
