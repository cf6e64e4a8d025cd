"""Waiting for batches: for a while, for ever, until the collector is closed; and in which partitions they are."""

import asyncio
from dataclasses import replace

import pytest

from lakehead.buffer.collector import CollectedBatch, Collector
from lakehead.buffer.config import CollectorConfig
from lakehead.buffer.consumer import Mode
from lakehead.buffer.errors import Fenced, Refused
from lakehead.buffer.layout import Pair
from lakehead.clock import SystemClock
from lakehead.errors import Unavailable
from lakehead.wire.batch import encode_json
from tests.unit.buffer.scene import DOWN, MANIFEST, PAIR, WHERE, Call, Scene, entries, play, values


def reads(call: Call) -> bool:
    return call[0] == "get" and call[1].endswith(".json")


def of_partition(number: int) -> tuple[str, str]:
    pair = Pair.of(MANIFEST, number)
    return pair.producer, pair.consumer


async def fill_partition(scene: Scene, number: int, *values: str, partitions: int) -> None:
    """Queue a batch for each value in one partition, by hand."""
    locations = []
    for value in values:
        locations.append(f"ingest/{scene.world.ids.uuid()}.batch")
        await scene.store.inner.put(locations[-1], encode_json(entries(value)))
    for each in range(partitions):
        key = Pair.of(MANIFEST, each).producer
        now = replace(await scene.producer(key), partitions=partitions, data_path_prefix="ingest")
        if each == number:
            now = replace(now, pending=(*now.pending, *locations))
        await scene.store.inner.put(key, now.encode())


# --- time


def test_next_batch_waits_for_what_comes_within_its_timeout() -> None:
    async def story(scene: Scene) -> None:
        async with scene.collector() as collector:
            began = scene.clock.monotonic()
            assert await collector.next_batch() is None
            assert scene.clock.monotonic() == began
            assert await collector.next_batch(timeout=5) is None
            assert scene.clock.monotonic() == pytest.approx(began + 5)
            waiting = asyncio.create_task(collector.next_batch(timeout=5))
            await scene.later(3)
            await scene.fill("a")
            assert values(await waiting) == ["a"]
            assert scene.clock.monotonic() < began + 9.5

    play(story)


def test_a_long_wait_looks_about_once_a_second() -> None:
    async def story(scene: Scene) -> None:
        async with scene.collector() as collector:
            await collector.next_batch(timeout=100)
            assert 90 <= scene.store.count(lambda call: call == ("get", PAIR.producer)) <= 220

    play(story)


def test_a_loop_over_the_collector_waits_for_batches_and_ends_when_it_is_closed() -> None:
    async def story(scene: Scene) -> None:
        collector = scene.collector()
        got = []

        async def consume() -> None:
            async for batch in collector:
                got.append(values(batch))
                await collector.ack(batch)

        consuming = asyncio.create_task(consume())
        for value in "abc":
            await scene.fill(value)
            await scene.later(100)
        assert got == [["a"], ["b"], ["c"]]
        before = scene.clock.monotonic()
        await collector.close()
        await consuming
        assert scene.clock.monotonic() == before
        assert [batch async for batch in collector] == []

    play(story)


@pytest.mark.parametrize("held", [None, "get"])
def test_a_wait_ends_at_once_when_the_collector_is_closed(held: str | None) -> None:
    async def story(scene: Scene) -> None:
        collector = scene.collector()
        if held:
            scene.store.hold(lambda call: call[0] == held)
        waiting = asyncio.create_task(collector.next_batch(timeout=None))
        await scene.later(20)
        before = scene.clock.monotonic()
        closing = asyncio.create_task(collector.close())
        with pytest.raises(Refused):
            await waiting
        assert scene.clock.monotonic() == before
        if held:
            assert not closing.done(), "a request that is under way is waited for"
            scene.store.release()
        await closing

    play(story)


def test_the_machines_clock_is_the_default() -> None:
    assert isinstance(Collector(CollectorConfig(object_store_config=WHERE))._means.clock, SystemClock)


# --- partitions


def test_many_idle_partitions_do_not_slow_down_a_busy_one() -> None:
    async def story(scene: Scene) -> None:
        batches = [str(number) for number in range(160)]
        await fill_partition(scene, 7, *batches, partitions=64)
        async with scene.collector() as collector:
            assert values(await collector.next_batch()) == ["0"]
            await scene.later(0.1)
            scene.store.calls.clear()
            got = []
            for _ in range(159):
                batch = await collector.next_batch()
                got += values(batch)
            assert got == batches[1:]
            assert scene.store.count(reads) <= 2 * 10, "no look at idle ones within half a second"

    play(story, seeds=2)


def test_idle_partitions_are_looked_at_while_another_is_busy() -> None:
    async def story(scene: Scene) -> None:
        await fill_partition(scene, 7, *(str(number) for number in range(200)), partitions=8)
        async with scene.collector() as collector:
            for _ in range(20):
                await collector.next_batch()
            await fill_partition(scene, 3, "late", partitions=8)
            scene.store.calls.clear()
            got: list[str] = []
            while "late" not in got:
                batch = await collector.next_batch()
                assert batch is not None
                got += values(batch)
                await collector.ack(batch) if batch.partition == 3 else None
                await scene.later(0.1)
            assert len(got) < 15
            for _ in range(100):
                await collector.next_batch()
                await scene.later(0.1)
            looks = scene.store.count(lambda call: call == ("get", Pair.of(MANIFEST, 0).producer))
            assert 10 <= looks <= 35, "in ten seconds and some, about twice a second"

    play(story)


def test_all_partitions_are_served_in_turn() -> None:
    async def story(scene: Scene) -> None:
        for number in range(8):
            await fill_partition(scene, number, *(f"{number}.{each}" for each in range(20)), partitions=8)
        async with scene.collector(mode=Mode.COMPETING) as collector:
            seen = []
            for _ in range(80):
                batch = await collector.next_batch()
                assert batch is not None
                seen.append(batch.partition)
                await scene.later(0.01)
            assert min(seen.count(number) for number in range(8)) >= 5

    play(story)


def test_bytes_read_ahead_are_limited_for_all_partitions_together() -> None:
    async def story(scene: Scene) -> None:
        for number in range(8):
            await fill_partition(scene, number, *("x" * 1000 for _ in range(10)), partitions=8)
        size = len(encode_json(entries("x" * 1000)))
        async with scene.collector(read_ahead_bytes=6 * size) as collector:
            await collector.next_batch()
            await scene.later(1)
            scene.store.calls.clear()
            got: list[CollectedBatch] = []
            for _ in range(30):
                batch = await collector.next_batch()
                assert batch is not None
                got.append(batch)
                await scene.later(0.1)
                fetched = scene.store.count(lambda call: call[0] == "get" and call[1].endswith(".batch"))
                assert fetched <= len(got) + 8
            while batch := await collector.next_batch():
                got.append(batch)
            assert len(got) == 79

    play(story)


def test_nothing_is_said_only_after_every_partition_was_looked_at_in_this_call() -> None:
    async def story(scene: Scene) -> None:
        await fill_partition(scene, 0, partitions=32)
        async with scene.collector() as collector:
            assert await collector.next_batch() is None
            for number in range(32):
                await fill_partition(scene, number, str(number), partitions=32)
                assert values(await collector.next_batch()) == [str(number)]
                assert await collector.next_batch() is None

    play(story)


def test_a_partition_that_cannot_be_read_says_so_and_the_others_go_on() -> None:
    async def story(scene: Scene) -> None:
        for number in range(4):
            await fill_partition(scene, number, *(f"{number}.{each}" for each in range(3)), partitions=4)
        broken = of_partition(2)
        scene.store.break_(lambda call: call[1] in broken, DOWN)
        async with scene.collector() as collector:
            got: list[str] = []
            errors = 0
            while len(got) < 9:
                try:
                    got += values(await collector.next_batch())
                except Unavailable:
                    errors += 1
                    assert errors < 20
            assert errors
            assert not any(value.startswith("2.") for value in got)
            scene.store.mend()
            while len(got) < 12:
                try:
                    got += values(await collector.next_batch())
                except Unavailable:
                    continue

    play(story)


def test_a_look_in_the_background_that_is_fenced_is_told_by_the_next_call() -> None:
    async def story(scene: Scene) -> None:
        await fill_partition(scene, 0, *(str(each) for each in range(10)), partitions=2)
        await fill_partition(scene, 1, "x", partitions=2)
        async with scene.collector() as collector:
            batch = None
            while batch is None or batch.partition == 0:
                batch = await collector.next_batch()
            await collector.ack(batch)
            await scene.later(0.6)
            key = Pair.of(MANIFEST, 1).consumer
            manifest = await scene.consumer(key)
            taken = replace(manifest, owner="another", epoch=manifest.epoch + 1)
            await scene.store.inner.put(key, taken.encode())
            with pytest.raises(Fenced):
                await some_more(collector, scene)

    play(story)


async def some_more(collector: Collector, scene: Scene) -> None:
    for _ in range(6):
        assert await collector.next_batch() is not None
        await scene.later(0.6)
