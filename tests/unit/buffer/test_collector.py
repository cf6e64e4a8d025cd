"""The collector: what it hands out, how far it reads ahead, and what it says when it cannot."""

import asyncio
from typing import Any

import pytest

from lakehead.buffer.config import CollectorConfig
from lakehead.buffer.consumer import Mode
from lakehead.buffer.errors import Refused
from lakehead.errors import Misconfigured, Unavailable
from lakehead.wire.batch import encode_json
from tests.unit.buffer.scene import (
    DOWN,
    MANIFEST,
    PAIR,
    WHERE,
    Scene,
    entries,
    in_both_modes,
    play,
    seconds,
    values,
    writes,
)


def test_the_defaults_are_those_of_the_specification() -> None:
    config = CollectorConfig(object_store_config=WHERE)

    assert config.manifest_path == MANIFEST
    assert config.heartbeat_timeout_ms == seconds(30)
    assert config.done_cleanup_threshold == 100
    assert config.mode is Mode.ORDERED


@pytest.mark.parametrize("name", ["heartbeat_timeout_ms", "done_cleanup_threshold", "read_ahead", "manifest_path"])
def test_a_bad_setting_is_named_at_construction(name: str) -> None:
    bad: Any = {"heartbeat_timeout_ms": seconds(0), "manifest_path": "a/"}.get(name, 0)

    with pytest.raises(Misconfigured, match=name):
        CollectorConfig(object_store_config=WHERE, **{name: bad})


@in_both_modes
def test_batches_come_out_in_the_order_of_the_queue_and_then_none(mode: Mode) -> None:
    async def story(scene: Scene) -> None:
        async with scene.collector(mode=mode) as collector:
            assert await collector.next_batch() is None
            await scene.fill("a", "b", "c")
            assert await scene.all_of(collector) == ["a", "b", "c"]
            assert await collector.next_batch() is None

    play(story)


def test_a_hand_made_queue_of_the_specification_is_read() -> None:
    async def story(scene: Scene) -> None:
        first, second = "data/f47ac10b-58cc-4372-a567-0e02b2c3d479.json", "data/other.batch"
        await scene.store.inner.put(first, encode_json(entries("a")))
        await scene.store.inner.put(second, encode_json(entries("b")))
        await scene.store.inner.put(PAIR.producer, f'{{"pending": ["{first}", "{second}"]}}'.encode())
        await scene.store.inner.put(PAIR.consumer, f'{{"claimed": {{}}, "done": ["{first}"]}}'.encode())
        async with scene.collector(done_cleanup_threshold=1) as collector:
            assert await scene.all_of(collector) == ["b"]
        assert (await scene.producer()).pending == ()
        assert {first, second} <= set(await scene.keys()), "what no ingestor of the queue stored is never deleted"

    play(story)


def test_hours_without_a_collector_hold_nobody_up() -> None:
    async def story(scene: Scene) -> None:
        async with scene.ingestor() as ingestor:
            for number in range(1_000):
                await ingestor.ingest(entries(str(number)))
                await scene.later(20)
        async with scene.collector() as collector:
            assert await scene.all_of(collector) == [str(number) for number in range(1_000)]

    play(story, seeds=1)


def test_a_hundred_batches_cost_far_fewer_reads_of_manifests() -> None:
    async def story(scene: Scene) -> None:
        await scene.fill(*(str(number) for number in range(100)))
        scene.store.calls.clear()
        async with scene.collector() as collector:
            got = []
            while (batch := await collector.next_batch()) is not None:
                got.append(batch)
            assert [values(each) for each in got] == [[str(number)] for number in range(100)]
            await collector.ack(*got)
        reads = scene.store.count(lambda call: call[0] == "get" and call[1] in (PAIR.producer, PAIR.consumer))
        assert reads <= 20
        assert scene.store.count(writes(PAIR.consumer)) <= 20

    play(story, seeds=1)


def test_batches_are_fetched_side_by_side_within_the_limit_of_bytes() -> None:
    async def story(scene: Scene) -> None:
        await scene.fill(*("x" * 1000 for _ in range(10)))
        size = len(encode_json(entries("x" * 1000)))
        async with scene.collector(read_ahead_bytes=4 * size) as collector:
            scene.store.calls.clear()
            await collector.next_batch()
            await collector.next_batch()
            await scene.later(1)
            fetched = scene.store.count(lambda call: call[0] == "get" and call[1].endswith(".batch"))
            assert 4 <= fetched <= 6

    play(story)


def test_a_next_batch_that_is_cancelled_loses_nothing() -> None:
    async def story(scene: Scene) -> None:
        await scene.fill("a", "b")
        async with scene.collector() as collector:
            got = []
            for held in ("get", "create", "replace"):
                scene.store.hold(lambda call, held=held: call[0] == held)  # type: ignore[misc]  # a default binds it
                waiting = asyncio.create_task(collector.next_batch())
                await scene.later(1)
                if not waiting.done():
                    waiting.cancel()
                    await asyncio.wait([waiting])
                    scene.store.release()
                    await scene.later(1)
                else:
                    got += values(waiting.result())
                    scene.store.release()
            while (batch := await collector.next_batch()) is not None:
                got += values(batch)
            assert got == ["a", "b"]

    play(story, seeds=10)


def test_a_store_that_is_down_for_a_while_is_an_error_that_can_be_waited_out() -> None:
    async def story(scene: Scene) -> None:
        await scene.fill("a")
        async with scene.collector() as collector:
            scene.store.break_(lambda call: call[1].endswith(".batch"), DOWN, times=1)
            with pytest.raises(Unavailable):
                await collector.next_batch()
            assert values(await collector.next_batch()) == ["a"]

    play(story)


@pytest.mark.parametrize("manifest", [PAIR.producer, PAIR.consumer])
def test_a_manifest_that_cannot_be_read_is_an_error_and_stays_as_it_is(manifest: str) -> None:
    async def story(scene: Scene) -> None:
        await scene.store.inner.put(manifest, b'{"pending": 1, "done": 1}')
        async with scene.collector() as collector:
            with pytest.raises(Exception, match="repair it by hand"):
                await collector.next_batch()
        there = await scene.store.inner.get(manifest)
        assert there is not None
        assert there.body == b'{"pending": 1, "done": 1}'

    play(story)


def test_a_closed_collector_hands_out_nothing() -> None:
    async def story(scene: Scene) -> None:
        collector = scene.collector()
        await collector.close()
        with pytest.raises(Refused):
            await collector.next_batch()

    play(story)
