"""Batches that operators have discarded: they never land in a table, whatever becomes of queues and the state."""

import asyncio
from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import cast

from lakehead.accept.record_file import read_record
from lakehead.clock import Clock
from lakehead.errors import OutcomeUnknown, Unavailable
from lakehead.ids import Ids, Random
from lakehead.retry import Backoff
from lakehead.storage.port import ListedObject, Store
from lakehead.wire import acceptance_keys as keys
from lakehead.wire.batch_identity import BatchIdentity
from lakehead.wire.maintenance_records import DiscardedBatch

MOST_LISTED = 1_000
"""Records of a table up to which one listing tells all of them. Of more, each batch is looked up by itself."""

AT_ONCE = 32
"""Batches that are looked up concurrently."""

LONGEST_REASON = 2_000


@dataclass(frozen=True, slots=True)
class DiscardedLookup:
    """Tells which batches are discarded. The key of a record decides: its content is for people."""

    store: Store
    """The store of the acceptance authority."""

    async def among(self, table: str, identities: Collection[BatchIdentity]) -> frozenset[BatchIdentity]:
        """Return those of the batches that shall not land in the table with this uuid. Raises `Unavailable`.

        Usually that takes one request: few batches are ever discarded, and one listing shows all of them.
        """
        if not identities:
            return frozenset()
        folder, found = f"{keys.DISCARDED}/table={table}", set[BatchIdentity]()
        seen = 0
        async with aclosing(cast("AsyncGenerator[Sequence[ListedObject], None]", self.store.list(folder))) as pages:
            async for page in pages:
                seen += len(page)
                if seen > MOST_LISTED:
                    return await self._each(table, identities)
                found |= {parsed[1] for each in page if (parsed := keys.parse_discarded(each.key)) is not None}
        return frozenset(found.intersection(identities))

    async def _each(self, table: str, identities: Collection[BatchIdentity]) -> frozenset[BatchIdentity]:
        limit = asyncio.Semaphore(AT_ONCE)

        async def is_discarded(identity: BatchIdentity) -> bool:
            async with limit:
                return await self.store.head(keys.discarded(table, identity)) is not None

        answers = await asyncio.gather(*map(is_discarded, identities))
        return frozenset(identity for identity, answer in zip(identities, answers, strict=True) if answer)


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscardedBatches:
    """Records that batches are discarded, in the store of the acceptance authority."""

    store: Store
    clock: Clock
    ids: Ids
    random: Random
    by: str
    """Who decides, for people."""

    backoff: Backoff = field(default_factory=lambda: Backoff(attempts=10, first_seconds=0.1, cap_seconds=2.0))

    async def discard(self, table: str, identity: BatchIdentity, *, reason: str = "") -> DiscardedBatch:
        """Record that a batch shall not land in the table with this uuid, and return what is stored.

        It cannot be undone. If it was recorded before, that record stays. Raises `Unavailable` if nothing was written,
        `OutcomeUnknown` if something may have been, and `Unreadable` if the stored record is damaged; repeating it is
        safe.
        """
        record = DiscardedBatch.of(
            table,
            identity,
            at_unix_ns=self.clock.now_ns(),
            by=self.by,
            reason=reason[:LONGEST_REASON].encode(errors="replace").decode(),
            nonce=self.ids.uuid(),
        )
        body, doubt = record.encode_checked(), None
        async for _ in self.backoff.each_attempt(self.clock, self.random):
            try:
                await self.store.create(record.key, body)
            except OutcomeUnknown as error:
                doubt = error
                continue
            except Unavailable as error:
                raise doubt or error from error  # an attempt before may have written it
            try:
                stored = await read_record(DiscardedBatch, record.key, self.store)
            except Unavailable as error:
                raise OutcomeUnknown(f"{record.key} was recorded, and could not be read again: {error}") from error
            if stored is not None:
                return stored
        raise doubt or Unavailable(f"{record.key} was created, and is gone. Nobody may delete it: see who does.")

    async def is_discarded(self, table: str, identity: BatchIdentity) -> bool:
        """Return whether a batch shall not land in the table with this uuid. Raises `Unavailable`."""
        return await self.store.head(keys.discarded(table, identity)) is not None
