"""The manifest queue read for its locations: what it does beyond the suite of all queues."""

import asyncio
import gc
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from lakehead.buffer.config import IngestorConfig, ObjectStoreConfig
from lakehead.buffer.deps import BufferDeps
from lakehead.buffer.errors import InvalidCall
from lakehead.buffer.ingestor import Ingestor
from lakehead.buffer.inspection import inspect_partitions
from lakehead.buffer.layout import owner_key
from lakehead.clock import SystemClock
from lakehead.consume.queue import Message
from lakehead.consume.queues.manifest_queue import ManifestQueue, ManifestQueueSettings
from lakehead.errors import Misconfigured, Unavailable
from lakehead.storage.memory_store import MemoryStore
from lakehead.storage.port import Object, Store
from lakehead.wire.batch import KeyValueEntry
from tests.support.async_tests import async_test
from tests.support.queue_kinds import OutageStore
from tests.support.simulation import World

WHERE = ObjectStoreConfig(url="memory://")
SETTINGS = ManifestQueueSettings(object_store_config=WHERE)
MINUTE = timedelta(minutes=1)
LONG = timedelta(minutes=10)
NOW = timedelta(0)


class ReadsStore(OutageStore):
    """A store that notes what is read."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.read: set[str] = set()

    async def get(self, key: str, *, start: int = 0, end: int | None = None) -> Object | None:
        self.read.add(key)
        return await super().get(key, start=start, end=end)


class NoOwnerStore(OutageStore):
    """A store that does not tell whose a prefix is when it is asked for the first time."""

    async def get(self, key: str, *, start: int = 0, end: int | None = None) -> Object | None:
        self.is_down = key == owner_key(SETTINGS.data_path_prefix) and not self._was_asked
        self._was_asked |= self.is_down
        try:
            return await super().get(key, start=start, end=end)
        finally:
            self.is_down = False

    _was_asked = False


class Setup:
    """A world with one queue."""

    def __init__(self) -> None:
        self.world = World(5)
        self.store = MemoryStore(clock=self.world.clock)
        self.deps: dict[str, Any] = {"ids": self.world.ids, "random": self.world.random}

    def queue(self, store: Store | None = None, **changes: Any) -> ManifestQueue:
        settings = replace(SETTINGS, **changes)
        return ManifestQueue(settings, self.world.clock, store=store or self.store, **self.deps)

    async def ingest(self, count: int, *, partitions: int = 1) -> None:
        config = IngestorConfig(object_store_config=WHERE, partitions=partitions)
        async with Ingestor(config, self.world.clock, store=self.store, **self.deps) as ingestor:
            for number in range(count):
                await ingestor.ingest([KeyValueEntry(str(number).encode(), b"v")])
                await ingestor.flush()

    async def batches(self) -> list[str]:
        return [each.key async for page in self.store.list() for each in page if each.key.endswith(".batch")]


async def take(queue: ManifestQueue, most: int, visibility: timedelta = MINUTE) -> list[Message]:
    return list(await queue.receive(most, visibility=visibility, wait=timedelta(seconds=5)))


def bodies(messages: Sequence[Message]) -> list[str]:
    return sorted(message.body.decode() for message in messages)


def test_what_was_claimed_by_a_call_that_failed_is_returned_by_the_next_one() -> None:
    """Else the queue looks empty until the visibility timeout is over, and whoever consumes it until then ends."""
    setup = Setup()

    async def test() -> None:
        await setup.ingest(3)
        queue = setup.queue(NoOwnerStore(setup.store), heartbeat_timeout=timedelta(seconds=2))
        with pytest.raises(Unavailable):
            await take(queue, 9)
        other = setup.queue(heartbeat_timeout=timedelta(seconds=2))
        assert await other.receive(9, visibility=MINUTE, wait=timedelta(seconds=10)) == []

        first = await take(queue, 2)
        rest = await take(queue, 9)
        assert bodies([*first, *rest]) == sorted(await setup.batches())
        assert {message.deliveries for message in [*first, *rest]} == {1}
        assert not await queue.acknowledge([*first, *rest])
        await queue.close()
        await other.close()

    setup.world.loop.simulate(test())


def test_batches_are_never_fetched_and_are_deleted_when_enough_are_acknowledged() -> None:
    setup = Setup()

    async def test() -> None:
        await setup.ingest(6, partitions=3)
        there = await setup.batches()
        store = ReadsStore(setup.store)
        queue = setup.queue(store, done_cleanup_threshold=1)
        held = await take(queue, 10)

        assert bodies(held) == sorted(there)
        assert not await queue.acknowledge(held)
        await queue.close()
        assert not [key for key in store.read if key.endswith(".batch")]
        assert not await setup.batches()

    setup.world.loop.simulate(test())


def test_heartbeats_go_on_until_a_message_is_settled() -> None:
    setup = Setup()

    async def test() -> None:
        await setup.ingest(1)
        first, second = setup.queue(), setup.queue()
        held = await take(first, 1, LONG)
        for _ in range(20):  # each longer than the heartbeat timeout
            await setup.world.clock.sleep(35)
            assert not await take(second, 1)
            assert not await first.extend(held, LONG)
        assert not await first.acknowledge(held)
        await first.close()
        await second.close()

    setup.world.loop.simulate(test())


def test_what_a_dead_consumer_held_is_taken_over_and_its_messages_count_as_failed() -> None:
    setup = Setup()

    async def test() -> None:
        await setup.ingest(3)
        store = OutageStore(setup.store)
        first, second = setup.queue(store), setup.queue()
        held = await take(first, 2, LONG)
        store.is_down = True  # no heartbeats
        await setup.world.clock.sleep(40)
        taken = [*await take(second, 5, LONG), *await take(second, 5, LONG), *await take(second, 5, LONG)]
        store.is_down = False

        assert {message.body for message in taken} >= {message.body for message in held}
        assert await first.extend(held, LONG) == held
        assert await first.extend(held, NOW) == held
        assert await first.acknowledge(held) == held
        assert not await second.extend(taken, LONG)
        assert not await second.acknowledge(taken)
        assert not await take(first, 5)  # it goes on
        await setup.ingest(1)
        assert len(await take(first, 5)) == 1
        await first.close()
        await second.close()

    setup.world.loop.simulate(test())


def test_deliveries_are_counted() -> None:
    setup = Setup()

    async def test() -> None:
        await setup.ingest(2)
        queue = setup.queue()
        held = await take(queue, 2)
        assert not await queue.extend(held, NOW)
        again = await take(queue, 2)

        assert [message.deliveries for message in held] == [1, 1]
        assert [message.deliveries for message in again] == [2, 2]
        await queue.close()

    setup.world.loop.simulate(test())


def test_an_entry_that_is_no_batch_is_delivered_as_it_stands_and_never_deleted() -> None:
    setup = Setup()

    async def test() -> None:
        await setup.ingest(1, partitions=2)
        await setup.store.put("other/object.json", b"{}")
        queue = setup.queue(done_cleanup_threshold=1)
        await queue.acknowledge(await take(queue, 1))
        await queue.send([b"other/object.json", b"other/object.json"])
        held = await take(queue, 5)
        assert [message.body.partition(b"#")[0] for message in held] == [b"other/object.json"] * 2
        assert len({message.body for message in held}) == 2, "each is an entry of its own"

        await queue.send([held[0].body])  # a dead letter that was replayed before
        assert not await queue.acknowledge(held)
        [again] = await take(queue, 5)
        assert again.body.count(b"#") == 1
        assert not await queue.acknowledge([again])
        assert await setup.store.head("other/object.json") is not None
        with pytest.raises(InvalidCall, match="not the location"):
            await queue.send([b"//"])
        await queue.close()

    setup.world.loop.simulate(test())


def test_a_closed_queue_leaves_no_claims() -> None:
    setup = Setup()

    async def test() -> None:
        await setup.ingest(8, partitions=4)
        queue = setup.queue()
        await take(queue, 3, LONG)
        await take(queue, 3, LONG)
        await queue.close()
        deps = BufferDeps(store=setup.store, clock=setup.world.clock, **setup.deps)
        assert not [each for each in await inspect_partitions(SETTINGS.manifest_path, deps) if each.claimed]

    setup.world.loop.simulate(test())


def test_an_outage_shorter_than_the_heartbeat_timeout_loses_nothing() -> None:
    setup = Setup()

    async def test() -> None:
        await setup.ingest(4)
        store = OutageStore(setup.store)
        queue = setup.queue(store)
        held = await take(queue, 4, LONG)
        store.is_down = True
        await setup.world.clock.sleep(20)
        store.is_down = False
        await setup.world.clock.sleep(60)

        assert not await queue.extend(held, LONG)
        assert not await queue.acknowledge(held)
        await queue.close()

    setup.world.loop.simulate(test())


def test_invalid_settings_are_told() -> None:
    with pytest.raises(Misconfigured, match="heartbeat_timeout"):
        replace(SETTINGS, heartbeat_timeout=timedelta(0))


def test_a_batch_that_is_kept_can_be_sent_again_though_clean_up_has_deleted_it() -> None:
    setup = Setup()

    async def test() -> None:
        await setup.ingest(1)
        queue = setup.queue(done_cleanup_threshold=1)
        [message] = await take(queue, 1)
        key = message.body.decode()
        before = await setup.store.get(key)
        await queue.keep(message.body)
        await queue.keep(message.body)
        await queue.acknowledge([message])
        await queue.close()
        assert before is not None
        assert await setup.batches() == []

        again = setup.queue()
        await again.send([message.body])
        [sent] = await take(again, 1)

        there = await setup.store.get(key)
        assert there is not None
        assert there.body == before.body
        assert sent.body.decode().startswith(f"{key}#")
        await again.close()

    setup.world.loop.simulate(test())


@async_test
async def test_a_receive_that_is_cancelled_at_any_step_leaves_nothing_undone(recwarn: pytest.WarningsRecorder) -> None:
    for steps in range(40):
        store = MemoryStore(clock=SystemClock())
        queue = ManifestQueue(SETTINGS, SystemClock(), store=store)
        receiving = asyncio.ensure_future(take(queue, 1))
        for _ in range(steps):
            await asyncio.sleep(0)
        receiving.cancel()
        await asyncio.gather(receiving, return_exceptions=True)
        await queue.close()
    gc.collect()

    assert [str(each.message) for each in recwarn] == []
