"""Backfills beside pipelines: a file that is announced and found by a listing, in any order, lands once."""

from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field

from lakehead.consume.backfill_state import BackfillSharedState
from lakehead.consume.ports import DeadLetterBox, UnitLander
from lakehead.consume.shared_state import Opened, SharedState
from lakehead.lake.landed_units import PauseLost, RestoredUnits
from lakehead.lake.landing import Unit
from tests.sim.consume_model import ModelQueue, ModelShared, Objects, must_be_settled
from tests.sim.consume_scenarios import (
    DRAINED_WITHIN,
    Pipelines,
    Variant,
    crash,
    must_have_landed,
    outage,
    pause,
    stop,
    stop_all,
    until_empty,
)
from tests.sim.landing_model import Lake, Row, Wire
from tests.support.simulation import Process, Scenario, Violation, World

EARLY = ("20-22", "22-24")
"""Files that were there before anything was announced."""
FORGOTTEN = ("24-26", "26-28", "28-33")
"""Files that were announced and have landed, so long ago that the state has no rows of them."""
NEW = ("33-35", "35-37", "37-40", "40-42")
"""Files that are written, and announced, while backfills run."""

HOLD = 4.0
"""Seconds for which pruning stays paused after the last sign of a backfill. Half of the visibility: who stands still
for somewhat longer finds its pause over, and its messages still held."""


@dataclass
class ModelLedgerUnits:
    """`RestoringLedger` over the model."""

    pipelines: Pipelines
    owner: str

    async def restore(self, _table: str, _prefix: str = "") -> RestoredUnits:
        wire, lake = self.pipelines.wire, self.pipelines.lake
        await wire.delay()
        self._pauses[self.owner] = self._until
        await wire.delay()
        units, wanted = 0, self.pipelines.database[0].pointer.last_landing
        while wanted is not None:
            landing = lake.ledger[wanted].landing
            assert landing is not None
            await self.confirm(_table)
            for remainder in landing.remainders:
                row = self.pipelines.database[0].rows.setdefault(remainder.unit, Row(acknowledged=True))
                row.landed = wanted if row.landed is None else row.landed
            units, wanted = units + len(landing.remainders), landing.before
        return RestoredUnits(0, units)

    async def confirm(self, table: str) -> None:
        await self.pipelines.wire.delay()
        if self.owner not in self._pauses:
            self.pipelines.world.note(f"{self.owner} has lost its pause")
            raise PauseLost(table)
        self._pauses[self.owner] = self._until
        await self.pipelines.wire.delay()

    async def release(self, _table: str) -> None:
        await self.pipelines.wire.delay()
        self._pauses.pop(self.owner, None)

    @property
    def _pauses(self) -> dict[str, float]:
        return self.pipelines.database[0].pauses

    @property
    def _until(self) -> float:
        return self.pipelines.world.clock.monotonic() + HOLD


class ConfirmsTooEarly(BackfillSharedState):
    """Broken on purpose: the pause is confirmed before units are acquired, and not afterwards."""

    async def open(self, table: str, units: Collection[str]) -> Opened:
        await super().open(table, [])
        return await self._shared.open(table, units)


@dataclass
class ByWindow(ModelShared):
    """Broken on purpose: who lands a file is decided by when it was written, and not by its row.

    What is older than the announcements is taken, whatever the state says; what is younger is left to them.
    """

    early: Collection[str] = EARLY

    async def open(self, _table: str, units: Collection[str]) -> Opened:
        await self.wire.delay()
        ours = [unit for unit in units if unit in self.early]
        for unit in ours:
            self.rows[Unit(unit)] = Row(owner=self.owner, lease_until=self.time + self.lease, opened_at=self.time)
        return Opened(dict.fromkeys(ours, 0), frozenset(units) - frozenset(ours), frozenset())


Opener = Callable[[ModelShared, ModelLedgerUnits], SharedState]


def by_ledger(shared: ModelShared, landed: ModelLedgerUnits) -> SharedState:
    """The shared state of a backfill as it is."""
    return BackfillSharedState(shared, landed, "")


def confirming_too_early(shared: ModelShared, landed: ModelLedgerUnits) -> SharedState:
    """Return a broken one."""
    return ConfirmsTooEarly(shared, landed, "")


def by_rows_alone(shared: ModelShared, _landed: ModelLedgerUnits) -> SharedState:
    """Broken on purpose: what the state has forgotten counts as new."""
    return shared


def by_window(shared: ModelShared, _landed: ModelLedgerUnits) -> SharedState:
    """Return a broken one."""
    return ByWindow(shared.database, shared.wire, shared.owner, shared.lease, shared.window)


@dataclass
class Backfill(Pipelines):
    """One listing of all files that there are, landed in the same table through the same rows."""

    opener: Opener = by_ledger

    def parts(self, name: str, process: Process) -> tuple[SharedState, UnitLander, DeadLetterBox]:
        shared, landings, letters = super().parts(name, process)
        assert isinstance(shared, ModelShared)
        return self.opener(shared, ModelLedgerUnits(self, name)), landings, letters


@dataclass
class Beside:
    """Pipelines, and the backfills beside them."""

    pipelines: Pipelines
    opener: Opener
    files: list[str]
    """All files that there are."""
    backfills: list[Backfill] = field(default_factory=list)

    @property
    def world(self) -> World:
        return self.pipelines.world

    def start_backfill(self) -> None:
        """List all files."""
        before, number = self.pipelines, len(self.backfills) + 1
        listing = ModelQueue(self.world, before.queue.check, faults=0.0)
        for unit in self.files:
            listing.send(f"listed {unit}", unit)
        backfill = Backfill(
            before.world,
            before.variant,
            before.lake,
            before.wire,
            listing,
            before.objects,
            before.dead,
            before.database,
            kind=f"backfill {number}",
            opener=self.opener,
        )
        backfill.start()
        self.backfills.append(backfill)

    def write_file(self) -> None:
        """A file is written; it is announced at some time after that, perhaps twice."""
        unit = next(unit for unit in NEW if unit not in self.files)
        self.files.append(unit)
        self.announce(unit)

    def announce(self, unit: str) -> None:
        """Announce a file once or twice, soon."""
        random = self.world.random
        for _ in range(random.choice([1, 1, 2])):
            self.world.process(f"announce {unit}").spawn(self._announce(unit, random.choice([0.0, 0.1, 1.0, 8.0])))

    async def _announce(self, unit: str, after: float) -> None:
        await self.world.clock.sleep(after)
        self.pipelines.queue.send(f"announced {self.world.ids.uuid()}", unit)


async def crash_backfill(beside: Beside) -> None:
    """A backfill dies, and an operator starts another."""
    beside.world.random.choice(beside.backfills).running[0][0].crash()
    beside.start_backfill()


async def pause_backfill(beside: Beside) -> None:
    """A backfill stands still, perhaps for longer than its pause of pruning."""
    await pause(beside.world.random.choice(beside.backfills))


async def start_backfill(beside: Beside) -> None:
    """Somebody starts another backfill."""
    beside.start_backfill()


async def start_and_pause_backfill(beside: Beside) -> None:
    """Somebody starts a backfill that stands still while it opens its first files, until its pause has ended."""
    beside.start_backfill()
    await beside.world.clock.sleep(beside.world.random.uniform(0, 0.6))
    beside.backfills[-1].running[0][0].pause(HOLD + 3)


async def announce_early(beside: Beside) -> None:
    """A file that was there before is announced after all: somebody has stored it again."""
    beside.announce(beside.world.random.choice(EARLY))


async def write_file(beside: Beside) -> None:
    """A new file, if there is one left."""
    if len(beside.files) < len(EARLY + FORGOTTEN + NEW):
        beside.write_file()


TROUBLES: tuple[Callable[[Beside], Awaitable[None]], ...] = (
    lambda beside: crash(beside.pipelines),
    lambda beside: pause(beside.pipelines),
    lambda beside: stop(beside.pipelines),
    lambda beside: outage(beside.pipelines),
    crash_backfill,
    pause_backfill,
    start_backfill,
    start_and_pause_backfill,
    announce_early,
    write_file,
    write_file,
    write_file,
)


async def land_and_forget(pipelines: Pipelines) -> None:
    """Land files that are announced, and let their windows end."""
    variant = pipelines.variant
    for unit in FORGOTTEN:
        pipelines.queue.send(f"long ago {unit}", unit)
    pipelines.start()
    await until_empty(pipelines)
    await stop_all(pipelines)
    window = variant.settings.deduplication_window.total_seconds()
    shared = ModelShared(pipelines.database, pipelines.wire, "pruner", pipelines.lease, window)
    await shared.acknowledge("", FORGOTTEN)  # also if the pipeline was stopped right before that
    await pipelines.world.clock.sleep(window + 1)
    if await shared.prune("") != len(FORGOTTEN):
        raise Violation("not all is forgotten")
    pipelines.queue.faults, pipelines.wire.lost = variant.faults, variant.faults


async def end(beside: Beside) -> None:
    """The listing of a last backfill, and everything that was announced, is settled in bounded time."""
    world, pipelines = beside.world, beside.pipelines
    pipelines.queue.faults, pipelines.wire.lost = 0.0, 0.0
    while len(beside.files) < len(EARLY + FORGOTTEN + NEW):
        beside.write_file()
    await world.clock.sleep(10)  # until everything is announced
    beside.start_backfill()
    until = world.clock.monotonic() + DRAINED_WITHIN
    while any(one.queue.stored for one in beside.backfills if one.alive):
        if world.failure is not None:
            raise world.failure
        if world.clock.monotonic() > until:
            raise Violation("a backfill does not end")
        await world.clock.sleep(1)
    for backfill in beside.backfills:
        await stop_all(backfill)
    await until_empty(pipelines)
    await stop_all(pipelines)


def backfilling(opener: Opener, variant: Variant) -> Scenario:
    """Two pipelines and a backfill, with files that are written meanwhile; in the end each is in the table once."""

    async def scenario(world: World) -> None:
        lake, dead = Lake(world), set[str]()
        queue = ModelQueue(world, lambda units: must_be_settled(lake, dead, units), 0.0)
        pipelines = Pipelines(world, variant, lake, Wire(world, longest=10.0), queue, Objects(), dead)
        await land_and_forget(pipelines)
        beside = Beside(pipelines, opener, [*EARLY, *FORGOTTEN])
        for _ in range(2):
            pipelines.start()
        beside.start_backfill()
        for _ in range(world.random.randrange(10)):
            await world.clock.sleep(world.random.expovariate(0.5))
            await world.random.choice(TROUBLES)(beside)
        await end(beside)
        must_have_landed(pipelines, [*EARLY, *FORGOTTEN, *NEW])

    return scenario


BACKFILL_SOUND: dict[str, Scenario] = {"consume_backfill": backfilling(by_ledger, Variant())}
BACKFILL_BROKEN: dict[str, Scenario] = {
    "consume_backfill_by_window": backfilling(by_window, Variant()),
    "consume_backfill_by_rows_alone": backfilling(by_rows_alone, Variant()),
    "consume_backfill_confirmed_too_early": backfilling(confirming_too_early, Variant()),
}
