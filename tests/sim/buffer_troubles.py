"""What happens to those who share a queue, at random moments."""

from collections.abc import Awaitable, Callable
from contextlib import suppress

from lakehead.buffer.consumer import Mode
from lakehead.errors import Misconfigured
from tests.faults.store import Faults
from tests.sim.buffer_model import WatchedStore
from tests.sim.buffer_pair_model import Limits
from tests.sim.buffer_scene import BATCHES, ROUGH, Scene, Variant, come_to_rest, orphans
from tests.sim.world import Scenario, World

Trouble = Callable[[Scene], Awaitable[None]]


async def crash(scene: Scene) -> None:
    """A process dies; a collector is started again."""
    victim = scene.world.random.choice([*scene.producers, *scene.collectors])
    if not victim.done:
        victim.crash()
        if victim in scene.collectors:
            scene.start_collector()


async def pause(scene: Scene) -> None:
    """A process stands still, perhaps for longer than its claims hold."""
    victim = scene.world.random.choice([*scene.producers, *scene.collectors])
    victim.pause(scene.world.random.choice([0.3, 3, 90]))


async def set_a_clock(scene: Scene) -> None:
    """The time of day changes for somebody, by minutes or hours."""
    scene.world.random.choice(scene.clocks or [scene.world.clock]).jump(
        scene.world.random.choice([-7_200, -300, 300, 7_200])
    )


async def collect_orphans(scene: Scene, *, slowness: float | None = None) -> None:
    """Orphan GC with hardly any grace, by a process that may be slow, and may crash in the middle of it."""
    world = scene.world
    process = world.process("gc")
    means = scene.means(slowness=slowness or world.random.choice([1, 1, 40]))
    manifest_path = world.random.choice(list(scene.shared.queues))

    async def work() -> None:
        with scene.tried(), suppress(Misconfigured):
            gone = await orphans(scene.variant.orphans, means, grace=0.01, manifest_path=manifest_path).run()
            world.note(f"deletes {[scene.shared.name(key) for key in gone]}")

    process.spawn(work())
    if world.random.random() < 0.2:
        await world.clock.sleep(world.random.uniform(0, 0.3))
        process.crash()


async def newcomer(scene: Scene) -> None:
    """One more collector."""
    if len(scene.collectors) < 4:
        scene.start_collector()


ALL: tuple[Trouble, ...] = (crash, pause, pause, set_a_clock, collect_orphans, newcomer)


def buffer(
    variant: Variant,
    mode: Mode | None,
    *troubles: Trouble,
    faults: Faults = ROUGH,
    kind: type[Scene] = Scene,
    most_done: int | None = None,
    batches: int = BATCHES,
) -> Scenario:
    """Some producers and collectors on one queue, with troubles at random moments; then everything comes to rest.

    Without a mode, each seed has one of both.
    """

    async def scenario(world: World) -> None:
        chosen = mode or world.random.choice(list(Mode))
        limits = Limits(done=most_done, producers=variant.most_producers, collectors=variant.most_collectors)
        shared = WatchedStore(world, ordered=chosen is Mode.ORDERED, limits=limits)
        scene = kind(world, variant, chosen, shared, faults, batches)
        for _ in range(world.random.randint(1, 3)):
            scene.start_producer()
        for _ in range(world.random.randint(1, 2)):
            scene.start_collector()
        await trouble(scene, troubles)
        await come_to_rest(scene)

    return scenario


async def trouble(scene: Scene, troubles: tuple[Trouble, ...]) -> None:
    """Up to four troubles, one after the other."""
    world = scene.world
    for _ in range(world.random.randrange(5) if troubles else 0):
        await world.clock.sleep(world.random.expovariate(4))
        await world.random.choice(troubles)(scene)
