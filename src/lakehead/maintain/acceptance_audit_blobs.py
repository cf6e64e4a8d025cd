"""Whether the frames of accepted batches are there, and are what was accepted."""

import asyncio
from dataclasses import dataclass, field
from enum import Enum, auto

from lakehead.maintain.blob_check import BlobCheck
from lakehead.storage.port import Store
from lakehead.wire import acceptance_keys as keys
from lakehead.wire.acceptance_records import IdentityManifest

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
            return await self._absent(manifest)
        if found.size != manifest.frame_bytes:
            return BlobState.WRONG_SIZE
        if self.deep:
            async with self._reads:
                problem = await BlobCheck(self.store).problem(manifest)
            if problem is not None:
                return BlobState.CORRUPT if problem == "corrupt" else await self._absent(manifest)
        return BlobState.RIGHT

    async def _absent(self, manifest: IdentityManifest) -> BlobState:
        retired = await self.store.head(keys.retired(manifest.identity))
        return BlobState.MISSING if retired is None else BlobState.RETIRED
