"""Changes of an agent's spool on a file system. Each is on disk when it returns, or raises and says what is known.

All raise `Unavailable` (`DiskFull` if it is) if nothing was changed, and `OutcomeUnknown` if it may have been.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from lakehead.agent.spool_errors import SpoolLocked
from lakehead.errors import DiskFull, Misconfigured, OutcomeUnknown, Unavailable
from lakehead.storage.local_files import fsync_path
from lakehead.wire.agent_spool_records import DAMAGED, ENTRIES, PARKED, RESERVE, SEEN, SPOOL

LOCK = "lock"
DRAFTS = "tmp"
"""Where files are written before they get their name."""

FOLDERS = (ENTRIES, PARKED, SEEN, DAMAGED, DRAFTS)

_LOCKS: set[int] = set()
"""The open lock files of this process."""


def _let_go_after_a_fork() -> None:
    """Leave the locks to the parent: they would be held for as long as one of the two has the file open."""
    while _LOCKS:
        os.close(_LOCKS.pop())


os.register_at_fork(after_in_child=_let_go_after_a_fork)


@contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """Make a spool's folder ready, and hold its lock until the end.

    Raises `SpoolLocked` if another process has it open, and `Misconfigured` if it cannot be used.
    """
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        _check_that_it_may_be_a_spool(folder)
        fsync_path(folder.parent)  # else the whole spool could be gone after the power was lost
        lock = os.open(folder / LOCK, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise _unusable_folder(folder, error) from error
    _LOCKS.add(lock)
    try:
        _lock(lock, folder)
        try:
            _prepare(folder)
        except OSError as error:
            raise _unusable_folder(folder, error) from error
        yield
    finally:
        if lock in _LOCKS:
            _LOCKS.remove(lock)
            os.close(lock)


def create_file(path: Path, data: bytes) -> int:
    """Make a file, and return it open for more. If it cannot be written, it is as if it had never been there."""
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise failed(path, "created", error) from error
    try:
        write_all(file, data)
    except OSError as error:
        os.close(file)
        delete_file(path)
        raise failed(path, "written", error) from error
    try:
        os.fsync(file)
        fsync_path(path.parent)
    except OSError as error:
        os.close(file)
        raise in_doubt(path, error) from error
    return file


def replace_file(path: Path, data: bytes, draft: Path) -> None:
    """Give a file this content in one step: it is written as the draft first."""
    try:
        file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            write_all(file, data)
            os.fsync(file)
        finally:
            os.close(file)
    except OSError as error:
        with suppress(OSError):
            draft.unlink()
        raise failed(path, "written", error) from error
    _rename(draft, path)


def move_file(path: Path, to: Path) -> None:
    """Rename a file, over what may be there."""
    _rename(path, to)
    try:
        fsync_path(path.parent)
    except OSError as error:
        raise in_doubt(path, error) from error


def _rename(path: Path, to: Path) -> None:
    try:
        path.rename(to)
    except FileNotFoundError as error:
        raise failed(path, "renamed", error) from error
    except OSError as error:
        if (full := DiskFull.of(error, to)) is not None:
            raise full from error
        raise in_doubt(to, error) from error
    try:
        fsync_path(to.parent)
    except OSError as error:
        raise in_doubt(to, error) from error


def delete_file(path: Path) -> None:
    """Remove a file, if it is there."""
    try:
        path.unlink(missing_ok=True)
        fsync_path(path.parent)
    except OSError as error:
        raise in_doubt(path, error) from error


def write_all(file: int, data: bytes) -> None:
    """Write all of it to an open file. Raises `OSError`."""
    left = memoryview(data)
    while left:
        left = left[os.write(file, left) :]


def failed(path: Path, what: str, error: OSError) -> Unavailable:
    """The error for something that changed nothing."""
    return DiskFull.of(error, path) or Unavailable(f"{path} could not be {what} ({error}). Check the disk.")


def in_doubt(path: Path, error: OSError) -> OutcomeUnknown:
    """The error for something that may have been changed."""
    return OutcomeUnknown(f"What {path} holds is not known: it could not be flushed to disk ({error}). Check the disk.")


def _unusable_folder(folder: Path, error: OSError) -> Misconfigured:
    return Misconfigured(
        f"The folder {folder} cannot be a spool ({error.strerror}: {error.filename}). Its parent must exist, and this "
        "user must be able to write there: correct the setting, or the folder."
    )


def _lock(lock: int, folder: Path) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise SpoolLocked(
            f"Another process has the spool {folder} open. Stop that agent, or choose another folder."
        ) from error
    except OSError as error:
        raise Misconfigured(
            f"The spool {folder} cannot be locked ({error.strerror}). Put it on a local disk."
        ) from error


def _check_that_it_may_be_a_spool(folder: Path) -> None:
    """Raise `Misconfigured` if something else is in a folder, as in a gateway's. A whole disk has `lost+found`."""
    names = {each.name for each in folder.iterdir()}
    if SPOOL not in names and (foreign := sorted(names - {*FOLDERS, LOCK, RESERVE, "lost+found"})):
        raise Misconfigured(
            f"The folder {folder} is not empty, and no spool of an agent: it has {foreign[0]}. Choose a new folder."
        )


def _prepare(folder: Path) -> None:
    """Make the folders, and remove what a process that died was about to write.

    All names are flushed: what is seen now must not be something else after the power was lost.
    """
    for name in FOLDERS:
        (folder / name).mkdir(mode=0o700, exist_ok=True)
    for draft in (folder / DRAFTS).iterdir():
        draft.unlink()
    for name in FOLDERS:
        fsync_path(folder / name)
    fsync_path(folder)
