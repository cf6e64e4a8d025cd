"""The reconciler: finds accepted batches again and again, and repairs what is derived from them.

A steady scan of the newest hours, a cold scan of everything once a day, and events if there are any, side by side.
Nothing that it does decides anything: two of them at once do no harm, and it may be killed at any moment.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from lakehead.clock import Clock
from lakehead.errors import LakeheadError
from lakehead.maintain.accepted_events import AcceptedEvents
from lakehead.maintain.open_repairs import OpenRepairs
from lakehead.maintain.reconcile_batch import reconcile_all
from lakehead.maintain.reconcile_cold import ColdScanner
from lakehead.maintain.reconcile_hours import SteadyScan
from lakehead.maintain.reconcile_report import ProblemKind, ReconcileReport
from lakehead.maintain.reconcile_settings import ReconcileSettings
from lakehead.maintain.reconciler_records import ReconcilerRecords
from lakehead.wire import acceptance_keys as keys
from lakehead.wire.maintenance_records import ColdScan, CompletedAudit
from lakehead.wire.utc_hours import UtcHour

LOG = logging.getLogger(__name__)

REPAIRS_PER_PASS = 1_000
"""Open repairs that are looked at in a pass. If there are more, the next pass goes on with the others."""

SHORTEST_REPEAT_SECONDS = 60.0
REPEAT_FACTOR = 10.0
"""A scan of everything that was not complete is repeated after ten times as long as it took, and at least a minute."""


class ScannedInventory(Protocol):
    """A listing of identity manifests that was made elsewhere."""

    @property
    def complete_through_unix_ns(self) -> int:
        """What was accepted before this time is in it."""
        ...

    def pages(self, report: ReconcileReport) -> AsyncIterator[Sequence[str]]:
        """Yield the keys of identity manifests. Problems with some are noted in the report."""
        ...


@dataclass(slots=True, kw_only=True)
class Reconciler:
    """Reconciles one authority."""

    steady: SteadyScan
    cold: ColdScanner
    repairs: OpenRepairs
    records: ReconcilerRecords
    settings: ReconcileSettings
    clock: Clock
    events: AcceptedEvents | None = None
    is_dry_run: bool = False
    through_unix_ns: int = 0
    """Up to when everything was looked at, as of the last pass."""

    last_pass_unix_ns: int = 0
    audit: CompletedAudit | None = None
    """The last complete audit that is known."""

    totals: ReconcileReport = field(default_factory=ReconcileReport)
    """What was done in passes that have ended."""

    current: dict[str, ReconcileReport] = field(default_factory=dict)
    """What is done in passes under way, by their names."""

    _cold_ended_at: float | None = field(default=None, init=False)
    _incomplete_scans: int = field(default=0, init=False)
    """Scans of everything since the last complete one."""

    # --- single passes

    async def pass_once(self) -> ReconcileReport:
        """Look at the newest hours and at all open repairs. Raises `Unavailable` if they could not be listed."""
        with self._reporting("steady") as report:
            await self._refresh_repairs(report)
            if self.is_dry_run:
                found = await self.records.checkpoint()
                await self.steady.scan(self._since(found.reconciled_through_unix_ns if found else 0), report)
            else:
                await self._look_at_hours(report)
            if self.steady.is_stopped:
                return report
            await self._look_at_repairs(report)
            self.last_pass_unix_ns = self.clock.now_ns()
        return report

    async def cold_scan(self, agents: Sequence[str] = ()) -> ReconcileReport:
        """Look at everything, or at some agents' batches. Raises `Unavailable` if it was interrupted."""
        with self._reporting("cold") as report:
            await self._refresh_repairs(report)
            if agents:
                await self.cold.scan_agents(agents, report)
                return report
            if await self.cold.scan(report):
                self.audit, self._incomplete_scans = await self.records.completed_audit(), 0
            else:
                self._incomplete_scans += 1
            self._cold_ended_at = self.clock.monotonic()
        return report

    async def inventory_scan(self, inventory: ScannedInventory) -> ReconcileReport:
        """Look at the batches that a report lists, and at the quarantine. Raises `Unavailable` and `Unreadable`.

        If all of it could be read, it is an audit of what was accepted well before the report was made.
        """
        with self._reporting("inventory") as report:
            await self._refresh_repairs(report)
            await self.cold.scan_listed(inventory.pages(report), report)
            await self.cold.scan_quarantine(report)
            if not report.incomplete and not self.is_dry_run:
                scan = ColdScan(
                    begun_at_unix_ns=max(0, inventory.complete_through_unix_ns),
                    accepted=report.accepted,
                    voids=report.voids,
                    quarantined=report.quarantined,
                    repaired=report.indexed,
                )
                await self.records.complete_audit(scan, report)
        return report

    async def is_cold_scan_due(self) -> bool:
        """Return whether one is under way, there never was one, or the last one is long ago. Raises `Unavailable`.

        The clock of the store tells how long ago. It is read by a sign of life, which a dry run must not store: that
        one asks the clock of this machine.
        """
        checkpoint = await self.records.checkpoint()
        if checkpoint is not None and checkpoint.cold_scan is not None:
            return True
        every = self.settings.cold_scan_seconds
        if self._cold_ended_at is not None:
            pause = self._repeated_after() if self._incomplete_scans else every
            if self.clock.monotonic() - self._cold_ended_at < pause:
                return False
            if self._incomplete_scans:
                return True
        self.audit = await self.records.completed_audit()
        if self.audit is None:
            return True
        now = self.clock.now_ns() if self.is_dry_run else await self.records.store_time_ns()
        return now - self.audit.ended_at_unix_ns >= every * 1e9

    def _repeated_after(self) -> float:
        """How long after its end a scan that was not complete is repeated: soon, and later each time that it fails."""
        shortest = max(SHORTEST_REPEAT_SECONDS, REPEAT_FACTOR * self.cold.seconds)
        return min(self.settings.cold_scan_seconds, shortest * 2.0 ** min(self._incomplete_scans - 1, 20))

    async def _look_at_hours(self, report: ReconcileReport) -> None:
        found = await self.records.checkpoint()
        before = found.reconciled_through_unix_ns if found else 0
        through = await self.steady.scan(self._since(before), report)
        self.through_unix_ns = max(through, min(before, self.clock.now_ns()))
        # Without a checkpoint all before is the cold scan's. It is moved rarely: each move is a write.
        if found is None or UtcHour.of(through).number > UtcHour.of(before).number:
            # It never moves back, so one from a clock that is ahead would hide the hours until then from everybody.
            await self.records.move_checkpoint(min(through, await self.records.store_time_ns()))

    def _since(self, checkpoint_unix_ns: int) -> int:
        """From when on hours are listed: before the checkpoint, or before now if there is none, or it is of later."""
        now = self.clock.now_ns()
        return min(checkpoint_unix_ns or now, now) - int(self.settings.look_back_seconds * 1e9)

    async def _refresh_repairs(self, report: ReconcileReport) -> None:
        await self.repairs.refresh()
        for key, problem in self.repairs.unreadable.items():
            report.found(ProblemKind.UNREADABLE, key, problem)

    async def _look_at_repairs(self, report: ReconcileReport) -> None:
        some = self.repairs.identities()[:REPAIRS_PER_PASS]
        batches, at_once = self.steady.batches, self.settings.at_once
        looked = await reconcile_all(batches, some, report, at_once=at_once)
        for identity in some:  # also one that could not be read: else it would keep the others from their turn
            self.repairs.looked_at(identity)
        healed = [each for each in looked if each is not None and not self.repairs.is_open(each.identity)]
        await self.steady.note(healed, UtcHour.of(self.clock.now_ns()), report)

    # --- until it is stopped

    async def run(
        self, stop: asyncio.Event, told: Callable[[str, ReconcileReport], None], *, cold_at_once: bool = False
    ) -> None:
        """Reconcile until `stop` is set. What cannot be done now is told, and tried again.

        `told` is called with the name of each pass that has ended, and its report. With `cold_at_once` it begins with a
        scan of everything, also if none is due. Raises `Unavailable` if not even a sign of life can be stored.
        """
        async with self.signs_of_life():
            loops = [self._steady_loop(stop, told), self._cold_loop(stop, told, is_due=cold_at_once)]
            if self.events is not None:
                loops.append(self._event_loop(self.events, stop, told))
            await asyncio.gather(*loops)

    @asynccontextmanager
    async def signs_of_life(self) -> AsyncIterator[None]:
        """Give a sign of life now, and regularly, unless nothing is to be written. Raises `Unavailable`."""
        if self.is_dry_run:
            yield
            return
        await self.records.beat()
        beating = asyncio.ensure_future(self._beat_for_ever())
        try:
            yield
        finally:
            beating.cancel()
            await asyncio.gather(beating, return_exceptions=True)

    async def _beat_for_ever(self) -> None:
        while True:
            await self.clock.sleep(self.settings.heartbeat_seconds)
            try:
                await self.records.beat()
            except LakeheadError as error:
                LOG.warning("The reconciler's sign of life was not stored, and is tried again: %s", error)

    async def _steady_loop(self, stop: asyncio.Event, told: Callable[[str, ReconcileReport], None]) -> None:
        while not stop.is_set():
            await self._try("The pass over the newest hours", "steady", self.pass_once, told)
            await self._pause(stop)

    async def _cold_loop(
        self, stop: asyncio.Event, told: Callable[[str, ReconcileReport], None], *, is_due: bool
    ) -> None:
        while not stop.is_set():
            try:
                is_due = is_due or await self.is_cold_scan_due()
            except LakeheadError as error:
                LOG.warning("Whether a scan of everything is due cannot be told: %s", error)
            if is_due and await self._try("The scan of everything", "cold", self.cold_scan, told):
                is_due = False
            await self._pause(stop)

    async def _event_loop(
        self, events: AcceptedEvents, stop: asyncio.Event, told: Callable[[str, ReconcileReport], None]
    ) -> None:
        while not stop.is_set():
            if not await self._try("Events", "events", lambda: self.take_events(events), told):
                await self._pause(stop)

    async def take_events(self, events: AcceptedEvents) -> ReconcileReport:
        """Look at what some events name at once, and acknowledge them after that. Raises `Unavailable`."""
        with self._reporting("events") as report:
            received = await events.receive()
            named = dict.fromkeys(
                identity for each in received for key in each.keys if (identity := keys.parse_accepted(key))
            )
            batches, at_once = self.steady.batches, self.settings.at_once
            looked = await reconcile_all(batches, list(named), report, at_once=at_once)
            by_identity = dict(zip(named, looked, strict=True))
            await self.steady.note(looked, UtcHour.of(self.clock.now_ns()), report)
            done = [
                each
                for each in received
                if all(by_identity[identity] is not None for key in each.keys if (identity := keys.parse_accepted(key)))
            ]
            if done and not self.is_dry_run:
                await events.acknowledge(done)
        return report

    async def _try(
        self,
        what: str,
        name: str,
        work: Callable[[], Awaitable[ReconcileReport]],
        told: Callable[[str, ReconcileReport], None],
    ) -> bool:
        try:
            told(name, await work())
        except LakeheadError as error:
            LOG.warning("%s was not finished, and is tried again: %s", what, error)
            return False
        except Exception:
            LOG.exception("%s failed for a reason that is not expected, and is tried again.", what)
            return False
        return True

    async def _pause(self, stop: asyncio.Event) -> None:
        stopping = asyncio.ensure_future(stop.wait())
        pause = asyncio.ensure_future(self.clock.sleep(self.settings.pass_seconds))
        try:
            await asyncio.wait((stopping, pause), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (stopping, pause):
                task.cancel()
            await asyncio.gather(stopping, pause, return_exceptions=True)

    @contextmanager
    def _reporting(self, name: str) -> Iterator[ReconcileReport]:
        """A report that is shown while its pass is under way, and counted for good when it has ended."""
        report = ReconcileReport()
        self.current[name] = report
        try:
            yield report
        finally:
            del self.current[name]
            self.totals.count(report)
