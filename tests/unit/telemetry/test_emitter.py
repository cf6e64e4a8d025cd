"""Every subscriber receives every event, in one order, and none of them can stop a load."""

import threading
from collections.abc import Callable

from lakehead.ids import Random, SeededIds
from lakehead.telemetry.emitter import Emitter, EventEnvelope, Subscriber, job_group
from lakehead.telemetry.events import Heartbeat, TableStep
from tests.support.state_tools import NOON, HandClock

BEAT = Heartbeat(total=1, done=0, failed=0)


def emitter_for(*subscribers: Subscriber) -> Emitter:
    return Emitter("run-7", HandClock(), SeededIds(Random(7)), subscribers)


def test_a_subscriber_receives_event_time_run_and_table() -> None:
    received: list[EventEnvelope] = []
    emitter = emitter_for(received.append)

    emitter.emit(BEAT)
    emitter.for_table("shop.orders")(TableStep(step="reading"))

    first, second = received
    assert (first.at, first.run, first.table, first.event) == (NOON, "run-7", None, BEAT)
    assert (second.table, second.event) == ("shop.orders", TableStep(step="reading"))
    assert first.id != second.id
    assert first.job_group is None
    assert second.job_group == job_group("run-7", "shop.orders") == "run-7/shop.orders"


def test_a_timestamp_keeps_its_microseconds() -> None:
    received: list[EventEnvelope] = []
    clock = HandClock()
    emitter = Emitter("run", clock, SeededIds(Random(7)), [received.append])

    for microsecond in (0, 1, 999_999, 333_333):
        clock.at = NOON.replace(year=2099, microsecond=microsecond)
        emitter.emit(BEAT)

    assert [envelope.at.microsecond for envelope in received] == [0, 1, 999_999, 333_333]


def test_a_subscriber_that_raises_stops_neither_the_load_nor_the_others() -> None:
    received: list[EventEnvelope] = []
    trouble = ValueError("no")

    def failing(_envelope: EventEnvelope) -> None:
        raise trouble

    emitter = emitter_for(failing, received.append)
    emitter.emit(BEAT)
    emitter.emit(BEAT)

    assert len(received) == 2
    assert emitter.failures == 2
    assert emitter.first_failure is trouble


def test_a_late_subscriber_receives_the_rest_and_an_unsubscribed_one_nothing_more() -> None:
    received: list[EventEnvelope] = []
    receive = received.append
    emitter = emitter_for()

    emitter.emit(BEAT, "a")
    emitter.subscribe(receive)
    emitter.emit(BEAT, "b")
    emitter.unsubscribe(receive)
    emitter.emit(BEAT, "c")
    emitter.unsubscribe(receive)

    assert [envelope.table for envelope in received] == ["b"]


def test_a_subscriber_may_emit_an_event_itself() -> None:
    received: list[str] = []

    def answer(envelope: EventEnvelope) -> None:
        received.append(envelope.event.kind)
        if envelope.event.kind == "heartbeat":
            emitter.emit(TableStep(step="alive"), "shop.orders")

    emitter = emitter_for(answer)
    emitter.emit(BEAT)

    assert received == ["heartbeat", "table_progress"]


def test_subscribers_are_called_one_at_a_time_and_receive_the_same_order() -> None:
    inside = 0
    most = 0
    orders: tuple[list[str], list[str]] = ([], [])

    def subscriber(order: list[str]) -> Callable[[EventEnvelope], None]:
        def receive(envelope: EventEnvelope) -> None:
            nonlocal inside, most
            inside += 1
            most = max(most, inside)
            order.append(envelope.id)
            inside -= 1

        return receive

    emitter = emitter_for(*map(subscriber, orders))

    def emit_many() -> None:
        for _ in range(200):
            emitter.emit(BEAT)

    threads = [threading.Thread(target=emit_many) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert most == 1
    assert orders[0] == orders[1]
    assert len(set(orders[0])) == 1600
