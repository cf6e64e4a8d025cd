"""The cold scan: every identity manifest and every frame in quarantine, by their own keys. It needs no index and no
event, may take long, and goes on where it was interrupted.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass, field

import msgspec

from lakehead.accept.accepted_scan import PAGE
from lakehead.errors import Unavailable
from lakehead.maintain.blob_pages import closing
from lakehead.maintain.reconcile_batch import BatchReconciler, LookedAt, Standing, each_retried, reconcile_all
from lakehead.maintain.reconcile_landings import MissingLandings
from lakehead.maintain.reconcile_report import ProblemKind, ReconcileReport
from lakehead.maintain.reconcile_settings import ReconcileSettings
from lakehead.maintain.reconciler_records import ReconcilerRecords
from lakehead.wire import acceptance_keys as keys
from lakehead.wire.acceptance_records import IdentityManifest
from lakehead.wire.key_parts import agent_part
from lakehead.wire.maintenance_records import ColdScan

LOG = logging.getLogger(__name__)

FOLDERS = (keys.ACCEPTED, keys.IDENTITY_CONFLICTS, keys.OVERLAPS)
"""What is scanned, in the order of keys."""

PAGES_PER_LANDING = 10
"""Pages of batches after which it is looked up which of them have landed."""

MOST_FAILED_PAGES = 3
"""Pages in a row of which nothing can be looked at, after which a scan is interrupted."""

SAVE_SECONDS = 10.0
PROGRESS_SECONDS = 30.0


@dataclass(slots=True, kw_only=True)
class ColdScanner:
    """Scans everything, and repairs it."""

    batches: BatchReconciler
    landings: MissingLandings | None
    records: ReconcilerRecords
    settings: ReconcileSettings
    stop: asyncio.Event | None = None
    """Ends a scan after its page, so that the next one goes on there."""

    seconds: float = 0.0
    """How long the last complete scan took."""

    _landing: list[IdentityManifest] = field(default_factory=list)
    _failed_pages: int = 0
    _saved_at: float = 0.0
    _told_at: float = 0.0

    async def scan(self, report: ReconcileReport) -> bool:
        """Scan everything, or go on with the scan that is under way. Returns whether an audit is complete.

        It is not if something could not be read or repaired, or if it was stopped. Raises `Unavailable`.
        """
        dry = self.batches.is_dry_run
        began = self._begin()
        scan = ColdScan(begun_at_unix_ns=0) if dry else await self.records.begin_cold_scan()
        before = scan
        async with closing(self._pages(FOLDERS, scan.last_key)) as pages:
            async for page in pages:
                await self._page(page, report)
                scan = _grown(before, report, last_key=page[-1], seen=scan.seen + len(page))
                now = self.batches.clock.monotonic()
                # Pages that fail are passed over only if the ones after them can be looked at.
                if not self._failed_pages and (self._is_stopped or now - self._saved_at >= SAVE_SECONDS):
                    await self._land(report)  # what is not done must not be skipped
                    if not dry:
                        await self.records.save_cold_scan(_grown(before, report, last_key=page[-1], seen=scan.seen))
                    self._saved_at = now
                if self._is_stopped:
                    return False
        await self._land(report)
        scan = _grown(before, report, last_key=scan.last_key, seen=scan.seen)
        if dry:
            return False
        is_complete = not scan.incomplete
        if is_complete:
            await self.records.complete_audit(scan, report)
        await self.records.end_cold_scan(scan)
        self.seconds = self.batches.clock.monotonic() - began
        return is_complete

    async def scan_agents(self, agents: Sequence[str], report: ReconcileReport) -> None:
        """Scan the batches and the quarantine of some agents. It is no audit, and changes no checkpoint."""
        self._begin()
        for agent in agents:
            folders = [f"{folder}/{agent_part(agent)}" for folder in FOLDERS]
            async with closing(self._pages(folders, "")) as pages:
                async for page in pages:
                    await self._page(page, report)
                    if self._is_stopped:
                        break
        await self._land(report)

    async def scan_listed(self, pages: AsyncIterator[Sequence[str]], report: ReconcileReport) -> None:
        """Look at the batches of keys that a listing made elsewhere has, such as an inventory."""
        self._begin()
        async for page in pages:
            for first in range(0, len(page), PAGE):
                await self._page(page[first : first + PAGE], report)
        await self._land(report)

    async def scan_quarantine(self, report: ReconcileReport) -> None:
        """Look at the quarantine alone."""
        async for page in self._pages(FOLDERS[1:], ""):
            await self._page(page, report)

    def _begin(self) -> float:
        self.batches.hours.forget()
        self._landing.clear()
        self._failed_pages = 0
        self._saved_at = self._told_at = self.batches.clock.monotonic()
        return self._saved_at

    @property
    def _is_stopped(self) -> bool:
        return self.stop is not None and self.stop.is_set()

    async def _pages(self, folders: Sequence[str], last_key: str) -> AsyncGenerator[Sequence[str], None]:
        """Yield keys after one, in pages."""
        for folder in folders:
            if last_key and not last_key.startswith(f"{folder}/") and last_key > f"{folder}/":
                continue  # this folder is done
            after = last_key if last_key.startswith(f"{folder}/") else ""
            listing = self.batches.store.list(folder, start_after=after)
            # All adapters' listings are generators; one that is not exhausted would be closed by a task of asyncio.
            async with closing(listing) as pages:
                async for listed in pages:
                    for first in range(0, len(listed), PAGE):
                        yield [each.key for each in listed[first : first + PAGE]]

    async def _page(self, page: Sequence[str], report: ReconcileReport) -> None:
        identities = [identity for key in page if (identity := keys.parse_accepted(key)) is not None]
        at_once = self.settings.at_once
        looked = await reconcile_all(self.batches, identities, report, at_once=at_once)
        await self._check(looked, report)
        quarantined = [key for key in page if keys.parse_identity_conflict(key) or keys.parse_overlap(key)]
        await each_retried(
            quarantined,
            lambda key: self.batches.reconcile_quarantine(key, report),
            lambda key: key,
            self.batches,
            report,
            at_once=at_once,
        )
        self._landing += [
            each.manifest for each in looked if each and each.standing is Standing.SOUND and each.manifest
        ]
        if len(self._landing) >= PAGES_PER_LANDING * PAGE:
            await self._land(report)
        self._tell(report)

    async def _check(self, looked: Sequence[LookedAt | None], report: ReconcileReport) -> None:
        """Note what was listed and is gone. Raises `Unavailable` if the store does not answer.

        One page of which nothing can be looked at is no such sign: it may be short, and its frames out of reach for
        good, as in an archive. It must not keep the scan from all that comes after it.
        """
        if looked and all(each is None for each in looked):
            self._failed_pages += 1
            if self._failed_pages >= MOST_FAILED_PAGES:
                last = report.problems[-1].text if report.problems else ""
                raise Unavailable(
                    f"The scan is interrupted, and goes on later: none of some pages could be read. {last}"
                )
            await self.batches.store.head(keys.AUTHORITY)  # raises if the store is away
        elif looked:
            self._failed_pages = 0
        for each in looked:
            if each is not None and each.standing is Standing.ABSENT:
                key = keys.accepted(each.identity)
                text = f"{key} was listed, and is gone. Nothing may delete it: check the bucket's policy."
                report.found(ProblemKind.DELETED, key, text)

    async def _land(self, report: ReconcileReport) -> None:
        if self.landings is not None and self._landing:
            await self.landings.settle(self._landing, report)
        self._landing.clear()

    def _tell(self, report: ReconcileReport) -> None:
        now = self.batches.clock.monotonic()
        if now - self._told_at >= PROGRESS_SECONDS:
            self._told_at = now
            LOG.info(
                "Cold scan: %d accepted, %d void, %d in quarantine; %d index entries written, %d problems.",
                *(report.accepted, report.voids, report.quarantined, report.indexed, sum(report.wrong.values())),
            )


def _grown(before: ColdScan, report: ReconcileReport, *, last_key: str, seen: int) -> ColdScan:
    """A scan with what was seen since it was taken up."""
    return msgspec.structs.replace(
        before,
        last_key=last_key,
        seen=seen,
        accepted=before.accepted + report.accepted,
        voids=before.voids + report.voids,
        quarantined=before.quarantined + report.quarantined,
        repaired=before.repaired + report.indexed,
        incomplete=before.incomplete + report.incomplete,
    )
