"""What a pipeline asks of a queue: receive, extend, acknowledge."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Protocol, runtime_checkable


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One delivery of a message."""

    id: str
    """The queue's name of the message, for logs and dead letters: the same each time that it is delivered."""

    body: bytes
    deliveries: int = 1
    """How often it was delivered, including this time; 1 if the queue does not count."""

    sent_at: datetime | None = None
    """When it was sent, in UTC; None if the queue does not tell."""

    receipt: Any = field(default=None, repr=False, compare=False)
    """What the queue needs to extend or acknowledge this delivery."""


class Queue(Protocol):
    """A queue that delivers each message at least once. It may deliver it again, in any order.

    A received message is invisible to other consumers until its visibility timeout is over; then it is delivered again.
    Every call may raise `Unavailable` (try again) and `Misconfigured` (the queue cannot be used as configured).
    """

    @property
    def name(self) -> str:
        """What people call it: its URL or path, without secrets."""
        ...

    @property
    def retention(self) -> timedelta | None:
        """How long the queue keeps a message that is not acknowledged; None: for ever, or it does not tell."""
        ...

    @property
    def longest_visibility(self) -> timedelta | None:
        """The longest time that a message can stay invisible, counted from its reception; None: any."""
        ...

    @property
    def forgets(self) -> bool:
        """Whether an acknowledged message never comes again. False for listings, such as of a folder."""
        ...

    async def receive(self, most: int, *, visibility: timedelta, wait: timedelta) -> Sequence[Message]:
        """Return messages that are ready, at most so many; wait up to `wait` for the first. An empty answer is normal.

        May return fewer than there are. They stay invisible for `visibility`.
        """
        ...

    async def extend(self, messages: Sequence[Message], visibility: timedelta) -> Sequence[Message]:
        """Keep messages invisible for `visibility` from now on; with zero they are visible at once.

        Returns the messages for which that failed: another consumer may have them.
        """
        ...

    async def acknowledge(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Delete messages for good. Returns those for which that failed; they may be delivered again."""
        ...

    async def close(self) -> None:
        """End every connection. What was received and not acknowledged is delivered again."""
        ...


@runtime_checkable
class DeletingQueue(Protocol):
    """A queue that deletes objects when their messages are acknowledged, as the manifest queue does with batches."""

    async def keep(self, body: bytes) -> None:
        """Keep the object that a message announces, so that it can be sent again after its acknowledgement."""
        ...


@runtime_checkable
class ListingQueue(Protocol):
    """A queue whose messages are the files of a folder, each for as long as it is there."""

    @property
    def folder(self) -> str:
        """The beginning of the URIs of all of its files."""
        ...

    async def not_listed(self, uris: Collection[str]) -> frozenset[str]:
        """Return which of these files are gone, according to a complete listing that begins now.

        If the listing fails, it raises, and nothing is known.
        """
        ...


@runtime_checkable
class LimitedQueue(Protocol):
    """A queue that takes a message away by itself if it was received too often, as SQS does with a redrive policy."""

    @property
    def most_receives(self) -> int | None:
        """After so many receives a message is moved elsewhere; None: never."""
        ...


@runtime_checkable
class SendingQueue(Protocol):
    """A queue that can also be sent to, for dead letters that are replayed."""

    async def send(self, bodies: Sequence[bytes]) -> None:
        """Enqueue messages. On return they are stored durably; after an exception some of them may be."""
        ...
