"""Emptying a queue: everything that is not acknowledged is marked as done and removed, without being read."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from lakehead.buffer.compare_and_set import until_written
from lakehead.buffer.deps import BufferDeps
from lakehead.buffer.manifests import ManifestPair, all_pairs
from lakehead.buffer.queue_cleanup import QueueCleanup
from lakehead.errors import OutcomeUnknown
from lakehead.wire.queue_manifests import ConsumerManifest


@dataclass(frozen=True, kw_only=True)
class Purge:
    """Takes a queue over from its collectors, marks everything as done, and cleans up.

    Collectors that hold something are fenced. Batches that are appended meanwhile stay. After a crash, run it again:
    what was marked is never handed out.
    """

    manifest_path: str
    deps: BufferDeps
    """From `ObjectStoreConfig.deps`."""

    async def run(self, *, dry_run: bool = False) -> int:
        """Remove everything that is not acknowledged; return the number of locations. `dry_run` only counts them."""
        purged = 0
        for pair in await all_pairs(self.manifest_path, self.deps):
            purged += await self._waiting(pair) if dry_run else await self._purge(pair)
        return purged

    async def _waiting(self, pair: ManifestPair) -> int:
        done = (await pair.consumer.read()).manifest.done
        return len(set((await pair.producer.read()).manifest.pending).difference(done))

    async def _purge(self, pair: ManifestPair) -> int:
        purged = await self._mark_all_done(pair)
        await QueueCleanup(pair=pair, deps=self.deps, backoff=self.deps.retries.commands).run()
        return purged

    async def _mark_all_done(self, pair: ManifestPair) -> int:
        """Mark everything in one partition as done, without an owner; return the number of locations."""
        in_doubt: set[str] = set()

        async def attempt() -> int | None:
            # In this order, as for a claim: what is pending in the second read is done in the first or not at all.
            current = await pair.consumer.read()
            done = set(current.manifest.done)
            pending = dict.fromkeys((await pair.producer.read()).manifest.pending)
            waiting = [location for location in pending if location not in done]
            if not waiting:
                return len(in_doubt & done)
            try:
                written = await pair.consumer.write(current, _all_done(current.manifest, waiting))
            except OutcomeUnknown:
                in_doubt.update(waiting)  # the next read shows whether it was applied
                raise
            return len(in_doubt & done) + len(waiting) if written else None

        return await until_written(
            attempt,
            self.deps,
            self.deps.retries.commands,
            action=f"purge {pair.consumer.key}",
            advice="Stop the collectors and try again.",
        )


def _all_done(now: ConsumerManifest, waiting: Sequence[str]) -> ConsumerManifest:
    return replace(
        now,
        claimed={},
        owners={},
        owner=None,
        epoch=now.epoch + 1,
        done=(*now.done, *waiting),
        deliveries={},
        bad_in_a_row=0,
    )
