"""Journals of one kind that are closed, and become frames, one after the other."""

import asyncio
from collections import deque
from dataclasses import dataclass, field

from lakehead.agent.alerts import AlertKind, Alerts
from lakehead.agent.changes import Changes
from lakehead.agent.sealing import Sealing
from lakehead.agent.spool_contents import SpoolContents
from lakehead.agent.spool_disk import AppendFile
from lakehead.agent.spool_errors import SpoolFull, SpoolUnusable
from lakehead.agent.wake_up import WakeUp
from lakehead.clock import Clock
from lakehead.errors import DiskFull
from lakehead.wire.agent_journal import JournalHead, JournalItem
from lakehead.wire.agent_spool_records import ENTRIES, damaged, numbered
from lakehead.wire.errors import BadFrame

MOST_CLOSED = 2
"""So many closed journals may wait for their frames, which bounds memory. Then requests wait too."""

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
"""Seconds after which a frame that could not be written is tried again."""


@dataclass(slots=True, eq=False)
class Journal:
    """A journal on disk, with the items that were promised."""

    number: int
    head: JournalHead
    encoded_head: bytes
    size: int = 0
    records: int = 0
    file: AppendFile | None = None
    items: list[JournalItem] = field(default_factory=list)
    unflushed: bytes = b""
    """What a start has found in it, if that may not be on disk."""

    async def close_file(self) -> None:
        """Let go of the file."""
        if self.file is not None:
            await self.file.close()
            self.file = None


@dataclass(slots=True, kw_only=True)
class ClosedJournals:
    """Makes frames of closed journals, in the background, until there is none left."""

    contents: SpoolContents
    sealing: Sealing
    clock: Clock
    alerts: Alerts
    problem: Exception | None = field(default=None, init=False)
    """Why no frame could be made of a journal, if that failed the last time."""

    _waiting: deque[Journal] = field(default_factory=deque, init=False)
    _changes: Changes = field(default_factory=Changes, init=False)
    """A frame was made of a journal, or could not be made."""

    _again: WakeUp = field(init=False)
    _task: "asyncio.Task[None] | None" = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._again = WakeUp(self.clock)

    def add(self, journal: Journal) -> None:
        """Make a frame of a journal that nothing is added to any more."""
        self._waiting.append(journal)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="lakehead-seal")

    async def wait_for_room(self) -> None:
        """Return when another journal may be opened. Raises `SpoolFull` or `SpoolUnusable` if that may take long."""
        while len(self._waiting) >= MOST_CLOSED:
            if self.problem is not None:
                is_full = isinstance(self.problem, DiskFull)
                raise (SpoolFull if is_full else SpoolUnusable)(
                    f"Nothing more is taken before earlier records are ready to be sent: {self.problem}"
                )
            await self._changes.next()

    async def wait_for_all(self) -> None:
        """Return when all journals that are closed now have become frames. Raises `SpoolUnusable` if one cannot."""
        last, failed_before = self._waiting[-1] if self._waiting else None, self.problem
        self._again.now()
        while last is not None and last in self._waiting:
            if self.problem is not None and self.problem is not failed_before:
                raise SpoolUnusable(f"A batch cannot be made ready to be sent: {self.problem}")
            await self._changes.next()

    async def stop(self) -> None:
        """Leave what is not a frame to the next start."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for journal in self._waiting:
            await journal.close_file()

    async def _run(self) -> None:
        pause = FIRST_PAUSE
        while self._waiting:
            journal = self._waiting[0]
            try:
                await self._seal(journal)
            except Exception as error:  # noqa: BLE001 - whatever it is, the records are on disk and tried again
                self.problem = error
                self.alerts.tell(AlertKind.DISK_FAILED, f"A batch waits until it can be written: {error}")
                self._changes.tell()
                await self._again.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
                continue
            if self.problem is not None:
                self.problem = None
                self.alerts.is_over(AlertKind.DISK_FAILED)
            pause = FIRST_PAUSE
            self._waiting.popleft()
            self._changes.tell()
            await journal.close_file()

    async def _seal(self, journal: Journal) -> None:
        try:
            if journal.unflushed:
                await self.sealing.replace(numbered(ENTRIES, journal.number), journal.unflushed)
                journal.unflushed = b""
            entry = await self.sealing.seal(journal.number, journal.head, journal.items)
        except BadFrame as error:
            # Whoever gave these records had not checked them: they can never be sent, and must not stop all others.
            name = damaged(journal.number, "journal")
            await self.sealing.disk.move(numbered(ENTRIES, journal.number), name)
            self.contents.damaged += 1
            self.contents.remove_journal(journal.number)
            self.contents.unflushed.discard(journal.number)
            self.alerts.tell(AlertKind.DAMAGED, f"{name} holds records that cannot be sent: {error}")
            return
        self.contents.remove_journal(journal.number)
        self.contents.unflushed.discard(journal.number)
        self.contents.add(entry)
