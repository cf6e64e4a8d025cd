"""A partition whose next batch cannot be handed out says so, and takes neither turns nor room from the others."""

from collections.abc import Callable

import pytest

from lakehead.buffer.layout import ManifestKeys
from lakehead.errors import LakeheadError, Unavailable
from lakehead.wire.errors import NewerFormat, Unreadable
from tests.unit.buffer.partition_support import fill_partition
from tests.unit.buffer.support import DOWN, MANIFEST, NEWER, Call, QueueFixture, batches, values, virtual_time

GARBAGE = b"LKB1 garbage"


async def fill_two(queue: QueueFixture, stuck: int, good: int) -> str:
    """Two partitions: four batches in the one, so many good ones in the other; the first location of the one."""
    await fill_partition(queue, 1 - stuck, *(f"good {number}" for number in range(good)), partitions=2)
    await fill_partition(queue, stuck, "first", "behind", "behind", "behind", partitions=2)
    return (await queue.producer_manifest(ManifestKeys.of(MANIFEST, stuck).producer)).pending[0]


def asks_for(location: str) -> Callable[[Call], bool]:
    return lambda call: call == ("get", location)


@pytest.mark.parametrize("stuck", [0, 1])
@pytest.mark.parametrize("read_ahead_bytes", [1, 1 << 20])
@pytest.mark.parametrize(
    ("body", "error"), [(NEWER, NewerFormat), (GARBAGE, Unreadable), (None, Unavailable)], ids=["newer", "bad", "down"]
)
@virtual_time
async def test_a_partition_that_is_stuck_does_not_keep_others_from_being_read(
    queue: QueueFixture, stuck: int, read_ahead_bytes: int, body: bytes | None, error: type[LakeheadError]
) -> None:
    first = await fill_two(queue, stuck, 30)
    if body is None:
        queue.store.fail_calls(asks_for(first), DOWN)
    else:
        await queue.store.inner.put(first, body)
    got: list[str] = []
    raised = 0
    async with queue.collector(read_ahead_bytes=read_ahead_bytes, max_bad_batches_in_a_row=0) as collector:
        while len(got) < 30:
            try:
                batch = await collector.next_batch()
            except error:
                raised += 1
                assert raised < 100
                await queue.sleep(0.01)
            else:
                assert batch is not None
                got += values(batch)
                await collector.ack(batch)
        assert got == [f"good {number}" for number in range(30)]
        with pytest.raises(error):
            await collector.next_batch(timeout=1)


@pytest.mark.parametrize("stuck", [0, 1])
@virtual_time
async def test_a_batch_that_could_not_be_fetched_once_does_not_wait_until_others_have_nothing_more(
    queue: QueueFixture, stuck: int
) -> None:
    first = await fill_two(queue, stuck, 200)
    queue.store.fail_calls(asks_for(first), DOWN, times=1)
    got: list[str] = []
    async with queue.collector() as collector:
        while "behind" not in got:
            try:
                batch = await collector.next_batch()
            except Unavailable:
                continue
            got += values(batch)
            assert batch is not None
            await collector.ack(batch)
    assert len(got) < 60


@virtual_time
async def test_what_was_read_ahead_behind_a_batch_that_failed_is_read_ahead_again(queue: QueueFixture) -> None:
    await queue.fill(*"abcdefgh")
    first = (await queue.producer_manifest()).pending[0]
    async with queue.collector() as collector:
        queue.store.fail_calls(asks_for(first), DOWN, times=1)
        with pytest.raises(Unavailable):
            await collector.next_batch()
        assert values(await collector.next_batch()) == ["a"]
        await queue.sleep(1)
        queue.store.fail_calls(batches, DOWN)
        got = [values(await collector.next_batch()) for _ in range(7)]
        assert got == [[value] for value in "bcdefgh"]
        queue.store.stop_failing()


@virtual_time
async def test_a_fetch_that_fails_in_an_unforeseen_way_is_tried_again(queue: QueueFixture) -> None:
    await queue.fill("a")
    async with queue.collector() as collector:
        queue.store.fail_calls(batches, MemoryError("no room"), times=1)
        with pytest.raises(MemoryError):
            await collector.next_batch()
        assert values(await collector.next_batch()) == ["a"]


@virtual_time
async def test_an_empty_object_leaves_as_much_room_as_there_was(queue: QueueFixture) -> None:
    await queue.fill(*"abcd")
    for location in (await queue.producer_manifest()).pending[::2]:
        await queue.store.inner.put(location, b"")
    async with queue.collector(read_ahead_bytes=1) as collector:
        assert await queue.collect_all(collector) == ["b", "d"]
        assert collector._readers.all[0]._read_ahead._bytes == 0
