"""Partitions: order within one, and a number that changes only when nothing is left."""

from dataclasses import replace
from typing import Any

import pytest

from lakehead.buffer.errors import Fenced, InvalidCall
from lakehead.buffer.layout import ManifestKeys
from lakehead.buffer.watcher import Durable
from lakehead.errors import LakeheadError, Misconfigured, OutcomeUnknown, Unavailable
from lakehead.wire.batch import KeyValueEntry
from tests.unit.buffer.partition_support import KEYS, by_key, ingest, keyed, repartition
from tests.unit.buffer.support import LOST, PAIR, QueueFixture, entries, virtual_time, writes

DOWN = Unavailable("the store is down")


@virtual_time
async def test_each_key_keeps_its_order_in_one_of_many_partitions(queue: QueueFixture) -> None:
    await ingest(queue, 4, *range(20))
    manifests = [await queue.producer_manifest(ManifestKeys.of(PAIR.producer, number).producer) for number in range(4)]
    assert [manifest.partitions for manifest in manifests] == [4] * 4
    assert sum(bool(manifest.pending) for manifest in manifests) > 1
    assert await by_key(queue) == {key: list(range(20)) for key in KEYS}


@virtual_time
async def test_readers_learn_the_number_from_the_first_pair_even_when_it_is_empty(queue: QueueFixture) -> None:
    async with queue.ingestor(partitions=4) as ingestor:
        for key in KEYS:
            await ingestor.ingest([KeyValueEntry(key, b"1")])
            break
    assert len(await by_key(queue)) == 1


@pytest.mark.parametrize(("first", "second"), [(1, 4), (4, 1), (4, 2)])
@virtual_time
async def test_an_ingestor_with_another_number_is_refused(queue: QueueFixture, first: int, second: int) -> None:
    await ingest(queue, first, 1)
    ingestor = queue.ingestor(partitions=second)
    watcher = await ingestor.ingest(keyed(2))
    with pytest.raises(Misconfigured, match="partitions"):
        await watcher.await_durable()
    await ingestor.close()
    assert await by_key(queue) == {key: [1] for key in KEYS}


@pytest.mark.parametrize(("first", "second"), [(1, 4), (4, 1), (4, 2), (2, 3)])
@virtual_time
async def test_a_drained_queue_can_be_given_another_number(queue: QueueFixture, first: int, second: int) -> None:
    await ingest(queue, first, 1, 2)
    assert await by_key(queue) == {key: [1, 2] for key in KEYS}
    await repartition(queue).run(second)
    await ingest(queue, second, 3, 4)
    assert await by_key(queue) == {key: [3, 4] for key in KEYS}
    with pytest.raises(Misconfigured):
        await ingest(queue, first, 5)


@virtual_time
async def test_a_queue_that_is_not_drained_keeps_its_number(queue: QueueFixture) -> None:
    await ingest(queue, 4, 1)
    with pytest.raises(InvalidCall, match="not acknowledged"):
        await repartition(queue).run(2)
    await ingest(queue, 4, 2)
    assert await by_key(queue) == {key: [1, 2] for key in KEYS}


@pytest.mark.slow
@pytest.mark.parametrize("then", [4, 3])
@virtual_time(seeds=1)
async def test_a_change_that_was_interrupted_anywhere_is_made_up_for_by_another(queue: QueueFixture, then: int) -> None:
    for step in range(40):
        fresh = QueueFixture(queue.world, type(queue.store)(queue.world))
        await ingest(fresh, 2, 1)
        assert await by_key(fresh) == {key: [1] for key in KEYS}
        left = [step]

        def next_call(_: tuple[str, str], left: list[int] = left) -> bool:
            left[0] -= 1
            return left[0] < 0

        fresh.store.fail_calls(next_call, DOWN)
        with pytest.raises(LakeheadError) if step < 10 else nothing():
            await repartition(fresh).run(4)
        fresh.store.stop_failing()
        await repartition(fresh).run(then)
        for key in KEYS if then != 4 else []:
            ingestor = fresh.ingestor(partitions=4)
            watcher = await ingestor.ingest([KeyValueEntry(key, b"5")])
            with pytest.raises(Misconfigured):
                await watcher.await_durable()
            await ingestor.close()
        await ingest(fresh, then, 2)
        assert await by_key(fresh) == {key: [2] for key in KEYS}


class nothing:  # noqa: N801 - reads as a word beside `pytest.raises`
    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        return kind is not None and issubclass(kind, LakeheadError)


@virtual_time
async def test_a_collector_that_is_fenced_in_one_partition_hands_out_nothing_from_another(queue: QueueFixture) -> None:
    await ingest(queue, 2, 1, 2)
    old = queue.collector(read_ahead=1)
    first, second = await old.next_batch(), await old.next_batch()
    assert first is not None
    assert second is not None
    assert {first.partition, second.partition} == {0, 1}
    key = ManifestKeys.of(PAIR.producer, first.partition).consumer
    manifest = await queue.consumer_manifest(key)
    taken = replace(manifest, owner="another", epoch=manifest.epoch + 1, claimed={}, owners={})
    await queue.store.inner.put(key, taken.encode())
    with pytest.raises(Fenced):
        await old.ack(first)
    with pytest.raises(Fenced):
        await old.ack(second)
    with pytest.raises(Fenced):
        await old.next_batch()
    assert (await queue.consumer_manifest(ManifestKeys.of(PAIR.producer, second.partition).consumer)).done == ()
    await old.close()


@virtual_time
async def test_an_answer_that_is_lost_while_the_number_changes_does_no_harm(queue: QueueFixture) -> None:
    await ingest(queue, 1, 1)
    await by_key(queue)
    queue.store.fail_calls(writes(PAIR.producer), LOST, times=2, applied=True)
    await repartition(queue).run(2)
    await ingest(queue, 2, 2)
    assert await by_key(queue) == {key: [2] for key in KEYS}


@virtual_time
async def test_a_vector_of_which_one_part_is_queued_and_another_is_not_is_in_doubt(queue: QueueFixture) -> None:
    ingestor = queue.ingestor(partitions=2)
    other = ManifestKeys.of(PAIR.producer, 1).producer
    await (await ingestor.ingest(keyed(1))).await_durable()
    queue.store.fail_calls(writes(other), DOWN)
    watcher = await ingestor.ingest(keyed(2))
    await queue.sleep(60)
    assert isinstance(watcher.result(), OutcomeUnknown)
    queue.store.stop_failing()
    queue.store.fail_calls(lambda call: call[0] == "create", DOWN)
    watcher = await ingestor.ingest(keyed(3))
    await queue.sleep(60)
    assert isinstance(watcher.result(), Unavailable), "no part of it is queued"
    queue.store.stop_failing()
    assert isinstance((await durable(ingestor.ingest(entries("x")))), Durable)
    await ingestor.close()


async def durable(ingesting: Any) -> object:
    watcher = await ingesting
    await watcher.await_durable()
    return watcher.result()
