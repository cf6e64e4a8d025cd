"""The cold scan finds everything without an index, goes on where it was, and says when an audit is complete."""

import asyncio
from itertools import pairwise

import pytest

from lakehead.errors import LakeheadError, Misconfigured, Unavailable
from lakehead.maintain import reconcile_cold
from lakehead.maintain.reconcile_report import ProblemKind
from lakehead.storage.memory_store import MemoryStore
from lakehead.storage.port import Object
from lakehead.wire import acceptance_keys as keys
from tests.support.async_tests import async_test
from tests.unit.maintain.reconcile_support import HOUR, NOON, Authority, MovedClock, identity

DERIVED = ("accepted-by-time", "accepted-by-blob", "raw-blobs-by-time", "quarantine-by-blob")


async def accepted_over_days(authority: Authority) -> None:
    for number in range(30):
        await authority.accept(number, agent=f"agent-{number % 3}")
        authority.clock.seconds += 5 * HOUR
    sha = "cd" * 32
    await authority.store.create(keys.identity_conflict(identity(1), sha), b"{}")


@async_test
async def test_all_derived_state_comes_back_with_the_same_bytes() -> None:
    authority = Authority()
    await accepted_over_days(authority)
    await authority.reconciler().cold_scan()
    before = await authority.store.contents(*DERIVED)
    await authority.store.delete_folder(*DERIVED)

    report = await authority.reconciler().cold_scan()
    assert await authority.store.contents(*DERIVED) == before
    assert (report.accepted, report.quarantined, report.indexed) == (30, 1, len(before))

    authority.store.forget()
    again = await authority.reconciler().cold_scan()
    assert [key for key in authority.store.written if not key.startswith("reconciler/")] == []
    assert (again.accepted, again.actions) == (30, ())


@async_test
async def test_a_complete_scan_is_an_audit_of_the_store_s_time() -> None:
    authority = Authority()
    await accepted_over_days(authority)
    began = authority.clock.now_ns()
    reconciler = authority.reconciler()

    await reconciler.cold_scan()

    audit = await reconciler.records.completed_audit()
    assert audit is not None
    assert audit.begun_at_unix_ns >= began
    assert audit.ended_at_unix_ns >= audit.begun_at_unix_ns
    assert (audit.accepted, audit.voids, audit.quarantined, audit.repaired, audit.problems) == (30, 0, 1, 1, 0)
    checkpoint = await reconciler.records.checkpoint()
    assert checkpoint is not None
    assert checkpoint.cold_scan is None


@async_test
async def test_a_scan_with_an_unreadable_record_is_no_audit() -> None:
    authority = Authority()
    await authority.accept(1, 2)
    await authority.store.create(keys.accepted(identity(3)), b"{")
    reconciler = authority.reconciler()

    report = await reconciler.cold_scan()

    assert (report.accepted, report.wrong[ProblemKind.UNREADABLE]) == (2, 1)
    assert await reconciler.records.completed_audit() is None
    assert not await reconciler.is_cold_scan_due()  # it would find the same


@async_test
async def test_a_scan_with_a_missing_frame_is_an_audit_and_counts_it() -> None:
    authority = Authority()
    [manifest] = await authority.accept(1)
    await authority.store.delete(manifest.raw_blob_key)
    reconciler = authority.reconciler()

    await reconciler.cold_scan()

    audit = await reconciler.records.completed_audit()
    assert audit is not None
    assert audit.problems == 1


@async_test
async def test_a_scan_of_some_agents_looks_at_no_others_and_is_no_audit() -> None:
    authority = Authority()
    await accepted_over_days(authority)
    reconciler = authority.reconciler()

    report = await reconciler.cold_scan(["agent-0", "agent-2"])

    assert report.accepted == 20
    assert await reconciler.records.completed_audit() is None
    assert await reconciler.records.checkpoint() is None


@async_test
async def test_an_interrupted_scan_goes_on_after_the_last_page_that_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconcile_cold, "PAGE", 7)
    monkeypatch.setattr(reconcile_cold, "SAVE_SECONDS", 0.0)
    authority = Authority()
    await accepted_over_days(authority)
    await authority.store.delete_folder(*DERIVED)
    first = authority.reconciler()
    stop = asyncio.Event()
    first.cold.stop = stop
    get = authority.store.get

    async def counted(key: str, *, start: int = 0, end: int | None = None) -> Object | None:
        if key.startswith("accepted/") and authority.store.requests["get", "accepted"] >= 13:
            stop.set()
        return await get(key, start=start, end=end)

    monkeypatch.setattr(authority.store, "get", counted)
    began = await first.cold_scan()
    scan = await first.records.checkpoint()
    monkeypatch.undo()
    second = authority.reconciler(name="another")
    due = await second.is_cold_scan_due()
    rest = await second.cold_scan()

    assert scan is not None
    assert scan.cold_scan is not None
    assert (began.accepted, scan.cold_scan.accepted, rest.accepted) == (14, 14, 16)
    assert due
    audit = await second.records.completed_audit()
    assert audit is not None
    assert (audit.accepted, audit.quarantined, audit.begun_at_unix_ns) == (30, 1, scan.cold_scan.begun_at_unix_ns)
    assert len(await authority.store.keys("accepted-by-blob")) == 30


@async_test
async def test_a_scan_during_which_the_store_goes_away_is_taken_up_and_loses_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reconcile_cold, "PAGE", 5)
    monkeypatch.setattr(reconcile_cold, "SAVE_SECONDS", 0.0)
    authority = Authority()
    await accepted_over_days(authority)
    await authority.store.delete_folder(*DERIVED)
    reconciler = authority.reconciler()

    async def away(key: str, *, start: int = 0, end: int | None = None) -> Object | None:
        if key.startswith("accepted/") and authority.store.requests["get", "accepted"] >= 12:
            raise Unavailable("503")
        authority.store.requests["get", key.partition("/")[0]] += 1
        return await MemoryStore.get(authority.store, key, start=start, end=end)

    with monkeypatch.context() as patched:
        patched.setattr(authority.store, "get", away)
        with pytest.raises(Unavailable):
            await reconciler.cold_scan()
    assert await reconciler.records.completed_audit() is None
    await reconciler.cold_scan()
    # Two batches of the page at which it went away could not be read. So that scan is no audit, and the next one is.
    await authority.reconciler().cold_scan()

    assert len(await authority.store.keys("accepted-by-blob")) == 30
    assert await reconciler.records.completed_audit() is not None


@async_test
async def test_a_scan_is_due_at_first_and_then_once_a_day() -> None:
    authority = Authority()
    reconciler = authority.reconciler()
    due = [await reconciler.is_cold_scan_due()]
    await reconciler.cold_scan()
    for hours in (0.0, 23.0, 2.0):
        authority.clock.seconds += hours * HOUR
        due.append(await reconciler.is_cold_scan_due())
        due.append(await authority.reconciler().is_cold_scan_due())

    assert due == [True, False, False, False, False, True, True]


@pytest.mark.parametrize("ahead_hours", [-24 * 400, 24 * 400])
@async_test
async def test_whether_a_scan_is_due_is_told_by_the_clock_of_the_store_alone(ahead_hours: float) -> None:
    authority = Authority()
    here = MovedClock()
    authority.clock.seconds += ahead_hours * HOUR
    await authority.reconciler().cold_scan()

    due = []
    for hours in (23.0, 2.0):
        authority.clock.seconds += hours * HOUR
        here.seconds += hours * HOUR
        restarted = authority.reconciler()
        restarted.clock = here
        due.append(await restarted.is_cold_scan_due())

    assert due == [False, True]


@async_test
async def test_a_manifest_costs_two_reads_and_one_head_in_a_cold_scan() -> None:
    authority = Authority()
    await authority.accept(*range(500))
    authority.store.forget()

    await authority.reconciler().cold_scan()

    found = authority.store.requests
    assert (found["get", "accepted"], found["get", "raw-blobs"], found["head", "accepted-by-blob"]) == (500, 500, 500)
    assert found["head", "accepted-by-time"] + found["head", "raw-blobs-by-time"] <= 16
    assert authority.clock.now_ns() >= NOON


@pytest.mark.parametrize("refusal", [Unavailable, Misconfigured])
@async_test
async def test_a_frame_that_is_out_of_reach_for_good_is_told_and_keeps_the_scan_from_nothing_else(
    refusal: type[LakeheadError], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconcile_cold, "PAGE", 1)
    authority = Authority()
    archived, *others = await authority.accept(1, 2, 3, indexed=False)
    get = authority.store.get

    async def failing(key: str, *, start: int = 0, end: int | None = None) -> Object | None:
        if key == archived.raw_blob_key:
            raise refusal(f"{key} is archived")
        return await get(key, start=start, end=end)

    authority.store.get = failing  # type: ignore[method-assign]
    reconciler = authority.reconciler()
    report = await reconciler.cold_scan()

    assert report.accepted == len(others)
    assert [(each.kind, each.key) for each in report.problems] == [(ProblemKind.OUT_OF_REACH, archived.key)]
    assert len(await authority.store.keys("accepted-by-blob")) == 3, "its reference is there"
    assert reconciler.audit is not None, "so garbage collection goes on"


@async_test
async def test_a_scan_that_was_not_complete_is_repeated_soon_and_less_often_if_it_stays_so() -> None:
    authority = Authority()
    [manifest] = await authority.accept(1)
    await authority.store.put(manifest.key, b"{damaged")
    reconciler = authority.reconciler()
    begun: list[float] = []
    while authority.clock.seconds < 30 * HOUR:
        if await reconciler.is_cold_scan_due():
            begun.append(authority.clock.seconds)
            await reconciler.cold_scan()
        authority.clock.seconds += 60

    pauses = [later - earlier for earlier, later in pairwise(begun)]
    assert pauses[:4] == [60, 120, 240, 480]
    assert len(pauses) < 15
    assert reconciler.audit is None
