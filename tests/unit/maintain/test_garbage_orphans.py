"""An orphan is deleted when all conditions hold, and kept if any one of them does not."""

import asyncio

import pytest

from lakehead.accept.acceptance import Accepted, Void
from lakehead.accept.authority import AnotherAuthority, NoAuthority
from lakehead.errors import Misconfigured, OutcomeUnknown, Unavailable
from lakehead.maintain.blob_references import FullScan
from lakehead.maintain.garbage_orphans import SpoolOutOfReach
from lakehead.maintain.garbage_report import BlobOutcome
from lakehead.maintain.garbage_settings import GarbageSettings, RunOptions
from lakehead.storage.port import Object
from lakehead.wire import acceptance_keys as keys
from lakehead.wire.acceptance_records import IdentityManifest, IdentityVoid
from lakehead.wire.conflict_records import QuarantineManifest
from lakehead.wire.frame import frame_sha256
from lakehead.wire.index_records import QuarantineByBlob
from tests.support.async_tests import async_test
from tests.unit.accept.support import APPLIED, DOWN, NOT_APPLIED, audit_trail
from tests.unit.maintain.garbage_support import Rig, batch

FRAME, OTHER = batch(), batch(compress=False)


@async_test
async def test_an_orphan_goes_when_all_conditions_hold_and_its_identity_is_void_then() -> None:
    rig = Rig()
    await rig.init()
    await rig.orphan(FRAME)
    await rig.later(8)

    assert await rig.outcome() is BlobOutcome.ORPHAN

    void = await rig.acceptor().read(FRAME.identity)
    assert isinstance(void, IdentityVoid)
    assert (void.frame_sha256, void.voided_by) == (FRAME.sha256, "gc-1")
    assert isinstance(await rig.acceptor().accept(FRAME), Void), "a retry that comes too late learns that it is"
    assert await rig.store.keys("raw-blobs-by-time"), "entries of the index stay"


@async_test
async def test_a_blob_that_a_late_retry_stored_again_goes_again() -> None:
    rig = Rig()
    await rig.init()
    await rig.orphan(FRAME)
    await rig.later(8)
    await rig.collect()
    assert isinstance(await rig.acceptor().accept(FRAME), Void)
    await rig.later(8)

    assert await rig.outcome() is BlobOutcome.ORPHAN


@pytest.mark.parametrize(("days", "outcome"), [(6.9, BlobOutcome.YOUNG), (7.1, BlobOutcome.ORPHAN)])
@async_test
async def test_age_is_by_the_stores_clock_and_not_by_this_machines(days: float, outcome: BlobOutcome) -> None:
    for machine in (-1_000, 1_000):
        rig = Rig()
        rig.machine.days = machine
        await rig.init()
        await rig.orphan(FRAME)
        await rig.later(days)

        assert await rig.outcome() is outcome


@async_test
async def test_without_an_audit_of_its_age_nothing_is_deleted() -> None:
    rig = Rig()
    await rig.init()
    await rig.orphan(FRAME)
    await rig.later(8, audit=False)
    assert await rig.outcome() is BlobOutcome.NOT_AUDITED

    rig = Rig()
    await rig.init()
    await rig.orphan(FRAME)
    await rig.later(6.9)  # audited, but before its horizon
    await rig.later(1, audit=False)
    assert await rig.outcome() is BlobOutcome.NOT_AUDITED

    await rig.store.put(keys.COMPLETED_AUDIT, b"{")
    assert await rig.outcome() is BlobOutcome.NOT_AUDITED


@async_test
async def test_an_audit_of_a_time_that_is_still_to_come_is_none() -> None:
    rig = Rig()
    await rig.init()
    await rig.later(1_000)
    rig.clock.days -= 1_000  # the store's clock was set back
    await rig.orphan(FRAME)
    await rig.later(8, audit=False)

    assert await rig.outcome() is BlobOutcome.NOT_AUDITED

    await rig.later(0)
    assert await rig.outcome() is BlobOutcome.ORPHAN


@async_test
async def test_garbage_collection_audits_itself_if_asked() -> None:
    rig = Rig()
    await rig.init()
    await rig.orphan(FRAME)
    await rig.later(8, audit=False)

    assert await rig.outcome(audit=True) is BlobOutcome.ORPHAN


@async_test
async def test_its_own_audit_finds_what_reverse_references_do_not_tell() -> None:
    rig = Rig()
    await rig.init()
    await rig.accept(FRAME, reference=False)
    await rig.later(8, audit=False)
    assert await rig.outcome(audit=True) is BlobOutcome.REFERENCE_MISSING

    rig = Rig()
    await rig.init()
    await rig.orphan(FRAME)
    await rig.store.create(keys.overlap(FRAME.identity, FRAME.sha256), b"whatever it says")
    await rig.later(8, audit=False)
    assert await rig.outcome(audit=True) is BlobOutcome.QUARANTINED


@async_test
async def test_an_audit_that_could_not_read_everything_deletes_nothing() -> None:
    rig = Rig()
    await rig.init()
    await rig.orphan(FRAME)
    await rig.store.create(keys.accepted(batch(500).identity), b"{")
    await rig.later(8, audit=False)

    assert await rig.outcome(audit=True) is BlobOutcome.NOT_AUDITED


@async_test
async def test_what_was_accepted_is_kept_with_its_reference_and_without() -> None:
    for reference, outcome in ((True, BlobOutcome.ACCEPTED), (False, BlobOutcome.REFERENCE_MISSING)):
        rig = Rig()
        await rig.init()
        await rig.accept(FRAME, reference=reference)
        await rig.later(8)

        assert await rig.outcome() is outcome
        assert isinstance(await rig.acceptor().read(FRAME.identity), IdentityManifest)


@async_test
async def test_a_blob_in_quarantine_is_kept() -> None:
    rig = Rig()
    await rig.init()
    await rig.orphan(FRAME)
    await rig.store.create(keys.quarantine_by_blob(FRAME.sha256, FRAME.identity), b"")
    await rig.later(8)

    assert await rig.outcome() is BlobOutcome.QUARANTINED
    assert await rig.acceptor().read(FRAME.identity) is None


@async_test
async def test_a_blob_that_contradicts_an_accepted_one_is_put_in_quarantine() -> None:
    rig = Rig()
    await rig.init()
    accepted = await rig.accept(OTHER)
    assert isinstance(accepted, Accepted)
    await rig.orphan(FRAME)
    await rig.later(8)

    _, decided = await rig.collect()

    assert {each.key: each.outcome for each in decided} == {
        keys.raw_blob(FRAME.sha256): BlobOutcome.CONFLICT,
        keys.raw_blob(OTHER.sha256): BlobOutcome.ACCEPTED,
    }
    key = keys.identity_conflict(FRAME.identity, FRAME.sha256)
    stored = await rig.store.get(key)
    assert stored is not None
    manifest = QuarantineManifest.decode(stored.body, key)
    assert (manifest.accepted_frame_sha256, manifest.collector_id) == (OTHER.sha256, "gc-1")
    assert await rig.store.head(QuarantineByBlob.of(manifest).key) is not None
    _, decided = await rig.collect()
    assert {each.outcome for each in decided} == {BlobOutcome.QUARANTINED, BlobOutcome.ACCEPTED}
    assert len(await rig.blobs()) == 2


@async_test
async def test_a_dry_run_of_a_conflict_puts_nothing_in_quarantine() -> None:
    rig = Rig()
    await rig.init()
    await rig.accept(OTHER)
    await rig.orphan(FRAME)
    await rig.later(8)

    _, decided = await rig.collect(dry_run=True)

    assert BlobOutcome.CONFLICT in {each.outcome for each in decided}
    assert not await rig.store.keys("quarantine")


@async_test
async def test_every_open_spool_is_asked_and_what_one_has_is_kept() -> None:
    rig = Rig()
    await rig.init(spools=2)
    await rig.orphan(FRAME)
    await rig.later(8)
    rig.spools.held.add(FRAME.identity)

    assert await rig.outcome() is BlobOutcome.IN_SPOOL
    assert await rig.acceptor().read(FRAME.identity) is None

    rig.spools.held.clear()
    assert await rig.outcome() is BlobOutcome.ORPHAN
    assert rig.spools.voided == [FRAME.identity] * 2


@async_test
async def test_with_a_spool_out_of_reach_nothing_is_deleted_at_all() -> None:
    rig = Rig()
    await rig.init(spools=1)
    await rig.orphan(FRAME)
    await rig.later(8)
    rig.spools.is_out_of_reach = True

    for dry_run in (True, False):
        with pytest.raises(SpoolOutOfReach):
            await rig.collect(dry_run=dry_run)
    assert len(await rig.blobs()) == 1
    assert await rig.store.keys("voiding") == []


@pytest.mark.parametrize("failure", [Unavailable("no answer"), OutcomeUnknown("no answer")])
@async_test
async def test_a_spool_that_fails_later_keeps_one_blob_and_not_the_others(failure: Exception) -> None:
    rig = Rig()
    await rig.init(spools=1)
    await rig.orphan(FRAME)
    await rig.later(8)
    rig.spools.fails = failure

    report, decided = await rig.collect()

    assert [each.outcome for each in decided] == [BlobOutcome.UNAVAILABLE]
    assert report.has_failures
    assert len(await rig.blobs()) == 1


@async_test
async def test_another_authority_or_none_ends_the_run() -> None:
    rig = Rig()
    await rig.orphan(FRAME)
    await rig.later(8)
    with pytest.raises(NoAuthority):
        await rig.collect()

    await rig.init()
    record = await rig.authority().read()
    await rig.store.put(keys.AUTHORITY, record.encode().replace(b"s3://lake", b"s3://copy"))
    with pytest.raises(AnotherAuthority):
        await rig.collect()
    assert len(await rig.blobs()) == 1


@pytest.mark.parametrize("what", [NOT_APPLIED, DOWN])
@pytest.mark.parametrize("prefix", ["accepted/v1", "voiding/v1"])
@async_test
async def test_without_a_definite_void_the_blob_is_kept_and_the_others_go(what: str, prefix: str) -> None:
    rig = Rig()
    await rig.init()
    for each in (FRAME, batch(500)):
        await rig.orphan(each)
    await rig.later(8)
    rig.store.next(prefix, what)

    report, decided = await rig.collect()

    assert sorted(each.outcome for each in decided) == [BlobOutcome.ORPHAN, BlobOutcome.UNAVAILABLE]
    assert report.has_failures
    [left] = await rig.blobs()
    assert left == next(each.key for each in decided if each.outcome is BlobOutcome.UNAVAILABLE)
    again, _ = await rig.collect()
    assert (again.deleted, again.has_failures) == (1, False)


@async_test
async def test_a_void_that_was_applied_and_whose_answer_was_lost_is_no_void_yet() -> None:
    rig = Rig()
    await rig.init()
    await rig.orphan(FRAME)
    await rig.later(8)
    rig.store.next("accepted/v1", APPLIED)

    _, decided = await rig.collect()

    assert [each.outcome for each in decided] == [BlobOutcome.UNAVAILABLE]
    assert len(await rig.blobs()) == 1


@async_test
async def test_a_key_that_cannot_be_read_keeps_the_blob() -> None:
    rig = Rig()
    await rig.init()
    await rig.orphan(FRAME)
    await rig.store.create(keys.accepted(FRAME.identity), b"{")
    await rig.later(8)

    assert await rig.outcome() is BlobOutcome.UNAVAILABLE


@pytest.mark.parametrize("failure", [Unavailable("no answer"), OutcomeUnknown("no answer")])
@async_test
async def test_a_delete_in_doubt_is_told_and_made_again(failure: Exception) -> None:
    rig = Rig()
    await rig.init()
    await rig.orphan(FRAME)
    await rig.later(8)
    rig.store.fail_deletes = failure

    report, decided = await rig.collect()

    assert ([each.outcome for each in decided], report.deleted) == ([BlobOutcome.UNAVAILABLE], 0)
    rig.store.fail_deletes = None
    assert await rig.outcome() is BlobOutcome.ORPHAN


@async_test
async def test_what_is_no_frame_corrupt_or_of_a_newer_format_is_kept_and_told() -> None:
    newer = bytearray(FRAME.body)
    newer[8] = 200  # the wire version
    for body, sha256, outcome in (
        (b"no frame", frame_sha256(b"no frame"), BlobOutcome.UNDECODABLE),
        (b"", frame_sha256(b""), BlobOutcome.UNDECODABLE),
        (bytes(newer), frame_sha256(bytes(newer)), BlobOutcome.NEWER_FORMAT),
        (OTHER.body, FRAME.sha256, BlobOutcome.CORRUPT),
    ):
        rig = Rig()
        await rig.init()
        await rig.store.create(keys.raw_blob(sha256), body)
        await rig.later(8)

        assert await rig.outcome() is outcome
        assert await rig.store.keys("accepted") == await rig.store.keys("voiding") == []


@async_test
async def test_an_object_with_another_name_is_kept_and_told() -> None:
    rig = Rig()
    await rig.init()
    await rig.store.create("raw-blobs/v1/sha256/ab/readme.txt", b"hello")
    await rig.later(8)

    assert await rig.outcome() is BlobOutcome.NO_BLOB


@async_test
async def test_a_large_blob_is_read_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lakehead.maintain.garbage_orphans.CHUNK", 200)
    assert len(OTHER.body) > 400
    rig = Rig()
    await rig.init()
    await rig.orphan(OTHER)
    await rig.later(8)

    assert await rig.outcome() is BlobOutcome.ORPHAN


@async_test
async def test_what_an_operator_must_mend_ends_the_run_with_all_that_it_has_begun() -> None:
    rig = Rig(settings=GarbageSettings(at_once=2))
    await rig.init()
    for number in range(20):
        await rig.orphan(batch(1_000 * number))
    await rig.later(8)
    rig.store.fail_deletes = Misconfigured("the bucket's policy refuses it")

    with pytest.raises(Misconfigured, match="policy"):
        await rig.collect()

    voids = len(await rig.store.keys("accepted/v1"))
    assert 1 <= voids <= 2
    for _ in range(100):
        await asyncio.sleep(0)
    assert len(await rig.store.keys("accepted/v1")) == voids, "nothing goes on"


@async_test
async def test_two_collectors_at_once_do_no_harm() -> None:
    rig = Rig()
    await rig.init()
    await rig.orphan(FRAME)
    await rig.accept(batch(500))
    await rig.later(8)

    await asyncio.gather(rig.collect(), rig.collect())

    assert await rig.blobs() == [keys.raw_blob(batch(500).sha256)]


@async_test
async def test_the_audit_trail_says_who_collects_before_anything_is_deleted() -> None:
    rig = Rig()
    await rig.init()
    await rig.orphan(FRAME)
    await rig.later(8)
    rig.store.next("audit/v1", DOWN)
    with pytest.raises(Unavailable):
        await rig.collect()
    assert len(await rig.blobs()) == 1

    await rig.collect(dry_run=True)
    await rig.collect()

    entries = [(each.action, each.by, each.subject) for each in await audit_trail(rig.store)]
    assert sorted(entries)[:2] == [
        ("collect_garbage", "test", "raw-blobs/v1"),
        ("collected_garbage", "test", "raw-blobs/v1"),
    ]
    assert ("dry_run_of_gc", "test", "raw-blobs/v1") in entries


@async_test
async def test_a_stopped_run_ends_between_blobs_and_says_so() -> None:
    rig = Rig()
    await rig.init()
    await rig.orphan(FRAME)
    await rig.later(8)

    report = await rig.collection().run(FullScan(), RunOptions(is_stopped=lambda: True))

    assert (report.is_complete, report.deleted, len(await rig.blobs())) == (False, 0, 1)


@async_test
async def test_nothing_is_begun_after_a_run_was_stopped() -> None:
    rig = Rig()
    await rig.init()
    await rig.orphan(FRAME)
    await rig.later(8, audit=False)
    read: list[str] = []
    stopped = iter([False])
    options = RunOptions(
        makes_audit=True,
        is_stopped=lambda: next(stopped, True),
        looked=lambda what, _: read.append(what),
    )

    report = await rig.collection().run(FullScan(), options)

    assert (report.is_complete, report.deleted, read) == (False, 0, ["blobs"])


@async_test
async def test_a_blob_that_may_not_be_read_keeps_no_other_from_being_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    await rig.init()
    archived, other = await rig.orphan(batch(100)), await rig.orphan(batch(200))
    await rig.later(8)
    get = rig.store.get

    async def refusing(key: str, *, start: int = 0, end: int | None = None) -> Object | None:
        if key == archived:
            raise Misconfigured("InvalidObjectState")
        return await get(key, start=start, end=end)

    monkeypatch.setattr(rig.store, "get", refusing)
    report, decided = await rig.collect()

    outcomes = {each.key: each.outcome for each in decided}
    assert outcomes == {archived: BlobOutcome.UNAVAILABLE, other: BlobOutcome.ORPHAN}
    assert report.has_failures
