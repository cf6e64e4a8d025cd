"""The steady scan finds what is accepted by the hours of the time indexes, and looks at nothing twice for nothing."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence

import pytest

from lakehead.errors import Misconfigured, Unavailable
from lakehead.maintain.reconcile_batch import reconcile_all
from lakehead.maintain.reconcile_hours import SettledBatches
from lakehead.maintain.reconcile_landings import LandingState
from lakehead.maintain.reconcile_report import ProblemKind, ReconcileReport
from lakehead.storage.port import ListedObject, Object
from lakehead.wire import acceptance_keys as keys
from lakehead.wire.acceptance_records import IdentityManifest
from lakehead.wire.batch_identity import BatchIdentity
from lakehead.wire.index_records import RawBlobByTime
from tests.support.async_tests import async_test
from tests.unit.maintain.reconcile_support import HOUR, NOON, Authority, MovedClock

LOST = ("accepted-by-time", "accepted-by-blob")


@async_test
async def test_a_batch_whose_gateway_died_right_after_accepting_it_is_found_by_the_hour_of_its_frame() -> None:
    authority = Authority()
    await authority.accept(1, 2)
    before = await authority.store.contents(*LOST)
    await authority.store.delete_folder(*LOST)

    report = await authority.reconciler().pass_once()

    assert await authority.store.contents(*LOST) == before
    assert (report.accepted, report.indexed) == (2, 4)


@async_test
async def test_a_batch_is_found_by_its_entry_alone_if_that_of_its_frame_is_lost() -> None:
    authority = Authority()
    await authority.accept(1)
    before = await authority.store.contents("raw-blobs-by-time")
    await authority.store.delete_folder("raw-blobs-by-time")

    await authority.reconciler().pass_once()

    assert await authority.store.contents("raw-blobs-by-time") == before


@async_test
async def test_a_second_pass_writes_nothing_and_costs_listings_only() -> None:
    authority = Authority()
    await authority.accept(*range(20), indexed=False)
    reconciler = authority.reconciler()
    await reconciler.pass_once()
    authority.store.forget()

    report = await reconciler.pass_once()

    assert authority.store.written == []
    assert report.accepted == 0
    assert dict(authority.store.requests) == {("get", "reconciler"): 1}


@async_test
async def test_another_reconciler_has_nothing_to_write() -> None:
    authority = Authority()
    await authority.accept(*range(20), indexed=False)
    await authority.reconciler().pass_once()
    authority.store.forget()

    report = await authority.reconciler(name="another").pass_once()

    assert (report.accepted, report.actions, authority.store.written) == (20, (), [])


@async_test
async def test_a_restart_goes_on_at_the_checkpoint_and_lists_only_the_hours_since_and_the_look_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    authority = Authority()
    await authority.reconciler().pass_once()
    listed = []
    listing = authority.store.list

    def note(folder: str = "", *, start_after: str = "") -> AsyncIterator[Sequence[ListedObject]]:
        listed.append(folder)
        return listing(folder, start_after=start_after)

    authority.clock.seconds += 5 * HOUR
    monkeypatch.setattr(authority.store, "list", note)
    await authority.reconciler().pass_once()
    hours = [folder for folder in listed if folder.startswith("accepted-by-time")]

    # From 11:59, where the checkpoint is, less two hours, up to 17:00.
    assert [hour[-2:] for hour in hours] == ["09", "10", "11", "12", "13", "14", "15", "16", "17"]


@async_test
async def test_an_entry_that_was_written_late_into_an_hour_before_the_checkpoint_is_found() -> None:
    authority = Authority()
    await authority.accept(1)
    late = await authority.store.contents("raw-blobs-by-time")
    await authority.store.delete_folder("raw-blobs-by-time", *LOST)
    authority.clock.seconds += HOUR + 120
    reconciler = authority.reconciler()
    await reconciler.pass_once()
    checkpoint = await reconciler.records.checkpoint()
    assert checkpoint is not None
    assert checkpoint.reconciled_through_unix_ns > NOON + HOUR * 1e9
    for key, body in late.items():
        await authority.store.create(key, body)

    report = await reconciler.pass_once()

    assert report.accepted == 1
    assert await authority.store.keys("accepted-by-time") != []


@async_test
async def test_the_checkpoint_stays_at_an_hour_in_which_something_could_not_be_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    authority = Authority()
    [manifest] = await authority.accept(1)
    authority.clock.seconds += HOUR + 600
    reconciler = authority.reconciler()
    get = authority.store.get
    is_down = True

    async def failing(key: str, *, start: int = 0, end: int | None = None) -> Object | None:
        if is_down and key == manifest.key:
            raise Unavailable(f"{key}: 503")
        return await get(key, start=start, end=end)

    monkeypatch.setattr(authority.store, "get", failing)
    report = await reconciler.pass_once()
    held = await reconciler.records.checkpoint()
    is_down = False
    await reconciler.pass_once()
    moved = await reconciler.records.checkpoint()

    assert [each.kind for each in report.problems] == [ProblemKind.FAILED]
    assert held is not None
    assert moved is not None
    assert held.reconciled_through_unix_ns == NOON
    assert NOON < moved.reconciled_through_unix_ns <= authority.clock.now_ns() - 60 * 10**9


@async_test
async def test_an_upload_under_way_is_looked_at_until_it_is_accepted() -> None:
    authority = Authority()
    [manifest] = await authority.accept(1, indexed=False)
    accepted = await authority.store.get(manifest.key)
    assert accepted is not None
    await authority.store.delete(manifest.key)
    reconciler = authority.reconciler()

    before = await reconciler.pass_once()
    await authority.store.create(manifest.key, accepted.body)
    after = await reconciler.pass_once()

    assert (before.absent, before.accepted) == (1, 0)
    assert (after.absent, after.accepted) == (0, 1)


@async_test
async def test_a_healed_frame_is_noticed_in_the_next_pass_however_old_it_is() -> None:
    authority = Authority()
    [manifest] = await authority.accept(1)
    frame = await authority.store.get(manifest.raw_blob_key)
    assert frame is not None
    await authority.store.delete(manifest.raw_blob_key)
    reconciler = authority.reconciler()
    await reconciler.pass_once()
    assert reconciler.repairs.count("missing") == 1
    authority.clock.seconds += 100 * HOUR
    await authority.store.create(manifest.raw_blob_key, frame.body)

    for _ in range(30):
        await reconciler.pass_once()
        if not reconciler.repairs.count("missing"):
            break

    assert reconciler.repairs.count("missing") == 0


def test_what_is_remembered_is_bounded() -> None:
    settled = SettledBatches(most=2)
    names = [f"{number:02x}" * 32 for number in range(3)]
    settled.add(*names)

    assert [name in settled for name in names] == [False, True, True]


@async_test
async def test_a_reconciler_whose_clock_is_ahead_hides_no_hours_from_the_others() -> None:
    authority = Authority()
    fast = MovedClock(24 * HOUR)
    await authority.reconciler(clock=fast).pass_once()
    checkpoint = await authority.reconciler().records.checkpoint()
    assert checkpoint is not None
    assert checkpoint.reconciled_through_unix_ns <= authority.clock.now_ns()


@async_test
async def test_a_checkpoint_of_a_later_time_does_not_keep_the_newest_hours_from_being_looked_at() -> None:
    authority = Authority()
    reconciler = authority.reconciler()
    await reconciler.records.move_checkpoint(NOON + int(24 * HOUR * 1e9))
    await authority.accept(1, indexed=False)

    report = await reconciler.pass_once()

    assert report.accepted == 1
    assert reconciler.through_unix_ns <= authority.clock.now_ns()


@async_test
async def test_a_pass_over_many_hours_ends_when_it_is_stopped_and_the_next_one_goes_on_there() -> None:
    authority = Authority()
    reconciler, stop = authority.reconciler(), asyncio.Event()
    await reconciler.pass_once()
    for _ in range(20):
        authority.clock.seconds += HOUR
        await authority.accept(int(authority.clock.seconds))
    reconciler.steady.stop = stop
    looked = 0
    get = authority.store.get

    async def stopped(key: str, *, start: int = 0, end: int | None = None) -> Object | None:
        nonlocal looked
        looked += key.startswith(keys.RAW_BLOBS + "/")
        if looked == 10:
            stop.set()
        return await get(key, start=start, end=end)

    authority.store.get = stopped  # type: ignore[method-assign]
    report = await reconciler.pass_once()
    again = await authority.reconciler().pass_once()

    assert report.accepted == 10
    assert again.accepted == 10 + 3  # those of the look-back again


@async_test
async def test_an_hour_that_cannot_be_listed_for_good_keeps_no_newer_one_from_being_looked_at() -> None:
    authority = Authority()
    await authority.accept(1, indexed=False)
    listed = authority.store.list

    async def failing(folder: str = "", *, start_after: str = "") -> AsyncIterator[Sequence[ListedObject]]:
        if folder == f"{keys.RAW_BLOBS_BY_TIME}/date=2025-10-09/hour=11":
            raise Unavailable(f"{folder}: 500")
        async for page in listed(folder, start_after=start_after):
            yield page

    authority.store.list = failing  # type: ignore[method-assign]
    reconciler = authority.reconciler()
    report = await reconciler.pass_once()

    assert report.accepted == 1
    assert report.wrong[ProblemKind.FAILED] == 1
    assert reconciler.through_unix_ns == NOON - int(HOUR * 1e9)


@async_test
async def test_names_of_frames_that_conflict_with_a_batch_on_its_way_are_forgotten_when_it_is_settled() -> None:
    authority = Authority()
    [manifest] = await authority.accept(1)
    landings = Settles(LandingState.QUEUED)
    reconciler = authority.reconciler(landings=landings)  # type: ignore[arg-type]
    await reconciler.pass_once()
    for number in range(5):
        entry = RawBlobByTime.of(manifest.identity, f"{number:064x}", 1)
        await authority.store.create(entry.key_in(manifest.hour), entry.encode())
    await reconciler.pass_once()

    landings.answer = LandingState.SETTLED
    await reconciler.pass_once()

    assert reconciler.steady._names_under_way == {}
    authority.store.forget()
    await reconciler.pass_once()
    assert dict(authority.store.requests) == {("get", "reconciler"): 1}


class Settles:
    """Says the same of each batch."""

    def __init__(self, answer: LandingState) -> None:
        self.answer = answer

    async def settle(
        self, manifests: Iterable[IdentityManifest], _: ReconcileReport
    ) -> dict[BatchIdentity, LandingState]:
        return {each.identity: self.answer for each in manifests}


@async_test
async def test_a_frame_that_cannot_be_read_is_told_each_pass_and_keeps_its_hour_open_for_an_hour_only() -> None:
    authority = Authority()
    [archived] = await authority.accept(1)
    authority.clock.seconds += HOUR + 600
    reconciler = authority.reconciler()
    get = authority.store.get
    is_archived = True

    async def failing(key: str, *, start: int = 0, end: int | None = None) -> Object | None:
        if is_archived and key == archived.raw_blob_key:
            raise Misconfigured(f"{key}: InvalidObjectState")
        return await get(key, start=start, end=end)

    authority.store.get = failing  # type: ignore[method-assign]
    reports: list[ReconcileReport] = []
    through: list[int] = []
    for _ in range(6):
        await authority.accept(len(reports) + 2)
        reports.append(await reconciler.pass_once())
        through.append(reconciler.through_unix_ns)
        authority.clock.seconds += HOUR / 2
    is_archived = False
    healed = await reconciler.pass_once()
    quiet = await reconciler.pass_once()

    assert through[0] == NOON, "its hour is open"
    assert through[-1] > NOON + 2 * HOUR * 10**9
    assert [[(each.kind, each.key) for each in report.problems] for report in reports] == [
        [(ProblemKind.OUT_OF_REACH, archived.key)]
    ] * 6
    assert (healed.wrong, quiet.accepted) == ({}, 0)


@async_test
async def test_a_frame_that_comes_back_while_it_is_tried_again_is_no_failure_of_the_pass() -> None:
    authority = Authority()
    [archived, other] = await authority.accept(1, 2)
    reconciler = authority.reconciler()
    get = authority.store.get
    is_archived, is_noticed = True, False

    async def failing(key: str, *, start: int = 0, end: int | None = None) -> Object | None:
        nonlocal is_noticed
        if is_archived and key in (archived.raw_blob_key, other.raw_blob_key):
            raise Misconfigured(f"{key}: InvalidObjectState")
        if not is_archived and not is_noticed and key == other.raw_blob_key:
            is_noticed = True  # by an event, while the pass is under way
            looked = await reconcile_all(reconciler.steady.batches, [archived.identity], ReconcileReport(), at_once=1)
            await reconciler.steady.note(looked, archived.hour, ReconcileReport())
        return await get(key, start=start, end=end)

    authority.store.get = failing  # type: ignore[method-assign]
    await reconciler.pass_once()
    is_archived = False
    report = await reconciler.pass_once()

    assert is_noticed
    assert (report.accepted, report.wrong) == (2, {})
    assert reconciler.steady._out_of_reach == {}
