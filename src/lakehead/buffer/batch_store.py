"""Storing the batches of a queue, each under a unique key."""

from dataclasses import dataclass

from lakehead.buffer.deps import BufferDeps
from lakehead.buffer.layout import new_batch_key
from lakehead.buffer.ownership import PrefixOwner
from lakehead.buffer.producer import Producer
from lakehead.errors import OutcomeUnknown, Unavailable


@dataclass(frozen=True, slots=True)
class BatchStore:
    """Stores batches under one prefix."""

    data_path_prefix: str
    deps: BufferDeps
    owner: PrefixOwner

    async def store(self, body: bytes) -> str:
        """Store a batch; return its location.

        Raises `Unavailable`: the batch is not queued, but may be left in the store as an orphan; and `Misconfigured`
        if the prefix belongs to another queue.
        """
        await self.owner.check()
        key = new_batch_key(self.data_path_prefix, self.deps.ids)
        try:
            await self.deps.retry_create(key, body)
        except (Unavailable, OutcomeUnknown) as error:
            raise Unavailable(f"Could not store a batch ({error}). Nothing was queued; try again later.") from error
        return key


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """A batch that is stored and not queued yet."""

    location: str
    gc: int
    """The `gc` number that was known before it was stored."""


async def store_for_producer(producer: Producer, batches: BatchStore, body: bytes) -> StoredBatch:
    """Store a batch with the producer's `gc` number, by which the producer detects that orphan GC ran meanwhile."""
    gc = await producer.gc_number()
    return StoredBatch(await batches.store(body), gc)
