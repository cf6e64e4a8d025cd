"""A queue in memory, for tests and simulations."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import count
from math import inf

from lakehead.buffer.errors import InvalidCall
from lakehead.clock import Clock
from lakehead.consume.queue import Message
from lakehead.consume.queues.delivery_table import DeliveryTable
from lakehead.consume.queues.pausing import pause
from lakehead.ids import Random


class MemoryMessages:
    """The messages of one queue. Consumers of it are `MemoryQueue`s, all on one event loop."""

    def __init__(
        self,
        clock: Clock,
        *,
        name: str = "memory",
        retention: timedelta | None = None,
        random: Random | None = None,
        early_chance: float = 0.0,
    ) -> None:
        """A queue without messages.

        With `random`, messages are delivered in random order, and each delivery may become visible again before its
        visibility timeout is over, with the probability `early_chance`: two consumers then have the message.
        """
        self.name = name
        self.retention = retention
        self.table = DeliveryTable(clock, random, early_chance=early_chance)
        self.clock = clock
        self.changed = asyncio.Event()
        """Set when messages become visible otherwise than by time, and then replaced by another event."""
        self._numbers = count(1)
        self._sent: dict[str, float] = {}
        """When messages were sent, by the monotonic clock, oldest first; kept only for the retention."""

    def send(self, bodies: Sequence[bytes]) -> None:
        """Add messages."""
        sent_at = datetime.fromtimestamp(self.clock.now_ns() / 1e9, UTC)
        for body in bodies:
            message_id = str(next(self._numbers))
            self.table.add(message_id, body, sent_at)
            if self.retention is not None:
                self._sent[message_id] = self.clock.monotonic()
        self.wake()

    def wake(self) -> None:
        """Let waiting consumers look again."""
        self.changed.set()
        self.changed = asyncio.Event()

    def drop_expired(self) -> None:
        """Drop what is older than the retention."""
        if self.retention is None:
            return
        oldest = self.clock.monotonic() - self.retention.total_seconds()
        for message_id in [each for each, at in self._sent.items() if at < oldest]:
            del self._sent[message_id]
            self.table.drop(message_id)


class MemoryQueue:
    """One consumer of messages in memory."""

    longest_visibility: timedelta | None = None
    forgets = True

    def __init__(self, messages: MemoryMessages) -> None:
        self._messages = messages
        self._closed = asyncio.Event()
        self._received: dict[str, Message] = {}

    @property
    def name(self) -> str:
        """The name of its messages."""
        return self._messages.name

    @property
    def retention(self) -> timedelta | None:
        """How long a message is kept."""
        return self._messages.retention

    async def receive(self, most: int, *, visibility: timedelta, wait: timedelta) -> Sequence[Message]:
        """Return messages that are ready; wait up to `wait` for the first."""
        clock = self._messages.clock
        ends = clock.monotonic() + wait.total_seconds()
        while not self._closed.is_set():
            changed = self._messages.changed
            self._messages.drop_expired()
            if found := self._messages.table.take(most, visibility):
                self._received.update((message.id, message) for message in found)
                return found
            now = clock.monotonic()
            if now >= ends:
                return []
            visible_at = self._messages.table.next_visible_at()
            await pause(clock, min(ends, inf if visible_at is None else visible_at) - now, changed, self._closed)
            if self._closed.is_set():
                return []
        raise InvalidCall(f"The queue {self.name} is closed. Open it again.")

    async def extend(self, messages: Sequence[Message], visibility: timedelta) -> Sequence[Message]:
        """Keep messages invisible for `visibility` from now on; return those for which that failed."""
        failed = self._messages.table.extend(messages, visibility)
        if not visibility:
            self._forget(messages)
            self._messages.wake()
        return failed

    async def acknowledge(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Delete messages for good; return those that were delivered again since."""
        self._forget(messages)
        return self._messages.table.acknowledge(messages)

    async def send(self, bodies: Sequence[bytes]) -> None:
        """Enqueue messages."""
        self._messages.send(bodies)

    async def close(self) -> None:
        """End waiting calls, and give back what was received and not acknowledged."""
        self._closed.set()
        self._messages.table.extend(list(self._received.values()), timedelta(0))
        self._received.clear()
        self._messages.wake()

    def _forget(self, messages: Sequence[Message]) -> None:
        for message in messages:
            if (last := self._received.get(message.id)) is not None and last.receipt == message.receipt:
                del self._received[message.id]
