"""Heartbeats get through beside slow requests and survive what goes wrong, and each cause is logged once."""

import asyncio

import pytest

from lakehead.buffer.collector import Collector
from lakehead.buffer.config import CollectorConfig, ObjectStoreConfig
from lakehead.buffer.consumer import Mode
from lakehead.buffer.layout import Pair
from lakehead.errors import Misconfigured
from lakehead.storage import proven as proven_module
from lakehead.storage.connect import StoreSettings
from lakehead.storage.memory import MemoryStore
from lakehead.storage.port import Store
from lakehead.wire.batch import KeyValueEntry
from tests.sim.world import World
from tests.unit.buffer.scene import DOWN, MANIFEST, PAIR, Scene, in_both_modes, play, seconds, values, writes


def age(scene: Scene, at_ms: int) -> float:
    return scene.clock.now_ns() / 10**9 - at_ms / 1000


@in_both_modes
def test_a_heartbeat_does_not_wait_for_a_slow_claim(mode: Mode) -> None:
    async def story(scene: Scene) -> None:
        await scene.fill("a")
        async with scene.collector(mode=mode) as collector:
            batch = await collector.next_batch()
            assert batch is not None
            await scene.fill("b")
            scene.store.hold(lambda call: call == ("get", PAIR.producer))
            waiting = asyncio.create_task(collector.next_batch())
            await scene.later(25)
            assert age(scene, (await scene.consumer()).claimed[batch.location]) < 11
            scene.store.release()
            assert values(await waiting) == ["b"]
            await collector.ack(batch)

    play(story)


def test_a_partition_whose_manifest_hangs_does_not_hold_up_the_heartbeats_of_others() -> None:
    async def story(scene: Scene) -> None:
        async with scene.ingestor(partitions=4) as ingestor:
            await ingestor.ingest([KeyValueEntry(str(number).encode(), b"x") for number in range(40)])
        async with scene.collector() as collector:
            for _ in range(4):
                assert await collector.next_batch() is not None
            hangs = Pair.of(MANIFEST, 0).consumer
            scene.store.hold(writes(hangs))
            await scene.later(25)
            ages = [age(scene, (await scene.consumer(Pair.of(MANIFEST, each).consumer)).heartbeat) for each in range(4)]
            assert ages[0] > 20
            assert max(ages[1:]) < 16
            scene.store.release()

    play(story)


def test_heartbeats_survive_an_exception_that_nobody_expected(caplog: pytest.LogCaptureFixture) -> None:
    async def story(scene: Scene) -> None:
        await scene.fill("a")
        async with scene.collector() as collector:
            batch = await collector.next_batch()
            assert batch is not None
            scene.store.break_(writes(PAIR.consumer), ZeroDivisionError("a bug"))
            await scene.later(21)
            scene.store.mend()
            await scene.later(10)
            assert age(scene, (await scene.consumer()).claimed[batch.location]) < 11
            assert collector.counts.heartbeats_failed == 2
            await collector.ack(batch)

    play(story, seeds=1)
    [record] = caplog.records
    assert record.name == "lakehead.buffer"
    assert record.exc_info is not None
    assert "a bug" in record.getMessage()


def test_a_heartbeat_that_fails_is_logged_once_until_one_succeeds(caplog: pytest.LogCaptureFixture) -> None:
    async def story(scene: Scene) -> None:
        await scene.fill("a")
        async with scene.collector() as collector:
            await collector.next_batch()
            for _ in range(2):
                scene.store.break_(writes(PAIR.consumer), DOWN)
                await scene.later(21)
                scene.store.mend()
                await scene.later(10)
            assert collector.counts.heartbeats_failed == 4

    play(story, seeds=1)
    assert len(caplog.records) == 2
    assert all("Check that the store" in record.getMessage() for record in caplog.records)


# --- how long requests for manifests may take


def test_manifests_are_read_and_written_with_a_third_of_the_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[StoreSettings] = []

    def open_(url: str, settings: StoreSettings, **_: object) -> Store:
        del url
        opened.append(settings)
        return MemoryStore(clock=World(0).clock)

    monkeypatch.setattr(proven_module, "open_store", open_)
    where = ObjectStoreConfig(url="s3://bucket/prefix")

    collector = Collector(CollectorConfig(object_store_config=where))

    assert [each.request_timeout for each in opened] == [60, 10]
    [reader] = collector._readers.all
    assert reader.consumer._means.store is not collector._means.store
    opened.clear()
    Collector(CollectorConfig(object_store_config=where), store=MemoryStore(clock=World(0).clock))
    Collector(CollectorConfig(object_store_config=ObjectStoreConfig(url="file:///lake")))
    Collector(CollectorConfig(object_store_config=where, heartbeat_timeout_ms=seconds(200)))
    assert [each.request_timeout for each in opened] == [60, 60], "one store where its requests are short enough"


def test_a_timeout_that_one_connection_outlives_is_refused() -> None:
    where = ObjectStoreConfig(url="s3://bucket/prefix", settings=StoreSettings(connect_timeout=11))

    with pytest.raises(Misconfigured, match=r"connect_timeout .* 11 s.* a third of heartbeat_timeout_ms"):
        CollectorConfig(object_store_config=where)
    CollectorConfig(object_store_config=where, heartbeat_timeout_ms=seconds(33))
