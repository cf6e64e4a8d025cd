"""An agent in a Python program: it keeps records on disk, and sends them to gateways until they are accepted."""

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

import pyarrow as pa

from lakehead.agent.alerts import LOG, AlertKind, Alerts
from lakehead.agent.counts import AgentCounts
from lakehead.agent.deps import AgentDeps
from lakehead.agent.given_records import GivenRecords, checked_records, keyed_request
from lakehead.agent.parked import ParkedBatches
from lakehead.agent.sending import Sending
from lakehead.agent.settings import AgentSettings
from lakehead.agent.spool import Spool
from lakehead.agent.spool_disk import SpoolDisk
from lakehead.agent.spool_entry import Spooled
from lakehead.agent.spool_errors import SpoolFull, SpoolUnusable
from lakehead.agent.status import AgentStatus, Flushed
from lakehead.buffer.errors import InvalidCall
from lakehead.wire.record_schemas import FrameKind
from lakehead.wire.request_id import RequestId


class Agent:
    """Takes samples and log records, and delivers them. Use it in an `async with` block, and on one event loop.

    What a call has returned for is on disk, and will be accepted by a gateway exactly once, whatever happens to this
    process or to the gateways; what they refuse is kept, and shown by `status`. At the end of the block the agent stops
    within seconds: what is left is sent after the next start with the same spool.

    Opening it raises `Misconfigured` if it cannot run as it is set up (`SpoolLocked` if another has its spool open),
    `NewerFormat` and `Unreadable` if its spool cannot be read, `Unavailable` and `OutcomeUnknown` if the disk fails.
    """

    def __init__(self, settings: AgentSettings, deps: AgentDeps) -> None:
        self.settings = settings
        self.counts = AgentCounts()
        self.alerts = Alerts(deps.clock)
        self._deps = deps
        self._opened: tuple[Spool, Sending] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        """The event loop that it was opened on, and is used on."""

        self._stack = AsyncExitStack()
        self._closing = asyncio.Lock()

    # --- what is given

    async def add_samples(self, records: GivenRecords, *, idempotency_key: str | None = None) -> Spooled:
        """Take samples, and return when they are on disk. They are delivered together, in one batch.

        The forms of plain records are those of `record_batch`; Arrow must have a schema of samples. With an
        `idempotency_key`, a call that is made again with the same records adds nothing.

        Raises `BadRecord` and `BadFrame` for records that are none, `RecordsTooLarge`, `KeyReused` for other records
        under the same key, and `InvalidCall` if the agent is closed. After `SpoolFull` and `SpoolUnusable` nothing was
        taken: try again later. If it is cancelled, the records may be taken all the same.
        """
        return await self._add(FrameKind.SAMPLES, records, idempotency_key)

    async def add_logs(self, records: GivenRecords, *, idempotency_key: str | None = None) -> Spooled:
        """Take log records, and return when they are on disk. All is as for samples."""
        return await self._add(FrameKind.LOGS, records, idempotency_key)

    async def append(self, kind: FrameKind, records: pa.RecordBatch, request: RequestId | None = None) -> Spooled:
        """Take records that were checked, as `Spool.append` does: for receivers. Raises what that raises."""
        self._check_loop()
        with self._told_if_refused():
            spooled = await self.spool.append(kind, records, request)
        self.alerts.is_over(AlertKind.SPOOL_FULL)
        self.alerts.is_over(AlertKind.SPOOL_UNUSABLE)
        self.counts.requests += 1
        self.counts.duplicates += spooled.duplicate
        self.counts.records += 0 if spooled.duplicate else len(records)
        return spooled

    def check(self) -> None:
        """Raise `SpoolFull` or `SpoolUnusable` if nothing is taken now: so that a body need not be read."""
        with self._told_if_refused():
            self.spool.check()

    @contextmanager
    def _told_if_refused(self) -> Iterator[None]:
        try:
            yield
        except (SpoolFull, SpoolUnusable) as error:
            self.counts.refused += 1
            is_full = isinstance(error, SpoolFull)
            self.alerts.tell(AlertKind.SPOOL_FULL if is_full else AlertKind.SPOOL_UNUSABLE, str(error))
            raise

    async def _add(self, kind: FrameKind, records: GivenRecords, idempotency_key: str | None) -> Spooled:
        batch = checked_records(kind, records)
        return await self.append(kind, batch, keyed_request(kind, idempotency_key, batch))

    # --- what becomes of it

    async def flush(self, timeout_seconds: float | None = None) -> Flushed:
        """Wait until all that was given before is accepted or parked, at most so long, and return which it is.

        Nothing is sent sooner than without it but for the batch that still collects records. Raises `Unavailable` if
        the disk does not let that be sealed, or failed so that only the next start can tell what is on it.
        """
        self._check_loop()
        spool, sending = self._parts
        damaged_before = spool.status().damaged
        last = await spool.seal_now()
        try:
            async with asyncio.timeout(timeout_seconds):
                while any(entry.number <= last for entry in spool.waiting(limit=1)):  # the oldest: they are in order
                    await spool.wait_for_change()
        except TimeoutError:
            pass
        spool.check_usable()  # else some of it may be on disk, and wait for the next start
        return Flushed(
            waiting=sum(entry.number <= last for entry in spool.waiting()),
            parked=tuple(each for each in sending.parked.list() if each.number <= last),
            damaged=spool.status().damaged - damaged_before,
        )

    def status(self) -> AgentStatus:
        """Return how the agent is."""
        spool, sending = self._parts
        return AgentStatus(
            agent_id=self.settings.agent_id,
            spool_id=spool.spool_id,
            authority=sending.attempts.pinned,
            spool=spool.status(),
            parked=sending.parked.list(),
            paused=sending.attempts.token.reason,
            gateways=sending.attempts.gateways.status(),
            alerts=self.alerts.shown(),
        )

    @property
    def parked(self) -> ParkedBatches:
        """The batches that were refused or are conflicts. Raises `InvalidCall` if the agent is closed."""
        return self._parts[1].parked

    @property
    def spool(self) -> Spool:
        """What is kept on disk. Raises `InvalidCall` if the agent is closed."""
        return self._parts[0]

    # --- its life

    async def close(self) -> None:
        """Stop within seconds, and leave what is not accepted on disk. It can be called again."""
        self._check_loop()
        async with self._closing:
            self._opened = None
            await self._stack.aclose()

    async def __aenter__(self) -> Self:
        if self._opened is not None:
            raise InvalidCall("The agent is open already. Make a new one.")
        settings, deps = self.settings, self._deps
        async with AsyncExitStack() as stack:
            spool = self._spool_on(stack.enter_context(deps.open_disk(Path(settings.spool_folder))))
            sending = self._sending_of(spool)
            await stack.enter_async_context(spool)
            self._tell_what_was_found(spool)
            await stack.enter_async_context(sending.running())
            self._stack = stack.pop_all()
        self._opened, self._loop = (spool, sending), asyncio.get_running_loop()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _spool_on(self, disk: SpoolDisk) -> Spool:
        return Spool(
            disk,
            agent_id=self.settings.agent_id,
            clock=self._deps.clock,
            ids=self._deps.ids,
            settings=self.settings.spool,
            run_in_thread=self._deps.run_in_thread,
            alerts=self.alerts,
        )

    def _sending_of(self, spool: Spool) -> Sending:
        return Sending.of(spool, self.settings, self._deps, alerts=self.alerts, counts=self.counts)

    def _check_loop(self) -> None:
        """Raise `InvalidCall` on another event loop, where numbers could be given twice, and nobody be woken."""
        if self._opened is not None and asyncio.get_running_loop() is not self._loop:
            raise InvalidCall("The agent was opened on another event loop. Use `BlockingAgent` from several threads.")

    @property
    def _parts(self) -> tuple[Spool, Sending]:
        if self._opened is None:
            raise InvalidCall("The agent is not open. Use it in an `async with` block.")
        return self._opened

    def _tell_what_was_found(self, spool: Spool) -> None:
        if parked := len(spool.parked()):
            are = "1 batch is" if parked == 1 else f"{parked:,} batches are"
            self.alerts.tell(AlertKind.PARKED, f"{are} parked: see `lakehead agent parked list CONFIG`.")
        if self.settings.authority and spool.authority not in ("", self.settings.authority):
            LOG.warning(
                "The spool knows the authority %s, and %s is set: receipts of that one count.",
                spool.authority,
                self.settings.authority,
            )
