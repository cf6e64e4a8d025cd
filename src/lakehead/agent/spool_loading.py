"""What a start finds in an agent's spool, and what becomes of it before anything is sent.

A journal that an earlier start left becomes a frame under its own boot and numbers. What is torn at its end was never
promised, and is left out. What is damaged is kept in `damaged/` and told; the requests before and after it become
batches of their own.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from lakehead.agent.alerts import AlertKind, Alerts
from lakehead.agent.sealing import Sealing
from lakehead.agent.spool_contents import SpoolContents
from lakehead.agent.spool_disk import SpoolFile
from lakehead.agent.spool_entry import Folder, ParkReason, SpoolEntry
from lakehead.clock import Clock
from lakehead.errors import Misconfigured, OutcomeUnknown, Unavailable
from lakehead.ids import Ids
from lakehead.wire.agent_journal import MAGIC, JournalContent, JournalHead, JournalItem, read_journal
from lakehead.wire.agent_spool_records import (
    DAMAGED,
    ENTRIES,
    PARKED,
    SPOOL,
    AgentSpoolRecord,
    ParkedNote,
    damaged,
    number_of,
    numbered,
    parked_note,
)
from lakehead.wire.errors import BadFrame, NewerFormat, TooLarge, Unreadable
from lakehead.wire.frame import decode_frame, peek_frame
from lakehead.wire.frame_header import MAX_HEAD_BYTES, has_damaged_version


@dataclass(frozen=True, slots=True)
class LeftOver:
    """A journal that is to become a frame as soon as the disk lets it."""

    number: int
    head: JournalHead
    items: Sequence[JournalItem]
    body: bytes
    """What is in the file. It may not be on disk yet: who wrote it may have died before it was flushed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoolLoading:
    """Loads what is in a spool."""

    agent_id: str
    contents: SpoolContents
    sealing: Sealing
    alerts: Alerts
    clock: Clock
    ids: Ids

    async def record(self) -> AgentSpoolRecord:
        """Return whose spool it is, and make it this agent's if it is new.

        Raises `Misconfigured` if it is another's, `Unreadable`, `Unavailable` and `OutcomeUnknown`.
        """
        disk = self.sealing.disk
        body = await disk.read(SPOOL)
        if body is None:
            record = AgentSpoolRecord(
                spool_id=self.ids.uuid(), agent_id=self.agent_id, created_at_unix_ns=max(0, self.clock.now_ns())
            )
            await disk.replace(SPOOL, record.encode())
            return record
        record = AgentSpoolRecord.decode(body, SPOOL)
        self._check_agent(record.agent_id, SPOOL)
        return record

    async def load(self) -> Sequence[LeftOver]:
        """Find all batches, and make frames of journals. Returns those for which the disk does not let that be done.

        Raises `Misconfigured` if a batch is another agent's, `Unavailable` and `OutcomeUnknown` if the disk fails. What
        a newer Lakehead wrote is left alone, and told.
        """
        disk, contents = self.sealing.disk, self.contents
        files = {folder: await disk.list(folder) for folder in (ENTRIES, PARKED, DAMAGED)}
        numbers = (number_of(each.name) for found in files.values() for each in found)
        contents.next_number = max((number for number in numbers if number is not None), default=-1) + 1
        await self._load_parked(files[PARKED])
        journals: list[tuple[int, str]] = []
        for each in files[ENTRIES]:
            if (number := number_of(each.name)) is None:
                self._tell(f"{each.name} is no file of the spool, and is left alone.")
                continue
            start = await disk.read(each.name, most=MAX_HEAD_BYTES) or b""
            if start[: len(MAGIC)] == MAGIC[: len(start)]:
                journals.append((number, each.name))
            elif (entry := await self._entry(each, number, start, "entries")) is not None:
                contents.add(entry)
        left = [found for number, name in journals if (found := await self._recover(number, name)) is not None]
        contents.damaged = len(await disk.list(DAMAGED))
        if contents.damaged:
            self._tell(
                f"{contents.damaged:,} files in {DAMAGED}/ are not what was written. Look at them, and remove them."
            )
        return left

    # --- frames

    async def _load_parked(self, files: Sequence[SpoolFile]) -> None:
        names = {each.name for each in files}
        for each in files:
            if (number := number_of(each.name)) is None:
                of_batch = each.name.removesuffix(".json")
                if number_of(of_batch) is not None and of_batch not in names:
                    await self.sealing.disk.delete(each.name)  # the note of a batch that has left
                continue
            start = await self.sealing.disk.read(each.name, most=MAX_HEAD_BYTES) or b""
            if (entry := await self._entry(each, number, start, "parked")) is not None:
                self.contents.add(replace(entry, parked=await self._reason(number)))

    async def _reason(self, number: int) -> ParkReason:
        name = parked_note(number)
        body = await self.sealing.disk.read(name, most=ParkedNote.MAX_BYTES + 1)
        try:
            note = None if body is None else ParkedNote.decode(body, name)
        except Unreadable:
            note = None
        return ParkReason("") if note is None else ParkReason(note.code, note.text)

    async def _entry(self, file: SpoolFile, number: int, start: bytes, folder: Folder) -> SpoolEntry | None:
        """Return the entry of a frame; None if it is damaged, or a newer Lakehead wrote it."""
        try:
            header = peek_frame(start)
        except NewerFormat as error:
            if not await self._is_damaged(file.name):
                self._tell(f"{file.name} is left alone. {error}")
                return None
            header = None
        except BadFrame:
            header = None
        if header is not None and header.identity.agent_id != self.agent_id and await self._is_damaged(file.name):
            header = None
        if header is None or header.frame_bytes != file.size:
            await self.sealing.disk.move(file.name, damaged(number, "frame"))
            self._tell(f"{file.name} is not the frame that was written: it is now {damaged(number, 'frame')}.")
            return None
        self._check_agent(header.identity.agent_id, file.name)
        return SpoolEntry(number, header.kind, header.identity, file.size, self.sealing.seen.uptime, folder)

    async def _is_damaged(self, name: str) -> bool:
        """Look at the whole frame: what its first bytes say may be damage."""
        body = await self.sealing.disk.read(name) or b""
        try:
            decode_frame(body)
        except NewerFormat:
            return has_damaged_version(pa.py_buffer(body))
        except (BadFrame, TooLarge):
            return True
        return False

    # --- journals

    async def _recover(self, number: int, name: str) -> LeftOver | None:
        disk = self.sealing.disk
        body = await disk.read(name) or b""
        try:
            found = read_journal(body)
        except NewerFormat as error:
            self._tell(f"{name} is left alone. {error}")
            return None
        except Unreadable as error:
            await disk.move(name, damaged(number, "journal"))
            self._tell(f"{name} cannot be read, and is now {damaged(number, 'journal')}. {error}")
            return None
        if found is None:
            await disk.delete(name)
            return None
        self._check_agent(found.head.agent_id, name)
        runs = found.runs()
        try:
            await self._keep_what_is_damaged(number, body, found)
            if not runs:
                await disk.delete(name)
                return None
            # Who wrote it may have died before it was flushed, or because that failed. What follows counts on it.
            await self.sealing.replace(name, body)
            for run in runs[1:]:  # first, so that nothing is lost if this is the last that is done
                await self._add_part(found.head, run)
            self.contents.add(await self.sealing.seal(number, found.head, runs[0]))
        except (Unavailable, OutcomeUnknown) as error:
            if len(runs) == 1 and not found.log.damaged:
                return LeftOver(number, found.head, runs[0], body)
            self._hold_back(found.head, runs)
            self.contents.unusable = (
                f"{name} is damaged, and what can be read of it could not be written ({error}). Nothing is taken until "
                "the agent is started again. Check the disk."
            )
            self._tell(self.contents.unusable)
        return None

    async def _keep_what_is_damaged(self, number: int, body: bytes, found: JournalContent) -> None:
        log, runs = found.log, found.runs()
        has_gap = len(runs) > 1 or (bool(runs) and runs[0][0].first_seq != found.head.seq_start)
        if not log.damaged and not has_gap:
            return
        if log.is_damaged_before_its_end or has_gap:
            name = damaged(number, "journal")
            await self.sealing.replace(name, body)
        else:
            name = damaged(number, "tail")
            await self.sealing.replace(name, body[log.damaged[-1][0] :])
        kept = " and ".join(f"{run[0].first_seq}-{run[-1].end_seq - 1}" for run in runs) or "nothing"
        self._tell(
            f"{numbered(ENTRIES, number)}, boot {found.head.boot_id}, is damaged. {kept} can be read and is sent; what "
            f"cannot is in {name}."
        )

    async def _add_part(self, head: JournalHead, run: Sequence[JournalItem]) -> None:
        identity = head.identity(run[0].first_seq, run[-1].end_seq - 1)
        if all(entry.identity != identity for entry in self.contents.waiting(head.kind)):  # a start that was killed
            self.contents.add(await self.sealing.seal(self.contents.take_number(), head, run))

    def _hold_back(self, head: JournalHead, runs: Sequence[Sequence[JournalItem]]) -> None:
        """Send no part of a journal that the next start divides again: it would not know those that left meanwhile."""
        parts = {head.identity(run[0].first_seq, run[-1].end_seq - 1) for run in runs}
        for entry in self.contents.waiting(head.kind):
            if entry.identity in parts:
                self.contents.remove(entry.number)

    def _check_agent(self, agent_id: str, name: str) -> None:
        if agent_id != self.agent_id:
            raise Misconfigured(
                f"The spool is that of the agent {agent_id!r} ({name}), and this is {self.agent_id!r}. Correct the "
                "agent's id, or choose another folder."
            )

    def _tell(self, text: str) -> None:
        self.alerts.tell(AlertKind.DAMAGED, text)
