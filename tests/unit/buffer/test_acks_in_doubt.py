"""Acknowledgements whose answers were lost, when so many collectors have acknowledged since that ours is forgotten."""

import pytest

from lakehead.buffer.claims import ClaimState
from lakehead.buffer.config import CollectorMode
from lakehead.buffer.consumer import MAX_COLLECTORS, Consumer
from lakehead.buffer.errors import Fenced, OutcomeLost
from lakehead.buffer.layout import object_key
from lakehead.buffer.manifests import ManifestPair
from lakehead.buffer.partition_reader import PartitionReader, unacknowledged
from lakehead.buffer.queue_cleanup import QueueCleanup
from lakehead.buffer.retry_policies import BufferRetries
from lakehead.errors import OutcomeUnknown
from lakehead.wire.batch import encode_json
from lakehead.wire.queue_manifests import ProducerManifest
from tests.unit.buffer.support import DOWN, LOST, PAIR, QueueFixture, entries, in_both_modes, virtual_time, writes


def consumer(queue: QueueFixture, *, most: int = 2) -> Consumer:
    deps = queue.deps()
    return Consumer(ManifestPair.of(PAIR, deps), deps, mode=CollectorMode.COMPETING, timeout=30, max_collectors=most)


async def in_doubt(queue: QueueFixture, ours: Consumer, *, applied: bool) -> list[str]:
    """Claim two and leave the acknowledgement of the first in doubt; both locations."""
    first, second = [claim.location for claim in await ours.claim(2)]
    queue.store.fail_calls(writes(PAIR.consumer), LOST, times=1, applied=applied)
    queue.store.fail_calls(lambda call: call == ("get", PAIR.consumer), DOWN, times=1)
    with pytest.raises(OutcomeUnknown):
        await ours.ack([first])
    return [first, second]


async def others_acknowledge(queue: QueueFixture, count: int, *, most: int = 2) -> None:
    for _ in range(count):
        other = consumer(queue, most=most)
        [claim] = await other.claim(1)
        await other.ack([claim.location])


@pytest.mark.parametrize("cleaned_up", [False, True])
@virtual_time
async def test_who_acknowledged_is_unknown_for_good_once_it_is_forgotten(queue: QueueFixture, cleaned_up: bool) -> None:  # noqa: FBT001 - a parameter
    await queue.fill(*"abcd")
    ours = consumer(queue)
    first, second = await in_doubt(queue, ours, applied=True)
    claim = ours.held[first]
    await others_acknowledge(queue, 2)
    if cleaned_up:
        await QueueCleanup(
            pair=ManifestPair.of(PAIR, queue.deps()), deps=queue.deps(), backoff=BufferRetries().consumer
        ).run()
    with pytest.raises(OutcomeLost, match="Do not repeat the call"):
        await ours.ack([first])
    assert claim.state is ClaimState.OUTCOME_LOST
    with pytest.raises(OutcomeLost, match="Do not repeat the call"):
        unacknowledged([claim])  # as a reader asks before it acknowledges again
    await ours.heartbeat()
    await ours.ack([second])
    assert second in (await queue.consumer_manifest()).done


@virtual_time
async def test_an_ack_that_was_forgotten_and_may_not_have_landed_fences_if_another_has_the_batch(
    queue: QueueFixture,
) -> None:
    await queue.fill(*"abcd")
    ours = consumer(queue)
    first, _ = await in_doubt(queue, ours, applied=False)
    await queue.sleep(31)
    taken = consumer(queue)
    assert [claim.location for claim in await taken.claim(1)] == [first]
    await queue.sleep(1)
    await others_acknowledge(queue, 2)
    with pytest.raises(Fenced):
        await ours.ack([first])
    await taken.ack([first])


@virtual_time
async def test_an_ack_that_did_not_land_is_known_whoever_has_acknowledged_since(queue: QueueFixture) -> None:
    await queue.fill(*"abcd")
    ours = consumer(queue)
    first, second = await in_doubt(queue, ours, applied=False)
    await others_acknowledge(queue, 2)
    await ours.ack([first])
    await ours.ack([second])
    assert len((await queue.consumer_manifest()).done) == 4


@pytest.mark.parametrize("most", [3, 64])
@virtual_time
async def test_an_ack_that_others_left_standing_is_known(queue: QueueFixture, most: int) -> None:
    await queue.fill(*"abcdef")
    await others_acknowledge(queue, 1, most=most)
    ours = consumer(queue, most=most)
    first, second = await in_doubt(queue, ours, applied=True)
    await others_acknowledge(queue, 1, most=most)
    await ours.ack([first])
    await ours.ack([second])
    assert len((await queue.consumer_manifest()).done) == 4


@virtual_time
async def test_a_claim_that_was_taken_over_is_told_as_such_while_an_older_entry_is_proof(queue: QueueFixture) -> None:
    await queue.fill(*"abcd")
    await others_acknowledge(queue, 1)
    ours = consumer(queue)
    first, _ = await in_doubt(queue, ours, applied=False)
    await queue.sleep(31)
    other = consumer(queue)
    assert first in [claim.location for claim in await other.claim(1)]
    with pytest.raises(Fenced):
        await ours.ack([first])


@pytest.mark.parametrize("applied", [False, True])
@virtual_time
async def test_a_collector_never_says_yes_to_an_ack_that_a_heartbeat_found_forgotten(
    queue: QueueFixture, *, applied: bool
) -> None:
    locations = tuple(f"data/x.batch#{queue.world.ids.uuid()}" for _ in range(MAX_COLLECTORS + 2))
    await queue.store.inner.put(object_key(locations[0]), encode_json(entries("x")))
    await queue.store.inner.put(PAIR.producer, ProducerManifest(pending=locations).encode())
    ours = queue.collector(mode=CollectorMode.COMPETING, read_ahead=1)
    batch = await ours.next_batch()
    assert batch is not None
    assert ours._heartbeats is not None
    ours._heartbeats.cancel()
    queue.store.fail_calls(writes(PAIR.consumer), LOST, times=1, applied=applied)
    queue.store.fail_calls(lambda call: call == ("get", PAIR.consumer), DOWN, times=1)
    with pytest.raises(OutcomeUnknown):
        await ours.ack(batch)
    if not applied:
        await queue.sleep(31)
        [taken] = await consumer(queue).claim(1)
        assert taken.location == batch.location
    await others_acknowledge(queue, MAX_COLLECTORS, most=MAX_COLLECTORS)
    await ours.heartbeat()
    with pytest.raises(OutcomeLost if applied else Fenced):
        await ours.ack(batch)
    await ours.close()


# --- many at once


@in_both_modes
@virtual_time(seeds=1)
async def test_twenty_thousand_batches_are_acknowledged_at_once(queue: QueueFixture, mode: CollectorMode) -> None:
    many = tuple(f"data/x.batch#{queue.world.ids.uuid()}" for _ in range(20_000))
    await queue.store.inner.put(object_key(many[0]), encode_json(entries("x")))
    await queue.store.inner.put(PAIR.producer, ProducerManifest(pending=many).encode())
    async with queue.collector(mode=mode, done_cleanup_threshold=10**6) as collector:
        [reader] = collector._readers.all
        assert isinstance(reader, PartitionReader)
        claims = await reader.consumer.claim(20_000)
        for claim in claims:
            claim.handed_out = True
        await reader.ack(claims[:1])
        await reader.ack(claims)
        assert (await queue.consumer_manifest()).done == many
