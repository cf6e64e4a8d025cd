"""Purging a queue: nothing that waits is left, nobody gets it any more, and what comes later stays."""

from dataclasses import replace

import pytest

from lakehead.buffer.config import CollectorMode
from lakehead.buffer.errors import Fenced
from lakehead.buffer.layout import ManifestKeys
from lakehead.buffer.purge import Purge
from lakehead.errors import OutcomeUnknown
from lakehead.wire.errors import Unreadable
from tests.unit.buffer.partition_support import KEYS, by_key, fill_partition, ingest
from tests.unit.buffer.support import (
    DOWN,
    LOST,
    MANIFEST,
    PAIR,
    QueueFixture,
    in_both_modes,
    overwrite,
    values,
    virtual_time,
    writes,
)


def purge(queue: QueueFixture) -> Purge:
    return Purge(manifest_path=MANIFEST, deps=queue.deps())


@virtual_time
async def test_what_waits_goes_with_its_batches_from_every_partition_and_what_comes_later_stays(
    queue: QueueFixture,
) -> None:
    await ingest(queue, 4, 1, 2)
    waiting = [await queue.producer_manifest(ManifestKeys.of(MANIFEST, number).producer) for number in range(4)]
    count = sum(len(each.pending) for each in waiting)
    assert await purge(queue).run(dry_run=True) == count
    assert await purge(queue).run() == count
    assert await queue.batch_keys() == []
    assert await purge(queue).run() == 0
    await ingest(queue, 4, 3)
    assert await by_key(queue) == {key: [3] for key in KEYS}


@virtual_time
async def test_a_dry_run_changes_nothing(queue: QueueFixture) -> None:
    await queue.fill("a", "b")
    before = [(await queue.store.inner.get(key)) for key in await queue.keys()]
    assert await purge(queue).run(dry_run=True) == 2
    assert [(await queue.store.inner.get(key)) for key in await queue.keys()] == before


@in_both_modes
@virtual_time
async def test_a_collector_that_holds_a_purged_batch_is_fenced(queue: QueueFixture, mode: CollectorMode) -> None:
    await queue.fill("a", "b")
    collector = queue.collector(mode=mode, read_ahead=1)
    batch = await collector.next_batch()
    assert batch is not None
    assert await purge(queue).run() == 2
    with pytest.raises(Fenced):
        await collector.ack(batch)
    await collector.close()
    await queue.fill("c")
    assert await queue.collect_all(queue.collector(mode=mode)) == ["c"]


@virtual_time
async def test_a_collector_that_a_purge_fenced_in_one_partition_does_not_keep_another_to_itself(
    queue: QueueFixture,
) -> None:
    await fill_partition(queue, 0, "purged", partitions=2)
    fenced = queue.collector()
    assert values(await fenced.next_batch()) == ["purged"]
    assert await fenced.next_batch() is None
    assert await purge(queue).run() == 1
    await queue.sleep(11)
    with pytest.raises(Fenced):
        await fenced.next_batch()
    await fill_partition(queue, 1, "new", partitions=2)
    async with queue.collector() as successor:
        assert values(await successor.next_batch(timeout=60)) == ["new"]
    await fenced.close()


@in_both_modes
@virtual_time
async def test_bad_batches_and_deliveries_are_counted_anew_after_a_purge(
    queue: QueueFixture, mode: CollectorMode
) -> None:
    await queue.fill("a", "b")
    await overwrite(queue, [0, 1], b"garbage")
    async with queue.collector(mode=mode, max_bad_batches_in_a_row=1) as collector:
        with pytest.raises(Unreadable):
            await collector.next_batch()
        await queue.sleep(1)
        assert await purge(queue).run() == 1
    assert (await queue.consumer_manifest()).deliveries == {}
    await queue.fill("c", "d")
    await overwrite(queue, [0], b"garbage")
    async with queue.collector(mode=mode, max_bad_batches_in_a_row=1) as collector:
        assert await queue.collect_all(collector) == ["d"]


@pytest.mark.parametrize("applied", [True, False])
@virtual_time
async def test_a_purge_in_doubt_is_counted_once(queue: QueueFixture, applied: bool) -> None:  # noqa: FBT001 - a parameter
    await queue.fill("a", "b")
    queue.store.fail_calls(writes(PAIR.consumer), LOST, times=1, applied=applied)
    assert await purge(queue).run() == 2
    assert await queue.batch_keys() == []
    manifest = await queue.consumer_manifest()
    assert replace(manifest, version=0, nonce="", epoch=0, unknown={}).encode() == b'{"claimed":{},"done":[]}'


@pytest.mark.parametrize("can_be_read", [True, False])
@virtual_time
async def test_a_purge_that_may_have_been_applied_does_not_say_that_nothing_was_changed(
    queue: QueueFixture,
    can_be_read: bool,  # noqa: FBT001 - a parameter
) -> None:
    await queue.fill("a", "b")
    lost = queue.deps().retries.commands.attempts - 1 if can_be_read else 0
    queue.store.fail_calls(writes(PAIR.consumer), LOST, times=lost)
    queue.store.fail_calls(writes(PAIR.consumer), LOST, times=1, applied=True)
    queue.store.fail_calls(
        lambda call: call == ("get", PAIR.consumer) and queue.store.count(writes(PAIR.consumer)) > lost, DOWN
    )
    with pytest.raises(OutcomeUnknown, match="may have been applied"):
        await purge(queue).run()
    queue.store.stop_failing()
    assert len((await queue.consumer_manifest()).done) == 2
    assert await purge(queue).run() == 0
    assert await queue.batch_keys() == []
