"""Changing the number of partitions beside slow producers, orphan GC, clean-ups and another such change."""

import asyncio
from dataclasses import replace

import pytest

from lakehead.buffer.deps import BufferDeps
from lakehead.buffer.errors import InvalidCall, QueueContended
from lakehead.buffer.ingestor import Ingestor
from lakehead.buffer.layout import ManifestKeys
from lakehead.buffer.manifests import ManifestPair
from lakehead.buffer.orphan_gc import OrphanGc
from lakehead.buffer.queue_cleanup import QueueCleanup
from lakehead.buffer.retry_policies import BufferRetries
from lakehead.buffer.watcher import Durable, WriteWatcher
from lakehead.errors import Misconfigured, OutcomeUnknown, Unavailable
from lakehead.wire.batch import KeyValueEntry
from tests.unit.buffer.partition_support import KEYS, by_key, ingest, repartition
from tests.unit.buffer.support import LOST, PAIR, Call, ControlledStore, QueueFixture, batches, virtual_time, writes

LAST = ManifestKeys.of(PAIR.producer, 3)
KEY_OF_LAST = b"1"
"""A key whose entries go to the last of four partitions."""


async def stored_and_stalled(queue: QueueFixture, ingestor: Ingestor | None = None) -> tuple[Ingestor, WriteWatcher]:
    """An ingestor for four partitions that has stored a batch for the last one, and not come to queueing it."""

    stored_before = queue.store.count(batches)
    manifests = (PAIR.producer, LAST.producer)
    queue.store.hold_calls(lambda call: call[1] in manifests and queue.store.count(batches) > stored_before)
    ingestor = ingestor or queue.ingestor(partitions=4)
    watcher = await ingestor.ingest([KeyValueEntry(KEY_OF_LAST, b"9")])
    await queue.sleep(1)
    assert queue.store.count(batches) == stored_before + 1
    return ingestor, watcher


def unhindered(queue: QueueFixture) -> BufferDeps:
    """A way to the store that nobody holds up."""
    return replace(queue.deps(), store=queue.store.inner)


async def change(queue: QueueFixture, partitions: int) -> None:
    await replace(repartition(queue), deps=unhindered(queue)).run(partitions)


async def collect_orphans(queue: QueueFixture) -> None:
    """Delete what is stored and not queued; what was stored last is."""
    stored = [key for kind, key in queue.store.calls if kind == "create" and key.endswith(".batch")]
    deleted = await OrphanGc(
        data_path_prefix="ingest",
        manifest_path=PAIR.producer,
        deps=unhindered(queue),
        grace_seconds=0,
    ).run()
    assert stored[-1] in deleted


async def assert_delivered(queue: QueueFixture, ingestor: Ingestor, watcher: WriteWatcher) -> None:
    """What the slow producer was told is queued is there to be read."""
    queue.store.release_calls()
    await ingestor.close()
    assert isinstance(watcher.result(), Durable)
    assert await by_key(queue) == {KEY_OF_LAST: [9]}


@virtual_time
async def test_orphan_gc_spares_a_slow_producer_of_a_partition_that_went_and_came_back(queue: QueueFixture) -> None:
    await ingest(queue, 4, 1)
    await by_key(queue)
    slow = await stored_and_stalled(queue)
    await change(queue, 2)
    await collect_orphans(queue)
    await change(queue, 4)
    await assert_delivered(queue, *slow)


@virtual_time
async def test_orphan_gc_spares_a_producer_that_stored_its_batch_while_the_partition_was_sealed(
    queue: QueueFixture,
) -> None:
    await ingest(queue, 4, 1)
    await by_key(queue)
    await change(queue, 2)
    ingestor = queue.ingestor(partitions=4)
    with pytest.raises(Misconfigured):  # so it knows the number that the sealed pair has
        await (await ingestor.ingest([KeyValueEntry(KEY_OF_LAST, b"8")])).await_durable()
    slow = await stored_and_stalled(queue, ingestor)
    await collect_orphans(queue)
    await change(queue, 4)
    await assert_delivered(queue, *slow)


@virtual_time
async def test_orphan_gc_spares_a_producer_made_for_more_partitions_than_there_are(queue: QueueFixture) -> None:
    await ingest(queue, 2, 1)
    await by_key(queue)
    slow = await stored_and_stalled(queue)
    await collect_orphans(queue)
    await change(queue, 4)
    await assert_delivered(queue, *slow)


@pytest.mark.slow
@pytest.mark.parametrize(("first", "second"), [(4, 3), (3, 4), (1, 3), (4, 1)])
@virtual_time(seeds=30)
async def test_of_two_changes_at_once_one_stands_and_all_pairs_agree_on_it(
    queue: QueueFixture, first: int, second: int
) -> None:
    await ingest(queue, 2, 1)
    await by_key(queue)

    async def changed(partitions: int) -> int | None:
        try:
            await repartition(queue).run(partitions)
        except QueueContended:
            return None
        return partitions

    ends = [each for each in await asyncio.gather(changed(first), changed(second)) if each]
    root = await queue.producer_manifest()
    assert root.partitions in ends
    for number in range(4):
        pair = await queue.producer_manifest(ManifestKeys.of(PAIR.producer, number).producer)
        if number < root.partitions:
            assert (pair.partitions, pair.sealed) == (root.partitions, False)
        else:
            assert pair.sealed or not pair.version, "nothing can be appended where nobody reads"
    await ingest(queue, root.partitions, 2)
    assert await by_key(queue) == {key: [2] for key in KEYS}


@pytest.mark.parametrize("step", range(0, 24, 2))
@virtual_time(seeds=1)
async def test_a_change_that_was_overtaken_at_any_step_changes_nothing_more(queue: QueueFixture, step: int) -> None:
    await ingest(queue, 2, 1)
    await by_key(queue)
    calls = [step]

    def stalls(_: Call) -> bool:
        calls[0] -= 1
        return calls[0] < 0

    queue.store.hold_calls(stalls)
    overtaken = asyncio.create_task(repartition(queue).run(4))
    await queue.sleep(60)
    await change(queue, 3)
    queue.store.release_calls()
    await asyncio.wait([overtaken])
    if isinstance(overtaken.exception(), QueueContended):
        assert (await queue.producer_manifest()).partitions == 3
    else:
        assert overtaken.exception() is None, "it was done before the other one began"
    partitions = (await queue.producer_manifest()).partitions
    await ingest(queue, partitions, 2)
    assert await by_key(queue) == {key: [2] for key in KEYS}


@virtual_time
async def test_a_change_beside_a_clean_up_is_not_refused_for_what_was_acknowledged(queue: QueueFixture) -> None:
    await ingest(queue, 1, 1)
    await by_key(queue)
    assert (await queue.consumer_manifest()).done
    reads_before = queue.store.count(reads)
    queue.store.hold_calls(lambda call: reads(call) and queue.store.count(reads) > reads_before + 1)
    changing = asyncio.create_task(repartition(queue).run(2))
    await queue.sleep(1)
    files = ManifestPair.of(PAIR, unhindered(queue))
    assert await QueueCleanup(pair=files, deps=unhindered(queue), backoff=BufferRetries().consumer).run() == 1
    queue.store.release_calls()
    await changing
    assert (await queue.producer_manifest()).partitions == 2


def reads(call: Call) -> bool:
    return call[0] == "get"


@virtual_time
async def test_an_ingestor_that_was_refused_goes_on_when_the_queue_is_what_it_was_made_for(queue: QueueFixture) -> None:
    await ingest(queue, 2, 1)
    await by_key(queue)
    ingestor = queue.ingestor(partitions=4)
    with pytest.raises(Misconfigured, match="is configured for 4"):
        await (await ingestor.ingest([KeyValueEntry(KEY_OF_LAST, b"1")])).await_durable()
    await change(queue, 4)
    await (await ingestor.ingest([KeyValueEntry(KEY_OF_LAST, b"2")])).await_durable()
    await ingestor.close()
    assert await by_key(queue) == {KEY_OF_LAST: [2]}


@virtual_time
async def test_a_change_that_is_refused_leaves_every_pair_open(queue: QueueFixture) -> None:
    await ingest(queue, 4, 1)
    with pytest.raises(InvalidCall, match="not acknowledged"):
        await repartition(queue).run(2)
    for number in range(4):
        assert not (await queue.producer_manifest(ManifestKeys.of(PAIR.producer, number).producer)).sealed


@virtual_time
async def test_a_change_sees_what_waits_in_pairs_of_which_the_first_manifest_does_not_tell_any_more(
    queue: QueueFixture,
) -> None:
    """Somebody who does not know our keys has written it."""
    async with queue.ingestor(partitions=4) as ingestor:
        await ingestor.ingest([KeyValueEntry(KEY_OF_LAST, b"1")])
    await queue.store.inner.put(PAIR.producer, b'{"pending": []}')
    with pytest.raises(InvalidCall, match="not acknowledged"):
        await repartition(queue).run(2)
    assert not (await queue.producer_manifest()).sealed


@pytest.mark.parametrize("applied", [True, False])
@pytest.mark.parametrize("number", range(3))
@virtual_time
async def test_a_change_that_is_refused_after_a_lost_answer_leaves_every_pair_open(
    queue: QueueFixture, number: int, *, applied: bool
) -> None:
    async with queue.ingestor(partitions=4) as ingestor:
        await ingestor.ingest([KeyValueEntry(KEY_OF_LAST, b"1")])
    in_doubt = writes(ManifestKeys.of(PAIR.producer, number).producer)
    queue.store.fail_calls(in_doubt, LOST, times=2, applied=applied)
    with pytest.raises(InvalidCall, match="not acknowledged"):
        await repartition(queue).run(2)
    for each in range(4):
        assert not (await queue.producer_manifest(ManifestKeys.of(PAIR.producer, each).producer)).sealed


@virtual_time
async def test_orphan_gc_of_a_queue_that_does_not_tell_its_number_yet_deletes_nothing(queue: QueueFixture) -> None:
    """It read that there is no first manifest, and somebody made it, and queued, before it looked at the rest."""
    ingestor, watcher = await stored_and_stalled(queue)
    orphans = OrphanGc(
        data_path_prefix="ingest",
        manifest_path=PAIR.producer,
        deps=replace(queue.deps(), store=ControlledStore(queue.world, queue.store.inner)),
        grace_seconds=0,
    )
    controlled = orphans.deps.store
    assert isinstance(controlled, ControlledStore)
    controlled.hold_calls(lambda call: reads(call) and controlled.count(reads) > 1)
    collecting = asyncio.create_task(orphans.run())
    await queue.sleep(1)
    queue.store.release_calls()
    await ingestor.close()
    controlled.release_calls()
    await asyncio.wait([collecting])
    assert isinstance(collecting.exception(), Unavailable)
    assert isinstance(watcher.result(), Durable)
    assert await by_key(queue) == {KEY_OF_LAST: [9]}


@virtual_time
async def test_a_change_whose_seal_was_never_confirmed_says_that_it_may_have_been_applied(queue: QueueFixture) -> None:
    await ingest(queue, 2, 1)
    await by_key(queue)
    queue.store.fail_calls(writes(PAIR.producer), LOST, applied=True)
    with pytest.raises(OutcomeUnknown, match="may have been applied"):
        await repartition(queue).run(4)
    queue.store.stop_failing()
    assert (await queue.producer_manifest()).sealed
    await repartition(queue).run(4)
    await ingest(queue, 4, 2)
    assert await by_key(queue) == {key: [2] for key in KEYS}
