"""The landing protocol: fence, plan, stage, audit, publish, settle.

Rows and progress must commit together. Iceberg's commit is atomic and nothing else is, so the snapshot is the truth and
the state is an index of it, repaired from it here. A crash leaves rows that nobody published, or a published snapshot
that nobody settled; the next fence finds the second, and maintenance removes the first.

The steps are coroutines, so that the simulator can run them in every order; on Spark they run one at a time in the
thread of their table.
"""

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, replace
from typing import Generic

from lakehead.clock import Clock
from lakehead.errors import OutcomeUnknown, Unavailable
from lakehead.ids import Random
from lakehead.lake.landing import NOWHERE, Fence, Head, Landing, Pointer, Reached, Unit, token_of
from lakehead.lake.ports import HistoryBroken, Ledger, Moved, Progress, Rows, Staged, Stager, Table, Turns
from lakehead.storage.backoff import Backoff

Audit = Callable[[Staged[Rows]], None]
"""Raises `AuditFailed` where rows must not be published; main is then untouched."""

Reaching = Callable[[], Reached]
"""Asked after each fence, when the state knows all that has landed: how far the table will be with these units. It
raises where they must not land on what is there, and nothing is then published."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lander(Generic[Rows]):
    """Brings units of work to one table, each exactly once, whoever else is landing."""

    pipeline: str
    table: Table[Rows]
    progress: Progress
    ledger: Ledger
    stager: Stager[Rows]
    audits: Sequence[Audit[Rows]] = ()
    clock: Clock
    random: Random
    backoff: Backoff
    turns: Turns | None = None
    """For landings that have to be done all over when others are faster, as merges: they wait for their turn, and then
    others wait for them. Default: none, which suits appends."""

    async def land(self, units: Sequence[Unit], *, reached: Reached | Reaching = NOWHERE) -> Landing | None:
        """Land what of these units has not landed. On return, all that we hold the lease of are in the table.

        Returns the landing that was published here, or None where nothing was left to do: also where the answer to our
        own commit was lost and somebody else has settled it since. Raises `HistoryBroken` or
        `UnitsGone` where an operator must decide, `AuditFailed`, and `Unavailable` when others were faster each time.
        """
        async with AsyncExitStack() as turn:
            if self.turns is not None:
                with suppress(Unavailable):  # Whoever has it for so long may have died: we go on without.
                    await turn.enter_async_context(self.turns.at(self.table.uuid, self.pipeline))
            return await self._land(units, reached)

    async def _land(self, units: Sequence[Unit], reached: Reached | Reaching) -> Landing | None:
        staged: Staged[Rows] | None = None
        for pause in self.backoff.pauses(self.random):
            if pause:
                await self.clock.sleep(pause)
            fence = await self.fence()
            if staged is not None and staged.landing.token in fence.settled:
                return staged.landing  # Published after all, though nobody had told us.
            shares = await self.progress.plan(self.table.uuid, at=fence.head.snapshot, units=units)
            if shares is None:
                continue
            if not shares:
                return None
            # Whatever lands after this look moves main, and then nothing of ours is published.
            reach = reached() if callable(reached) else reached
            wanted = tuple(shares), reach
            reusable = staged is not None and self.stager.still_good(staged, fence.head)
            try:
                if staged is None or not reusable or (staged.landing.shares, staged.landing.reached) != wanted:
                    token = token_of(self.pipeline, self.table.uuid, [share.unit for share in shares])
                    staged = await self.stager.stage(shares, token=token, reached=reach, fence=fence)
                staged = replace(staged, landing=replace(staged.landing, before=fence.last_landing))
                for audit in self.audits:
                    audit(staged)
                await self.table.publish(staged, fence.head)
            except (Moved, OutcomeUnknown):
                continue  # The next fence finds our landing if it was published, and the plan then leaves it out.
            await self.fence()
            return staged.landing
        raise Unavailable(
            f"Other writers were faster than {self.pipeline} in {self.backoff.attempts} tries to publish to table "
            f"{self.table.uuid}, or its catalog did not answer. Run it again: what was published after all is found."
        )

    async def fence(self) -> Fence:
        """Settle every landing up to main's head, whoever published it, and return where the table stands."""
        return await fence(self.table, self.progress, self.ledger)


async def fence(table: Table[Rows], progress: Progress, ledger: Ledger) -> Fence:
    """Settle every landing up to main's head, whoever published it, and return where the table stands.

    Raises `HistoryBroken` where the head does not lead back to what was settled.
    """
    broken_at: tuple[Pointer, Head] | None = None
    while True:
        # The pointer first: read after the head, it might already be past it.
        pointer = await progress.pointer(table.uuid)
        head = await table.head()
        if head.snapshot == pointer.snapshot:
            return Fence(head, pointer.last_landing)
        try:
            snapshots = await table.history(pointer.snapshot, head.snapshot)
        except HistoryBroken:
            if broken_at == (pointer, head):
                raise
            broken_at = pointer, head  # Both may have moved between our two reads: look once more.
            continue
        landings = [snapshot for snapshot in snapshots if snapshot.landing is not None]
        for snapshot in landings:
            await ledger.record(table.uuid, snapshot)
        to = Pointer(head.snapshot, landings[-1].id if landings else pointer.last_landing)
        if await progress.settle(table.uuid, seen=pointer, to=to, snapshots=snapshots):
            tokens = frozenset(snapshot.landing.token for snapshot in landings if snapshot.landing)
            return Fence(head, to.last_landing, tokens)
