"""What follows an acceptance, in the background: derived indexes, and the queue of what is to be landed.

Nothing here decides anything. What fails, or is lost with the process, is found by the reconciler in the identity
manifests; so a request never waits for it, and never fails because of it.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

from lakehead.accept.counts import AcceptCounts
from lakehead.errors import LakeheadError
from lakehead.storage.port import Store
from lakehead.wire.acceptance_records import IdentityManifest
from lakehead.wire.index_records import AcceptedByBlob, AcceptedByTime

LOG = logging.getLogger(__name__)


class LandingQueue(Protocol):
    """The queue of accepted batches that are to be landed."""

    async def put(self, manifests: Sequence[IdentityManifest]) -> None:
        """Queue batches. Returns when they are durable. Raises a `LakeheadError` if they may not be."""
        ...


@dataclass(slots=True, kw_only=True)
class AfterAcceptance:
    """Starts what follows an acceptance, with bounded memory and a bounded number of requests."""

    store: Store
    queue: LandingQueue
    counts: AcceptCounts = field(default_factory=AcceptCounts)
    most_waiting: int = 10_000
    """Accepted batches that may wait for each of the two; what exceeds it is left to the reconciler."""

    most_indexed_at_once: int = 16
    most_queued_at_once: int = 1_000
    _to_index: deque[IdentityManifest] = field(default_factory=deque, init=False)
    _to_queue: deque[IdentityManifest] = field(default_factory=deque, init=False)
    _tasks: dict["asyncio.Task[None]", None] = field(default_factory=dict, init=False)
    """What runs, in the order in which it was begun."""

    _indexing: int = field(default=0, init=False)
    _is_queueing: bool = field(default=False, init=False)

    def start(self, manifest: IdentityManifest) -> None:
        """Begin what follows the acceptance of a batch, by whoever accepted it. Never waits, never raises."""
        for waiting in (self._to_index, self._to_queue):
            if len(waiting) < self.most_waiting:
                waiting.append(manifest)
            else:
                self.counts.left_to_reconciler += 1
        if self._to_index and self._indexing < self.most_indexed_at_once:
            self._indexing += 1
            self._spawn(self._index_all())
        if self._to_queue and not self._is_queueing:
            self._is_queueing = True
            self._spawn(self._queue_all())

    async def finish(self, manifests: Sequence[IdentityManifest]) -> None:
        """Do what follows some acceptances, and return when it was done or has failed: then it is the reconciler's."""
        indexed = asyncio.Semaphore(self.most_indexed_at_once)

        async def index(manifest: IdentityManifest) -> None:
            async with indexed:
                await self._index(manifest)

        await asyncio.gather(self._queue(manifests), *(index(each) for each in manifests))

    async def close(self, *, within: float) -> None:
        """Let what was begun end, for at most so many seconds. What is left is the reconciler's."""
        if self._tasks:
            with suppress(TimeoutError):
                async with asyncio.timeout(within):
                    await asyncio.wait(self._tasks)
        left = list(self._tasks)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        self.counts.left_to_reconciler += len(self._to_index) + len(self._to_queue)
        self._to_index.clear()
        self._to_queue.clear()

    async def _index_all(self) -> None:
        try:
            while self._to_index:
                await self._index(self._to_index.popleft())
        finally:
            self._indexing -= 1

    async def _index(self, manifest: IdentityManifest) -> None:
        try:
            for entry in (AcceptedByTime.of(manifest), AcceptedByBlob.of(manifest)):
                await self.store.create(entry.key, entry.encode())
            self.counts.indexed += 1
        except LakeheadError as error:
            self.counts.not_indexed += 1
            LOG.warning("The indexes of %s were not written, which the reconciler will do: %s", manifest.key, error)

    async def _queue_all(self) -> None:
        try:
            while self._to_queue:
                some = [self._to_queue.popleft() for _ in range(min(len(self._to_queue), self.most_queued_at_once))]
                await self._queue(some)
        finally:
            self._is_queueing = False

    async def _queue(self, manifests: Sequence[IdentityManifest]) -> None:
        try:
            await self.queue.put(manifests)
            self.counts.queued += len(manifests)
        except LakeheadError as error:
            self.counts.not_queued += len(manifests)
            LOG.warning(
                "%d accepted batches may not be queued for landing, which the reconciler will do: %s",
                len(manifests),
                error,
            )

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks[task] = None
        task.add_done_callback(lambda ended: self._tasks.pop(ended, None))
