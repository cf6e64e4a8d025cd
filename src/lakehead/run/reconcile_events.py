"""Notifications of S3 on an SQS queue, as the events that a reconciler takes."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from lakehead.consume.messages import announced, uri_in_store
from lakehead.consume.objects import MessageFormat, NotUnderstood
from lakehead.consume.queue import Message, Queue
from lakehead.errors import Unavailable
from lakehead.maintain.accepted_events import AcceptedEvent

LOG = logging.getLogger(__name__)

MOST = 100
VISIBILITY = timedelta(minutes=5)
WAIT = timedelta(seconds=5)
"""Also how long a reconciler may take longer to stop."""


@dataclass(frozen=True, slots=True)
class QueuedEvents:
    """Takes the messages of a queue for events. One that is not understood is told, and acknowledged as the others."""

    queue: Queue
    store_url: str
    """The URL of the authority's store. Objects elsewhere are of no interest."""

    async def receive(self) -> Sequence[AcceptedEvent]:
        """Return events, waiting a while for the first. Raises `Unavailable`."""
        messages = await self.queue.receive(MOST, visibility=VISIBILITY, wait=WAIT)
        return [AcceptedEvent(self._keys(message), message) for message in messages]

    async def acknowledge(self, events: Sequence[AcceptedEvent]) -> None:
        """Take events from the queue. Raises `Unavailable` if some come again."""
        failed = await self.queue.acknowledge([event.receipt for event in events])
        if failed:
            raise Unavailable(f"{len(failed)} events could not be taken from {self.queue.name}, and come again.")

    def _keys(self, message: Message) -> tuple[str, ...]:
        try:
            found = announced(message.body, MessageFormat.AUTO)
        except NotUnderstood as error:
            LOG.warning("The message %s of %s is no event of S3: %s", message.id, self.queue.name, error)
            return ()
        folder = uri_in_store(self.store_url, "x")[:-1]
        return tuple(
            each.uri.removeprefix(folder)
            for each in found.objects
            if each.uri.startswith(folder) and each.uri != folder
        )
