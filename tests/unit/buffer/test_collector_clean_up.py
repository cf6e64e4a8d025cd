"""The clean-up after acknowledgements: what it deletes, and that it is made up for where it fails."""

import pytest

from lakehead.buffer.collector import CollectedBatch, Collector
from lakehead.buffer.layout import entry_for
from lakehead.buffer.producer import Producer
from lakehead.errors import Unavailable
from lakehead.wire.batch import encode_json
from tests.unit.buffer.scene import DOWN, PAIR, Call, Scene, entries, play, values


def deletes(call: Call) -> bool:
    return call[0] == "delete"


def test_the_hundredth_ack_cleans_up_and_the_ninety_ninth_does_not() -> None:
    async def story(scene: Scene) -> None:
        async with scene.ingestor(flush_size_bytes=0) as ingestor:
            for number in range(101):
                await ingestor.ingest(entries(str(number)))
        async with scene.collector() as collector:
            for number in range(100):
                assert len((await scene.producer()).pending) == 101
                assert len((await scene.consumer()).done) == number
                batch = await collector.next_batch()
                assert values(batch) == [str(number)]
                assert batch is not None
                await collector.ack(batch)
            assert len((await scene.producer()).pending) == 1
            assert (await scene.consumer()).done == ()
            assert len(await scene.batch_keys()) == 1

    play(story, seeds=1)


def test_a_clean_up_that_fails_does_not_fail_the_ack_and_is_made_up_for() -> None:
    async def story(scene: Scene) -> None:
        await scene.fill("a", "b")
        scene.store.break_(deletes, DOWN, times=1)
        async with scene.collector(done_cleanup_threshold=1) as collector:
            assert await scene.all_of(collector) == ["a", "b"]
            assert collector.counts.cleanups_failed == 1
        assert await scene.batch_keys() == []
        assert (await scene.consumer()).done == ()

    play(story)


def test_a_clean_up_that_keeps_failing_is_tried_now_and_then_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async def story(scene: Scene) -> None:
        await scene.fill(*(str(number) for number in range(100)))
        scene.store.break_(deletes, DOWN)
        async with scene.collector(done_cleanup_threshold=1, read_ahead=200) as collector:
            got = [await collector.next_batch() for _ in range(99)]
            for batch in got:
                assert batch is not None
                await collector.ack(batch)
            assert 3 <= collector.counts.cleanups_failed <= 7, "each time as many again have gathered"
            scene.store.mend()
            await scene.later(31)
            last = await collector.next_batch()
            assert last is not None
            await collector.ack(last)
            assert (await scene.consumer()).done == (), "after a while it is tried again"

    play(story, seeds=1)
    [record] = caplog.records
    assert "Check that the store" in record.getMessage()


def test_an_ack_counts_even_if_the_clean_up_after_it_finds_a_manifest_that_cannot_be_read() -> None:
    async def story(scene: Scene) -> None:
        await scene.fill("a")
        async with scene.collector(done_cleanup_threshold=1) as collector:
            batch = await collector.next_batch()
            assert batch is not None
            await scene.store.inner.put(PAIR.producer, b"garbage")
            await collector.ack(batch)
            assert (await scene.consumer()).done == (batch.location,)
            assert collector.counts.cleanups_failed == 1

    play(story)


def test_clean_up_deletes_only_batches_of_the_queue() -> None:
    async def story(scene: Scene) -> None:
        foreign = ["accepted/v1/manifest", "ingest/notes.batch", "elsewhere/f47ac10b-58cc-4372-a567-0e02b2c3d479.batch"]
        for key in foreign:
            await scene.store.inner.put(key, encode_json(entries(key)))
        await scene.fill("ours")
        means = scene.means()
        producer = Producer(scene.collector()._readers.all[0].consumer.files.producer, means, data_path_prefix="ingest")
        for key in foreign:
            await producer.append(entry_for(key, means.ids))
            await producer.append(key)
        async with scene.collector(done_cleanup_threshold=1) as collector:
            assert sorted(await scene.all_of(collector)) == sorted(["ours", *foreign, *foreign])
        assert (await scene.producer()).pending == ()
        assert set(foreign) <= set(await scene.keys())
        assert await scene.batch_keys() == ["ingest/notes.batch"]

    play(story)


def test_a_clean_up_that_is_cut_off_anywhere_is_made_up_for() -> None:
    async def story(scene: Scene) -> None:
        for step in range(40):
            fresh = Scene(scene.world, type(scene.store)(scene.world))
            await fresh.fill(*"abcd")
            first = fresh.collector(done_cleanup_threshold=2, read_ahead=2)
            got = [values(batch) for _ in range(2) if (batch := await first.next_batch())]
            left = [step]

            def next_call(_: Call, left: list[int] = left) -> bool:
                left[0] -= 1
                return left[0] < 0

            fresh.store.break_(next_call, DOWN)
            acknowledged = True
            try:
                await first.ack(*first_two(first))
            except Unavailable:
                acknowledged = False
            fresh.store.mend()
            assert first._beating is not None
            first._beating.cancel()
            await fresh.later(31)
            async with fresh.collector(done_cleanup_threshold=1) as second:
                again = await fresh.all_of(second)
            assert again == (["c", "d"] if acknowledged else ["a", "b", "c", "d"])
            assert got == [["a"], ["b"]]
            assert await fresh.batch_keys() == []
            assert (await fresh.producer()).pending == (await fresh.consumer()).done == ()

    play(story, seeds=1)


def first_two(collector: Collector) -> list[CollectedBatch]:
    """What a collector has handed out and holds, as it would hand it out."""
    held = collector._readers.all[0].consumer.held.values()
    reader = collector._readers.all[0]
    return [CollectedBatch([], claim.location, claim.epoch, 0, reader.consumer.id, 1, claim) for claim in held]


def test_manifests_stay_bounded_while_a_collector_keeps_up() -> None:
    async def story(scene: Scene) -> None:
        async with (
            scene.ingestor(flush_size_bytes=0) as ingestor,
            scene.collector(done_cleanup_threshold=10) as collector,
        ):
            for number in range(1_000):
                await (await ingestor.ingest(entries(str(number)))).await_durable()
                batch = await collector.next_batch()
                assert batch is not None
                await collector.ack(batch)
                assert len((await scene.producer()).pending) <= 1 + 10
                assert len((await scene.consumer()).done) <= 10
        assert len(await scene.batch_keys()) <= 10

    play(story, seeds=1)
