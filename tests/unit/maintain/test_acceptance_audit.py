"""An audit finds every fault that is planted, names it, and finds nothing else; and it writes nothing."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from lakehead.accept.s3_object_versions import ObjectVersion, VersionsUnread
from lakehead.errors import Misconfigured, Unavailable
from lakehead.maintain import acceptance_audit_indexes, acceptance_audit_report
from lakehead.maintain.acceptance_audit import AuditParts
from lakehead.maintain.acceptance_audit_indexes import ListedHours
from lakehead.maintain.acceptance_audit_report import FindingKind
from lakehead.maintain.blob_check import PART_BYTES
from lakehead.state.model import DeadLetter
from lakehead.storage.memory_store import MemoryStore
from lakehead.storage.port import Object
from lakehead.storage.read_only_store import ReadOnlyStore
from lakehead.wire import acceptance_keys as keys
from lakehead.wire.acceptance_records import IdentityManifest
from lakehead.wire.batch_identity import BatchIdentity
from lakehead.wire.index_records import AcceptedByBlob, AcceptedByTime, QuarantineByBlob, RawBlobByTime
from lakehead.wire.key_parts import agent_part
from lakehead.wire.maintenance_records import RetiredBatch
from lakehead.wire.utc_hours import HOUR_NS, UtcHour
from tests.support.async_tests import async_test
from tests.unit.accept.support import FixedClock
from tests.unit.maintain.audit_support import BOOT, EARLIER, NOW, TABLE, URL, Authority, CountingStore, found, landed


class Earlier(FixedClock):
    """The clock of a store when what is in it was stored."""

    def now_ns(self) -> int:
        return EARLIER


Plant = Callable[[Authority, IdentityManifest], Awaitable[str]]
"""Damages what belongs to a batch. Returns what the audit must name."""


def by_time_key(manifest: IdentityManifest) -> str:
    return AcceptedByTime.of(manifest).key


async def no_by_time(authority: Authority, manifest: IdentityManifest) -> str:
    await authority.store.delete(by_time_key(manifest))
    return manifest.key


async def no_by_blob(authority: Authority, manifest: IdentityManifest) -> str:
    await authority.store.delete(AcceptedByBlob.of(manifest).key)
    return manifest.key


async def no_blob_by_time(authority: Authority, manifest: IdentityManifest) -> str:
    await authority.store.delete(keys.raw_blob_by_time(manifest.hour, manifest.frame_sha256))
    return manifest.key


async def blob_by_time_two_hours_before(authority: Authority, manifest: IdentityManifest) -> str:
    await no_blob_by_time(authority, manifest)
    entry = RawBlobByTime.of(manifest.identity, manifest.frame_sha256, manifest.frame_bytes)
    await authority.store.put(entry.key_in(UtcHour(manifest.hour.number - 2)), entry.encode())
    return manifest.key


async def no_blob(authority: Authority, manifest: IdentityManifest) -> str:
    await authority.store.delete(manifest.raw_blob_key)
    return manifest.raw_blob_key


async def cut_blob(authority: Authority, manifest: IdentityManifest) -> str:
    await authority.store.put(manifest.raw_blob_key, b"cut")
    return manifest.raw_blob_key


async def flipped_blob(authority: Authority, manifest: IdentityManifest) -> str:
    await authority.store.put(manifest.raw_blob_key, b"x" * manifest.frame_bytes)
    return manifest.raw_blob_key


async def damaged_manifest(authority: Authority, manifest: IdentityManifest) -> str:
    await authority.store.put(manifest.key, b"{")
    return manifest.key


async def wrong_by_blob(authority: Authority, manifest: IdentityManifest) -> str:
    await authority.store.put(AcceptedByBlob.of(manifest).key, b"{}")
    return manifest.key


PLANTED: dict[str, tuple[Plant, FindingKind, bool]] = {
    "no entry by time": (no_by_time, FindingKind.NOT_BY_TIME, False),
    "no entry by blob": (no_by_blob, FindingKind.NOT_BY_BLOB, False),
    "no entry of the blob by time": (no_blob_by_time, FindingKind.BLOB_NOT_BY_TIME, False),
    "entry of the blob in another hour": (blob_by_time_two_hours_before, FindingKind.BLOB_NOT_BY_TIME, False),
    "no blob": (no_blob, FindingKind.BLOB_MISSING, False),
    "blob of another size": (cut_blob, FindingKind.BLOB_SIZE, False),
    "blob with other bytes": (flipped_blob, FindingKind.BLOB_CORRUPT, True),
    "manifest that cannot be read": (damaged_manifest, FindingKind.UNREADABLE, False),
    "entry that says something else": (wrong_by_blob, FindingKind.WRONG_ENTRY, True),
}


@pytest.mark.parametrize(("plant", "kind", "needs_deep"), PLANTED.values(), ids=PLANTED)
@pytest.mark.parametrize("deep", [False, True])
@async_test
async def test_a_planted_fault_is_found_and_named_and_nothing_else_is(
    plant: Plant,
    kind: FindingKind,
    needs_deep: bool,  # noqa: FBT001 - pytest's shape
    deep: bool,  # noqa: FBT001 - as above
) -> None:
    authority = Authority()
    manifests = await authority.accept_many(40)
    assert (await authority.audit(deep=deep)).counts == {}

    named = await plant(authority, manifests[17])
    report = await authority.audit(deep=deep)

    if needs_deep and not deep:
        assert report.is_well
        return
    errors = {each: names for each, names in found(report).items() if each.is_error}
    assert errors == {kind: [named]}
    assert not report.is_well
    assert kind.meaning


@async_test
async def test_an_audit_does_not_ask_an_index_what_was_accepted() -> None:
    authority = Authority()
    manifests = await authority.accept_many(30)
    for folder in (keys.ACCEPTED_BY_TIME, keys.ACCEPTED_BY_BLOB, keys.RAW_BLOBS_BY_TIME):
        for page in [page async for page in authority.store.list(folder)]:
            for each in page:
                await authority.store.delete(each.key)

    report = await authority.audit()

    assert report.accepted == 30
    assert found(report) == {
        kind: [manifest.key for manifest in manifests]
        for kind in (FindingKind.NOT_BY_TIME, FindingKind.NOT_BY_BLOB, FindingKind.BLOB_NOT_BY_TIME)
    }


@async_test
async def test_nothing_is_written_and_a_write_would_be_refused() -> None:
    authority = Authority()
    manifests = await authority.accept_many(5)
    await no_by_time(authority, manifests[0])
    before = [each async for page in authority.store.list() for each in page]

    await authority.audit(deep=True)  # through a store that refuses every write

    assert [each async for page in authority.store.list() for each in page] == before
    store = ReadOnlyStore(authority.store)
    version = (await authority.store.put("x", b"")).__class__("1")
    for write in (store.put("k", b""), store.create("k", b""), store.delete("k"), store.replace("k", b"", version)):
        with pytest.raises(Misconfigured):
            await write


@async_test
async def test_what_is_younger_than_the_grace_is_not_missed() -> None:
    authority = Authority()
    young = await authority.accept(BatchIdentity(*BOOT, 0, 9), at=NOW - 60 * 10**9)
    await no_by_time(authority, young)
    await no_by_blob(authority, young)

    assert ((await authority.audit()).counts, (await authority.audit()).pending) == ({}, 1)
    late = await authority.audit(grace_seconds=30)
    assert set(found(late)) == {FindingKind.NOT_BY_TIME, FindingKind.NOT_BY_BLOB}
    await no_blob(authority, young)
    missing = found(await authority.audit())[FindingKind.BLOB_MISSING]
    assert missing == [young.raw_blob_key], "a frame is there before it is accepted"


@async_test
async def test_a_batch_of_a_gateway_whose_clock_is_ahead_is_missed_when_the_store_has_it_long_enough() -> None:
    ahead = NOW + 1_000 * HOUR_NS
    authority = Authority(MemoryStore(clock=FixedClock(), page_size=7))
    await no_by_time(authority, await authority.accept(BatchIdentity(*BOOT, 0, 9), at=ahead))
    assert (await authority.audit()).counts == {}, "it was stored just now"

    authority = Authority(MemoryStore(clock=Earlier(), page_size=7))
    manifest = await authority.accept(BatchIdentity(*BOOT, 0, 9), at=ahead)
    assert (await authority.audit()).counts == {}
    await no_by_time(authority, manifest)
    assert found(await authority.audit()) == {FindingKind.NOT_BY_TIME: [manifest.key]}


@async_test
async def test_a_frame_whose_upload_began_in_the_hour_before_is_in_its_index() -> None:
    authority = Authority()
    manifest = await authority.accept(BatchIdentity(*BOOT, 0, 9))
    await no_blob_by_time(authority, manifest)
    entry = RawBlobByTime.of(manifest.identity, manifest.frame_sha256, manifest.frame_bytes)
    await authority.store.put(entry.key_in(UtcHour(manifest.hour.number - 1)), entry.encode())

    assert (await authority.audit(deep=True)).counts == {}


@async_test
async def test_a_retired_frame_need_not_be_there() -> None:
    authority = Authority()
    first, _ = await authority.accept_many(2)
    await authority.retire(first)

    report = await authority.audit(deep=True)

    assert (report.counts, report.retired) == ({}, 1)


@pytest.mark.parametrize("size", [20, PART_BYTES + 1])
@async_test
async def test_a_frame_that_is_retired_while_it_is_read_is_not_corrupt(size: int) -> None:
    class Retiring(MemoryStore):
        async def get(self, key: str, *, start: int = 0, end: int | None = None) -> Object | None:
            if key == manifest.raw_blob_key and (start or size < 100):
                await authority.retire(manifest)
            return await super().get(key, start=start, end=end)

    authority = Authority(Retiring(clock=FixedClock()))
    manifest = await authority.accept(BatchIdentity(*BOOT, 0, 9), body=b"x" * size)

    report = await authority.audit(deep=True)

    assert (report.is_well, report.retired) == (True, 1), report.findings


@async_test
async def test_a_record_that_another_frame_was_retired_does_not_explain_a_missing_one() -> None:
    for body in (b"{", None):
        authority = Authority()
        [manifest] = await authority.accept_many(1)
        record = RetiredBatch.of(manifest.identity, "ab" * 32, at_unix_ns=1, by="gc")
        await authority.store.put(record.key, body or record.encode())
        await authority.store.delete(manifest.raw_blob_key)

        report = await authority.audit()

        assert found(report)[FindingKind.BLOB_MISSING] == [manifest.raw_blob_key]
        assert report.retired == 0


@async_test
async def test_quarantined_frames_of_both_kinds_need_their_reverse_reference() -> None:
    authority = Authority()
    first, second = [await authority.accept(BatchIdentity(*BOOT, start, 20)) for start in (0, 10)]
    conflict, overlap = await authority.conflict(first), await authority.overlap(second, first)
    assert ((await authority.audit(deep=True)).counts, (await authority.audit()).quarantined) == ({}, 2)

    for manifest in (conflict, overlap):
        await authority.store.delete(QuarantineByBlob.of(manifest).key)
    await authority.store.delete(conflict.submitted_raw_blob_key)
    report = await authority.audit()

    assert found(report) == {
        FindingKind.NOT_QUARANTINE_BY_BLOB: [conflict.key, overlap.key],
        FindingKind.BLOB_MISSING: [conflict.submitted_raw_blob_key],
    }
    await authority.store.put(overlap.key, b"{")
    assert found(await authority.audit())[FindingKind.UNREADABLE] == [overlap.key]


@async_test
async def test_entries_that_point_to_nothing_are_told_and_are_no_problem() -> None:
    authority = Authority()
    changed, kept = await authority.accept_many(2)
    conflict = await authority.conflict(kept)
    other = msgspec.structs.replace(changed, frame_sha256="cd" * 32, raw_blob_key=keys.raw_blob("cd" * 32))
    orphan = RawBlobByTime.of(BatchIdentity(*BOOT, 90, 99), "ef" * 32, 1)
    await authority.store.put(AcceptedByBlob.of(other).key, AcceptedByBlob.of(other).encode())
    await authority.store.put(orphan.key_in(changed.hour), orphan.encode())
    await authority.store.delete(conflict.key)
    await authority.store.put(by_time_key(kept), b"{")

    report = await authority.audit()

    assert sorted(found(report)[FindingKind.DANGLING]) == sorted(
        [AcceptedByBlob.of(other).key, orphan.key_in(changed.hour), QuarantineByBlob.of(conflict).key]
    )
    assert found(report)[FindingKind.UNREADABLE] == [by_time_key(kept)], "of an index too"
    assert report.errors == 1


@async_test
async def test_an_accepted_batch_whose_manifest_is_gone_or_void_is_found_by_its_index_entries() -> None:
    authority = Authority()
    gone, voided, kept = await authority.accept_many(3)
    await authority.store.delete(gone.key)
    await authority.void(voided.identity)
    await no_by_blob(authority, voided)

    report = await authority.audit()

    assert not report.is_well
    assert found(report)[FindingKind.ACCEPTED_GONE] == [
        *sorted([by_time_key(gone), by_time_key(voided)]),
        AcceptedByBlob.of(gone).key,
    ]
    assert report.accepted == 1, kept


@async_test
async def test_gaps_of_a_boot_are_told_apart_from_those_of_void_identities() -> None:
    authority = Authority()
    for start, end in ((0, 9), (20, 29), (25, 39), (50, 59)):
        await authority.accept(BatchIdentity(*BOOT, start, end))
    await authority.void(BatchIdentity(*BOOT, 40, 49))
    await authority.accept(BatchIdentity("agent-b", "boot-1", 100, 109))

    report = await authority.audit()

    assert report.is_well
    assert found(report) == {
        FindingKind.GAP: ["agent 'agent-a', boot 'boot-1', 10-19"],
        FindingKind.VOID_GAP: ["agent 'agent-a', boot 'boot-1', 40-49"],
    }
    assert (report.boots, report.voids, report.overlapping, report.accepted) == (2, 1, 1, 5)


@async_test
async def test_counts_and_ages_are_told_and_a_list_of_findings_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acceptance_audit_report, "MOST_FINDINGS", 3)
    authority = Authority()
    manifests = await authority.accept_many(8)
    await authority.accept(BatchIdentity(*BOOT, 80, 89), at=NOW - HOUR_NS)
    for manifest in manifests:
        await no_by_blob(authority, manifest)

    document = (await authority.audit()).document()

    assert (document["accepted"], document["oldest_age_seconds"], document["newest_age_seconds"]) == (9, 18000, 3600)
    assert document["counts"] == {"not_in_accepted_by_blob": 8}
    assert len(document["findings"]) == 3  # type: ignore[arg-type] # a list
    assert document["ok"] is False


@async_test
async def test_only_some_agents_are_looked_at() -> None:
    authority = Authority()
    for agent in ("agent-a", "agent-b", "agent-c"):
        for manifest in await authority.accept_many(2, agent=agent):
            await no_by_time(authority, manifest)

    report = await authority.audit(agents=("agent-c", "agent-a", "agent-a"))

    assert (report.accepted, report.boots, len(found(report)[FindingKind.NOT_BY_TIME])) == (4, 2, 4)
    assert any("point to nothing" in each for each in report.not_checked)


@async_test
async def test_an_agent_of_which_nothing_was_accepted_is_said_not_to_be_compared() -> None:
    authority = Authority()
    await authority.accept_many(1)

    report = await authority.audit(agents=(BOOT[0], "agent-typo"))

    assert [each for each in report.not_checked if "Is its name right?" in each] == [
        f"accepted/v1/{agent_part('agent-typo')}/: nothing was accepted of this agent. Is its name right?"
    ]


@async_test
async def test_what_has_not_landed_is_told_apart_by_who_decided_so(tmp_path: Path) -> None:
    authority = Authority()
    there, lost, given_up, dropped, discarded, partly = await authority.accept_many(6)
    young = await authority.accept(BatchIdentity(*BOOT, 60, 69), at=NOW)
    await authority.discard(discarded)
    with landed(tmp_path, authority.store, (0, 10), (55, 60)) as (state, check):
        at = state.now()
        for manifest, when in ((given_up, None), (dropped, at)):
            unit = check.unit_of(manifest.identity)
            state.shards.open(TABLE, [unit], token="us")
            letter = DeadLetter(table=TABLE, unit=unit, reason="no date", at=at, dropped_at=when)
            state.history.drop(letter) if when else state.history.follow(letter)

        report = await authority.audit(AuditParts(landed=check))

    assert found(report) == {
        FindingKind.NOT_LANDED: [lost.key, partly.key],
        FindingKind.DEAD_LETTER: [given_up.key],
        FindingKind.DROPPED: [dropped.key],
        FindingKind.DISCARDED: [discarded.key],
    }
    assert report.errors == 2
    assert [each.detail for each in report.findings if each.what == partly.key] == [
        "agent 'agent-a', boot 'boot-1', 50-54"
    ]
    assert there.key not in str(report.findings)
    assert young.key not in str(report.findings)
    assert URL in check.unit_of(lost.identity)


@async_test
async def test_kinds_without_a_table_are_said_not_to_be_compared(tmp_path: Path) -> None:
    authority = Authority()
    await authority.accept(BatchIdentity(*BOOT, 0, 9), kind="logs")
    await authority.accept(BatchIdentity(*BOOT, 10, 19), kind="")
    with landed(tmp_path, authority.store) as (_, check):
        report = await authority.audit(AuditParts(landed=check))

    assert report.is_well
    assert report.not_checked == ["Whether logs have landed: no pipeline lands them."]


@dataclass
class Versions:
    """What S3 says of the versions of objects."""

    pages: Sequence[Sequence[ObjectVersion]] = ()
    error: Exception | None = None

    async def list(self, folder: str) -> AsyncIterator[Sequence[ObjectVersion]]:
        assert folder == keys.ACCEPTED
        for page in self.pages:
            yield page
        if self.error:
            raise self.error


@async_test
async def test_delete_markers_and_older_versions_of_accepted_keys_are_problems() -> None:
    authority = Authority()
    [manifest] = await authority.accept_many(1)
    right = ObjectVersion(manifest.key, "2", is_latest=True, is_delete_marker=False, modified_at=datetime.now(UTC))
    marker = replace(right, version_id="3", is_delete_marker=True)

    clean = await authority.audit(AuditParts(versions=Versions([[right]])))
    report = await authority.audit(AuditParts(versions=Versions([[marker], [replace(right, is_latest=False)]])))
    refused = await authority.audit(AuditParts(versions=Versions(error=VersionsUnread("403"))))

    assert clean.counts == {}
    assert found(report) == {FindingKind.DELETE_MARKER: [manifest.key], FindingKind.OLDER_VERSION: [manifest.key]}
    assert refused.is_well
    assert "403" in refused.not_checked[0]
    with pytest.raises(Unavailable):
        await authority.audit(AuditParts(versions=Versions(error=Unavailable("503"))))


@async_test
async def test_hours_with_many_entries_are_listed_once_and_others_are_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = CountingStore()
    authority = Authority(store)
    await authority.accept_many(acceptance_audit_indexes.LISTED_FROM)
    alone = await authority.accept(BatchIdentity("agent-b", "b", 0, 9), at=EARLIER - 3 * HOUR_NS)
    store.asked.clear()

    assert (await authority.audit()).is_well

    assert store.times("list", f"{keys.ACCEPTED_BY_TIME}/{UtcHour.of(EARLIER).path}") == 1
    assert [key for what, key in store.asked if what == "head" and keys.ACCEPTED_BY_TIME in key] == [by_time_key(alone)]
    monkeypatch.setattr(acceptance_audit_indexes, "LISTED_FROM", 10**9)
    assert (await authority.audit()).is_well


@async_test
async def test_an_entry_that_was_written_after_its_hour_was_listed_is_seen() -> None:
    authority = Authority()
    manifests = await authority.accept_many(40)
    entry = AcceptedByTime.of(manifests[30])
    await authority.store.delete(entry.key)

    class Late(CountingStore):
        """Gets the entry after the listing."""

        async def head(self, key: str):  # type: ignore[no-untyped-def] # as the store
            if key == entry.key:
                await authority.store.put(entry.key, entry.encode())
            return await authority.store.head(key)

        def list(self, folder: str = "", *, start_after: str = ""):  # type: ignore[no-untyped-def] # as the store
            return authority.store.list(folder, start_after=start_after)

        async def get(self, key: str, *, start: int = 0, end: int | None = None) -> Object | None:
            return await authority.store.get(key, start=start, end=end)

    assert (await Authority(Late()).audit()).counts == {}


@async_test
async def test_memory_for_listed_hours_is_bounded() -> None:
    store = CountingStore(page_size=3)
    for hour in range(20):
        for number in range(10):
            await store.put(f"index/{UtcHour(hour).path}/{number}.json", b"")
    hours = ListedHours(store, "index", most_in_an_hour=10, most_kept=35)

    for hour in range(20):
        await hours.prepare([UtcHour(hour)] * 16)
        assert hours.kept <= 35
        assert hours.has(UtcHour(hour), f"index/{UtcHour(hour).path}/9.json")
    assert not hours.has(UtcHour(0), f"index/{UtcHour(0).path}/9.json"), "forgotten: it is asked for"

    large = ListedHours(store, "index", most_in_an_hour=9)
    await large.prepare([UtcHour(1)] * 16)
    assert (large.kept, large.has(UtcHour(1), f"index/{UtcHour(1).path}/9.json")) == (1, False)


@async_test
async def test_a_manifest_that_is_deleted_while_it_is_read_is_found() -> None:
    authority = Authority()
    manifests = await authority.accept_many(3)

    class Deleting(CountingStore):
        """Lists a manifest that is gone when it is asked for."""

        async def head(self, key: str):  # type: ignore[no-untyped-def] # as the store
            return await authority.store.head(key)

        def list(self, folder: str = "", *, start_after: str = ""):  # type: ignore[no-untyped-def] # as the store
            return authority.store.list(folder, start_after=start_after)

        async def get(self, key: str, *, start: int = 0, end: int | None = None) -> Object | None:
            return None if key == manifests[1].key else await authority.store.get(key, start=start, end=end)

    errors = {kind: names for kind, names in found(await Authority(Deleting()).audit()).items() if kind.is_error}

    gone = manifests[1]
    assert errors == {FindingKind.ACCEPTED_GONE: [gone.key, by_time_key(gone), AcceptedByBlob.of(gone).key]}


@async_test
async def test_a_store_that_does_not_answer_is_no_finding() -> None:
    class Down(CountingStore):
        async def head(self, key: str):  # type: ignore[no-untyped-def] # as the store
            raise Unavailable(f"{key}: 503")

    authority = Authority(Down())
    await authority.accept_many(1)

    with pytest.raises(Unavailable):
        await authority.audit()
    assert FixedClock().now_ns() == NOW
