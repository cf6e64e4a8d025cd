"""Deleting orphans: batches that were stored and never queued. A batch that a slow producer may still queue is safe."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from lakehead.buffer.deps import BufferDeps
from lakehead.buffer.layout import is_batch_key, owner_key
from lakehead.buffer.manifests import ManifestFile, ManifestPair, all_pairs
from lakehead.buffer.ownership import PrefixOwner
from lakehead.errors import Misconfigured, Unavailable
from lakehead.storage.port import ListedObject
from lakehead.wire.queue_manifests import ProducerManifest

GRACE_SECONDS = 24 * 3600.0


@dataclass(frozen=True, kw_only=True)
class OrphanGc:
    """Removes the orphans of one queue: lists batches, raises the `gc` number of every partition, and then deletes.

    A producer that stored a batch before the number was raised, and queues it after that, finds another number than it
    knew and stores the batch again under a new key. So a batch that was listed and is not pending is an orphan. The
    grace time only saves slow producers that extra work; ages are judged by the store's clock.
    """

    data_path_prefix: str
    manifest_path: str
    deps: BufferDeps
    grace_seconds: float = GRACE_SECONDS

    async def run(self, *, dry_run: bool = False) -> list[str]:
        """Delete orphans; return their keys.

        With `dry_run`, only return what would be deleted. That may be too few, because the store's current time is
        known only after a write.
        """
        listed = await self.listed()
        if not listed:
            return []
        # After the listing: a listed batch belongs to one of these partitions, or its producer stores it again.
        pairs = await all_pairs(self.manifest_path, self.deps)
        await self.check_ours(pairs)
        pending: set[str] = set()
        for file in (pair.producer for pair in pairs):
            pending.update((await file.read()).manifest.pending if dry_run else await self.raise_gc_number(file))
        limit = await self.store_time_ns(pairs, listed) - int(self.grace_seconds * 1e9)
        orphans = [each.key for each in listed if each.key not in pending and each.modified_ns <= limit]
        if not dry_run:
            for key in orphans:
                await self.deps.store.delete(key)
                self.deps.counts.orphans_deleted += 1
        return orphans

    async def listed(self) -> list[ListedObject]:
        """Return all stored batches."""
        return [
            each
            async for page in self.deps.store.list(self.data_path_prefix)
            for each in page
            if is_batch_key(each.key, self.data_path_prefix)
        ]

    async def check_ours(self, pairs: Sequence[ManifestPair]) -> None:
        """Raise `Misconfigured` or `Unavailable` unless these manifests are those of the prefix's batches."""
        # Of the first partition, the state that the number of partitions was read from: there may be more by now.
        first = pairs[0].producer.latest or await pairs[0].producer.read()
        stored = [first, *[await pair.producer.read() for pair in pairs[1:]]]
        prefixes = {each.manifest.data_path_prefix for each in stored} - {None}
        if others := prefixes - {self.data_path_prefix}:
            raise Misconfigured(
                f"The queue {self.manifest_path} has its batches under {', '.join(sorted(map(repr, others)))}, not "
                f"under {self.data_path_prefix!r}. Nothing was deleted; correct the prefix or the manifest path."
            )
        if not first.manifest.partitions or not prefixes:
            raise Unavailable(
                f"There is no manifest {self.manifest_path} with the prefix {self.data_path_prefix!r}. "
                "Nothing was deleted; check the manifest path."
            )
        # Never created here: the first queue to create it owns the prefix, and the batches may be another queue's.
        owner = PrefixOwner(self.data_path_prefix, self.manifest_path, self.deps)
        if await owner.stored() is None:
            raise Unavailable(
                f"{owner_key(self.data_path_prefix)}, which names the owner of these batches, does not exist. Nothing "
                "was deleted. Let an ingestor of the queue flush a batch, which creates it, and try again."
            )
        await owner.check()

    async def raise_gc_number(self, file: ManifestFile[ProducerManifest]) -> Sequence[str]:
        """Raise one partition's `gc` number, perhaps twice, which does no harm; return what was pending then."""
        raised = await file.update(
            lambda now: replace(now, gc=now.gc + 1), self.deps.retries.commands, action="raise the gc number of"
        )
        return raised.pending

    async def store_time_ns(self, pairs: Sequence[ManifestPair], listed: Sequence[ListedObject]) -> int:
        """Return the latest known time of the store's clock: usually that of the manifests, which were just written."""
        heads = [await self.deps.store.head(pair.producer.key) for pair in pairs]
        return max(each.modified_ns for each in (*heads, *listed) if each is not None)
