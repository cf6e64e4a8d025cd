"""Changing the number of partitions beside slow producers, orphan GC, clean-ups and another such change."""

import asyncio
from dataclasses import replace

import pytest

from lakehead.buffer.cleanup import CleanUp
from lakehead.buffer.consumer import CLAIMS
from lakehead.buffer.errors import Contended, Refused
from lakehead.buffer.ingestor import Ingestor
from lakehead.buffer.layout import Pair
from lakehead.buffer.manifests import PairFiles
from lakehead.buffer.means import Means
from lakehead.buffer.orphans import OrphanCollector
from lakehead.buffer.watcher import Durable, WriteWatcher
from lakehead.errors import Misconfigured, Unavailable
from lakehead.wire.batch import KeyValueEntry
from tests.unit.buffer.scene import LOST, PAIR, Call, GateStore, Scene, batches, play, writes
from tests.unit.buffer.test_partitions import KEYS, by_key, ingest, repartition

LAST = Pair.of(PAIR.producer, 3)
KEY_OF_LAST = b"1"
"""A key whose entries go to the last of four partitions."""


async def stored_and_stalled(scene: Scene, ingestor: Ingestor | None = None) -> tuple[Ingestor, WriteWatcher]:
    """An ingestor for four partitions that has stored a batch for the last one, and not come to queueing it."""

    stored_before = scene.store.count(batches)
    manifests = (PAIR.producer, LAST.producer)
    scene.store.hold(lambda call: call[1] in manifests and scene.store.count(batches) > stored_before)
    ingestor = ingestor or scene.ingestor(partitions=4)
    watcher = await ingestor.ingest([KeyValueEntry(KEY_OF_LAST, b"9")])
    await scene.later(1)
    assert scene.store.count(batches) == stored_before + 1
    return ingestor, watcher


def unhindered(scene: Scene) -> Means:
    """A way to the store that nobody holds up."""
    return replace(scene.means(), store=scene.store.inner)


async def change(scene: Scene, partitions: int) -> None:
    await replace(repartition(scene), means=unhindered(scene)).run(partitions)


async def collect_orphans(scene: Scene) -> None:
    """Delete what is stored and not queued; what was stored last is."""
    stored = [key for kind, key in scene.store.calls if kind == "create" and key.endswith(".batch")]
    deleted = await OrphanCollector(
        data_path_prefix="ingest",
        manifest_path=PAIR.producer,
        means=unhindered(scene),
        backoff=CLAIMS,
        grace_seconds=0,
    ).run()
    assert stored[-1] in deleted


async def assert_delivered(scene: Scene, ingestor: Ingestor, watcher: WriteWatcher) -> None:
    """What the slow producer was told is queued is there to be read."""
    scene.store.release()
    await ingestor.close()
    assert isinstance(watcher.result(), Durable)
    assert await by_key(scene) == {KEY_OF_LAST: [9]}


def test_orphan_gc_spares_a_slow_producer_of_a_partition_that_went_and_came_back() -> None:
    async def story(scene: Scene) -> None:
        await ingest(scene, 4, 1)
        await by_key(scene)
        slow = await stored_and_stalled(scene)
        await change(scene, 2)
        await collect_orphans(scene)
        await change(scene, 4)
        await assert_delivered(scene, *slow)

    play(story)


def test_orphan_gc_spares_a_producer_that_stored_its_batch_while_the_partition_was_sealed() -> None:
    async def story(scene: Scene) -> None:
        await ingest(scene, 4, 1)
        await by_key(scene)
        await change(scene, 2)
        ingestor = scene.ingestor(partitions=4)
        with pytest.raises(Misconfigured):  # so it knows the number that the sealed pair has
            await (await ingestor.ingest([KeyValueEntry(KEY_OF_LAST, b"8")])).await_durable()
        slow = await stored_and_stalled(scene, ingestor)
        await collect_orphans(scene)
        await change(scene, 4)
        await assert_delivered(scene, *slow)

    play(story)


def test_orphan_gc_spares_a_producer_made_for_more_partitions_than_there_are() -> None:
    async def story(scene: Scene) -> None:
        await ingest(scene, 2, 1)
        await by_key(scene)
        slow = await stored_and_stalled(scene)
        await collect_orphans(scene)
        await change(scene, 4)
        await assert_delivered(scene, *slow)

    play(story)


@pytest.mark.parametrize(("first", "second"), [(4, 3), (3, 4), (1, 3), (4, 1)])
def test_of_two_changes_at_once_one_stands_and_all_pairs_agree_on_it(first: int, second: int) -> None:
    async def story(scene: Scene) -> None:
        await ingest(scene, 2, 1)
        await by_key(scene)

        async def changed(partitions: int) -> int | None:
            try:
                await repartition(scene).run(partitions)
            except Contended:
                return None
            return partitions

        ends = [each for each in await asyncio.gather(changed(first), changed(second)) if each]
        root = await scene.producer()
        assert root.partitions in ends
        for number in range(4):
            pair = await scene.producer(Pair.of(PAIR.producer, number).producer)
            if number < root.partitions:
                assert (pair.partitions, pair.sealed) == (root.partitions, False)
            else:
                assert pair.sealed or not pair.version, "nothing can be appended where nobody reads"
        await ingest(scene, root.partitions, 2)
        assert await by_key(scene) == {key: [2] for key in KEYS}

    play(story, seeds=30)


@pytest.mark.parametrize("step", range(0, 24, 2))
def test_a_change_that_was_overtaken_at_any_step_changes_nothing_more(step: int) -> None:
    async def story(scene: Scene) -> None:
        await ingest(scene, 2, 1)
        await by_key(scene)
        calls = [step]

        def stalls(_: Call) -> bool:
            calls[0] -= 1
            return calls[0] < 0

        scene.store.hold(stalls)
        overtaken = asyncio.create_task(repartition(scene).run(4))
        await scene.later(60)
        await change(scene, 3)
        scene.store.release()
        await asyncio.wait([overtaken])
        if isinstance(overtaken.exception(), Contended):
            assert (await scene.producer()).partitions == 3
        else:
            assert overtaken.exception() is None, "it was done before the other one began"
        partitions = (await scene.producer()).partitions
        await ingest(scene, partitions, 2)
        assert await by_key(scene) == {key: [2] for key in KEYS}

    play(story, seeds=1)


def test_a_change_beside_a_clean_up_is_not_refused_for_what_was_acknowledged() -> None:
    async def story(scene: Scene) -> None:
        await ingest(scene, 1, 1)
        await by_key(scene)
        assert (await scene.consumer()).done
        reads_before = scene.store.count(reads)
        scene.store.hold(lambda call: reads(call) and scene.store.count(reads) > reads_before + 1)
        changing = asyncio.create_task(repartition(scene).run(2))
        await scene.later(1)
        files = PairFiles.of(PAIR, unhindered(scene))
        assert await CleanUp(files=files, means=unhindered(scene), backoff=CLAIMS).run() == 1
        scene.store.release()
        await changing
        assert (await scene.producer()).partitions == 2

    play(story)


def reads(call: Call) -> bool:
    return call[0] == "get"


def test_an_ingestor_that_was_refused_goes_on_when_the_queue_is_what_it_was_made_for() -> None:
    async def story(scene: Scene) -> None:
        await ingest(scene, 2, 1)
        await by_key(scene)
        ingestor = scene.ingestor(partitions=4)
        with pytest.raises(Misconfigured, match="was made for 4"):
            await (await ingestor.ingest([KeyValueEntry(KEY_OF_LAST, b"1")])).await_durable()
        await change(scene, 4)
        await (await ingestor.ingest([KeyValueEntry(KEY_OF_LAST, b"2")])).await_durable()
        await ingestor.close()
        assert await by_key(scene) == {KEY_OF_LAST: [2]}

    play(story)


def test_a_change_that_is_refused_leaves_every_pair_open() -> None:
    async def story(scene: Scene) -> None:
        await ingest(scene, 4, 1)
        with pytest.raises(Refused, match="not acknowledged"):
            await repartition(scene).run(2)
        for number in range(4):
            assert not (await scene.producer(Pair.of(PAIR.producer, number).producer)).sealed

    play(story)


def test_a_change_sees_what_waits_in_pairs_of_which_the_first_manifest_does_not_tell_any_more() -> None:
    """Somebody who does not know our keys has written it."""

    async def story(scene: Scene) -> None:
        async with scene.ingestor(partitions=4) as ingestor:
            await ingestor.ingest([KeyValueEntry(KEY_OF_LAST, b"1")])
        await scene.store.inner.put(PAIR.producer, b'{"pending": []}')
        with pytest.raises(Refused, match="not acknowledged"):
            await repartition(scene).run(2)
        assert not (await scene.producer()).sealed

    play(story)


@pytest.mark.parametrize("applied", [True, False])
@pytest.mark.parametrize("number", range(3))
def test_a_change_that_is_refused_after_a_lost_answer_leaves_every_pair_open(number: int, applied: bool) -> None:  # noqa: FBT001 - a parameter
    async def story(scene: Scene) -> None:
        async with scene.ingestor(partitions=4) as ingestor:
            await ingestor.ingest([KeyValueEntry(KEY_OF_LAST, b"1")])
        in_doubt = writes(Pair.of(PAIR.producer, number).producer)
        scene.store.break_(in_doubt, LOST, times=2, applied=applied)
        with pytest.raises(Refused, match="not acknowledged"):
            await repartition(scene).run(2)
        for each in range(4):
            assert not (await scene.producer(Pair.of(PAIR.producer, each).producer)).sealed

    play(story)


def test_orphan_gc_of_a_queue_that_does_not_tell_its_number_yet_deletes_nothing() -> None:
    """It read that there is no first manifest, and somebody made it, and queued, before it looked at the rest."""

    async def story(scene: Scene) -> None:
        ingestor, watcher = await stored_and_stalled(scene)
        orphans = OrphanCollector(
            data_path_prefix="ingest",
            manifest_path=PAIR.producer,
            means=replace(scene.means(), store=GateStore(scene.world, scene.store.inner)),
            backoff=CLAIMS,
            grace_seconds=0,
        )
        gate = orphans.means.store
        assert isinstance(gate, GateStore)
        gate.hold(lambda call: reads(call) and gate.count(reads) > 1)
        collecting = asyncio.create_task(orphans.run())
        await scene.later(1)
        scene.store.release()
        await ingestor.close()
        gate.release()
        await asyncio.wait([collecting])
        assert isinstance(collecting.exception(), Unavailable)
        assert isinstance(watcher.result(), Durable)
        assert await by_key(scene) == {KEY_OF_LAST: [9]}

    play(story)
