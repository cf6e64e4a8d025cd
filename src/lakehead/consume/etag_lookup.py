"""Looks up the ETags of announced objects, for pipelines whose units have them in their ids."""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from lakehead.consume.messages import announced
from lakehead.consume.object_clients import ObjectClients
from lakehead.consume.objects import MessageFormat, NotUnderstood, ObjectRef
from lakehead.consume.queue import Message
from lakehead.errors import Misconfigured

LOG = logging.getLogger(__name__)

AT_ONCE = 64
"""Objects that are looked up concurrently."""


@dataclass(slots=True, kw_only=True)
class EtagLookup:
    """Knows the objects of the messages that were received last.

    A notification of S3 tells the ETag that the store itself has. Others do not, or tell another one: their objects
    are looked up.
    """

    clients: ObjectClients
    format: MessageFormat
    store_url: str | None = None
    known: dict[str, ObjectRef] = field(default_factory=dict)
    """By URI. An object that does not exist, or may not be looked up, is not in it."""

    async def look_up(self, messages: Sequence[Message]) -> None:
        """Look up what messages announce, and forget what was looked up before. Raises `Unavailable`."""
        self.known.clear()
        wanted: dict[str, ObjectRef] = {}
        for message in messages:
            try:
                found = announced(message.body, self.format, store_url=self.store_url)
            except NotUnderstood:
                continue  # who reads the message says so
            wanted |= {ref.uri: ref for ref in found.objects if not (ref.etag and ref.uri.startswith("s3://"))}
        limit = asyncio.Semaphore(AT_ONCE)
        await asyncio.gather(*(self._look_up(ref, limit) for ref in wanted.values()))

    async def _look_up(self, ref: ObjectRef, limit: asyncio.Semaphore) -> None:
        async with limit:
            try:
                head = await self.clients.head(ref.uri)
            except Misconfigured as error:
                LOG.warning("The ETag of %s is not known: %s", ref.uri, error)
                return
        if head is not None:
            self.known[ref.uri] = replace(ref, etag=head.etag, size=head.size)
