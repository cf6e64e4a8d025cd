"""Whether the frames of accepted batches are there, and are what was accepted."""

import asyncio
from dataclasses import dataclass, field
from enum import Enum, auto
from hashlib import sha256

from lakehead.accept.record_file import read_record
from lakehead.storage.port import Store
from lakehead.wire import acceptance_keys as keys
from lakehead.wire.acceptance_records import IdentityManifest
from lakehead.wire.errors import Unreadable
from lakehead.wire.frame import peek_frame
from lakehead.wire.frame_header import MAX_HEAD_BYTES
from lakehead.wire.maintenance_records import RetiredBatch
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
            return await self._gone(manifest)
        if found.size != manifest.frame_bytes:
            return BlobState.WRONG_SIZE
        if not self.deep:
            return BlobState.RIGHT
        hashed = await self._sha256(manifest)
        if hashed is None:
            return await self._gone(manifest)  # it may have been retired while it was read
        return BlobState.RIGHT if hashed == manifest.frame_sha256 else BlobState.CORRUPT

    async def _gone(self, manifest: IdentityManifest) -> BlobState:
        try:
            retired = await read_record(RetiredBatch, keys.retired(manifest.identity), self.store)
        except Unreadable:
            return BlobState.MISSING  # what is damaged explains nothing
        is_retired = retired is not None and retired.frame_sha256 == manifest.frame_sha256
        return BlobState.RETIRED if is_retired else BlobState.MISSING

    async def kind(self, manifest: IdentityManifest) -> FrameKind | None:
        """What the records of a batch are, by its manifest or its frame; None if neither tells."""
        if manifest.kind:
            return KINDS.get(manifest.kind)
        head = await self.store.get(manifest.raw_blob_key, end=MAX_HEAD_BYTES)
        try:
            return None if head is None else peek_frame(head.body).kind
        except Unreadable:
            return None

    async def _sha256(self, manifest: IdentityManifest) -> str | None:
        """The hash of the stored bytes; None if they are gone."""
        digest = sha256()
        async with self._reads:
            for start in range(0, manifest.frame_bytes, READ_BYTES):
                part = await self.store.get(manifest.raw_blob_key, start=start, end=start + READ_BYTES)
                if part is None:
                    return None
                digest.update(part.body)
        return digest.hexdigest()
