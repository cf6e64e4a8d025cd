"""Removing acknowledged locations from both manifests, and their batches from the store."""

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from lakehead.buffer.deps import BufferDeps
from lakehead.buffer.layout import is_batch_key
from lakehead.buffer.manifests import ManifestPair
from lakehead.retry import Backoff
from lakehead.wire.queue_manifests import ConsumerManifest, ProducerManifest

DELETES_AT_ONCE = 16


@dataclass(frozen=True, kw_only=True)
class QueueCleanup:
    """Cleans up one partition, in the only order in which a crash between two steps does no harm.

    Any collector may run it, even a fenced one: what is done stays done, and no location is queued twice.
    """

    pair: ManifestPair
    """Not the consumer's own, which relies on the state that it last read or wrote."""

    deps: BufferDeps
    backoff: Backoff

    async def run(self) -> int:
        """Remove everything that is done in the stored consumer manifest; return the number of locations.

        If it raises, the next cleanup removes what is left.
        """
        done = await self.stored_done()
        if done:
            prefix = await self.remove_pending(done)
            await self.delete_batches([location for location in done if is_batch_key(location, prefix)])
            await self.remove_done(done)
            self.deps.counts.cleaned_up += len(done)
        return len(done)

    async def stored_done(self) -> Collection[str]:
        """Return what is done according to the store, not to our memory."""
        return dict.fromkeys((await self.pair.consumer.read()).manifest.done)

    async def remove_pending(self, done: Collection[str]) -> str | None:
        """Remove the locations from the producer manifest; return the queue's `data_path_prefix`."""

        def without_done(now: ProducerManifest) -> ProducerManifest:
            kept = tuple(location for location in now.pending if location not in done)
            return replace(now, pending=kept) if len(kept) < len(now.pending) else now

        return (await self.pair.producer.update(without_done, self.backoff, action="clean up")).data_path_prefix

    async def delete_batches(self, batches: Sequence[str]) -> None:
        """Delete batches, some at a time."""
        for start in range(0, len(batches), DELETES_AT_ONCE):
            await asyncio.gather(*(self.deps.store.delete(key) for key in batches[start : start + DELETES_AT_ONCE]))

    async def remove_done(self, done: Collection[str]) -> None:
        """Remove the locations from the consumer manifest, as the last step."""

        def without_done(now: ConsumerManifest) -> ConsumerManifest:
            kept = tuple(location for location in now.done if location not in done)
            return replace(now, done=kept) if len(kept) < len(now.done) else now

        await self.pair.consumer.update(without_done, self.backoff, action="clean up")
