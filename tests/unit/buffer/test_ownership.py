"""A prefix belongs to one queue."""

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from lakehead.buffer.consumer import CLAIMS
from lakehead.buffer.ingestor import Ingestor
from lakehead.buffer.layout import Pair, owner_key
from lakehead.buffer.orphans import OrphanCollector
from lakehead.buffer.ownership import PrefixOwner
from lakehead.buffer.watcher import Durable
from lakehead.errors import LakeheadError, Misconfigured, Unavailable
from lakehead.wire.batch import KeyValueEntry
from lakehead.wire.errors import Unreadable
from lakehead.wire.queue_manifests import ProducerManifest
from tests.unit.buffer.scene import LOST, MANIFEST, Scene, batches, entries, play

OTHER = "other/manifest.json"
OWNER = owner_key("ingest")


async def ingested(ingestor: Ingestor) -> object:
    """What becomes of an entry."""
    watcher = await ingestor.ingest(entries("x"))
    with suppress(LakeheadError):  # the watcher tells it too
        await ingestor.close()
    return watcher.result()


def orphans(scene: Scene, manifest_path: str) -> OrphanCollector:
    return OrphanCollector(
        data_path_prefix="ingest",
        manifest_path=manifest_path,
        means=scene.means(),
        backoff=CLAIMS,
        grace_seconds=0,
    )


def test_the_second_queue_below_a_prefix_is_refused_before_it_stores_anything() -> None:
    async def story(scene: Scene) -> None:
        await scene.fill("first")
        stored = scene.store.count(batches)
        outcome = await ingested(scene.ingestor(manifest_path=OTHER))
        assert isinstance(outcome, Misconfigured)
        assert str(outcome) == (
            f"The batches below 'ingest' are those of the queue {MANIFEST!r}, not of {OTHER!r}: {OWNER} says so. "
            "Choose another data_path_prefix, or name that queue's manifest."
        )
        assert scene.store.count(batches) == stored
        assert await scene.keys("other") == []
        assert isinstance(await ingested(scene.ingestor(manifest_path=OTHER, data_path_prefix="other")), Durable)

    play(story)


def test_of_two_queues_that_begin_below_one_prefix_at_once_one_gets_it() -> None:
    async def story(scene: Scene) -> None:
        outcomes = await asyncio.gather(
            ingested(scene.ingestor()), ingested(scene.ingestor(manifest_path=OTHER)), return_exceptions=True
        )
        assert sorted(type(outcome).__name__ for outcome in outcomes) == ["Durable", "Misconfigured"]

    play(story, seeds=10)


def test_orphan_gc_of_a_queue_deletes_nothing_below_another_queues_prefix() -> None:
    async def story(scene: Scene) -> None:
        await scene.fill("live")
        stolen = ProducerManifest(data_path_prefix="ingest", partitions=1)
        await scene.store.inner.put(OTHER, stolen.encode())
        before = await scene.keys()
        for dry_run in (True, False):
            with pytest.raises(Misconfigured, match="are those of the queue"):
                await orphans(scene, OTHER).run(dry_run=dry_run)
        assert await scene.keys() == before

    play(story)


def test_a_collector_of_a_queue_hands_out_nothing_below_another_queues_prefix() -> None:
    async def story(scene: Scene) -> None:
        await scene.fill("live")
        stolen = await scene.producer()
        await scene.store.inner.put(OTHER, stolen.encode())
        collector = scene.collector(manifest_path=OTHER)
        for _ in range(2):
            with pytest.raises(Misconfigured, match="are those of the queue"):
                await collector.next_batch()
        await collector.close()
        assert await scene.all_of(scene.collector()) == ["live"]

    play(story)


def test_orphan_gc_takes_no_prefix_that_nobody_has() -> None:
    """Such as one of two queues that are older than owners, or a partition that was taken for a queue."""

    async def story(scene: Scene) -> None:
        async with scene.ingestor(partitions=4) as ingestor:
            await ingestor.ingest([KeyValueEntry(str(key).encode(), b"") for key in range(20)])
        before = set(await scene.keys())
        await scene.store.inner.delete(OWNER)
        for manifest in (MANIFEST, Pair.of(MANIFEST, 1).producer):
            for dry_run in (True, False):
                with pytest.raises(Unavailable, match="is not there, which says whose batches these are"):
                    await orphans(scene, manifest).run(dry_run=dry_run)
        assert set(await scene.keys()) == before - {OWNER}
        await scene.fill("makes it", partitions=4)
        assert await orphans(scene, MANIFEST).run() == []

    play(story)


@pytest.mark.parametrize("applied", [True, False])
def test_an_owner_that_was_created_in_doubt_is_looked_for(applied: bool) -> None:  # noqa: FBT001 - a parameter
    async def story(scene: Scene) -> None:
        scene.store.break_(lambda call: call == ("create", OWNER), LOST, times=1, applied=applied)
        assert isinstance(await ingested(scene.ingestor()), Durable)

    play(story)


def test_what_cannot_be_created_is_unavailable_and_tried_again_by_the_next_batch() -> None:
    async def story(scene: Scene) -> None:
        ingestor = scene.ingestor()
        scene.store.break_(lambda call: call == ("create", OWNER), LOST)
        watcher = await ingestor.ingest(entries("lost"))
        with pytest.raises(Unavailable, match=OWNER):
            await watcher.await_durable()
        scene.store.mend()
        assert isinstance(await ingested(ingestor), Durable)

    play(story)


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b'{"manifest_path": 1}', b"\xff"])
def test_an_owner_that_cannot_be_read_is_told_and_left_as_it_is(body: bytes) -> None:
    async def story(scene: Scene) -> None:
        await scene.store.inner.put(OWNER, body)
        outcome: Any = await ingested(scene.ingestor())
        assert isinstance(outcome, Unreadable)
        assert OWNER in str(outcome)
        there = await scene.store.inner.get(OWNER)
        assert there is not None
        assert there.body == body

    play(story, seeds=1)


def test_whose_a_prefix_is_is_asked_once() -> None:
    async def story(scene: Scene) -> None:
        owner = PrefixOwner("ingest", MANIFEST, scene.means())
        await asyncio.gather(*(owner.check() for _ in range(5)))
        assert scene.store.count(lambda call: call == ("create", OWNER)) == 1
        asked = len(scene.store.calls)
        await owner.check()
        assert len(scene.store.calls) == asked

    play(story)


def test_an_owner_is_no_batch_and_no_manifest() -> None:
    assert OWNER == "ingest/_owner.json"
    assert OWNER not in (Pair.of("ingest/manifest.json").producer, Pair.of("ingest/manifest.json").consumer)
