"""The consumer manifest as one collector uses it: one request at a time, so that no response is outdated."""

import asyncio
from collections.abc import Callable

from lakehead.buffer.held_claims import HeldClaims
from lakehead.buffer.manifests import ManifestFile, StoredManifest
from lakehead.clock import Clock
from lakehead.wire.queue_manifests import ConsumerManifest


class ConsumerFile:
    """Reads and writes the manifest, and resolves unconfirmed writes after each read.

    A call waits at most for the request that is running, not for the retries of another call.
    """

    def __init__(self, file: ManifestFile[ConsumerManifest], claims: HeldClaims, clock: Clock) -> None:
        self.bad_in_a_row = 0
        """How many bad batches were acknowledged last, as of the manifest that we last read or wrote."""
        self.refreshed_at = clock.monotonic()
        """When the last successful write began: every write is a heartbeat."""
        self._file = file
        self._claims = claims
        self._clock = clock
        self._request = asyncio.Lock()

    async def read(self) -> StoredManifest[ConsumerManifest]:
        """Read the current state."""
        async with self._request:
            return await self._read()

    async def latest(self) -> StoredManifest[ConsumerManifest]:
        """Return the state that we last read or wrote. If it is outdated, a write that follows is refused."""
        async with self._request:
            return await self._latest()

    async def write(self, current: StoredManifest[ConsumerManifest], manifest: ConsumerManifest) -> bool:
        """Replace exactly the state `current`; return whether that succeeded. Raises what `ManifestFile.write` does."""
        began = self._clock.monotonic()
        async with self._request:
            latest = self._file.latest
            if latest is not None and latest.object_version != current.object_version:
                return False  # a heartbeat of ours was written meanwhile: the store would refuse this one
            return await self._write(current, manifest, began)

    async def change(self, change: Callable[[ConsumerManifest], ConsumerManifest]) -> bool:
        """Replace the latest state by what `change` returns for it; return whether that succeeded."""
        async with self._request:
            current = await self._latest()
            return await self._write(current, change(current.manifest), self._clock.monotonic())

    async def _read(self) -> StoredManifest[ConsumerManifest]:
        current = await self._file.read()
        self.bad_in_a_row = current.manifest.bad_in_a_row
        self._claims.resolve(current)
        return current

    async def _latest(self) -> StoredManifest[ConsumerManifest]:
        latest = self._file.latest
        return await self._read() if latest is None else latest

    async def _write(self, current: StoredManifest[ConsumerManifest], manifest: ConsumerManifest, began: float) -> bool:
        written = await self._file.write(current, manifest)
        if written:
            self.refreshed_at = began
            self.bad_in_a_row = manifest.bad_in_a_row
        return written
