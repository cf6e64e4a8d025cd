"""The ingestor: when it flushes, when it waits, and what its watchers are told."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from lakehead.buffer.config import BatchFormat, IngestorConfig
from lakehead.buffer.errors import Refused
from lakehead.buffer.ingestor import Ingestor
from lakehead.buffer.watcher import Durable
from lakehead.clock import SystemClock
from lakehead.errors import Misconfigured, Unavailable
from lakehead.storage.memory import MemoryStore
from lakehead.wire.batch import MIB, KeyValueEntry
from tests.unit.buffer.scene import DOWN, PAIR, WHERE, Scene, anything, batches, entries, play, seconds, writes


def test_the_defaults_are_those_of_the_specification() -> None:
    config = IngestorConfig(object_store_config=WHERE)

    assert config.data_path_prefix == "ingest"
    assert config.manifest_path == "ingest/manifest.json"
    assert config.flush_interval == timedelta(milliseconds=100)
    assert config.flush_size_bytes == 64 * MIB
    assert config.max_unflushed_bytes == 2**63 - 1
    assert config.batch_format is BatchFormat.JSON


@pytest.mark.parametrize(
    "settings",
    [
        {"flush_size_bytes": -1},
        {"flush_interval": timedelta(0)},
        {"max_unflushed_bytes": -1},
        {"data_path_prefix": ""},
        {"data_path_prefix": "a//b"},
        {"manifest_path": "/x"},
        {"partitions": 0},
    ],
)
def test_a_bad_setting_is_named_at_construction(settings: dict[str, Any]) -> None:
    with pytest.raises(Misconfigured, match=next(iter(settings))):
        IngestorConfig(object_store_config=WHERE, **settings)


def test_all_bad_settings_are_named_at_once() -> None:
    with pytest.raises(Misconfigured, match=r"flush_size_bytes.*partitions"):
        IngestorConfig(object_store_config=WHERE, flush_size_bytes=-1, partitions=-1)


def test_a_batch_is_flushed_when_its_time_has_come_and_not_before() -> None:
    async def story(scene: Scene) -> None:
        ingestor = scene.ingestor()
        watcher = await ingestor.ingest(entries("a"))
        await scene.later(0.099)
        assert await scene.keys() == []
        assert watcher.result() is None
        await scene.later(0.002)
        [batch] = await scene.batch_keys()
        assert watcher.result() == Durable((batch,))
        assert (await scene.producer()).pending == (batch,)
        await ingestor.close()

    play(story)


def test_only_a_batch_that_exceeds_the_size_is_flushed_at_once() -> None:
    async def story(scene: Scene) -> None:
        ingestor = scene.ingestor(flush_size_bytes=8, flush_interval=seconds(60))
        watcher = await ingestor.ingest(entries("12345"))
        await scene.later(1)
        assert watcher.result() is None
        more = await ingestor.ingest(entries(""))
        await scene.later(1)
        assert isinstance(watcher.result(), Durable)
        assert watcher.result() == more.result()
        await ingestor.close()

    play(story)


def test_ingest_returns_while_the_store_hangs_and_never_waits_by_default() -> None:
    async def story(scene: Scene) -> None:
        scene.store.hold(anything)
        ingestor = scene.ingestor(flush_size_bytes=0)
        watchers = [await ingestor.ingest(entries("x" * 1000)) for _ in range(50)]
        await scene.later(3600)
        assert {watcher.result() for watcher in watchers} == {None}
        scene.store.release()
        await ingestor.close()
        assert all(isinstance(watcher.result(), Durable) for watcher in watchers)

    play(story)


@pytest.mark.parametrize("held", [batches, writes(PAIR.producer)], ids=["batch", "manifest"])
def test_nothing_is_durable_before_batch_and_location_are_stored(held: Any) -> None:
    async def story(scene: Scene) -> None:
        scene.store.hold(held)
        ingestor = scene.ingestor()
        watcher = await ingestor.ingest(entries("a"))
        waiting = asyncio.create_task(watcher.await_durable())
        await scene.later(60)
        assert not waiting.done()
        assert watcher.result() is None
        scene.store.release()
        await waiting
        assert (await scene.producer()).pending == tuple(await scene.batch_keys())
        await ingestor.close()

    play(story)


def test_above_the_limit_ingest_waits_until_less_is_unflushed_and_another_ingestor_goes_on() -> None:
    async def story(scene: Scene) -> None:
        ingestor = scene.ingestor(max_unflushed_bytes=10, flush_interval=seconds(3600))
        scene.store.hold(batches)
        await ingestor.ingest(entries("12345678"))  # 11 bytes with its key
        blocked = asyncio.create_task(ingestor.ingest(entries("later")))
        await scene.later(600)
        assert not blocked.done()
        other = scene.ingestor(max_unflushed_bytes=10)
        await other.ingest(entries("a"))
        scene.store.release()
        await blocked
        await ingestor.close()
        await other.close()
        assert sorted(await scene.all_of(scene.collector())) == ["12345678", "a", "later"]
        assert ingestor.counts.bytes_unflushed == 0

    play(story)


def test_a_caller_that_waits_makes_the_flush_begin_that_it_waits_for() -> None:
    async def story(scene: Scene) -> None:
        ingestor = scene.ingestor(max_unflushed_bytes=10, flush_interval=seconds(3600))
        await ingestor.ingest(entries("12345678"))
        await ingestor.ingest(entries("later"))
        assert scene.clock.monotonic() < 1, "the interval was not waited for"
        assert len((await scene.producer()).pending) == 1
        await ingestor.close()

    play(story)


def test_at_the_limit_ingest_does_not_wait() -> None:
    async def story(scene: Scene) -> None:
        scene.store.hold(anything)
        ingestor = scene.ingestor(max_unflushed_bytes=10)
        await ingestor.ingest(entries("1234567"))
        await ingestor.ingest(entries("not held up"))
        scene.store.release()
        await ingestor.close()

    play(story)


def test_callers_that_wait_for_room_are_let_in_one_by_one() -> None:
    async def story(scene: Scene) -> None:
        ingestor = scene.ingestor(max_unflushed_bytes=20, flush_size_bytes=0)
        scene.store.hold(batches)
        await ingestor.ingest(entries("x" * 30))
        waiting = [asyncio.create_task(ingestor.ingest(entries("y" * 30))) for _ in range(5)]
        await scene.later(1)
        scene.store.release()
        scene.store.hold(batches)
        await scene.later(1)
        assert sum(each.done() for each in waiting) <= 1
        assert ingestor.counts.bytes_unflushed <= 20 + 33
        scene.store.release()
        for each in waiting:
            await each
        await ingestor.close()

    play(story)


def test_an_empty_list_and_an_idle_ingestor_store_nothing() -> None:
    async def story(scene: Scene) -> None:
        async with scene.ingestor() as ingestor:
            watcher = await ingestor.ingest([])
            assert watcher.result() == Durable(())
            await watcher.await_durable()
            await scene.later(60)
        assert scene.store.calls == []

    play(story)


def test_ten_thousand_entries_come_out_in_order_whatever_is_slow() -> None:
    async def story(scene: Scene) -> None:
        slow = scene.store.create

        async def create(key: str, body: bytes) -> Any:
            await scene.later(scene.world.random.uniform(0, 0.5))
            return await slow(key, body)

        scene.store.create = create  # type: ignore[method-assign]  # batches overtake each other
        async with scene.ingestor(flush_size_bytes=500) as ingestor:
            for number in range(10_000):
                await ingestor.ingest(entries(str(number)))
        assert await scene.all_of(scene.collector()) == [str(number) for number in range(10_000)]

    play(story, seeds=1)


def test_flushes_that_wait_for_one_slow_write_share_the_next() -> None:
    async def story(scene: Scene) -> None:
        scene.store.hold(writes(PAIR.producer))
        async with scene.ingestor(flush_size_bytes=0) as ingestor:
            await ingestor.ingest(entries("first"))
            await scene.later(1)
            for number in range(50):
                await ingestor.ingest(entries(str(number)))
            await scene.later(1)
            scene.store.release()
        assert scene.store.count(writes(PAIR.producer)) == 2
        assert len((await scene.producer()).pending) == 51

    play(story)


def test_a_lone_ingestor_reads_the_manifest_once() -> None:
    async def story(scene: Scene) -> None:
        await scene.fill(*"abcdef")
        assert scene.store.count(lambda call: call == ("get", PAIR.producer)) == 1
        assert scene.store.count(writes(PAIR.producer)) == 6

    play(story)


def test_ingestors_that_meet_all_the_time_share_the_manifest_fairly() -> None:
    async def story(scene: Scene) -> None:
        ingestors = [scene.ingestor() for _ in range(8)]
        slow_get, slow_replace = scene.store.get, scene.store.replace

        async def get(key: str, *, start: int = 0, end: int | None = None) -> Any:
            await scene.later(0.02)
            return await slow_get(key, start=start, end=end)

        async def replace(key: str, body: bytes, version: Any) -> Any:
            await scene.later(0.02)
            return await slow_replace(key, body, version)

        scene.store.get, scene.store.replace = get, replace  # type: ignore[method-assign]  # a network's time

        async def ingest(ingestor: Any) -> None:
            while scene.clock.monotonic() < 60:
                await (await ingestor.ingest(entries("x"))).await_durable()
            await ingestor.close()

        await asyncio.gather(*map(ingest, ingestors))
        flushed = [ingestor.counts.batches_flushed for ingestor in ingestors]
        writes_, conflicts = (
            sum(count["producer"] for count in counts)
            for counts in zip(
                *((i.counts.manifest_writes, i.counts.manifest_conflicts) for i in ingestors), strict=True
            )
        )
        assert min(flushed) > 0.5 * max(flushed), flushed
        assert conflicts < 2 * (writes_ - conflicts)

    play(story, seeds=1)


def test_a_foreign_key_of_a_manifest_survives_a_flush() -> None:
    async def story(scene: Scene) -> None:
        await scene.store.inner.put(PAIR.producer, b'{"pending": ["old"], "theirs": [1.50]}')
        await scene.fill("a")
        manifest = await scene.producer()
        assert manifest.pending[0] == "old"
        assert len(manifest.pending) == 2
        assert bytes(manifest.unknown["theirs"]) == b"[1.50]"

    play(story)


def test_a_compact_ingestor_and_a_json_one_share_a_queue() -> None:
    async def story(scene: Scene) -> None:
        await scene.fill("a")
        await scene.fill("b", batch_format=BatchFormat.COMPACT)
        first_bytes = []
        for key in (await scene.producer()).pending:
            there = await scene.store.get(key)
            assert there is not None
            first_bytes.append(there.body[:1])
        assert first_bytes == [b"[", b"L"]
        assert await scene.all_of(scene.collector()) == ["a", "b"]

    play(story)


def test_the_settings_say_where_things_go() -> None:
    async def story(scene: Scene) -> None:
        await scene.fill("a", data_path_prefix="deep/data", manifest_path="q/m")
        keys = await scene.keys()
        assert "q/m" in keys
        assert [key for key in keys if key.startswith("deep/data/") and key.endswith(".batch")]
        collector = scene.collector(manifest_path="q/m")
        assert await scene.all_of(collector) == ["a"]
        assert "q/m.consumer" in await scene.keys()
        await collector.close()

    play(story)


def test_flush_makes_everything_durable_that_was_taken_and_the_ingestor_goes_on() -> None:
    async def story(scene: Scene) -> None:
        ingestor = scene.ingestor(flush_interval=seconds(3600), partitions=3)
        watchers = [await ingestor.ingest([KeyValueEntry(str(number).encode(), b"")]) for number in range(20)]
        await ingestor.flush()
        assert all(isinstance(each.result(), Durable) for each in watchers)
        later = await ingestor.ingest(entries("later"))
        assert later.result() is None
        await ingestor.flush()
        assert isinstance(later.result(), Durable)
        await ingestor.flush()
        await ingestor.close()
        await ingestor.flush()

    play(story)


def test_flush_does_not_wait_for_what_is_taken_after_it_was_called() -> None:
    async def story(scene: Scene) -> None:
        ingestor = scene.ingestor(flush_interval=seconds(3600))
        before = await ingestor.ingest(entries("before"))
        scene.store.hold(batches)
        flushing = asyncio.create_task(ingestor.flush())
        await scene.later(1)
        after = await ingestor.ingest(entries("after"))
        scene.store.release()
        await flushing
        assert isinstance(before.result(), Durable)
        assert after.result() is None
        await ingestor.close()

    play(story, seeds=10)


def test_flush_raises_the_first_error_and_the_ingestor_goes_on() -> None:
    async def story(scene: Scene) -> None:
        scene.store.break_(batches, DOWN)
        ingestor = scene.ingestor(flush_interval=seconds(3600))
        await ingestor.ingest(entries("a"))
        with pytest.raises(Unavailable, match="the store is down"):
            await ingestor.flush()
        scene.store.mend()
        await ingestor.ingest(entries("b"))
        await ingestor.flush()
        await ingestor.close()
        assert await scene.all_of(scene.collector()) == ["b"]

    play(story)


def test_a_flush_that_is_cancelled_takes_nothing_back() -> None:
    async def story(scene: Scene) -> None:
        scene.store.hold(anything)
        ingestor = scene.ingestor()
        watcher = await ingestor.ingest(entries("a"))
        flushing = asyncio.create_task(ingestor.flush())
        await scene.later(1)
        flushing.cancel()
        await asyncio.wait([flushing])
        scene.store.release()
        await watcher.await_durable()
        await ingestor.close()

    play(story)


def test_without_a_clock_it_is_the_machines() -> None:
    async def story() -> None:
        config = IngestorConfig(object_store_config=WHERE, flush_interval=timedelta(milliseconds=1))
        async with Ingestor(config, store=MemoryStore(clock=SystemClock())) as ingestor:
            await (await ingestor.ingest(entries("a"))).await_durable()

    asyncio.run(story())


def test_an_entry_of_a_class_that_may_be_stored_in_another_form_is_refused() -> None:
    """It would be confirmed, and set aside by every reader."""

    class Short(KeyValueEntry, frozen=True, array_like=True):
        pass

    async def story(scene: Scene) -> None:
        async with scene.ingestor() as ingestor:
            with pytest.raises(Refused, match="Short"):
                await ingestor.ingest([Short(b"a", b"b")])

    play(story)
