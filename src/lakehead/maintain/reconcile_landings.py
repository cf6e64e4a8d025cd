"""Accepted batches that nobody has queued for landing: found, and queued. What is queued twice lands once.

The order of the looks is what keeps a batch from being queued again for nothing. A batch leaves the queue only after it
has landed, was given up or dropped, so whoever reads the queue first and all that afterwards sees every batch in one of
the two. The other way round a batch that lands in between would be in neither.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from lakehead.accept.after_acceptance import LandingQueue
from lakehead.accept.batch_kind import batch_kind
from lakehead.clock import Clock
from lakehead.errors import LakeheadError, Misconfigured, Unavailable
from lakehead.lake.dead_letters import DeadLetters
from lakehead.maintain.landed_batches import LandedBatches, LandedRanges
from lakehead.maintain.reconcile_report import ActionKind, ProblemKind, ReconcileReport
from lakehead.maintain.reconcile_settings import FAST_CLOCKS_SECONDS
from lakehead.storage.port import Store
from lakehead.wire import acceptance_keys as keys
from lakehead.wire.acceptance_records import IdentityManifest
from lakehead.wire.batch_identity import BatchIdentity
from lakehead.wire.dead_letters import letter_key
from lakehead.wire.errors import Unreadable
from lakehead.wire.record_schemas import FrameKind

AT_ONCE = 16


class LandingState(Enum):
    """How far a batch is on its way into its table."""

    SETTLED = "settled"
    """It has landed, was given up or discarded, or no table takes it: there is nothing left to do."""

    QUEUED = "queued"
    YOUNG = "young"
    """It was accepted a moment ago, and its gateway may be about to queue it."""

    UNKNOWN = "unknown"
    """It could not be found out, or could not be queued: look again."""


@dataclass(frozen=True, slots=True)
class LandingTable:
    """The table in which batches of a kind land."""

    name: str
    uuid: str | None
    """None if no pipeline has created it yet, so that nothing has landed in it."""


class LandingTables(Protocol):
    """Which table takes which kind of batches."""

    async def tables(self) -> Mapping[FrameKind, LandingTable]:
        """Return the tables of configured pipelines. Raises a `LakeheadError` if they cannot be told."""
        ...


class PendingBatches(Protocol):
    """What waits in the landing queue."""

    async def among(self, accepted_keys: Collection[str]) -> frozenset[str]:
        """Return which of these are queued and not acknowledged. Raises a `LakeheadError` if that cannot be told."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingLandings:
    """Queues accepted batches that are neither in their table nor on their way."""

    store: Store
    landed: LandedRanges
    letters: DeadLetters
    tables: LandingTables
    pending: PendingBatches
    queue: LandingQueue
    unit_of: Callable[[str], str]
    """The name of the unit that a batch is for pipelines, by the key of its identity manifest."""

    clock: Clock
    grace_seconds: float
    is_dry_run: bool = False

    async def settle(
        self, manifests: Iterable[IdentityManifest], report: ReconcileReport
    ) -> dict[BatchIdentity, LandingState]:
        """Queue those of some batches that nobody has queued, and return how far each of them is.

        Never raises a `LakeheadError`: what could not be found out is `UNKNOWN`, and in the report.
        """
        found = {manifest.identity: manifest for manifest in manifests}
        looked = dict.fromkeys(found, LandingState.UNKNOWN)
        try:
            await self._settle(found, looked, report)
        except LakeheadError as error:
            report.found(ProblemKind.FAILED, "the landing queue", f"Nothing was queued this time. {error}")
        report.waiting += sum(each is LandingState.QUEUED for each in looked.values())
        return looked

    async def _settle(
        self,
        manifests: Mapping[BatchIdentity, IdentityManifest],
        looked: dict[BatchIdentity, LandingState],
        report: ReconcileReport,
    ) -> None:
        tables = await self.tables.tables()
        by_kind: dict[FrameKind, list[BatchIdentity]] = {}
        for identity, kind in (await self._kinds(manifests.values(), report)).items():
            if kind is not None and kind in tables:
                by_kind.setdefault(kind, []).append(identity)
            else:
                looked[identity] = LandingState.SETTLED
        # What has landed has landed for good: so most batches need no look into the queue.
        missing = await self._not_landed(by_kind, tables, looked)
        now = self.clock.now_ns()
        oldest, newest = now - int(self.grace_seconds * 1e9), now + int(FAST_CLOCKS_SECONDS * 1e9)
        for identity in [each for some in missing.values() for each in some]:
            if oldest < manifests[identity].accepted_at_unix_ns <= newest:
                looked[identity] = LandingState.YOUNG
        old = {
            kind: [each for each in some if looked[each] is not LandingState.YOUNG] for kind, some in missing.items()
        }
        if not any(old.values()):
            return
        # First the queue, then all that takes a batch out of it: see the module.
        accepted = {keys.accepted(each): each for some in old.values() for each in some}
        for key in await self.pending.among(accepted):
            looked[accepted[key]] = LandingState.QUEUED
        left = {kind: [each for each in some if looked[each] is LandingState.UNKNOWN] for kind, some in old.items()}
        left = await self._not_landed(left, tables, looked)
        lost: list[IdentityManifest] = []
        for kind, some in left.items():
            for identity, given_up in (await self._given_up(tables[kind], some, report)).items():
                if given_up is not None:
                    looked[identity] = given_up
                else:
                    lost.append(manifests[identity])
        await self._enqueue(lost, looked, report)

    async def _enqueue(
        self, lost: Sequence[IdentityManifest], looked: dict[BatchIdentity, LandingState], report: ReconcileReport
    ) -> None:
        if lost and not self.is_dry_run:
            await self.queue.put(lost)
        for manifest in lost:
            looked[manifest.identity] = LandingState.QUEUED
            report.did(ActionKind.ENQUEUED, manifest.key)

    async def _not_landed(
        self,
        by_kind: Mapping[FrameKind, Sequence[BatchIdentity]],
        tables: Mapping[FrameKind, LandingTable],
        looked: dict[BatchIdentity, LandingState],
    ) -> dict[FrameKind, list[BatchIdentity]]:
        uuids = {kind: table.uuid for kind, table in tables.items() if table.uuid is not None}
        landed, left = LandedBatches(self.landed, uuids), dict[FrameKind, list[BatchIdentity]]()
        for kind, some in by_kind.items():
            missing = await landed.missing(kind, some) if kind in uuids else dict.fromkeys(some)
            left[kind] = [identity for identity in some if identity in missing]
            looked.update({identity: LandingState.SETTLED for identity in some if identity not in missing})
        return left

    async def _given_up(
        self, table: LandingTable, identities: Sequence[BatchIdentity], report: ReconcileReport
    ) -> dict[BatchIdentity, LandingState | None]:
        """What was decided about batches that have not landed: settled, or queued by a replay; None if nothing was.

        A letter that cannot be read leaves its own batch unknown, and no other.
        """
        limit = asyncio.Semaphore(AT_ONCE)
        if table.uuid is None:
            return dict.fromkeys(identities)
        uuid = table.uuid

        async def one(identity: BatchIdentity) -> LandingState | None:
            async with limit:
                if await self.store.head(keys.discarded(uuid, identity)) is not None:
                    return LandingState.SETTLED
                unit = self.unit_of(keys.accepted(identity))
                try:
                    letter = await self.letters.get(uuid, unit)
                except Unreadable as error:
                    report.found(ProblemKind.UNREADABLE, letter_key(uuid, unit, 0), str(error))
                    return LandingState.UNKNOWN
                if letter is None or (letter.closed is not None and letter.closed.how == "landed"):
                    return None
                # An operator may have replayed it: then it is theirs until it lands or is given up again.
                return LandingState.QUEUED if letter.closed is None and letter.replayed_at else LandingState.SETTLED

        return dict(zip(identities, await asyncio.gather(*map(one, identities)), strict=True))

    async def _kinds(
        self, manifests: Collection[IdentityManifest], report: ReconcileReport
    ) -> dict[BatchIdentity, FrameKind | None]:
        """The kind of each batch, by its manifest, else by its frame; None if neither tells.

        A frame that cannot be read leaves its own batch out, and no other.
        """
        limit = asyncio.Semaphore(AT_ONCE)

        async def one(manifest: IdentityManifest) -> tuple[FrameKind | None] | None:
            async with limit:
                try:
                    return (await batch_kind(manifest, self.store),)
                except (Unavailable, Misconfigured) as error:
                    text = f"What {manifest.raw_blob_key} of {manifest.key} holds cannot be read. {error}"
                    report.found(ProblemKind.OUT_OF_REACH, manifest.key, text)
                    return None

        found = await asyncio.gather(*map(one, manifests))
        return {manifest.identity: kind[0] for manifest, kind in zip(manifests, found, strict=True) if kind is not None}
