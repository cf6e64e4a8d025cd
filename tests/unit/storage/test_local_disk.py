"""The local store on disks that fail, and the order in which things reach the disk."""

import errno
import os
import stat
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lakehead.errors import LakeheadError, Misconfigured, OutcomeUnknown, Unavailable
from lakehead.storage.local_store import LocalStore
from lakehead.storage.port import Version
from tests.support.async_tests import async_test
from tests.unit.storage.local_folder import (
    CALLS,
    KEY,
    NEW,
    OLD,
    body,
    temporaries,
)

pytestmark = pytest.mark.timeout(60)


@dataclass(frozen=True)
class Write:
    """A write of the key whose fate a test follows, from what was there before."""

    before: bytes | None
    call: Callable[[LocalStore, Version | None], Awaitable[object]]
    named_by: str
    """The function of `os` that makes the change seen."""


def _replace(store: LocalStore, version: Version | None) -> Awaitable[object]:
    assert version is not None
    return store.replace(KEY, NEW, version)


BODIES = {
    "create": Write(None, lambda store, _: store.create(KEY, NEW), "link"),
    "replace": Write(OLD, _replace, "rename"),
    "put": Write(OLD, lambda store, _: store.put(KEY, NEW), "rename"),
}
CHANGES = BODIES | {"delete": Write(OLD, lambda store, _: store.delete(KEY), "unlink")}


@async_test
async def test_each_write_works_where_nothing_fails(store: LocalStore) -> None:
    for write in CHANGES.values():
        version = await _given(store, write)
        answer = await write.call(store, version)
        assert await body(store, KEY) == (None if answer is None else NEW)


async def _given(store: LocalStore, write: Write) -> Version | None:
    await store.put("folder/beside", OLD)
    await store.delete(KEY)
    return None if write.before is None else await store.put(KEY, write.before)


FAILURES = [
    (errno.EROFS, Misconfigured),
    (errno.EACCES, Misconfigured),
    (errno.ENOSPC, Unavailable),
    (errno.EIO, Unavailable),
]


def _is_file(file: object, *_: object, **__: object) -> bool:
    return isinstance(file, int) and stat.S_ISREG(os.fstat(file).st_mode)


def _is_folder(file: object, *_: object, **__: object) -> bool:
    return isinstance(file, int) and stat.S_ISDIR(os.fstat(file).st_mode)


def _is_new(_: object, flags: int, *__: object, **___: object) -> bool:
    return bool(flags & os.O_EXCL) or flags & os.O_TMPFILE == os.O_TMPFILE


def _always(*_: object, **__: object) -> bool:
    return True


@contextmanager
def failing(function: str, code: int, when: Callable[..., bool]) -> Iterator[list[str]]:
    """Let a function of `os` fail where its arguments say so; the list tells each time that it did."""
    failed: list[str] = []
    real: Callable[..., Any] = getattr(os, function)

    def call(*args: Any, **kwargs: Any) -> Any:
        if when(*args, **kwargs):
            failed.append(function)
            raise OSError(code, os.strerror(code))
        return real(*args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, function, call)
        yield failed


@pytest.mark.parametrize(("code", "error"), FAILURES, ids=[errno.errorcode[code] for code, _ in FAILURES])
@pytest.mark.parametrize(
    ("function", "when"),
    [("open", _is_new), ("write", _is_file), ("fsync", _is_file), ("utime", _always), ("naming", _always)],
    ids=["open", "write", "fsync", "utime", "naming"],
)
@pytest.mark.parametrize("name", BODIES)
@async_test
async def test_a_write_that_fails_before_it_is_seen_leaves_the_old_object(
    name: str,
    function: str,
    when: Callable[..., bool],
    code: int,
    error: type[LakeheadError],
    store: LocalStore,
    root: Path,
) -> None:
    write = BODIES[name]

    version = await _given(store, write)
    with (
        failing(write.named_by if function == "naming" else function, code, when) as failed,
        pytest.raises(error),
    ):
        await write.call(store, version)
    assert failed
    assert await body(store, KEY) == write.before
    assert temporaries(root) == []

    await write.call(store, version)
    assert await body(store, KEY) == NEW


@async_test
async def test_a_disk_that_fills_up_in_the_middle_of_a_body_leaves_the_old_object(
    store: LocalStore, root: Path
) -> None:
    written: list[int] = []

    def half_full(file: int, data: memoryview) -> bool:
        if written:
            return True
        written.append(os.pwrite(file, data[: len(data) // 2], 0))
        return True

    await store.put(KEY, OLD)
    with failing("write", errno.ENOSPC, half_full), pytest.raises(Unavailable, match="space"):
        await store.put(KEY, NEW)
    assert written == [len(NEW) // 2]
    assert await body(store, KEY) == OLD
    assert temporaries(root) == []


@async_test
async def test_a_body_that_is_written_in_pieces_arrives_whole(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda file, data: real(file, data[:3]))

    await store.put(KEY, NEW)
    assert await body(store, KEY) == NEW


@pytest.mark.parametrize("code", [errno.EROFS, errno.ENOSPC, errno.EIO], ids=lambda code: errno.errorcode[code])
@pytest.mark.parametrize("name", CHANGES)
@async_test
async def test_a_change_that_cannot_be_forced_to_disk_has_an_unknown_outcome(
    name: str, code: int, store: LocalStore, root: Path
) -> None:
    write = CHANGES[name]

    version = await _given(store, write)
    with failing("fsync", code, _is_folder) as failed, pytest.raises(OutcomeUnknown, match=KEY):
        await write.call(store, version)
    assert failed
    assert await body(store, KEY) in (write.before, None if name == "delete" else NEW)
    assert temporaries(root) == []


@pytest.mark.parametrize("code", [errno.EROFS, errno.EIO], ids=lambda code: errno.errorcode[code])
@pytest.mark.parametrize("name", BODIES)
@async_test
async def test_a_write_that_cannot_tidy_up_after_the_change_is_not_said_to_have_changed_nothing(
    name: str, code: int, store: LocalStore
) -> None:
    write = BODIES[name]
    version = await _given(store, write)
    raised: LakeheadError | None = None
    with failing("unlink", code, _always):
        try:
            await write.call(store, version)
        except LakeheadError as error:
            raised = error

    assert await body(store, KEY) == NEW
    assert raised is None or isinstance(raised, OutcomeUnknown), repr(raised)


@pytest.mark.parametrize(("code", "error"), FAILURES, ids=[errno.errorcode[code] for code, _ in FAILURES])
@async_test
async def test_a_delete_that_fails_leaves_the_object(code: int, error: type[LakeheadError], store: LocalStore) -> None:
    await store.put(KEY, OLD)
    with failing("unlink", code, _always), pytest.raises(error):
        await store.delete(KEY)
    assert await body(store, KEY) == OLD


@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("unit_ns", [10**9, 1_000, 100], ids=["seconds", "microseconds", "NTFS"])
@async_test
async def test_a_file_system_without_nanosecond_times_is_refused(
    unit_ns: int, name: str, store: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, real = BODIES[name], os.utime

    def coarse(file: int, *, ns: tuple[int, int]) -> None:
        # A time that the file system happens to keep must not hide it from this test.
        real(file, ns=(ns[0] // unit_ns * unit_ns, (ns[1] - 1) // unit_ns * unit_ns))

    version = await _given(store, write)
    monkeypatch.setattr(os, "utime", coarse)
    with pytest.raises(Misconfigured, match="nanosecond"):
        await write.call(store, version)
    assert await body(store, KEY) == write.before
    assert temporaries(root) == []


# --- the order in which things reach the disk


@pytest.fixture
def trace(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Each change and each force to disk in turn, with the inode of the file or folder that it concerns."""
    done: list[tuple[str, int]] = []

    def follow(function: str, inode: Callable[..., int]) -> None:
        real: Callable[..., Any] = getattr(os, function)

        def call(*args: Any, **kwargs: Any) -> Any:
            concerned = inode(*args, **kwargs)
            answer = real(*args, **kwargs)
            done.append((function, concerned))
            return answer

        monkeypatch.setattr(os, function, call)

    def of_file(file: int, *_: object) -> int:
        return os.fstat(file).st_ino

    def of_source(path: str | Path, *_: object, src_dir_fd: int | None = None, **__: object) -> int:
        return os.stat(path, dir_fd=src_dir_fd).st_ino

    def of_folder(path: str | Path, *_: object, dir_fd: int | None = None) -> int:
        return os.fstat(dir_fd).st_ino if dir_fd is not None else Path(path).parent.stat().st_ino

    follow("write", of_file)
    follow("fsync", of_file)
    follow("link", of_source)
    follow("rename", of_source)
    follow("unlink", of_folder)
    follow("mkdir", of_folder)
    return done


@pytest.mark.parametrize("name", BODIES)
@async_test
async def test_a_body_is_on_disk_before_it_has_its_name_and_the_name_before_the_answer(
    name: str, store: LocalStore, root: Path, trace: list[tuple[str, int]]
) -> None:
    write = BODIES[name]

    version = await _given(store, write)
    trace.clear()
    await write.call(store, version)
    trace.append(("answer", 0))
    file, folder = (root / KEY).stat().st_ino, (root / KEY).parent.stat().st_ino
    steps = [("write", file), ("fsync", file), (write.named_by, file), ("fsync", folder), ("answer", 0)]
    assert [step for step in trace if step in steps] == steps


@async_test
async def test_a_deletion_is_on_disk_before_the_answer(
    store: LocalStore, root: Path, trace: list[tuple[str, int]]
) -> None:
    await store.put(KEY, OLD)
    trace.clear()
    await store.delete(KEY)
    folder = (root / KEY).parent.stat().st_ino
    assert trace[-2:] == [("unlink", folder), ("fsync", folder)]


@pytest.mark.parametrize("call", ["create", "put"])
@async_test
async def test_a_new_folder_is_on_disk_before_the_answer(
    call: str, store: LocalStore, root: Path, trace: list[tuple[str, int]]
) -> None:
    await store.put("object", OLD)
    trace.clear()
    await CALLS[call](store, "a/b/object")
    for parent in (root, root / "a"):
        made = trace.index(("mkdir", parent.stat().st_ino))
        assert ("fsync", parent.stat().st_ino) in trace[made:]
