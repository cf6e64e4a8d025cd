"""Purging a queue: nothing that waits is left, nobody gets it any more, and what comes later stays."""

from dataclasses import replace

import pytest

from lakehead.buffer.consumer import CLAIMS, Mode
from lakehead.buffer.errors import Fenced
from lakehead.buffer.layout import Pair
from lakehead.buffer.purge import Purge
from lakehead.wire.errors import Unreadable
from tests.unit.buffer.scene import LOST, MANIFEST, PAIR, Scene, in_both_modes, play, values, writes
from tests.unit.buffer.test_bad_batches import overwrite
from tests.unit.buffer.test_partitions import KEYS, by_key, ingest
from tests.unit.buffer.test_waiting import fill_partition


def purge(scene: Scene) -> Purge:
    return Purge(manifest_path=MANIFEST, means=scene.means(), backoff=CLAIMS)


def test_what_waits_goes_with_its_batches_from_every_partition_and_what_comes_later_stays() -> None:
    async def story(scene: Scene) -> None:
        await ingest(scene, 4, 1, 2)
        waiting = [await scene.producer(Pair.of(MANIFEST, number).producer) for number in range(4)]
        count = sum(len(each.pending) for each in waiting)
        assert await purge(scene).run(dry_run=True) == count
        assert await purge(scene).run() == count
        assert await scene.batch_keys() == []
        assert await purge(scene).run() == 0
        await ingest(scene, 4, 3)
        assert await by_key(scene) == {key: [3] for key in KEYS}

    play(story)


def test_a_dry_run_changes_nothing() -> None:
    async def story(scene: Scene) -> None:
        await scene.fill("a", "b")
        before = [(await scene.store.inner.get(key)) for key in await scene.keys()]
        assert await purge(scene).run(dry_run=True) == 2
        assert [(await scene.store.inner.get(key)) for key in await scene.keys()] == before

    play(story)


@in_both_modes
def test_a_collector_that_holds_a_purged_batch_is_fenced(mode: Mode) -> None:
    async def story(scene: Scene) -> None:
        await scene.fill("a", "b")
        collector = scene.collector(mode=mode, read_ahead=1)
        batch = await collector.next_batch()
        assert batch is not None
        assert await purge(scene).run() == 2
        with pytest.raises(Fenced):
            await collector.ack(batch)
        await collector.close()
        await scene.fill("c")
        assert await scene.all_of(scene.collector(mode=mode)) == ["c"]

    play(story)


def test_a_collector_that_a_purge_fenced_in_one_partition_does_not_keep_another_to_itself() -> None:
    async def story(scene: Scene) -> None:
        await fill_partition(scene, 0, "purged", partitions=2)
        fenced = scene.collector()
        assert values(await fenced.next_batch()) == ["purged"]
        assert await fenced.next_batch() is None
        assert await purge(scene).run() == 1
        await scene.later(11)
        with pytest.raises(Fenced):
            await fenced.next_batch()
        await fill_partition(scene, 1, "new", partitions=2)
        async with scene.collector() as successor:
            assert values(await successor.next_batch(timeout=60)) == ["new"]
        await fenced.close()

    play(story)


@in_both_modes
def test_bad_batches_and_deliveries_are_counted_anew_after_a_purge(mode: Mode) -> None:
    async def story(scene: Scene) -> None:
        await scene.fill("a", "b")
        await overwrite(scene, [0, 1], b"garbage")
        async with scene.collector(mode=mode, max_bad_batches_in_a_row=1) as collector:
            with pytest.raises(Unreadable):
                await collector.next_batch()
            await scene.later(1)
            assert await purge(scene).run() == 1
        assert (await scene.consumer()).deliveries == {}
        await scene.fill("c", "d")
        await overwrite(scene, [0], b"garbage")
        async with scene.collector(mode=mode, max_bad_batches_in_a_row=1) as collector:
            assert await scene.all_of(collector) == ["d"]

    play(story)


@pytest.mark.parametrize("applied", [True, False])
def test_a_purge_in_doubt_is_counted_once(applied: bool) -> None:  # noqa: FBT001 - a parameter
    async def story(scene: Scene) -> None:
        await scene.fill("a", "b")
        scene.store.break_(writes(PAIR.consumer), LOST, times=1, applied=applied)
        assert await purge(scene).run() == 2
        assert await scene.batch_keys() == []
        manifest = await scene.consumer()
        assert replace(manifest, version=0, nonce="", epoch=0, unknown={}).encode() == b'{"claimed":{},"done":[]}'

    play(story)
