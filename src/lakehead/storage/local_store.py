"""A store in a local folder, shared by all processes of the machine."""

import asyncio
import errno
import fcntl
import os
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import ParamSpec, TypeVar
from zlib import crc32

from lakehead.clock import Clock
from lakehead.errors import LakeheadError, Misconfigured, Unavailable
from lakehead.ids import Ids, Random
from lakehead.storage.local_files import (
    fsync_folder,
    fsync_path,
    meta_of,
    open_folder,
    open_unnamed,
    opened,
    remove_if_abandoned,
    stat_at,
    version_at,
    version_of,
)
from lakehead.storage.object_keys import RESERVED, InvalidKey, check_key, check_listing, check_start, is_valid_key
from lakehead.storage.port import Created, Exists, ListedObject, Object, ObjectMeta, Replaced, Stale, Version

PAGE_SIZE = 1000
LOCKS = 64
THREADS = 16
"""How many calls of one store run at once; further calls wait for a thread."""

_OPERATOR_MUST_ACT = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.ELOOP, errno.EEXIST}

MOST_FLUSHED = 10_000
"""Folders of which a store remembers that their names are on disk."""

P = ParamSpec("P")
T = TypeVar("T")


class LocalStore:
    """Objects as plain files below a root folder, safe between processes and against a crash at any moment.

    A body is written to an invisible file and flushed to disk, then gets its name in one atomic step: `link` for
    create, which the kernel refuses if the name exists; `rename` for replace and put, under one of a fixed number of
    lock files, so that checking the old version and renaming are one step. Readers take no lock and see either the old
    object or the new one. The folder is flushed to disk before a call returns.

    A version is the file's modification time, inode and size. The time is now plus a random part of up to a second, and
    later than that of the object it replaces, so versions do not repeat even if the machine's clock is set back. Every
    segment of a key is opened relative to the one before it, without following symbolic links, so no key leads out of
    the root.

    Calls run in the store's own threads, which end when the store is dropped; a full default executor of asyncio does
    not delay them. A cancelled call that has not started never runs; one that has started runs to its end.
    """

    def __init__(self, root: Path, *, clock: Clock, ids: Ids, random: Random) -> None:
        self._root = root
        self._clock = clock
        self._ids = ids
        self._random = random
        self._prepared = False
        self._flushed: set[str] = set()
        """Folders whose names are known to be on disk."""

        self._executor: ThreadPoolExecutor | None = None
        self._process = 0
        """The process that started the executor's threads: a forked process does not have them."""

    async def create(self, key: str, body: bytes) -> Created | Exists:
        """Store the object only if the key is absent."""
        return await self._in_thread(self._create, key, body)

    async def replace(self, key: str, body: bytes, version: Version) -> Replaced | Stale:
        """Store the object only if it is still that version."""
        return await self._in_thread(self._replace, key, body, version)

    async def put(self, key: str, body: bytes) -> Version:
        """Store the object unconditionally."""
        return await self._in_thread(self._put, key, body)

    async def get(self, key: str, *, start: int = 0, end: int | None = None) -> Object | None:
        """Return the object or a range of it, or None if it is absent."""
        return await self._in_thread(self._get, key, start, end)

    async def head(self, key: str) -> ObjectMeta | None:
        """Return the object's metadata, or None if it is absent."""
        return await self._in_thread(self._head, key)

    async def list(self, folder: str = "", *, start_after: str = "") -> AsyncIterator[Sequence[ListedObject]]:
        """Yield pages of the objects in a folder, in key order."""
        check_listing(folder, start_after)
        found = self._walk(folder, start_after.encode())
        while page := await self._in_thread(lambda: list(islice(found, PAGE_SIZE))):
            yield page

    async def delete(self, key: str) -> None:
        """Delete the object. It is no error if it is absent."""
        await self._in_thread(self._delete, key)

    # --- writing

    def _create(self, key: str, body: bytes) -> Created | Exists:
        check_key(key)
        with self._parent(key, make=True) as (parent, name):
            # Checking first avoids writing the body for nothing; the link below decides.
            if (there := version_at(parent, name)) is not None:
                fsync_folder(parent, key)  # the winner may not have done so yet
                return Exists(there)
            with self._unnamed(parent, body) as (path, version):
                try:
                    os.link(path, name, dst_dir_fd=parent, follow_symlinks=True)
                except FileExistsError:
                    if (there := version_at(parent, name)) is None:
                        raise InvalidKey(f"The key {key!r} is a folder or a link here, not an object.") from None
                    fsync_folder(parent, key)
                    return Exists(there)
            fsync_folder(parent, key)
        return Created(version)

    def _replace(self, key: str, body: bytes, version: Version) -> Replaced | Stale:
        check_key(key)
        with self._parent(key, make=False) as (parent, name):
            if (there := version_at(parent, name)) != version:
                return Stale(there)
            with self._temporary(body) as (path, _), self._lock(key):
                if (there := version_at(parent, name)) != version:
                    return Stale(there)
                new = self._rename(path, parent, name)
            fsync_folder(parent, key)
        return Replaced(new)

    def _put(self, key: str, body: bytes) -> Version:
        check_key(key)
        with self._parent(key, make=True) as (parent, name):
            with self._temporary(body) as (path, _), self._lock(key):
                try:
                    version = self._rename(path, parent, name)
                except IsADirectoryError:
                    raise InvalidKey(f"The key {key!r} is a folder here, not an object.") from None
            fsync_folder(parent, key)
        return version

    def _delete(self, key: str) -> None:
        check_key(key)
        with self._parent(key, make=False) as (parent, name):
            if parent == -1:
                return
            if version_at(parent, name) is not None:
                self._prepare()
                with self._lock(key), suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=parent)
            fsync_folder(parent, key)  # also if it was absent: an earlier delete may not have flushed it

    def _rename(self, path: str, parent: int, name: str) -> Version:
        """Give the file its final name, with a modification time later than that of the object it replaces."""
        new, old = os.stat(path), stat_at(parent, name)
        if old is not None and old.st_mtime_ns >= new.st_mtime_ns:
            os.utime(path, ns=(old.st_mtime_ns + 1, old.st_mtime_ns + 1))
            new = os.stat(path)
        os.rename(path, name, dst_dir_fd=parent)
        return version_of(new)

    def _fill(self, file: int, body: bytes) -> Version:
        """Write the body and the modification time, and flush both to disk."""
        rest = memoryview(body)
        while rest:
            rest = rest[os.write(file, rest) :]
        time_ns = self._clock.now_ns() + self._random.getrandbits(30)
        os.utime(file, ns=(time_ns, time_ns))
        os.fsync(file)
        found = os.fstat(file)
        if found.st_mtime_ns != time_ns:
            raise Misconfigured(
                f"The file system of {self._root} does not keep file times to the nanosecond, so object versions could "
                "repeat. Put the store on another file system, such as ext4, XFS, Btrfs or APFS."
            )
        return version_of(found)

    @contextmanager
    def _unnamed(self, parent: int, body: bytes) -> Iterator[tuple[str, Version]]:
        """Write the body to a file without a name; yield a path to link it from, and its version."""
        file = open_unnamed(parent)
        if file is None:
            with self._temporary(body) as named:
                yield named
            return
        try:
            yield f"/proc/self/fd/{file}", self._fill(file, body)
        finally:
            os.close(file)

    @contextmanager
    def _temporary(self, body: bytes) -> Iterator[tuple[str, Version]]:
        """Write the body to a temporary file; yield its path and version. It is removed unless it was renamed."""
        self._prepare()
        while True:
            path = f"{self._own('tmp')}/{self._ids.uuid()}"
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            # Locked while in use, so that another process does not take it for abandoned. It may have done so already.
            fcntl.flock(file, fcntl.LOCK_EX)
            if os.fstat(file).st_nlink:
                break
            os.close(file)
        try:
            yield path, self._fill(file, body)
        finally:
            with suppress(OSError):  # renamed; or left for `remove_if_abandoned`, the outcome is already decided
                os.unlink(path)
            os.close(file)

    @contextmanager
    def _lock(self, key: str) -> Iterator[None]:
        path = self._own("locks") / f"{crc32(key.encode()) % LOCKS:02x}"
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            # Closing it is not enough: a process forked meanwhile has it open too.
            fcntl.flock(lock, fcntl.LOCK_UN)
            os.close(lock)

    def _prepare(self) -> None:
        """Before the first write: create the store's own folder, and remove temporary files of dead processes."""
        if self._prepared:
            return
        missing = not self._root.exists()
        self._root.mkdir(exist_ok=True)
        if missing:
            fsync_path(self._root.parent)
        for folder in (self._root / RESERVED, self._own("tmp"), self._own("locks")):
            folder.mkdir(exist_ok=True)
            if folder.is_symlink():
                raise Misconfigured(f"{folder} is a symbolic link. Remove it: the store uses this folder itself.")
        for path in self._own("tmp").iterdir():
            remove_if_abandoned(path)
        self._prepared = True

    def _own(self, name: str) -> Path:
        return self._root / RESERVED / name

    # --- reading

    def _get(self, key: str, start: int, end: int | None) -> Object | None:
        check_key(key)
        check_start(start)
        with self._parent(key, make=False) as (parent, name), opened(parent, name) as file:
            if file is None:
                return None
            meta = meta_of(key, os.fstat(file))
            stop = meta.size if end is None else min(end, meta.size)
            with os.fdopen(file, "rb", closefd=False) as reader:
                reader.seek(start)
                return Object(meta, reader.read(max(0, stop - start)))

    def _head(self, key: str) -> ObjectMeta | None:
        check_key(key)
        with self._parent(key, make=False) as (parent, name):
            found = stat_at(parent, name)
            return meta_of(key, found) if found else None

    def _walk(self, folder: str, start_after: bytes) -> Iterator[ListedObject]:
        """Yield the objects below a folder in key order. A folder sorts by its name with a trailing slash."""
        with self._parent(f"{folder}/." if folder else ".", make=False) as (parent, _):
            if parent == -1:
                return
            with os.scandir(parent) as found:
                entries = [(e.name + "/" if e.is_dir(follow_symlinks=False) else e.name) for e in found]
            below = f"{folder}/" if folder else ""
            for name in sorted(entries, key=os.fsencode):
                key = below + name
                if not is_valid_key(key.removesuffix("/")):
                    continue
                if name.endswith("/"):
                    # Skip a folder only if even its greatest keys sort before `start_after`.
                    if key.encode() > start_after or start_after.startswith(key.encode()):
                        yield from self._walk(key[:-1], start_after)
                elif key.encode() > start_after and (stats := stat_at(parent, name)) is not None:
                    yield ListedObject(key, stats.st_size, stats.st_mtime_ns)

    @contextmanager
    def _parent(self, key: str, *, make: bool) -> Iterator[tuple[int, str]]:
        """Open the folder of a key segment by segment; yield it and the last segment. -1 is an absent folder."""
        *folders, name = key.split("/")
        path = ""
        if make:
            self._prepare()
        opened = open_folder(str(self._root), None, make=False)
        if opened == -1 and (make or not self._root.parent.is_dir()):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self._root))
        try:
            for folder in folders:
                if opened == -1:
                    break
                inner = self._enter(folder, opened, key, make=make)
                outer, opened = opened, inner
                try:
                    if make:
                        self._flush_once(path := f"{path}/{folder}", outer)
                finally:
                    os.close(outer)
            yield opened, name
        finally:
            if opened != -1:
                os.close(opened)

    def _flush_once(self, path: str, parent: int) -> None:
        """Flush the name of a folder, which whoever has made it may not have done yet, or not have been able to."""
        if path in self._flushed:
            return
        os.fsync(parent)
        if len(self._flushed) >= MOST_FLUSHED:
            self._flushed.clear()
        self._flushed.add(path)

    def _enter(self, folder: str, parent: int, key: str, *, make: bool) -> int:
        try:
            return open_folder(folder, parent, make=make)
        except OSError as error:
            if error.errno not in (errno.ENOTDIR, errno.ELOOP):
                raise
            if not make and stat_at(parent, folder) is not None:
                return -1  # nothing can be below an object
            raise InvalidKey(
                f"The key {key!r} goes through {folder!r}, which is an object or a symbolic link."
            ) from None

    async def _in_thread(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads(), partial(work, *args, **kwargs))
        except LakeheadError:
            raise
        except OSError as error:
            if error.errno in _OPERATOR_MUST_ACT or not self._root.parent.is_dir():
                raise Misconfigured(
                    f"Cannot use the folder {self._root} ({error.strerror}). "
                    "Check that its parent exists and that this user may read and write it."
                ) from error
            raise Unavailable(f"A file operation in {self._root} failed ({error}). Try again later.") from error

    def _threads(self) -> ThreadPoolExecutor:
        """Return the executor. Two first calls at once may create two; the one that is not kept ends by itself."""
        executor = self._executor
        if executor is None or self._process != os.getpid():
            executor = ThreadPoolExecutor(THREADS, thread_name_prefix="lakehead-store")
            self._executor, self._process = executor, os.getpid()
        return executor
