"""The disk of an agent's spool: a few folders of files that are whole or not there."""

import asyncio
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Protocol, TypeVar

from lakehead.agent.spool_files import (
    DRAFTS,
    create_file,
    delete_file,
    failed,
    in_doubt,
    locked_folder,
    move_file,
    replace_file,
    write_all,
)
from lakehead.to_its_end import to_its_end

T = TypeVar("T")

THREADS = 4


@dataclass(frozen=True, slots=True)
class SpoolFile:
    """A file in a folder of the spool."""

    name: str
    """With its folder, as `entries/00000000000000000001`."""

    size: int


class AppendFile(Protocol):
    """A file that grows at its end."""

    async def append(self, data: bytes) -> None:
        """Add bytes, and return when they are flushed to disk.

        Raises `Unavailable` (`DiskFull` if it is) if nothing of them is there, and `OutcomeUnknown` if some or all may
        be: then nothing may be appended any more.
        """
        ...

    async def close(self) -> None:
        """Let go of the file. Nothing is raised: all that matters was flushed before."""
        ...


class SpoolDisk(Protocol):
    """The files of one spool. A call that has returned outlives the loss of power.

    All raise `Unavailable` (`DiskFull` if it is) if nothing was changed, and `OutcomeUnknown` if it may have been. A
    call is carried to its end also if its caller is cancelled. Calls on different files may run side by side.
    """

    async def list(self, folder: str) -> Sequence[SpoolFile]:
        """Return the files of a folder, by name; none if there is no such folder. The spool itself has no name."""
        ...

    async def read(self, name: str, *, most: int | None = None) -> bytes | None:
        """Return the content of a file, or its first `most` bytes; None if there is none."""
        ...

    async def create(self, name: str, data: bytes) -> AppendFile:
        """Make a new file with its first bytes, and open it for more. The name must not be taken."""
        ...

    async def replace(self, name: str, data: bytes) -> None:
        """Give a file this content in one step, also if there was none."""
        ...

    async def move(self, name: str, to: str) -> None:
        """Rename a file in one step, over what may be there."""
        ...

    async def delete(self, name: str) -> None:
        """Remove a file. None there is no error."""
        ...


class LocalSpoolDisk:
    """Files in a folder of this machine, worked on by a few threads, so that a slow disk holds up nobody else."""

    def __init__(self, folder: Path, threads: ThreadPoolExecutor) -> None:
        """Use `open_local_spool_disk`, which holds the lock of the folder."""
        self._folder = folder
        self._threads = threads
        self._numbers = count()

    async def list(self, folder: str) -> Sequence[SpoolFile]:
        """Return the files of a folder, by name."""
        return await self._look(partial(self._list, folder))

    async def read(self, name: str, *, most: int | None = None) -> bytes | None:
        """Return the content of a file, or its first bytes; None if there is none."""
        return await self._look(partial(self._read, name, most))

    async def create(self, name: str, data: bytes) -> "LocalAppendFile":
        """Make a new file with its first bytes, and open it for more."""
        path = self._folder / name
        return LocalAppendFile(self, path, await self.run(partial(create_file, path, data)), len(data))

    async def replace(self, name: str, data: bytes) -> None:
        """Give a file this content in one step."""
        draft = self._folder / DRAFTS / str(next(self._numbers))
        await self.run(partial(replace_file, self._folder / name, data, draft))

    async def move(self, name: str, to: str) -> None:
        """Rename a file in one step."""
        await self.run(partial(move_file, self._folder / name, self._folder / to))

    async def delete(self, name: str) -> None:
        """Remove a file."""
        await self.run(partial(delete_file, self._folder / name))

    async def run(self, work: Callable[[], T]) -> T:
        """Run something on one of the threads, to its end."""
        return await to_its_end(asyncio.get_running_loop().run_in_executor(self._threads, work))

    async def _look(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _list(self, folder: str) -> Sequence[SpoolFile]:
        before = f"{folder}/" if folder else ""
        try:
            with os.scandir(self._folder / folder) as found:
                files = [SpoolFile(f"{before}{each.name}", each.stat().st_size) for each in found if each.is_file()]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise failed(self._folder / folder, "listed", error) from error
        return sorted(files, key=lambda each: each.name)

    def _read(self, name: str, most: int | None) -> bytes | None:
        try:
            with (self._folder / name).open("rb") as file:
                return file.read(-1 if most is None else most)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise failed(self._folder / name, "read", error) from error


class LocalAppendFile:
    """A file that is open for appending."""

    def __init__(self, disk: LocalSpoolDisk, path: Path, file: int, size: int) -> None:
        self._disk = disk
        self._path = path
        self._file = file
        self._size = size

    async def append(self, data: bytes) -> None:
        """Add bytes, and return when they are flushed to disk."""
        await self._disk.run(partial(self._append, data))

    async def close(self) -> None:
        """Let go of the file."""
        await self._disk.run(self._close)

    def _append(self, data: bytes) -> None:
        try:
            write_all(self._file, data)
        except OSError as error:
            self._cut_back(error)
            raise failed(self._path, "written", error) from error
        try:
            os.fsync(self._file)
        except OSError as error:
            raise in_doubt(self._path, error) from error
        self._size += len(data)

    def _cut_back(self, cause: OSError) -> None:
        """Remove what was written of an item that did not fit."""
        try:
            os.ftruncate(self._file, self._size)
            os.lseek(self._file, self._size, os.SEEK_SET)
            os.fsync(self._file)
        except OSError as error:
            raise in_doubt(self._path, error) from cause

    def _close(self) -> None:
        with suppress(OSError):
            os.close(self._file)


@contextmanager
def open_local_spool_disk(folder: Path) -> Iterator[LocalSpoolDisk]:
    """Open a spool's folder, and hold its lock until the end. It is made if it is missing; its parent must exist.

    Raises `SpoolLocked` if another process has it open, and `Misconfigured` if it cannot be used.
    """
    with locked_folder(folder), ThreadPoolExecutor(THREADS, "lakehead-spool") as threads:
        yield LocalSpoolDisk(folder, threads)
