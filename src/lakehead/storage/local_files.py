"""Files and folders of the local store, opened relative to open folders so that no symbolic link is followed."""

import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from lakehead.errors import OutcomeUnknown
from lakehead.storage.port import ObjectMeta, Version

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
# O_NONBLOCK: opening a FIFO in the folder must not wait for a writer.
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
HAS_UNNAMED_FILES = hasattr(os, "O_TMPFILE") and Path("/proc/self/fd").is_dir()


def open_folder(name: str, parent: int | None, *, make: bool) -> int:
    """Open a folder; return -1 if it is absent. The root itself may be a symbolic link, nothing below it."""
    flags = _DIRECTORY if parent is None else _DIRECTORY | os.O_NOFOLLOW
    try:
        return os.open(name, flags, dir_fd=parent)
    except FileNotFoundError:
        if not make:
            return -1
    with suppress(FileExistsError):
        os.mkdir(name, dir_fd=parent)
    if parent is not None:
        os.fsync(parent)
    return os.open(name, flags, dir_fd=parent)


def open_unnamed(parent: int) -> int | None:
    """Open a new file without a name (O_TMPFILE), which vanishes with the process; None if not supported."""
    if not HAS_UNNAMED_FILES:
        return None
    try:
        return os.open(".", os.O_WRONLY | os.O_TMPFILE | os.O_CLOEXEC, 0o644, dir_fd=parent)
    except OSError as error:
        if error.errno in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL):
            return None
        raise


@contextmanager
def opened(parent: int, name: str) -> Iterator[int | None]:
    """Open an object's file for reading; None if it is absent."""
    if stat_at(parent, name) is None:
        yield None
        return
    try:
        file = os.open(name, _READ, dir_fd=parent)
    except FileNotFoundError:
        yield None
        return
    try:
        yield file
    finally:
        os.close(file)


def stat_at(parent: int, name: str) -> os.stat_result | None:
    """Return the stat of an object's file; None if it is absent or not a regular file, like a folder or a link."""
    if parent == -1:
        return None
    try:
        found = os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return None
    return found if stat.S_ISREG(found.st_mode) else None


def version_at(parent: int, name: str) -> Version | None:
    """Return the version of the object with this name; None if it is absent."""
    found = stat_at(parent, name)
    return version_of(found) if found else None


def version_of(found: os.stat_result) -> Version:
    """Return the version that identifies this state of a file."""
    return Version(f"{found.st_mtime_ns:x}.{found.st_ino:x}.{found.st_size:x}")


def meta_of(key: str, found: os.stat_result) -> ObjectMeta:
    """Return the metadata of an object."""
    return ObjectMeta(key, found.st_size, version_of(found), found.st_mtime_ns)


def remove_if_abandoned(path: Path) -> None:
    """Remove a temporary file unless its writer still runs, in which case the writer holds its lock."""
    try:
        file = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return  # already gone, or not one of our files
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink(missing_ok=True)
    except BlockingIOError:
        pass
    finally:
        os.close(file)


def fsync_path(folder: Path) -> None:
    """Flush a folder's entries to disk."""
    opened = os.open(folder, _DIRECTORY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def fsync_folder(folder: int, key: str) -> None:
    """Flush an open folder to disk after one of its names was changed. Raises `OutcomeUnknown` if that fails."""
    try:
        os.fsync(folder)
    except OSError as error:
        raise OutcomeUnknown(
            f"The change of {key} was made but could not be flushed to disk ({error}). Check the disk, then the object."
        ) from error
