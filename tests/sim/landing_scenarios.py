"""Landings under everything that happens to them; and each shorter protocol, which must be caught."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta

from lakehead.errors import OutcomeUnknown, Unavailable
from lakehead.lake.landing import (
    ANY_WATERMARK,
    NO_WATERMARK,
    AnyWatermark,
    Fence,
    Head,
    NewWatermark,
    Snapshot,
    SnapshotId,
    Unit,
    UnitRemainder,
)
from lakehead.lake.landing import Pointer as PointerTo
from lakehead.lake.ports import HistoryBroken, Moved, Staged
from lakehead.lake.protocol import VERIFY_STAGED_AFTER, Lander
from lakehead.retry import Backoff
from lakehead.state.model import Watermark
from tests.sim.landing_model import (
    Database,
    Files,
    Lake,
    ModelLedger,
    ModelProgress,
    ModelStager,
    ModelTable,
    Row,
    Wire,
    backup,
    clean_up,
    expire_ours,
    rebuild,
    replace_table,
    sweep,
    unlanded,
)
from tests.support.simulation import Process, Scenario, Violation, World

WORKERS = ("a", "b", "c")
UNITS = tuple(Unit(name) for name in ("0-3", "3-5", "4-7", "6-9", "9-12", "20-22", "22-24", "24-26"))
"""Some overlap, as uploads with other boundaries do: their records must still land once. The last are files."""

CLEANED_AFTER = 1.0
"""The age in seconds at which somebody else's clean-up takes a file for nobody's."""


@dataclass(frozen=True)
class Variant:
    """The protocol as it is, or with one of its rules left out."""

    lander: type[Lander[Files]] = Lander
    progress: type[ModelProgress] = ModelProgress
    table: type[ModelTable] = ModelTable
    sweep_fences: bool = True
    rebuild_records: bool = True
    verify_staged_after: timedelta = VERIFY_STAGED_AFTER
    rebuild_checks: bool = True
    unreadable: bool = False
    """Whether some units cannot be read at first, and some never."""
    may_stop: bool = False
    """Whether something happens that only an operator can decide; else a fence that stops is a fault."""


@dataclass
class Scene:
    """Everything that a scenario is about."""

    world: World
    variant: Variant
    lake: Lake
    wire: Wire
    database: list[Database] = field(default_factory=lambda: [Database()])
    queue: set[Unit] = field(default_factory=lambda: set(UNITS))
    """Messages that nobody has acknowledged: they come again and again."""
    unreadable: dict[str, int] = field(default_factory=dict)
    """How often each unit cannot be read yet, by its id."""
    processes: list[Process] = field(default_factory=list)
    lost: bool = False
    """Whether the state was lost or brought back and is not rebuilt yet: then a fence may stop."""
    rebuilt_at: float = 0.0

    def start(self, name: str) -> None:
        process = self.world.process(name)
        process.spawn(work(name, self))
        self.processes.append(process)


async def work(name: str, scene: Scene) -> None:
    """One worker: take some units, land them, acknowledge them, until none is left for it."""
    world, variant, lake, database, wire = scene.world, scene.variant, scene.lake, scene.database, scene.wire
    progress = variant.progress(database, wire, name)
    lander = variant.lander(
        pipeline="pipeline",
        table=variant.table(lake, wire),
        progress=progress,
        ledger=ModelLedger(lake, wire),
        stager=ModelStager(lake, wire, scene.unreadable),
        clock=world.clock,
        random=world.random,
        backoff=Backoff(attempts=5, first_seconds=0.02),
        verify_staged_after=variant.verify_staged_after,
    )
    for _ in range(8):
        began = world.clock.monotonic()
        wanted = [unit for unit in sorted(scene.queue) if world.random.random() < 0.5]
        try:
            ours = await progress.acquire(wanted, scene.queue)
            world.note(f"takes {[unit.id for unit in ours]}")
            if ours:
                await lander.land(ours)
            await progress.acknowledge(wanted, scene.queue)
        except (Unavailable, OutcomeUnknown):
            world.note("gives up for now")
        except HistoryBroken as broken:
            world.note(f"stops: {broken}")
            if variant.may_stop:
                return
            if not scene.lost and scene.rebuilt_at < began:
                raise Violation(f"the fence stops without a cause: {broken}") from broken
        await world.clock.sleep(world.random.uniform(0, 0.3))


async def drain(scene: Scene) -> None:
    """When everything is quiet, one last worker lands what is left, after the operator has repaired the state."""
    lake, database, quiet = scene.lake, scene.database, Wire(scene.world)
    progress = ModelProgress(database, quiet, "last")
    lander = Lander(
        pipeline="pipeline",
        table=ModelTable(lake, quiet),
        progress=progress,
        ledger=ModelLedger(lake, quiet),
        stager=ModelStager(lake, quiet, scene.unreadable),
        clock=scene.world.clock,
        random=scene.world.random,
        backoff=Backoff(),
    )
    await scene.world.clock.sleep(200)  # every lease has run out
    try:
        await lander.fence()
    except HistoryBroken:
        if not scene.variant.may_stop:
            raise
        try:
            await rebuild(lake, database, quiet)
        except HistoryBroken as broken:
            scene.world.note(f"the rebuild stops: {broken}")
            return  # Nothing lands any more, and nothing is twice: that was checked after every commit.
    # A rollback undoes what was acknowledged: the operator brings those units back.
    again = {unit for unit in UNITS if unlanded(lake, [unit])}
    scene.queue |= again
    await lander.land(await progress.acquire(UNITS, scene.queue))
    readable = [unit for unit in UNITS if scene.unreadable.get(unit.id, 0) <= 0]
    if missing := unlanded(lake, readable):
        raise Violation(f"records {missing} are not in the table")
    lake.check()


Trouble = Callable[[Scene], Awaitable[None]]


def landing(variant: Variant, *troubles: Trouble, lost: float = 0.1) -> Scenario:
    """Three workers on one table, with troubles at random moments."""

    async def scenario(world: World) -> None:
        scene = Scene(world, variant, Lake(world), Wire(world, lost))
        if variant.unreadable:
            scene.unreadable.update({unit.id: world.random.choice([0, 0, 1, 1_000]) for unit in UNITS})
        for name in WORKERS:
            scene.start(name)
        for _ in range(world.random.randrange(6)):
            await world.clock.sleep(world.random.expovariate(4))
            await world.random.choice(troubles)(scene)
        await world.until(*scene.processes)
        await drain(scene)

    return scenario


# --- troubles


async def crash(scene: Scene) -> None:
    """A worker dies, and another starts that knows nothing of it."""
    victim = scene.world.random.choice(scene.processes)
    if not victim.done:
        victim.crash()
        scene.start(f"{victim.name}'")


async def pause(scene: Scene) -> None:
    """A worker stands still, perhaps for longer than its lease, and goes on."""
    scene.world.random.choice(scene.processes).pause(scene.world.random.choice([0.3, 2, 90]))


async def sweeping(scene: Scene) -> None:
    """Maintenance removes files that nobody published."""
    scene.world.note("sweeps")
    with suppress(Unavailable):  # then the next one does it
        await sweep(scene.lake, scene.wire, fence_first=scene.variant.sweep_fences)


async def our_expiry(scene: Scene) -> None:
    """Our own expiry, which keeps the last landing and all after it."""
    scene.world.note("expires snapshots")
    expire_ours(scene.lake)


async def pruning(scene: Scene) -> None:
    """Rows of units that landed long ago are forgotten."""
    scene.world.note("prunes")
    scene.database[0].prune()


async def lost_state(scene: Scene) -> None:
    """The database is gone, and is rebuilt from ledger and snapshots while others go on as far as they can."""
    scene.world.note("the state is lost")
    scene.database[0], scene.lost = Database(), True
    await repair(scene)


async def restored_state(scene: Scene) -> None:
    """The database comes back as it was a while ago, and is rebuilt."""
    old = backup(scene.database)
    await scene.world.clock.sleep(scene.world.random.uniform(0, 1))
    scene.world.note("the state is restored from a backup")
    scene.database[0], scene.lost = old, True
    await repair(scene)


async def mistyped_ledger(scene: Scene) -> None:
    """The state, lost or not, is rebuilt with a ledger that knows nothing."""
    scene.world.note("the state is rebuilt with an empty ledger")
    if scene.world.random.random() < 0.5:
        scene.database[0] = Database()
    await repair(scene, ledger={})


async def repair(scene: Scene, ledger: dict[int, Snapshot] | None = None) -> None:
    """An operator rebuilds the state. Whoever does it may die in the middle; then it is begun anew, some time later."""
    world, variant, lake = scene.world, scene.variant, scene.lake
    refused: list[HistoryBroken] = []

    async def attempt() -> None:
        try:
            await rebuild(
                lake,
                scene.database,
                scene.wire,
                ledger=ledger,
                record=variant.rebuild_records,
                check=variant.rebuild_checks,
            )
        except HistoryBroken as broken:
            world.note(f"the rebuild refuses: {broken}")
            refused.append(broken)

    while True:
        operator = world.process("operator")
        operator.spawn(attempt())
        if world.random.random() < 0.5:
            await world.clock.sleep(world.random.uniform(0, 0.2))
            if not operator.done:
                operator.crash()
                await world.clock.sleep(world.random.uniform(0, 0.5))
                continue
        await world.until(operator)
        break
    if refused and not variant.may_stop:
        raise Violation(f"the rebuild stops without a cause: {refused[0]}")
    scene.lost, scene.rebuilt_at = False, world.clock.monotonic()


async def rollback(scene: Scene) -> None:
    """An operator moves main back: the fence must stop until the state is rebuilt."""
    chain = list(scene.lake.ancestors(scene.lake.main))
    if len(chain) > 1:
        scene.lake.main = scene.world.random.choice(chain[1:])
        scene.world.note(f"main is rolled back to {scene.lake.main}")


async def foreign_commits(scene: Scene) -> None:
    """Somebody else writes to the table: nothing of ours, but on main."""
    for _ in range(scene.world.random.randint(1, 3)):
        scene.lake.commit_of_others()


async def foreign_expiry(scene: Scene) -> None:
    """Somebody else expires snapshots, and keeps only the newest ones and what references are on.

    Not before anything is settled: such a table is adopted by a rebuild.
    """
    chain = list(scene.lake.ancestors(scene.lake.main))
    if chain and scene.database[0].pointer.snapshot is not None:
        scene.lake.expire(chain[: scene.world.random.randint(1, len(chain))])
        scene.world.note("somebody else expires snapshots")


async def forgotten_metadata(scene: Scene) -> None:
    """Older metadata files are deleted: nothing tells of expired snapshots any more."""
    scene.lake.older.clear()
    scene.world.note("older metadata is deleted")


async def cut_off_history(scene: Scene) -> None:
    """All of it at once: nothing leads from main back to the last landing any more."""
    await foreign_commits(scene)
    await foreign_expiry(scene)
    await forgotten_metadata(scene)


async def replacement(scene: Scene) -> None:
    """Somebody makes the table anew: what had landed in it is gone, and the fence must stop."""
    if scene.lake.main is not None:
        replace_table(scene.lake)
        scene.world.note(f"the table is replaced: {scene.lake.main}")


async def outage(scene: Scene) -> None:
    """Nobody answers for a while: catalog, store and state."""
    seconds = scene.world.random.choice([0.1, 2, 200])
    scene.world.note(f"nobody answers for {seconds} s")
    scene.wire.be_silent(seconds)


async def foreign_cleanup(scene: Scene) -> None:
    """While nobody answers, staged files grow old, and somebody else's clean-up takes them for nobody's."""
    scene.wire.be_silent(2 * CLEANED_AFTER)
    await scene.world.clock.sleep(1.5 * CLEANED_AFTER)
    clean_up(scene.lake, older_than=CLEANED_AFTER)


QUIET: tuple[Trouble, ...] = (crash, pause, sweeping, our_expiry, pruning)


# --- shorter protocols


class PlansBeforeTheFence(Lander[Files]):
    """Broken on purpose: decides what to land before it has settled what others landed."""

    async def land(
        self,
        units: Sequence[Unit],
        *,
        new_watermark: NewWatermark = NO_WATERMARK,
        expected: Watermark | AnyWatermark | None = ANY_WATERMARK,
    ) -> Staged[Files] | None:
        del expected
        for _ in self.backoff.pauses(self.random):
            seen = await self.progress.pointer(self.table.uuid)
            remainders = await self.progress.plan(self.table.uuid, at=seen.snapshot, units=units)
            fence = await self.fence()
            if not remainders:
                return None
            staged = await self.stager.stage(remainders, token="token", new_watermark=new_watermark, fence=fence)
            try:
                await self.table.publish(staged, fence.head)
            except Exception:  # noqa: BLE001, S112 - it is broken, after all
                continue
            await self.fence()
            return staged
        return None


class TakesUnknownForNo(Lander[Files]):
    """Broken on purpose: after a commit without an answer it publishes again, and does not look for it first."""

    async def land(
        self,
        units: Sequence[Unit],
        *,
        new_watermark: NewWatermark = NO_WATERMARK,
        expected: Watermark | AnyWatermark | None = ANY_WATERMARK,
    ) -> Staged[Files] | None:
        del expected
        fence = await self.fence()
        remainders = await self.progress.plan(self.table.uuid, at=fence.head.snapshot, units=units)
        if not remainders:
            return None
        staged = await self.stager.stage(remainders, token="token", new_watermark=new_watermark, fence=fence)
        head = fence.head
        for _ in self.backoff.pauses(self.random):
            try:
                await self.table.publish(staged, head)
            except OutcomeUnknown:
                head = await self.table.head()
                continue
            except Moved:
                return None
            await self.fence()
            return staged
        return None


class PublishesWhatIsLeft(Lander[Files]):
    """Broken on purpose: lands what could be read as it was planned, though it was cut by what could not be read."""

    async def land(
        self,
        units: Sequence[Unit],
        *,
        new_watermark: NewWatermark = NO_WATERMARK,
        expected: Watermark | AnyWatermark | None = ANY_WATERMARK,
    ) -> Staged[Files] | None:
        del expected
        fence = await self.fence()
        remainders = await self.progress.plan(self.table.uuid, at=fence.head.snapshot, units=units)
        if not remainders:
            return None
        staged = await self.stager.stage(remainders, token="token", new_watermark=new_watermark, fence=fence)
        with suppress(Moved):
            await self.table.publish(staged, fence.head)
        await self.fence()
        return staged


class ForgetsTheSweep(ModelTable):
    """Broken on purpose: requires main where it was, and a sweep does not move main."""

    async def publish(self, staged: Staged[Files], at: Head) -> Head:
        if self.lake.main != at.snapshot:
            raise Moved("main has moved")
        return await super().publish(staged, self.lake.head)


class TrustsTheTag(ModelTable):
    """Broken on purpose: where the history is cut off, the tag tells the last landing; though main may have lost it."""

    async def history(self, after: SnapshotId | None, upto: SnapshotId | None) -> Sequence[Snapshot]:
        try:
            return await super().history(after, upto)
        except HistoryBroken:
            if after is None or self.lake.tag != after:
                raise
            return []


class PlansWhereverThePointerIs(ModelProgress):
    """Broken on purpose: plans by what the state knows, without asking whether it knows it up to the fenced head."""

    async def plan(self, table: str, *, at: SnapshotId | None, units: Sequence[Unit]) -> Sequence[UnitRemainder] | None:
        del at
        return await super().plan(table, at=self.now.pointer.snapshot, units=units)


class HeadBeforePointer(Lander[Files]):
    """Broken on purpose: reads main's head before the pointer, which may then be past it."""

    async def fence(self, head: Head | None = None) -> Fence:
        while True:
            head = await self.table.head()
            pointer = await self.progress.pointer(self.table.uuid)
            if head.snapshot == pointer.snapshot:
                return Fence(head, pointer.last_landing)
            snapshots = await self.table.history(pointer.snapshot, head.snapshot)
            for snapshot in snapshots:
                await self.ledger.record(self.table.uuid, snapshot)
            last = max((snapshot.id for snapshot in snapshots if snapshot.landing), default=pointer.last_landing)
            to = PointerTo(head.snapshot, last)
            if await self.progress.settle(self.table.uuid, seen=pointer, to=to, snapshots=snapshots):
                return Fence(head, last)


class MovesThePointerBlindly(ModelProgress):
    """Broken on purpose: settles without looking whether the pointer is where it was read."""

    async def settle(self, _table: str, *, seen: PointerTo, to: PointerTo, snapshots: Sequence[Snapshot]) -> bool:
        del seen
        await self.wire.delay()
        self.record(to, snapshots)
        await self.wire.delay()
        return True


class PlansOnAnOldLease(ModelProgress):
    """Broken on purpose: plans what it once acquired, without asking whether it still holds it."""

    def holds(self, unit: Unit) -> bool:
        self.now.rows.setdefault(unit, Row())
        return True


class LandsOverlapsTwice(ModelProgress):
    """Broken on purpose: looks at what has landed, but not at the units beside it in the same landing."""

    def own_records(self, units: Sequence[Unit]) -> list[UnitRemainder]:
        return [remainder for unit in units for remainder in super(LandsOverlapsTwice, self).own_records([unit])]


STOPPABLE = Variant(may_stop=True)
LOOKS = Variant(verify_staged_after=timedelta(seconds=CLEANED_AFTER / 2))

LANDING_SOUND: dict[str, Scenario] = {
    "landing": landing(Variant(), *QUIET, forgotten_metadata),
    "landing_with_lost_state": landing(Variant(), *QUIET, lost_state, restored_state),
    "landing_with_outages": landing(Variant(), *QUIET, outage, outage),
    # Without pauses and late commits: what is removed between the look and the commit is lost, as with any writer.
    "landing_with_foreign_cleanup": landing(LOOKS, crash, sweeping, our_expiry, outage, foreign_cleanup, lost=0),
    "landing_with_unreadable_units": landing(Variant(unreadable=True), *QUIET),
    "landing_with_rollback": landing(STOPPABLE, *QUIET, rollback),
    "landing_with_foreign_expiry": landing(Variant(), *QUIET, foreign_commits, foreign_expiry),
    "landing_with_forgotten_history": landing(
        STOPPABLE, *QUIET, rollback, foreign_commits, foreign_expiry, forgotten_metadata
    ),
    "landing_with_mistyped_ledger": landing(STOPPABLE, *QUIET, cut_off_history, mistyped_ledger),
    "landing_with_replaced_table": landing(STOPPABLE, *QUIET, rollback, replacement),
}
LANDING_BROKEN: dict[str, Scenario] = {
    "landing_plan_before_fence": landing(Variant(lander=PlansBeforeTheFence), *QUIET),
    "landing_head_before_pointer": landing(Variant(lander=HeadBeforePointer), *QUIET),
    "landing_blind_pointer": landing(Variant(progress=MovesThePointerBlindly), *QUIET, forgotten_metadata),
    "landing_old_lease": landing(Variant(progress=PlansOnAnOldLease), pause, pruning, lost=0),
    "landing_sweep_forgotten": landing(Variant(table=ForgetsTheSweep), pause, sweeping),
    "landing_tag_trusted": landing(
        Variant(table=TrustsTheTag, may_stop=True), rollback, foreign_commits, foreign_expiry, forgotten_metadata
    ),
    "landing_plan_ignores_pointer": landing(
        Variant(progress=PlansWhereverThePointerIs), *QUIET, lost_state, restored_state
    ),
    "landing_rebuild_with_any_ledger": landing(
        Variant(rebuild_checks=False, may_stop=True), cut_off_history, mistyped_ledger
    ),
    "landing_sweep_without_fence": landing(Variant(sweep_fences=False), pause, sweeping),
    "landing_rebuild_without_ledger": landing(Variant(rebuild_records=False), *QUIET, lost_state, restored_state),
    "landing_unknown_taken_for_no": landing(Variant(lander=TakesUnknownForNo), *QUIET, outage),
    "landing_cleanup_unnoticed": landing(Variant(), crash, sweeping, foreign_cleanup, lost=0),
    "landing_overlaps": landing(Variant(progress=LandsOverlapsTwice), *QUIET),
    "landing_cut_by_what_is_left_out": landing(Variant(lander=PublishesWhatIsLeft, unreadable=True), *QUIET),
}
