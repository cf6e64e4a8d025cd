"""The blob of an accepted batch goes when its time is over and nobody needs it, and is kept if anything is missing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

import msgspec
import pytest

from lakehead.accept.acceptance import Accepted, Duplicate
from lakehead.errors import Misconfigured, OutcomeUnknown, Unavailable
from lakehead.maintain.blob_references import TimeIndex
from lakehead.maintain.garbage_report import BlobOutcome
from lakehead.maintain.garbage_retention import KeepReason, RetiringBatch
from lakehead.maintain.garbage_settings import GarbageSettings
from lakehead.storage.port import Object
from lakehead.wire import acceptance_keys as keys
from lakehead.wire.acceptance_records import IdentityManifest
from lakehead.wire.batch_identity import BatchIdentity
from lakehead.wire.maintenance_records import BatchRepair, DiscardedBatch, RetiredBatch
from tests.support.async_tests import async_test
from tests.unit.accept.support import APPLIED, DOWN, NOT_APPLIED
from tests.unit.maintain.garbage_support import Landings, Rig, batch

FRAME, OTHER = batch(), batch(compress=False)
TABLE = "4b0f7ad2-93a5-4d4a-9c0e-3e6a1f9c8f10"
KEPT_30_DAYS = GarbageSettings(retention=timedelta(days=30), rollback=timedelta(days=7))


async def landed(
    *, after: float = 1.0, days: float = 31, audit: bool = True, page_size: int = 1000
) -> tuple[Rig, IdentityManifest]:
    """A batch that landed a day after it was accepted, some days ago."""
    rig = Rig(settings=KEPT_30_DAYS, page_size=page_size)
    rig.tables = [TABLE]
    await rig.init()
    answer = await rig.accept(FRAME)
    assert isinstance(answer, Accepted)
    rig.clock.days += after
    rig.users = [Landings({FRAME.identity: rig.clock.now_ns()})]
    await rig.later(days - after, audit=audit)
    return rig, answer.manifest


@async_test
async def test_a_landed_batch_is_retired_and_a_retry_stays_a_duplicate_and_goes_again() -> None:
    rig, manifest = await landed()

    assert await rig.outcome() is BlobOutcome.RETIRED

    key = keys.retired(FRAME.identity)
    stored = await rig.store.get(key)
    assert stored is not None
    record = RetiredBatch.decode(stored.body, key)
    assert (record.frame_sha256, record.retired_by) == (FRAME.sha256, "gc-1")
    assert await rig.acceptor().read(FRAME.identity) == manifest, "the identity manifest stays"

    assert isinstance(await rig.acceptor().accept(FRAME), Duplicate)
    assert len(await rig.blobs()) == 1
    assert await rig.outcome() is BlobOutcome.RETIRED, "the next run, however young the blob is"
    assert isinstance(await rig.acceptor().accept(FRAME), Duplicate)


@async_test
async def test_a_retired_frame_that_was_brought_back_is_kept_until_it_has_landed_again() -> None:
    rig, _ = await landed()
    assert await rig.outcome() is BlobOutcome.RETIRED
    rig.users = [Landings()]  # the table was rolled back, or dropped and created again
    await rig.store.put(keys.raw_blob(FRAME.sha256), FRAME.body)  # from a backup

    assert await rig.outcome() is BlobOutcome.NOT_LANDED

    rig.users = [Landings({FRAME.identity: rig.clock.now_ns()})]
    await rig.later(6)
    assert await rig.outcome() is BlobOutcome.LANDED_LATELY
    await rig.later(2)
    assert await rig.outcome() is BlobOutcome.RETIRED


@async_test
async def test_without_retention_blobs_are_kept_for_good() -> None:
    rig, _ = await landed(days=4_000)
    rig.settings = GarbageSettings()

    assert await rig.outcome() is BlobOutcome.ACCEPTED


@async_test
async def test_a_young_blob_is_kept_and_one_that_was_healed_too() -> None:
    rig, _ = await landed(days=29)
    assert await rig.outcome() is BlobOutcome.ACCEPTED

    rig, _ = await landed(days=31)
    await rig.store.put(keys.raw_blob(FRAME.sha256), FRAME.body)
    assert await rig.outcome() is BlobOutcome.ACCEPTED


@pytest.mark.parametrize(("days", "outcome"), [(37.9, BlobOutcome.LANDED_LATELY), (38.1, BlobOutcome.RETIRED)])
@async_test
async def test_it_must_have_landed_before_the_rollback_horizon(days: float, outcome: BlobOutcome) -> None:
    rig, _ = await landed(after=31, days=days)

    assert await rig.outcome() is outcome


@async_test
async def test_what_has_not_landed_or_lands_nowhere_is_kept() -> None:
    rig, _ = await landed()
    rig.users = [Landings()]
    assert await rig.outcome() is BlobOutcome.NOT_LANDED

    rig.users = []
    assert await rig.outcome() is BlobOutcome.NO_TABLE


@async_test
async def test_everybody_who_reads_frames_must_be_done() -> None:
    rig, _ = await landed()
    rig.users = [*rig.users, Landings()]

    assert await rig.outcome() is BlobOutcome.NOT_LANDED


@async_test
async def test_the_audit_must_have_begun_after_it_landed_beyond_the_rollback_horizon() -> None:
    rig, _ = await landed(audit=False)
    assert await rig.outcome() is BlobOutcome.NOT_AUDITED

    rig, _ = await landed(after=25, days=31)  # audited 6 days after it landed
    rig.clock.days += 10
    assert await rig.outcome() is BlobOutcome.LANDED_LATELY
    await rig.audit()
    assert await rig.outcome() is BlobOutcome.RETIRED


@async_test
async def test_its_own_audit_is_as_good_and_finds_a_quarantine_without_a_reference() -> None:
    rig, _ = await landed(audit=False)
    assert await rig.outcome(audit=True) is BlobOutcome.RETIRED

    rig, _ = await landed(audit=False)
    await rig.store.create(keys.overlap(FRAME.identity, FRAME.sha256), b"")
    assert await rig.outcome(audit=True) is BlobOutcome.QUARANTINED


@async_test
async def test_a_quarantined_batch_is_kept() -> None:
    rig, _ = await landed()
    await rig.store.create(keys.quarantine_by_blob(FRAME.sha256, FRAME.identity), b"")

    assert await rig.outcome() is BlobOutcome.QUARANTINED


@async_test
async def test_a_quarantine_keeps_it_also_without_its_reverse_reference() -> None:
    rig, _ = await landed()
    await rig.store.create(keys.overlap(FRAME.identity, FRAME.sha256), b"")

    assert await rig.outcome() is BlobOutcome.QUARANTINED


@async_test
async def test_an_open_repair_keeps_it_and_a_healed_one_does_not() -> None:
    rig, manifest = await landed()
    repair = BatchRepair.of(manifest, "corrupt", found_at_unix_ns=1, found_by="reconciler")
    await rig.store.put(repair.key, repair.encode())
    assert await rig.outcome() is BlobOutcome.REPAIR_OPEN

    await rig.store.put(repair.key, b"{")
    assert await rig.outcome() is BlobOutcome.REPAIR_OPEN

    healed = repair.encode().replace(b'"open"', b'"healed"').replace(b'"version"', b'"healed_at_unix_ns":5,"version"')
    await rig.store.put(repair.key, healed)
    assert await rig.outcome() is BlobOutcome.RETIRED


@async_test
async def test_what_an_operator_discarded_is_kept() -> None:
    rig, _ = await landed()
    discarded = DiscardedBatch.of(TABLE, FRAME.identity, at_unix_ns=1, by="operator")
    await rig.store.create(discarded.key, discarded.encode())

    assert await rig.outcome() is BlobOutcome.DISCARDED


@async_test
async def test_a_reference_to_a_manifest_of_another_frame_keeps_the_blob() -> None:
    rig, manifest = await landed()
    await rig.store.put(manifest.key, manifest.encode().replace(FRAME.sha256.encode(), OTHER.sha256.encode()))
    rig.store._objects.pop(keys.raw_blob(OTHER.sha256), None)
    assert await rig.outcome() is BlobOutcome.REFERENCE_WRONG

    rig, manifest = await landed()
    rig.store._objects.pop(manifest.key)
    assert await rig.outcome() is BlobOutcome.REFERENCE_WRONG


@async_test
async def test_the_record_comes_first_and_must_be_definite() -> None:
    for what in (NOT_APPLIED, APPLIED, DOWN):
        rig, _ = await landed()
        rig.store.next("retired/v1", what)

        report, decided = await rig.collect()

        assert [each.outcome for each in decided] == [BlobOutcome.UNAVAILABLE]
        assert report.has_failures
        assert len(await rig.blobs()) == 1
        assert await rig.outcome() is BlobOutcome.RETIRED


@async_test
async def test_a_retired_record_of_another_frame_keeps_the_blob() -> None:
    rig, _ = await landed()
    other = RetiredBatch.of(FRAME.identity, OTHER.sha256, at_unix_ns=1, by="x")
    await rig.store.create(other.key, other.encode())

    assert await rig.outcome() is BlobOutcome.REFERENCE_WRONG


@pytest.mark.parametrize("failure", [Unavailable("no answer"), OutcomeUnknown("no answer")])
@async_test
async def test_a_delete_in_doubt_is_made_again(failure: Exception) -> None:
    rig, _ = await landed()
    rig.store.fail_deletes = failure
    _, decided = await rig.collect()
    assert [each.outcome for each in decided] == [BlobOutcome.UNAVAILABLE]

    rig.store.fail_deletes = None
    assert await rig.outcome() is BlobOutcome.RETIRED


@dataclass
class Silent:
    async def still_needed(
        self, batches: Sequence[RetiringBatch], *, done_before_ns: int
    ) -> Mapping[BatchIdentity, KeepReason]:
        del batches, done_before_ns
        raise Unavailable("the state does not answer")


@async_test
async def test_a_frame_that_was_uploaded_in_many_hours_is_retired_once() -> None:
    rig, _ = await landed(page_size=1)
    rig.clock.days -= 31
    for _ in range(3):
        rig.clock.days += 0.1
        assert isinstance(await rig.acceptor().accept(FRAME), Duplicate)
    rig.clock.days += 30.7

    report, decided = await rig.collect(TimeIndex(needs_age=True))

    assert [each.outcome for each in decided] == [BlobOutcome.RETIRED]
    assert (report.deleted, rig.store.deleted) == (1, [keys.raw_blob(FRAME.sha256)])


@async_test
async def test_while_somebody_does_not_tell_nothing_is_retired() -> None:
    rig, _ = await landed()
    rig.users = [*rig.users, Silent()]

    assert await rig.outcome() is BlobOutcome.UNAVAILABLE


@async_test
async def test_the_kind_of_an_old_manifest_is_read_from_the_frame() -> None:
    rig, manifest = await landed()
    await rig.store.put(manifest.key, manifest.encode().replace(b'"kind":"samples"', b'"kind":""'))

    assert await rig.outcome() is BlobOutcome.RETIRED


@async_test
async def test_a_frame_in_an_archive_whose_manifest_does_not_tell_its_kind_keeps_no_other_from_being_retired(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig, manifest = await landed()
    older = batch(100)
    answer = await rig.accept(older)
    assert isinstance(answer, Accepted)
    assert isinstance(rig.users[0], Landings)
    rig.users[0].done_ns[older.identity] = rig.clock.now_ns()
    untold = msgspec.structs.replace(manifest, kind="")
    await rig.store.put(manifest.key, untold.encode())  # as an older gateway wrote it
    await rig.later(40)
    get = rig.store.get

    async def archived(key: str, *, start: int = 0, end: int | None = None) -> Object | None:
        if key == manifest.raw_blob_key:
            raise Misconfigured(f"{key}: InvalidObjectState")
        return await get(key, start=start, end=end)

    monkeypatch.setattr(rig.store, "get", archived)
    _, decided = await rig.collect()

    assert {each.key: each.outcome for each in decided} == {
        manifest.raw_blob_key: BlobOutcome.UNAVAILABLE,
        answer.manifest.raw_blob_key: BlobOutcome.RETIRED,
    }
