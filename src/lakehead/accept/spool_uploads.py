"""How batches of a spool reach the object store: by the same acceptance as any other batch, then out of the spool.

Each step can be repeated: a batch leaves the spool when the object store has its identity, and is accepted there again,
as a duplicate, if the process died before that was remembered.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from lakehead.accept.acceptance import Accepted, Acceptor, Conflict, Duplicate, Void
from lakehead.accept.spool import Spool
from lakehead.clock import Clock
from lakehead.errors import LakeheadError, Unavailable
from lakehead.ids import Random
from lakehead.wire.acceptance_records import IdentityManifest
from lakehead.wire.batch_identity import BatchIdentity

LOG = logging.getLogger(__name__)


class ConflictRecorder(Protocol):
    """Keeps conflicts for operators, as `lakehead.accept.conflicts.Conflicts` does."""

    async def record(self, conflict: Conflict) -> None:
        """Store a conflict's quarantine manifest; its blob is stored. Raises `Unavailable` and `OutcomeUnknown`."""
        ...


class SideEffects(Protocol):
    """What follows an acceptance, as `lakehead.accept.after_acceptance.AfterAcceptance` does it."""

    async def finish(self, manifests: Sequence[IdentityManifest]) -> None:
        """Do it, and return when it was done or has failed, which is counted and logged."""
        ...

    async def close(self, *, within: float) -> None:
        """Let what was begun end, for at most so many seconds."""
        ...


@dataclass(slots=True)
class SpoolCounts:
    """What became of batches of a spool, in numbers of one process that only grow."""

    landed: int = 0
    """Batches that reached the object store."""

    failed: int = 0
    """Tries that failed; each is made again."""

    conflicts: int = 0
    """Batches under whose identity the object store had accepted another frame: they are in quarantine."""

    kept: int = 0
    """Batches whose identity is void in the object store: they are kept for an operator."""


@dataclass(slots=True, kw_only=True)
class SpoolUploads:
    """Lands the batches of one spool, in the background or all at once."""

    spool: Spool
    acceptor: Acceptor
    conflicts: ConflictRecorder
    effects: SideEffects
    clock: Clock
    random: Random
    interval_seconds: float = 1.0
    """The pause between two landings."""

    longest_pause_seconds: float = 30.0
    """The longest pause while the object store does not answer."""

    at_once: int = 8
    """Batches that are landed at the same time, each of which is held in memory."""

    group: int = 64
    """Batches after which it is written down that they have landed."""

    counts: SpoolCounts = field(default_factory=SpoolCounts)
    _problem: LakeheadError | None = field(default=None, init=False)
    _running: "asyncio.Task[None] | None" = field(default=None, init=False)

    # --- as the side effects of a gateway's uploads

    def start(self, manifest: IdentityManifest) -> None:
        """Nothing follows at once: what follows an acceptance begins when the batch is in the object store."""

    async def close(self, *, within: float) -> None:
        """Land what is in the spool, for at most so many seconds. What is left is landed after the next start."""
        await self.stop()
        try:
            async with asyncio.timeout(within):
                await self.land_all()
        except TimeoutError:
            LOG.warning("%d batches stay in the spool until the next start.", self.spool.count)
        await self.effects.close(within=within)

    def run_in_background(self) -> None:
        """Land batches until `close`."""
        self._running = asyncio.ensure_future(self.run())

    async def stop(self) -> None:
        """End what runs in the background, wherever it is: what was begun is taken up after the next start."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)

    def check(self) -> None:
        """Raise `Unavailable` if batches do not reach the object store, or an operator must look at some."""
        if self._problem is not None:
            raise Unavailable(f"{self.spool.count:,} batches wait in the spool. {self._problem}")
        if aside := self.spool.aside:
            raise Unavailable(
                f"{len(aside):,} files of the spool need an operator ({', '.join(aside[:3])}): see GET /v1/spool."
            )

    # --- landing

    async def run(self) -> None:
        """Land what is in the spool, again and again, until the task is cancelled.

        Pauses grow only while nothing can be landed: one batch that never can be does not slow down all others.
        """
        failures = 0
        while True:
            pause = min(self.interval_seconds * 2**failures, max(self.longest_pause_seconds, self.interval_seconds))
            await self.clock.sleep(self.random.uniform(pause / 2, pause) if failures else pause)
            before = self.counts.landed
            try:
                failures = 0 if await self.land_all() or self.counts.landed > before else min(failures + 1, 30)
            except Exception:
                LOG.exception("Batches of the spool were not landed, for a reason that is not expected.")
                failures = min(failures + 1, 30)

    async def land_all(self) -> bool:
        """Try to land each batch that is in the spool now. Returns whether every one has left it.

        If nothing of a group can be landed the rest is left for later: the object store does not answer.
        """
        waiting, failed = self.spool.waiting(), 0
        for start in range(0, len(waiting), self.group):
            group = waiting[start : start + self.group]
            left = await self._land_group(group)
            failed += left
            if left == len(group):
                break
        if not failed:
            self._problem = None
        return not failed

    async def drain(self, *, tries: int = 10) -> None:
        """Land everything. Raises the last error after so many tries in a row that changed nothing."""
        failures = 0
        while self.spool.count:
            before = self.spool.count
            await self.land_all()
            failures = failures + 1 if self.spool.count == before else 0
            if failures >= tries:
                raise self._problem or Unavailable(f"{before:,} batches cannot be landed. Look at the gateway's log.")
            if self.spool.count:
                await self.clock.sleep(self.random.uniform(0, min(2**failures * self.interval_seconds, 5.0)))

    async def _land_group(self, group: Sequence[BatchIdentity]) -> int:
        """Land some batches. Returns how many are still in the spool."""
        left = iter(group)
        landed: list[IdentityManifest] = []
        failed: list[BatchIdentity] = []

        async def work() -> None:
            for identity in left:
                if len(failed) >= self.at_once and not landed:
                    failed.append(identity)
                    continue
                try:
                    if (manifest := await self._land(identity)) is not None:
                        landed.append(manifest)
                except LakeheadError as error:
                    failed.append(identity)
                    self._failed(identity, error)
                except Exception as error:
                    LOG.exception("%s stays in the spool, for a reason that is not expected.", identity)
                    failed.append(identity)
                    self._failed(identity, Unavailable(f"{identity} cannot be landed: {error!r}"))

        await asyncio.gather(*(work() for _ in range(min(self.at_once, len(group)))))
        try:
            if landed:
                await self.effects.finish(landed)
                await self.spool.landed(landed)
                self.counts.landed += len(landed)
        except LakeheadError as error:
            self._failed(landed[0].identity, error)
            return len(group)
        for identity in failed:
            self.spool.postpone(identity)
        return len(failed)

    async def _land(self, identity: BatchIdentity) -> IdentityManifest | None:
        """Accept a batch in the object store. Returns what stands at its key; None if it has left the spool."""
        submission = await self.spool.read(identity)
        if submission is None:
            return None
        match await self.acceptor.accept(submission):
            case Accepted(manifest) | Duplicate(manifest):
                return manifest
            case Conflict(manifest) as conflict:
                await self.conflicts.record(conflict)
                self.counts.conflicts += 1
                LOG.warning(
                    "%s was accepted by another gateway with another frame. The one of this spool, sha256 %s, is in "
                    "quarantine: look at `lakehead conflicts list CONFIG`.",
                    manifest.key,
                    submission.sha256,
                )
                return manifest
            case Void(record):
                LOG.warning(
                    "%s is void since %d (%s), though the spool had accepted a batch of it. The frame is kept in the "
                    "spool's folder kept/: no garbage collector may do that.",
                    record.key,
                    record.voided_at_unix_ns,
                    record.voided_by,
                )
                await self.spool.keep(submission)
                self.counts.kept += 1
                return None

    def _failed(self, identity: BatchIdentity, error: LakeheadError) -> None:
        self.counts.failed += 1
        if self._problem is None:
            LOG.warning("%s stays in the spool, as do others, and is landed again later: %s", identity, error)
        self._problem = error
