"""A producer knows whether its append has landed for as long as the manifest can tell, and says so when it cannot."""

import asyncio
from dataclasses import replace

import pytest

from lakehead.buffer.layout import Pair
from lakehead.buffer.manifests import PairFiles
from lakehead.buffer.producer import MOST_PRODUCERS, Producer
from lakehead.buffer.watcher import Durable
from lakehead.errors import LakeheadError, Misconfigured, OutcomeUnknown, Unavailable
from lakehead.wire.batch import KeyValueEntry
from lakehead.wire.errors import Unreadable
from tests.unit.buffer.scene import LOST, MANIFEST, PAIR, Call, Scene, entries, play, writes


def producer(scene: Scene, *, most_producers: int = MOST_PRODUCERS, beside_the_gate: bool = False) -> Producer:
    """A new producer; one beside the gate is neither held up nor broken."""
    means = scene.means()
    if beside_the_gate:
        means = replace(means, store=scene.store.inner)
    return Producer(PairFiles.of(PAIR, means).producer, means, data_path_prefix="ingest", most_producers=most_producers)


def reads(call: Call) -> bool:
    return call == ("get", PAIR.producer)


def test_new_ingestors_that_contend_all_confirm_after_more_producers_have_written_than_are_remembered() -> None:
    async def story(scene: Scene) -> None:
        for number in range(300):
            await producer(scene).append(f"location-{number}")
        ingestors = [scene.ingestor() for _ in range(20)]
        watchers = [await each.ingest(entries("x")) for each in ingestors]
        await asyncio.gather(*(each.close() for each in ingestors), return_exceptions=True)
        assert [each.result() for each in watchers if not isinstance(each.result(), Durable)] == []
        assert sum(each.counts.manifest_conflicts["producer"] for each in ingestors) > 0

    play(story)


@pytest.mark.parametrize("applied", [True, False])
def test_an_append_whose_answer_was_lost_and_whose_producer_was_forgotten_is_told_as_unknown(*, applied: bool) -> None:
    async def story(scene: Scene) -> None:
        await producer(scene, most_producers=2).append("old")
        scene.store.break_(writes(PAIR.producer), LOST, times=1, applied=applied)
        ours = asyncio.ensure_future(producer(scene, most_producers=2).append("ours"))
        while scene.store.count(writes(PAIR.producer)) != 2:
            await scene.later(0)
        scene.store.hold(reads)
        await scene.later(1)
        for number in range(2):
            await producer(scene, most_producers=2, beside_the_gate=True).append(f"other-{number}")
        scene.store.release()
        cleaned = replace(await scene.producer(), pending=())
        await scene.store.inner.put(PAIR.producer, cleaned.encode())
        with pytest.raises(OutcomeUnknown, match="Look before"):
            await ours
        assert (await scene.producer()).pending == ()

    play(story)


@pytest.mark.parametrize("applied", [True, False])
def test_an_append_whose_answer_was_lost_is_settled_while_an_older_producer_is_remembered(*, applied: bool) -> None:
    """Whoever is older than we would have been dropped before us."""

    async def story(scene: Scene) -> None:
        for number in range(3):
            await producer(scene, most_producers=3).append(f"old-{number}")
        scene.store.break_(writes(PAIR.producer), LOST, times=1, applied=applied)
        ours = asyncio.ensure_future(producer(scene, most_producers=3).append("ours"))
        while scene.store.count(writes(PAIR.producer)) != 4:
            await scene.later(0)
        scene.store.hold(reads)
        await scene.later(1)
        await producer(scene, most_producers=3, beside_the_gate=True).append("other")
        scene.store.release()
        assert await ours == "ours"
        assert sorted((await scene.producer()).pending) == ["old-0", "old-1", "old-2", "other", "ours"]

    play(story)


def test_a_manifest_that_went_back_settles_nothing() -> None:
    async def story(scene: Scene) -> None:
        await producer(scene).append("old")
        earlier = await scene.producer()
        await producer(scene).append("newer")
        scene.store.break_(writes(PAIR.producer), LOST, times=1, applied=True)
        ours = asyncio.ensure_future(producer(scene).append("ours"))
        while scene.store.count(writes(PAIR.producer)) != 3:
            await scene.later(0)
        scene.store.hold(reads)
        await scene.later(1)
        await scene.store.inner.put(PAIR.producer, earlier.encode())
        scene.store.release()
        with pytest.raises(OutcomeUnknown):
            await ours

    play(story)


@pytest.mark.parametrize("error", [Misconfigured("access denied"), Unreadable("no JSON")], ids=["denied", "unreadable"])
def test_an_append_in_doubt_stays_in_doubt_when_the_next_look_fails_for_good(error: LakeheadError) -> None:
    async def story(scene: Scene) -> None:
        await producer(scene).append("old")
        scene.store.break_(writes(PAIR.producer), LOST, times=1, applied=True)
        ours = asyncio.ensure_future(producer(scene).append("ours"))
        while scene.store.count(writes(PAIR.producer)) != 2:
            await scene.later(0)
        scene.store.break_(reads, error)
        with pytest.raises(OutcomeUnknown, match="may be queued"):
            await ours
        assert (await scene.producer()).pending == ("old", "ours")

    play(story)


@pytest.mark.parametrize("applied", [True, False])
def test_a_batch_in_doubt_is_stored_again_only_once_its_earlier_try_can_no_longer_land(*, applied: bool) -> None:
    """Orphan GC raises its number while an append has no answer."""

    async def story(scene: Scene) -> None:
        await scene.fill("old")
        scene.store.break_(writes(PAIR.producer), LOST, times=1, applied=applied)
        ingestor = scene.ingestor()
        watcher = await ingestor.ingest(entries("ours"))
        await scene.later(0.1)
        while scene.store.count(writes(PAIR.producer)) != 2:
            await scene.later(0)
        scene.store.hold(reads)
        await scene.later(1)
        file = PairFiles.of(PAIR, replace(scene.means(), store=scene.store.inner)).producer
        seen = await file.read()
        assert await file.write(seen, replace(seen.manifest, gc=seen.manifest.gc + 1))
        scene.store.release()
        await watcher.await_durable()
        await ingestor.close()
        assert ingestor.counts.batches_stored_again == (0 if applied else 1)
        assert isinstance(outcome := watcher.result(), Durable)
        assert outcome.locations[0] in (await scene.producer()).pending
        assert await scene.all_of(scene.collector()) == ["old", "ours"]

    play(story)


def test_an_append_in_doubt_is_tried_again_while_what_it_was_to_replace_is_still_there() -> None:
    """However many others have written since an earlier try that was refused."""

    async def story(scene: Scene) -> None:
        for number in range(2):
            await producer(scene, most_producers=2).append(f"old-{number}")
        scene.store.hold(writes(PAIR.producer))
        ours = asyncio.ensure_future(producer(scene, most_producers=2).append("ours"))
        await scene.later(1)
        for number in range(3):
            await producer(scene, most_producers=2, beside_the_gate=True).append(f"other-{number}")
        before = scene.store.count(writes(PAIR.producer))
        scene.store.break_(
            lambda call: writes(PAIR.producer)(call) and scene.store.count(writes(PAIR.producer)) == before + 1,
            LOST,
            times=1,
        )
        scene.store.release()
        assert await ours == "ours"
        assert (await scene.producer()).pending.count("ours") == 1

    play(story)


@pytest.mark.parametrize(("earlier", "others"), [(0, 0), (2, 0), (2, 3)])
def test_an_append_in_doubt_stays_in_doubt_when_our_keys_are_gone_from_the_manifest(earlier: int, others: int) -> None:
    """Somebody who does not know our keys may have cleaned up what was appended; its versions begin at 0 again."""

    async def story(scene: Scene) -> None:
        for number in range(earlier):
            await producer(scene).append(f"old-{number}")
        scene.store.break_(writes(PAIR.producer), LOST, times=1, applied=True)
        ours = asyncio.ensure_future(producer(scene).append("ours"))
        while scene.store.count(writes(PAIR.producer)) != earlier + 1:
            await scene.later(0)
        scene.store.hold(reads)
        await scene.later(1)
        assert "ours" in (await scene.producer()).pending
        await scene.store.inner.put(PAIR.producer, b'{"pending": []}')
        for number in range(others):
            await producer(scene, beside_the_gate=True).append(f"other-{number}")
        scene.store.release()
        with pytest.raises(OutcomeUnknown, match="Look before"):
            await ours
        assert "ours" not in (await scene.producer()).pending

    play(story)


def test_a_first_manifest_that_may_say_how_many_partitions_there_are_is_no_doubt_about_what_is_queued() -> None:
    async def story(scene: Scene) -> None:
        scene.store.break_(writes(PAIR.producer), LOST)
        ingestor = scene.ingestor(partitions=2)
        watcher = await ingestor.ingest([KeyValueEntry(b"b", b"of the second partition")])
        with pytest.raises(Unavailable):
            await watcher.await_durable()
        assert (await scene.producer(Pair.of(MANIFEST, 1).producer)).pending == ()
        scene.store.mend()
        await (await ingestor.ingest(entries("x"))).await_durable()
        await ingestor.close()

    play(story)
