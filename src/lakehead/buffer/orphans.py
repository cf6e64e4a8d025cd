"""Deleting batches that were stored and never queued, without ever deleting one that a slow producer may queue yet."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from lakehead.buffer.errors import Contended
from lakehead.buffer.layout import is_batch, owner_key
from lakehead.buffer.manifests import ManifestFile, PairFiles, all_pairs
from lakehead.buffer.means import Means
from lakehead.buffer.ownership import PrefixOwner
from lakehead.errors import Misconfigured, OutcomeUnknown, Unavailable
from lakehead.storage.backoff import Backoff
from lakehead.storage.port import Entry
from lakehead.wire.queue_manifests import ProducerManifest

GRACE_SECONDS = 24 * 3600.0


@dataclass(frozen=True, kw_only=True)
class OrphanCollector:
    """Removes orphans of one queue: lists, raises the `gc` number of every pair, and only then deletes.

    A producer that stored a batch before the number was raised and did not queue it by then finds another number
    than it knew, and stores the batch again under a new name: so what was listed and is not pending is nobody's.
    The grace time only spares slow producers that work; it is judged by the store's clock.
    """

    data_path_prefix: str
    manifest_path: str
    means: Means
    backoff: Backoff
    grace_seconds: float = GRACE_SECONDS

    async def run(self, *, dry_run: bool = False) -> list[str]:
        """Delete orphans; their keys.

        With `dry_run`, only say which would be deleted: at least those, for a store tells its time only when it is
        written to.
        """
        listed = await self.listed()
        if not listed:
            return []
        # Now, not before: whoever stored what is listed has its partition among these, or stores it again.
        files = await all_pairs(self.manifest_path, self.means)
        await self.check_ours(files)
        pending: set[str] = set()
        for file in (pair.producer for pair in files):
            pending.update((await file.read()).manifest.pending if dry_run else await self.raise_number(file))
        limit = await self.now_ns(files, listed) - int(self.grace_seconds * 1e9)
        orphans = [each.key for each in listed if each.key not in pending and each.modified_ns <= limit]
        if not dry_run:
            for key in orphans:
                await self.means.store.delete(key)
                self.means.counts.orphans_deleted += 1
        return orphans

    async def listed(self) -> list[Entry]:
        """The batches that are there."""
        return [
            each
            async for page in self.means.store.list(self.data_path_prefix)
            for each in page
            if is_batch(each.key, self.data_path_prefix)
        ]

    async def check_ours(self, files: Sequence[PairFiles]) -> None:
        """Raise `Misconfigured` or `Unavailable` unless these are the batches' manifests: others do not know them."""
        # Of the first pair what we took the number of pairs from: while it does not tell it, there may be more.
        first = files[0].producer.latest or await files[0].producer.read()
        seen = [first, *[await pair.producer.read() for pair in files[1:]]]
        named = {each.manifest.data_path_prefix for each in seen} - {None}
        if named - {self.data_path_prefix}:
            raise Misconfigured(
                f"The manifest {self.manifest_path} is not that of the batches below {self.data_path_prefix!r}, but of "
                f"those below {', '.join(sorted(map(repr, named - {self.data_path_prefix})))}. Nothing was deleted."
            )
        if not first.manifest.partitions or not named:
            raise Unavailable(
                f"There is no manifest {self.manifest_path} that names the batches below {self.data_path_prefix!r} as "
                "its own. Nothing was deleted; check its path."
            )
        # Never made here: who asks first gets a prefix, and what is below it may be another queue's.
        owner = PrefixOwner(self.data_path_prefix, self.manifest_path, self.means)
        if await owner.stored() is None:
            raise Unavailable(
                f"{owner_key(self.data_path_prefix)} is not there, which says whose batches these are. Nothing was "
                "deleted; let an ingestor of the queue store something, which makes it, and try again."
            )
        await owner.check()

    async def raise_number(self, file: ManifestFile[ProducerManifest]) -> Sequence[str]:
        """Raise one pair's `gc` number; what was pending when it was raised."""
        for pause in self.backoff.pauses(self.means.random):
            if pause:
                await self.means.clock.sleep(pause)
            seen = await file.read()
            try:
                if await file.write(seen, replace(seen.manifest, gc=seen.manifest.gc + 1)):
                    return seen.manifest.pending
            except OutcomeUnknown:
                continue  # raising it twice does no harm
        raise Contended(f"The gc number of {file.key} could not be raised: others write it all the time.")

    async def now_ns(self, files: Sequence[PairFiles], listed: Sequence[Entry]) -> int:
        """The time by the store's clock, as it told it last: mostly by the manifests, which we have just written."""
        heads = [await self.means.store.head(pair.producer.key) for pair in files]
        return max(each.modified_ns for each in (*heads, *listed) if each is not None)
