"""A producer knows whether its append has landed for as long as the manifest can tell, and says so when it cannot."""

import asyncio
from dataclasses import replace

import pytest

from lakehead.buffer.layout import ManifestKeys
from lakehead.buffer.manifests import ManifestPair
from lakehead.buffer.producer import MAX_PRODUCERS, Producer
from lakehead.buffer.watcher import Durable
from lakehead.errors import LakeheadError, Misconfigured, OutcomeUnknown, Unavailable
from lakehead.wire.batch import KeyValueEntry
from lakehead.wire.errors import Unreadable
from tests.unit.buffer.support import LOST, MANIFEST, PAIR, Call, QueueFixture, entries, virtual_time, writes


def producer(queue: QueueFixture, *, max_producers: int = MAX_PRODUCERS, uncontrolled: bool = False) -> Producer:
    """A new producer; the calls of an uncontrolled one are neither delayed nor failing."""
    deps = queue.deps()
    if uncontrolled:
        deps = replace(deps, store=queue.store.inner)
    return Producer(ManifestPair.of(PAIR, deps).producer, deps, data_path_prefix="ingest", max_producers=max_producers)


def reads(call: Call) -> bool:
    return call == ("get", PAIR.producer)


@pytest.mark.slow
@virtual_time
async def test_new_ingestors_that_contend_all_confirm_after_more_producers_have_written_than_are_remembered(
    queue: QueueFixture,
) -> None:
    for number in range(300):
        await producer(queue).append(f"location-{number}")
    ingestors = [queue.ingestor() for _ in range(20)]
    watchers = [await each.ingest(entries("x")) for each in ingestors]
    await asyncio.gather(*(each.close() for each in ingestors), return_exceptions=True)
    assert [each.result() for each in watchers if not isinstance(each.result(), Durable)] == []
    assert sum(each.counts.manifest_conflicts["producer"] for each in ingestors) > 0


@pytest.mark.parametrize("applied", [True, False])
@virtual_time
async def test_an_append_whose_answer_was_lost_and_whose_producer_was_forgotten_is_told_as_unknown(
    queue: QueueFixture, *, applied: bool
) -> None:
    await producer(queue, max_producers=2).append("old")
    queue.store.fail_calls(writes(PAIR.producer), LOST, times=1, applied=applied)
    ours = asyncio.ensure_future(producer(queue, max_producers=2).append("ours"))
    while queue.store.count(writes(PAIR.producer)) != 2:
        await queue.sleep(0)
    queue.store.hold_calls(reads)
    await queue.sleep(1)
    for number in range(2):
        await producer(queue, max_producers=2, uncontrolled=True).append(f"other-{number}")
    queue.store.release_calls()
    cleaned = replace(await queue.producer_manifest(), pending=())
    await queue.store.inner.put(PAIR.producer, cleaned.encode())
    with pytest.raises(OutcomeUnknown, match="Check before"):
        await ours
    assert (await queue.producer_manifest()).pending == ()


@pytest.mark.parametrize("applied", [True, False])
@virtual_time
async def test_an_append_whose_answer_was_lost_is_settled_while_an_older_producer_is_remembered(
    queue: QueueFixture, *, applied: bool
) -> None:
    """Whoever is older than we would have been dropped before us."""
    for number in range(3):
        await producer(queue, max_producers=3).append(f"old-{number}")
    queue.store.fail_calls(writes(PAIR.producer), LOST, times=1, applied=applied)
    ours = asyncio.ensure_future(producer(queue, max_producers=3).append("ours"))
    while queue.store.count(writes(PAIR.producer)) != 4:
        await queue.sleep(0)
    queue.store.hold_calls(reads)
    await queue.sleep(1)
    await producer(queue, max_producers=3, uncontrolled=True).append("other")
    queue.store.release_calls()
    assert await ours == "ours"
    assert sorted((await queue.producer_manifest()).pending) == ["old-0", "old-1", "old-2", "other", "ours"]


@virtual_time
async def test_a_manifest_that_went_back_settles_nothing(queue: QueueFixture) -> None:
    await producer(queue).append("old")
    earlier = await queue.producer_manifest()
    await producer(queue).append("newer")
    queue.store.fail_calls(writes(PAIR.producer), LOST, times=1, applied=True)
    ours = asyncio.ensure_future(producer(queue).append("ours"))
    while queue.store.count(writes(PAIR.producer)) != 3:
        await queue.sleep(0)
    queue.store.hold_calls(reads)
    await queue.sleep(1)
    await queue.store.inner.put(PAIR.producer, earlier.encode())
    queue.store.release_calls()
    with pytest.raises(OutcomeUnknown):
        await ours


@pytest.mark.parametrize("error", [Misconfigured("access denied"), Unreadable("no JSON")], ids=["denied", "unreadable"])
@virtual_time
async def test_an_append_in_doubt_stays_in_doubt_when_the_next_look_fails_for_good(
    queue: QueueFixture, error: LakeheadError
) -> None:
    await producer(queue).append("old")
    queue.store.fail_calls(writes(PAIR.producer), LOST, times=1, applied=True)
    ours = asyncio.ensure_future(producer(queue).append("ours"))
    while queue.store.count(writes(PAIR.producer)) != 2:
        await queue.sleep(0)
    queue.store.fail_calls(reads, error)
    with pytest.raises(OutcomeUnknown, match="may be queued"):
        await ours
    assert (await queue.producer_manifest()).pending == ("old", "ours")


@pytest.mark.parametrize("applied", [True, False])
@virtual_time
async def test_a_batch_in_doubt_is_stored_again_only_once_its_earlier_try_can_no_longer_land(
    queue: QueueFixture, *, applied: bool
) -> None:
    """Orphan GC raises its number while an append has no answer."""
    await queue.fill("old")
    queue.store.fail_calls(writes(PAIR.producer), LOST, times=1, applied=applied)
    ingestor = queue.ingestor()
    watcher = await ingestor.ingest(entries("ours"))
    await queue.sleep(0.1)
    while queue.store.count(writes(PAIR.producer)) != 2:
        await queue.sleep(0)
    queue.store.hold_calls(reads)
    await queue.sleep(1)
    file = ManifestPair.of(PAIR, replace(queue.deps(), store=queue.store.inner)).producer
    seen = await file.read()
    assert await file.write(seen, replace(seen.manifest, gc=seen.manifest.gc + 1))
    queue.store.release_calls()
    await watcher.await_durable()
    await ingestor.close()
    assert ingestor.counts.batches_stored_again == (0 if applied else 1)
    assert isinstance(outcome := watcher.result(), Durable)
    assert outcome.locations[0] in (await queue.producer_manifest()).pending
    assert await queue.collect_all(queue.collector()) == ["old", "ours"]


@virtual_time
async def test_an_append_in_doubt_is_tried_again_while_what_it_was_to_replace_is_still_there(
    queue: QueueFixture,
) -> None:
    """However many others have written since an earlier try that was refused."""
    for number in range(2):
        await producer(queue, max_producers=2).append(f"old-{number}")
    queue.store.hold_calls(writes(PAIR.producer))
    ours = asyncio.ensure_future(producer(queue, max_producers=2).append("ours"))
    await queue.sleep(1)
    for number in range(3):
        await producer(queue, max_producers=2, uncontrolled=True).append(f"other-{number}")
    before = queue.store.count(writes(PAIR.producer))
    queue.store.fail_calls(
        lambda call: writes(PAIR.producer)(call) and queue.store.count(writes(PAIR.producer)) == before + 1,
        LOST,
        times=1,
    )
    queue.store.release_calls()
    assert await ours == "ours"
    assert (await queue.producer_manifest()).pending.count("ours") == 1


@pytest.mark.parametrize(("earlier", "others"), [(0, 0), (2, 0), (2, 3)])
@virtual_time
async def test_an_append_in_doubt_stays_in_doubt_when_our_keys_are_gone_from_the_manifest(
    queue: QueueFixture, earlier: int, others: int
) -> None:
    """Somebody who does not know our keys may have cleaned up what was appended; its versions begin at 0 again."""
    for number in range(earlier):
        await producer(queue).append(f"old-{number}")
    queue.store.fail_calls(writes(PAIR.producer), LOST, times=1, applied=True)
    ours = asyncio.ensure_future(producer(queue).append("ours"))
    while queue.store.count(writes(PAIR.producer)) != earlier + 1:
        await queue.sleep(0)
    queue.store.hold_calls(reads)
    await queue.sleep(1)
    assert "ours" in (await queue.producer_manifest()).pending
    await queue.store.inner.put(PAIR.producer, b'{"pending": []}')
    for number in range(others):
        await producer(queue, uncontrolled=True).append(f"other-{number}")
    queue.store.release_calls()
    with pytest.raises(OutcomeUnknown, match="Check before"):
        await ours
    assert "ours" not in (await queue.producer_manifest()).pending


@virtual_time
async def test_a_first_manifest_that_may_say_how_many_partitions_there_are_is_no_doubt_about_what_is_queued(
    queue: QueueFixture,
) -> None:
    queue.store.fail_calls(writes(PAIR.producer), LOST)
    ingestor = queue.ingestor(partitions=2)
    watcher = await ingestor.ingest([KeyValueEntry(b"b", b"of the second partition")])
    with pytest.raises(Unavailable):
        await watcher.await_durable()
    assert (await queue.producer_manifest(ManifestKeys.of(MANIFEST, 1).producer)).pending == ()
    queue.store.stop_failing()
    await (await ingestor.ingest(entries("x"))).await_durable()
    await ingestor.close()
