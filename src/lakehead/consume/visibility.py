"""Keeps the messages that a pipeline holds invisible to other consumers."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from lakehead.clock import Clock
from lakehead.consume.queue import Message, Queue
from lakehead.errors import OutcomeUnknown, Unavailable


@dataclass(slots=True)
class _Extended:
    message: Message
    received_at: float
    deadline: float
    """When it may be visible again. Counted from before the request, so that it is never too late."""

    is_last: bool = False
    """Whether it is not extended any more."""


class VisibilityTask:
    """Extends the visibility of each held message when half of it is over.

    There is one task for all messages, so that they are extended in batches; each message has its own deadline. A
    message that could not be extended before its deadline is lost: another consumer may have it.
    """

    def __init__(self, queue: Queue, visibility: timedelta, clock: Clock) -> None:
        self._queue = queue
        longest = queue.longest_visibility
        self._visibility = visibility if longest is None else min(visibility, longest)
        self._clock = clock
        self._held: dict[str, _Extended] = {}

    @property
    def pause(self) -> float:
        """Seconds between two calls of `extend_due`, so that none comes too late."""
        return self._visibility.total_seconds() / 8

    @property
    def messages(self) -> list[Message]:
        """The messages that are kept invisible."""
        return [each.message for each in self._held.values()]

    def start(self, messages: Iterable[Message], received_at: float) -> None:
        """Keep messages invisible from now on. `received_at` is the monotonic time before they were asked for."""
        for message in messages:
            deadline = received_at + self._visibility.total_seconds()
            self._held[message.id] = _Extended(message, received_at, deadline)

    def stop(self, messages: Iterable[Message]) -> None:
        """Stop extending messages: they are acknowledged, or come again when their visibility ends.

        One that was delivered again since goes on: that delivery is kept until it is stopped itself.
        """
        for message in messages:
            held = self._held.get(message.id)
            if held is not None and held.message.receipt == message.receipt:
                del self._held[message.id]

    async def extend_for_last_time(self, messages: Sequence[Message], visibility: timedelta) -> list[Message]:
        """Give the landing of messages time to be committed, and stop extending them. Returns those that are lost."""
        held = [self._held[message.id] for message in messages if message.id in self._held]
        for each in held:
            each.is_last = True
        lost = await self._extend(held, visibility)
        self.stop(lost)
        return lost

    def resume(self, messages: Iterable[Message]) -> None:
        """Extend messages again, though it was for the last time: their landing did not come about."""
        for message in messages:
            if (held := self._held.get(message.id)) is not None:
                held.is_last = False

    def is_current(self, message: Message) -> bool:
        """Whether a message is surely invisible to other consumers at this moment."""
        held = self._held.get(message.id)
        return held is not None and self._clock.monotonic() < held.deadline

    async def extend_due(self) -> list[Message]:
        """Extend the messages whose visibility is half over. Returns those that are lost."""
        half = self._visibility.total_seconds() / 2
        now = self._clock.monotonic()
        due = [each for each in self._held.values() if each.deadline - now <= half and not each.is_last]
        lost = await self._extend(due)
        self.stop(lost)
        return lost

    async def _extend(self, held: Sequence[_Extended], visibility: timedelta | None = None) -> list[Message]:
        """Extend messages. Returns those that the queue refuses, and those whose deadline passed without an answer.

        A message that was settled or delivered again meanwhile is not among them: this was not about that delivery.
        """
        seconds = (visibility or self._visibility).total_seconds()
        asked_at = self._clock.monotonic()
        refused: set[str] = set()
        for limit, group in self._by_limit(held, seconds, asked_at).items():
            if limit <= 0:
                refused.update(each.message.id for each in group)  # the queue keeps no message longer
                continue
            try:
                failed = await self._queue.extend([each.message for each in group], timedelta(seconds=limit))
            except (Unavailable, OutcomeUnknown):
                for each in group:
                    each.is_last = False  # tried again until the deadline has passed
                continue
            refused.update(message.id for message in failed)
            for each in group:
                if each.message.id not in refused:
                    each.deadline = asked_at + limit
        now = self._clock.monotonic()
        lost = [each for each in held if each.message.id in refused or each.deadline <= now]
        return [each.message for each in lost if self._held.get(each.message.id) is each]

    def _by_limit(self, held: Sequence[_Extended], seconds: float, now: float) -> dict[float, list[_Extended]]:
        """Messages by how long they can be kept invisible from now on."""
        longest = self._queue.longest_visibility
        groups: dict[float, list[_Extended]] = {}
        for each in held:
            rest = seconds if longest is None else each.received_at + longest.total_seconds() - now
            groups.setdefault(seconds if rest >= seconds else float(int(rest)), []).append(each)
        return groups
