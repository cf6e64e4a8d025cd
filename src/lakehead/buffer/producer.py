"""Appending locations to a producer manifest: once each, in order, many in one write."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace

from lakehead.buffer.errors import Contended, Forgotten, QueueFull
from lakehead.buffer.manifests import ManifestFile, Stored
from lakehead.buffer.means import Means
from lakehead.buffer.turns import Turns
from lakehead.errors import LakeheadError, Misconfigured, OutcomeUnknown, Unavailable
from lakehead.storage.backoff import Backoff
from lakehead.wire.queue_manifests import MAX_APPEND_BYTES, ProducerManifest, remember

APPENDS = Backoff(attempts=100, first_seconds=0.02, cap_seconds=2.0)
"""How often an append is tried while others win, and how long it waits between."""

MOST_FAILURES = 4
"""After how many failures of the store itself an append is given up: the store has tried each request often enough."""

MOST_PRODUCERS = 256
"""How many producers' last numbers a manifest keeps."""

StoreAgain = Callable[[int], Awaitable[str]]
"""Stores a batch under a new name, knowing this `gc` number; the new location."""


@dataclass(slots=True)
class Waiting:
    """A location on its way into the manifest."""

    location: str
    gc: int | None
    """The `gc` number that was known before the batch was stored; None for what orphan GC never deletes."""

    again: StoreAgain | None
    outcome: "asyncio.Future[str]" = field(repr=False)
    """The location under which it was queued, or the error."""


@dataclass(slots=True)
class Group:
    """What goes into the manifest in one write, and what we know of earlier tries at it. It grows between tries."""

    waiting: list[Waiting]
    number: int
    tried: Stored[ProducerManifest] | None = None
    """What the last try was to take the place of."""

    doubt: Exception | None = None
    """Why we do not know whether a try has landed, or will yet. All tries in doubt were to replace what is `tried`."""

    conflicts: int = 0
    failures: list[Exception] = field(default_factory=list)


class Producer:
    """One process's way into one producer manifest. Everything that waits goes into the next write.

    Appends are numbered and made one after the other, and the manifest keeps our last number: so an append whose
    answer was lost is known to have landed even when its locations were consumed and cleaned up meanwhile.

    A partition other than the first also needs the first one's manifest, its `root`, where readers learn how many
    partitions there are.
    """

    def __init__(
        self,
        file: ManifestFile[ProducerManifest],
        means: Means,
        *,
        data_path_prefix: str,
        partitions: int = 1,
        root: ManifestFile[ProducerManifest] | None = None,
        backoff: Backoff = APPENDS,
        most_producers: int = MOST_PRODUCERS,
    ) -> None:
        self.file = file
        self._means = means
        self._prefix = data_path_prefix
        self._partitions = partitions
        self._root = root
        self._backoff = backoff
        self._most_producers = most_producers
        self._id = means.ids.uuid()
        self._number = 0
        self._gc: int | None = None
        self._turns = Turns(means.clock, means.random)
        self._waiting: list[Waiting] = []
        self._group = Group([], 0)
        """What is being written, or was last."""
        self._writer: asyncio.Task[None] | None = None

    async def gc_number(self) -> int:
        """A `gc` number that the manifest has had: known before a batch is stored, it guards the batch."""
        if self._gc is None:
            return (await self._read()).manifest.gc
        return self._gc

    async def append(self, location: str) -> str:
        """Queue a location that no other append names. It returns when the location is in the manifest.

        Raises `Unavailable` when it is not and never will be, and `OutcomeUnknown` when nobody can tell. Cancelling
        the call does not take the location back.
        """
        return await asyncio.shield(self.enqueue(location))

    def enqueue(
        self, location: str, *, gc: int | None = None, again: StoreAgain | None = None
    ) -> "asyncio.Future[str]":
        """Queue a location behind all that were enqueued before it, and say later what became of it."""
        outcome: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._waiting.append(Waiting(location, gc, again, outcome))
        if self._writer is None:
            self._start_writer()
        return outcome

    async def drained(self) -> None:
        """Wait until nothing waits."""
        while self._writer is not None:
            await asyncio.wait([self._writer])

    def _start_writer(self) -> None:
        self._writer = asyncio.create_task(self._write_what_waits())
        self._writer.add_done_callback(self._writer_ended)

    async def _write_what_waits(self) -> None:
        while self._waiting:
            self._number += 1
            self._group, self._waiting = Group(self._waiting, self._number), []
            try:
                await self._append(self._group)
            except LakeheadError as error:
                fail(self._group.waiting, self._or_in_doubt(self._group, error))
            except Exception as error:  # noqa: BLE001 - whatever it is, whoever waits must hear of it
                fail(self._group.waiting, self._interrupted(self._group, f"failed in an unforeseen way ({error!r})"))

    def _writer_ended(self, writer: "asyncio.Task[None]") -> None:
        """Go on with what came at the last moment; if the writer was cancelled or interrupted, tell all who waited.

        Not at the end of the writer itself: a task that is cancelled before it began runs not even its `finally`.
        """
        self._writer = None
        if writer.cancelled() or writer.exception() is not None:
            how = "was cancelled" if writer.cancelled() else f"was interrupted ({writer.exception()!r})"
            fail(self._group.waiting, self._interrupted(self._group, how))
            waiting, self._waiting = self._waiting, []
            fail(waiting, self._interrupted(Group([], 0), how))
        elif self._waiting:
            self._start_writer()

    def _interrupted(self, group: Group, how: str) -> LakeheadError:
        if group.tried is None:
            return Unavailable(f"An append to {self.file.key} {how} before it began. Nothing was queued; try again.")
        return OutcomeUnknown(f"An append to {self.file.key} {how}. It may be queued. Look before trying again.")

    async def _append(self, group: Group) -> None:
        """One write for a group: all of it is appended, or none."""
        await self._wait(self._turns.before_first())
        for pause in self._backoff.pauses(self._means.random):
            try:
                if await self._try(group):
                    return
                group.conflicts += 1
                await self._wait(self._turns.before_retry(group.conflicts))
            except (Forgotten, QueueFull):
                raise
            except (OutcomeUnknown, Unavailable) as error:
                if isinstance(error, OutcomeUnknown):
                    group.doubt = error
                group.failures.append(error.with_traceback(None))  # its frames hold whole manifests
                if len(group.failures) == MOST_FAILURES:
                    break
                await self._wait(pause)
        raise self._gave_up(group)

    async def _try(self, group: Group) -> bool:
        """Whether the group is in the manifest now, or nothing is left of it."""
        while True:
            known = self.file.latest
            seen = await self._seen(group)
            if self._has_landed(group, seen):
                succeed(group.waiting)
                return True
            pause = self._turns.before_write(self._id, seen.manifest)
            if not pause:
                break
            await self._wait(pause)
        if self._can_grow(group, seen):
            group.doubt = None
            group.waiting += self._waiting
            self._waiting = []
        try:
            await self._check_settings(seen.manifest)
        except Misconfigured:
            self.file.latest = None  # it may be mended meanwhile, so the next append looks again
            raise
        await self._guard(group, seen.manifest.gc)
        if not group.waiting:
            return True
        group.tried = seen
        with_ours = self._with(seen.manifest, group)
        began = self._means.clock.monotonic()
        try:
            written = await self.file.write(seen, with_ours, most_bytes=MAX_APPEND_BYTES)
        except QueueFull:
            if seen is not known:
                raise
            return False  # it may have been cleaned up since we last looked
        self._turns.took(self._means.clock.monotonic() - began)
        if not written:
            return False
        self._turns.wrote(self._id, with_ours)
        succeed(group.waiting)
        return True

    def _can_grow(self, group: Group, seen: Stored[ProducerManifest]) -> bool:
        """Whether what came meanwhile can go along: no earlier try is left that could still land without it."""
        return group.tried is None or seen.at != group.tried.at  # nothing takes the place of a version that is gone

    async def _seen(self, group: Group) -> Stored[ProducerManifest]:
        """What is stored now; what we last wrote, where nobody else writes: if that is old, our write is refused."""
        latest = self.file.latest
        if latest is not None and group.tried is None and self._turns.are_ours_alone:
            return latest
        began = self._means.clock.monotonic()
        seen = await self._read()
        self._turns.took(self._means.clock.monotonic() - began)
        return seen

    async def _wait(self, pause: float) -> None:
        if pause:
            await self._means.clock.sleep(pause)

    async def _read(self) -> Stored[ProducerManifest]:
        seen = await self.file.read()
        self._gc = seen.manifest.gc
        return seen

    def _has_landed(self, group: Group, seen: Stored[ProducerManifest]) -> bool:
        """Whether an earlier try at this group is in what is stored now. Raises `Forgotten` if nobody can tell."""
        tried, now = group.tried, seen.manifest
        if tried is None:
            return False
        if self._id in now.producers:
            return now.producers[self._id] >= group.number
        if group.waiting[0].location in now.pending:
            return True  # somebody who does not know our keys has written the manifest since
        if group.doubt is None or seen.at == tried.at or _would_remember(tried.manifest, now):
            return False  # a write that was refused did not land, nor did any while what it replaces is there
        self._id, self._number = self._means.ids.uuid(), 0
        raise Forgotten(
            f"An append to {self.file.key} had no clear answer, and the manifest has forgotten this producer since: "
            "it may have been queued and consumed. Look before trying again."
        )

    async def _check_settings(self, now: ProducerManifest) -> None:
        """Raise `Misconfigured` unless the queue is what this producer was made for."""
        if now.sealed or now.partitions not in (0, self._partitions):
            raise Misconfigured(
                f"The queue of {self.file.key} has {now.partitions or 1} partitions"
                f"{', and that is being changed' if now.sealed else ''}; this ingestor was made for {self._partitions}."
            )
        if now.data_path_prefix not in (None, self._prefix):
            raise Misconfigured(
                f"The queue of {self.file.key} keeps its batches below {now.data_path_prefix!r}, not {self._prefix!r}. "
                "A prefix belongs to one queue, and a queue to one prefix."
            )
        if not now.partitions and self._root is not None:
            await self._settle_root(self._root)

    async def _settle_root(self, root: ManifestFile[ProducerManifest]) -> None:
        """Make sure that the first partition's manifest says how many there are, before another one is used."""
        seen = await root.read()
        if not seen.manifest.partitions and not seen.manifest.sealed:
            settled = replace(seen.manifest, partitions=self._partitions, data_path_prefix=self._prefix)
            try:
                written = await root.write(seen, settled)
            except OutcomeUnknown as error:  # of this alone: whether or not it lands, nothing of ours is queued by it
                raise Unavailable(f"{root.key} could not be written ({error}). Try again.") from error
            if not written:
                raise Unavailable(f"Somebody else has just written {root.key}. Try again.")
        else:
            await self._check_settings(seen.manifest)

    async def _guard(self, group: Group, gc: int) -> None:
        """Store every batch again that orphan GC may have listed before we could queue it."""
        unsafe = [each for each in group.waiting if each.again is not None and each.gc != gc]
        if unsafe:
            await asyncio.gather(*(self._store_again(each, gc) for each in unsafe), return_exceptions=True)
            left_out = [each for each in unsafe if each.gc != gc]
            fail(left_out, Unavailable("Storing a batch again was cancelled. It is not queued; ingest it again."))
            group.waiting = [each for each in group.waiting if not each.outcome.done()]

    async def _store_again(self, waiting: Waiting, gc: int) -> None:
        assert waiting.again is not None  # noqa: S101 - for the type checker
        self._means.counts.batches_stored_again += 1
        try:
            waiting.location, waiting.gc = await waiting.again(gc), gc
        except LakeheadError as error:
            fail([waiting], error)

    def _with(self, now: ProducerManifest, group: Group) -> ProducerManifest:
        producers, dropped = remember(now.producers, self._id, group.number, most=self._most_producers)
        return replace(
            now,
            pending=(*now.pending, *(each.location for each in group.waiting)),
            producers=producers,
            forgotten=now.forgotten + dropped,
            data_path_prefix=self._prefix,
            partitions=self._partitions,
        )

    def _or_in_doubt(self, group: Group, error: LakeheadError) -> LakeheadError:
        """Why an append was given up; but whatever it was, it says nothing of an earlier try without an answer."""
        if group.doubt is None or isinstance(error, OutcomeUnknown):
            return error
        unknown = OutcomeUnknown(
            f"An append to {self.file.key} was left without an answer ({group.doubt}). "
            "It may be queued, or be queued yet. Look before trying again."
        )
        unknown.__cause__ = error
        return unknown

    def _gave_up(self, group: Group) -> LakeheadError:
        key = self.file.key
        if len(group.failures) == MOST_FAILURES:
            return Unavailable(f"Nothing was appended to {key} ({group.failures[-1]}). Try again later.")
        return Contended(
            f"{self._backoff.attempts} tries to append to {key} met another writer each time. "
            "Nothing was appended; try again later, with fewer ingestors or more partitions."
        )


def _would_remember(tried: ProducerManifest, now: ProducerManifest) -> bool:
    """Whether a producer that replaced `tried` is surely still in `now`, so that one that is not there did not.

    A manifest drops its oldest producers first: while one stands there that has not written since `tried`, nobody who
    has was dropped. A version that did not grow, or a producer that is gone though none was dropped, tells nothing:
    somebody who does not know our keys wrote the manifest.
    """
    if now.version <= tried.version:
        return False
    if now.forgotten == tried.forgotten:
        return tried.producers.keys() <= now.producers.keys()
    return any(now.producers.get(name) == number for name, number in tried.producers.items())


def succeed(group: Sequence[Waiting]) -> None:
    """Tell everybody whose location is in the manifest."""
    for each in group:
        if not each.outcome.done():
            each.outcome.set_result(each.location)


def fail(group: Sequence[Waiting], error: LakeheadError) -> None:
    """Tell everybody who has not been told yet."""
    for each in group:
        if not each.outcome.done():
            each.outcome.set_exception(error)
            each.outcome.exception()  # whoever enqueued it may be gone, and nobody else has to look
