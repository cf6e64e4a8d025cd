"""Acceptance on a gateway's own disk (`local_spool`): a batch is accepted when its frame is there, flushed to disk.

The object store learns of it later, by `spool_uploads`. Until then the spool alone knows what is accepted, so it also
answers for it: the same frame again is a duplicate, another one under the same identity a conflict. What is not in the
spool may be in the object store, or void there: `known_boots` says when that has to be asked.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from heapq import nsmallest
from typing import Any

import msgspec

from lakehead.accept.acceptance import Accepted, Acceptor, Answer, Conflict, Duplicate, Submission, Void
from lakehead.accept.known_boots import KnownBoots
from lakehead.accept.spool_limits import SpoolLimits
from lakehead.accept.spooled_batch import IdentityInSpool, SpooledBatch, SpoolFull, SpoolUnusable
from lakehead.clock import Clock
from lakehead.errors import LakeheadError, OutcomeUnknown, Unavailable
from lakehead.storage.port import Created, Store
from lakehead.to_its_end import to_its_end
from lakehead.wire import acceptance_keys as keys
from lakehead.wire import spool_records as files
from lakehead.wire.acceptance_records import IdentityManifest, IdentityVoid
from lakehead.wire.batch_identity import BatchIdentity
from lakehead.wire.errors import BadFrame, NewerFormat

LOG = logging.getLogger(__name__)

HEAL_SECONDS = 1.0
"""How long a duplicate waits at most for the object store, to store a frame again that was lost there."""


@dataclass(slots=True, kw_only=True)
class Spool:
    """The batches that one gateway has accepted on its disk. One process has it open at a time."""

    disk: Store
    """The spool's folder. What it has stored is on disk when its calls return."""

    acceptor: Acceptor
    """Of the object store."""

    clock: Clock
    boots: KnownBoots
    limits: SpoolLimits = field(default_factory=SpoolLimits)
    spool_id: str = ""
    """By which the authority record lists it, and garbage collection means it and no other."""

    aside: list[str] = field(default_factory=list, init=False)
    """Files that an operator must look at: kept, damaged, or of another name than a batch has."""

    _batches: dict[BatchIdentity, SpooledBatch] = field(default_factory=dict, init=False)
    _voids: set[BatchIdentity] = field(default_factory=set, init=False)
    _aside_of: set[BatchIdentity] = field(default_factory=set, init=False)
    _leaving: dict[BatchIdentity, "asyncio.Future[None]"] = field(default_factory=dict, init=False)
    """Batches that are being removed: whether their files are still there says nothing."""

    _underway: dict[BatchIdentity, "asyncio.Future[None]"] = field(default_factory=dict, init=False)
    _reserved: list[int] = field(default_factory=list, init=False)
    _bytes: int = field(default=0, init=False)
    _problem: str = field(default="", init=False)
    """Why nothing is accepted, and nothing made void, until the next start: a file may be on disk, and may not."""

    async def load(self) -> None:
        """Read what is on the disk. Raises `LakeheadError` if that is not possible: then nothing may be accepted."""
        found = [each async for page in self.disk.list(files.BATCHES) for each in page]
        flushed: set[str] = set()
        for each in sorted(found, key=lambda one: (one.modified_ns, one.key)):
            identity = files.parse_spooled_batch(each.key)
            if identity is None:
                self._set_aside(each.key)
                continue
            if (folder := each.key.rpartition("/")[0]) not in flushed:
                # A process that was killed may not have flushed the name of a file; a create that finds one does.
                await self.disk.create(each.key, b"")
                flushed.add(folder)
            self._add(SpooledBatch.found(identity, each.size, each.modified_ns))
        async for page in self.disk.list(files.VOIDS):
            self._voids.update(identity for each in page if (identity := files.parse_void(each.key)) is not None)
        for folder in (files.KEPT, files.DAMAGED):
            async for page in self.disk.list(folder):
                for each in page:
                    self._set_aside(each.key)
        await self.boots.load()

    # --- uploads

    async def accept(self, submission: Submission) -> Answer:
        """Accept a batch on this disk, unless its identity is taken, here or in the object store.

        Raises `SpoolFull` and `SpoolUnusable`; `Unavailable` if only the object store could tell, and does not answer;
        `OutcomeUnknown` if the batch may be on disk. Sending the same bytes again is safe.
        """
        async with self._alone(submission.identity):
            if (found := self._batches.get(submission.identity)) is not None:
                there = await self._hashed(found)
                if there is not None:
                    return self._compared(submission, self._manifest(submission, there))
            if (at_key := await self._in_store(submission.identity)) is not None:
                answer = Void(at_key) if isinstance(at_key, IdentityVoid) else self._compared(submission, at_key)
                if isinstance(answer, Duplicate):
                    await self._heal(submission)
                return answer
            return Accepted(self._manifest(submission, await self._write(submission)))

    async def _heal(self, submission: Submission) -> None:
        """Store a frame again that the object store has lost, if the store answers soon: the spool can do without."""
        with suppress(TimeoutError):
            async with asyncio.timeout(HEAL_SECONDS):
                await self.acceptor.heal(submission)

    async def _in_store(self, identity: BatchIdentity) -> IdentityManifest | IdentityVoid | None:
        """Return what the object store has at the key of an identity that is not in the spool; None if nothing.

        The store is asked only if something may be there. Raises `Unavailable` if it does not answer, or has nothing
        for an identity that is void here: garbage collection is about to create the void, or will try again.
        """
        boot = None if identity in self._voids else await self.boots.of(identity)
        if boot is None or boot.may_become_void(identity):
            found = await self.acceptor.read(identity)
            if found is None:
                raise Unavailable(
                    f"{keys.accepted(identity)} is about to become void, and is not yet. Nothing was accepted; "
                    "try again later."
                )
            return found
        if (landed := boot.landed(identity)) is not None:
            return landed
        return await self.acceptor.read(identity) if boot.may_be_in_store(identity) else None

    async def _write(self, submission: Submission) -> SpooledBatch:
        size = len(submission.body)
        self._check_usable()
        if (
            self.total_bytes + sum(self._reserved) + size > self.limits.most_bytes
            or self.count + len(self._reserved) >= self.limits.most_batches
        ):
            raise SpoolFull(
                f"The spool holds {self.count:,} batches with {self.total_bytes:,} bytes, and may hold "
                f"{self.limits.most_batches:,} with {self.limits.most_bytes:,}: they wait for the object store."
            )
        self._reserved.append(size)
        try:
            # To its end, also if nobody waits any more: else a file could be there that nothing knows of.
            return await to_its_end(self._create(submission))
        finally:
            self._reserved.remove(size)

    async def _create(self, submission: Submission) -> SpooledBatch:
        key = files.spooled_batch(submission.identity)
        try:
            created = await self.disk.create(key, submission.body)
            stored = await self.disk.head(key)
        except LakeheadError as error:
            if isinstance(error, OutcomeUnknown) or await self._may_be_there(key):
                self._disk_failed(error)
            if isinstance(error, OutcomeUnknown):
                raise
            raise SpoolUnusable(f"{submission.identity} could not be written to the spool. {error}") from error
        if not isinstance(created, Created) or stored is None:
            self._problem = f"{key} was changed by somebody else. Start the gateway again."
            raise SpoolUnusable(self._problem)
        batch = SpooledBatch.found(submission.identity, stored.size, stored.modified_ns, submission.sha256)
        self._add(batch)
        return batch

    async def _may_be_there(self, key: str) -> bool:
        try:
            return await self.disk.head(key) is not None
        except LakeheadError:
            return True

    def _disk_failed(self, error: LakeheadError) -> None:
        self._problem = f"The spool's disk failed, so nothing is accepted until the gateway is started again: {error}"

    def _compared(self, submission: Submission, accepted: IdentityManifest) -> Duplicate | Conflict:
        if accepted.frame_sha256 == submission.sha256:
            return Duplicate(accepted)
        return Conflict(accepted, submission)

    def _manifest(self, submission: Submission, batch: SpooledBatch) -> IdentityManifest:
        """What the object store will say of a batch in the spool, as far as it is known."""
        return msgspec.structs.replace(
            self.acceptor.manifest_of(submission),
            frame_sha256=batch.sha256,
            frame_bytes=batch.size,
            raw_blob_key=keys.raw_blob(batch.sha256),
            accepted_at_unix_ns=batch.spooled_at_unix_ns,
            spooled_at_unix_ns=batch.spooled_at_unix_ns,
        )

    async def _hashed(self, batch: SpooledBatch) -> SpooledBatch | None:
        """Return the batch with its hash; None if its file is damaged, and was set aside."""
        if batch.sha256:
            return batch
        submission = await self.read(batch.identity)
        return None if submission is None else self._batches[batch.identity]

    # --- garbage collection

    async def void(self, identity: BatchIdentity) -> None:
        """Accept nothing more under an identity, from the moment at which this returns and for good.

        Garbage collection calls it for every open spool before it creates the void in the object store. Raises
        `IdentityInSpool` if the batch is here: then it will be accepted, and nothing may be void. Raises `Unavailable`
        and `OutcomeUnknown` if it may not be on disk; repeating it is safe.
        """
        record = files.SpoolVoid.of(identity, voided_at_unix_ns=self.clock.now_ns())
        async with self._alone(identity):
            if identity in self._batches or identity in self._aside_of:
                raise IdentityInSpool(f"The spool holds a batch of {identity}: it cannot become void.")
            self._check_usable()  # also because it may hold the batch, and because a void may not reach the disk
            self._voids.add(identity)
            try:
                await to_its_end(self.disk.create(record.key, record.encode()))
            except OutcomeUnknown as error:
                self._disk_failed(error)
                raise

    # --- what is in it

    @property
    def count(self) -> int:
        """How many batches wait for the object store."""
        return len(self._batches)

    @property
    def total_bytes(self) -> int:
        """How large they are."""
        return self._bytes

    @property
    def oldest_seconds(self) -> float:
        """How long the oldest has waited; 0 if there is none."""
        oldest = min((each.spooled_at_unix_ns for each in self._batches.values()), default=None)
        return 0.0 if oldest is None else max(0.0, (self.clock.now_ns() - oldest) / 1e9)

    def waiting(self) -> Sequence[BatchIdentity]:
        """Return the batches that wait for the object store, in the order in which they are to be landed."""
        return tuple(self._batches)

    def page(self, *, after: BatchIdentity | None = None, limit: int = 100) -> Sequence[SpooledBatch]:
        """Return some batches in the order of their identities: the first ones, or those after another."""
        some = nsmallest(limit, (each for each in self._batches if after is None or each > after))
        return [self._batches[each] for each in some]

    def check(self) -> None:
        """Raise `Unavailable` if the spool accepts nothing now."""
        self._check_usable()
        if self.total_bytes >= self.limits.most_bytes or self.count >= self.limits.most_batches:
            raise SpoolFull(f"The spool is full: {self.count:,} batches with {self.total_bytes:,} bytes.")

    async def read(self, identity: BatchIdentity) -> Submission | None:
        """Return a batch as it was accepted; None if it is not there, or its file is damaged, and was set aside.

        Raises `Unavailable` if the disk does not answer, or a newer Lakehead wrote the frame.
        """
        batch = self._batches.get(identity)
        if batch is None:
            return None
        stored = await self.disk.get(batch.key)
        if (leaving := self._leaving.get(identity)) is not None:
            await asyncio.wait([leaving])
        if leaving is not None or self._batches.get(identity) is not batch:  # it has left, or was read by another
            return await self.read(identity)
        try:
            submission = batch.submission(stored.body if stored else b"")
        except NewerFormat as error:
            raise Unavailable(f"{batch.key} stays in the spool. {error}") from error
        except BadFrame as error:
            LOG.warning("%s is not the frame that was accepted, and goes to %s/: %s", batch.key, files.DAMAGED, error)
            await self._move(batch, files.DAMAGED, stored.body if stored else b"")
            return None
        if not batch.sha256:
            self._batches[identity] = replace(batch, sha256=submission.sha256)
        return submission

    # --- landing

    async def landed(self, manifests: Sequence[IdentityManifest]) -> None:
        """Forget batches whose identities the object store has: first it is remembered that it has them."""
        await to_its_end(self._landed(manifests))

    async def _landed(self, manifests: Sequence[IdentityManifest]) -> None:
        await self.boots.landed(manifests)
        for each in manifests:
            if (batch := self._batches.get(each.identity)) is not None:
                await self._leave(batch, self._delete(batch))

    def postpone(self, identity: BatchIdentity) -> None:
        """Land a batch after all others that wait now."""
        if (batch := self._batches.pop(identity, None)) is not None:
            self._batches[identity] = batch

    async def keep(self, submission: Submission) -> None:
        """Set a batch aside that the object store cannot take any more, for an operator."""
        if (batch := self._batches.get(submission.identity)) is not None:
            await self._move(batch, files.KEPT, submission.body)

    async def _move(self, batch: SpooledBatch, folder: str, body: bytes) -> None:
        await self._leave(batch, self._moved(batch, folder, body))

    async def _moved(self, batch: SpooledBatch, folder: str, body: bytes) -> None:
        key = files.set_aside(folder, batch.identity, batch.spooled_at_unix_ns)
        await self.disk.create(key, body)
        if key not in self.aside:
            self._set_aside(key)
        await self._delete(batch)

    async def _leave(self, batch: SpooledBatch, work: Coroutine[Any, Any, None]) -> None:
        """Take a batch out of the spool, once whoever asks for it, and to the end whoever still waits for it."""
        if batch.identity in self._leaving:
            work.close()
        else:
            self._leaving[batch.identity] = leaving = asyncio.ensure_future(work)
            leaving.add_done_callback(lambda _: self._leaving.pop(batch.identity))
        await to_its_end(self._leaving[batch.identity])

    def _set_aside(self, key: str) -> None:
        self.aside.append(key)
        if (identity := files.parse_set_aside(key)) is not None:
            self._aside_of.add(identity)
            if key.startswith(f"{files.KEPT}/"):
                self._voids.add(identity)

    def _add(self, batch: SpooledBatch) -> None:
        self._batches[batch.identity] = batch
        self._bytes += batch.size

    async def _delete(self, batch: SpooledBatch) -> None:
        """Remove a batch that is safe elsewhere. If its file stays, the next start finds it, and lands it again."""
        try:
            await self.disk.delete(batch.key)
        except LakeheadError as error:
            LOG.warning("%s is safe elsewhere, and stays in the spool until the next start: %s", batch.key, error)
        if self._batches.pop(batch.identity, None) is not None:
            self._bytes -= batch.size

    def _check_usable(self) -> None:
        if self._problem:
            raise SpoolUnusable(self._problem)

    @asynccontextmanager
    async def _alone(self, identity: BatchIdentity) -> AsyncIterator[None]:
        """Of the uploads of one identity one is looked at after the other."""
        while (other := self._underway.get(identity)) is not None:
            await asyncio.shield(other)
        self._underway[identity] = done = asyncio.get_running_loop().create_future()
        try:
            yield
        finally:
            del self._underway[identity]
            done.set_result(None)
