"""Shorter versions of an agent, each with one step left out or done too early. They lose or double records."""

import asyncio
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

import pyarrow as pa

from lakehead.agent.agent import Agent
from lakehead.agent.batch_attempts import Attempted, BatchAttempts, Earlier, Next
from lakehead.agent.batch_delivery import BatchDelivery
from lakehead.agent.closed_journals import Journal
from lakehead.agent.framed_batch import FramedBatch
from lakehead.agent.journal_writer import JournalWriter, PendingAppend
from lakehead.agent.sealing import Sealing
from lakehead.agent.seen_requests import SeenRequests
from lakehead.agent.sending import Sending
from lakehead.agent.spool import Spool
from lakehead.agent.spool_appends import SpoolAppends
from lakehead.agent.spool_contents import SpoolContents
from lakehead.agent.spool_disk import SpoolDisk
from lakehead.agent.spool_entries import SpoolEntries
from lakehead.agent.spool_entry import ParkReason, SpoolEntry
from lakehead.agent.spool_errors import SpoolUnusable
from lakehead.agent.spool_loading import LeftOver, SpoolLoading
from lakehead.errors import LakeheadError, OutcomeUnknown
from lakehead.wire.agent_journal import MAGIC, JournalHead, JournalItem, read_journal
from lakehead.wire.agent_spool_records import ENTRIES, numbered
from lakehead.wire.append_log import ITEM_HEAD_BYTES
from lakehead.wire.batch_identity import BatchIdentity
from lakehead.wire.errors import Unreadable
from lakehead.wire.frame import encode_frame
from lakehead.wire.request_id import DIGEST_BYTES, RequestId
from tests.sim.agent_model import AgentParts

Change = Callable[[Spool], None]


def with_spool(change: Change) -> AgentParts:
    """An agent some parts of whose spool are others."""

    class WithSpool(Agent):
        def _spool_on(self, disk: SpoolDisk) -> Spool:
            spool = super()._spool_on(disk)
            change(spool)
            return spool

    return AgentParts(agent=WithSpool)


def with_sending(change: Callable[[Sending], None]) -> AgentParts:
    """An agent some parts of whose sending are others."""

    class WithSending(Agent):
        def _sending_of(self, spool: Spool) -> Sending:
            sending = super()._sending_of(spool)
            change(sending)
            return sending

    return AgentParts(agent=WithSending)


def _turn(part: object, into: type) -> None:
    """Give an object that is in use another class, which has the same fields."""
    object.__setattr__(part, "__class__", into)


# --- what is sent


class DeletesOnConflict(BatchDelivery):
    """A batch that a gateway refuses, because another one has its identity, is forgotten."""

    __slots__ = ()

    async def _settle(self, entry: SpoolEntry, attempted: Attempted) -> Attempted:
        if attempted.code == "identity_conflict":
            await self.forget(entry)
            return attempted
        return await super()._settle(entry, attempted)


class BelievesAnyAuthority(BatchAttempts):
    """A receipt counts whoever gives it."""

    __slots__ = ()

    async def once(self, entry: SpoolEntry, earlier: Earlier) -> Attempted:
        before = self.counts.foreign_receipts
        attempted = await super().once(entry, earlier)
        return attempted if self.counts.foreign_receipts == before else Attempted(Next.FORGET, attempted.gateway)


def deletes_on_conflict(sending: Sending) -> None:
    _turn(sending.sender.delivery, DeletesOnConflict)


def believes_any_authority(sending: Sending) -> None:
    _turn(sending.attempts, BelievesAnyAuthority)


# --- new numbers for a void batch


class RequeuesInTwoSteps(SpoolEntries):
    """The records of a void batch become a new entry, and then the old one is removed."""

    __slots__ = ()

    async def _renumber(self, current: SpoolEntry, records: pa.RecordBatch) -> SpoolEntry:
        writer = self.writers[current.kind]
        async with writer.lock:
            self.contents.check_usable()
            writer.close_journal()
            first = writer.next_seq
            identity = BatchIdentity(current.identity.agent_id, writer.boot_id, first, first + len(records) - 1)
            body = encode_frame(identity, current.kind, records)
            number = self.contents.take_number()
            await self._replace(f"{current.folder}/{current.number:020}", numbered(ENTRIES, number), body)
            writer.next_seq = identity.seq_end + 1
        self.contents.remove(current.number)
        new = SpoolEntry(number, current.kind, identity, len(body), current.since)
        self.contents.add(new)
        return new

    async def _replace(self, old: str, new: str, body: bytes) -> None:
        await self.sealing.replace(new, body)
        await self.sealing.disk.delete(old)


class RemovesBeforeItRequeues(RequeuesInTwoSteps):
    """The old entry is removed, and then the records become a new one."""

    __slots__ = ()

    async def _replace(self, old: str, new: str, body: bytes) -> None:
        await self.sealing.disk.delete(old)
        await self.sealing.replace(new, body)


def requeues_in_two_steps(spool: Spool) -> None:
    _turn(spool._entries, RequeuesInTwoSteps)


def removes_before_it_requeues(spool: Spool) -> None:
    _turn(spool._entries, RemovesBeforeItRequeues)


# --- boundaries and numbers


class FramesInMemory(Sealing):
    """A frame is made in order to be sent, and the journal stays what is on disk."""

    __slots__ = ()

    async def replace(self, name: str, body: bytes) -> None:
        if name.startswith(ENTRIES):
            self.disk.frames[name] = body  # type: ignore[attr-defined]
        else:
            await super().replace(name, body)


class SendsFramesFromMemory(SpoolEntries):
    """What is sent is what was made since the start. Only a batch that is parked gets its bytes on disk."""

    __slots__ = ()

    async def _read(self, current: SpoolEntry | None) -> FramedBatch | None:
        name = "" if current is None else numbered(current.folder, current.number)
        if current is None or not (await self.sealing.disk.read(name) or b"").startswith(MAGIC):
            return await super()._read(current)
        return FramedBatch(current.identity, self.sealing.disk.frames[name])  # type: ignore[attr-defined]

    async def park(self, entry: SpoolEntry, why: ParkReason) -> SpoolEntry | None:
        current = self._current(entry)
        if current is not None and (batch := await self._read(current)) is not None:
            await self.sealing.replace(numbered(current.folder, current.number), batch.body)
        return await super().park(entry, why)


class DividesWhatIsLeft(SpoolLoading):
    """The time of a batch is over when it is found: each request of it becomes a batch."""

    __slots__ = ()

    async def _recover(self, number: int, name: str) -> LeftOver | None:
        found = read_journal(await self.sealing.disk.read(name) or b"")
        if found is None or not found.items:
            return await super()._recover(number, name)
        for item in found.items[1:]:
            await self._add_part(found.head, [item])
        self.contents.add(await self.sealing.seal(number, found.head, found.items[:1]))
        return None


def fixes_boundaries_after_sending(spool: Spool) -> None:
    disk = spool._sealing.disk
    disk.frames = {}  # type: ignore[attr-defined]
    memory = FramesInMemory(disk, spool._seen, spool._reserve, spool._sealing.run_in_thread)
    for writer in spool._writers.values():
        writer.sealing = writer.closed.sealing = memory
    _turn(spool._entries, SendsFramesFromMemory)
    _turn(spool._loading, DividesWhatIsLeft)


def continues_the_boot(spool: Spool) -> None:
    load = spool._loading.load

    async def load_and_continue() -> Sequence[LeftOver]:
        left = await load()
        for entry in (*spool.waiting(), *spool.parked()):
            writer = spool._writers[entry.kind]
            writer.boot_id, writer.next_seq = entry.identity.boot_id, entry.identity.seq_end + 1
        return left

    spool._loading = _Loading(spool._loading, load_and_continue)  # type: ignore[assignment]


class _Loading:
    """A loading that does one thing in another way."""

    def __init__(self, loading: SpoolLoading, load: Callable[[], object]) -> None:
        self.record = loading.record
        self.load = load


# --- answers, and by what requests are known again


class AnswersBeforeTheFlush(JournalWriter):
    """A request is answered when it is to be written."""

    __slots__ = ()

    async def _write(self, group: Sequence[PendingAppend]) -> None:
        for pending in group:
            if pending.request is not None:
                self.sealing.seen.add(pending.request)
            if not pending.outcome.done():
                pending.outcome.set_result(None)
        await super()._write(group)


class SavesDigestsAfterTheAnswer(JournalWriter):
    """The digests of a request are not in the journal, but saved by themselves when it is answered."""

    __slots__ = ()

    async def _write(self, group: Sequence[PendingAppend]) -> None:
        await super()._write([PendingAppend(None, each.encoded, each.outcome) for each in group])
        requests = [each.request for each in group if each.request is not None]
        for each in requests:
            self.sealing.seen.add(each)
        asyncio.ensure_future(self._save(requests)).add_done_callback(lambda task: task.exception())

    async def _save(self, requests: Sequence[RequestId]) -> None:
        with suppress(LakeheadError):
            await self.sealing.seen.save(requests)


class KeepsTheDoubtfulItem(JournalWriter):
    """After an fsync that failed the journal is used on."""

    __slots__ = ()

    async def _abandon(self, journal: Journal, cause: OutcomeUnknown) -> None:
        del journal
        raise SpoolUnusable(str(cause))


class KnowsWhatIsUnderWay(SpoolAppends):
    """A request that comes again while the first is written is answered at once."""

    __slots__ = ()

    async def _is_known(self, request: RequestId) -> bool:
        return request.dedupe_id in self._under_way or await super()._is_known(request)


class SealsBeforeItSaves(Sealing):
    """The frame takes the place of the journal, and then the digests are saved."""

    __slots__ = ()

    async def seal(self, number: int, head: JournalHead, items: Sequence[JournalItem]) -> SpoolEntry:
        bare = [JournalItem(item.first_seq, item.encoded, None) for item in items]
        entry = await super().seal(number, head, bare)
        await self.reserve.use(partial(self.seen.save, [item.request for item in items if item.request is not None]))
        return entry


class CountsWallTime(SeenRequests):
    """The window is of the clock on the wall."""

    @property
    def uptime(self) -> float:
        return self._clock.now_ns() / 1e9


class TakesTheTornTail(SpoolLoading):
    """What the file ends within counts as far as it can be read: whose it is."""

    __slots__ = ()

    async def _recover(self, number: int, name: str) -> LeftOver | None:
        body = await self.sealing.disk.read(name) or b""
        found = None
        with suppress(Unreadable):
            found = read_journal(body)
        if found is not None and found.log.torn_at is not None:
            begin = found.log.torn_at + ITEM_HEAD_BYTES + struct.calcsize("<QIHH")
            digests = body[begin : begin + 2 * DIGEST_BYTES]
            if len(digests) == 2 * DIGEST_BYTES and any(digests):
                await self.sealing.seen.save([RequestId(digests[:DIGEST_BYTES], digests[DIGEST_BYTES:])])
        return await super()._recover(number, name)


class CountsParkedAsWaiting(SpoolContents):
    """What is parked takes the room of what waits: refused batches keep the spool from taking more."""

    @property
    def entries(self) -> int:
        return super().entries + self._count["parked"]


def _writers(into: type[JournalWriter]) -> Change:
    def change(spool: Spool) -> None:
        for writer in spool._writers.values():
            _turn(writer, into)

    return change


BROKEN_AGENTS: dict[str, AgentParts] = {
    "deletes_on_conflict": with_sending(deletes_on_conflict),
    "believes_any_authority": with_sending(believes_any_authority),
    "requeues_in_two_steps": with_spool(requeues_in_two_steps),
    "removes_before_it_requeues": with_spool(removes_before_it_requeues),
    "fixes_boundaries_after_sending": with_spool(fixes_boundaries_after_sending),
    "continues_the_boot": with_spool(continues_the_boot),
    "answers_before_the_flush": with_spool(_writers(AnswersBeforeTheFlush)),
    "saves_digests_after_the_answer": with_spool(_writers(SavesDigestsAfterTheAnswer)),
    "keeps_the_doubtful_item": with_spool(_writers(KeepsTheDoubtfulItem)),
    "knows_what_is_under_way": with_spool(lambda spool: _turn(spool._appends, KnowsWhatIsUnderWay)),
    "seals_before_it_saves": with_spool(lambda spool: _turn(spool._sealing, SealsBeforeItSaves)),
    "counts_wall_time": with_spool(lambda spool: _turn(spool._seen, CountsWallTime)),
    "takes_the_torn_tail": with_spool(lambda spool: _turn(spool._loading, TakesTheTornTail)),
    "counts_parked_as_waiting": with_spool(lambda spool: _turn(spool._contents, CountsParkedAsWaiting)),
}
