"""What an agent was given and no gateway has accepted yet, on disk."""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from types import TracebackType
from typing import Self

import msgspec
import pyarrow as pa

from lakehead.agent.alerts import Alerts
from lakehead.agent.framed_batch import FramedBatch
from lakehead.agent.journal_writer import JournalWriter
from lakehead.agent.sealing import RunInThread, Sealing
from lakehead.agent.seen_requests import SeenRequests
from lakehead.agent.spool_appends import SpoolAppends
from lakehead.agent.spool_contents import SpoolContents
from lakehead.agent.spool_disk import SpoolDisk
from lakehead.agent.spool_entries import SpoolEntries
from lakehead.agent.spool_entry import ParkReason, Spooled, SpoolEntry, SpoolStatus
from lakehead.agent.spool_errors import SpoolFull, SpoolUnusable
from lakehead.agent.spool_loading import SpoolLoading
from lakehead.agent.spool_reserve import Reserve
from lakehead.agent.spool_settings import SpoolSettings
from lakehead.clock import Clock
from lakehead.errors import Misconfigured, OutcomeUnknown, Unavailable
from lakehead.ids import Ids
from lakehead.to_its_end import to_its_end
from lakehead.wire.agent_spool_records import SPOOL, AgentSpoolRecord
from lakehead.wire.batch_identity import check_id
from lakehead.wire.record_schemas import FrameKind
from lakehead.wire.request_id import RequestId


class Spool:
    """The records that an agent has promised to deliver. Use it in an `async with` block, which loads what is there.

    Entries are batches with fixed bytes, in the order in which they are to be sent. One process has a spool at a time.
    Loading raises `Misconfigured` if it is another agent's, `NewerFormat` if a newer Lakehead wrote something in it,
    `Unreadable`, `Unavailable` and `OutcomeUnknown`.
    """

    def __init__(
        self,
        disk: SpoolDisk,
        *,
        agent_id: str,
        clock: Clock,
        ids: Ids,
        settings: SpoolSettings | None = None,
        run_in_thread: RunInThread = asyncio.to_thread,
        alerts: Alerts | None = None,
    ) -> None:
        check_id("agent_id", agent_id)
        settings = settings or SpoolSettings()
        self._ids = ids
        self._contents = SpoolContents(settings)
        self._seen = SeenRequests(disk, clock=clock, seconds=settings.dedupe_seconds, requests=settings.dedupe_requests)
        self._reserve = Reserve(disk, settings.reserve_bytes, clock)
        self._sealing = Sealing(disk, self._seen, self._reserve, run_in_thread)
        alerts = alerts or Alerts(clock)
        self._loading = SpoolLoading(
            agent_id=agent_id, contents=self._contents, sealing=self._sealing, alerts=alerts, clock=clock, ids=ids
        )
        self._writers: Mapping[FrameKind, JournalWriter] = {
            kind: JournalWriter(
                kind=kind,
                agent_id=agent_id,
                boot_id=ids.uuid(),
                settings=settings,
                contents=self._contents,
                sealing=self._sealing,
                clock=clock,
                alerts=alerts,
            )
            for kind in FrameKind
        }
        self._entries = SpoolEntries(
            contents=self._contents, sealing=self._sealing, writers=self._writers, clock=clock, alerts=alerts
        )
        self._appends = SpoolAppends(
            settings=settings,
            contents=self._contents,
            seen=self._seen,
            reserve=self._reserve,
            writers=self._writers,
            run_in_thread=run_in_thread,
        )
        self._record: AgentSpoolRecord | None = None
        self._pinning = asyncio.Lock()

    async def __aenter__(self) -> Self:
        """Load what is there, and begin a new boot of each kind."""
        self._record = await self._loading.record()
        await self._seen.load()
        await self._reserve.open()
        for left in await self._loading.load():
            self._writers[left.head.kind].adopt(left)
        await self._reserve.fill()
        self._appends.is_closed = False
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        """Take nothing more, and fix the batches that still collect records, if the disk lets it."""
        await to_its_end(self._close())

    async def _close(self) -> None:
        await self._appends.close()
        for writer in self._writers.values():
            await writer.stop()
        await self._seen.close()
        await self._reserve.close()

    # --- what is given

    async def append(self, kind: FrameKind, records: pa.RecordBatch, request: RequestId | None = None) -> Spooled:
        """Put records on disk, and return when they are there. They are valid: `newest_schema(kind).check` was done.

        With a `request` that is known, nothing is added; if the same is under way, this waits for that one, and fails
        as it does. What was begun is carried to its end also if this is cancelled.

        Raises `SpoolFull` and `SpoolUnusable` (try again later), `KeyReused` and `RecordsTooLarge` (do not).
        """
        try:
            return await self._appends.append(kind, records, request)
        except SpoolFull:
            self._reserve.fill_soon()
            raise

    def check(self) -> None:
        """Raise `SpoolFull` or `SpoolUnusable` if nothing is taken now: so that a body need not be read."""
        try:
            self._appends.check()
        finally:
            self._reserve.fill_soon()

    def check_usable(self) -> None:
        """Raise `SpoolUnusable` if the disk failed so that only the next start can tell what is on it."""
        self._contents.check_usable()

    async def seal_now(self) -> int:
        """Fix the batches that collect records, and return when all that was given before is ready to be sent.

        Returns the highest number of an entry that may hold some of it; -1 if there never was one. Raises `Unavailable`
        if the disk does not let it; it is tried again by itself.
        """
        for writer in self._writers.values():
            await writer.seal_all()
        return self._contents.next_number - 1

    # --- what is to be sent

    def waiting(
        self, kind: FrameKind | None = None, *, limit: int | None = None, besides: Collection[int] = ()
    ) -> Sequence[SpoolEntry]:
        """Return entries that are to be sent, in their order: of one kind or all, without the numbers `besides`."""
        return self._contents.waiting(kind, limit=limit, besides=besides)

    async def wait_for_work(self) -> None:
        """Return when an entry has been added to `waiting`. Call it without awaiting anything after `waiting`."""
        await self._contents.work.next()

    async def wait_for_change(self) -> None:
        """Return when an entry was added, parked or offered again, or has left. To be called as `wait_for_work`."""
        await self._contents.changes.next()

    async def read(self, entry: SpoolEntry) -> FramedBatch | None:
        """Return the batch of an entry, waiting or parked, in the bytes that it always has.

        None if the entry is not there any more, or its file is damaged: then it was set aside, and told.
        Raises `Unavailable`.
        """
        return await to_its_end(self._entries.read(entry))

    async def accepted(self, entry: SpoolEntry) -> None:
        """Forget an entry, waiting or parked, that a gateway has accepted, or that an operator has decided to drop.

        If its file cannot be removed, this is told, and the next start sends it again, which is harmless.
        """
        await to_its_end(self._entries.forget(entry))

    async def requeue(self, entry: SpoolEntry) -> SpoolEntry | None:
        """Give the records of a void entry the next numbers of the current boot, in the same place and in one step.

        A parked one stays parked, and may be sent at once. Returns the entry as it is now; None if it is not there any
        more, or was damaged. Raises `Unavailable` if it is as it was: try again. Raises `SpoolUnusable` if it may have
        either form, which only the next start can tell: then it is not in `waiting` any more.
        """
        return await to_its_end(self._entries.requeue(entry))

    async def new_boot(self, kind: FrameKind, boot_id: str) -> None:
        """Give further records of a kind to a new boot, because the gateways take nothing more of this one.

        Nothing happens if it is not the current boot. What was given under it keeps its numbers.
        """
        await self._writers[kind].leave_boot(boot_id, self._ids.uuid())

    # --- what was refused

    async def park(self, entry: SpoolEntry, why: ParkReason) -> SpoolEntry | None:
        """Take an entry out of `waiting`, until it is accepted or offered again. It stays on disk.

        Returns it as it is now: still in the folder `entries` if the other one is full, which is told. None if it is
        not there any more. Raises `Unavailable` if it is as it was.
        """
        return await to_its_end(self._entries.park(entry, why))

    async def unpark(self, entry: SpoolEntry) -> SpoolEntry | None:
        """Put a parked entry back into `waiting`, and return it; None if it is not there. Raises `Unavailable`."""
        return await to_its_end(self._entries.unpark(entry))

    def parked(self) -> Sequence[SpoolEntry]:
        """Return the entries that are parked, by number."""
        return self._contents.parked()

    # --- what is known

    @property
    def spool_id(self) -> str:
        """The id of the folder, which stays the same."""
        return self._known_record.spool_id

    @property
    def authority(self) -> str:
        """The acceptance authority whose receipts count; empty before the first receipt."""
        return self._known_record.authority

    async def pin(self, authority: str) -> None:
        """Keep the authority of the first receipt for good. Raises `Unavailable`, and `Misconfigured` for another."""
        await to_its_end(self._pin(authority))

    async def _pin(self, authority: str) -> None:
        async with self._pinning:
            record = self._known_record
            if record.authority not in ("", authority):
                raise Misconfigured(
                    f"This spool's batches are for the acceptance authority {record.authority}, not for {authority}. "
                    "Correct the gateways' URLs, or choose another folder."
                )
            pinned = msgspec.structs.replace(record, authority=authority)
            if pinned != record:
                try:
                    await self._sealing.replace(SPOOL, pinned.encode())
                except OutcomeUnknown as error:
                    raise SpoolUnusable(f"The acceptance authority could not be noted. {error}") from error
                self._record = pinned

    @property
    def _known_record(self) -> AgentSpoolRecord:
        if self._record is None:
            raise SpoolUnusable("The spool is not open. Use it in an `async with` block.")
        return self._record

    @property
    def uptime(self) -> float:
        """Seconds for which agents have had this spool open, all starts together."""
        return self._seen.uptime

    def status(self) -> SpoolStatus:
        """Return what is in the spool."""
        contents, since = self._contents, self._contents.oldest_since()
        return SpoolStatus(
            entries=contents.entries,
            entry_bytes=contents.entry_bytes,
            parked=len(contents.parked()),
            parked_bytes=contents.parked_bytes,
            damaged=contents.damaged,
            oldest_seconds=0.0 if since is None else self.uptime - since,
            boots={kind: writer.boot_id for kind, writer in self._writers.items()},
            next_sequence={kind: writer.next_seq for kind, writer in self._writers.items()},
            remembered_requests=self._seen.count,
            problem=self._problem(),
        )

    def _problem(self) -> str:
        try:
            self._appends.check()
        except Unavailable as error:
            return str(error)
        failed = next((each.closed.problem for each in self._writers.values() if each.closed.problem), None)
        return "" if failed is None else f"A batch waits until it can be written: {failed}"
