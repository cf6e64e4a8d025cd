"""Whether the frames of accepted batches are there, and are what was accepted."""

import asyncio
from dataclasses import dataclass, field
from enum import Enum, auto
from hashlib import sha256

from lakehead.storage.port import Store
from lakehead.wire import acceptance_keys as keys
from lakehead.wire.acceptance_records import IdentityManifest
from lakehead.wire.errors import Unreadable
from lakehead.wire.frame import peek_frame
from lakehead.wire.frame_header import MAX_HEAD_BYTES
from lakehead.wire.record_schemas import FrameKind

READ_BYTES = 4 << 20
"""Bytes of a frame that are read at once."""

READ_AT_ONCE = 8
"""Frames that are read concurrently, for their hashes."""

KINDS = {kind.name.lower(): kind for kind in FrameKind}


class BlobState(Enum):
    """What was found of a frame."""

    RIGHT = auto()
    MISSING = auto()
    WRONG_SIZE = auto()
    CORRUPT = auto()
    RETIRED = auto()
    """It was deleted after its time, as the record of that says."""


@dataclass(frozen=True, slots=True)
class BlobCheck:
    """Looks for frames, and with `deep` reads them. Every method may raise `Unavailable`."""

    store: Store
    deep: bool = False
    _reads: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(READ_AT_ONCE))

    async def state(self, manifest: IdentityManifest) -> BlobState:
        """What is there of the frame of a batch."""
        found = await self.store.head(manifest.raw_blob_key)
        if found is None:
            retired = await self.store.head(keys.retired(manifest.identity))
            return BlobState.MISSING if retired is None else BlobState.RETIRED
        if found.size != manifest.frame_bytes:
            return BlobState.WRONG_SIZE
        if self.deep and await self._sha256(manifest) != manifest.frame_sha256:
            return BlobState.CORRUPT
        return BlobState.RIGHT

    async def kind(self, manifest: IdentityManifest) -> FrameKind | None:
        """What the records of a batch are, by its manifest or its frame; None if neither tells."""
        if manifest.kind:
            return KINDS.get(manifest.kind)
        head = await self.store.get(manifest.raw_blob_key, end=MAX_HEAD_BYTES)
        try:
            return None if head is None else peek_frame(head.body).kind
        except Unreadable:
            return None

    async def _sha256(self, manifest: IdentityManifest) -> str:
        digest = sha256()
        async with self._reads:
            for start in range(0, manifest.frame_bytes, READ_BYTES):
                part = await self.store.get(manifest.raw_blob_key, start=start, end=start + READ_BYTES)
                digest.update(b"" if part is None else part.body)
        return digest.hexdigest()
