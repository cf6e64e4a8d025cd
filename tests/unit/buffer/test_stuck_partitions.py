"""A partition whose next batch cannot be handed out says so, and takes neither turns nor room from the others."""

from collections.abc import Callable

import pytest

from lakehead.buffer.layout import Pair
from lakehead.errors import LakeheadError, Unavailable
from lakehead.wire.errors import NewerFormat, Unreadable
from tests.unit.buffer.scene import DOWN, MANIFEST, Call, Scene, batches, play, values
from tests.unit.buffer.test_bad_batches import NEWER
from tests.unit.buffer.test_waiting import fill_partition

GARBAGE = b"LKB1 garbage"


async def fill_two(scene: Scene, stuck: int, good: int) -> str:
    """Two partitions: four batches in the one, so many good ones in the other; the first location of the one."""
    await fill_partition(scene, 1 - stuck, *(f"good {number}" for number in range(good)), partitions=2)
    await fill_partition(scene, stuck, "first", "behind", "behind", "behind", partitions=2)
    return (await scene.producer(Pair.of(MANIFEST, stuck).producer)).pending[0]


def asks_for(location: str) -> Callable[[Call], bool]:
    return lambda call: call == ("get", location)


@pytest.mark.parametrize("stuck", [0, 1])
@pytest.mark.parametrize("read_ahead_bytes", [1, 1 << 20])
@pytest.mark.parametrize(
    ("body", "error"), [(NEWER, NewerFormat), (GARBAGE, Unreadable), (None, Unavailable)], ids=["newer", "bad", "down"]
)
def test_a_partition_that_is_stuck_does_not_keep_others_from_being_read(
    stuck: int, read_ahead_bytes: int, body: bytes | None, error: type[LakeheadError]
) -> None:
    async def story(scene: Scene) -> None:
        first = await fill_two(scene, stuck, 30)
        if body is None:
            scene.store.break_(asks_for(first), DOWN)
        else:
            await scene.store.inner.put(first, body)
        got: list[str] = []
        raised = 0
        async with scene.collector(read_ahead_bytes=read_ahead_bytes, max_bad_batches_in_a_row=0) as collector:
            while len(got) < 30:
                try:
                    batch = await collector.next_batch()
                except error:
                    raised += 1
                    assert raised < 100
                    await scene.later(0.01)
                else:
                    assert batch is not None
                    got += values(batch)
                    await collector.ack(batch)
            assert got == [f"good {number}" for number in range(30)]
            with pytest.raises(error):
                await collector.next_batch(timeout=1)

    play(story)


@pytest.mark.parametrize("stuck", [0, 1])
def test_a_batch_that_could_not_be_fetched_once_does_not_wait_until_others_have_nothing_more(stuck: int) -> None:
    async def story(scene: Scene) -> None:
        first = await fill_two(scene, stuck, 200)
        scene.store.break_(asks_for(first), DOWN, times=1)
        got: list[str] = []
        async with scene.collector() as collector:
            while "behind" not in got:
                try:
                    batch = await collector.next_batch()
                except Unavailable:
                    continue
                got += values(batch)
                assert batch is not None
                await collector.ack(batch)
        assert len(got) < 60

    play(story)


def test_what_was_read_ahead_behind_a_batch_that_failed_is_read_ahead_again() -> None:
    async def story(scene: Scene) -> None:
        await scene.fill(*"abcdefgh")
        first = (await scene.producer()).pending[0]
        async with scene.collector() as collector:
            scene.store.break_(asks_for(first), DOWN, times=1)
            with pytest.raises(Unavailable):
                await collector.next_batch()
            assert values(await collector.next_batch()) == ["a"]
            await scene.later(1)
            scene.store.break_(batches, DOWN)
            got = [values(await collector.next_batch()) for _ in range(7)]
            assert got == [[value] for value in "bcdefgh"]
            scene.store.mend()

    play(story)


def test_a_fetch_that_fails_in_an_unforeseen_way_is_tried_again() -> None:
    async def story(scene: Scene) -> None:
        await scene.fill("a")
        async with scene.collector() as collector:
            scene.store.break_(batches, MemoryError("no room"), times=1)
            with pytest.raises(MemoryError):
                await collector.next_batch()
            assert values(await collector.next_batch()) == ["a"]

    play(story)


def test_an_empty_object_leaves_as_much_room_as_there_was() -> None:
    async def story(scene: Scene) -> None:
        await scene.fill(*"abcd")
        for location in (await scene.producer()).pending[::2]:
            await scene.store.inner.put(location, b"")
        async with scene.collector(read_ahead_bytes=1) as collector:
            assert await scene.all_of(collector) == ["b", "d"]
            assert collector._readers.all[0]._read_ahead._bytes == 0

    play(story)
