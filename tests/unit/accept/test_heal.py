"""A frame that is missing or corrupt is right again when the same frame is uploaded again, and untouched otherwise."""

from pathlib import Path

import pytest

from lakehead.accept.acceptance import Duplicate, Submission
from lakehead.wire import acceptance_keys as keys
from lakehead.wire.maintenance_records import BatchRepair, BlobProblem
from tests.support.async_tests import async_test
from tests.unit.accept.spool_support import Rig, batch
from tests.unit.accept.support import DOWN, ScriptedStore, acceptor, manifest_of, submitted


async def opened_repair(store: ScriptedStore, submission: Submission, problem: BlobProblem = "corrupt") -> None:
    repair = BatchRepair.of(manifest_of(submission), problem, found_at_unix_ns=1, found_by="reconciler")
    await store.put(repair.key, repair.encode())


async def stored(store: ScriptedStore, submission: Submission) -> bytes | None:
    found = await store.get(keys.raw_blob(submission.sha256))
    return None if found is None else found.body


@async_test
async def test_a_corrupt_frame_is_replaced_by_the_same_frame_if_a_repair_is_open() -> None:
    store, submission = ScriptedStore(), submitted()
    await acceptor(store).accept(submission)
    await store.put(keys.raw_blob(submission.sha256), b"damaged")

    before = await acceptor(store).accept(submission)
    untouched = await stored(store, submission)
    await opened_repair(store, submission)
    after = await acceptor(store).accept(submission)

    assert isinstance(before, Duplicate)
    assert isinstance(after, Duplicate)
    assert (untouched, await stored(store, submission)) == (b"damaged", submission.body)


@async_test
async def test_a_missing_frame_is_created_again() -> None:
    store, submission = ScriptedStore(), submitted()
    await acceptor(store).accept(submission)
    await store.delete(keys.raw_blob(submission.sha256))

    assert isinstance(await acceptor(store).accept(submission), Duplicate)
    assert await stored(store, submission) == submission.body


@async_test
async def test_a_frame_that_is_right_is_not_written_again() -> None:
    store, submission = ScriptedStore(), submitted()
    await acceptor(store).accept(submission)
    await opened_repair(store, submission)

    await acceptor(store).accept(submission)

    assert store.replaced == []


@async_test
async def test_a_frame_in_conflict_replaces_nothing() -> None:
    store, submission = ScriptedStore(), submitted()
    await acceptor(store).accept(submission)
    await store.put(keys.raw_blob(submission.sha256), b"damaged")
    await opened_repair(store, submission)

    await acceptor(store).accept(submitted(b"another"))

    assert await stored(store, submission) == b"damaged"


@async_test
async def test_a_duplicate_is_one_although_its_frame_could_not_be_stored_again() -> None:
    store, submission = ScriptedStore(), submitted()
    await acceptor(store).accept(submission)
    await store.put(keys.raw_blob(submission.sha256), b"damaged")
    await opened_repair(store, submission)
    store.next("raw-blobs/v1", "nothing", DOWN)

    assert isinstance(await acceptor(store).accept(submission), Duplicate)
    assert await stored(store, submission) == b"damaged"


@async_test
async def test_a_damaged_record_of_a_repair_heals_nothing_and_holds_up_nobody() -> None:
    store, submission = ScriptedStore(), submitted()
    await acceptor(store).accept(submission)
    await store.put(keys.repair(submission.identity), b"{")

    assert isinstance(await acceptor(store).accept(submission), Duplicate)


@pytest.mark.parametrize("problem", ["missing", "corrupt"])
@async_test
async def test_a_gateway_with_a_spool_heals_too(tmp_path: Path, problem: BlobProblem) -> None:
    rig, submission = Rig(tmp_path / "spool"), batch()
    with rig.disk() as disk:
        spool = await rig.open(disk)
        await spool.accept(submission)
        assert await rig.uploads(spool).land_all()
        key = keys.raw_blob(submission.sha256)
        await rig.store.delete(key)
        if problem == "corrupt":
            await rig.store.put(key, b"damaged")
        await opened_repair(rig.store, submission, problem)

        assert isinstance(await spool.accept(submission), Duplicate)
        assert await stored(rig.store, submission) == submission.body
        rig.store.go_down()
        assert isinstance(await spool.accept(submission), Duplicate)
