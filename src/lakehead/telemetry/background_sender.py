"""Sends messages to a receiver on a thread of its own, with a bounded queue and bounded retries."""

import threading
from collections.abc import Callable
from dataclasses import dataclass

from lakehead.telemetry.subscriber_queue import SubscriberQueue

QUEUE_CAPACITY = 1_000
"""Messages that wait for a slow receiver."""

PAUSES = (1.0, 4.0)
"""Seconds before the second and the third try of a message."""


class NotSent(Exception):
    """A message could not be sent. Its text names no URL, because a URL may hold a secret."""

    def __init__(self, reason: str, *, try_again: bool = True) -> None:
        super().__init__(reason)
        self.try_again = try_again
        """False if the receiver would refuse the same message again."""


@dataclass(frozen=True, slots=True)
class LostMessages:
    """Messages of a sender that did not arrive."""

    receiver: str
    count: int
    reason: str


class BackgroundSender:
    """Sends messages in order. `put` never waits and never raises; what cannot be sent is counted.

    A message is tried up to three times. While the receiver is failing, later messages are tried once, so that a
    receiver that is away holds up nobody. `send` raises `NotSent`.
    """

    def __init__(
        self,
        send: Callable[[bytes], None],
        name: str,
        *,
        capacity: int = QUEUE_CAPACITY,
        pause: Callable[[threading.Event, float], object] = threading.Event.wait,
    ) -> None:
        """`name` is for messages, as in "the webhook". `pause` waits between two tries, until the event is set."""
        self.name = name
        self.sent = 0
        self.failed = 0
        """Messages that were given up."""
        self._send = send
        self._pause = pause
        self._closing = threading.Event()
        self._reason = ""
        self._is_failing = False
        self._queue = SubscriberQueue(self._deliver, name, capacity=capacity)

    def put(self, message: bytes) -> None:
        """Queue a message."""
        self._queue.put(message)

    def close(self, within: float) -> None:
        """Send what is queued, for at most so many seconds, without pauses between tries. The rest is dropped."""
        self._closing.set()
        self._queue.close(within)

    @property
    def lost(self) -> LostMessages | None:
        """The messages that were given up or dropped so far; None if there are none."""
        count = self.failed + self._queue.dropped + self._queue.failures
        reason = self._reason or (repr(self._queue.first_failure) if self._queue.failures else "too slow")
        return LostMessages(self.name, count, reason) if count else None

    def _deliver(self, message: bytes) -> None:
        for pause in (*(() if self._is_failing else PAUSES), None):
            try:
                self._send(message)
            except NotSent as error:
                self._reason = str(error)
                if pause is None or not error.try_again:
                    break
                self._pause(self._closing, pause)
            else:
                self.sent += 1
                self._is_failing = False
                return
        self.failed += 1
        self._is_failing = True
