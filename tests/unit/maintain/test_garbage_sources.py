"""All three sources find the same orphans, and referenced blobs cost few requests or none."""

import ast
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

import lakehead.maintain
from lakehead.errors import Misconfigured
from lakehead.maintain.blob_deletion import delete_blob
from lakehead.maintain.blob_references import BlobSource, FoundBlob, FullScan, ListedBlobs, TimeIndex
from lakehead.maintain.blob_requests import CountedStore
from lakehead.maintain.garbage_report import BlobOutcome
from lakehead.storage.port import ListedObject
from lakehead.wire import acceptance_keys as keys
from lakehead.wire.errors import InvalidKeyPart
from lakehead.wire.utc_hours import UtcHour
from tests.support.async_tests import async_test
from tests.unit.maintain.garbage_support import START_NS, Rig, batch

ORPHANS = [batch(1_000 + 100 * number) for number in range(7)]
ACCEPTED = [batch(10_000 + 100 * number) for number in range(20)]
QUARANTINED = [batch(50_000 + 100 * number) for number in range(3)]
YOUNG = batch(90_000)


async def filled(page_size: int = 1000) -> Rig:
    rig = Rig(page_size=page_size)
    await rig.init()
    for each in ORPHANS:
        await rig.orphan(each)
    for each in ACCEPTED:
        await rig.accept(each)
    for each in QUARANTINED:
        await rig.orphan(each)
        await rig.store.create(keys.quarantine_by_blob(each.sha256, each.identity), b"")
    await rig.later(8)
    await rig.orphan(YOUNG)
    return rig


def inventory(rig: Rig, *, needs_age: bool = False) -> ListedBlobs:
    async def pages() -> AsyncIterator[Sequence[ListedObject]]:
        listed = [each async for page in rig.store.list("") for each in page]
        for each in reversed(listed):  # in no order
            yield [each]

    return ListedBlobs(pages, needs_age=needs_age)


def sources(rig: Rig) -> dict[str, BlobSource]:
    return {"scan": FullScan(), "index": TimeIndex(), "inventory": inventory(rig)}


@pytest.mark.parametrize("name", ["scan", "index", "inventory"])
@pytest.mark.parametrize("page_size", [1, 3, 1000])
@async_test
async def test_every_source_finds_the_same_orphans_and_a_dry_run_lists_what_is_then_done(
    name: str, page_size: int
) -> None:
    rig = await filled(page_size)
    source = sources(rig)[name]

    before = dict(rig.store._objects)
    report, foreseen = await rig.collect(source, dry_run=True)
    assert {key for key in rig.store._objects.keys() - before.keys() if not key.startswith("audit/")} == set()
    assert before.keys() <= rig.store._objects.keys()
    _, decided = await rig.collect(source)

    assert foreseen == decided
    gone = {keys.raw_blob(each.sha256) for each in ORPHANS}
    assert {each.key for each in decided if each.outcome.is_deleted} == gone
    assert set(rig.store.deleted) == gone
    assert before.keys() - rig.store._objects.keys() == gone
    assert report.count(BlobOutcome.ACCEPTED) == len(ACCEPTED)
    assert report.count(BlobOutcome.QUARANTINED) == len(QUARANTINED)
    assert report.tallies[BlobOutcome.ORPHAN].bytes == sum(len(each.body) for each in ORPHANS)


@async_test
async def test_an_orphan_that_was_uploaded_in_many_hours_is_decided_about_once() -> None:
    rig = Rig(page_size=1)
    await rig.init()
    for _ in range(3):
        await rig.orphan(ORPHANS[0])
        rig.clock.days += 0.5
    await rig.later(9)

    report, decided = await rig.collect(TimeIndex(), dry_run=True)

    assert (report.seen, [each.outcome for each in decided]) == (3, [BlobOutcome.ORPHAN])
    _, decided = await rig.collect(TimeIndex())
    assert [each.outcome for each in decided] == [BlobOutcome.ORPHAN]


@async_test
async def test_the_index_is_read_from_an_hour_on_up_to_the_horizon() -> None:
    rig = Rig()
    await rig.init()
    for each in ORPHANS[:3]:
        await rig.orphan(each)
        rig.clock.days += 1
    since = UtcHour.of(START_NS + 86_400 * 10**9)

    async def found(before_days: float) -> list[str | None]:
        before_ns = START_NS + int(before_days * 86_400 * 10**9)
        pages = TimeIndex(since=since).blobs(rig.store, before_ns=before_ns)
        return [each.sha256 async for page in pages for each in page]

    assert await found(1.5) == [ORPHANS[1].sha256]
    assert await found(3) == [ORPHANS[1].sha256, ORPHANS[2].sha256]


@async_test
async def test_a_scan_of_referenced_blobs_costs_a_request_for_each_page_and_the_index_few_for_each() -> None:
    rig = Rig()
    await rig.init()
    for each in ACCEPTED:
        await rig.accept(each)
    await rig.later(8)

    for source, most in (
        (FullScan(), 0.5),
        (TimeIndex(), 1.5),
        (TimeIndex(needs_age=True), 3.4),
        (inventory(rig), 1.5),
    ):
        report, _ = await rig.collect(source)
        assert report.seen == len(ACCEPTED)
        assert report.requests_per_blob <= most, source


@async_test
async def test_references_without_a_blob_are_passed_over() -> None:
    rig = Rig(page_size=2)
    for each in ACCEPTED:
        await rig.accept(each)
    for each in ACCEPTED[::2]:
        rig.store._objects.pop(keys.raw_blob(each.sha256))
    await rig.store.create(f"{keys.ACCEPTED_BY_BLOB}/00/00/odd.json", b"")

    found: list[FoundBlob] = [each async for page in FullScan().blobs(rig.store, before_ns=0) for each in page]

    assert {each.sha256 for each in found} == {each.sha256 for each in ACCEPTED[1::2]}
    assert all(each.accepted is not None for each in found)


@async_test
async def test_each_page_of_a_listing_is_counted() -> None:
    rig = Rig(page_size=2)
    for number in range(5):
        await rig.store.create(f"a/{number}", b"")
    store = CountedStore(rig.store)

    async for _ in store.list("a"):
        pass
    assert store.requests == 3
    async for _ in store.list("nothing"):
        pass
    assert store.requests == 4


@async_test
async def test_only_raw_blobs_can_be_deleted() -> None:
    rig = Rig()
    await rig.orphan(ORPHANS[0])
    for wrong in ("", "../accepted/v1/x", keys.raw_blob(ORPHANS[0].sha256), ORPHANS[0].sha256.upper()):
        with pytest.raises(InvalidKeyPart):
            await delete_blob(rig.store, wrong)
    await delete_blob(rig.store, ORPHANS[0].sha256)
    assert rig.store.deleted == [keys.raw_blob(ORPHANS[0].sha256)]


def test_one_function_of_garbage_collection_deletes() -> None:
    """Every call of a method that is named delete, in all modules that it consists of."""
    package = Path(lakehead.maintain.__file__).parent
    run = package.parent / "run"
    modules = [*package.glob("garbage_*.py"), *package.glob("blob_*.py"), *run.glob("gc_*.py")]
    modules.append(package.parent / "accept" / "voiding.py")
    found = [
        (module.name, call.func.value.id if isinstance(call.func.value, ast.Name) else ast.dump(call.func.value))
        for module in modules
        for call in ast.walk(ast.parse(module.read_text()))
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "delete"
    ]

    assert min(found) == ("blob_deletion.py", "store")
    assert [name for name, _ in found if name != "blob_requests.py"] == ["blob_deletion.py"], (
        "blob_requests passes calls on; nothing else deletes"
    )


class Shuffled(CountedStore):
    """A store that lists keys in another order than that of their bytes, as directory buckets of S3 do."""

    folder = ""
    """Which folder is listed so."""

    async def list(self, folder: str = "", *, start_after: str = "") -> AsyncIterator[Sequence[ListedObject]]:
        pages = [page async for page in super().list(folder, start_after=start_after)]
        for page in reversed(pages) if folder == self.folder else pages:
            yield page[::-1] if folder == self.folder else page


@pytest.mark.parametrize("folder", [keys.RAW_BLOBS, keys.ACCEPTED_BY_BLOB, keys.QUARANTINE_BY_BLOB])
@async_test
async def test_a_scan_ends_if_the_store_does_not_list_in_the_order_of_hashes(folder: str) -> None:
    rig = await filled(page_size=3)
    store = Shuffled(rig.store)
    store.folder = folder

    with pytest.raises(Misconfigured, match="--source index"):
        await _all(FullScan(), store)
    assert len(await _all(TimeIndex(), store)) == len(ORPHANS + ACCEPTED + QUARANTINED)


class EmptyPages(CountedStore):
    """A store of whose listings the first page may be empty, as the protocol allows."""

    async def list(self, folder: str = "", *, start_after: str = "") -> AsyncIterator[Sequence[ListedObject]]:
        yield []
        async for page in super().list(folder, start_after=start_after):
            yield page


@async_test
async def test_an_empty_page_does_not_end_a_listing_of_references() -> None:
    rig = await filled()

    for source in sources(rig).values():
        found = await _all(source, EmptyPages(rig.store))
        assert sum(each.accepted is not None for each in found) == len(ACCEPTED)
        assert sum(each.is_quarantined for each in found) == len(QUARANTINED)


async def _all(source: BlobSource, store: CountedStore) -> list[FoundBlob]:
    before_ns = START_NS + 86_400 * 10**9
    return [each async for page in source.blobs(store, before_ns=before_ns) for each in page]
