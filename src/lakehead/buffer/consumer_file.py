"""The consumer manifest as one collector sees it: one request at a time, so that no answer is older than another."""

import asyncio
from collections.abc import Callable

from lakehead.buffer.holdings import Holdings
from lakehead.buffer.manifests import ManifestFile, Stored
from lakehead.clock import Clock
from lakehead.wire.queue_manifests import ConsumerManifest


class ConsumerFile:
    """Reads and writes the manifest, and settles what was left without an answer. Nobody waits for more than a request
    that is under way."""

    def __init__(self, file: ManifestFile[ConsumerManifest], holdings: Holdings, clock: Clock) -> None:
        self.bad_in_a_row = 0
        """How many bad batches were acknowledged last, as far as we have seen."""
        self.refreshed_at = clock.monotonic()
        """When the last write began that has succeeded: each is a heartbeat."""
        self._file = file
        self._holdings = holdings
        self._clock = clock
        self._request = asyncio.Lock()

    async def read(self) -> Stored[ConsumerManifest]:
        """What is there now."""
        async with self._request:
            return await self._read()

    async def latest(self) -> Stored[ConsumerManifest]:
        """What we last saw, where we need not know better: if it is old, the write that follows is refused."""
        async with self._request:
            return await self._latest()

    async def write(self, seen: Stored[ConsumerManifest], manifest: ConsumerManifest) -> bool:
        """Whether the manifest took the place of exactly what was seen. Raises what `ManifestFile.write` raises."""
        began = self._clock.monotonic()
        async with self._request:
            latest = self._file.latest
            if latest is not None and latest.at != seen.at:
                return False  # a heartbeat of ours came between: the store would refuse it
            return await self._write(seen, manifest, began)

    async def change(self, change: Callable[[ConsumerManifest], ConsumerManifest]) -> bool:
        """Whether what `change` makes of the latest manifest took its place, with nothing of ours between."""
        async with self._request:
            seen = await self._latest()
            return await self._write(seen, change(seen.manifest), self._clock.monotonic())

    async def _read(self) -> Stored[ConsumerManifest]:
        seen = await self._file.read()
        self.bad_in_a_row = seen.manifest.bad_in_a_row
        self._holdings.settle(seen)
        return seen

    async def _latest(self) -> Stored[ConsumerManifest]:
        latest = self._file.latest
        return await self._read() if latest is None else latest

    async def _write(self, seen: Stored[ConsumerManifest], manifest: ConsumerManifest, began: float) -> bool:
        written = await self._file.write(seen, manifest)
        if written:
            self.refreshed_at = began
            self.bad_in_a_row = manifest.bad_in_a_row
        return written
