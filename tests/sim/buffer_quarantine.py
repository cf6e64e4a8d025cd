"""Batches that are damaged after they were stored: quarantined, repaired, and replayed until they arrive."""

import json
from dataclasses import dataclass, replace

from lakehead.buffer.config import CollectorMode
from lakehead.buffer.deps import BufferDeps
from lakehead.buffer.layout import quarantine_folder
from lakehead.buffer.orphan_gc import OrphanGc
from lakehead.buffer.quarantine import Quarantine
from lakehead.buffer.queue_cleanup import QueueCleanup
from lakehead.storage.port import Created, Exists, Store, Version
from tests.sim.buffer_disruptions import Disruption, collect_orphans, crash, pause
from tests.sim.buffer_model import MANIFEST, WatchedStore
from tests.sim.buffer_pipelines import Pipeline, read_all
from tests.sim.buffer_support import LATEST_WRITE, QUICK, ROUGH, QueueSimulation, Variant, finish, orphans
from tests.support.simulation import Scenario, World

MOST_DAMAGED = 2
MOST_UNMENDED = 2
"""How many are replayed unrepaired. Together with the damaged ones, fewer than a collector stops at."""


@dataclass
class Damaging(Pipeline):
    """A pipeline with damaged batches."""

    unmended: int = 0

    def notes(self) -> list[str]:
        """Return the locations of quarantined batches that have a copy."""
        folder = f"{quarantine_folder(MANIFEST)}/"
        bodies = [each.body for key, each in self.shared.objects.items() if key.startswith(folder) and "json" in key]
        return sorted(note["location"] for note in map(json.loads, bodies) if note.get("keys"))

    async def replay(self, location: str, deps: BufferDeps) -> None:
        """Replay quarantined batches."""
        with self.tried():
            again = await Quarantine(MANIFEST, deps).replay(location, self.producer(deps))
            self.world.note(f"replays {self.shared.name(location)} as {again}")

    async def drain(self) -> None:
        deps = self.calm_deps()
        await deps.clock.sleep(LATEST_WRITE)
        await read_all(self, deps)
        for location in self.notes():
            if not self.shared.history.delivered.issuperset(self.shared.entries(location)):
                self.shared.mend(location)
                await self.replay(location, deps)
        await read_all(self, deps)
        await QueueCleanup(pair=self.files(deps), deps=deps, backoff=QUICK).run()
        with self.tried():
            await orphans(OrphanGc, deps, grace=0).run()


async def damage(sim: QueueSimulation) -> None:
    """Truncate, overwrite or delete a stored batch."""
    shared, random = sim.shared, sim.world.random
    good = sorted(key for key in shared.objects if key in shared.history.entries and key not in shared.history.damaged)
    if good and len(shared.history.damaged) < MOST_DAMAGED:
        key = random.choice(good)
        body = shared.objects[key].body
        shared.damage(key, random.choice([body[: len(body) // 2], b"", b"\x00 no batch", None]))
        sim.world.note(f"damages {shared.name(key)}")


async def replay_some(sim: QueueSimulation) -> None:
    """One or two operators replay quarantined batches, repaired or not, possibly the same ones or twice."""
    assert isinstance(sim, Damaging)
    random = sim.world.random
    for _ in range(random.choice([1, 2])):
        if not (notes := sim.notes()):
            return
        location = random.choice(notes)
        if random.random() < 0.6:
            sim.shared.mend(location)
        elif sim.unmended == MOST_UNMENDED:
            return
        else:
            sim.unmended += 1
        sim.process("operator").spawn(sim.replay(location, sim.deps()))


class LosesNotes:
    """Broken on purpose: a store that loses quarantine notes."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    async def create(self, key: str, body: bytes) -> Created | Exists:
        if key.startswith(quarantine_folder(MANIFEST)) and key.endswith(".json"):
            return Created(Version("no version"))
        return await self._store.create(key, body)


class WithoutNotes(Damaging):
    """Collectors that quarantine unreadable batches without a note."""

    def deps(self, *, slowness: float = 1.0) -> BufferDeps:
        deps = super().deps(slowness=slowness)
        return replace(deps, store=LosesNotes(deps.store))  # type: ignore[arg-type]  # the rest is passed on


TROUBLES: tuple[Disruption, ...] = (damage, damage, damage, replay_some, replay_some, pause, crash, collect_orphans)


def bad_batches(kind: type[Damaging]) -> Scenario:
    """A pipeline with damage, while operators replay quarantined batches."""

    async def scenario(world: World) -> None:
        mode = world.random.choice(list(CollectorMode))
        shared = WatchedStore(world, ordered=mode is CollectorMode.ORDERED)
        sim = kind(world, Variant(), mode, shared, ROUGH)
        for _ in range(world.random.randint(1, 3)):
            sim.start_producer()
        sim.start_collector()
        for _ in range(world.random.randrange(2, 7)):
            await world.clock.sleep(world.random.expovariate(3))
            await world.random.choice(TROUBLES)(sim)
        await finish(sim)

    return scenario


QUARANTINE_SOUND: dict[str, Scenario] = {"buffer_bad_batches": bad_batches(Damaging)}
QUARANTINE_BROKEN: dict[str, Scenario] = {"buffer_set_aside_without_note": bad_batches(WithoutNotes)}
