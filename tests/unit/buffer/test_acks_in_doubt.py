"""Acknowledgements whose answers were lost, when so many collectors have acknowledged since that ours is forgotten."""

import pytest

from lakehead.buffer.claims import ClaimState
from lakehead.buffer.cleanup import CleanUp
from lakehead.buffer.consumer import CLAIMS, MOST_COLLECTORS, Consumer, Mode
from lakehead.buffer.errors import Fenced, Forgotten
from lakehead.buffer.layout import object_key
from lakehead.buffer.manifests import PairFiles
from lakehead.buffer.reader import Reader, still_held
from lakehead.errors import OutcomeUnknown
from lakehead.wire.batch import encode_json
from lakehead.wire.queue_manifests import ProducerManifest
from tests.unit.buffer.scene import DOWN, LOST, PAIR, Scene, entries, in_both_modes, play, writes


def consumer(scene: Scene, *, most: int = 2) -> Consumer:
    means = scene.means()
    return Consumer(PairFiles.of(PAIR, means), means, mode=Mode.COMPETING, timeout=30, most_collectors=most)


async def in_doubt(scene: Scene, ours: Consumer, *, applied: bool) -> list[str]:
    """Claim two and leave the acknowledgement of the first in doubt; both locations."""
    first, second = [claim.location for claim in await ours.claim(2)]
    scene.store.break_(writes(PAIR.consumer), LOST, times=1, applied=applied)
    scene.store.break_(lambda call: call == ("get", PAIR.consumer), DOWN, times=1)
    with pytest.raises(OutcomeUnknown):
        await ours.ack([first])
    return [first, second]


async def others_acknowledge(scene: Scene, count: int, *, most: int = 2) -> None:
    for _ in range(count):
        other = consumer(scene, most=most)
        [claim] = await other.claim(1)
        await other.ack([claim.location])


@pytest.mark.parametrize("cleaned_up", [False, True])
def test_who_acknowledged_is_unknown_for_good_once_it_is_forgotten(cleaned_up: bool) -> None:  # noqa: FBT001 - a parameter
    async def story(scene: Scene) -> None:
        await scene.fill(*"abcd")
        ours = consumer(scene)
        first, second = await in_doubt(scene, ours, applied=True)
        claim = ours.held[first]
        await others_acknowledge(scene, 2)
        if cleaned_up:
            await CleanUp(files=PairFiles.of(PAIR, scene.means()), means=scene.means(), backoff=CLAIMS).run()
        with pytest.raises(Forgotten, match="Do not repeat it"):
            await ours.ack([first])
        assert claim.state is ClaimState.FORGOTTEN
        with pytest.raises(Forgotten, match="Do not repeat it"):
            still_held([claim])  # as a reader asks before it acknowledges again
        await ours.heartbeat()
        await ours.ack([second])
        assert second in (await scene.consumer()).done

    play(story)


def test_an_ack_that_was_forgotten_and_may_not_have_landed_fences_if_another_has_the_batch() -> None:
    async def story(scene: Scene) -> None:
        await scene.fill(*"abcd")
        ours = consumer(scene)
        first, _ = await in_doubt(scene, ours, applied=False)
        await scene.later(31)
        taken = consumer(scene)
        assert [claim.location for claim in await taken.claim(1)] == [first]
        await scene.later(1)
        await others_acknowledge(scene, 2)
        with pytest.raises(Fenced):
            await ours.ack([first])
        await taken.ack([first])

    play(story)


def test_an_ack_that_did_not_land_is_known_whoever_has_acknowledged_since() -> None:
    async def story(scene: Scene) -> None:
        await scene.fill(*"abcd")
        ours = consumer(scene)
        first, second = await in_doubt(scene, ours, applied=False)
        await others_acknowledge(scene, 2)
        await ours.ack([first])
        await ours.ack([second])
        assert len((await scene.consumer()).done) == 4

    play(story)


@pytest.mark.parametrize("most", [3, 64])
def test_an_ack_that_others_left_standing_is_known(most: int) -> None:
    async def story(scene: Scene) -> None:
        await scene.fill(*"abcdef")
        await others_acknowledge(scene, 1, most=most)
        ours = consumer(scene, most=most)
        first, second = await in_doubt(scene, ours, applied=True)
        await others_acknowledge(scene, 1, most=most)
        await ours.ack([first])
        await ours.ack([second])
        assert len((await scene.consumer()).done) == 4

    play(story)


def test_a_claim_that_was_taken_over_is_told_as_such_while_an_older_entry_is_proof() -> None:
    async def story(scene: Scene) -> None:
        await scene.fill(*"abcd")
        await others_acknowledge(scene, 1)
        ours = consumer(scene)
        first, _ = await in_doubt(scene, ours, applied=False)
        await scene.later(31)
        other = consumer(scene)
        assert first in [claim.location for claim in await other.claim(1)]
        with pytest.raises(Fenced):
            await ours.ack([first])

    play(story)


@pytest.mark.parametrize("applied", [False, True])
def test_a_collector_never_says_yes_to_an_ack_that_a_heartbeat_found_forgotten(applied: bool) -> None:  # noqa: FBT001 - a parameter
    async def story(scene: Scene) -> None:
        locations = tuple(f"data/x.batch#{scene.world.ids.uuid()}" for _ in range(MOST_COLLECTORS + 2))
        await scene.store.inner.put(object_key(locations[0]), encode_json(entries("x")))
        await scene.store.inner.put(PAIR.producer, ProducerManifest(pending=locations).encode())
        ours = scene.collector(mode=Mode.COMPETING, read_ahead=1)
        batch = await ours.next_batch()
        assert batch is not None
        assert ours._beating is not None
        ours._beating.cancel()
        scene.store.break_(writes(PAIR.consumer), LOST, times=1, applied=applied)
        scene.store.break_(lambda call: call == ("get", PAIR.consumer), DOWN, times=1)
        with pytest.raises(OutcomeUnknown):
            await ours.ack(batch)
        if not applied:
            await scene.later(31)
            [taken] = await consumer(scene).claim(1)
            assert taken.location == batch.location
        await others_acknowledge(scene, MOST_COLLECTORS, most=MOST_COLLECTORS)
        await ours.heartbeat()
        with pytest.raises(Forgotten if applied else Fenced):
            await ours.ack(batch)
        await ours.close()

    play(story)


# --- many at once


@in_both_modes
def test_twenty_thousand_batches_are_acknowledged_at_once(mode: Mode) -> None:
    async def story(scene: Scene) -> None:
        many = tuple(f"data/x.batch#{scene.world.ids.uuid()}" for _ in range(20_000))
        await scene.store.inner.put(object_key(many[0]), encode_json(entries("x")))
        await scene.store.inner.put(PAIR.producer, ProducerManifest(pending=many).encode())
        async with scene.collector(mode=mode, done_cleanup_threshold=10**6) as collector:
            [reader] = collector._readers.all
            assert isinstance(reader, Reader)
            claims = await reader.consumer.claim(20_000)
            for claim in claims:
                claim.handed_out = True
            await reader.ack(claims[:1])
            await reader.ack(claims)
            assert (await scene.consumer()).done == many

    play(story, seeds=1)
