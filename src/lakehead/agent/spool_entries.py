"""What becomes of a batch whose frame is in an agent's spool: it is read, forgotten, parked, or gets new numbers.

A batch changes its form by one rename over its own name, and its place by one rename to another folder. So whatever is
interrupted, it is there once.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial

import pyarrow as pa

from lakehead.agent.alerts import LOG, AlertKind, Alerts
from lakehead.agent.framed_batch import FramedBatch
from lakehead.agent.journal_writer import JournalWriter
from lakehead.agent.sealing import Sealing
from lakehead.agent.spool_contents import SpoolContents
from lakehead.agent.spool_entry import ParkReason, SpoolEntry
from lakehead.agent.spool_errors import SpoolUnusable
from lakehead.clock import Clock
from lakehead.errors import LakeheadError, OutcomeUnknown, Unavailable
from lakehead.wire.agent_spool_records import ENTRIES, PARKED, ParkedNote, damaged, numbered, parked_note
from lakehead.wire.batch_identity import BatchIdentity
from lakehead.wire.errors import BadFrame, NewerFormat
from lakehead.wire.frame import decode_frame, encode_frame
from lakehead.wire.frame_header import check_whole, decode_header, decode_prefix, has_damaged_version
from lakehead.wire.record_schemas import FrameKind

NOTE_CHARACTERS = 2_000
"""The most that is noted of what a gateway said."""


@dataclass(slots=True, kw_only=True)
class SpoolEntries:
    """The batches of a spool that are ready to be sent, or parked. `Spool` says what each of these does."""

    contents: SpoolContents
    sealing: Sealing
    writers: Mapping[FrameKind, JournalWriter]
    clock: Clock
    alerts: Alerts
    _under_way: dict[int, "asyncio.Future[None]"] = field(default_factory=dict, init=False)

    async def read(self, entry: SpoolEntry) -> FramedBatch | None:
        """Return the batch of an entry."""
        async with self._alone(entry.number):
            return await self._read(self._current(entry))

    async def forget(self, entry: SpoolEntry) -> None:
        """Remove an entry that was accepted."""
        async with self._alone(entry.number):
            current = self._current(entry)
            if current is None:
                return
            try:
                await self.sealing.disk.delete(_name(current))
            except LakeheadError as error:
                self.alerts.tell(
                    AlertKind.DISK_FAILED,
                    f"{_name(current)} is accepted, and may be sent again after the next start: {error}",
                )
            self.contents.remove(current.number)
            if current.folder == "parked":
                await self._remove_note(current.number)
        self.sealing.reserve.fill_soon()

    async def requeue(self, entry: SpoolEntry) -> SpoolEntry | None:
        """Give the records of an entry the next numbers of the current boot."""
        async with self._alone(entry.number):
            current = self.contents.get(entry.number)
            if current is None or current.identity != entry.identity:
                return current
            batch = await self._read(current)
            if batch is None:
                return None
            try:
                frame = await self.sealing.run_in_thread(partial(decode_frame, batch.body))
            except BadFrame as error:
                await self._set_aside(current, error)
                return None
            return await self._renumber(current, frame.records)

    async def _renumber(self, current: SpoolEntry, records: pa.RecordBatch) -> SpoolEntry:
        writer = self.writers[current.kind]
        async with writer.lock:  # so that no later number is on disk before these are
            self.contents.check_usable()
            writer.close_journal()
            first = writer.next_seq
            identity = BatchIdentity(current.identity.agent_id, writer.boot_id, first, first + len(records) - 1)
            body = await self.sealing.run_in_thread(partial(encode_frame, identity, current.kind, records))
            try:
                await self.sealing.replace(_name(current), body)
            except OutcomeUnknown as error:
                self.contents.remove(current.number)
                writer.give_up(f"{_name(current)} may have its new numbers, or the old ones ({error}).")
                raise SpoolUnusable(self.contents.unusable) from error
            writer.next_seq = identity.seq_end + 1
        changed = replace(current, identity=identity, size=len(body))
        self.contents.add(changed)
        return changed

    async def park(self, entry: SpoolEntry, why: ParkReason) -> SpoolEntry | None:
        """Take an entry out of those that wait."""
        async with self._alone(entry.number):
            current = self._current(entry)
            if current is None or current.parked is not None:
                return current
            batch = await self._read(current)
            if batch is None:
                return None
            if self.contents.has_room_to_park(current.size):
                await self._move(numbered(ENTRIES, current.number), numbered(PARKED, current.number))
                parked = replace(current, folder="parked", parked=why)
                self.contents.add(parked)
                await self._note(parked, why, batch)
            else:
                parked = replace(current, parked=why)
                self.contents.add(parked)
                self.alerts.tell(
                    AlertKind.PARKED,
                    f"{PARKED}/ is full with {self.contents.parked_bytes:,} bytes: {_name(current)} stays where it is, "
                    "and takes room from batches that wait. Drop parked batches, or let it have more bytes.",
                )
            return parked

    async def unpark(self, entry: SpoolEntry) -> SpoolEntry | None:
        """Let a parked entry wait in its turn."""
        async with self._alone(entry.number):
            current = self._current(entry)
            if current is None or current.parked is None:
                return current
            if current.folder == "parked":
                await self._move(numbered(PARKED, current.number), numbered(ENTRIES, current.number))
            waiting = replace(current, folder="entries", parked=None)
            self.contents.add(waiting)
            if current.folder == "parked":
                await self._remove_note(current.number)
            return waiting

    # --- steps

    async def _read(self, current: SpoolEntry | None) -> FramedBatch | None:
        if current is None:
            return None
        body = await self.sealing.disk.read(_name(current))
        if body is None:
            self.contents.remove(current.number)
            self.contents.damaged += 1
            self.alerts.tell(AlertKind.DAMAGED, f"{_name(current)} is gone, and nothing of this agent removed it.")
            return None
        try:
            _check(body, current.identity)
        except NewerFormat as error:
            raise Unavailable(f"{_name(current)} stays in the spool. {error}") from error
        except BadFrame as error:
            await self._set_aside(current, error)
            return None
        return FramedBatch(current.identity, body)

    async def _set_aside(self, current: SpoolEntry, error: BadFrame) -> None:
        aside = damaged(current.number, "frame")
        await self._move(_name(current), aside)
        self.contents.remove(current.number)
        self.contents.damaged += 1
        one = current.identity
        self.alerts.tell(
            AlertKind.DAMAGED,
            f"{_name(current)} is not the frame that was written, and is now {aside}: {one.seq_start}-{one.seq_end} of "
            f"the boot {one.boot_id} are not sent. {error}",
        )

    async def _move(self, name: str, to: str) -> None:
        """Rename a file. Raises `Unavailable` if it is where it was."""
        try:
            await self.sealing.reserve.use(partial(self.sealing.disk.move, name, to))
        except OutcomeUnknown as error:
            # After the power was lost it may be in either place, and each is right. Now it is where it can be read.
            if await self.sealing.disk.read(to, most=1) is None:
                raise SpoolUnusable(f"{name} could not be moved. {error}") from error

    async def _note(self, parked: SpoolEntry, why: ParkReason, batch: FramedBatch) -> None:
        one = parked.identity
        note = ParkedNote(
            agent_id=one.agent_id,
            boot_id=one.boot_id,
            seq_start=one.seq_start,
            seq_end=one.seq_end,
            number=parked.number,
            code=why.code,
            text=why.text[:NOTE_CHARACTERS],
            frame_sha256=batch.sha256,
            parked_at_unix_ns=max(0, self.clock.now_ns()),
        )
        try:
            await self.sealing.disk.replace(note.key, note.encode())
        except LakeheadError as error:
            LOG.warning("Why %s is parked could not be noted: %s", _name(parked), error)

    async def _remove_note(self, number: int) -> None:
        try:
            await self.sealing.disk.delete(parked_note(number))
        except LakeheadError as error:
            LOG.warning("%s is not needed any more, and could not be removed: %s", parked_note(number), error)

    def _current(self, entry: SpoolEntry) -> SpoolEntry | None:
        """Return an entry as it is now; None if it is not there, or has another identity by now."""
        current = self.contents.get(entry.number)
        return current if current is not None and current.identity == entry.identity else None

    @asynccontextmanager
    async def _alone(self, number: int) -> AsyncIterator[None]:
        """Of what is done to one entry, one thing is done after the other."""
        while (other := self._under_way.get(number)) is not None:
            await asyncio.shield(other)
        self._under_way[number] = done = asyncio.get_running_loop().create_future()
        try:
            yield
        finally:
            del self._under_way[number]
            done.set_result(None)


def _name(entry: SpoolEntry) -> str:
    return numbered(entry.folder, entry.number)


def _check(body: bytes, identity: BatchIdentity) -> None:
    """Raise `BadFrame` or `NewerFormat` unless this is a whole frame of this identity."""
    frame = pa.py_buffer(body)
    try:
        prefix = decode_prefix(frame)
    except NewerFormat:
        if has_damaged_version(frame):
            raise BadFrame("bad_version", "The frame is damaged where its version is told.") from None
        raise
    check_whole(frame, prefix)
    if (found := decode_header(frame, prefix).identity) != identity:
        raise BadFrame("bad_identity", f"It is the frame of {found}.")
