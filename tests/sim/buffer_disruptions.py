"""Disruptions of the processes that share a queue, at random moments."""

from collections.abc import Awaitable, Callable
from contextlib import suppress

from lakehead.buffer.config import CollectorMode
from lakehead.errors import Misconfigured
from tests.faults.store import Faults
from tests.sim.buffer_model import WatchedStore
from tests.sim.buffer_pair_model import Limits
from tests.sim.buffer_support import BATCHES, ROUGH, QueueSimulation, Variant, finish, orphans
from tests.support.simulation import Scenario, World

Disruption = Callable[[QueueSimulation], Awaitable[None]]


async def crash(sim: QueueSimulation) -> None:
    """A process crashes; a collector is restarted."""
    victim = sim.world.random.choice([*sim.producers, *sim.collectors])
    if not victim.done:
        victim.crash()
        if victim in sim.collectors:
            sim.start_collector()


async def pause(sim: QueueSimulation) -> None:
    """A process pauses, possibly for longer than its claims are valid."""
    victim = sim.world.random.choice([*sim.producers, *sim.collectors])
    victim.pause(sim.world.random.choice([0.3, 3, 90]))


async def set_a_clock(sim: QueueSimulation) -> None:
    """The wall clock of a process jumps, by minutes or hours."""
    sim.world.random.choice(sim.clocks or [sim.world.clock]).jump(sim.world.random.choice([-7_200, -300, 300, 7_200]))


async def collect_orphans(sim: QueueSimulation, *, slowness: float | None = None) -> None:
    """Orphan GC with almost no grace time, in a process that may be slow and may crash."""
    world = sim.world
    process = world.process("gc")
    deps = sim.deps(slowness=slowness or world.random.choice([1, 1, 40]))
    manifest_path = world.random.choice(list(sim.shared.queues))

    async def work() -> None:
        with sim.tried(), suppress(Misconfigured):
            gone = await orphans(sim.variant.orphans, deps, grace=0.01, manifest_path=manifest_path).run()
            world.note(f"deletes {[sim.shared.name(key) for key in gone]}")

    process.spawn(work())
    if world.random.random() < 0.2:
        await world.clock.sleep(world.random.uniform(0, 0.3))
        process.crash()


async def newcomer(sim: QueueSimulation) -> None:
    """One more collector."""
    if len(sim.collectors) < 4:
        sim.start_collector()


ALL: tuple[Disruption, ...] = (crash, pause, pause, set_a_clock, collect_orphans, newcomer)


def buffer(
    variant: Variant,
    mode: CollectorMode | None,
    *disruptions: Disruption,
    faults: Faults = ROUGH,
    kind: type[QueueSimulation] = QueueSimulation,
    most_done: int | None = None,
    batches: int = BATCHES,
) -> Scenario:
    """Return a scenario: producers and collectors of one queue, with disruptions at random moments, and an orderly end.

    Without a mode, each seed has one of both.
    """

    async def scenario(world: World) -> None:
        chosen = mode or world.random.choice(list(CollectorMode))
        limits = Limits(done=most_done, producers=variant.max_producers, collectors=variant.max_collectors)
        shared = WatchedStore(world, ordered=chosen is CollectorMode.ORDERED, limits=limits)
        sim = kind(world, variant, chosen, shared, faults, batches)
        for _ in range(world.random.randint(1, 3)):
            sim.start_producer()
        for _ in range(world.random.randint(1, 2)):
            sim.start_collector()
        await disrupt(sim, disruptions)
        await finish(sim)

    return scenario


async def disrupt(sim: QueueSimulation, disruptions: tuple[Disruption, ...]) -> None:
    """Run up to four disruptions, one after the other."""
    world = sim.world
    for _ in range(world.random.randrange(5) if disruptions else 0):
        await world.clock.sleep(world.random.expovariate(4))
        await world.random.choice(disruptions)(sim)
