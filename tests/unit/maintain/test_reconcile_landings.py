"""What nobody has queued is queued, once, and nothing else is."""

import asyncio
from collections.abc import Collection
from datetime import UTC, datetime
from pathlib import Path

import pytest

from lakehead.buffer.collector import Collector
from lakehead.buffer.config import CollectorConfig
from lakehead.errors import Unavailable
from lakehead.maintain import reconcile_cold
from lakehead.maintain.reconcile_landings import LandingState
from lakehead.maintain.reconcile_report import ActionKind, ProblemKind, ReconcileReport
from lakehead.wire.acceptance_records import IdentityManifest
from lakehead.wire.dead_letters import ClosedLetter, DeadLetterObject
from lakehead.wire.key_parts import boot_part
from lakehead.wire.maintenance_records import DiscardedBatch, RetiredBatch
from tests.support.async_tests import async_test
from tests.support.state_tools import FIRST, landing, numbers
from tests.unit.maintain.reconcile_support import HOUR, PLACE, QUEUE, TABLE, Authority, LandingQueueOf, landing_queue

AT = datetime(2026, 1, 1, tzinfo=UTC)


def land(queue: LandingQueueOf, *manifests: IdentityManifest) -> None:
    spans = [(each.seq_start, each.seq_end + 1) for each in manifests]
    numbered = numbers(boot_part(manifests[0].agent_id, manifests[0].boot_id), *spans)
    assert queue.state.landings.settle(TABLE, None, FIRST, [landing(FIRST, numbered=numbered)])


def letter_of(manifest: IdentityManifest, **more: object) -> DeadLetterObject:
    unit = f"s3://lake/{manifest.key}"
    return DeadLetterObject(table=TABLE, unit=unit, reason="bad", first_at=AT, last_at=AT, **more)  # type: ignore[arg-type]


@async_test
async def test_only_what_is_neither_queued_nor_settled_nor_young_is_queued(tmp_path: Path) -> None:
    authority = Authority()
    async with landing_queue(authority, tmp_path) as queue:
        lost, queued, landed, discarded, given_up, dropped, replayed = await authority.accept(*range(7))
        await queue.queue.queue.put([queued])
        land(queue, landed)
        record = DiscardedBatch.of(TABLE, discarded.identity, at_unix_ns=1, by="me")
        await authority.store.create(record.key, record.encode())
        await queue.letters.write(letter_of(given_up))
        await queue.letters.write(letter_of(dropped, closed=ClosedLetter("dropped", AT)))
        await queue.letters.write(letter_of(replayed, replayed_at=AT))
        authority.clock.seconds += 120
        [young] = await authority.accept(9)
        every = (lost, queued, landed, discarded, given_up, dropped, replayed, young)
        report = ReconcileReport()

        looked = await queue.landings().settle(every, report)

        assert queue.put == [lost.key]
        assert [(each.kind, each.key) for each in report.actions] == [(ActionKind.ENQUEUED, lost.key)]
        assert [looked[each.identity] for each in every] == [
            LandingState.QUEUED,
            LandingState.QUEUED,
            *[LandingState.SETTLED] * 4,
            LandingState.QUEUED,
            LandingState.YOUNG,
        ]
        await queue.landings().settle(every, ReconcileReport())
        assert queue.put == [lost.key]


@async_test
async def test_what_is_in_flight_at_a_consumer_is_still_pending_and_what_is_acknowledged_is_not(tmp_path: Path) -> None:
    authority = Authority()
    async with landing_queue(authority, tmp_path) as queue:
        [manifest] = await authority.accept(1)
        authority.clock.seconds += 120
        await queue.queue.queue.put([manifest])
        config = CollectorConfig(object_store_config=PLACE, manifest_path=QUEUE)
        async with Collector(config, store=authority.store) as collector:
            batch = await collector.next_batch()
            assert batch is not None
            in_flight = await queue.pending().among([manifest.key])
            await collector.ack(batch)
            acknowledged = await queue.pending().among([manifest.key])

        assert in_flight == {manifest.key}
        assert acknowledged == frozenset()


class LandsMeanwhile:
    """A queue whose batch lands, and leaves the queue, between two looks."""

    def __init__(self, queue: LandingQueueOf, manifest: IdentityManifest) -> None:
        self.queue, self.manifest = queue, manifest

    async def among(self, accepted_keys: Collection[str]) -> frozenset[str]:
        assert self.manifest.key in accepted_keys
        land(self.queue, self.manifest)
        return frozenset()


@async_test
async def test_a_batch_that_lands_between_the_looks_is_not_queued_again(tmp_path: Path) -> None:
    authority = Authority()
    async with landing_queue(authority, tmp_path) as queue:
        [manifest] = await authority.accept(1)
        authority.clock.seconds += 120

        looked = await queue.landings(pending=LandsMeanwhile(queue, manifest)).settle([manifest], ReconcileReport())

        assert (queue.put, looked[manifest.identity]) == ([], LandingState.SETTLED)


@pytest.mark.parametrize("damaged", ["manifest", "batch"])
@async_test
async def test_nothing_is_queued_if_the_queue_cannot_be_read_whole(tmp_path: Path, damaged: str) -> None:
    authority = Authority()
    async with landing_queue(authority, tmp_path) as queue:
        queued, lost = await authority.accept(1, 2)
        authority.clock.seconds += 120
        await queue.queue.queue.put([queued])
        stored = await authority.store.keys("landing-queue/data")
        [batch] = [key for key in stored if key.endswith(".batch")]
        await authority.store.put(QUEUE if damaged == "manifest" else batch, b"damaged")
        report = ReconcileReport()

        looked = await queue.landings().settle([queued, lost], report)

        assert queue.put == []
        assert set(looked.values()) == {LandingState.UNKNOWN}
        assert report.wrong[ProblemKind.FAILED] == 1


@async_test
async def test_a_table_that_does_not_exist_yet_has_nothing(tmp_path: Path) -> None:
    authority = Authority()
    async with landing_queue(authority, tmp_path) as queue:
        [manifest] = await authority.accept(1)
        authority.clock.seconds += 120

        await queue.landings(uuid=None).settle([manifest], ReconcileReport())

        assert queue.put == [manifest.key]


@async_test
async def test_passes_queue_what_is_lost_once_and_look_again_until_it_has_landed(tmp_path: Path) -> None:
    authority = Authority()
    async with landing_queue(authority, tmp_path) as queue:
        manifests = await authority.accept(1, 2)
        reconciler = authority.reconciler(landings=queue.landings())
        young = await reconciler.pass_once()
        held = await reconciler.records.checkpoint()
        authority.clock.seconds += 3600
        queued = await reconciler.pass_once()
        waiting = await reconciler.pass_once()
        land(queue, *manifests)
        landed = await reconciler.pass_once()
        authority.store.forget()
        nothing = await reconciler.pass_once()
        await reconciler.cold_scan()

        assert held is not None
        assert held.reconciled_through_unix_ns < manifests[0].accepted_at_unix_ns
        assert [each.done[ActionKind.ENQUEUED] for each in (young, queued, waiting, landed, nothing)] == [0, 2, 0, 0, 0]
        assert [each.waiting for each in (young, queued, waiting, landed, nothing)] == [0, 2, 2, 0, 0]
        assert sorted(queue.put) == sorted(each.key for each in manifests)


@async_test
async def test_a_cold_scan_queues_what_is_lost_and_later_lands_nothing_twice(tmp_path: Path) -> None:
    authority = Authority()
    async with landing_queue(authority, tmp_path) as queue:
        manifests = await authority.accept(*range(5))
        authority.clock.seconds += 100 * 3600
        await authority.reconciler(landings=queue.landings()).cold_scan()
        assert sorted(queue.put) == sorted(each.key for each in manifests)
        land(queue, *manifests)
        await authority.store.delete_folder("landing-queue")  # as after years
        await authority.reconciler(landings=queue.landings()).cold_scan()

        assert len(queue.put) == 5


@async_test
async def test_a_batch_with_a_missing_frame_is_queued_when_the_frame_is_there_again(tmp_path: Path) -> None:
    authority = Authority()
    async with landing_queue(authority, tmp_path) as queue:
        [manifest] = await authority.accept(1)
        frame = await authority.store.get(manifest.raw_blob_key)
        assert frame is not None
        await authority.store.delete(manifest.raw_blob_key)
        authority.clock.seconds += 120
        reconciler = authority.reconciler(landings=queue.landings())
        await reconciler.pass_once()
        missing = list(queue.put)
        await authority.store.create(manifest.raw_blob_key, frame.body)
        await reconciler.pass_once()

        assert (missing, queue.put) == ([], [manifest.key])


class Refusing:
    async def among(self, accepted_keys: Collection[str]) -> frozenset[str]:
        raise Unavailable(f"{len(accepted_keys)}: 503")


@async_test
async def test_the_checkpoint_waits_for_a_queue_that_cannot_be_read(tmp_path: Path) -> None:
    authority = Authority()
    async with landing_queue(authority, tmp_path) as queue:
        [manifest] = await authority.accept(1)
        authority.clock.seconds += 3720
        reconciler = authority.reconciler(landings=queue.landings(pending=Refusing()))
        for _ in range(2):
            await reconciler.pass_once()
        checkpoint = await reconciler.records.checkpoint()

        assert checkpoint is not None
        assert checkpoint.reconciled_through_unix_ns <= manifest.accepted_at_unix_ns


@async_test
async def test_what_an_interrupted_cold_scan_counts_as_done_is_queued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconcile_cold, "PAGE", 2)
    authority = Authority()
    async with landing_queue(authority, tmp_path) as queue:
        manifests = await authority.accept(*range(5))
        authority.clock.seconds += 120
        reconciler = authority.reconciler(landings=queue.landings())
        reconciler.cold.stop = asyncio.Event()
        reconciler.cold.stop.set()
        await reconciler.cold_scan()
        interrupted = list(queue.put)
        await authority.reconciler(landings=queue.landings()).cold_scan()

        assert interrupted == [each.key for each in manifests[:2]]
        assert sorted(queue.put) == sorted(each.key for each in manifests)


@async_test
async def test_a_batch_from_a_gateway_whose_clock_is_far_ahead_does_not_stay_young_for_years(tmp_path: Path) -> None:
    authority = Authority()
    async with landing_queue(authority, tmp_path) as queue:
        authority.clock.seconds = 10 * 365 * 24 * HOUR
        [manifest] = await authority.accept(1)
        authority.clock.seconds = 0

        looked = await queue.landings().settle([manifest], ReconcileReport())

        assert (queue.put, looked[manifest.identity]) == ([manifest.key], LandingState.QUEUED)


@async_test
async def test_a_gateway_whose_clock_is_a_little_ahead_has_time_to_queue_its_batch(tmp_path: Path) -> None:
    authority = Authority()
    async with landing_queue(authority, tmp_path) as queue:
        authority.clock.seconds = 300
        [manifest] = await authority.accept(1)
        authority.clock.seconds = 0

        looked = await queue.landings().settle([manifest], ReconcileReport())

        assert (queue.put, looked[manifest.identity]) == ([], LandingState.YOUNG)


@async_test
async def test_a_dead_letter_that_cannot_be_read_keeps_no_other_batch_from_being_queued(tmp_path: Path) -> None:
    authority = Authority()
    async with landing_queue(authority, tmp_path) as queue:
        given_up, lost = await authority.accept(1, 2)
        authority.clock.seconds += 120
        letter = letter_of(given_up)
        await queue.letters.store.put(letter.key, b"damaged")
        report = ReconcileReport()

        looked = await queue.landings().settle([given_up, lost], report)

        assert queue.put == [lost.key]
        assert looked[given_up.identity] is LandingState.UNKNOWN
        assert [(each.kind, each.key) for each in report.problems] == [(ProblemKind.UNREADABLE, letter.key)]


@async_test
async def test_a_batch_whose_frame_was_deleted_after_its_time_is_not_queued_again(tmp_path: Path) -> None:
    authority = Authority()
    async with landing_queue(authority, tmp_path) as queue:
        [manifest] = await authority.accept(1)
        retired = RetiredBatch.of(manifest.identity, manifest.frame_sha256, at_unix_ns=1, by="me")
        await authority.store.create(retired.key, retired.encode())
        await authority.store.delete(manifest.raw_blob_key)
        authority.clock.seconds += 120
        reconciler = authority.reconciler(landings=queue.landings())

        found = [await reconciler.pass_once(), await reconciler.cold_scan(), await reconciler.pass_once()]

        assert queue.put == []
        assert [(each.accepted, each.wrong) for each in found] == [(1, {}), (1, {}), (0, {})]
