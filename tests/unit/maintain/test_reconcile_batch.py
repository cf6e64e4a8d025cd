"""What is derived from one accepted batch is there afterwards, with the bytes that anybody else writes."""

import pytest

from lakehead.maintain.reconcile_report import ActionKind, ProblemKind, ReconcileReport
from lakehead.maintain.reconcile_settings import VerifyMode
from lakehead.wire import acceptance_keys as keys
from lakehead.wire.acceptance_records import IdentityManifest, IdentityVoid
from lakehead.wire.index_records import QuarantineByBlob
from lakehead.wire.maintenance_records import BatchRepair, RetiredBatch
from tests.support.async_tests import async_test
from tests.unit.maintain.reconcile_support import HOUR, Authority, identity

DERIVED = ("accepted-by-time", "accepted-by-blob", "raw-blobs-by-time")


async def repair_of(authority: Authority, manifest: IdentityManifest) -> BatchRepair:
    key = keys.repair(manifest.identity)
    found = await authority.store.get(key)
    assert found is not None
    return BatchRepair.decode(found.body, key)


@async_test
async def test_each_index_comes_back_with_the_same_bytes_and_a_second_look_writes_nothing() -> None:
    authority = Authority()
    [manifest] = await authority.accept(1)
    before = await authority.store.contents(*DERIVED)
    batches, report = authority.reconciler().steady.batches, ReconcileReport()

    for folder in DERIVED:
        await authority.store.delete_folder(folder)
        await batches.reconcile(manifest.identity, report)
    assert await authority.store.contents(*DERIVED) == before
    assert report.indexed == 3

    authority.store.forget()
    await batches.reconcile(manifest.identity, ReconcileReport())
    assert authority.store.written == []


@async_test
async def test_a_frame_that_was_uploaded_in_the_hour_before_its_acceptance_is_not_indexed_again() -> None:
    authority = Authority()
    authority.clock.seconds = HOUR - 1
    [manifest] = await authority.accept(1)
    [entry] = await authority.store.keys("raw-blobs-by-time")
    there = await authority.store.get(entry)
    assert there is not None
    await authority.store.delete(entry)
    await authority.store.create(entry.replace(manifest.hour.path, authority_hour_before(manifest)), there.body)
    authority.store.forget()

    await authority.reconciler().steady.batches.reconcile(manifest.identity, ReconcileReport())

    assert authority.store.written == []


def authority_hour_before(manifest: IdentityManifest) -> str:
    return type(manifest.hour)(manifest.hour.number - 1).path


@async_test
async def test_a_void_is_skipped_and_what_cannot_be_read_is_told() -> None:
    authority = Authority()
    void, damaged, absent = identity(1), identity(2), identity(3)
    record = IdentityVoid(
        **{name: getattr(void, name) for name in ("agent_id", "boot_id", "seq_start", "seq_end")},
        frame_sha256="ab" * 32,
        voided_at_unix_ns=1,
        voided_by="gc",
    )
    await authority.store.create(record.key, record.encode())
    await authority.store.create(keys.accepted(damaged), b"{")
    authority.store.forget()
    report = ReconcileReport()

    for each in (void, damaged, absent):
        await authority.reconciler().steady.batches.reconcile(each, report)

    assert (report.voids, report.absent, report.accepted) == (1, 1, 0)
    assert [(each.kind, each.key) for each in report.problems] == [(ProblemKind.UNREADABLE, keys.accepted(damaged))]
    assert authority.store.written == []


@pytest.mark.parametrize("verify", ["hash", "size"])
@async_test
async def test_a_missing_frame_is_a_repair_until_it_is_there_again(verify: VerifyMode) -> None:
    authority = Authority()
    [manifest] = await authority.accept(1)
    frame = await authority.store.get(manifest.raw_blob_key)
    assert frame is not None
    await authority.store.delete(manifest.raw_blob_key)
    reconciler = authority.reconciler(verify=verify)
    batches = reconciler.steady.batches

    first, again = ReconcileReport(), ReconcileReport()
    await batches.reconcile(manifest.identity, first)
    authority.store.forget()
    await batches.reconcile(manifest.identity, again)
    opened = await repair_of(authority, manifest)
    await authority.store.create(manifest.raw_blob_key, frame.body)
    healed = ReconcileReport()
    await batches.reconcile(manifest.identity, healed)

    assert (opened.state, opened.problem, opened.found_by) == ("open", "missing", "reconciler-1")
    assert [each.kind for each in first.actions] == [ActionKind.REPAIR_OPENED]
    assert (again.actions, again.wrong[ProblemKind.MISSING]) == ((), 1)
    assert [each.kind for each in healed.actions] == [ActionKind.REPAIR_HEALED]
    assert (await repair_of(authority, manifest)).state == "healed"
    assert reconciler.repairs.identities() == ()


@async_test
async def test_one_flipped_byte_is_corrupt_by_its_hash_and_not_noticed_by_its_size() -> None:
    authority = Authority()
    [manifest] = await authority.accept(1)
    await authority.store.put(manifest.raw_blob_key, b"agent-a 2")
    by_size, by_hash = ReconcileReport(), ReconcileReport()

    await authority.reconciler(verify="size").steady.batches.reconcile(manifest.identity, by_size)
    await authority.reconciler().steady.batches.reconcile(manifest.identity, by_hash)

    assert by_size.problems == ()
    assert [each.kind for each in by_hash.problems] == [ProblemKind.CORRUPT]
    assert (await repair_of(authority, manifest)).problem == "corrupt"


@pytest.mark.parametrize("body", [b"agent-a 1 and more", b"agent-a", b""])
@pytest.mark.parametrize("verify", ["hash", "size"])
@async_test
async def test_a_frame_of_another_length_is_corrupt(verify: VerifyMode, body: bytes) -> None:
    authority = Authority()
    [manifest] = await authority.accept(1)
    await authority.store.put(manifest.raw_blob_key, body)

    assert await authority.reconciler(verify=verify).steady.batches.blobs.problem(manifest) == "corrupt"


@async_test
async def test_a_repair_that_opens_again_is_of_the_time_at_which_it_was_found_again() -> None:
    authority = Authority()
    [manifest] = await authority.accept(1)
    frame = await authority.store.get(manifest.raw_blob_key)
    assert frame is not None
    batches = authority.reconciler().steady.batches
    for _ in range(2):
        authority.clock.seconds += HOUR
        await authority.store.delete(manifest.raw_blob_key)
        await batches.reconcile(manifest.identity, ReconcileReport())
        found = await repair_of(authority, manifest)
        assert (found.state, found.found_at_unix_ns) == ("open", authority.clock.now_ns())
        await authority.store.put(manifest.raw_blob_key, b"other")
        await batches.reconcile(manifest.identity, ReconcileReport())
        changed = await repair_of(authority, manifest)
        assert (changed.problem, changed.found_at_unix_ns) == ("corrupt", found.found_at_unix_ns)
        await authority.store.put(manifest.raw_blob_key, frame.body)
        await batches.reconcile(manifest.identity, ReconcileReport())


@async_test
async def test_a_retired_batch_needs_no_frame() -> None:
    authority = Authority()
    [manifest] = await authority.accept(1)
    await authority.store.delete(manifest.raw_blob_key)
    retired = RetiredBatch.of(manifest.identity, manifest.frame_sha256, at_unix_ns=1, by="gc")
    await authority.store.create(retired.key, retired.encode())
    report = ReconcileReport()

    await authority.reconciler().steady.batches.reconcile(manifest.identity, report)

    assert (report.actions, report.problems) == ((), ())


@async_test
async def test_frames_in_quarantine_get_their_reverse_references() -> None:
    authority = Authority()
    sha = "cd" * 32
    conflict, overlap = keys.identity_conflict(identity(1), sha), keys.overlap(identity(2), sha)
    for key in (conflict, overlap):
        await authority.store.create(key, b"{}")
    report = ReconcileReport()

    await authority.reconciler().cold_scan()
    await authority.reconciler().cold.scan_quarantine(report)

    found = await authority.store.contents("quarantine-by-blob")
    assert {QuarantineByBlob.decode(body, key).quarantine_manifest_key for key, body in found.items()} == {
        conflict,
        overlap,
    }
    assert (report.quarantined, report.actions) == (2, ())


@async_test
async def test_a_frame_larger_than_a_part_is_read_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    authority = Authority()
    [manifest] = await authority.accept(1)
    monkeypatch.setattr("lakehead.maintain.blob_check.PART_BYTES", 4)
    blobs = authority.reconciler().steady.batches.blobs

    assert await blobs.problem(manifest) is None
    await authority.store.put(manifest.raw_blob_key, b"agent-a 2")
    assert await blobs.problem(manifest) == "corrupt"


@async_test
async def test_a_record_of_a_repair_that_is_damaged_is_told_until_it_is_deleted() -> None:
    authority = Authority()
    open_one, damaged = await authority.accept(1, 2)
    await authority.store.delete(open_one.raw_blob_key)
    await authority.store.create(keys.repair(damaged.identity), b"{")
    reconciler = authority.reconciler()
    first = await reconciler.pass_once()
    for manifest in (open_one, damaged):
        await authority.store.delete(keys.repair(manifest.identity))
    retired = RetiredBatch.of(open_one.identity, open_one.frame_sha256, at_unix_ns=1, by="gc")
    await authority.store.create(retired.key, retired.encode())
    second = await reconciler.pass_once()

    assert {each.kind for each in first.problems} == {ProblemKind.MISSING, ProblemKind.UNREADABLE}
    assert (second.problems, second.actions, reconciler.repairs.count("missing")) == ((), (), 0)
