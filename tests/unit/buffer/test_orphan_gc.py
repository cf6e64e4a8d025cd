"""Orphan GC: what it deletes, and that a slow producer loses nothing to it."""

import asyncio
from dataclasses import replace

import pytest

from lakehead.buffer.deps import BufferDeps
from lakehead.buffer.layout import new_batch_key
from lakehead.buffer.orphan_gc import OrphanGc
from lakehead.buffer.watcher import Durable
from lakehead.errors import Misconfigured, Unavailable
from lakehead.wire.batch import encode_json
from lakehead.wire.queue_manifests import ProducerManifest
from tests.support.simulation import SimulatedClock
from tests.unit.buffer.support import LOST, PAIR, QueueFixture, entries, virtual_time, writes

HOUR = 3600.0


def collector(queue: QueueFixture, *, grace: float = HOUR, clock: SimulatedClock | None = None) -> OrphanGc:
    deps = BufferDeps(store=queue.store, clock=clock or queue.clock, ids=queue.world.ids, random=queue.world.random)
    return OrphanGc(data_path_prefix="ingest", manifest_path=PAIR.producer, deps=deps, grace_seconds=grace)


async def orphan(queue: QueueFixture) -> str:
    key = new_batch_key("ingest", queue.world.ids)
    await queue.store.inner.put(key, encode_json(entries("orphan")))
    return key


@virtual_time
async def test_old_orphans_go_and_everything_else_stays(queue: QueueFixture) -> None:
    await queue.fill("queued")
    old = await orphan(queue)
    await queue.store.inner.put("ingest/notes.batch", b"")
    await queue.sleep(HOUR + 1)
    young = await orphan(queue)
    before = set(await queue.keys())
    assert await collector(queue).run(dry_run=True) == [old]
    assert set(await queue.keys()) == before
    assert (await queue.producer_manifest()).gc == 0
    assert await collector(queue).run() == [old]
    assert set(await queue.keys()) == before - {old}
    assert young in before
    assert (await queue.producer_manifest()).gc == 1


@pytest.mark.parametrize("off_by", [-10 * HOUR, 10 * HOUR])
@virtual_time
async def test_age_is_judged_by_the_clock_of_the_store(queue: QueueFixture, off_by: float) -> None:
    await queue.fill("queued")
    key = await orphan(queue)
    wrong = SimulatedClock(queue.world.loop, off_by=off_by)
    assert await collector(queue, clock=wrong).run() == []
    await queue.sleep(HOUR + 1)
    assert await collector(queue, clock=wrong).run() == [key]


@virtual_time
async def test_a_producer_that_stalls_past_the_grace_time_loses_nothing(queue: QueueFixture) -> None:
    await queue.fill("first")
    ingestor = queue.ingestor()
    queue.store.hold_calls(writes(PAIR.producer))
    watcher = await ingestor.ingest(entries("slow"))
    await queue.sleep(2 * HOUR)
    [stored] = [key for key in await queue.batch_keys() if key not in (await queue.producer_manifest()).pending]
    gone = await collector(replace_store(queue)).run()
    assert gone == [stored]
    queue.store.release_calls()
    await ingestor.close()
    assert isinstance(watcher.result(), Durable)
    assert watcher.result() != Durable((stored,))
    assert ingestor.counts.batches_stored_again == 1
    assert await queue.collect_all(queue.collector()) == ["first", "slow"]


def replace_store(queue: QueueFixture) -> QueueFixture:
    """The same queue with a way to the store that nobody holds up."""
    return replace(queue, store=queue.store.inner)  # type: ignore[arg-type]  # a store all the same


@virtual_time
async def test_a_number_that_was_raised_in_doubt_is_raised_again(queue: QueueFixture) -> None:
    await queue.fill("queued")
    key = await orphan(queue)
    await queue.sleep(2 * HOUR)
    queue.store.fail_calls(writes(PAIR.producer), LOST, times=1, applied=True)
    assert await collector(queue).run() == [key]
    assert (await queue.producer_manifest()).gc == 2


@virtual_time
async def test_where_there_is_no_manifest_nothing_is_deleted(queue: QueueFixture) -> None:
    key = await orphan(queue)
    with pytest.raises(Unavailable):
        await collector(queue, grace=0).run(dry_run=True)
    assert await queue.keys() == [key]


@virtual_time(seeds=5)
async def test_batches_that_are_queued_while_gc_runs_are_spared(queue: QueueFixture) -> None:
    await queue.fill("first")

    async def ingest_all_along() -> None:
        async with queue.ingestor(flush_size_bytes=0) as ingestor:
            for number in range(30):
                await ingestor.ingest(entries(str(number)))
                await queue.sleep(0.01)

    ingesting = asyncio.create_task(ingest_all_along())
    while not ingesting.done():
        await collector(queue, grace=0).run()
        await queue.sleep(0.02)
    await ingesting
    assert await queue.collect_all(queue.collector()) == ["first", *map(str, range(30))]


@virtual_time
async def test_manifests_of_another_queue_or_of_none_delete_nothing(queue: QueueFixture) -> None:
    await queue.fill("queued")
    await queue.sleep(2 * HOUR)
    other = ProducerManifest(data_path_prefix="elsewhere").encode()
    await queue.store.inner.put("other.json", other)
    before = set(await queue.keys())
    for path, refused in (("ingest/manifst.json", Unavailable), ("other.json", Misconfigured)):
        with pytest.raises(refused, match="Nothing was deleted"):
            await replace(collector(queue), manifest_path=path).run()
    assert set(await queue.keys()) == before
