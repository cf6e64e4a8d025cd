"""Puts the records of one kind on disk, as they come.

All requests that wait are written and flushed together, as soon as the flush before is done. A journal is closed when
it is old or large enough: later requests go to a new one, and meanwhile a frame is made of it.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain

from lakehead.agent.alerts import LOG, AlertKind, Alerts
from lakehead.agent.closed_journals import ClosedJournals, Journal
from lakehead.agent.sealing import Sealing
from lakehead.agent.spool_contents import SpoolContents
from lakehead.agent.spool_errors import SpoolFull, SpoolUnusable
from lakehead.agent.spool_loading import LeftOver
from lakehead.agent.spool_settings import SpoolSettings
from lakehead.clock import Clock
from lakehead.errors import DiskFull, LakeheadError, OutcomeUnknown, Unavailable
from lakehead.wire.agent_journal import EncodedRecords, JournalHead, JournalItem, encode_journal_item
from lakehead.wire.agent_spool_records import ENTRIES, numbered
from lakehead.wire.record_schemas import FrameKind
from lakehead.wire.request_id import RequestId


@dataclass(slots=True, eq=False)
class PendingAppend:
    """A request whose records are to be put on disk."""

    request: RequestId | None
    encoded: EncodedRecords
    outcome: "asyncio.Future[None]"

    def fail(self, error: Exception) -> None:
        """Tell whoever waits that nothing of it was kept."""
        fail(self.outcome, error)


@dataclass(slots=True, kw_only=True)
class JournalWriter:
    """The journal of one kind, and its sequence numbers."""

    kind: FrameKind
    agent_id: str
    boot_id: str
    settings: SpoolSettings
    contents: SpoolContents
    sealing: Sealing
    clock: Clock
    alerts: Alerts
    closed: ClosedJournals = field(init=False)
    next_seq: int = field(default=0, init=False)
    """The sequence number of the next record of this boot. It changes only under the lock."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)
    """Whoever holds it may use sequence numbers, and close the journal."""

    _journal: Journal | None = field(default=None, init=False)
    _pending: deque[PendingAppend] = field(default_factory=deque, init=False)
    _flushing: "asyncio.Task[None] | None" = field(default=None, init=False)
    _timer: "asyncio.Task[None] | None" = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.closed = ClosedJournals(contents=self.contents, sealing=self.sealing, clock=self.clock, alerts=self.alerts)

    @property
    def has_open_journal(self) -> bool:
        """Whether there is a journal that requests can be added to."""
        return self._journal is not None

    def add(self, pending: PendingAppend) -> None:
        """Put a request on disk with the next flush. Its outcome is told to it."""
        self._pending.append(pending)
        if self._flushing is None or self._flushing.done():
            self._flushing = asyncio.create_task(self._flush(), name=f"lakehead-flush-{self.kind.word}")

    def adopt(self, left: LeftOver) -> None:
        """Make a frame of a journal that an earlier start has left, as soon as the disk lets it."""
        self.contents.set_journal(left.number, len(left.body))
        self.contents.unflushed.add(left.number)
        self.closed.add(Journal(left.number, left.head, b"", items=[*left.items], unflushed=left.body))

    def close_journal(self) -> None:
        """Let later requests go to a new journal, and make a frame of this one. The caller holds the lock."""
        if (journal := self._let_go()) is not None:
            self.closed.add(journal)

    async def seal_all(self) -> None:
        """Close the journal, and return when all records that are on disk now are in frames. Raises `Unavailable`."""
        async with self.lock:
            self.close_journal()
        await self.closed.wait_for_all()

    async def leave_boot(self, boot_id: str, new_boot_id: str) -> None:
        """Give further records to a new boot, from the sequence number 0, if this is the current one."""
        async with self.lock:
            if self.boot_id == boot_id:
                self.close_journal()
                self.boot_id, self.next_seq = new_boot_id, 0

    async def stop(self) -> None:
        """Carry out what was begun, and make frames of all journals if the disk lets it."""
        if self._flushing is not None:
            await asyncio.gather(self._flushing, return_exceptions=True)
        try:
            await self.seal_all()
        except LakeheadError as error:
            LOG.warning("The next start makes frames of what is left in journals: %s", error)
        await self.closed.stop()

    def give_up(self, why: str) -> None:
        """Take nothing more until the next start: what is on disk is not known."""
        self.contents.unusable = f"{why} Nothing is taken until the agent is started again. Check the disk."
        self.alerts.tell(AlertKind.SPOOL_UNUSABLE, self.contents.unusable)

    # --- groups

    async def _flush(self) -> None:
        while self._pending:
            async with self.lock:
                group = self._next_group()
                try:
                    await self._write(group)
                except LakeheadError as error:
                    _fail(group, error)
                except BaseException as error:  # nobody may wait for ever, and what is on disk is not known
                    self.give_up(f"Something unforeseen happened while records were written ({error!r}).")
                    _fail([*group, *self._pending], SpoolUnusable(self.contents.unusable))
                    self._pending.clear()
                    raise

    def _next_group(self) -> list[PendingAppend]:
        """Take requests that fit into the journal, or into a new one: at least one."""
        if self._journal is not None and not self._fits(self._pending[0], self._journal.size, self._journal.records):
            self.close_journal()
        size, records = (self._journal.size, self._journal.records) if self._journal else (0, 0)
        group: list[PendingAppend] = []
        while self._pending and (not group or self._fits(self._pending[0], size, records)):
            group.append(pending := self._pending.popleft())
            size, records = size + pending.encoded.size, records + pending.encoded.count
        return group

    def _fits(self, pending: PendingAppend, size: int, records: int) -> bool:
        encoded, limits = pending.encoded, self.settings
        return size + encoded.size <= limits.batch_bytes and records + encoded.count <= limits.batch_records

    async def _write(self, group: Sequence[PendingAppend]) -> None:
        """Put requests on disk. Raises `SpoolFull` or `SpoolUnusable` if nothing of them is kept."""
        self.contents.check_usable()
        journal = self._journal or await self._new_journal()
        items: list[JournalItem] = []
        for pending in group:
            first = items[-1].end_seq if items else self.next_seq
            items.append(JournalItem(first, pending.encoded, pending.request))
        pieces = chain.from_iterable(encode_journal_item(journal.encoded_head, item) for item in items)
        data = b"".join(chain([] if journal.file else [journal.encoded_head], pieces))
        try:
            await self._append(journal, data)
        except OutcomeUnknown as error:
            await self._abandon(journal, error)
        except DiskFull as error:
            raise SpoolFull(f"The records do not fit on the disk of the spool. {error}") from error
        except Unavailable as error:
            raise SpoolUnusable(f"The records could not be written to the spool. {error}") from error
        self.next_seq = items[-1].end_seq
        journal.size += len(data)
        journal.records += sum(item.encoded.count for item in items)
        journal.items.extend(items)
        self.contents.set_journal(journal.number, journal.size)
        for pending in group:
            if pending.request is not None:
                self.sealing.seen.add(pending.request)
            if not pending.outcome.done():
                pending.outcome.set_result(None)
        if journal.size >= self.settings.batch_bytes or journal.records >= self.settings.batch_records:
            self.close_journal()

    # --- journals

    async def _new_journal(self) -> Journal:
        await self.closed.wait_for_room()
        self.contents.check_room(entries=1)
        head = JournalHead(self.kind, self.agent_id, self.boot_id, self.next_seq)
        return Journal(self.contents.take_number(), head, head.encode())

    async def _append(self, journal: Journal, data: bytes) -> None:
        if journal.file is not None:
            await journal.file.append(data)
            return
        journal.file = await self.sealing.disk.create(numbered(ENTRIES, journal.number), data)
        self._journal = journal
        self._timer = asyncio.create_task(self._close_when_old(journal), name="lakehead-close-journal")

    async def _close_when_old(self, journal: Journal) -> None:
        await self.clock.sleep(self.settings.batch_seconds)
        async with self.lock:
            if self._journal is journal:
                self.close_journal()

    def _let_go(self) -> Journal | None:
        journal, self._journal = self._journal, None
        timer, self._timer = self._timer, None
        if timer is not None and timer is not asyncio.current_task():
            timer.cancel()
        return journal

    async def _abandon(self, journal: Journal, cause: OutcomeUnknown) -> None:
        """Give up a file that may hold what was not flushed. Raises `SpoolUnusable`.

        What was promised is in memory: a frame of it takes the place of the file. That removes the doubtful items for
        good, so that their numbers may be used again.
        """
        self.alerts.tell(AlertKind.DISK_FAILED, f"{cause} The file is given up, and what was promised written anew.")
        self._let_go()
        try:
            if journal.items:
                entry = await self.sealing.seal(journal.number, journal.head, journal.items)
                self.contents.remove_journal(journal.number)
                self.contents.add(entry)
            else:
                await self.sealing.disk.delete(numbered(ENTRIES, journal.number))
        except LakeheadError as error:
            self.give_up(f"The disk of the spool failed twice ({cause} Then: {error}).")
            raise SpoolUnusable(self.contents.unusable) from error
        finally:
            await journal.close_file()
        raise SpoolUnusable(f"The records could not be flushed to disk, and nothing of them was kept. {cause}")


def fail(outcome: "asyncio.Future[None]", error: Exception) -> None:
    """Tell whoever waits for an outcome that nothing was kept."""
    if not outcome.done():
        outcome.set_exception(error)
        outcome.exception()  # the caller may be gone: do not log it as never retrieved


def _fail(group: Sequence[PendingAppend], error: Exception) -> None:
    for pending in group:
        pending.fail(error)
