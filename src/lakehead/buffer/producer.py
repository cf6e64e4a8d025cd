"""Appending locations to a producer manifest: exactly once, in order, many in one write."""

import asyncio
from dataclasses import replace

from lakehead.buffer.append_group import AppendGroup, StoreAgain, WaitingAppend, fail, keeps_newer, succeed
from lakehead.buffer.append_turns import AppendTurns
from lakehead.buffer.compare_and_set import contended
from lakehead.buffer.deps import BufferDeps
from lakehead.buffer.errors import OutcomeLost, QueueFull
from lakehead.buffer.manifests import ManifestFile, StoredManifest
from lakehead.errors import LakeheadError, Misconfigured, OutcomeUnknown, Unavailable
from lakehead.wire.queue_manifests import MAX_APPEND_BYTES, ProducerManifest, record_last_number

MAX_PRODUCERS = 256
"""How many producers' last numbers a manifest keeps."""


class Producer:
    """Appends to one producer manifest. All waiting locations go into the next write.

    Appends are numbered and made one after the other, and the manifest keeps our last number. So an append without a
    response is known to have been applied even if its locations were consumed and cleaned up meanwhile.

    A partition other than the first also needs `root`, the first partition's manifest, where readers find the number of
    partitions.
    """

    def __init__(
        self,
        file: ManifestFile[ProducerManifest],
        deps: BufferDeps,
        *,
        data_path_prefix: str,
        partitions: int = 1,
        root: ManifestFile[ProducerManifest] | None = None,
        max_producers: int = MAX_PRODUCERS,
    ) -> None:
        self.file = file
        self._deps = deps
        self._prefix = data_path_prefix
        self._partitions = partitions
        self._root = root
        self._retries = deps.retries
        self._max_producers = max_producers
        self._id = deps.ids.uuid()
        self._number = 0
        self._gc: int | None = None
        self._turns = AppendTurns(deps.clock, deps.random)
        self._waiting: list[WaitingAppend] = []
        self._group = AppendGroup([], 0)
        """The group that is being written, or was written last."""
        self._writer: asyncio.Task[None] | None = None

    async def gc_number(self) -> int:
        """Return a `gc` number that the manifest has had. Get it before a batch is stored, to protect it from GC."""
        if self._gc is None:
            return (await self._read()).manifest.gc
        return self._gc

    async def append(self, location: str) -> str:
        """Append a location that no other append has; return when it is in the manifest.

        Raises `Unavailable` if it is not and never will be, and `OutcomeUnknown` if that is unknown. Cancelling the
        call does not take the location back.
        """
        return await asyncio.shield(self.enqueue(location))

    def enqueue(
        self, location: str, *, gc: int | None = None, store_again: StoreAgain | None = None
    ) -> "asyncio.Future[str]":
        """Append a location after all that were enqueued before it; the future resolves as `append` returns."""
        outcome: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._waiting.append(WaitingAppend(location, gc, store_again, outcome))
        if self._writer is None:
            self._start_writer()
        return outcome

    async def drained(self) -> None:
        """Wait until nothing is waiting."""
        while self._writer is not None:
            await asyncio.wait([self._writer])

    def _start_writer(self) -> None:
        self._writer = asyncio.create_task(self._write_waiting())
        self._writer.add_done_callback(self._writer_ended)

    async def _write_waiting(self) -> None:
        while self._waiting:
            self._number += 1
            self._group, self._waiting = AppendGroup(self._waiting, self._number), []
            try:
                await self._append(self._group)
            except LakeheadError as error:
                fail(self._group.waiting, self._unknown_if_in_doubt(self._group, error))
            except Exception as error:  # noqa: BLE001 - whatever it is, the callers must get it
                fail(self._group.waiting, self._interrupted(self._group, f"failed unexpectedly ({error!r})"))

    def _writer_ended(self, writer: "asyncio.Task[None]") -> None:
        """Start again for late locations; if the writer was cancelled or interrupted, resolve all futures.

        This is not in a `finally` of the task: a task that is cancelled before its first step does not run one.
        """
        self._writer = None
        if writer.cancelled() or writer.exception() is not None:
            how = "was cancelled" if writer.cancelled() else f"was interrupted ({writer.exception()!r})"
            fail(self._group.waiting, self._interrupted(self._group, how))
            waiting, self._waiting = self._waiting, []
            fail(waiting, self._interrupted(AppendGroup([], 0), how))
        elif self._waiting:
            self._start_writer()

    def _interrupted(self, group: AppendGroup, how: str) -> LakeheadError:
        if group.base is None:
            return Unavailable(f"An append to {self.file.key} {how} before it began. Nothing was queued; try again.")
        return OutcomeUnknown(f"An append to {self.file.key} {how}. It may be queued: check before trying again.")

    async def _append(self, group: AppendGroup) -> None:
        """Append a group in one write: all of it, or nothing."""
        await self._wait(self._turns.before_first())
        for pause in self._retries.appends.pauses(self._deps.random):
            try:
                if await self._attempt(group):
                    return
                group.conflicts += 1
                await self._wait(self._turns.before_retry(group.conflicts))
            except (OutcomeLost, QueueFull):
                raise
            except (OutcomeUnknown, Unavailable) as error:
                if isinstance(error, OutcomeUnknown):
                    group.doubt = error
                group.failures.append(error.with_traceback(None))  # its frames would keep whole manifests in memory
                if len(group.failures) == self._retries.max_append_failures:
                    break
                await self._wait(pause)
        raise self._gave_up(group)

    async def _attempt(self, group: AppendGroup) -> bool:
        """Return whether the group is in the manifest now, or nothing is left of it; False after a conflict."""
        while True:
            known = self.file.latest
            current = await self._current(group)
            if self._was_applied(group, current):
                succeed(group.waiting)
                return True
            pause = self._turns.before_write(self._id, current.manifest)
            if not pause:
                break
            await self._wait(pause)
        if self._can_grow(group, current):
            group.doubt = None
            group.waiting += self._waiting
            self._waiting = []
        try:
            await self._check_settings(current.manifest)
        except Misconfigured:
            self.file.latest = None  # it may be fixed meanwhile, so the next append reads it again
            raise
        await self._store_unsafe_again(group, current.manifest.gc)
        if not group.waiting:
            return True
        group.base = current
        changed = self._with_locations(current.manifest, group)
        began = self._deps.clock.monotonic()
        try:
            written = await self.file.write(current, changed, max_bytes=MAX_APPEND_BYTES)
        except QueueFull:
            if current is not known:
                raise
            return False  # it may have been cleaned up since we last read it
        self._turns.measured(self._deps.clock.monotonic() - began)
        if not written:
            return False
        self._turns.wrote(self._id, changed)
        succeed(group.waiting)
        return True

    def _can_grow(self, group: AppendGroup, current: StoredManifest[ProducerManifest]) -> bool:
        """Return whether new locations can join the group: no earlier attempt may still be applied without them."""
        # An attempt to replace a version that is gone can no longer succeed.
        return group.base is None or current.object_version != group.base.object_version

    async def _current(self, group: AppendGroup) -> StoredManifest[ProducerManifest]:
        """Return the current state; what we last wrote if we are alone (if it is outdated, our write is refused)."""
        latest = self.file.latest
        if latest is not None and group.base is None and self._turns.is_alone:
            return latest
        began = self._deps.clock.monotonic()
        current = await self._read()
        self._turns.measured(self._deps.clock.monotonic() - began)
        return current

    async def _wait(self, pause: float) -> None:
        if pause:
            await self._deps.clock.sleep(pause)

    async def _read(self) -> StoredManifest[ProducerManifest]:
        current = await self.file.read()
        self._gc = current.manifest.gc
        return current

    def _was_applied(self, group: AppendGroup, current: StoredManifest[ProducerManifest]) -> bool:
        """Return whether an earlier attempt at this group was applied. Raises `OutcomeLost` if that is unknowable."""
        base, now = group.base, current.manifest
        if base is None:
            return False
        if self._id in now.producers:
            return now.producers[self._id] >= group.number
        if group.waiting[0].location in now.pending:
            return True  # a writer that does not know our keys has written the manifest since
        if group.doubt is None or current.object_version == base.object_version or keeps_newer(base.manifest, now):
            return False  # a refused write was not applied, nor was any while the state it replaces is there
        self._id, self._number = self._deps.ids.uuid(), 0
        raise OutcomeLost(
            f"An append to {self.file.key} was not confirmed, and the manifest no longer lists this producer: "
            "it may have been queued and consumed. Check before trying again."
        )

    async def _check_settings(self, now: ProducerManifest) -> None:
        """Raise `Misconfigured` unless the queue has this producer's settings."""
        if now.sealed or now.partitions not in (0, self._partitions):
            raise Misconfigured(
                f"The queue of {self.file.key} has {now.partitions or 1} partitions"
                f"{', and that is being changed' if now.sealed else ''}; this ingestor is configured for "
                f"{self._partitions}. Change its `partitions` setting, or repartition the queue."
            )
        if now.data_path_prefix not in (None, self._prefix):
            raise Misconfigured(
                f"The queue of {self.file.key} has its batches under {now.data_path_prefix!r}, not {self._prefix!r}. "
                "A queue has one prefix: correct data_path_prefix."
            )
        if not now.partitions and self._root is not None:
            await self._write_root_settings(self._root)

    async def _write_root_settings(self, root: ManifestFile[ProducerManifest]) -> None:
        """Make sure that the first partition's manifest has the number of partitions before another one is used."""
        current = await root.read()
        if not current.manifest.partitions and not current.manifest.sealed:
            changed = replace(current.manifest, partitions=self._partitions, data_path_prefix=self._prefix)
            try:
                written = await root.write(current, changed)
            except OutcomeUnknown as error:  # only of this write: whether it is applied or not, it queues nothing
                raise Unavailable(f"Could not write {root.key} ({error}). Try again.") from error
            if not written:
                raise Unavailable(f"Another writer has just changed {root.key}. Try again.")
        else:
            await self._check_settings(current.manifest)

    async def _store_unsafe_again(self, group: AppendGroup, gc: int) -> None:
        """Store every batch again that orphan GC may have listed before we could queue it."""
        unsafe = [each for each in group.waiting if each.store_again is not None and each.gc != gc]
        if unsafe:
            await asyncio.gather(*(self._store_again(each, gc) for each in unsafe), return_exceptions=True)
            left_out = [each for each in unsafe if each.gc != gc]
            fail(left_out, Unavailable("Storing a batch again was cancelled. It is not queued; ingest it again."))
            group.waiting = [each for each in group.waiting if not each.outcome.done()]

    async def _store_again(self, waiting: WaitingAppend, gc: int) -> None:
        assert waiting.store_again is not None  # noqa: S101 - for the type checker
        self._deps.counts.batches_stored_again += 1
        try:
            waiting.location, waiting.gc = await waiting.store_again(), gc
        except LakeheadError as error:
            fail([waiting], error)

    def _with_locations(self, now: ProducerManifest, group: AppendGroup) -> ProducerManifest:
        producers, dropped = record_last_number(now.producers, self._id, group.number, limit=self._max_producers)
        return replace(
            now,
            pending=(*now.pending, *(each.location for each in group.waiting)),
            producers=producers,
            forgotten=now.forgotten + dropped,
            data_path_prefix=self._prefix,
            partitions=self._partitions,
        )

    def _unknown_if_in_doubt(self, group: AppendGroup, error: LakeheadError) -> LakeheadError:
        """Return the error, or `OutcomeUnknown` if an earlier attempt has no known outcome, whatever came after it."""
        if group.doubt is None or isinstance(error, OutcomeUnknown):
            return error
        unknown = OutcomeUnknown(
            f"An append to {self.file.key} was not confirmed ({group.doubt}). "
            "It may be queued, now or later: check before trying again."
        )
        unknown.__cause__ = error
        return unknown

    def _gave_up(self, group: AppendGroup) -> LakeheadError:
        key = self.file.key
        if len(group.failures) == self._retries.max_append_failures:
            return Unavailable(f"Nothing was appended to {key} ({group.failures[-1]}). Try again later.")
        advice = "Nothing was appended; try again later, with fewer ingestors or more partitions."
        return contended(f"append to {key}", self._retries.appends, advice)
