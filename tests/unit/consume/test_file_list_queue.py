"""Lists of files: each once, in flat memory."""

import tracemalloc
from datetime import UTC, datetime, timedelta

import pytest

from lakehead.consume.queues.file_list_queue import FileListQueue
from lakehead.errors import Unavailable
from lakehead.storage.memory_store import MemoryStore
from tests.support.effort import effort
from tests.support.queue_kinds import OutageStore
from tests.support.simulation import START_NS, World
from tests.unit.consume.test_folder_queue import _ManyFiles

MINUTE = timedelta(minutes=1)
NOW = timedelta(0)


def test_a_list_is_drained_when_every_file_is_acknowledged() -> None:
    world = World(1)

    async def test() -> None:
        queue = FileListQueue.of_uris(["s3://b/1", "s3://b/2", "s3://b/1"], world.clock)
        drained = [queue.drained]
        held = await queue.receive(10, visibility=MINUTE, wait=NOW)
        assert [message.body for message in held] == [b"s3://b/1", b"s3://b/2"]
        assert not await queue.receive(10, visibility=MINUTE, wait=NOW)
        drained.append(queue.drained)
        assert not await queue.acknowledge(held[:1])
        await world.clock.sleep(61)
        [again] = await queue.receive(10, visibility=MINUTE, wait=NOW)
        assert again.id == held[1].id
        drained.append(queue.drained)
        assert not await queue.acknowledge([again])
        assert [*drained, queue.drained] == [False, False, False, True]
        await queue.close()

    world.loop.simulate(test())


def test_an_empty_list_is_drained_when_it_was_looked_at() -> None:
    world = World(1)

    async def test() -> None:
        queue = FileListQueue.of_store(MemoryStore(clock=world.clock), "memory://m", world.clock)
        assert not await queue.receive(1, visibility=MINUTE, wait=NOW)
        assert queue.drained

    world.loop.simulate(test())


def test_only_files_modified_after_a_time_and_no_hidden_ones() -> None:
    world = World(1)

    async def test() -> None:
        store = MemoryStore(clock=world.clock)
        await store.put("old", b"")
        await world.clock.sleep(100)
        for key in ("new", "_SUCCESS"):
            await store.put(key, b"")
        after = datetime.fromtimestamp(START_NS / 1e9 + 50, UTC)
        queue = FileListQueue.of_store(store, "memory://m", world.clock, modified_after=after)
        found = await queue.receive(10, visibility=MINUTE, wait=NOW)
        assert [message.body for message in found] == [b"memory://m/new"]
        assert queue.skipped == 1

    world.loop.simulate(test())


def test_a_listing_goes_on_after_an_outage_where_it_was() -> None:
    world = World(1)

    async def test() -> None:
        inner = MemoryStore(clock=world.clock, page_size=2)
        for number in range(6):
            await inner.put(str(number), b"")
        store = OutageStore(inner)
        queue = FileListQueue.of_store(store, "memory://m", world.clock)
        first = await queue.receive(2, visibility=MINUTE, wait=NOW)
        assert not await queue.acknowledge(first)
        await queue._uris.close()  # as an error in the middle does
        store.is_down = True
        with pytest.raises(Unavailable):
            await queue.receive(2, visibility=MINUTE, wait=NOW)
        store.is_down = False
        found = [*first]
        while len(found) < 6:
            found += await queue.receive(10, visibility=MINUTE, wait=NOW)
        assert sorted(message.body[-1:] for message in found) == [b"0", b"1", b"2", b"3", b"4", b"5"]
        await queue.close()

    world.loop.simulate(test())


@pytest.mark.slow
def test_memory_does_not_grow_with_the_list() -> None:
    world = World(1)
    files = effort(20_000, soak=500_000)
    store = _ManyFiles(files)
    queue = FileListQueue.of_store(store, "memory://many", world.clock)  # type: ignore[arg-type]  # it only lists

    async def test() -> None:
        came = 0
        while not queue.drained:
            found = await queue.receive(1_000, visibility=MINUTE, wait=NOW)
            came += len(found)
            await queue.acknowledge(found)
        assert came == files

    tracemalloc.start()
    try:
        world.loop.simulate(test())
        assert tracemalloc.get_traced_memory()[1] < 3 << 20
    finally:
        tracemalloc.stop()
