"""Scenarios of the storage port: sound ones, which hold under every seed, and broken ones, which must be caught."""

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from lakehead.errors import OutcomeUnknown, Unavailable
from lakehead.ids import SeededIds
from lakehead.storage.memory_store import MemoryStore
from lakehead.storage.port import Created, Exists, Replaced, Store, Version
from lakehead.storage.probe import probe
from tests.faults.store import NO_FAULTS, Faults
from tests.support.simulation import Process, Scenario, Violation, World, until_sure

CLIENTS = "abcd"
KEY = "queue/manifest.json"
ROUGH = Faults.all(0.03)

Json = dict[str, Any]


async def read(store: Store, world: World) -> tuple[Json, Version | None]:
    """What the key holds, asked until it is answered."""
    there = await until_sure(lambda: store.get(KEY), world.clock, on=Unavailable)
    return (json.loads(there.body), there.meta.version) if there else ({"version": 0, "entries": []}, None)


async def write(store: Store, state: Json, version: Version | None) -> bool:
    """Whether the state took the place of the version that was read."""
    body = json.dumps({**state, "version": state["version"] + 1}).encode()
    answer = await (store.create(KEY, body) if version is None else store.replace(KEY, body, version))
    return isinstance(answer, Created | Replaced)


async def append_carefully(entry: str, store: Store, world: World) -> None:
    """Append an entry once: after a doubt, look whether it is there before appending again."""
    while True:
        state, version = await read(store, world)
        if entry in state["entries"]:
            return
        state["entries"].append(entry)
        try:
            if await write(store, state, version):
                return
        except (OutcomeUnknown, Unavailable):
            world.note(f"append {entry}: in doubt")
        await world.clock.sleep(world.random.uniform(0, 0.1))


async def append_again_on_conflict(entry: str, store: Store, world: World) -> None:
    """Broken on purpose: read, append, replace, and append again on whatever is not a success."""
    while True:
        state, version = await read(store, world)
        state["entries"].append(entry)
        try:
            if await write(store, state, version):
                return
        except (OutcomeUnknown, Unavailable):
            world.note(f"append {entry}: taken for a conflict")
        await world.clock.sleep(world.random.uniform(0, 0.1))


async def append_without_looking(entry: str, store: Store, world: World) -> None:
    """Broken on purpose: read, append, and put without a precondition."""
    state, _ = await read(store, world)
    state["entries"].append(entry)
    await until_sure(lambda: store.put(KEY, json.dumps(state).encode()), world.clock, on=OutcomeUnknown)


def queue(append: Callable[[str, Store, World], Any], *, faults: Faults = ROUGH, unkind: bool = True) -> Scenario:
    """Clients append to one object; what was confirmed is there once, and nothing that nobody appended."""

    async def scenario(world: World) -> None:
        shared = MemoryStore(clock=world.clock)
        confirmed: list[str] = []

        async def client(name: str) -> None:
            store = world.faulty(shared, faults)
            for n in range(2):
                await append(f"{name}.{n}", store, world)
                confirmed.append(f"{name}.{n}")
                world.note(f"{name}.{n} is confirmed")

        processes = [world.process(name) for name in CLIENTS]
        for process in processes:
            process.spawn(client(process.name))
        if unkind:
            await be_unkind(world, processes)
        await world.until(*processes)
        there = await shared.get(KEY)
        entries = json.loads(there.body)["entries"] if there else []
        if lost := [entry for entry in confirmed if entry not in entries]:
            raise Violation(f"lost {lost}: {entries}")
        if len(entries) != len(set(entries)):
            raise Violation(f"doubled: {entries}")

    return scenario


async def be_unkind(world: World, processes: list[Process]) -> None:
    """Crash or pause a process or two, at some moment."""
    for _ in range(world.random.randrange(3)):
        await world.clock.sleep(world.random.expovariate(20))
        process = world.random.choice(processes)
        if world.random.random() < 0.5:
            process.crash()
        else:
            process.pause(world.random.choice([0.1, 1, 90]))


class CheckThenPutStore(MemoryStore):
    """Broken on purpose: looks whether the key is absent, and then writes."""

    def __init__(self, world: World) -> None:
        super().__init__(clock=world.clock)
        self._world = world

    async def create(self, key: str, body: bytes) -> Created | Exists:
        if (there := await self.head(key)) is not None:
            return Exists(there.version)
        await self._world.clock.sleep(self._world.random.uniform(0, 0.01))
        return Created(await self.put(key, body))


def create_race(make_store: Callable[[World], MemoryStore], *, faults: Faults = ROUGH) -> Scenario:
    """Clients race to create one key: at most one is told that it did, and then its body is there."""

    async def scenario(world: World) -> None:
        shared = make_store(world)
        winners: list[str] = []
        unsure: list[str] = []

        async def client(name: str) -> None:
            store = world.faulty(shared, faults)
            try:
                answer = await until_sure(lambda: store.create(KEY, name.encode()), world.clock, on=Unavailable)
            except OutcomeUnknown:
                unsure.append(name)
            else:
                if isinstance(answer, Created):
                    winners.append(name)

        processes = [world.process(name) for name in CLIENTS]
        for process in processes:
            process.spawn(client(process.name))
        await world.until(*processes)
        there = await shared.get(KEY)
        owner = there.body.decode() if there else "nobody"
        if len(winners) > 1:
            raise Violation(f"{winners} were all told that they created the object")
        if winners and owner != winners[0]:
            raise Violation(f"{winners[0]} was told that it created the object, and {owner} did")
        if not winners and owner not in [*unsure, "nobody"]:
            raise Violation(f"{owner} created the object and was told that it did not")

    return scenario


async def probe_of_a_check_then_put_store(world: World) -> None:
    """The start-up probe races its own writers, and so refuses a store that only checks before it writes."""
    await probe(CheckThenPutStore(world), ids=SeededIds(world.random))


async def probe_of_a_sound_store(world: World) -> None:
    """The start-up probe accepts a sound store, over a network that is only slow."""
    await probe(world.faulty(MemoryStore(clock=world.clock), NO_FAULTS), ids=world.ids)


async def twenty_operations(world: World) -> None:
    """4 clients make 20 calls to a faulty store: the yardstick of the simulator's speed, which nothing can break."""
    shared = MemoryStore(clock=world.clock)

    async def client(name: str) -> None:
        store = world.faulty(shared, ROUGH)
        with suppress(OutcomeUnknown, Unavailable):
            await store.create(KEY, name.encode())
        seen = Version("none yet")
        for _ in range(2):
            with suppress(Unavailable):
                if (there := await store.get(KEY)) is not None:
                    seen = there.meta.version
            with suppress(OutcomeUnknown, Unavailable):
                await store.replace(KEY, name.encode(), seen)

    processes = [world.process(name) for name in CLIENTS]
    for process in processes:
        process.spawn(client(process.name))
    await world.until(*processes)


STORAGE_SOUND: dict[str, Scenario] = {
    "careful_queue": queue(append_carefully),
    "create_race": create_race(lambda world: MemoryStore(clock=world.clock)),
    "probe": probe_of_a_sound_store,
    "twenty_operations": twenty_operations,
}

STORAGE_BROKEN: dict[str, Scenario] = {
    "append_again_queue": queue(append_again_on_conflict),
    "put_queue": queue(append_without_looking, faults=NO_FAULTS, unkind=False),
    "check_then_put_store": create_race(CheckThenPutStore, faults=NO_FAULTS),
    "check_then_put_probe": probe_of_a_check_then_put_store,
}
