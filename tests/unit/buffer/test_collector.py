"""The collector: what it hands out, when it is fenced, and what it leaves behind."""

import asyncio
import gc
from dataclasses import replace
from typing import Any

import pytest

from lakehead.buffer.collector import CollectedBatch, Collector
from lakehead.buffer.config import CollectorConfig
from lakehead.buffer.consumer import Mode
from lakehead.buffer.errors import Fenced, OutOfTurn, Refused
from lakehead.buffer.inspection import notes
from lakehead.buffer.layout import entry_for, quarantine_folder
from lakehead.buffer.means import Means
from lakehead.buffer.producer import Producer
from lakehead.buffer.quarantine import Quarantine
from lakehead.errors import Misconfigured, OutcomeUnknown, Unavailable
from lakehead.wire.batch import Limits, encode_json
from tests.sim.world import SimulatedClock
from tests.unit.buffer.scene import LOST, PAIR, WHERE, Call, Scene, entries, play, seconds, writes

DOWN = Unavailable("the store is down")
MANIFEST = "ingest/manifest.json"
in_both_modes = pytest.mark.parametrize("mode", list(Mode))


def values(batch: CollectedBatch | None) -> list[str]:
    assert batch is not None
    return [entry.value.decode() for entry in batch.entries]


def deletes(call: Call) -> bool:
    return call[0] == "delete"


def test_the_defaults_are_those_of_the_specification() -> None:
    config = CollectorConfig(object_store_config=WHERE)

    assert config.manifest_path == MANIFEST
    assert config.heartbeat_timeout_ms == seconds(30)
    assert config.done_cleanup_threshold == 100
    assert config.mode is Mode.ORDERED


@pytest.mark.parametrize("name", ["heartbeat_timeout_ms", "done_cleanup_threshold", "read_ahead", "manifest_path"])
def test_a_bad_setting_is_named_at_construction(name: str) -> None:
    bad: Any = {"heartbeat_timeout_ms": seconds(0), "manifest_path": "a/"}.get(name, 0)

    with pytest.raises(Misconfigured, match=name):
        CollectorConfig(object_store_config=WHERE, **{name: bad})


@in_both_modes
def test_batches_come_out_in_the_order_of_the_queue_and_then_none(mode: Mode) -> None:
    async def story(scene: Scene) -> None:
        async with scene.collector(mode=mode) as collector:
            assert await collector.next_batch() is None
            await scene.fill("a", "b", "c")
            assert await scene.all_of(collector) == ["a", "b", "c"]
            assert await collector.next_batch() is None

    play(story)


def test_a_hand_made_queue_of_the_specification_is_read() -> None:
    async def story(scene: Scene) -> None:
        first, second = "data/f47ac10b-58cc-4372-a567-0e02b2c3d479.json", "data/other.batch"
        await scene.store.inner.put(first, encode_json(entries("a")))
        await scene.store.inner.put(second, encode_json(entries("b")))
        await scene.store.inner.put(PAIR.producer, f'{{"pending": ["{first}", "{second}"]}}'.encode())
        await scene.store.inner.put(PAIR.consumer, f'{{"claimed": {{}}, "done": ["{first}"]}}'.encode())
        async with scene.collector(done_cleanup_threshold=1) as collector:
            assert await scene.all_of(collector) == ["b"]
        assert (await scene.producer()).pending == ()
        assert {first, second} <= set(await scene.keys()), "what no ingestor of the queue stored is never deleted"

    play(story)


@in_both_modes
def test_claim_and_ack_leave_the_producer_manifest_alone(mode: Mode) -> None:
    async def story(scene: Scene) -> None:
        await scene.fill("a", "b")
        before = await scene.store.inner.head(PAIR.producer)
        async with scene.collector(mode=mode) as collector:
            batch = await collector.next_batch()
            assert batch is not None
            manifest = await scene.consumer()
            assert manifest.claimed[batch.location] == scene.clock.now_ns() // 10**6
            await collector.ack(batch)
            manifest = await scene.consumer()
            assert manifest.done == (batch.location,)
            assert batch.location not in manifest.claimed
            assert batch.location not in manifest.owners
        assert await scene.store.inner.head(PAIR.producer) == before

    play(story)


def test_the_hundredth_ack_cleans_up_and_the_ninety_ninth_does_not() -> None:
    async def story(scene: Scene) -> None:
        async with scene.ingestor(flush_size_bytes=0) as ingestor:
            for number in range(101):
                await ingestor.ingest(entries(str(number)))
        async with scene.collector() as collector:
            for number in range(100):
                assert len((await scene.producer()).pending) == 101
                assert len((await scene.consumer()).done) == number
                batch = await collector.next_batch()
                assert values(batch) == [str(number)]
                assert batch is not None
                await collector.ack(batch)
            assert len((await scene.producer()).pending) == 1
            assert (await scene.consumer()).done == ()
            assert len(await scene.batch_keys()) == 1

    play(story, seeds=1)


def test_a_clean_up_that_fails_does_not_fail_the_ack_and_is_made_up_for() -> None:
    async def story(scene: Scene) -> None:
        await scene.fill("a", "b")
        scene.store.break_(deletes, DOWN, times=1)
        async with scene.collector(done_cleanup_threshold=1) as collector:
            assert await scene.all_of(collector) == ["a", "b"]
            assert collector.counts.cleanups_failed == 1
        assert await scene.batch_keys() == []
        assert (await scene.consumer()).done == ()

    play(story)


def test_an_ack_counts_even_if_the_clean_up_after_it_finds_a_manifest_that_cannot_be_read() -> None:
    async def story(scene: Scene) -> None:
        await scene.fill("a")
        async with scene.collector(done_cleanup_threshold=1) as collector:
            batch = await collector.next_batch()
            assert batch is not None
            await scene.store.inner.put(PAIR.producer, b"garbage")
            await collector.ack(batch)
            assert (await scene.consumer()).done == (batch.location,)
            assert collector.counts.cleanups_failed == 1

    play(story)


def test_clean_up_deletes_only_batches_of_the_queue() -> None:
    async def story(scene: Scene) -> None:
        foreign = ["accepted/v1/manifest", "ingest/notes.batch", "elsewhere/f47ac10b-58cc-4372-a567-0e02b2c3d479.batch"]
        for key in foreign:
            await scene.store.inner.put(key, encode_json(entries(key)))
        await scene.fill("ours")
        means = Means(store=scene.store, clock=scene.clock, ids=scene.world.ids, random=scene.world.random)
        producer = Producer(scene.collector()._readers[0].consumer.files.producer, means, data_path_prefix="ingest")
        for key in foreign:
            await producer.append(entry_for(key, means.ids))
            await producer.append(key)
        async with scene.collector(done_cleanup_threshold=1) as collector:
            assert sorted(await scene.all_of(collector)) == sorted(["ours", *foreign, *foreign])
        assert (await scene.producer()).pending == ()
        assert set(foreign) <= set(await scene.keys())
        assert await scene.batch_keys() == ["ingest/notes.batch"]

    play(story)


def test_a_batch_that_is_held_for_long_is_kept_alive() -> None:
    async def story(scene: Scene) -> None:
        await scene.fill("a")
        collector, other = (scene.collector(mode=Mode.COMPETING) for _ in range(2))
        batch = await collector.next_batch()
        assert batch is not None
        for _ in range(30):
            await scene.later(10)
            assert await other.next_batch() is None
        await collector.ack(batch)
        assert await other.next_batch() is None
        await collector.close()
        await other.close()

    play(story)


@in_both_modes
def test_a_claim_is_stale_after_the_timeout_and_not_at_it(mode: Mode) -> None:
    async def story(scene: Scene) -> None:
        await scene.fill("a")
        dead = scene.collector(mode=mode)
        assert values(await dead.next_batch()) == ["a"]
        del dead
        gc.collect()
        async with scene.collector(mode=mode) as other:
            await scene.later(30)
            assert await other.next_batch() is None
            await scene.later(0.001)
            assert values(await other.next_batch()) == ["a"]

    play(story)


def test_a_collector_that_is_dropped_sends_no_heartbeats() -> None:
    async def story(scene: Scene) -> None:
        await scene.fill("a")
        collector = scene.collector()
        await collector.next_batch()
        before = await scene.consumer()
        del collector
        gc.collect()
        await scene.later(100)
        assert await scene.consumer() == before

    play(story)


def test_one_write_refreshes_all_claims() -> None:
    async def story(scene: Scene) -> None:
        await scene.fill("a", "b", "c")
        async with scene.collector(mode=Mode.COMPETING) as collector:
            await collector.next_batch()
            before = scene.store.count(writes(PAIR.consumer))
            await scene.later(10.01)
            assert scene.store.count(writes(PAIR.consumer)) == before + 1
            now = scene.clock.now_ns() // 10**6
            assert {now - at for at in (await scene.consumer()).claimed.values()} == {10}

    play(story)


async def stalled(scene: Scene, mode: Mode) -> tuple[Collector, CollectedBatch, Collector, CollectedBatch]:
    """A collector whose heartbeats do not get through, and another that has taken over its batch."""
    await scene.fill("a", "b")
    old = scene.collector(mode=mode, read_ahead=1)
    batch = await old.next_batch()
    assert batch is not None
    assert old._beating is not None
    old._beating.cancel()
    await scene.later(31)
    new = scene.collector(mode=mode, read_ahead=1)
    taken = await new.next_batch()
    assert taken is not None
    assert values(taken) == values(batch)
    return old, batch, new, taken


@in_both_modes
def test_a_fenced_collector_acknowledges_nothing_and_hands_out_nothing(mode: Mode) -> None:
    async def story(scene: Scene) -> None:
        old, batch, new, taken = await stalled(scene, mode)
        before = await scene.consumer()
        with pytest.raises(Fenced):
            await old.ack(batch)
        with pytest.raises(Fenced):
            await old.next_batch()
        with pytest.raises(Fenced):
            await old.ack(batch)
        assert await scene.consumer() == before
        await new.ack(taken)
        assert await scene.all_of(new) == ["b"]
        assert old.counts.claims_lost == 1
        await old.close()
        await new.close()

    play(story)


@in_both_modes
def test_a_fenced_collector_cannot_acknowledge_what_its_successor_has_cleaned_up(mode: Mode) -> None:
    async def story(scene: Scene) -> None:
        old, batch, new, taken = await stalled(scene, mode)
        await new.ack(taken)
        with pytest.raises(Fenced):
            await old.ack(batch)
        await old.close()
        await new.close()

    play(story)


@in_both_modes
def test_a_heartbeat_finds_out_that_the_collector_is_fenced(mode: Mode) -> None:
    async def story(scene: Scene) -> None:
        old, _, new, _ = await stalled(scene, mode)
        before = await scene.consumer()
        await old.heartbeat()
        assert await scene.consumer() == before
        with pytest.raises(Fenced):
            await old.next_batch()
        await old.close()
        await new.close()

    play(story)


def test_what_was_read_ahead_is_not_handed_out_after_a_long_stall() -> None:
    async def story(scene: Scene) -> None:
        await scene.fill("a", "b")
        old = scene.collector()
        assert values(await old.next_batch()) == ["a"]
        assert old._beating is not None
        old._beating.cancel()
        await scene.later(31)
        async with scene.collector() as new:
            assert await scene.all_of(new) == ["a", "b"]
            with pytest.raises(Fenced):
                await old.next_batch()
        await old.close()

    play(story)


@in_both_modes
def test_a_batch_that_a_successor_has_finished_is_not_taken_for_a_bad_one(mode: Mode) -> None:
    async def story(scene: Scene) -> None:
        await scene.fill("a", "b")
        old = scene.collector(mode=mode, read_ahead_bytes=1)
        assert values(await old.next_batch()) == ["a"]
        scene.store.hold(lambda call: call[0] == "get" and call[1].endswith(".batch"))
        waiting = asyncio.create_task(old.next_batch())
        await scene.later(1)
        assert old._beating is not None
        old._beating.cancel()
        await scene.later(31)
        scene.store.release()
        first_get = [call for call in scene.store.calls if call[0] == "get" and call[1].endswith(".batch")][-1]
        await scene.store.inner.delete(first_get[1])
        manifest = await scene.consumer()
        gone = replace(manifest, epoch=manifest.epoch + 1, owner="another", claimed={}, owners={})
        await scene.store.inner.put(PAIR.consumer, gone.encode())
        with pytest.raises(Fenced):
            await waiting
        assert await scene.keys(quarantine_folder(MANIFEST)) == []
        await old.close()

    play(story)


def test_a_clean_up_that_is_cut_off_anywhere_is_made_up_for() -> None:
    async def story(scene: Scene) -> None:
        for step in range(40):
            fresh = Scene(scene.world, type(scene.store)(scene.world))
            await fresh.fill(*"abcd")
            first = fresh.collector(done_cleanup_threshold=2, read_ahead=2)
            got = [values(batch) for _ in range(2) if (batch := await first.next_batch())]
            left = [step]

            def next_call(_: Call, left: list[int] = left) -> bool:
                left[0] -= 1
                return left[0] < 0

            fresh.store.break_(next_call, DOWN)
            acknowledged = True
            try:
                await first.ack(*first_two(first))
            except Unavailable:
                acknowledged = False
            fresh.store.mend()
            assert first._beating is not None
            first._beating.cancel()
            await fresh.later(31)
            async with fresh.collector(done_cleanup_threshold=1) as second:
                again = await fresh.all_of(second)
            assert again == (["c", "d"] if acknowledged else ["a", "b", "c", "d"])
            assert got == [["a"], ["b"]]
            assert await fresh.batch_keys() == []
            assert (await fresh.producer()).pending == (await fresh.consumer()).done == ()

    play(story, seeds=1)


def first_two(collector: Collector) -> list[CollectedBatch]:
    """What a collector has handed out and holds, as it would hand it out."""
    held = collector._readers[0].consumer.held.values()
    return [CollectedBatch([], claim.location, claim.epoch, 0, collector._readers[0].consumer.id) for claim in held]


def test_manifests_stay_bounded_while_a_collector_keeps_up() -> None:
    async def story(scene: Scene) -> None:
        async with (
            scene.ingestor(flush_size_bytes=0) as ingestor,
            scene.collector(done_cleanup_threshold=10) as collector,
        ):
            for number in range(1_000):
                await (await ingestor.ingest(entries(str(number)))).await_durable()
                batch = await collector.next_batch()
                assert batch is not None
                await collector.ack(batch)
                assert len((await scene.producer()).pending) <= 1 + 10
                assert len((await scene.consumer()).done) <= 10
        assert len(await scene.batch_keys()) <= 10

    play(story, seeds=1)


def test_hours_without_a_collector_hold_nobody_up() -> None:
    async def story(scene: Scene) -> None:
        async with scene.ingestor() as ingestor:
            for number in range(1_000):
                await ingestor.ingest(entries(str(number)))
                await scene.later(20)
        async with scene.collector() as collector:
            assert await scene.all_of(collector) == [str(number) for number in range(1_000)]

    play(story, seeds=1)


def test_order_survives_fail_over() -> None:
    async def story(scene: Scene) -> None:
        await scene.fill(*"abcdef")
        first = scene.collector(read_ahead=4)
        for expected in "abc":
            batch = await first.next_batch()
            assert values(batch) == [expected]
            assert batch is not None
            if expected != "c":
                await first.ack(batch)
        assert batch is not None
        epoch = batch.epoch
        del first
        gc.collect()
        async with scene.collector() as second:
            assert await second.next_batch() is None
            await scene.later(31)
            batch = await second.next_batch()
            assert values(batch) == ["c"]
            assert batch is not None
            assert batch.epoch > epoch
            await second.ack(batch)
            assert await scene.all_of(second) == ["d", "e", "f"]

    play(story)


def test_a_successor_need_not_wait_for_a_collector_that_closed_with_nothing_open() -> None:
    async def story(scene: Scene) -> None:
        await scene.fill("a", "b", "c")
        async with scene.collector() as first:
            batch = await first.next_batch()
            assert batch is not None
            await first.ack(batch)
        async with scene.collector() as second:
            assert await scene.all_of(second) == ["b", "c"]

    play(story)


@in_both_modes
def test_what_was_open_when_a_collector_closed_waits_for_the_timeout(mode: Mode) -> None:
    async def story(scene: Scene) -> None:
        await scene.fill("a", "b")
        async with scene.collector(mode=mode) as first:
            await first.next_batch()
        async with scene.collector(mode=mode) as second:
            early = await scene.all_of(second)
            assert early == ([] if mode is Mode.ORDERED else ["b"])
            await scene.later(31)
            assert early + await scene.all_of(second) == (["a", "b"] if mode is Mode.ORDERED else ["b", "a"])

    play(story)


@pytest.mark.parametrize("off_by", [-3600.0, 3600.0])
@in_both_modes
def test_clocks_that_are_off_by_an_hour_delay_at_most(mode: Mode, off_by: float) -> None:
    async def story(scene: Scene) -> None:
        await scene.fill("a")
        wrong = SimulatedClock(scene.world.loop, off_by=off_by)
        dead = scene.collector(mode=mode, clock=wrong)
        assert values(await dead.next_batch()) == ["a"]
        del dead
        gc.collect()
        async with scene.collector(mode=mode) as other:
            batch = await other.next_batch()
            if off_by > 0:
                assert batch is None
                await scene.later(31)
                batch = await other.next_batch()
            assert values(batch) == ["a"]

    play(story)


def test_in_order_means_acknowledged_in_order() -> None:
    async def story(scene: Scene) -> None:
        await scene.fill("a", "b")
        async with scene.collector() as collector:
            first, second = await collector.next_batch(), await collector.next_batch()
            assert first is not None
            assert second is not None
            with pytest.raises(OutOfTurn):
                await collector.ack(second)
            assert (await scene.consumer()).done == ()
            scene.store.hold(writes(PAIR.consumer))
            earlier = asyncio.create_task(collector.ack(first))
            await scene.later(1)
            later = asyncio.create_task(collector.ack(second))
            await scene.later(1)
            scene.store.release()
            await earlier
            await later
            assert (await scene.consumer()).done == (first.location, second.location)

    play(story)


def test_competing_collectors_acknowledge_in_any_order() -> None:
    async def story(scene: Scene) -> None:
        await scene.fill("a", "b")
        async with scene.collector(mode=Mode.COMPETING) as collector:
            first, second = await collector.next_batch(), await collector.next_batch()
            assert first is not None
            assert second is not None
            await collector.ack(second)
            await collector.ack(first)
            assert (await scene.consumer()).done == (second.location, first.location)

    play(story)


def test_four_competing_collectors_share_the_work_and_each_batch_is_acknowledged_once() -> None:
    async def story(scene: Scene) -> None:
        await scene.fill(*(str(number) for number in range(40)))
        collectors = [scene.collector(mode=Mode.COMPETING, read_ahead=2) for _ in range(4)]
        dead = scene.collector(mode=Mode.COMPETING, read_ahead=2)
        await dead.next_batch()
        del dead
        gc.collect()

        async def work(collector: Collector) -> list[str]:
            got = []
            for patience in (0, 31):
                await scene.later(patience)
                while (batch := await collector.next_batch()) is not None:
                    got += values(batch)
                    await scene.later(0.1)
                    await collector.ack(batch)
            return got

        shares = await asyncio.gather(*map(work, collectors))
        assert sorted(int(each) for share in shares for each in share) == list(range(40))
        assert sum(map(bool, shares)) > 1
        for collector in collectors:
            await collector.close()

    play(story)


def test_a_lost_answer_to_an_ack_is_found_out() -> None:
    async def story(scene: Scene) -> None:
        await scene.fill("a")
        async with scene.collector() as collector:
            batch = await collector.next_batch()
            assert batch is not None
            scene.store.break_(writes(PAIR.consumer), LOST, times=1, applied=True)
            await collector.ack(batch)
            assert (await scene.consumer()).done == (batch.location,)
            assert collector.counts.acks == 1

    play(story)


def test_an_ack_that_failed_leaves_the_claim_alive_and_can_be_repeated() -> None:
    async def story(scene: Scene) -> None:
        await scene.fill("a")
        async with scene.collector() as collector:
            batch = await collector.next_batch()
            assert batch is not None
            scene.store.break_(writes(PAIR.consumer), DOWN, times=1)
            with pytest.raises(Unavailable):
                await collector.ack(batch)
            await scene.later(100)
            assert batch.location in (await scene.consumer()).claimed
            await collector.ack(batch)
            await collector.ack(batch)
            assert (await scene.consumer()).done == (batch.location,)

    play(story)


def test_an_ack_that_stayed_in_doubt_and_landed_does_not_fence_its_collector() -> None:
    async def story(scene: Scene) -> None:
        await scene.fill("a", "b")
        async with scene.collector(mode=Mode.COMPETING) as collector:
            batch = await collector.next_batch()
            assert batch is not None
            scene.store.break_(writes(PAIR.consumer), LOST, times=1, applied=True)
            scene.store.break_(lambda call: call == ("get", PAIR.consumer), DOWN, times=1)
            with pytest.raises(OutcomeUnknown):
                await collector.ack(batch)
            await scene.later(11)
            await collector.ack(batch)
            assert await scene.all_of(collector) == ["b"]

    play(story)


def test_of_two_acks_in_doubt_only_the_one_that_landed_counts() -> None:
    async def story(scene: Scene) -> None:
        await scene.fill("a", "b")
        async with scene.collector(mode=Mode.COMPETING) as collector:
            first, second = await collector.next_batch(), await collector.next_batch()
            assert first is not None
            assert second is not None
            scene.store.break_(writes(PAIR.consumer), LOST, times=1)
            scene.store.break_(lambda call: call == ("get", PAIR.consumer), DOWN, times=1)
            with pytest.raises(OutcomeUnknown):
                await collector.ack(first)
            scene.store.break_(writes(PAIR.consumer), LOST, times=1, applied=True)
            await collector.ack(second)
            assert (await scene.consumer()).done == (second.location,)
            await collector.ack(first)
            assert (await scene.consumer()).done == (second.location, first.location)

    play(story)


def test_a_hundred_batches_cost_far_fewer_reads_of_manifests() -> None:
    async def story(scene: Scene) -> None:
        await scene.fill(*(str(number) for number in range(100)))
        scene.store.calls.clear()
        async with scene.collector() as collector:
            got = []
            while (batch := await collector.next_batch()) is not None:
                got.append(batch)
            assert [values(each) for each in got] == [[str(number)] for number in range(100)]
            await collector.ack(*got)
        reads = scene.store.count(lambda call: call[0] == "get" and call[1] in (PAIR.producer, PAIR.consumer))
        assert reads <= 20
        assert scene.store.count(writes(PAIR.consumer)) <= 20

    play(story, seeds=1)


def test_batches_are_fetched_side_by_side_within_the_limit_of_bytes() -> None:
    async def story(scene: Scene) -> None:
        await scene.fill(*("x" * 1000 for _ in range(10)))
        size = len(encode_json(entries("x" * 1000)))
        async with scene.collector(read_ahead_bytes=4 * size) as collector:
            scene.store.calls.clear()
            await collector.next_batch()
            await collector.next_batch()
            await scene.later(1)
            fetched = scene.store.count(lambda call: call[0] == "get" and call[1].endswith(".batch"))
            assert 4 <= fetched <= 6

    play(story)


def test_a_next_batch_that_is_cancelled_loses_nothing() -> None:
    async def story(scene: Scene) -> None:
        await scene.fill("a", "b")
        async with scene.collector() as collector:
            for held in ("get", "create", "replace"):
                scene.store.hold(lambda call, held=held: call[0] == held)  # type: ignore[misc]  # a default binds it
                waiting = asyncio.create_task(collector.next_batch())
                await scene.later(1)
                if not waiting.done():
                    waiting.cancel()
                    await asyncio.wait([waiting])
                    scene.store.release()
                    await scene.later(1)
                else:
                    scene.store.release()
            got = [] if waiting.cancelled() else values(waiting.result())
            while (batch := await collector.next_batch()) is not None:
                got += values(batch)
            assert got == ["a", "b"]

    play(story, seeds=10)


def test_an_ack_that_is_cancelled_is_not_taken_back() -> None:
    async def story(scene: Scene) -> None:
        await scene.fill("a")
        async with scene.collector() as collector:
            batch = await collector.next_batch()
            assert batch is not None
            scene.store.hold(writes(PAIR.consumer))
            waiting = asyncio.create_task(collector.ack(batch))
            await scene.later(1)
            waiting.cancel()
            await asyncio.wait([waiting])
            scene.store.release()
            await collector.ack(batch)
            assert (await scene.consumer()).done == (batch.location,)

    play(story)


def test_a_store_that_is_down_for_a_while_is_an_error_that_can_be_waited_out() -> None:
    async def story(scene: Scene) -> None:
        await scene.fill("a")
        async with scene.collector() as collector:
            scene.store.break_(lambda call: call[1].endswith(".batch"), DOWN, times=1)
            with pytest.raises(Unavailable):
                await collector.next_batch()
            assert values(await collector.next_batch()) == ["a"]

    play(story)


@pytest.mark.parametrize("manifest", [PAIR.producer, PAIR.consumer])
def test_a_manifest_that_cannot_be_read_is_an_error_and_stays_as_it_is(manifest: str) -> None:
    async def story(scene: Scene) -> None:
        await scene.store.inner.put(manifest, b'{"pending": 1, "done": 1}')
        async with scene.collector() as collector:
            with pytest.raises(Exception, match="repair it by hand"):
                await collector.next_batch()
        there = await scene.store.inner.get(manifest)
        assert there is not None
        assert there.body == b'{"pending": 1, "done": 1}'

    play(story)


@in_both_modes
@pytest.mark.parametrize("damage", ["garbage", "gone", "too large", "illegal"])
def test_a_bad_batch_is_set_aside_with_its_reason_and_the_queue_moves_on(mode: Mode, damage: str) -> None:
    async def story(scene: Scene) -> None:
        await scene.fill("a", "bad", "c")
        manifest = await scene.producer()
        bad = manifest.pending[1]
        limits = Limits(stored_bytes=300)
        body = {"garbage": b"LKB1 garbage", "too large": encode_json(entries("x" * 300))}.get(damage)
        if damage == "gone":
            await scene.store.inner.delete(bad)
        elif damage == "illegal":
            bad = "../no/key/"
            pending = (manifest.pending[0], bad, manifest.pending[2])
            await scene.store.inner.put(
                PAIR.producer, type(manifest)(pending=pending, data_path_prefix="ingest").encode()
            )
        else:
            assert body is not None
            await scene.store.inner.put(bad, body)
        async with scene.collector(mode=mode, done_cleanup_threshold=3, limits=limits) as collector:
            assert await scene.all_of(collector) == ["a", "c"]
            await scene.later(1)
            assert collector.counts.quarantined == 1
        assert (await scene.producer()).pending == ()
        means = Means(store=scene.store, clock=scene.clock, ids=scene.world.ids, random=scene.world.random)
        [note] = (await notes(MANIFEST, means)).read.values()
        assert note.location == bad
        assert note.reason.endswith(".")
        kept = [await scene.store.inner.get(key) for key in note.keys]
        assert [each.body for each in kept if each] == ([body] if body else [])

    play(story)


def test_what_was_set_aside_can_be_replayed_once_it_can_be_read() -> None:
    async def story(scene: Scene) -> None:
        await scene.fill("x" * 200)
        async with scene.collector(limits=Limits(stored_bytes=100), done_cleanup_threshold=1) as collector:
            assert await scene.all_of(collector) == []
            await scene.later(1)
        assert await scene.batch_keys() == []
        means = Means(store=scene.store, clock=scene.clock, ids=scene.world.ids, random=scene.world.random)
        quarantine = Quarantine(MANIFEST, means)
        [note] = (await notes(MANIFEST, means)).read.values()
        producer = Producer(scene.collector()._readers[0].consumer.files.producer, means, data_path_prefix="ingest")
        for _ in range(2):
            await quarantine.replay(note.location, producer)
        async with scene.collector(done_cleanup_threshold=1) as collector:
            assert await scene.all_of(collector) == ["x" * 200] * 2
        assert note.keys[0] in await scene.keys(quarantine_folder(MANIFEST)), "the copy stays"

    play(story)


def test_a_bad_batch_behind_one_that_is_open_waits_for_its_turn() -> None:
    async def story(scene: Scene) -> None:
        await scene.fill("a", "bad")
        bad = (await scene.producer()).pending[1]
        await scene.store.inner.put(bad, b"garbage")
        async with scene.collector() as collector:
            batch = await collector.next_batch()
            assert await collector.next_batch() is None
            assert (await scene.consumer()).done == ()
            assert batch is not None
            await collector.ack(batch)
            await scene.later(1)
            assert (await scene.consumer()).done == (batch.location, bad)

    play(story)


def test_a_collector_takes_back_only_what_it_has_handed_out() -> None:
    async def story(scene: Scene) -> None:
        await scene.fill("a")
        async with scene.collector() as collector, scene.collector() as other:
            batch = await collector.next_batch()
            assert batch is not None
            with pytest.raises(Refused):
                await other.ack(batch)

    play(story)


def test_a_closed_collector_hands_out_nothing() -> None:
    async def story(scene: Scene) -> None:
        collector = scene.collector()
        await collector.close()
        with pytest.raises(Refused):
            await collector.next_batch()

    play(story)
