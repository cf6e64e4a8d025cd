"""Looks up the ETags of announced objects, for pipelines whose units have them in their ids."""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from lakehead.consume.messages import announced
from lakehead.consume.object_clients import ObjectClients
from lakehead.consume.objects import MessageFormat, NotUnderstood, ObjectRef
from lakehead.consume.queue import Message
from lakehead.consume.routes import Route, route_of
from lakehead.errors import Misconfigured, Unavailable

LOG = logging.getLogger(__name__)

AT_ONCE = 64
"""Objects that are looked up concurrently."""

SECONDS = 10.0
"""How long one object is looked up. A bucket that does not answer must not hold up the objects of others."""

LookedUp = dict[ObjectRef, ObjectRef | Unavailable | None]
"""Objects as messages name them, each as it was found; None if it does not exist, or why that is not known."""


@dataclass(slots=True, kw_only=True)
class EtagLookup:
    """Knows the objects of the messages that were received last.

    A notification of S3 tells the ETag that the store itself has. Others do not, or tell another one: their objects
    are looked up, with the version that they tell.
    """

    clients: ObjectClients
    format: MessageFormat
    routes: Sequence[Route]
    """What no table takes is not looked up."""

    store_url: str | None = None
    known: LookedUp = field(default_factory=dict)

    async def look_up(self, messages: Sequence[Message]) -> None:
        """Look up what messages announce, and forget what was looked up before."""
        self.known.clear()
        wanted: dict[ObjectRef, None] = {}
        for message in messages:
            try:
                found = announced(message.body, self.format, store_url=self.store_url)
            except NotUnderstood:
                continue  # who reads the message says so
            wanted |= {ref: None for ref in found.objects if self._is_to_be_looked_up(ref)}
        limit, silent = asyncio.Semaphore(AT_ONCE), dict[str, Unavailable]()
        await asyncio.gather(*(self._look_up(ref, limit, silent) for ref in wanted))
        for error in silent.values():
            LOG.warning("Objects could not be looked up, and their messages come again: %s", error)

    def _is_to_be_looked_up(self, ref: ObjectRef) -> bool:
        is_told = ref.etag is not None and ref.uri.startswith("s3://")
        return not is_told and route_of(ref.uri, self.routes) is not None

    async def _look_up(self, ref: ObjectRef, limit: asyncio.Semaphore, silent: dict[str, Unavailable]) -> None:
        bucket = ref.uri.split("/", 3)[2]
        async with limit:
            if bucket in silent:
                self.known[ref] = silent[bucket]  # it would only wait as long
                return
            try:
                async with asyncio.timeout(SECONDS):
                    head = await self.clients.head(ref.uri, version=ref.version)
            except (Misconfigured, Unavailable, TimeoutError) as error:
                reason = str(error) or f"no answer within {SECONDS:.0f} s"
                self.known[ref] = unknown = Unavailable(f"{ref.uri} could not be looked up: {reason}")
                if isinstance(error, Unavailable | TimeoutError):
                    silent[bucket] = unknown
                else:
                    silent.setdefault(f"{bucket} refuses", unknown)
                return
        self.known[ref] = None if head is None else replace(ref, etag=head.etag, size=head.size)
