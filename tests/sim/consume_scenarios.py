"""Coordinators on one queue under everything that happens to them; and each shorter version, which must be caught."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

from lakehead.consume.coordinator import QueueCoordinator
from lakehead.consume.counts import ConsumeCounts
from lakehead.consume.local_state import UnitKey, Work
from lakehead.consume.ports import DeadLetterBox, UnitLander
from lakehead.consume.queue import Message
from lakehead.consume.receiving import Receiving
from lakehead.consume.settings import PipelineSettings
from lakehead.consume.shared_state import SharedState
from lakehead.lake.landing import (
    ANY_WATERMARK,
    NO_WATERMARK,
    AnyWatermark,
    NewWatermark,
    Pointer,
    Unit,
    UnitRemainder,
    token_of,
)
from lakehead.lake.ports import Staged
from lakehead.lake.protocol import Lander, _Attempt
from lakehead.retry import PollInterval
from lakehead.state.model import ObjectProgress, Watermark
from tests.sim.consume_model import (
    NEVER,
    ModelDeadLetters,
    ModelLandings,
    ModelQueue,
    ModelShared,
    Objects,
    must_be_settled,
)
from tests.sim.landing_model import TABLE, Database, Files, Lake, ModelProgress, Row, Wire, is_numbered, span_of_id
from tests.sim.landing_scenarios import PlansOnAnOldLease
from tests.support.simulation import Process, Scenario, Violation, World

UNITS = ("0-3", "3-5", "4-7", "6-9", "9-12", "20-22", "22-24", "24-26", "26-28", "28-33")
"""Some overlap in their records, as frames may; the last are files."""

SETTINGS = PipelineSettings(
    name="pipeline",
    commit_timeout=timedelta(seconds=1),
    max_messages=6,
    max_held=12,
    visibility=timedelta(seconds=8),
    poll_wait=timedelta(seconds=2),
    max_tries=12,
    retry_delay=timedelta(seconds=0.2),
    longest_retry_delay=timedelta(seconds=2),
    deduplication_window=timedelta(seconds=120),
    cleanup_interval=timedelta(seconds=5),
    polling=PollInterval(first_seconds=0.1, cap_seconds=1.0),
)
DRAINED_WITHIN = 900.0
"""Seconds in which everything is settled once faults have stopped."""


class CountsAfterTheRead(ModelShared):
    """Broken on purpose: a try is counted only when it has failed, so one that kills its reader is never counted."""

    async def count_try(self, _table: str, tries: Mapping[str, int]) -> Mapping[str, int]:
        await self.wire.delay()
        return {unit: row.tries for unit, row in self._ours(tries).items()}


@dataclass(frozen=True)
class Variant:
    """The pipeline as it is, or with one of its rules left out."""

    shared: type[ModelShared] = ModelShared
    prune_by: str = "acknowledged"
    acknowledges_early: bool = False
    checks: bool = True
    progress: type[ModelProgress] = ModelProgress
    settings: PipelineSettings = SETTINGS
    deadly: float = 0.08
    """How many of the worlds have a unit that kills its reader. Such a world takes longer than ten others."""
    faults: float = 0.1
    large: bool = False
    """Whether files land in parts."""
    units: Sequence[str] = UNITS
    overtaking: bool = False
    """Whether a commit whose answer was lost may be applied right before one of another pipeline."""
    lander: type[Lander[Files]] = Lander
    forgets_dropped: bool = False
    """Whether nothing is kept of a dead letter that was dropped."""


@dataclass
class Pipelines:
    """Everything that a scenario is about."""

    world: World
    variant: Variant
    lake: Lake
    wire: Wire
    queue: ModelQueue
    objects: Objects
    dead: set[str]
    database: list[Database] = field(default_factory=lambda: [Database()])
    running: list[tuple[Process, QueueCoordinator]] = field(default_factory=list)
    started: int = 0
    kind: str = "pipeline"

    @property
    def lease(self) -> float:
        return self.variant.settings.lease.total_seconds()

    def progress(self, name: str) -> ModelProgress:
        return self.variant.progress(self.database, self.wire, name, self.lease)

    def parts(self, name: str, process: Process) -> tuple[SharedState, UnitLander, DeadLetterBox]:
        """What a pipeline of that name works with, besides the queue."""
        variant = self.variant
        window = variant.settings.deduplication_window.total_seconds()
        shared = variant.shared(self.database, self.wire, name, self.lease, window, variant.prune_by)
        progress = self.progress(name)
        landings = ModelLandings(self.lake, self.wire, progress, self.objects, process, variant.checks, variant.lander)
        return shared, landings, ModelDeadLetters(self.wire, self.dead, shared)

    def read_message(self, message: Message, counts: ConsumeCounts) -> Sequence[Work]:
        """The body of a message names its units."""
        del counts
        return [Work(key=UnitKey(TABLE, unit), message=message) for unit in message.body.decode().split()]

    def start(self) -> None:
        """Start a pipeline: a new process with a new token."""
        self.started += 1
        name, variant = f"{self.kind} {self.started}", self.variant
        process = self.world.process(name)
        kind = _AcknowledgesEarly if variant.acknowledges_early else QueueCoordinator
        shared, landings, dead_letters = self.parts(name, process)

        async def run() -> None:
            coordinator = kind(
                variant.settings,
                self.queue,
                self.read_message,
                shared=shared,
                landings=landings,
                dead_letters=dead_letters,
                clock=self.world.clock,
                random=self.world.random,
            )
            self.running.append((process, coordinator))
            await coordinator.run()

        process.spawn(run())

    @property
    def alive(self) -> list[tuple[Process, QueueCoordinator]]:
        return [(process, coordinator) for process, coordinator in self.running if not process.done]


@dataclass
class ForgetsHowFar(ModelProgress):
    """Broken on purpose: how far a unit is was read when it was first planned, and not by each plan."""

    known: dict[Unit, ObjectProgress | None] = field(default_factory=dict)

    def own_records(self, units: Sequence[Unit]) -> list[UnitRemainder]:
        remainders = super().own_records(units)
        return [replace(each, landed=self.known.setdefault(each.unit, each.landed)) for each in remainders]


class _NamedByUnits(_Attempt[Files]):
    def _token(self, remainders: Sequence[UnitRemainder]) -> str:
        return token_of(self._lander.pipeline, self._lander.table.uuid, [each.unit for each in remainders])


class PartsHaveTheTokenOfTheirUnit(Lander[Files]):
    """Broken on purpose: whoever finds a part published takes the whole unit for landed."""

    async def land(
        self,
        units: Sequence[Unit],
        *,
        new_watermark: NewWatermark = NO_WATERMARK,
        expected: Watermark | AnyWatermark | None = ANY_WATERMARK,
    ) -> Staged[Files] | None:
        return await _NamedByUnits(self).land(units, new_watermark, expected)


class _EarlyReceiving(Receiving):
    async def _open(self, table: str, works: Sequence[Work]) -> None:
        await super()._open(table, works)
        await self.pipeline.queue.acknowledge([work.message for work in works])


class _AcknowledgesEarly(QueueCoordinator):
    """Broken on purpose: a message is acknowledged when its units are ours, before they have landed."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._receiving = _EarlyReceiving(pipeline=self._pipeline, reader=self._receiving.reader)


Trouble = Callable[[Pipelines], Awaitable[object]]


async def crash(pipelines: Pipelines) -> None:
    """A pipeline dies, and another starts that knows nothing of it."""
    if pipelines.alive:
        process, _ = pipelines.world.random.choice(pipelines.alive)
        process.crash()
    pipelines.start()


async def crash_unanswered(pipelines: Pipelines) -> None:
    """All pipelines die while a commit is under way that may still be applied."""
    clock, wire = pipelines.world.clock, pipelines.wire
    until = clock.monotonic() + 30
    while not wire.in_flight and clock.monotonic() < until:
        await clock.sleep(0.05)
    for process, _ in pipelines.alive:
        process.crash()
    pipelines.start()


async def pause(pipelines: Pipelines) -> None:
    """A pipeline stands still, perhaps for longer than its leases and visibility, and goes on."""
    if pipelines.alive:
        process, _ = pipelines.world.random.choice(pipelines.alive)
        process.pause(pipelines.world.random.choice([0.5, 5, 15, 40]))


async def stop(pipelines: Pipelines) -> None:
    """A pipeline is stopped in order, and another is started."""
    if pipelines.alive:
        _, coordinator = pipelines.world.random.choice(pipelines.alive)
        coordinator.stop()
    pipelines.start()


async def send_again(pipelines: Pipelines) -> None:
    """Some content is announced once more, alone or with others."""
    random = pipelines.world.random
    known = pipelines.variant.units
    units = random.sample(known, random.randint(1, min(3, len(known))))
    pipelines.queue.send(f"again {pipelines.world.ids.uuid()}", " ".join(units))


async def outage(pipelines: Pipelines) -> None:
    """Catalog and state do not answer for a while."""
    pipelines.wire.be_silent(pipelines.world.random.choice([0.1, 2, 20]))


async def lost_state(pipelines: Pipelines) -> None:
    """The state is lost and rebuilt from the ledger and the table: who owned what, and the tries, are forgotten."""
    fresh = Database()
    for number in reversed(pipelines.lake.published):
        fresh.remember(pipelines.lake.snapshots[number])
    for unit in pipelines.dead:  # letters are objects, and rebuilt too
        row = fresh.rows.setdefault(Unit(unit), Row())
        row.given_up = row.landed is None
    landed = [number for number in pipelines.lake.published if pipelines.lake.snapshots[number].landing is not None]
    fresh.pointer = Pointer(pipelines.lake.main, landed[0] if landed else None)
    pipelines.database[0] = fresh


async def replay(pipelines: Pipelines, chance: float = 0.5, prefix: str = "") -> int:
    """An operator has mended what dead letters are of, and replays some. Returns how many."""
    replayed = 0
    for unit in sorted(pipelines.dead):
        row = pipelines.database[0].rows.get(Unit(unit))
        if row is None or not row.given_up or row.dropped or row.landed is not None:
            continue
        if pipelines.world.random.random() < chance:
            pipelines.objects.fails[unit] = 0
            pipelines.objects.deadly.discard(unit)
            row.replayed = True
            pipelines.queue.send(f"replay {pipelines.world.ids.uuid()}", f"{prefix}{unit}")
            replayed += 1
    return replayed


TROUBLES: tuple[Trouble, ...] = (crash, pause, stop, send_again, send_again, outage)


def consuming(variant: Variant, *troubles: Trouble, unreadable: bool = True, replayed: bool = False) -> Scenario:
    """Three pipelines on one queue and one table, with troubles at random moments; then all must drain.

    With `replayed`, dead letters are mended and replayed in the end, and then everything must be in the table.
    """

    async def scenario(world: World) -> None:
        lake, objects = Lake(world), Objects()
        wire = Wire(world, variant.faults, longest=10.0, overtaking=variant.overtaking)
        dead = set[str]()
        queue = ModelQueue(world, lambda units: must_be_settled(lake, dead, units), variant.faults)
        pipelines = Pipelines(world, variant, lake, wire, queue, objects, dead)
        if unreadable:
            spoil(world, objects, variant, variant.units)
        if variant.large:
            objects.large.update(unit for unit in variant.units if not is_numbered(Unit(unit)))
        for number, unit in enumerate(variant.units):
            queue.send(f"message {number}", unit)
        for _ in range(3):
            pipelines.start()
        for _ in range(world.random.randrange(8)):
            await world.clock.sleep(world.random.expovariate(0.3))
            await world.random.choice(troubles)(pipelines)
        if replayed:
            await until_empty(pipelines)
            while await replay(pipelines, chance=1.0):
                await until_empty(pipelines)
        await drain(pipelines)

    return scenario


def spoil(world: World, objects: Objects, variant: Variant, units: Sequence[str]) -> None:
    """Make some units fail at first, and in some worlds one never to be read, or one that kills its reader.

    One is enough: until it is a dead letter nothing else happens, and that takes longer than all the rest. With few
    tries it is short, so there every unit may be such a one.
    """
    random, choose = world.random, world.random.choice
    is_short = variant.settings.max_tries < SETTINGS.max_tries
    objects.fails.update({unit: choose([0, 0, 0, 1, 3, NEVER if is_short else 0]) for unit in units})
    objects.temporary.update({unit: choose([0, 0, 0, 0, 0, 0, 0, 6]) for unit in units})
    if random.random() < 0.25:
        objects.fails[choose(units)] = NEVER
    if random.random() < variant.deadly:
        objects.deadly.add(choose(units))


async def until_empty(pipelines: Pipelines) -> None:
    """Faults stop, and processes that die are started again: every message is acknowledged, in bounded time."""
    world, queue, wire = pipelines.world, pipelines.queue, pipelines.wire
    queue.faults, wire.lost = 0.0, 0.0
    until = world.clock.monotonic() + DRAINED_WITHIN
    while queue.stored:
        if world.failure is not None:
            raise world.failure
        if world.clock.monotonic() > until:
            raise Violation(f"not drained: {[each.body for each in queue.stored.values()]}")
        if not pipelines.alive:
            pipelines.start()
        await world.clock.sleep(1)


async def drain(pipelines: Pipelines) -> None:
    """Everything is landed or a dead letter, in bounded time."""
    await until_empty(pipelines)
    await stop_all(pipelines)
    objects, units = pipelines.objects, pipelines.variant.units
    must_have_landed(pipelines, [unit for unit in units if not objects.fails.get(unit) and unit not in objects.deadly])


async def stop_all(pipelines: Pipelines) -> None:
    """Stop all pipelines, in bounded time."""
    for _, coordinator in pipelines.alive:
        coordinator.stop()
    await pipelines.world.until(*(process for process, _ in pipelines.alive), at_most=120)


def must_have_landed(pipelines: Pipelines, units: Sequence[str]) -> None:
    """Raise unless every record of the units is in the table, once."""
    pipelines.lake.check()
    missing = {record for unit in units for record in span_of_id(unit)} - pipelines.lake.records().keys()
    if missing:
        raise Violation(f"records {sorted(missing)} are not in the table; dead letters: {sorted(pipelines.dead)}")


FEW_TRIES = replace(SETTINGS, max_tries=3)
LARGE = Variant(large=True)
ONE_LARGE = Variant(large=True, units=("28-33",), faults=0.4, overtaking=True)
"""Commits without an answer may be applied when another pipeline has staged another part of the same object."""
CONSUME_SOUND: dict[str, Scenario] = {
    "consume": consuming(Variant(), *TROUBLES),
    "consume_readable": consuming(Variant(), *TROUBLES, unreadable=False),
    "consume_replayed": consuming(Variant(settings=FEW_TRIES), *TROUBLES, replay, replay, replayed=True),
    "consume_large_objects": consuming(LARGE, *TROUBLES, lost_state),
    "consume_one_large_object": consuming(ONE_LARGE, crash_unanswered, crash, stop, unreadable=False),
    "consume_with_lost_state": consuming(Variant(), *TROUBLES, lost_state, lost_state),
}
SHORT_WINDOW = replace(SETTINGS, deduplication_window=timedelta(seconds=10), cleanup_interval=timedelta(seconds=1))
WITHOUT_OWNING = Variant(progress=PlansOnAnOldLease, checks=False, settings=SHORT_WINDOW)
"""An acquisition that the commit does not check, nor whether the messages are held."""
CONSUME_BROKEN: dict[str, Scenario] = {
    "consume_acknowledge_before_landing": consuming(Variant(acknowledges_early=True), *TROUBLES),
    "consume_plan_without_owning": consuming(WITHOUT_OWNING, *TROUBLES, pause, pause, unreadable=False),
    "consume_tries_counted_after_the_read": consuming(Variant(shared=CountsAfterTheRead, deadly=0.5), *TROUBLES),
    "consume_parts_from_memory": consuming(replace(LARGE, progress=ForgetsHowFar), *TROUBLES),
    "consume_parts_with_the_token_of_their_unit": consuming(
        replace(ONE_LARGE, lander=PartsHaveTheTokenOfTheirUnit), crash_unanswered, crash, stop, unreadable=False
    ),
    "consume_prune_by_age_alone": consuming(Variant(prune_by="any", settings=SHORT_WINDOW), *TROUBLES),
    "consume_window_from_creation": consuming(Variant(prune_by="opened", settings=SHORT_WINDOW), *TROUBLES),
}
