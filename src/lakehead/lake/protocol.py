"""The landing protocol: fence, plan, stage, audit, publish, settle.

Rows and progress must commit together. Iceberg's commit is atomic and nothing else is, so the snapshot is the truth and
the state is an index of it, repaired from it here. A crash leaves rows that nobody published, or a published snapshot
that nobody settled; the next fence finds the second, and maintenance removes the first.

The steps are coroutines, so that the simulator can run them in every order; on Spark they run one at a time in the
thread of their table.
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
from lakehead.lake.landing import NOWHERE, Fence, Head, Landing, Pointer, Reached, Share, Unit, chained, token_of
from lakehead.lake.ports import HistoryBroken, Ledger, Moved, Progress, Rows, Staged, Stager, Table, Turns
from lakehead.storage.backoff import Backoff, TimedBackoff

T = TypeVar("T")

Audit = Callable[[Staged[Rows]], None]
"""Raises `AuditFailed` where rows must not be published; main is then untouched."""

Reaching = Callable[[], Reached]
"""Asked after each fence, when the state knows all that has landed: how far the table will be with these units. It
raises where they must not land on what is there, and nothing is then published."""


LOOK_AFTER = timedelta(hours=3)
"""Clean-ups of files that no snapshot has spare those that are younger than a day, or than days."""


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
    outage: TimedBackoff = field(default_factory=TimedBackoff)
    """How long a catalog, a store or a state that does not answer is waited for before staged rows are given up."""

    look_after: timedelta = LOOK_AFTER
    """The age at which staged rows are looked for before they are published: somebody else's clean-up of files that no
    snapshot has may have removed them. If one is gone, they are staged again."""

    turns: Turns | None = None
    """For landings that have to be done all over when others are faster, as merges: they wait for their turn, and then
    others wait for them. Default: none, which suits appends."""

    waiting: Callable[[str], None] = lambda _: None
    """Told in a few words whenever the landing is held up: who is waited for, or why it is done again."""

    async def land(self, units: Sequence[Unit], *, reached: Reached | Reaching = NOWHERE) -> Landing | None:
        """Land what of these units has not landed. On return, all that we hold the lease of are in the table.

        Returns the landing that was published here, or None where nothing was left to do: also where the answer to our
        own commit was lost and somebody else has settled it since. Raises `HistoryBroken` or
        `UnitsGone` where an operator must decide, `AuditFailed`, and `Unavailable` or `OutcomeUnknown` when others were
        faster each time or somebody did not answer for too long: call it again, it finds what was published after all.
        """
        async with AsyncExitStack() as turn:
            if self.turns is not None:
                with suppress(Unavailable):  # Whoever has it for so long may have died: we go on without.
                    await turn.enter_async_context(self.turns.at(self.table.uuid, self.pipeline))
            attempt = _Attempt(self)
            try:
                return await attempt.land(units, reached)
            except Exception:
                await attempt.discard()
                raise

    async def fence(self) -> Fence:
        """Settle every landing up to main's head, whoever published it, and return where the table stands."""
        return await fence(self.table, self.progress, self.ledger)


class _Attempt(Generic[Rows]):
    """One call of `land`: what it has staged so far, and how often it was held up."""

    def __init__(self, lander: Lander[Rows]) -> None:
        self._lander = lander
        self._conflicts = lander.backoff.pauses(lander.random)
        self._tries = 1
        """How often it was tried at a head of the table, the present one included."""
        self._silence: Iterator[float] | None = None
        """The pauses since commits are not answered; None while they are."""
        self._staged: Staged[Rows] | None = None
        self._audited_at: Head | None = None
        self._staging_began = 0.0, 0
        """By the monotonic clock in seconds, and by the wall clock in nanoseconds."""

    async def land(self, units: Sequence[Unit], reached: Reached | Reaching) -> Landing | None:
        lander, table = self._lander, self._lander.table
        pause = next(self._conflicts)
        while True:
            if pause:
                await lander.clock.sleep(pause)
            fence = await self._answered(lander.fence)
            if self._staged is not None and self._staged.landing.token in fence.settled:
                landing = self._staged.landing
                await self.discard()  # What was published is the same units, but may have been staged by others.
                return landing  # Published after all, though nobody had told us.
            planning = partial(lander.progress.plan, table.uuid, at=fence.head.snapshot, units=units)
            shares = await self._answered(planning)
            if shares is None:
                pause = self._after_conflict()
                continue
            if not shares:
                await self.discard()
                return None
            # Whatever lands after this look moves main, and then nothing of ours is published.
            reach = reached() if callable(reached) else reached
            try:
                staged = await self._stage(tuple(shares), reach, fence)
                self._audit(staged, fence.head)
                trouble = await self._publish(staged, fence.head)
            except (Moved, OutcomeUnknown) as error:  # staging a merge makes a commit too
                trouble = error
            if trouble is None:
                self._staged = None
                await self._answered(lander.fence)
                return staged.landing
            # The next fence finds our landing if it was published after all, and the plan then leaves it out.
            pause = self._after_conflict() if isinstance(trouble, Moved) else self._after_silence(trouble)

    async def discard(self) -> None:
        """Remove what was staged and is not published, where it would be in somebody's way."""
        staged, self._staged, self._audited_at = self._staged, None, None
        if staged is not None:
            await self._lander.stager.discard(staged)

    async def _stage(self, shares: tuple[Share, ...], reach: Reached, fence: Fence) -> Staged[Rows]:
        """The shares as staged rows: those that we have, if they may be published at this head."""
        lander, staged = self._lander, self._staged
        if staged is not None and (staged.landing.shares, staged.landing.reached) != (shares, reach):
            await self.discard()
        elif staged is not None and not lander.stager.still_good(staged, fence.head):
            lander.waiting(
                "somebody else has committed to the table meanwhile: what was staged for it is done again, "
                f"try {self._tries} of {lander.backoff.attempts}"
            )
            await self.discard()
        if self._staged is None:
            self._staging_began = lander.clock.monotonic(), lander.clock.now_ns()
            token = token_of(lander.pipeline, lander.table.uuid, [share.unit for share in shares])
            self._staged = await lander.stager.stage(shares, token=token, reached=reach, fence=fence)
        self._staged = replace(self._staged, landing=replace(self._staged.landing, before=fence.last_landing))
        return self._staged

    def _audit(self, staged: Staged[Rows], at: Head) -> None:
        """Audit what is staged: once where it is published, however often that is not answered."""
        if self._audited_at != at:
            for audit in self._lander.audits:
                audit(staged)
            self._audited_at = at

    async def _publish(self, staged: Staged[Rows], at: Head) -> LakeheadError | None:
        """Publish what is staged. What was in the way, or None if nothing was."""
        lander = self._lander
        if self._age() >= lander.look_after and not await self._answered(partial(lander.stager.is_there, staged)):
            lander.waiting("somebody else has removed files that were staged for the table: they are staged again")
            await self.discard()
            return Moved("What was staged is gone.")
        try:
            await lander.table.publish(staged, at)
        except (Moved, OutcomeUnknown, Unavailable) as error:
            return error
        return None

    def _age(self) -> timedelta:
        """How old the oldest of what is staged may be: a machine that slept knows it by its wall clock alone."""
        monotonic, wall_ns = self._staging_began
        clock = self._lander.clock
        return timedelta(seconds=max(clock.monotonic() - monotonic, (clock.now_ns() - wall_ns) / 1e9))

    async def _answered(self, ask: Callable[[], Awaitable[T]]) -> T:
        """What is answered to something that may be asked twice. Whoever does not answer is waited for."""
        pauses = self._lander.outage.pauses(self._lander.random, self._lander.clock)
        waits = False
        while True:
            try:
                return await ask()
            except (Unavailable, OutcomeUnknown) as error:
                pause = next(pauses, None)
                if pause is None:
                    raise
                if not waits:
                    self._lander.waiting(str(error))
                waits = True
            await self._lander.clock.sleep(pause)

    def _after_conflict(self) -> float:
        """The pause after somebody else was faster."""
        self._silence = None  # somebody has answered
        pause = next(self._conflicts, None)
        self._tries += 1
        if pause is None:
            raise Unavailable(
                f"Others committed to table {self._lander.table.uuid} during each of {self._lander.backoff.attempts} "
                f"tries of {self._lander.pipeline} to publish to it. Nothing was published. Run it again when fewer "
                "write to it."
            )
        return pause

    def _after_silence(self, error: LakeheadError) -> float:
        """The pause after a commit that was not made, or of which nobody knows whether it was."""
        if self._silence is None:
            self._silence = self._lander.outage.pauses(self._lander.random, self._lander.clock)
            self._lander.waiting(str(error))
        pause = next(self._silence, None)
        if pause is None:
            raise Unavailable(
                f"Publishing to table {self._lander.table.uuid} was tried for {self._lander.outage.seconds:.0f} s "
                f"without an answer. The last one was: {error} Run it again: what was published after all is found."
            ) from error
        return pause


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
            snapshots = chained(await table.history(pointer.snapshot, head.snapshot), pointer.last_landing)
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
