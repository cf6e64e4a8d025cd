"""Orphan GC: what it deletes, and that a slow producer loses nothing to it."""

import asyncio
from dataclasses import replace

import pytest

from lakehead.buffer.consumer import CLAIMS
from lakehead.buffer.layout import new_batch
from lakehead.buffer.means import Means
from lakehead.buffer.orphans import OrphanCollector
from lakehead.buffer.watcher import Durable
from lakehead.errors import Misconfigured, Unavailable
from lakehead.wire.batch import encode_json
from lakehead.wire.queue_manifests import ProducerManifest
from tests.sim.world import SimulatedClock
from tests.unit.buffer.scene import LOST, PAIR, Scene, entries, play, writes

HOUR = 3600.0


def collector(scene: Scene, *, grace: float = HOUR, clock: SimulatedClock | None = None) -> OrphanCollector:
    means = Means(store=scene.store, clock=clock or scene.clock, ids=scene.world.ids, random=scene.world.random)
    return OrphanCollector(
        data_path_prefix="ingest", manifest_path=PAIR.producer, means=means, backoff=CLAIMS, grace_seconds=grace
    )


async def orphan(scene: Scene) -> str:
    key = new_batch("ingest", scene.world.ids)
    await scene.store.inner.put(key, encode_json(entries("orphan")))
    return key


def test_old_orphans_go_and_everything_else_stays() -> None:
    async def story(scene: Scene) -> None:
        await scene.fill("queued")
        old = await orphan(scene)
        await scene.store.inner.put("ingest/notes.batch", b"")
        await scene.later(HOUR + 1)
        young = await orphan(scene)
        before = set(await scene.keys())
        assert await collector(scene).run(dry_run=True) == [old]
        assert set(await scene.keys()) == before
        assert (await scene.producer()).gc == 0
        assert await collector(scene).run() == [old]
        assert set(await scene.keys()) == before - {old}
        assert young in before
        assert (await scene.producer()).gc == 1

    play(story)


@pytest.mark.parametrize("off_by", [-10 * HOUR, 10 * HOUR])
def test_age_is_judged_by_the_clock_of_the_store(off_by: float) -> None:
    async def story(scene: Scene) -> None:
        await scene.fill("queued")
        key = await orphan(scene)
        wrong = SimulatedClock(scene.world.loop, off_by=off_by)
        assert await collector(scene, clock=wrong).run() == []
        await scene.later(HOUR + 1)
        assert await collector(scene, clock=wrong).run() == [key]

    play(story)


def test_a_producer_that_stalls_past_the_grace_time_loses_nothing() -> None:
    async def story(scene: Scene) -> None:
        await scene.fill("first")
        ingestor = scene.ingestor()
        scene.store.hold(writes(PAIR.producer))
        watcher = await ingestor.ingest(entries("slow"))
        await scene.later(2 * HOUR)
        [stored] = [key for key in await scene.batch_keys() if key not in (await scene.producer()).pending]
        gone = await collector(replace_store(scene)).run()
        assert gone == [stored]
        scene.store.release()
        await ingestor.close()
        assert isinstance(watcher.result(), Durable)
        assert watcher.result() != Durable((stored,))
        assert ingestor.counts.batches_stored_again == 1
        assert await scene.all_of(scene.collector()) == ["first", "slow"]

    play(story)


def replace_store(scene: Scene) -> Scene:
    """The same scene with a way to the store that nobody holds up."""
    return replace(scene, store=scene.store.inner)  # type: ignore[arg-type]  # a store all the same


def test_a_number_that_was_raised_in_doubt_is_raised_again() -> None:
    async def story(scene: Scene) -> None:
        await scene.fill("queued")
        key = await orphan(scene)
        await scene.later(2 * HOUR)
        scene.store.break_(writes(PAIR.producer), LOST, times=1, applied=True)
        assert await collector(scene).run() == [key]
        assert (await scene.producer()).gc == 2

    play(story)


def test_where_there_is_no_manifest_nothing_is_deleted() -> None:
    async def story(scene: Scene) -> None:
        key = await orphan(scene)
        with pytest.raises(Unavailable):
            await collector(scene, grace=0).run(dry_run=True)
        assert await scene.keys() == [key]

    play(story)


def test_batches_that_are_queued_while_gc_runs_are_spared() -> None:
    async def story(scene: Scene) -> None:
        await scene.fill("first")

        async def ingest_all_along() -> None:
            async with scene.ingestor(flush_size_bytes=0) as ingestor:
                for number in range(30):
                    await ingestor.ingest(entries(str(number)))
                    await scene.later(0.01)

        ingesting = asyncio.create_task(ingest_all_along())
        while not ingesting.done():
            await collector(scene, grace=0).run()
            await scene.later(0.02)
        await ingesting
        assert await scene.all_of(scene.collector()) == ["first", *map(str, range(30))]

    play(story, seeds=5)


def test_manifests_of_another_queue_or_of_none_delete_nothing() -> None:
    async def story(scene: Scene) -> None:
        await scene.fill("queued")
        await scene.later(2 * HOUR)
        other = ProducerManifest(data_path_prefix="elsewhere").encode()
        await scene.store.inner.put("other.json", other)
        before = set(await scene.keys())
        for path, refused in (("ingest/manifst.json", Unavailable), ("other.json", Misconfigured)):
            with pytest.raises(refused, match="Nothing was deleted"):
                await replace(collector(scene), manifest_path=path).run()
        assert set(await scene.keys()) == before

    play(story)
