"""Messages held in memory with their visibility timeouts, for queues that have no server. Nothing here does I/O."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from heapq import heapify, heappop, heappush
from itertools import count

from lakehead.clock import Clock
from lakehead.consume.queue import Message
from lakehead.ids import Random


@dataclass(slots=True)
class _Entry:
    """A message that is not acknowledged."""

    body: bytes
    sent_at: datetime | None
    deliveries: int
    delivery: int
    """The number of its last delivery, which is that delivery's receipt; 0 if it was never delivered."""

    visible_at: float
    """By the monotonic clock."""


class DeliveryTable:
    """Messages by their ids. Only the receipt of a message's last delivery can extend or acknowledge it.

    As in SQS, a delivery whose visibility timeout is over can still acknowledge, until the message is delivered again.
    It can no longer extend.
    """

    def __init__(self, clock: Clock, random: Random | None = None, *, early_chance: float = 0.0) -> None:
        """With `random`, messages come in random order, and some (`early_chance`) are visible again too early."""
        self._clock = clock
        self._random = random
        self._early_chance = early_chance
        self._entries: dict[str, _Entry] = {}
        self._waiting: list[tuple[float, int, str]] = []
        """A heap: when an entry becomes visible, in which order it came, its id. Some are outdated."""
        self._visible: list[tuple[int, str]] = []
        """A heap of those whose time has come."""
        self._order = count(1)
        self._delivery_numbers = count(1)

    def __len__(self) -> int:
        """The number of messages that are not acknowledged."""
        return len(self._entries)

    def __contains__(self, message_id: str) -> bool:
        return message_id in self._entries

    def add(self, message_id: str, body: bytes, sent_at: datetime | None = None) -> None:
        """Add a message that is visible at once. Its id must not be that of another."""
        assert message_id not in self._entries, message_id  # noqa: S101 - a mistake of the queue that calls
        self._entries[message_id] = _Entry(body, sent_at, 0, 0, self._clock.monotonic())
        heappush(self._visible, (next(self._order), message_id))

    def drop(self, message_id: str) -> None:
        """Forget a message, if it is here."""
        self._entries.pop(message_id, None)

    def take(self, most: int, visibility: timedelta) -> list[Message]:
        """Deliver visible messages, at most so many, and make them invisible."""
        now = self._clock.monotonic()
        self._find_visible(now)
        taken: list[Message] = []
        while self._visible and len(taken) < most:
            message_id = self._next_visible()
            entry = self._entries.get(message_id)
            if entry is None or entry.visible_at > now:
                continue  # acknowledged or extended since
            entry.deliveries += 1
            entry.delivery = next(self._delivery_numbers)
            self._hide(message_id, entry, now + visibility.total_seconds() * self._fraction())
            taken.append(
                Message(
                    id=message_id,
                    body=entry.body,
                    deliveries=entry.deliveries,
                    sent_at=entry.sent_at,
                    receipt=entry.delivery,
                )
            )
        return taken

    def extend(self, messages: Sequence[Message], visibility: timedelta) -> list[Message]:
        """Keep messages invisible from now on; with zero they are visible. Returns those for which it is too late."""
        now = self._clock.monotonic()
        failed = []
        for message in messages:
            entry = self._delivered(message)
            if entry is None or entry.visible_at <= now:
                failed.append(message)
            else:
                self._hide(message.id, entry, now + visibility.total_seconds())
        return failed

    def acknowledge(self, messages: Sequence[Message]) -> list[Message]:
        """Remove messages; one that is gone is no error. Returns those that were delivered again since."""
        failed = []
        for message in messages:
            if self._delivered(message) is not None:
                del self._entries[message.id]
            elif message.id in self._entries:
                failed.append(message)
        return failed

    def next_visible_at(self) -> float | None:
        """Return when the next message becomes visible, by the monotonic clock; None if nothing is hidden.

        It may return a time that is too early: look again then.
        """
        return self._waiting[0][0] if self._waiting else None

    def _delivered(self, message: Message) -> _Entry | None:
        """Return the entry of a message if this is its last delivery."""
        entry = self._entries.get(message.id)
        return entry if entry is not None and entry.delivery == message.receipt else None

    def _hide(self, message_id: str, entry: _Entry, until: float) -> None:
        entry.visible_at = until
        heappush(self._waiting, (until, next(self._order), message_id))
        # Each extension leaves an outdated item: not more of them than of the others.
        if len(self._waiting) > 2 * len(self._entries) + 64:
            self._waiting = [
                each for each in self._waiting if (there := self._entries.get(each[2])) and there.visible_at == each[0]
            ]
            heapify(self._waiting)

    def _find_visible(self, now: float) -> None:
        while self._waiting and self._waiting[0][0] <= now:
            _, order, message_id = heappop(self._waiting)
            heappush(self._visible, (order, message_id))

    def _next_visible(self) -> str:
        if self._random is not None:
            chosen = self._random.randrange(len(self._visible))
            self._visible[chosen], self._visible[-1] = self._visible[-1], self._visible[chosen]
            return self._visible.pop()[1]
        return heappop(self._visible)[1]

    def _fraction(self) -> float:
        """Return how much of its visibility timeout a delivery gets."""
        if self._random is not None and self._random.random() < self._early_chance:
            return self._random.random()
        return 1.0
