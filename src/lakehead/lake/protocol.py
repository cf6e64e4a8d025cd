"""The landing protocol: fence, plan, stage, audit, publish, settle.

Rows and progress must commit together. Only Iceberg's commit is atomic, so the snapshot is the source of truth and the
state database is an index of it, which the protocol repairs from the snapshots. A crash leaves either staged rows that
were not published, which maintenance removes, or a published snapshot that was not settled, which the next fence finds.

The steps are coroutines so that the simulator can interleave them in every order; on Spark they run one at a time in
the thread of their table.
"""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import Generic, TypeVar

from lakehead.clock import Clock
from lakehead.errors import LakeheadError, OutcomeUnknown, Unavailable
from lakehead.ids import Random
from lakehead.lake.landing import (
    ANY_WATERMARK,
    NO_WATERMARK,
    AnyWatermark,
    Fence,
    Head,
    NewWatermark,
    Pointer,
    Unit,
    UnitRemainder,
    chained,
    token_of,
)
from lakehead.lake.ports import (
    HistoryBroken,
    Ledger,
    Moved,
    Overtaken,
    Progress,
    Rows,
    Staged,
    Stager,
    Table,
    TableLeases,
)
from lakehead.retry import Backoff, TimedBackoff
from lakehead.state.model import Watermark

T = TypeVar("T")

Audit = Callable[[Staged[Rows]], Awaitable[None] | None]
"""Raises `AuditFailed` if the rows must not be published; main is then left unchanged."""

VERIFY_STAGED_AFTER = timedelta(hours=3)
"""Other tools that remove orphan files keep those that are younger than a day or several days."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lander(Generic[Rows]):
    """Lands units of work in one table, each exactly once, also while other writers land in it."""

    pipeline: str
    table: Table[Rows]
    progress: Progress
    ledger: Ledger
    stager: Stager[Rows]
    audits: Sequence[Audit[Rows]] = ()
    clock: Clock
    random: Random
    backoff: Backoff
    outage: TimedBackoff = field(default_factory=TimedBackoff)
    """How long to retry a catalog, store or state database that does not answer before giving up the staged rows."""

    verify_staged_after: timedelta = VERIFY_STAGED_AFTER
    """Staged files older than this are checked for existence before they are published, because another tool's removal
    of orphan files may have deleted them. If one is missing, the rows are staged again."""

    table_leases: TableLeases | None = None
    """An advisory lease on the table, for landings that must start over if another commit comes first, such as merges:
    they wait for each other. Default: none, which suits appends."""

    waiting: Callable[[str], None] = lambda _: None
    """Called with a short reason whenever the landing is delayed: what it waits for, or why it starts over."""

    async def land(
        self,
        units: Sequence[Unit],
        *,
        new_watermark: NewWatermark = NO_WATERMARK,
        expected: Watermark | AnyWatermark | None = ANY_WATERMARK,
    ) -> Staged[Rows] | None:
        """Land the units that have not landed. On return, every unit that we hold the lease of is in the table, except
        those that the stager has left out, or of which it has staged only a part.

        `new_watermark` is the table's watermark after these units. `expected` is the watermark it must have before
        them; if it has another one, nothing is published and `Overtaken` is raised.

        Returns what this call published, or None if nothing was left to land. That includes the case where the response
        to our own commit was lost and another writer has settled it since. Raises `HistoryBroken` or `UnitsGone` if an
        operator must decide, `AuditFailed`, and `Unavailable` or `OutcomeUnknown` if other writers committed first at
        every attempt or a service did not answer for too long. Calling it again is safe: it finds what was published.
        """
        async with AsyncExitStack() as leases:
            if self.table_leases is not None:
                with suppress(Unavailable):  # A holder that keeps it this long may be dead, so we go on without it.
                    await leases.enter_async_context(self.table_leases.at(self.table.uuid, self.pipeline))
            attempt = _Attempt(self)
            try:
                return await attempt.land(units, new_watermark, expected)
            except Exception:
                await attempt.discard()
                raise

    async def fence(self, head: Head | None = None) -> Fence:
        """Settle every landing up to main's head, whichever writer published it: see the function `fence`."""
        return await fence(self.table, self.progress, self.ledger, head)


class _Attempt(Generic[Rows]):
    """One call of `land`: what it has staged so far, and how often it was delayed."""

    def __init__(self, lander: Lander[Rows]) -> None:
        self._lander = lander
        self._conflicts = lander.backoff.pauses(lander.random)
        self._tries = 1
        """How many heads of the table it was tried at, including the current one."""
        self._unanswered: Iterator[float] | None = None
        """The remaining pauses since commits stopped being answered; None while they are answered."""
        self._staged: Staged[Rows] | None = None
        self._staged_for: tuple[UnitRemainder, ...] = ()
        """What was planned of the units that are staged: a stager may land only a part of it."""
        self._audited_at: Head | None = None
        self._staging_began = 0.0, 0
        """When staging began: monotonic seconds, and wall-clock nanoseconds."""

    async def land(
        self, units: Sequence[Unit], new_watermark: NewWatermark, expected: Watermark | AnyWatermark | None
    ) -> Staged[Rows] | None:
        lander, table = self._lander, self._lander.table
        pause = next(self._conflicts)
        while True:
            if pause:
                await lander.clock.sleep(pause)
            fence = await self._answered(lander.fence)
            if self._staged is not None and self._staged.landing.token in fence.settled:
                staged = self._staged
                await self.discard()  # The same units are published, but another writer may have staged those rows.
                return staged  # It was published, although the response was lost.
            planning = partial(lander.progress.plan, table.uuid, at=fence.head.snapshot, units=units)
            remainders = await self._answered(planning)
            if remainders is None:
                pause = self._after_conflict()
                continue
            if not remainders:
                await self.discard()
                return None
            await self._require(expected)
            published: Head | LakeheadError
            try:
                staged = await self._stage(tuple(remainders), new_watermark, fence)
                if left_out := {each.unit for each in remainders} - {each.unit for each in staged.landing.remainders}:
                    # Records that those units shared with others remain for the others, so they are planned again.
                    units = [unit for unit in units if unit not in left_out]
                    pause = 0.0
                    continue
                await self._audit(staged, fence.head)
                published = await self._publish(staged, fence.head)
            except (Moved, OutcomeUnknown) as error:  # staging a merge also makes a commit
                published = error
            if isinstance(published, Head):
                self._staged = None
                await self._answered(partial(lander.fence, published))
                return staged
            # If our landing was published after all, the next fence finds it and the plan leaves it out.
            pause = self._after_conflict() if isinstance(published, Moved) else self._after_no_answer(published)

    async def _require(self, expected: Watermark | AnyWatermark | None) -> None:
        """Raise `Overtaken` if the table has another watermark. One that moves later is seen when we publish."""
        if expected is ANY_WATERMARK:
            return
        lander = self._lander
        if await self._answered(partial(lander.progress.watermark, lander.table.uuid)) != expected:
            raise Overtaken("Another run has advanced the table's watermark. Nothing was published.")

    async def discard(self) -> None:
        """Remove what was staged and not published, if leaving it would disturb other writers."""
        staged, self._staged, self._audited_at = self._staged, None, None
        if staged is not None:
            await self._lander.stager.discard(staged)

    async def _stage(
        self, remainders: tuple[UnitRemainder, ...], new_watermark: NewWatermark, fence: Fence
    ) -> Staged[Rows]:
        """Stage the remainders; rows that are staged already are reused if they may be published at this head."""
        lander, staged = self._lander, self._staged
        if staged is not None and (self._staged_for, staged.landing.new_watermark) != (remainders, new_watermark):
            await self.discard()
        elif staged is not None and not lander.stager.is_publishable_at(staged, fence.head):
            lander.waiting(
                "another writer has committed to the table: staging again, "
                f"attempt {self._tries} of {lander.backoff.attempts}"
            )
            await self.discard()
        if self._staged is None:
            token = self._token(remainders)
            self._staging_began = lander.clock.monotonic(), lander.clock.now_ns()
            self._staged = await lander.stager.stage(remainders, token=token, new_watermark=new_watermark, fence=fence)
        landing = self._staged.landing
        kept = {each.unit for each in landing.remainders}
        self._staged_for = tuple(each for each in remainders if each.unit in kept)
        # A part has another token than its unit: whoever finds it published must not take the unit for complete.
        landing = replace(landing, token=self._token(landing.remainders), before=fence.last_landing)
        self._staged = replace(self._staged, landing=landing)
        return self._staged

    def _token(self, remainders: Sequence[UnitRemainder]) -> str:
        return token_of(self._lander.pipeline, self._lander.table.uuid, [each.recorded for each in remainders])

    async def _audit(self, staged: Staged[Rows], at: Head) -> None:
        """Audit what is staged, once for each head: a commit retried at the same head is not audited again."""
        if self._audited_at != at:
            for audit in self._lander.audits:
                if (unfinished := audit(staged)) is not None:
                    await unfinished
            self._audited_at = at

    async def _publish(self, staged: Staged[Rows], at: Head) -> Head | LakeheadError:
        """Publish what is staged. Returns the table's new head, or the error that prevented it."""
        lander = self._lander
        if self._age() >= lander.verify_staged_after and not await self._answered(
            partial(lander.stager.is_still_stored, staged)
        ):
            lander.waiting("files staged for the table were removed by another tool: staging them again")
            await self.discard()
            return Moved("Staged files are missing.")
        try:
            return await lander.table.publish(staged, at)
        except (Moved, OutcomeUnknown, Unavailable) as error:
            return error

    def _age(self) -> timedelta:
        """The greatest age that the staged rows may have. After a suspend only the wall clock shows it."""
        monotonic, wall_ns = self._staging_began
        clock = self._lander.clock
        return timedelta(seconds=max(clock.monotonic() - monotonic, (clock.now_ns() - wall_ns) / 1e9))

    async def _answered(self, call: Callable[[], Awaitable[T]]) -> T:
        """Return what an idempotent call returns, retrying while the service does not answer."""
        pauses = self._lander.outage.pauses(self._lander.random, self._lander.clock)
        reported = False
        while True:
            try:
                return await call()
            except (Unavailable, OutcomeUnknown) as error:
                pause = next(pauses, None)
                if pause is None:
                    raise
                if not reported:
                    self._lander.waiting(str(error))
                reported = True
            await self._lander.clock.sleep(pause)

    def _after_conflict(self) -> float:
        """The pause after another writer committed first. Raises `Unavailable` after the last attempt."""
        self._unanswered = None  # the catalog has answered
        pause = next(self._conflicts, None)
        self._tries += 1
        if pause is None:
            raise Unavailable(
                f"Other writers committed to table {self._lander.table.uuid} during each of "
                f"{self._lander.backoff.attempts} attempts of {self._lander.pipeline} to publish to it. Nothing was "
                "published. Run it again when fewer writers use the table."
            )
        return pause

    def _after_no_answer(self, error: LakeheadError) -> float:
        """The pause after a commit that failed, or whose outcome is unknown. Raises `Unavailable` after the last."""
        if self._unanswered is None:
            self._unanswered = self._lander.outage.pauses(self._lander.random, self._lander.clock)
            self._lander.waiting(str(error))
        pause = next(self._unanswered, None)
        if pause is None:
            raise Unavailable(
                f"Publishing to table {self._lander.table.uuid} was tried for {self._lander.outage.seconds:.0f} s "
                f"without success. Last error: {error} Run it again; anything that was published will be found."
            ) from error
        return pause


async def fence(table: Table[Rows], progress: Progress, ledger: Ledger, head: Head | None = None) -> Fence:
    """Settle every landing up to main's head, whichever writer published it, and return that head.

    Given a `head` that was read a moment ago, everything up to it is settled, usually without reading the table. Raises
    `HistoryBroken` if the head does not lead back to the last settled snapshot.
    """
    broken_at: tuple[Pointer, Head] | None = None
    while True:
        # The pointer first: if it were read after the head, it could already be past it.
        pointer = await progress.pointer(table.uuid)
        head = head or await table.head()
        if head.snapshot == pointer.snapshot:
            return Fence(head, pointer.last_landing)
        try:
            snapshots = chained(await table.history(pointer.snapshot, head.snapshot), pointer.last_landing)
        except HistoryBroken:
            if broken_at == (pointer, head):
                raise
            # Both may have moved between our two reads, or another writer has settled more than we saw: read again.
            broken_at, head = (pointer, head), None
            continue
        landings = [snapshot for snapshot in snapshots if snapshot.landing is not None]
        for snapshot in landings:
            await ledger.record(table.uuid, snapshot)
        to = Pointer(head.snapshot, landings[-1].id if landings else pointer.last_landing)
        if await progress.settle(table.uuid, seen=pointer, to=to, snapshots=snapshots):
            tokens = frozenset(snapshot.landing.token for snapshot in landings if snapshot.landing)
            return Fence(head, to.last_landing, tokens)
        head = None
