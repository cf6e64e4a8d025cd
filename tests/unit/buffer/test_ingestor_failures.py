"""The ingestor when its store fails, a caller gives up, or it is closed: nothing is lost without a word."""

import asyncio
from typing import Any

import pytest

from lakehead.buffer.errors import Contended, Refused
from lakehead.buffer.producer import APPENDS
from lakehead.buffer.watcher import Durable
from lakehead.errors import Misconfigured, OutcomeUnknown, Unavailable
from lakehead.wire.batch import MIB, KeyValueEntry
from lakehead.wire.compact import decode_batch
from tests.unit.buffer.scene import DOWN, LOST, PAIR, Scene, anything, batches, entries, play, seconds, writes


def test_a_caller_that_is_cancelled_while_it_waits_for_room_has_ingested_nothing() -> None:
    async def story(scene: Scene) -> None:
        ingestor = scene.ingestor(max_unflushed_bytes=1)
        scene.store.hold(batches)
        await ingestor.ingest(entries("first"))
        given_up, patient = (asyncio.create_task(ingestor.ingest(entries(name))) for name in ("given up", "patient"))
        await scene.later(1)
        given_up.cancel()
        await asyncio.wait([given_up])
        scene.store.release()
        await patient
        await ingestor.close()
        assert await scene.all_of(scene.collector()) == ["first", "patient"]

    play(story)


def test_cancelling_a_watcher_cancels_nothing_else() -> None:
    async def story(scene: Scene) -> None:
        ingestor = scene.ingestor()
        scene.store.hold(anything)
        watcher = await ingestor.ingest(entries("a"))
        first, second = (asyncio.create_task(watcher.await_durable()) for _ in range(2))
        await scene.later(1)
        first.cancel()
        await asyncio.wait([first])
        scene.store.release()
        await second
        assert isinstance(watcher.result(), Durable)
        await ingestor.close()

    play(story)


def test_a_dead_store_fails_every_watcher_of_the_batch_with_an_error_that_allows_a_retry() -> None:
    async def story(scene: Scene) -> None:
        scene.store.break_(batches, DOWN)
        ingestor = scene.ingestor()
        watchers = [await ingestor.ingest(entries(value)) for value in "ab"]
        await scene.later(60)
        for watcher in watchers:
            assert isinstance(watcher.result(), Unavailable)
            with pytest.raises(Unavailable):
                await watcher.await_durable()
        scene.store.mend()
        await (await ingestor.ingest(entries("again"))).await_durable()
        await ingestor.close()
        assert await scene.all_of(scene.collector()) == ["again"]
        assert ingestor.counts.bytes_unflushed == 0
        assert ingestor.counts.flushes_failed == 1

    play(story)


def test_a_lost_answer_of_the_batch_is_no_loss() -> None:
    async def story(scene: Scene) -> None:
        scene.store.break_(batches, LOST, times=1, applied=True)
        await scene.fill("a")
        assert await scene.all_of(scene.collector()) == ["a"]
        assert len(await scene.batch_keys()) == 1

    play(story)


def test_an_append_that_stays_in_doubt_is_told_as_unknown() -> None:
    async def story(scene: Scene) -> None:
        scene.store.break_(writes(PAIR.producer), LOST)
        ingestor = scene.ingestor()
        watcher = await ingestor.ingest(entries("a"))
        await scene.later(600)
        assert isinstance(watcher.result(), OutcomeUnknown)
        await ingestor.close()

    play(story)


def test_endless_conflicts_end_in_an_error_after_a_bounded_number_of_tries() -> None:
    async def story(scene: Scene) -> None:
        await scene.fill("first")

        honest = scene.store.replace

        async def replace(key: str, body: bytes, version: Any) -> Any:
            there = await scene.store.inner.get(key)
            assert there is not None
            await scene.store.inner.put(key, there.body)  # somebody else was quicker
            return await honest(key, body, version)

        scene.store.replace = replace  # type: ignore[method-assign]  # for this story only
        before = scene.store.count(writes(PAIR.producer))
        ingestor = scene.ingestor()
        watcher = await ingestor.ingest(entries("a"))
        with pytest.raises(Contended):
            await watcher.await_durable()
        assert scene.store.count(writes(PAIR.producer)) - before == APPENDS.attempts
        assert ingestor.counts.manifest_conflicts["producer"] == APPENDS.attempts
        await ingestor.close()

    play(story)


def test_close_flushes_what_is_left_and_leaves_no_task() -> None:
    async def story(scene: Scene) -> None:
        ingestor = scene.ingestor(flush_interval=seconds(3600))
        watcher = await ingestor.ingest(entries("a", "b"))
        await ingestor.close()
        assert isinstance(watcher.result(), Durable)
        with pytest.raises(Refused):
            await ingestor.ingest(entries("c"))
        await ingestor.close()
        [batch] = await scene.batch_keys()
        there = await scene.store.get(batch)
        assert there is not None
        assert decode_batch(there.body) == entries("a", "b")

    play(story)


def test_close_leaves_no_task_behind() -> None:
    async def story(scene: Scene) -> None:
        async with scene.ingestor() as ingestor, scene.collector() as collector:
            await (await ingestor.ingest(entries("a"))).await_durable()
            await collector.next_batch()
        await scene.later(0)
        left = [task for task in scene.world.loop._tasks if not task.done()]
        assert left == [asyncio.current_task()]

    play(story)


def test_close_tells_of_what_could_not_be_flushed() -> None:
    async def story(scene: Scene) -> None:
        scene.store.break_(batches, DOWN)
        ingestor = scene.ingestor()
        await ingestor.ingest(entries("a"))
        with pytest.raises(Unavailable):
            await ingestor.close()

    play(story)


def test_a_close_that_is_cancelled_can_be_repeated() -> None:
    async def story(scene: Scene) -> None:
        scene.store.hold(anything)
        ingestor = scene.ingestor()
        watcher = await ingestor.ingest(entries("a"))
        closing = asyncio.create_task(ingestor.close())
        await scene.later(1)
        closing.cancel()
        await asyncio.wait([closing])
        scene.store.release()
        await ingestor.close()
        assert isinstance(watcher.result(), Durable)

    play(story)


def test_a_location_whose_append_was_in_doubt_is_not_queued_again_after_it_was_cleaned_up() -> None:
    async def story(scene: Scene) -> None:
        await scene.fill("first")
        scene.store.break_(writes(PAIR.producer), LOST, times=1, applied=True)
        ingestor = scene.ingestor()
        watcher = await ingestor.ingest(entries("a"))
        await scene.later(0.1001)
        assert len((await scene.producer()).pending) == 2
        collector = scene.collector(done_cleanup_threshold=1)
        got = await scene.all_of(collector)
        await watcher.await_durable()
        got += await scene.all_of(collector)
        assert got == ["first", "a"]
        assert (await scene.producer()).pending == ()
        await ingestor.close()
        await collector.close()

    play(story, seeds=10)


def test_a_manifest_that_cannot_be_read_is_an_error_and_stays_as_it_is() -> None:
    async def story(scene: Scene) -> None:
        await scene.store.inner.put(PAIR.producer, b"garbage")
        ingestor = scene.ingestor()
        watcher = await ingestor.ingest(entries("a"))
        with pytest.raises(Exception, match="repair it by hand"):
            await watcher.await_durable()
        there = await scene.store.inner.get(PAIR.producer)
        assert there is not None
        assert there.body == b"garbage"
        await ingestor.close()

    play(story)


@pytest.mark.parametrize(
    "bad",
    [
        [KeyValueEntry(b"", bytes(129 * MIB))],
        [KeyValueEntry("text", b"")],  # type: ignore[arg-type]  # what a caller may do all the same
        ["no entry"],
        [None],
    ],
    ids=["too large", "text", "string", "none"],
)
def test_what_can_never_be_stored_is_refused_at_once(bad: list[Any]) -> None:
    async def story(scene: Scene) -> None:
        async with scene.ingestor() as ingestor:
            with pytest.raises(Refused):
                await ingestor.ingest([*entries("good"), *bad])
        assert await scene.keys() == []

    play(story, seeds=1)


def test_a_queue_keeps_to_one_prefix() -> None:
    async def story(scene: Scene) -> None:
        await scene.fill("a")
        ingestor = scene.ingestor(data_path_prefix="elsewhere")
        watcher = await ingestor.ingest(entries("b"))
        with pytest.raises(Misconfigured, match="elsewhere"):
            await watcher.await_durable()
        await ingestor.close()

    play(story)
