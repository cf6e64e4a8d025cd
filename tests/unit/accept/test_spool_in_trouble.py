"""Moments at which a spool could take a whole batch for a damaged one, forget one, or stay full for ever."""

import asyncio
import errno
import os
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path

import pytest

from lakehead.accept import known_boots, spool_files
from lakehead.accept.acceptance import Accepted, Duplicate, Submission, Void
from lakehead.accept.spooled_batch import SpoolUnusable
from lakehead.errors import Unavailable
from lakehead.storage import local_files, local_store
from lakehead.storage.local_store import LocalStore
from lakehead.storage.port import ListedObject, Object
from lakehead.wire import acceptance_keys as keys
from lakehead.wire.batch_identity import BatchIdentity
from lakehead.wire.spans import merged
from tests.support.async_tests import async_test
from tests.unit.accept.spool_support import OutageStore, Rig, batch
from tests.unit.accept.support import void_of


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path / "spool")


@async_test
async def test_a_gateway_that_stops_while_a_landed_file_is_removed_does_not_take_it_for_damaged(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    removing, loop, original = asyncio.Event(), asyncio.get_running_loop(), local_files.fsync_folder

    def slowly(folder: int, key: str) -> None:
        if key.startswith("batches/"):
            loop.call_soon_threadsafe(removing.set)
        original(folder, key)

    with rig.disk() as disk:
        spool = await rig.open(disk)
        await spool.accept(batch())
        uploads = rig.uploads(spool)
        monkeypatch.setattr(local_store, "fsync_folder", slowly)
        uploads.run_in_background()
        await asyncio.wait_for(removing.wait(), 10)
        await uploads.close(within=10)

        assert (spool.count, spool.aside) == (0, [])
        assert not list(rig.folder.glob("damaged/**/*.lmbatch"))


@async_test
async def test_a_batch_that_is_read_while_it_leaves_the_spool_is_not_taken_for_damaged(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    with rig.disk() as disk:
        spool = await rig.open(disk)
        await spool.accept(batch())
        delete, get, looked = LocalStore.delete, LocalStore.get, asyncio.Event()
        reads: list[asyncio.Task[Submission | None]] = []

        async def noted_get(self: LocalStore, key: str) -> Object | None:
            found = await get(self, key)
            looked.set()
            return found

        async def delete_slowly(self: LocalStore, key: str) -> None:
            await delete(self, key)
            looked.clear()
            reads.append(asyncio.ensure_future(spool.read(batch().identity)))
            await looked.wait()
            await asyncio.sleep(0)

        monkeypatch.setattr(LocalStore, "get", noted_get)
        monkeypatch.setattr(LocalStore, "delete", delete_slowly)
        assert await rig.uploads(spool).land_all()

        assert await asyncio.gather(*reads) == [None]
        assert spool.aside == []
        assert not list(rig.folder.glob("damaged/**/*.lmbatch"))


@async_test
async def test_a_batch_whose_file_is_there_is_not_called_not_accepted_because_it_cannot_be_looked_at(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else garbage collection could make it void, and the next start would find it in the spool."""
    with rig.disk() as disk:
        spool = await rig.open(disk)
        with monkeypatch.context() as patched:

            async def no_more_files(*_: object) -> None:
                raise Unavailable(os.strerror(errno.EMFILE))

            patched.setattr(LocalStore, "head", no_more_files)
            with pytest.raises(Unavailable):
                await spool.accept(batch())

        with pytest.raises(SpoolUnusable):
            await spool.void(batch().identity)
        with pytest.raises(SpoolUnusable):
            await spool.accept(batch(20))
    with rig.disk() as disk:
        assert isinstance(await (await rig.open(disk)).accept(batch()), Duplicate)


@async_test
async def test_a_disk_without_room_for_what_has_landed_still_gets_empty(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(*_: object) -> None:
        raise Unavailable(os.strerror(errno.ENOSPC))

    with rig.disk() as disk:
        spool = await rig.open(disk)
        await spool.accept(batch())
        with monkeypatch.context() as patched:
            patched.setattr(LocalStore, "put", full)
            assert await rig.uploads(spool).land_all()
        assert not list(rig.folder.glob("batches/**/*.lmbatch"))
        assert isinstance(await spool.accept(batch()), Duplicate), "the store is asked what the disk could not hold"
    with rig.disk() as disk:
        assert isinstance(await (await rig.open(disk)).accept(batch()), Duplicate)


@async_test
async def test_an_identity_that_was_void_when_its_batch_was_to_land_is_not_accepted_again(rig: Rig) -> None:
    with rig.disk() as disk:
        spool = await rig.open(disk)
        await spool.accept(batch())
        void = void_of(batch())
        await rig.store.create(void.key, void.encode())
        await rig.uploads(spool).land_all()

        assert isinstance(await spool.accept(batch()), Void)
    with rig.disk() as disk:
        assert isinstance(await (await rig.open(disk)).accept(batch()), Void)


@pytest.mark.parametrize("seconds", [-1_000_000, 2**34 + 1], ids=["before 1970", "after 2262"])
@async_test
async def test_a_file_with_an_impossible_time_lands(rig: Rig, seconds: int) -> None:
    with rig.disk() as disk:
        await (await rig.open(disk)).accept(batch())
    os.utime(rig.file(batch()), (seconds, seconds))
    if rig.file(batch()).stat().st_mtime != seconds:
        return  # this file system cannot have such times
    with rig.disk() as disk:
        spool = await rig.open(disk)
        assert isinstance(await spool.accept(batch()), Duplicate)
        assert await rig.uploads(spool).land_all()
        assert await rig.store.head(keys.accepted(batch().identity)) is not None


@async_test
async def test_a_batch_that_fails_in_a_way_that_nobody_expected_holds_up_no_others(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    with rig.disk() as disk:
        spool = await rig.open(disk)
        for first in (0, 20, 40):
            await spool.accept(batch(first))
        uploads, land = rig.uploads(spool), type(rig.uploads(spool))._land

        async def fails_for_one(_: object, identity: BatchIdentity) -> object:
            if identity == batch(0).identity:
                raise ValueError("never seen before")
            return await land(uploads, identity)

        monkeypatch.setattr(type(uploads), "_land", fails_for_one)

        assert not await uploads.land_all()

        assert spool.waiting() == (batch(0).identity,)
        with pytest.raises(Unavailable, match="never seen before"):
            uploads.check()


@async_test
async def test_an_agent_is_not_shut_out_because_the_store_needs_longer_than_a_request_for_all_of_a_boot(
    rig: Rig,
) -> None:
    """A boot may have millions of batches, and to list them takes as long as it takes."""
    with rig.disk() as disk:
        spool = await rig.open(disk)
        asked, answer = 0, asyncio.Event()
        listed = rig.store.list

        async def slowly(folder: str = "", *, start_after: str = "") -> AsyncIterator[Sequence[ListedObject]]:
            nonlocal asked
            asked += folder.startswith("voiding/")
            await answer.wait()
            async for page in listed(folder, start_after=start_after):
                yield page

        rig.store.list = slowly  # type: ignore[method-assign]
        for _ in range(3):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await spool.accept(batch())
        answer.set()

        assert isinstance(await spool.accept(batch()), Accepted)
        assert asked == 1


@async_test
async def test_the_name_of_a_new_spool_and_of_folders_that_others_are_making_is_flushed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: set[int] = set()
    fsync = os.fsync

    def noted(file: int) -> None:
        flushed.add(os.fstat(file).st_ino)
        fsync(file)

    monkeypatch.setattr(os, "fsync", noted)
    with Rig(tmp_path / "spool").disk() as disk:
        assert tmp_path.stat().st_ino in flushed
        # Another thread or process has made the folders, and has not come to flushing their names.
        (tmp_path / "spool" / "batches" / "a" / "b").mkdir(parents=True)
        flushed.clear()
        await disk.create("batches/a/b/c", b"")
        for folder in (tmp_path / "spool", tmp_path / "spool" / "batches", tmp_path / "spool" / "batches" / "a"):
            assert folder.stat().st_ino in flushed, folder


@async_test
async def test_what_a_killed_process_forgot_of_boots_and_did_not_flush_is_flushed_at_the_start(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it could be there again after the power was lost, without what others have accepted since."""
    with rig.disk() as disk:
        await (await rig.open(disk)).accept(batch())
    [boot] = (rig.folder / "boots").rglob("*.json")
    boot.unlink()
    flushed: set[Path] = set()

    def noted(folder: Path) -> None:
        flushed.add(folder)
        local_files.fsync_path(folder)

    monkeypatch.setattr(spool_files, "fsync_path", noted)
    with rig.disk():
        assert {rig.folder / "boots", boot.parent} <= flushed


@async_test
async def test_a_boot_whose_batches_have_gaps_without_end_takes_bounded_memory(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = 0

    def counted(spans: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
        nonlocal most
        listed = list(spans)
        most = max(most, len(listed))
        return merged(listed)

    monkeypatch.setattr(known_boots, "merged", counted)
    rig.store = OutageStore(page_size=100)
    for first in range(0, 4_000, 2):
        await rig.store.create(keys.accepted(BatchIdentity("agent-a", "boot-1", first, first)), b"")
    with rig.disk() as disk:
        spool = await rig.open(disk)

        assert isinstance(await spool.accept(batch(4_001)), Accepted)

    assert most <= known_boots.MOST_SPANS + 100, "what is known, and what a page adds"
