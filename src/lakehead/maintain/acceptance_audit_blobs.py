"""Whether the frames of accepted batches are there, and are what was accepted."""

import asyncio
from dataclasses import dataclass, field
from enum import Enum, auto

from lakehead.accept.record_file import read_record
from lakehead.maintain.blob_check import BlobCheck
from lakehead.storage.port import Store
from lakehead.wire import acceptance_keys as keys
from lakehead.wire.acceptance_records import IdentityManifest
from lakehead.wire.errors import Unreadable
from lakehead.wire.maintenance_records import RetiredBatch

READ_AT_ONCE = 8
"""Frames that are read concurrently, for their hashes."""


class BlobState(Enum):
    """What was found of a frame."""

    RIGHT = auto()
    MISSING = auto()
    WRONG_SIZE = auto()
    CORRUPT = auto()
    RETIRED = auto()
    """It was deleted after its time, as the record of that says."""


@dataclass(frozen=True, slots=True)
class FrameCheck:
    """Looks for frames, and with `deep` reads them. Every method may raise `Unavailable`."""

    store: Store
    deep: bool = False
    _reads: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(READ_AT_ONCE))

    async def state(self, manifest: IdentityManifest) -> BlobState:
        """What is there of the frame of a batch."""
        found = await self.store.head(manifest.raw_blob_key)
        if found is None:
            return await self._gone(manifest)
        if found.size != manifest.frame_bytes:
            return BlobState.WRONG_SIZE
        if self.deep:
            async with self._reads:
                problem = await BlobCheck(self.store).problem(manifest)
            if problem is not None:  # it may have been retired while it was read
                return BlobState.CORRUPT if problem == "corrupt" else await self._gone(manifest)
        return BlobState.RIGHT

    async def _gone(self, manifest: IdentityManifest) -> BlobState:
        try:
            retired = await read_record(RetiredBatch, keys.retired(manifest.identity), self.store)
        except Unreadable:
            return BlobState.MISSING  # what is damaged explains nothing
        is_retired = retired is not None and retired.frame_sha256 == manifest.frame_sha256
        return BlobState.RETIRED if is_retired else BlobState.MISSING
