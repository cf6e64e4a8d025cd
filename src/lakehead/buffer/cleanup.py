"""Removing what is done from both manifests and from the store, so that neither grows for ever."""

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from lakehead.buffer.errors import Contended
from lakehead.buffer.layout import is_batch
from lakehead.buffer.manifests import PairFiles
from lakehead.buffer.means import Means
from lakehead.errors import OutcomeUnknown
from lakehead.storage.backoff import Backoff

DELETES_AT_ONCE = 16


@dataclass(frozen=True, kw_only=True)
class CleanUp:
    """Cleans up one pair, in the one order in which a crash between two steps does no harm.

    Any collector may do it, also one that has been fenced: what is done stays done, and no location is queued twice.
    """

    files: PairFiles
    """Not those of a consumer, which relies on what it last saw."""

    means: Means
    backoff: Backoff

    async def run(self) -> int:
        """Remove everything that the stored consumer manifest has as done; how many locations that were.

        If it raises, what is left is removed by the next one.
        """
        done = await self.stored_done()
        if done:
            prefix = await self.forget_pending(done)
            await self.delete_data([location for location in done if is_batch(location, prefix)])
            await self.forget_done(done)
            self.means.counts.cleaned_up += len(done)
        return len(done)

    async def stored_done(self) -> Collection[str]:
        """What is done for everybody, not only as far as we remember."""
        return dict.fromkeys((await self.files.consumer.read()).manifest.done)

    async def forget_pending(self, done: Collection[str]) -> str | None:
        """Take the locations out of the producer manifest, and see them gone; the prefix of the queue's batches."""
        for pause in self.backoff.pauses(self.means.random):
            if pause:
                await self.means.clock.sleep(pause)
            seen = await self.files.producer.read()
            kept = tuple(location for location in seen.manifest.pending if location not in done)
            try:
                if len(kept) == len(seen.manifest.pending) or await self.files.producer.write(
                    seen, replace(seen.manifest, pending=kept)
                ):
                    return seen.manifest.data_path_prefix
            except OutcomeUnknown:
                continue
        raise Contended(f"{self.files.producer.key} could not be cleaned up: others write it all the time.")

    async def delete_data(self, batches: Sequence[str]) -> None:
        """Delete batches, some at a time."""
        for start in range(0, len(batches), DELETES_AT_ONCE):
            await asyncio.gather(*(self.means.store.delete(key) for key in batches[start : start + DELETES_AT_ONCE]))

    async def forget_done(self, done: Collection[str]) -> None:
        """Take the locations out of the consumer manifest: the last trace of them."""
        for pause in self.backoff.pauses(self.means.random):
            if pause:
                await self.means.clock.sleep(pause)
            seen = await self.files.consumer.read()
            kept = tuple(location for location in seen.manifest.done if location not in done)
            try:
                if len(kept) == len(seen.manifest.done) or await self.files.consumer.write(
                    seen, replace(seen.manifest, done=kept)
                ):
                    return
            except OutcomeUnknown:
                continue
        raise Contended(f"{self.files.consumer.key} could not be cleaned up: others write it all the time.")
