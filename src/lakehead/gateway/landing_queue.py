"""The queue of accepted batches that are to be landed, as entries of ordinary batches of the buffer."""

from collections.abc import Sequence

from lakehead.buffer.ingestor import Ingestor
from lakehead.wire.acceptance_records import IdentityManifest
from lakehead.wire.batch import KeyValueEntry
from lakehead.wire.landing_entries import LandingEntry


class BufferedLandingQueue:
    """Puts accepted batches on a queue through an ingestor, which it does not close."""

    def __init__(self, ingestor: Ingestor) -> None:
        self._ingestor = ingestor

    async def put(self, manifests: Sequence[IdentityManifest]) -> None:
        """Queue batches. Returns when they are durable. Raises a `LakeheadError` if they may not be.

        A batch may be queued twice, as when its outcome was unknown: landing lands it once.
        """
        entries = [KeyValueEntry(each.key.encode(), LandingEntry.of(each).encode()) for each in manifests]
        watcher = await self._ingestor.ingest(entries)
        await watcher.await_durable()
