"""The disk of an agent's spool keeps what it says, and says what it cannot keep."""

import asyncio
import errno
import multiprocessing
import os
from collections.abc import Callable
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import pytest

from lakehead.agent.spool_disk import SpoolFile, open_local_spool_disk
from lakehead.agent.spool_errors import SpoolLocked
from lakehead.errors import DiskFull, Misconfigured, OutcomeUnknown, Unavailable
from tests.support.async_tests import async_test

NAME, OTHER = f"entries/{1:020}", f"parked/{1:020}"


def failing(monkeypatch: pytest.MonkeyPatch, name: str, number: int, when: Callable[[int], bool]) -> None:
    """Let calls of a function of `os` fail, counted from 0."""
    real, calls = getattr(os, name), iter(range(1_000_000))

    def call(*args: Any, **kwargs: Any) -> Any:
        if when(next(calls)):
            if name == "write":
                real(args[0], bytes(args[1])[:3])
            raise OSError(number, os.strerror(number))
        return real(*args, **kwargs)

    monkeypatch.setattr(os, name, call)


@async_test
async def test_files_are_made_and_grow_are_replaced_and_moved_and_removed(tmp_path: Path) -> None:
    with open_local_spool_disk(tmp_path / "spool") as disk:
        assert await disk.read(NAME) is None
        file = await disk.create(NAME, b"first")
        await file.append(b" second")
        await file.append(b"")
        await file.close()
        assert await disk.read(NAME) == b"first second"
        assert await disk.read(NAME, most=3) == b"fir"
        assert await disk.list("entries") == [SpoolFile(NAME, 12)]
        await disk.replace(NAME, b"third")
        await disk.replace("agent.json", b"{}")
        assert await disk.list("") == [SpoolFile("agent.json", 2), SpoolFile("lock", 0)]
        await disk.move(NAME, OTHER)
        assert await disk.list("entries") == []
        assert await disk.read(OTHER) == b"third"
        await disk.delete(OTHER)
        await disk.delete(OTHER)
        assert await disk.list("parked") == await disk.list("nothing") == []
        assert await disk.list("tmp") == []


@async_test
async def test_what_other_users_may_not_see_they_cannot(tmp_path: Path) -> None:
    with open_local_spool_disk(tmp_path / "spool") as disk:
        await disk.replace(NAME, b"")
        file = await disk.create(OTHER, b"")
        await file.close()

    modes = {path.stat().st_mode & 0o077 for path in (tmp_path / "spool").rglob("*")}
    assert modes == {0}
    assert (tmp_path / "spool").stat().st_mode & 0o077 == 0


@async_test
async def test_a_name_that_is_taken_is_not_made_again(tmp_path: Path) -> None:
    with open_local_spool_disk(tmp_path / "spool") as disk:
        await disk.replace(NAME, b"there")
        with pytest.raises(Unavailable):
            await disk.create(NAME, b"new")
        with pytest.raises(Unavailable):
            await disk.move(OTHER, NAME)
        assert await disk.read(NAME) == b"there"


def test_a_folder_is_one_processs_at_a_time_and_what_it_left_half_written_goes(tmp_path: Path) -> None:
    with open_local_spool_disk(tmp_path / "spool"):
        (tmp_path / "spool" / "tmp" / "0").write_bytes(b"half")
        with pytest.raises(SpoolLocked, match="Another process"), open_local_spool_disk(tmp_path / "spool"):
            pass
        assert (tmp_path / "spool" / "tmp" / "0").exists()
    with open_local_spool_disk(tmp_path / "spool"):
        assert list((tmp_path / "spool" / "tmp").iterdir()) == []


def test_a_forked_child_that_lives_on_does_not_keep_the_folder_locked(tmp_path: Path) -> None:
    forking = multiprocessing.get_context("fork")
    left, ours = forking.Event(), forking.Event()
    with open_local_spool_disk(tmp_path / "spool"):
        child = forking.Process(target=leave_in_the_child, args=(tmp_path / "spool", left, ours), daemon=True)
        child.start()
        assert left.wait(60)
        with pytest.raises(SpoolLocked), open_local_spool_disk(tmp_path / "spool"):
            pass
    with open_local_spool_disk(tmp_path / "spool"):
        ours.set()
        child.join()
    assert child.exitcode == 0


def leave_in_the_child(spool: Path, left: Event, ours: Event) -> None:
    """See that the folder is the parent's, and live on until that has it open again."""
    with pytest.raises(SpoolLocked), open_local_spool_disk(spool):
        pass
    left.set()
    assert ours.wait(60)


def test_names_that_a_killed_process_left_are_flushed_before_they_are_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else what is sent now could be something else, or not there, after the power was lost."""
    with open_local_spool_disk(tmp_path / "spool"):
        pass
    flushed: set[tuple[int, int]] = set()
    real = os.fsync

    def fsync(file: int) -> None:
        real(file)
        flushed.add((os.fstat(file).st_dev, os.fstat(file).st_ino))

    monkeypatch.setattr(os, "fsync", fsync)
    with open_local_spool_disk(tmp_path / "spool"):
        for folder in (".", "entries", "parked", "seen", "damaged"):
            found = (tmp_path / "spool" / folder).stat()
            assert (found.st_dev, found.st_ino) in flushed, folder


def test_a_folder_that_cannot_be_a_spool_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "spool").mkdir()
    (tmp_path / "spool" / "entries").write_bytes(b"")
    for bad in (tmp_path / "missing" / "spool", tmp_path / "file", tmp_path / "spool"):
        with pytest.raises(Misconfigured), open_local_spool_disk(bad):
            pass


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO], ids=os.strerror)
@async_test
async def test_what_does_not_fit_is_cut_off_and_the_file_goes_on(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_local_spool_disk(tmp_path / "spool") as disk:
        file = await disk.create(NAME, b"promised")
        with monkeypatch.context() as patch:
            failing(patch, "write", number, lambda _: True)
            with pytest.raises(Unavailable) as caught:
                await file.append(b" too much")
        assert isinstance(caught.value, DiskFull) == (number != errno.EIO)
        assert await disk.read(NAME) == b"promised"
        await file.append(b" more")
        assert await disk.read(NAME) == b"promised more"
        await file.close()


@pytest.mark.parametrize("step", ["ftruncate", "fsync"])
@async_test
async def test_what_cannot_be_cut_off_is_in_doubt(step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_local_spool_disk(tmp_path / "spool") as disk:
        file = await disk.create(NAME, b"promised")
        with monkeypatch.context() as patch:
            failing(patch, "write", errno.ENOSPC, lambda _: True)
            failing(patch, step, errno.EIO, lambda _: True)
            with pytest.raises(OutcomeUnknown):
                await file.append(b" too much")
        await file.close()


@async_test
async def test_what_cannot_be_flushed_is_in_doubt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_local_spool_disk(tmp_path / "spool") as disk:
        file = await disk.create(NAME, b"promised")
        with monkeypatch.context() as patch:
            failing(patch, "fsync", errno.EIO, lambda _: True)
            with pytest.raises(OutcomeUnknown):
                await file.append(b" more")
            with pytest.raises(OutcomeUnknown):
                await disk.create(OTHER, b"new")
            with pytest.raises(OutcomeUnknown):
                await disk.delete(NAME)
            with pytest.raises(Unavailable):  # it has not got its name yet
                await disk.replace("agent.json", b"{}")
        assert await disk.read("agent.json") is None
        assert await disk.list("tmp") == []
        await file.close()


@async_test
async def test_a_name_that_cannot_be_flushed_is_in_doubt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_local_spool_disk(tmp_path / "spool") as disk:
        await disk.replace(NAME, b"old")
        for step, work in (
            (1, disk.replace(NAME, b"new")),
            (0, disk.move(NAME, OTHER)),
            (1, disk.move(OTHER, NAME)),
        ):
            with monkeypatch.context() as patch:
                failing(patch, "fsync", errno.EIO, step.__eq__)
                with pytest.raises(OutcomeUnknown):
                    await work


@async_test
async def test_a_file_that_does_not_fit_was_never_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_local_spool_disk(tmp_path / "spool") as disk:
        await disk.replace(OTHER, b"old")
        with monkeypatch.context() as patch:
            failing(patch, "write", errno.ENOSPC, lambda _: True)
            for work in (disk.create(NAME, b"too much"), disk.replace(OTHER, b"too much")):
                with pytest.raises(DiskFull):
                    await work
        assert await disk.list("entries") == await disk.list("tmp") == []
        assert await disk.read(OTHER) == b"old"
        await disk.create(NAME, b"now")


@async_test
async def test_a_write_that_takes_several_calls_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    with open_local_spool_disk(tmp_path / "spool") as disk:
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", lambda file, data: real(file, bytes(data)[:7]))
            await disk.replace(NAME, b"0123456789" * 10)
        assert await disk.read(NAME) == b"0123456789" * 10


@async_test
async def test_a_call_that_is_cancelled_is_carried_to_its_end(tmp_path: Path) -> None:
    with open_local_spool_disk(tmp_path / "spool") as disk:
        call = asyncio.create_task(disk.replace(NAME, b"x" * 1_000_000))
        await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert await disk.read(NAME) == b"x" * 1_000_000


@async_test
async def test_a_slow_flush_holds_up_neither_the_loop_nor_another_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, is_slow, go_on = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()
    real = os.fsync

    def fsync(file: int) -> None:
        if os.fstat(file).st_size == 5:
            loop.call_soon_threadsafe(is_slow.set)
            asyncio.run_coroutine_threadsafe(go_on.wait(), loop).result(60)
        real(file)

    with open_local_spool_disk(tmp_path / "spool") as disk, monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        slow = asyncio.create_task(disk.replace(NAME, b"slow!"))
        await is_slow.wait()
        await disk.replace(OTHER, b"fast")
        assert not slow.done()
        go_on.set()
        await slow
