"""The landing protocol: fence, plan, stage, audit, publish, settle.

Rows and progress must commit together. Iceberg's commit is atomic and nothing else is, so the snapshot is the truth and
the state is an index of it, repaired from it here. A crash leaves rows that nobody published, or a published snapshot
that nobody settled; the next fence finds the second, and maintenance removes the first.

The steps are coroutines, so that the simulator can run them in every order; on Spark they run one at a time in the
thread of their table.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Generic

from lakehead.clock import Clock
from lakehead.errors import OutcomeUnknown, Unavailable
from lakehead.ids import Random
from lakehead.lake.landing import Fence, Head, Pointer, Share, Unit, token_of
from lakehead.lake.ports import HistoryBroken, Ledger, Moved, Progress, Rows, Staged, Stager, Table
from lakehead.storage.backoff import Backoff

Audit = Callable[[Staged[Rows], Sequence[Share]], None]
"""Raises where rows must not be published; main is then untouched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lander(Generic[Rows]):
    """Brings units of work to one table, each exactly once, whoever else is landing."""

    pipeline: str
    table: Table[Rows]
    progress: Progress
    ledger: Ledger
    stager: Stager[Rows]
    audit: Audit[Rows]
    clock: Clock
    random: Random
    backoff: Backoff

    async def land(self, units: Sequence[Unit]) -> None:
        """Land what of these units has not landed. On return, all that we hold the lease of are in the table.

        Raises `HistoryBroken` where an operator must decide, whatever the audit raises, and `Unavailable` when others
        were faster each time.
        """
        staged: Staged[Rows] | None = None
        for pause in self.backoff.pauses(self.random):
            if pause:
                await self.clock.sleep(pause)
            fence = await self.fence()
            shares = await self.progress.plan(self.table.uuid, at=fence.head.snapshot, units=units)
            if shares is None:
                continue
            if not shares:
                return
            # Rows staged for an earlier head are still good if they are the same and no sweep has come since.
            if staged is None or staged.landing.shares != tuple(shares) or staged.at.sweep != fence.head.sweep:
                token = token_of(self.pipeline, self.table.uuid, [share.unit for share in shares])
                staged = await self.stager.stage(shares, token=token, at=fence.head)
            staged = replace(staged, landing=replace(staged.landing, before=fence.last_landing))
            self.audit(staged, shares)
            try:
                await self.table.publish(staged, fence.head)
            except (Moved, OutcomeUnknown):
                continue  # The next fence finds our landing if it was published, and the plan then leaves it out.
            await self.fence()
            return
        raise Unavailable(
            f"Other writers were faster than {self.pipeline} in {self.backoff.attempts} tries to publish to table "
            f"{self.table.uuid}. Nothing of this landing is published. Try again later."
        )

    async def fence(self) -> Fence:
        """Settle every landing up to main's head, whoever published it, and return where the table stands."""
        broken_at: tuple[Pointer, Head] | None = None
        while True:
            # The pointer first: read after the head, it might already be past it.
            pointer = await self.progress.pointer(self.table.uuid)
            head = await self.table.head()
            if head.snapshot == pointer.snapshot:
                return Fence(head, pointer.last_landing)
            try:
                snapshots = await self.table.history(pointer.snapshot, head.snapshot)
            except HistoryBroken:
                if broken_at == (pointer, head):
                    raise
                broken_at = pointer, head  # Both may have moved between our two reads: look once more.
                continue
            last = pointer.last_landing
            for snapshot in snapshots:
                if snapshot.landing is not None:
                    await self.ledger.record(self.table.uuid, snapshot)
                    last = snapshot.id
            to = Pointer(head.snapshot, last)
            if await self.progress.settle(self.table.uuid, seen=pointer, to=to, snapshots=snapshots):
                return Fence(head, last)
