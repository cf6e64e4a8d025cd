"""Files and folders of this machine, reached from open folders, so that no link is followed on the way."""

import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from lakehead.errors import OutcomeUnknown
from lakehead.storage.port import Meta, Version

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
# O_NONBLOCK: opening a FIFO that somebody left in the folder must not wait for a writer.
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
HAS_UNNAMED = hasattr(os, "O_TMPFILE") and Path("/proc/self/fd").is_dir()


def open_folder(name: str, parent: int | None, *, make: bool) -> int:
    """Open a folder, or answer -1 where it is absent. The root itself may be a symbolic link, nothing below it."""
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
    """A file that the system forgets if we die before it has a name; None where there is no such thing."""
    if not HAS_UNNAMED:
        return None
    try:
        return os.open(".", os.O_WRONLY | os.O_TMPFILE | os.O_CLOEXEC, 0o644, dir_fd=parent)
    except OSError as error:
        if error.errno in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL):
            return None
        raise


@contextmanager
def opened(parent: int, name: str) -> Iterator[int | None]:
    """An object's file, open for reading; None where there is none."""
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
    """The file's state; None for what is absent and for what is no object of ours, like a folder or a link."""
    if parent == -1:
        return None
    try:
        found = os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return None
    return found if stat.S_ISREG(found.st_mode) else None


def version_at(parent: int, name: str) -> Version | None:
    """The version of the object with this name; None where there is none."""
    found = stat_at(parent, name)
    return version_of(found) if found else None


def version_of(found: os.stat_result) -> Version:
    """What names this state of a file."""
    return Version(f"{found.st_mtime_ns:x}.{found.st_ino:x}.{found.st_size:x}")


def meta_of(key: str, found: os.stat_result) -> Meta:
    """What is known of an object without its body."""
    return Meta(key, found.st_size, version_of(found), found.st_mtime_ns)


def remove_if_abandoned(path: Path) -> None:
    """Remove a temporary file unless its writer lives, which then holds its lock."""
    try:
        file = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return  # gone meanwhile, or nothing that we put there
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink(missing_ok=True)
    except BlockingIOError:
        pass
    finally:
        os.close(file)


def force_path(folder: Path) -> None:
    """Force a folder's names to disk."""
    opened = os.open(folder, _DIRECTORY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def force(folder: int, key: str) -> None:
    """Force a folder to disk after one of its names has changed: if that fails, the change may be lost again."""
    try:
        os.fsync(folder)
    except OSError as error:
        raise OutcomeUnknown(f"The change of {key} was made but could not be forced to disk ({error}).") from error
