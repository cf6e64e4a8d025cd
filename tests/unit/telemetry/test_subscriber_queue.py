"""A slow subscriber has a queue of its own: it holds up nobody, keeps the order, and what it misses is counted."""

import threading

import pytest

from lakehead.ids import Random, SeededIds
from lakehead.telemetry.emitter import Emitter, EventEnvelope
from lakehead.telemetry.events import Event, Heartbeat
from lakehead.telemetry.subscriber_queue import SubscriberQueue
from tests.support.state_tools import HandClock


def beat(number: int) -> Event:
    return Heartbeat(total=number, done=0, failed=0)


def numbers(received: list[EventEnvelope]) -> list[int]:
    return [envelope.event.total for envelope in received if isinstance(envelope.event, Heartbeat)]


class Blocking:
    """A subscriber that takes an event and does not return until it is released."""

    def __init__(self) -> None:
        self.received: list[EventEnvelope] = []
        self.entered = threading.Event()
        self.released = threading.Event()

    def __call__(self, envelope: EventEnvelope) -> None:
        self.entered.set()
        assert self.released.wait(60)
        self.received.append(envelope)


def emitting() -> Emitter:
    return Emitter("run-7", HandClock(), SeededIds(Random(7)))


def test_a_subscriber_that_blocks_does_not_block_emit_nor_the_others() -> None:
    slow, received = Blocking(), list[EventEnvelope]()
    with emitting() as emitter:
        emitter.subscribe(received.append)
        emitter.subscribe_slow(slow, "the log")

        for number in range(50):
            emitter.emit(beat(number))

        assert slow.entered.wait(60)
        assert numbers(received) == list(range(50)), "all was emitted while the slow one had not taken its first event"
        assert slow.received == []
        slow.released.set()

    assert numbers(slow.received) == list(range(50))
    assert emitter.dropped == {}


def test_every_slow_subscriber_keeps_the_order_in_which_events_were_emitted() -> None:
    inline, first, second = list[EventEnvelope](), list[EventEnvelope](), list[EventEnvelope]()
    with emitting() as emitter:
        emitter.subscribe(inline.append)
        emitter.subscribe_slow(first.append, "first")
        emitter.subscribe_slow(second.append, "second")

        def emit_many() -> None:
            for number in range(200):
                emitter.emit(beat(number))

        threads = [threading.Thread(target=emit_many) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    ids = [envelope.id for envelope in inline]
    assert len(set(ids)) == 1600
    assert [envelope.id for envelope in first] == ids
    assert [envelope.id for envelope in second] == ids


def test_a_full_queue_drops_its_oldest_events_and_counts_them() -> None:
    received: list[int] = []
    entered, released = threading.Event(), threading.Event()

    def slow(number: int) -> None:
        entered.set()
        assert released.wait(60)
        received.append(number)

    queue = SubscriberQueue(slow, "the log", capacity=10)
    queue.put(0)
    assert entered.wait(60)  # the first is being delivered, and ten can wait
    for number in range(1, 26):
        queue.put(number)
    released.set()
    queue.close(within=60)

    assert received == [0, *range(16, 26)]
    assert queue.dropped == 15


def test_at_the_end_everything_queued_is_delivered() -> None:
    received: list[EventEnvelope] = []
    going_on = threading.Event()

    def slow(envelope: EventEnvelope) -> None:
        assert going_on.wait(60)
        received.append(envelope)

    with emitting() as emitter:
        emitter.subscribe_slow(slow, "the log")
        for number in range(20):
            emitter.emit(beat(number))
        threading.Timer(0.05, going_on.set).start()

    assert numbers(received) == list(range(20))
    assert emitter.dropped == {}


def test_a_subscriber_that_never_returns_is_given_up_after_a_bound_and_what_it_misses_is_counted() -> None:
    slow = Blocking()
    emitter = emitting()
    emitter.subscribe_slow(slow, "the display")
    for number in range(5):
        emitter.emit(beat(number))
    assert slow.entered.wait(60)

    emitter.close(within=0.05)

    assert emitter.dropped == {"the display": 5}
    emitter.emit(beat(5))
    assert emitter.dropped == {"the display": 6}, "it is closed"
    slow.released.set()


def test_a_slow_subscriber_that_raises_is_counted_and_gets_the_next_event() -> None:
    received: list[EventEnvelope] = []
    trouble = ValueError("no")

    def failing(envelope: EventEnvelope) -> None:
        received.append(envelope)
        raise trouble

    with emitting() as emitter:
        emitter.subscribe_slow(failing, "the log")
        emitter.emit(beat(0))
        emitter.emit(beat(1))

    assert numbers(received) == [0, 1]
    assert (emitter.failures, emitter.first_failure) == (2, trouble)
    assert emitter.dropped == {}


def test_a_thread_that_cannot_be_started_stops_no_load_and_the_next_event_tries_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    received: list[EventEnvelope] = []
    trouble = RuntimeError("can't start new thread")

    def no_threads_left(_: threading.Thread) -> None:
        raise trouble

    with emitting() as emitter:
        emitter.subscribe_slow(received.append, "the log")
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", no_threads_left)
            emitter.emit(beat(0))
        emitter.emit(beat(1))

    assert numbers(received) == [0, 1]
    assert (emitter.failures, emitter.first_failure) == (1, trouble)
    assert emitter.dropped == {}


def test_flush_waits_until_everything_so_far_is_delivered() -> None:
    slow = Blocking()
    with emitting() as emitter:
        emitter.subscribe_slow(slow, "the state")
        emitter.emit(beat(0))

        assert not emitter.flush(within=0.05)
        slow.released.set()
        assert emitter.flush(within=60)
        assert numbers(slow.received) == [0]


@pytest.mark.parametrize("events", [0, 3])
def test_no_thread_is_left(events: int) -> None:
    before = set(threading.enumerate())
    with emitting() as emitter:
        emitter.subscribe_slow(lambda _: None, "the log")
        for number in range(events):
            emitter.emit(beat(number))

    assert set(threading.enumerate()) <= before
