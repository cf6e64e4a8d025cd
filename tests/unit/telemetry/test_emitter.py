"""Every listener hears of every event, in one order, and none of them can stop a load."""

import threading
from collections.abc import Callable

from lakehead.ids import Random, SeededIds
from lakehead.telemetry.emitter import Emitter, Subscriber, Told, job_group
from lakehead.telemetry.events import Heartbeat, TableProgress
from tests.contract.state_scene import NOON, HandClock

BEAT = Heartbeat(total=1, done=0, failed=0)


def emitter(*subscribers: Subscriber) -> Emitter:
    return Emitter("run-7", HandClock(), SeededIds(Random(7)), subscribers)


def test_a_listener_hears_what_when_in_which_run_and_of_which_table() -> None:
    heard: list[Told] = []
    telling = emitter(heard.append)

    telling.emit(BEAT)
    telling.of("shop.orders")(TableProgress(step="reading"))

    first, second = heard
    assert (first.at, first.run, first.table, first.event) == (NOON, "run-7", None, BEAT)
    assert (second.table, second.event) == ("shop.orders", TableProgress(step="reading"))
    assert first.id != second.id
    assert first.job_group is None
    assert second.job_group == job_group("run-7", "shop.orders") == "run-7/shop.orders"


def test_a_moment_keeps_its_microseconds() -> None:
    heard: list[Told] = []
    clock = HandClock()
    telling = Emitter("run", clock, SeededIds(Random(7)), [heard.append])

    for microsecond in (0, 1, 999_999, 333_333):
        clock.at = NOON.replace(year=2099, microsecond=microsecond)
        telling.emit(BEAT)

    assert [told.at.microsecond for told in heard] == [0, 1, 999_999, 333_333]


def test_a_listener_that_raises_stops_neither_the_load_nor_the_others() -> None:
    heard: list[Told] = []
    trouble = ValueError("no")

    def deaf(_told: Told) -> None:
        raise trouble

    telling = emitter(deaf, heard.append)
    telling.emit(BEAT)
    telling.emit(BEAT)

    assert len(heard) == 2
    assert telling.failures == 2
    assert telling.first_failure is trouble


def test_who_comes_later_hears_the_rest_and_who_leaves_hears_no_more() -> None:
    heard: list[Told] = []
    hear = heard.append
    telling = emitter()

    telling.emit(BEAT, "a")
    telling.subscribe(hear)
    telling.emit(BEAT, "b")
    telling.unsubscribe(hear)
    telling.emit(BEAT, "c")
    telling.unsubscribe(hear)

    assert [told.table for told in heard] == ["b"]


def test_a_listener_may_tell_an_event_itself() -> None:
    heard: list[str] = []

    def answer(told: Told) -> None:
        heard.append(told.event.kind)
        if told.event.kind == "heartbeat":
            telling.emit(TableProgress(step="alive"), "shop.orders")

    telling = emitter(answer)
    telling.emit(BEAT)

    assert heard == ["heartbeat", "table_progress"]


def test_listeners_are_called_one_at_a_time_and_hear_the_same_order() -> None:
    inside = 0
    most = 0
    orders: tuple[list[str], list[str]] = ([], [])

    def listener(order: list[str]) -> Callable[[Told], None]:
        def hear(told: Told) -> None:
            nonlocal inside, most
            inside += 1
            most = max(most, inside)
            order.append(told.id)
            inside -= 1

        return hear

    telling = emitter(*map(listener, orders))

    def tell() -> None:
        for _ in range(200):
            telling.emit(BEAT)

    threads = [threading.Thread(target=tell) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert most == 1
    assert orders[0] == orders[1]
    assert len(set(orders[0])) == 1600
