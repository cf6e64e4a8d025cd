"""A queue for one slow subscriber, so that emitting an event never waits for it."""

import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

QUEUE_CAPACITY = 10_000
"""Events that wait for a slow subscriber. A run with 1,000 tables emits about as many in a minute."""


class SubscriberQueue(Generic[T]):
    """Passes events to a subscriber in order, on a thread of its own.

    `put` never waits and never raises. If the queue is full, its oldest event is dropped and counted: newer events say
    more about where a run is now. An error of the subscriber is counted, and it gets the next event.
    """

    def __init__(self, subscriber: Callable[[T], None], name: str, *, capacity: int = QUEUE_CAPACITY) -> None:
        """`name` is for messages, as in "the log"."""
        self.name = name
        self.dropped = 0
        """Events that were never delivered."""
        self.failures = 0
        """How often the subscriber raised, or its thread could not be started."""
        self.first_failure: Exception | None = None
        self._subscriber = subscriber
        self._capacity = capacity
        self._waiting: deque[T] = deque()
        self._delivering = False
        self._closed = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def put(self, event: T) -> None:
        """Queue an event. After `close` it is dropped."""
        with self._changed:
            if self._closed:
                self.dropped += 1
                return
            if len(self._waiting) == self._capacity:
                self._waiting.popleft()
                self.dropped += 1
            self._waiting.append(event)
            if self._thread is None:
                self._start_thread()
            self._changed.notify_all()

    def flush(self, within: float) -> bool:
        """Wait until every queued event is delivered, at most so many seconds. Returns whether it is."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._waiting and not self._delivering, max(within, 0))

    def close(self, within: float) -> None:
        """Deliver what is queued, for at most so many seconds; the rest is dropped and counted."""
        with self._changed:
            self._closed = True
        delivered = self.flush(within)
        with self._changed:
            self.dropped += len(self._waiting) + self._delivering
            self._waiting.clear()
            self._changed.notify_all()
        if delivered and self._thread is not None:
            self._thread.join()

    def _start_thread(self) -> None:
        thread = threading.Thread(target=self._deliver, name=f"lakehead-events-{self.name}", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # no more threads: the event stays queued, and the next one tries again
            self._failed(error)
        else:
            self._thread = thread

    def _failed(self, error: Exception) -> None:
        self.failures += 1
        self.first_failure = self.first_failure or error

    def _deliver(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if not self._waiting:
                    return
                event = self._waiting.popleft()
                self._delivering = True
            try:
                self._subscriber(event)
            except Exception as error:  # noqa: BLE001 - telemetry never stops a load
                self._failed(error)
            with self._changed:
                self._delivering = False
                self._changed.notify_all()
