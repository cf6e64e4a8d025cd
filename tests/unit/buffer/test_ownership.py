"""A prefix belongs to one queue."""

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from lakehead.buffer.ingestor import Ingestor
from lakehead.buffer.layout import ManifestKeys, owner_key
from lakehead.buffer.orphan_gc import OrphanGc
from lakehead.buffer.ownership import PrefixOwner
from lakehead.buffer.watcher import Durable
from lakehead.errors import LakeheadError, Misconfigured, Unavailable
from lakehead.wire.batch import KeyValueEntry
from lakehead.wire.errors import Unreadable
from lakehead.wire.queue_manifests import ProducerManifest
from tests.unit.buffer.support import LOST, MANIFEST, QueueFixture, batches, entries, virtual_time

OTHER = "other/manifest.json"
OWNER = owner_key("ingest")


async def ingested(ingestor: Ingestor) -> object:
    """What becomes of an entry."""
    watcher = await ingestor.ingest(entries("x"))
    with suppress(LakeheadError):  # the watcher tells it too
        await ingestor.close()
    return watcher.result()


def orphans(queue: QueueFixture, manifest_path: str) -> OrphanGc:
    return OrphanGc(
        data_path_prefix="ingest",
        manifest_path=manifest_path,
        deps=queue.deps(),
        grace_seconds=0,
    )


@virtual_time
async def test_the_second_queue_below_a_prefix_is_refused_before_it_stores_anything(queue: QueueFixture) -> None:
    await queue.fill("first")
    stored = queue.store.count(batches)
    outcome = await ingested(queue.ingestor(manifest_path=OTHER))
    assert isinstance(outcome, Misconfigured)
    assert str(outcome) == (
        f"The prefix 'ingest' belongs to the queue {MANIFEST!r}, not to {OTHER!r}, according to {OWNER}. "
        "Choose another data_path_prefix, or use that queue's manifest_path."
    )
    assert queue.store.count(batches) == stored
    assert await queue.keys("other") == []
    assert isinstance(await ingested(queue.ingestor(manifest_path=OTHER, data_path_prefix="other")), Durable)


@virtual_time(seeds=10)
async def test_of_two_queues_that_begin_below_one_prefix_at_once_one_gets_it(queue: QueueFixture) -> None:
    outcomes = await asyncio.gather(
        ingested(queue.ingestor()), ingested(queue.ingestor(manifest_path=OTHER)), return_exceptions=True
    )
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["Durable", "Misconfigured"]


@virtual_time
async def test_orphan_gc_of_a_queue_deletes_nothing_below_another_queues_prefix(queue: QueueFixture) -> None:
    await queue.fill("live")
    stolen = ProducerManifest(data_path_prefix="ingest", partitions=1)
    await queue.store.inner.put(OTHER, stolen.encode())
    before = await queue.keys()
    for dry_run in (True, False):
        with pytest.raises(Misconfigured, match="belongs to the queue"):
            await orphans(queue, OTHER).run(dry_run=dry_run)
    assert await queue.keys() == before


@virtual_time
async def test_a_collector_of_a_queue_hands_out_nothing_below_another_queues_prefix(queue: QueueFixture) -> None:
    await queue.fill("live")
    stolen = await queue.producer_manifest()
    await queue.store.inner.put(OTHER, stolen.encode())
    collector = queue.collector(manifest_path=OTHER)
    for _ in range(2):
        with pytest.raises(Misconfigured, match="belongs to the queue"):
            await collector.next_batch()
    await collector.close()
    assert await queue.collect_all(queue.collector()) == ["live"]


@virtual_time
async def test_orphan_gc_takes_no_prefix_that_nobody_has(queue: QueueFixture) -> None:
    """Such as one of two queues that are older than owners, or a partition that was taken for a queue."""
    async with queue.ingestor(partitions=4) as ingestor:
        await ingestor.ingest([KeyValueEntry(str(key).encode(), b"") for key in range(20)])
    before = set(await queue.keys())
    await queue.store.inner.delete(OWNER)
    for manifest in (MANIFEST, ManifestKeys.of(MANIFEST, 1).producer):
        for dry_run in (True, False):
            with pytest.raises(Unavailable, match="which names the owner of these batches, does not exist"):
                await orphans(queue, manifest).run(dry_run=dry_run)
    assert set(await queue.keys()) == before - {OWNER}
    await queue.fill("makes it", partitions=4)
    assert await orphans(queue, MANIFEST).run() == []


@pytest.mark.parametrize("applied", [True, False])
@virtual_time
async def test_an_owner_that_was_created_in_doubt_is_looked_for(queue: QueueFixture, applied: bool) -> None:  # noqa: FBT001 - a parameter
    queue.store.fail_calls(lambda call: call == ("create", OWNER), LOST, times=1, applied=applied)
    assert isinstance(await ingested(queue.ingestor()), Durable)


@virtual_time
async def test_what_cannot_be_created_is_unavailable_and_tried_again_by_the_next_batch(queue: QueueFixture) -> None:
    ingestor = queue.ingestor()
    queue.store.fail_calls(lambda call: call == ("create", OWNER), LOST)
    watcher = await ingestor.ingest(entries("lost"))
    with pytest.raises(Unavailable, match=OWNER):
        await watcher.await_durable()
    queue.store.stop_failing()
    assert isinstance(await ingested(ingestor), Durable)


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b'{"manifest_path": 1}', b"\xff"])
@virtual_time(seeds=1)
async def test_an_owner_that_cannot_be_read_is_told_and_left_as_it_is(queue: QueueFixture, body: bytes) -> None:
    await queue.store.inner.put(OWNER, body)
    outcome: Any = await ingested(queue.ingestor())
    assert isinstance(outcome, Unreadable)
    assert OWNER in str(outcome)
    there = await queue.store.inner.get(OWNER)
    assert there is not None
    assert there.body == body


@virtual_time
async def test_whose_a_prefix_is_is_asked_once(queue: QueueFixture) -> None:
    owner = PrefixOwner("ingest", MANIFEST, queue.deps())
    await asyncio.gather(*(owner.check() for _ in range(5)))
    assert queue.store.count(lambda call: call == ("create", OWNER)) == 1
    asked = len(queue.store.calls)
    await owner.check()
    assert len(queue.store.calls) == asked


def test_an_owner_is_no_batch_and_no_manifest() -> None:
    assert OWNER == "ingest/_owner.json"
    assert OWNER not in (
        ManifestKeys.of("ingest/manifest.json").producer,
        ManifestKeys.of("ingest/manifest.json").consumer,
    )
