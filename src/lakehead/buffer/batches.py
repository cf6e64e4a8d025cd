"""Storing the batches of a queue, each under a name that nothing else ever has."""

from dataclasses import dataclass

from lakehead.buffer.layout import new_batch
from lakehead.buffer.means import Means
from lakehead.buffer.ownership import PrefixOwner
from lakehead.buffer.producer import Producer
from lakehead.errors import OutcomeUnknown, Unavailable

TRIES = 3


@dataclass(frozen=True, slots=True)
class Batches:
    """Batches below one prefix."""

    data_path_prefix: str
    means: Means
    owner: PrefixOwner

    async def store(self, body: bytes) -> str:
        """Store a batch, and say where.

        Raises `Unavailable`: then it is not queued, and at worst an orphan is left; and `Misconfigured` if another
        queue keeps its batches there.
        """
        await self.owner.check()
        key = new_batch(self.data_path_prefix, self.means.ids)
        failure: Exception | None = None
        for _ in range(TRIES):
            try:
                await self.means.store.create(key, body)
            except (Unavailable, OutcomeUnknown) as error:
                failure = error
            else:
                return key  # also where it exists: nobody else has this name, so an earlier try has stored it
        raise Unavailable(f"A batch could not be stored ({failure}). Nothing was queued; try again later.") from failure


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """A batch that is stored and not queued yet."""

    location: str
    gc: int
    """The `gc` number that was known before it was stored."""


async def store_for(producer: Producer, batches: Batches, body: bytes) -> StoredBatch:
    """Store a batch such that orphan GC cannot take it from the producer that is going to queue it."""
    gc = await producer.gc_number()
    return StoredBatch(await batches.store(body), gc)
