"""What an ingestor keeps in memory while its store does not answer, and after it has given up."""

import asyncio
from typing import Any

import pytest

from lakehead.errors import LakeheadError, OutcomeUnknown, Unavailable
from lakehead.wire.batch import KeyValueEntry
from tests.unit.buffer.scene import DOWN, LOST, PAIR, Scene, anything, batches, entries, play, writes


def chain(error: BaseException | None) -> list[BaseException]:
    """An error and what it came from."""
    return [error, *chain(error.__cause__), *chain(error.__context__)] if error else []


@pytest.mark.parametrize(
    ("which", "error"),
    [(batches, DOWN), (writes(PAIR.producer), DOWN), (writes(PAIR.producer), LOST)],
    ids=["not stored", "not queued", "unknown"],
)
def test_the_watcher_of_a_batch_that_failed_does_not_keep_its_body(which: Any, error: LakeheadError) -> None:
    async def story(scene: Scene) -> None:
        scene.store.break_(which, type(error)("broken"))
        ingestor = scene.ingestor()
        watcher = await ingestor.ingest(entries("x"))
        await scene.later(600)
        outcome = watcher.result()
        assert isinstance(outcome, Unavailable | OutcomeUnknown)
        kept = [*chain(outcome), *ingestor._writers[0]._producer._group.failures]
        assert [each.__traceback__ for each in kept if each.__traceback__] == [], "a frame keeps what it works with"
        await ingestor.close()

    play(story, seeds=1)


def test_entries_without_bytes_fill_an_ingestor_too() -> None:
    async def story(scene: Scene) -> None:
        scene.store.hold(anything)
        ingestor = scene.ingestor(max_unflushed_bytes=100)
        nothing = [KeyValueEntry(b"", b"")] * 10
        filling = asyncio.create_task(ingest_for_ever(ingestor, nothing, 1_000))
        await scene.later(60)
        assert not filling.done()
        assert ingestor.counts.bytes_unflushed <= 110
        filling.cancel()
        scene.store.release()
        await ingestor.close()
        assert ingestor.counts.bytes_unflushed == 0

    play(story)


async def ingest_for_ever(ingestor: Any, what: list[KeyValueEntry], calls: int) -> None:
    for _ in range(calls):
        await ingestor.ingest(what)


def test_an_outage_keeps_no_more_than_the_limit_and_one_call() -> None:
    async def story(scene: Scene) -> None:
        scene.store.hold(anything)
        ingestor = scene.ingestor(max_unflushed_bytes=100, flush_size_bytes=10)
        filling = asyncio.create_task(ingest_for_ever(ingestor, entries("x" * 20), 1_000))
        await scene.later(3600)
        assert not filling.done()
        assert ingestor.counts.bytes_unflushed <= 100 + 23
        filling.cancel()
        scene.store.release()
        await ingestor.close()

    play(story)
