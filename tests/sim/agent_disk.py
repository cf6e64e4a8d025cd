"""The disk of a simulated agent: it forgets what was not flushed when the power is lost, fills up, and fails.

A process that dies leaves what it has written, and the next one sees it; whether it is on the disk is decided when the
power is lost. An append that was not flushed may be lost, whole, cut at any byte, or partly zeros. A name that was not
flushed may be the old or the new one. What an fsync has failed to flush may be lost although a later one succeeds.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from lakehead.agent.spool_disk import SpoolFile
from lakehead.errors import DiskFull, OutcomeUnknown, Unavailable
from tests.support.simulation import World

PLENTY = 1 << 40
Step = Literal["before", "written", "named"]
"""Where a change of the disk is: before anything was changed, or before what was written, or named, is flushed."""


@dataclass(slots=True, eq=False)
class _File:
    """What a name leads to."""

    data: bytes
    flushed: int = 0
    """How many of its first bytes are on the disk."""

    doubtful: list[tuple[int, int]] = field(default_factory=list)
    """Ranges that an fsync has failed to flush: they may be zeros after the power was lost."""


@dataclass(frozen=True, slots=True)
class DiskFaults:
    """How often something goes wrong, and what comes before each step."""

    fails: float = 0.0
    """How often a call fails, and has changed nothing."""

    fsync_fails: float = 0.0
    """How often an fsync fails after something was written."""


NO_DISK_FAULTS = DiskFaults()


class SimulatedSpoolDisk:
    """The files of one agent. `at_each_step` may kill the process that uses them; `watch` sees entries change."""

    def __init__(
        self,
        world: World,
        *,
        faults: DiskFaults = NO_DISK_FAULTS,
        at_each_step: Callable[[Step], Awaitable[None]] | None = None,
        watch: Callable[[str, bytes, bytes | None], None] | None = None,
    ) -> None:
        """`watch` is given a name, what it led to, and what it leads to now: before that can be seen on the disk."""
        self.faults = faults
        self.free = PLENTY
        """How many bytes can be written."""

        self._world = world
        self._at_each_step = at_each_step
        self._watch = watch
        self._names: dict[str, _File] = {}
        self._flushed_names: dict[str, _File] = {}
        self._unflushed: list[Mapping[str, _File | None]] = []
        """Changes of names since folders were flushed, each as a whole or not at all."""

        self._cancelled: set[asyncio.Task[Any] | None] = set()
        """The tasks that were cancelled while they waited for the disk."""

    # --- what the spool asks for

    async def list(self, folder: str) -> Sequence[SpoolFile]:
        await self._begin("list", folder, step=None)
        found = [SpoolFile(name, len(each.data)) for name, each in self._names.items() if _folder(name) == folder]
        return sorted(found, key=lambda each: each.name)

    async def read(self, name: str, *, most: int | None = None) -> bytes | None:
        await self._begin("read", name, step=None)
        found = self._names.get(name)
        return None if found is None else found.data[:most]

    async def create(self, name: str, data: bytes) -> "SimulatedAppendFile":
        with self._uncancelled():
            return await self._create(name, data)

    async def replace(self, name: str, data: bytes) -> None:
        with self._uncancelled():
            await self._replace(name, data)

    async def move(self, name: str, to: str) -> None:
        with self._uncancelled():
            await self._move(name, to)

    async def delete(self, name: str) -> None:
        with self._uncancelled():
            await self._delete(name)

    async def append(self, name: str, file: _File, data: bytes) -> None:
        """Add bytes to a file, whatever it is called now."""
        with self._uncancelled():
            await self._append(name, file, data)

    # --- what happens to it

    def lose_power(self) -> None:
        """Keep what was flushed, and of the rest what chance keeps."""
        draw = self._world.random.random
        keeps = self._world.random.choice([0.0, 0.5, 0.5, 1.0])
        for change in self._unflushed:
            if draw() < keeps:
                _apply(self._flushed_names, change)
        self._unflushed.clear()
        self._names = dict(self._flushed_names)
        for name in sorted(self._names):
            self._settle(self._names[name])

    def flush_names(self) -> None:
        """Flush all folders, as a process does that begins to use what another one has left."""
        self._unflushed.clear()
        self._flushed_names = dict(self._names)

    def has(self, folder: str) -> dict[str, bytes]:
        """The files of a folder, as a process sees them."""
        return {name: self._names[name].data for name in sorted(self._names) if _folder(name) == folder}

    def flip_a_bit(self, name: str, at: int) -> None:
        """Change one bit of a file, which nobody has written."""
        file = self._names[name]
        file.data = file.data[:at] + bytes([file.data[at] ^ 1]) + file.data[at + 1 :]

    # --- how it is done

    @contextmanager
    def _uncancelled(self) -> Iterator[None]:
        """Carry a call to its end also if its caller is cancelled, which is cancelled then."""
        task = asyncio.current_task()
        try:
            yield
        finally:
            if task in self._cancelled:
                self._cancelled.remove(task)
                raise asyncio.CancelledError

    async def _create(self, name: str, data: bytes) -> "SimulatedAppendFile":
        await self._begin("create", name, len(data))
        if name in self._names:
            raise Unavailable(f"{name} is there")
        file = _File(b"")
        self._change({name: file})
        opened = SimulatedAppendFile(self, name, file)
        await self._write(file, data)
        await self._flush(file, name)
        await self._flush_folders(name)
        return opened

    async def _replace(self, name: str, data: bytes) -> None:
        await self._begin("replace", name, len(data))
        self.free -= len(data)
        file = _File(data, flushed=len(data))
        await self._step("before")
        before = self._names.get(name)
        if self._watch is not None and before is not None:
            self._watch(name, before.data, data)
        self._change({name: file})
        if before is not None:
            self.free += len(before.data)
        await self._flush_folders(name)

    async def _move(self, name: str, to: str) -> None:
        await self._begin("move", name)
        if (file := self._names.get(name)) is None:
            raise Unavailable(f"{name} is not there")
        over = self._names.get(to)
        if self._watch is not None and over is not None:
            self._watch(to, over.data, file.data)
        self._change({name: None, to: file})
        await self._flush_folders(name, to)

    async def _delete(self, name: str) -> None:
        await self._begin("delete", name)
        if (file := self._names.get(name)) is None:
            return
        if self._watch is not None:
            self._watch(name, file.data, None)
        self._change({name: None})
        self.free += len(file.data)
        await self._flush_folders(name)

    async def _append(self, name: str, file: _File, data: bytes) -> None:
        await self._begin("append", name, len(data))
        await self._write(file, data)
        await self._flush(file, name)

    async def _begin(self, verb: str, name: str, size: int = 0, *, step: Step | None = "before") -> None:
        await self._step(step)
        if size > self.free:
            self._world.note(f"{verb} {name}: the disk is full")
            raise DiskFull("the disk is full")
        if self.faults.fails and self._world.random.random() < self.faults.fails:
            self._world.note(f"{verb} {name}: the disk fails")
            raise Unavailable("the disk fails")

    async def _write(self, file: _File, data: bytes) -> None:
        self.free -= len(data)
        if self._world.random.random() < 0.1:
            cut = self._world.random.randrange(len(data) + 1)
            file.data += data[:cut]
            await self._step("written")
            data = data[cut:]
        file.data += data

    async def _flush(self, file: _File, name: str) -> None:
        await self._step("written")
        fails, begun = self._fsync_fails(name), file.flushed
        file.flushed = len(file.data)
        if fails:
            file.doubtful.append((begun, file.flushed))
            raise OutcomeUnknown(f"{name} could not be flushed")

    def _fsync_fails(self, name: str) -> bool:
        if self.faults.fsync_fails and self._world.random.random() < self.faults.fsync_fails:
            self._world.note(f"{name}: fsync fails")
            return True
        return False

    async def _step(self, step: Step | None) -> None:
        world = self._world
        try:
            await world.clock.sleep(world.random.expovariate(world.random.choice([400, 400, 10])))
        except asyncio.CancelledError:
            self._cancelled.add(asyncio.current_task())
        if step is not None and self._at_each_step is not None:
            await self._at_each_step(step)

    def _change(self, names: Mapping[str, _File | None]) -> None:
        _apply(self._names, names)
        self._unflushed.append(names)

    async def _flush_folders(self, *names: str) -> None:
        await self._step("named")
        if self._fsync_fails(names[-1]):
            raise OutcomeUnknown(f"the folder of {names[-1]} could not be flushed")
        folders = set(map(_folder, names))
        left: list[Mapping[str, _File | None]] = []
        for change in self._unflushed:
            if folders.isdisjoint(map(_folder, change)):
                left.append(change)
            else:
                _apply(self._flushed_names, change)
        self._unflushed = left

    def _settle(self, file: _File) -> None:
        """What is left of a file that was not flushed, or not as it seemed."""
        random, size = self._world.random, len(file.data)
        if file.flushed < size:
            fate = random.randrange(10)
            cut = file.flushed if fate < 3 else size if fate < 6 else random.randint(file.flushed, size)
            file.data = file.data[:cut] + bytes(size - cut if fate == 9 else 0)
        for start, end in file.doubtful:
            if random.random() < 0.5 and end <= len(file.data):
                is_tail = end == len(file.data) and random.random() < 0.5
                file.data = file.data[:start] + (b"" if is_tail else bytes(end - start)) + file.data[end:]
        file.doubtful.clear()
        file.flushed = len(file.data)


class SimulatedAppendFile:
    """A file that grows at its end."""

    def __init__(self, disk: SimulatedSpoolDisk, name: str, file: _File) -> None:
        self._disk = disk
        self._name = name
        self._file = file

    async def append(self, data: bytes) -> None:
        await self._disk.append(self._name, self._file, data)

    async def close(self) -> None:
        pass


def _folder(name: str) -> str:
    return name.rpartition("/")[0]


def _apply(names: dict[str, _File], change: Mapping[str, _File | None]) -> None:
    for name, file in change.items():
        if file is None:
            names.pop(name, None)
        else:
            names[name] = file
