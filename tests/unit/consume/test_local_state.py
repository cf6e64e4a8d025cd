"""What a pipeline knows of the messages that it holds."""

from collections.abc import Callable
from datetime import timedelta

import pytest

from lakehead.consume.local_state import IllegalTransition, QueueLocalState, UnitKey, UnitState, Work
from lakehead.consume.queue import Message


def key(unit: str) -> UnitKey:
    return UnitKey("table", unit)


def message(name: str, receipt: int = 1) -> Message:
    return Message(id=name, body=b"", receipt=receipt)


def works(of: Message, *units: str) -> list[Work]:
    return [Work(key=key(unit), message=of) for unit in units]


def held(*units: str) -> QueueLocalState:
    local = QueueLocalState()
    for unit in units:
        of = message(f"message of {unit}")
        local.add(of, works(of, unit))
        local.open(key(unit), tries=0)
    return local


def test_a_unit_goes_through_its_four_states_in_order() -> None:
    local, first = QueueLocalState(), message("m")

    assert [work.key.unit for work in local.add(first, works(first, "a"))] == ["a"]
    assert local.state_of(key("a")) is UnitState.OPENING
    local.open(key("a"), tries=2)
    assert [work.tries for work in local.in_state(UnitState.READY)] == [2]
    local.start_read([key("a")])
    assert local.state_of(key("a")) is UnitState.READING
    local.end_read([key("a")])
    assert local.state_of(key("a")) is UnitState.AWAITING_COMMIT
    assert local.settled() == []
    local.complete([key("a")])

    [done] = local.settled()
    assert done.message is first
    assert done.acknowledge
    assert done.units == {key("a")}
    assert local.messages == 0
    assert local.settled() == []


@pytest.mark.parametrize(
    "move",
    [
        lambda local: local.open(key("a"), tries=0),
        lambda local: local.end_read([key("a")]),
    ],
    ids=["open", "end_read"],
)
def test_a_unit_moves_in_no_other_order(move: Callable[[QueueLocalState], None]) -> None:
    with pytest.raises(IllegalTransition, match="is READY"):
        move(held("a"))


def test_a_unit_that_is_not_held_does_not_move() -> None:
    with pytest.raises(IllegalTransition, match="not held"):
        QueueLocalState().start_read([key("a")])


def test_a_message_is_settled_when_the_last_of_its_units_is() -> None:
    local, of = QueueLocalState(), message("m")
    local.add(of, works(of, "a", "b"))

    local.complete([key("a")])
    assert local.settled() == []
    local.complete([key("b")])

    assert [each.acknowledge for each in local.settled()] == [True]


def test_a_message_with_a_unit_of_another_pipeline_is_not_acknowledged_though_the_rest_lands() -> None:
    local, of = QueueLocalState(), message("m")
    local.add(of, works(of, "a", "b"))

    local.abandon([key("a")])
    local.complete([key("b")])

    assert [each.acknowledge for each in local.settled()] == [False]


def test_a_failed_unit_says_when_its_message_should_come_again() -> None:
    local = held("a")

    local.abandon([key("a")], retry_after=timedelta(seconds=3))

    assert [each.retry_after for each in local.settled()] == [timedelta(seconds=3)]


def test_a_message_that_may_come_again_at_once_does_so_whatever_becomes_of_its_other_units() -> None:
    local, of = QueueLocalState(), message("m")
    local.add(of, works(of, "failed", "landed"))
    for unit in ("failed", "landed"):
        local.open(key(unit), tries=0)

    local.abandon([key("failed")], retry_after=timedelta(0))
    local.start_read([key("landed")])
    local.end_read([key("landed")])
    local.complete([key("landed")])

    assert [each.retry_after for each in local.settled()] == [timedelta(0)]


def test_a_duplicate_of_a_unit_in_flight_is_not_opened_again_and_is_settled_with_it() -> None:
    local, second = held("a"), message("second")

    assert local.add(second, works(second, "a")) == []
    local.complete([key("a")])

    assert {each.message.id for each in local.settled()} == {"message of a", "second"}


def test_a_message_that_comes_again_while_it_is_held_only_gets_its_new_receipt() -> None:
    local = held("a")
    again = message("message of a", receipt=2)

    assert local.add(again, works(again, "a")) == []
    local.complete([key("a")])

    assert [each.message.receipt for each in local.settled()] == [2]


def test_a_message_without_units_is_settled_at_once() -> None:
    local = QueueLocalState()

    local.add(message("m"), ())

    assert [each.acknowledge for each in local.settled()] == [True]


def test_units_that_only_a_lost_message_announces_are_held_no_longer() -> None:
    local, second = held("a", "b"), message("second")
    local.add(second, works(second, "b"))

    orphaned = local.lose([message("message of a"), message("message of b")])

    assert orphaned == [key("a")]
    assert not local.holds(key("a"))
    assert local.holds(key("b"))
    assert local.settled() == []


def test_units_whose_landing_did_not_come_about_are_ready_again() -> None:
    local = held("a", "b", "c")
    local.start_read([key("a"), key("b")])
    local.end_read([key("a")])

    local.put_back([key("a"), key("b"), key("gone")])

    assert set(local.units.values()) == {UnitState.READY}


def test_messages_are_read_when_each_of_their_units_awaits_its_commit() -> None:
    local, of = QueueLocalState(), message("m")
    local.add(of, works(of, "a", "b"))
    for unit in "ab":
        local.open(key(unit), tries=0)
    local.start_read([key("a"), key("b")])

    local.end_read([key("a")])
    assert local.messages_read([key("a")]) == []
    local.end_read([key("b")])

    assert local.messages_read([key("b")]) == [of]


def test_a_thread_may_ask_for_messages_while_units_are_settled() -> None:
    """The thread of a landing asks right before its commit; meanwhile units are settled in the event loop."""
    local = held("a")

    class Vanishing(dict):  # type: ignore[type-arg]
        def __contains__(self, key: object) -> bool:
            found = super().__contains__(key)
            self.pop(key, None)
            return found

    local._units = Vanishing(local._units)
    local._messages = Vanishing(local._messages)

    assert len(local.messages_of([key("a")])) <= 1
