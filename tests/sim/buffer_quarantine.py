"""Batches that are damaged after they were stored: set aside with a note, mended, and replayed until they arrive."""

import json
from dataclasses import dataclass, replace

from lakehead.buffer.cleanup import CleanUp
from lakehead.buffer.consumer import Mode
from lakehead.buffer.layout import quarantine_folder
from lakehead.buffer.means import Means
from lakehead.buffer.orphans import OrphanCollector
from lakehead.buffer.quarantine import Quarantine
from lakehead.storage.port import Created, Exists, Store, Version
from tests.sim.buffer_model import MANIFEST, WatchedStore
from tests.sim.buffer_pipelines import Pipeline, read_all
from tests.sim.buffer_scene import LATEST_WRITE, QUICK, ROUGH, Scene, Variant, come_to_rest, orphans
from tests.sim.buffer_troubles import Trouble, collect_orphans, crash, pause
from tests.sim.world import Scenario, World

MOST_DAMAGED = 2
MOST_UNMENDED = 2
"""How many are replayed without being mended. With those that are damaged, fewer than a collector stops at."""


@dataclass
class Damaging(Pipeline):
    """A pipeline some of whose batches cannot be read any more."""

    unmended: int = 0

    def notes(self) -> list[str]:
        """The locations of what was set aside and has bytes left."""
        folder = f"{quarantine_folder(MANIFEST)}/"
        bodies = [each.body for key, each in self.shared.objects.items() if key.startswith(folder) and "json" in key]
        return sorted(note["location"] for note in map(json.loads, bodies) if note.get("keys"))

    async def replay(self, location: str, means: Means) -> None:
        """Queue once more what was set aside."""
        with self.tried():
            again = await Quarantine(MANIFEST, means).replay(location, self.producer(means))
            self.world.note(f"replays {self.shared.name(location)} as {again}")

    async def drain(self) -> None:
        means = self.calm_means()
        await means.clock.sleep(LATEST_WRITE)
        await read_all(self, means)
        for location in self.notes():
            if not self.shared.history.delivered.issuperset(self.shared.entries(location)):
                self.shared.mend(location)
                await self.replay(location, means)
        await read_all(self, means)
        await CleanUp(files=self.files(means), means=means, backoff=QUICK).run()
        with self.tried():
            await orphans(OrphanCollector, means, grace=0).run()


async def damage(scene: Scene) -> None:
    """A batch that is stored is cut short, written over, or gone."""
    shared, random = scene.shared, scene.world.random
    good = sorted(key for key in shared.objects if key in shared.history.entries and key not in shared.history.damaged)
    if good and len(shared.history.damaged) < MOST_DAMAGED:
        key = random.choice(good)
        body = shared.objects[key].body
        shared.damage(key, random.choice([body[: len(body) // 2], b"", b"\x00 no batch", None]))
        scene.world.note(f"damages {shared.name(key)}")


async def replay_some(scene: Scene) -> None:
    """One or two operators replay what was set aside, mended or not, perhaps the same and perhaps twice."""
    assert isinstance(scene, Damaging)
    random = scene.world.random
    for _ in range(random.choice([1, 2])):
        if not (notes := scene.notes()):
            return
        location = random.choice(notes)
        if random.random() < 0.6:
            scene.shared.mend(location)
        elif scene.unmended == MOST_UNMENDED:
            return
        else:
            scene.unmended += 1
        scene.process("operator").spawn(scene.replay(location, scene.means()))


class LosesNotes:
    """Broken on purpose: a store that keeps no note of what is set aside."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    async def create(self, key: str, body: bytes) -> Created | Exists:
        if key.startswith(quarantine_folder(MANIFEST)) and key.endswith(".json"):
            return Created(Version("no version"))
        return await self._store.create(key, body)


class WithoutNotes(Damaging):
    """Collectors that set aside what cannot be read, and note it nowhere."""

    def means(self, *, slowness: float = 1.0) -> Means:
        means = super().means(slowness=slowness)
        return replace(means, store=LosesNotes(means.store))  # type: ignore[arg-type]  # the rest is passed on


TROUBLES: tuple[Trouble, ...] = (damage, damage, damage, replay_some, replay_some, pause, crash, collect_orphans)


def bad_batches(kind: type[Damaging]) -> Scenario:
    """A pipeline with damage, while operators look after what was set aside."""

    async def scenario(world: World) -> None:
        mode = world.random.choice(list(Mode))
        shared = WatchedStore(world, ordered=mode is Mode.ORDERED)
        scene = kind(world, Variant(), mode, shared, ROUGH)
        for _ in range(world.random.randint(1, 3)):
            scene.start_producer()
        scene.start_collector()
        for _ in range(world.random.randrange(2, 7)):
            await world.clock.sleep(world.random.expovariate(3))
            await world.random.choice(TROUBLES)(scene)
        await come_to_rest(scene)

    return scenario


QUARANTINE_SOUND: dict[str, Scenario] = {"buffer_bad_batches": bad_batches(Damaging)}
QUARANTINE_BROKEN: dict[str, Scenario] = {"buffer_set_aside_without_note": bad_batches(WithoutNotes)}
