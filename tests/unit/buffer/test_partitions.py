"""Partitions: order within one, and a number that changes only when nothing is left."""

from dataclasses import replace
from typing import Any

import pytest

from lakehead.buffer.consumer import CLAIMS
from lakehead.buffer.errors import Fenced, Refused
from lakehead.buffer.layout import Pair
from lakehead.buffer.means import Means
from lakehead.buffer.partitions import Repartition
from lakehead.buffer.watcher import Durable
from lakehead.errors import LakeheadError, Misconfigured, OutcomeUnknown, Unavailable
from lakehead.wire.batch import KeyValueEntry
from tests.unit.buffer.scene import LOST, PAIR, Scene, entries, play, writes

DOWN = Unavailable("the store is down")
KEYS = [str(number).encode() for number in range(8)]


def keyed(*numbers: int) -> list[KeyValueEntry]:
    return [KeyValueEntry(key, str(number).encode()) for number in numbers for key in KEYS]


def repartition(scene: Scene) -> Repartition:
    means = Means(store=scene.store, clock=scene.clock, ids=scene.world.ids, random=scene.world.random)
    return Repartition(manifest_path=PAIR.producer, means=means, backoff=CLAIMS)


async def by_key(scene: Scene, **settings: Any) -> dict[bytes, list[int]]:
    found: dict[bytes, list[int]] = {}
    async with scene.collector(**settings) as collector:
        while (batch := await collector.next_batch()) is not None:
            for entry in batch.entries:
                found.setdefault(entry.key, []).append(int(entry.value))
            await collector.ack(batch)
        assert await collector.next_batch() is None
    return found


async def ingest(scene: Scene, partitions: int, *numbers: int) -> None:
    async with scene.ingestor(partitions=partitions) as ingestor:
        for number in numbers:
            await (await ingestor.ingest(keyed(number))).await_durable()


def test_each_key_keeps_its_order_in_one_of_many_partitions() -> None:
    async def story(scene: Scene) -> None:
        await ingest(scene, 4, *range(20))
        manifests = [await scene.producer(Pair.of(PAIR.producer, number).producer) for number in range(4)]
        assert [manifest.partitions for manifest in manifests] == [4] * 4
        assert sum(bool(manifest.pending) for manifest in manifests) > 1
        assert await by_key(scene) == {key: list(range(20)) for key in KEYS}

    play(story)


def test_readers_learn_the_number_from_the_first_pair_even_when_it_is_empty() -> None:
    async def story(scene: Scene) -> None:
        async with scene.ingestor(partitions=4) as ingestor:
            for key in KEYS:
                await ingestor.ingest([KeyValueEntry(key, b"1")])
                break
        assert len(await by_key(scene)) == 1

    play(story)


@pytest.mark.parametrize(("first", "second"), [(1, 4), (4, 1), (4, 2)])
def test_an_ingestor_with_another_number_is_refused(first: int, second: int) -> None:
    async def story(scene: Scene) -> None:
        await ingest(scene, first, 1)
        ingestor = scene.ingestor(partitions=second)
        watcher = await ingestor.ingest(keyed(2))
        with pytest.raises(Misconfigured, match="partitions"):
            await watcher.await_durable()
        await ingestor.close()
        assert await by_key(scene) == {key: [1] for key in KEYS}

    play(story)


@pytest.mark.parametrize(("first", "second"), [(1, 4), (4, 1), (4, 2), (2, 3)])
def test_a_drained_queue_can_be_given_another_number(first: int, second: int) -> None:
    async def story(scene: Scene) -> None:
        await ingest(scene, first, 1, 2)
        assert await by_key(scene) == {key: [1, 2] for key in KEYS}
        await repartition(scene).run(second)
        await ingest(scene, second, 3, 4)
        assert await by_key(scene) == {key: [3, 4] for key in KEYS}
        with pytest.raises(Misconfigured):
            await ingest(scene, first, 5)

    play(story)


def test_a_queue_that_is_not_drained_keeps_its_number() -> None:
    async def story(scene: Scene) -> None:
        await ingest(scene, 4, 1)
        with pytest.raises(Refused, match="not acknowledged"):
            await repartition(scene).run(2)
        await ingest(scene, 4, 2)
        assert await by_key(scene) == {key: [1, 2] for key in KEYS}

    play(story)


@pytest.mark.parametrize("then", [4, 3])
def test_a_change_that_was_interrupted_anywhere_is_made_up_for_by_another(then: int) -> None:
    async def story(scene: Scene) -> None:
        for step in range(40):
            fresh = Scene(scene.world, type(scene.store)(scene.world))
            await ingest(fresh, 2, 1)
            assert await by_key(fresh) == {key: [1] for key in KEYS}
            left = [step]

            def next_call(_: tuple[str, str], left: list[int] = left) -> bool:
                left[0] -= 1
                return left[0] < 0

            fresh.store.break_(next_call, DOWN)
            with pytest.raises(LakeheadError) if step < 10 else nothing():
                await repartition(fresh).run(4)
            fresh.store.mend()
            await repartition(fresh).run(then)
            for key in KEYS if then != 4 else []:
                ingestor = fresh.ingestor(partitions=4)
                watcher = await ingestor.ingest([KeyValueEntry(key, b"5")])
                with pytest.raises(Misconfigured):
                    await watcher.await_durable()
                await ingestor.close()
            await ingest(fresh, then, 2)
            assert await by_key(fresh) == {key: [2] for key in KEYS}

    play(story, seeds=1)


class nothing:  # noqa: N801 - reads as a word beside `pytest.raises`
    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        return kind is not None and issubclass(kind, LakeheadError)


def test_a_collector_that_is_fenced_in_one_partition_hands_out_nothing_from_another() -> None:
    async def story(scene: Scene) -> None:
        await ingest(scene, 2, 1, 2)
        old = scene.collector(read_ahead=1)
        first, second = await old.next_batch(), await old.next_batch()
        assert first is not None
        assert second is not None
        assert {first.partition, second.partition} == {0, 1}
        key = Pair.of(PAIR.producer, first.partition).consumer
        manifest = await scene.consumer(key)
        taken = replace(manifest, owner="another", epoch=manifest.epoch + 1, claimed={}, owners={})
        await scene.store.inner.put(key, taken.encode())
        with pytest.raises(Fenced):
            await old.ack(first)
        with pytest.raises(Fenced):
            await old.ack(second)
        with pytest.raises(Fenced):
            await old.next_batch()
        assert (await scene.consumer(Pair.of(PAIR.producer, second.partition).consumer)).done == ()
        await old.close()

    play(story)


def test_an_answer_that_is_lost_while_the_number_changes_does_no_harm() -> None:
    async def story(scene: Scene) -> None:
        await ingest(scene, 1, 1)
        await by_key(scene)
        scene.store.break_(writes(PAIR.producer), LOST, times=2, applied=True)
        await repartition(scene).run(2)
        await ingest(scene, 2, 2)
        assert await by_key(scene) == {key: [2] for key in KEYS}

    play(story)


def test_a_vector_of_which_one_part_is_queued_and_another_is_not_is_in_doubt() -> None:
    async def story(scene: Scene) -> None:
        ingestor = scene.ingestor(partitions=2)
        other = Pair.of(PAIR.producer, 1).producer
        await (await ingestor.ingest(keyed(1))).await_durable()
        scene.store.break_(writes(other), DOWN)
        watcher = await ingestor.ingest(keyed(2))
        await scene.later(60)
        assert isinstance(watcher.result(), OutcomeUnknown)
        scene.store.mend()
        scene.store.break_(lambda call: call[0] == "create", DOWN)
        watcher = await ingestor.ingest(keyed(3))
        await scene.later(60)
        assert isinstance(watcher.result(), Unavailable), "no part of it is queued"
        scene.store.mend()
        assert isinstance((await durable(ingestor.ingest(entries("x")))), Durable)
        await ingestor.close()

    play(story)


async def durable(ingesting: Any) -> object:
    watcher = await ingesting
    await watcher.await_durable()
    return watcher.result()
