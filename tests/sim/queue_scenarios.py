"""The manifest queue as pipelines use it: consumers that crash, pause and forget, on a store with every fault."""

from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta

from lakehead.buffer.config import IngestorConfig, ObjectStoreConfig
from lakehead.buffer.deps import BufferDeps
from lakehead.buffer.ingestor import Ingestor
from lakehead.buffer.inspection import inspect_partitions
from lakehead.consume.queue import Message
from lakehead.consume.queues.manifest_queue import ManifestQueue, ManifestQueueSettings
from lakehead.errors import OutcomeUnknown, Unavailable
from lakehead.storage.memory_store import MemoryStore
from lakehead.storage.port import Store
from lakehead.wire.batch import KeyValueEntry
from tests.faults.store import Faults
from tests.support.simulation import Scenario, Violation, World

WHERE = ObjectStoreConfig(url="memory://")
TIMEOUT = 3.0
BATCHES = 3
CONSUMERS = 2
ROUNDS = 3
LIMIT = 600.0


class Consumers:
    """Consumers of one queue, and what became of its messages."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.store = MemoryStore(clock=world.clock)
        self.settings = ManifestQueueSettings(
            object_store_config=WHERE, heartbeat_timeout=timedelta(seconds=TIMEOUT), done_cleanup_threshold=2
        )
        self.sent: set[bytes] = set()
        self.acknowledged: set[bytes] = set()
        """Those of which a consumer was told that they are."""
        self.requested: set[bytes] = set()
        """Those that a consumer has tried to acknowledge."""

    def queue(self, store: Store) -> ManifestQueue:
        world = self.world
        return ManifestQueue(self.settings, world.clock, store=store, ids=world.ids, random=world.random)

    async def fill(self) -> None:
        config = IngestorConfig(object_store_config=WHERE, partitions=self.world.random.randint(1, 2))
        world = self.world
        async with Ingestor(config, world.clock, store=self.store, ids=world.ids, random=world.random) as ingestor:
            for number in range(BATCHES):
                await ingestor.ingest([KeyValueEntry(str(number).encode(), b"")])
                await ingestor.flush()
        queue = self.queue(self.store)
        await queue.send([b"other/object.json"] * 2)
        self.sent = {message.body for message in await self.receive(queue, 100)}
        await queue.close()

    async def receive(self, queue: ManifestQueue, most: int, visibility: float = 60) -> Sequence[Message]:
        found = await queue.receive(most, visibility=timedelta(seconds=visibility), wait=timedelta(seconds=0.2))
        for message in found:
            self.world.note(f"received {message.body.decode()}")
        return found

    def check_new(self, messages: Sequence[Message], acknowledged: set[bytes]) -> None:
        """Raise `Violation` if a message was acknowledged before it was received."""
        if again := acknowledged & {message.body for message in messages}:
            raise Violation(f"{again} came again after its acknowledgement")

    async def acknowledge(self, queue: ManifestQueue, messages: Sequence[Message]) -> None:
        self.requested |= {message.body for message in messages}
        failed = {message.body for message in await queue.acknowledge(messages)}
        self.acknowledged |= {message.body for message in messages} - failed

    async def consume(self, store: Store) -> None:
        """Receive, hold, extend, give back, acknowledge or forget, a few times."""
        random, clock = self.world.random, self.world.clock
        queue = self.queue(store)
        for _ in range(ROUNDS):
            with suppress(Unavailable, OutcomeUnknown):
                known = set(self.acknowledged)
                held = await self.receive(queue, random.randint(1, 4), random.choice([0.5, 5, 60]))
                self.check_new(held, known)
                await clock.sleep(random.choice([0, 0.1, 2, 8]))
                what = random.random()
                if what < 0.25:
                    await queue.extend(held, timedelta(seconds=random.choice([0, 1, 60])))
                elif what < 0.75:
                    await queue.extend(held, timedelta(seconds=30))
                    await self.acknowledge(queue, held)
        await queue.close()


async def manifest_queue(world: World) -> None:
    """Nothing that is acknowledged comes again; in the end everything is acknowledged, and no claim is left."""
    consumers = Consumers(world)
    await consumers.fill()
    if len(consumers.sent) != BATCHES + 2:
        raise Violation(f"received {consumers.sent}")
    stores = [world.faulty(consumers.store, Faults.all(0.01)) for _ in range(CONSUMERS)]
    processes = [world.process(f"consumer-{number}") for number in range(CONSUMERS)]
    for process, store in zip(processes, stores, strict=True):
        process.spawn(consumers.consume(store))
    for process in processes:
        await world.clock.sleep(world.random.uniform(0, 4))
        what = world.random.random()
        if what < 0.25:
            process.crash()
        elif what < 0.5:
            process.pause(world.random.uniform(0, 10))
    await world.until(*processes, at_most=LIMIT)
    await _drain(consumers)


async def _drain(consumers: Consumers) -> None:
    """A last consumer without faults gets what is left, when claims of the dead are stale and late writes applied."""
    world = consumers.world
    await world.clock.sleep(100)
    queue = consumers.queue(consumers.store)
    while found := await queue.receive(10, visibility=timedelta(minutes=1), wait=timedelta(0)):
        consumers.check_new(found, consumers.acknowledged)
        await consumers.acknowledge(queue, found)
    await queue.close()
    deps = BufferDeps(store=consumers.store, clock=world.clock, ids=world.ids, random=world.random)
    for partition in await inspect_partitions(consumers.settings.manifest_path, deps):
        if partition.waiting or partition.claimed:
            raise Violation(f"{partition.waiting} waits and {partition.claimed} is claimed at the end")
    if lost := consumers.sent - consumers.requested:
        raise Violation(f"{lost} is gone, and nobody has acknowledged it")


QUEUES_SOUND: dict[str, Scenario] = {"manifest_queue": manifest_queue}
