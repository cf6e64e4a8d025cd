"""Spools on real files, with a disk that a test can hold up, or let fail."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa

from lakehead.agent.alerts import Alerts
from lakehead.agent.spool import Spool
from lakehead.agent.spool_disk import AppendFile, LocalSpoolDisk, SpoolFile, open_local_spool_disk
from lakehead.agent.spool_errors import SpoolFull
from lakehead.agent.spool_settings import SpoolSettings
from lakehead.clock import SystemClock
from lakehead.errors import DiskFull, OutcomeUnknown
from lakehead.ids import RandomIds, SeededIds
from lakehead.wire.agent_journal import MAGIC, joined_records, read_journal
from lakehead.wire.frame import decode_frame
from lakehead.wire.record_schemas import FrameKind
from lakehead.wire.request_id import RequestId
from tests.unit.wire.frames import NUMBERS, logs, samples

AGENT = "agent-a"
SAMPLES, LOGS = FrameKind.SAMPLES, FrameKind.LOGS
NEVER = 3600.0

SLOW = SpoolSettings(batch_seconds=NEVER, reserve_bytes=0)
"""Batches are closed by hand."""


class TestClock(SystemClock):
    """A clock whose times a test can let jump."""

    __test__ = False

    def __init__(self) -> None:
        self.ahead = 0.0
        self.wall_ahead_ns = 0

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead

    def now_ns(self) -> int:
        return super().now_ns() + self.wall_ahead_ns


class Deed:
    """Something that is about to be done to the disk."""

    def __init__(self, verb: str, name: str, size: int = 0) -> None:
        self.verb, self.name, self.size = verb, name, size

    def __repr__(self) -> str:
        return f"{self.verb} {self.name}"

    def __eq__(self, other: object) -> bool:
        return repr(self) == str(other)

    __hash__ = None  # type: ignore[assignment]


class TestDisk:
    """A real disk that tells what is done, and fails as it is told."""

    __test__ = False

    def __init__(self, disk: LocalSpoolDisk) -> None:
        self.disk = disk
        self.deeds: list[Deed] = []
        self.fails: Callable[[Deed], Exception | None] = lambda _: None
        """Says with which error something fails before it is done."""

        self.fails_after: Callable[[Deed], Exception | None] = lambda _: None
        """Says with which error something fails after it was done."""

        self.gates: dict[str, asyncio.Event] = {}
        """Deeds of these verbs wait for their event."""

    def done(self, *verbs: str) -> list[str]:
        return [repr(each) for each in self.deeds if each.verb in verbs]

    async def around(self, deed: Deed, work: Callable[[], Any]) -> Any:
        self.deeds.append(deed)
        if (gate := self.gates.get(deed.verb)) is not None:
            await gate.wait()
        if (error := self.fails(deed)) is not None:
            raise error
        found = await work()
        if (error := self.fails_after(deed)) is not None:
            if deed.verb == "create":
                await found.close()
            raise error
        return found

    async def list(self, folder: str) -> Sequence[SpoolFile]:
        found: Sequence[SpoolFile] = await self.around(Deed("list", folder), lambda: self.disk.list(folder))
        return found

    async def read(self, name: str, *, most: int | None = None) -> bytes | None:
        found: bytes | None = await self.around(Deed("read", name), lambda: self.disk.read(name, most=most))
        return found

    async def create(self, name: str, data: bytes) -> AppendFile:
        deed = Deed("create", name, len(data))
        return TestFile(self, name, await self.around(deed, lambda: self.disk.create(name, data)))

    async def replace(self, name: str, data: bytes) -> None:
        await self.around(Deed("replace", name, len(data)), lambda: self.disk.replace(name, data))

    async def move(self, name: str, to: str) -> None:
        await self.around(Deed("move", f"{name} {to}"), lambda: self.disk.move(name, to))

    async def delete(self, name: str) -> None:
        await self.around(Deed("delete", name), lambda: self.disk.delete(name))


class TestFile:
    __test__ = False

    def __init__(self, disk: TestDisk, name: str, file: AppendFile) -> None:
        self.disk, self.name, self.file = disk, name, file

    async def append(self, data: bytes) -> None:
        await self.disk.around(Deed("append", self.name, len(data)), lambda: self.file.append(data))

    async def close(self) -> None:
        await self.file.close()


class Opened(Spool):
    """A spool, with what a test wants to look at."""

    folder: Path
    test_disk: TestDisk
    test_clock: TestClock
    test_alerts: Alerts

    def told(self) -> str:
        return "\n".join(each.text for each in self.test_alerts.shown())

    def files(self, folder: str = "entries") -> list[str]:
        return sorted(each.name for each in (self.folder / folder).iterdir())


@asynccontextmanager
async def opened(
    folder: Path,
    settings: SpoolSettings = SLOW,
    *,
    clock: TestClock | None = None,
    seed: int | None = None,
    prepare: Callable[[TestDisk], None] | None = None,
    agent_id: str = AGENT,
) -> AsyncIterator[Opened]:
    """The spool `spool` below a folder, open until the end of the block."""
    clock = clock or TestClock()
    with open_local_spool_disk(folder / "spool") as local:
        disk, alerts = TestDisk(local), Alerts(clock)
        if prepare is not None:
            prepare(disk)
        ids = RandomIds() if seed is None else SeededIds(Random(seed))
        spool = Opened(disk, agent_id=agent_id, clock=clock, ids=ids, settings=settings, alerts=alerts)
        spool.folder, spool.test_disk, spool.test_clock, spool.test_alerts = folder / "spool", disk, clock, alerts
        async with spool:
            yield spool


@asynccontextmanager
async def killed(folder: Path, settings: SpoolSettings = SLOW) -> AsyncIterator[Opened]:
    """A spool whose process dies at the end of the block: nothing more reaches its disk."""
    with suppress(asyncio.CancelledError):
        async with opened(folder, settings) as spool:
            yield spool
            dead = OutcomeUnknown("the process is dead")
            spool.test_disk.fails = lambda _: dead


def numbered(start: int, count: int = 1) -> pa.RecordBatch:
    """Samples whose values are their numbers, so that each is known again."""
    return samples([{**NUMBERS[0], "value": float(each)} for each in range(start, start + count)])


def some_logs(count: int = 1) -> pa.RecordBatch:
    return logs([{"time": 0, "attributes": [], "resource_attributes": [], "scope_attributes": []}] * count)


def request(number: int, body: int = 0) -> RequestId:
    return RequestId(number.to_bytes(16, "big"), body.to_bytes(16, "big"))


def values(records: pa.RecordBatch) -> list[int]:
    return [int(each) for each in records.column("value").to_pylist()]


async def sent(spool: Spool, kind: FrameKind = SAMPLES) -> list[list[int]]:
    """The values in each batch that waits, in their order."""
    found = [await spool.read(entry) for entry in spool.waiting(kind)]
    return [values(decode_frame(each.body).records) for each in found if each is not None]


def stored(folder: Path, folders: Iterable[str] = ("entries", "parked")) -> list[int]:
    """The values of all samples that are on disk, in frames and journals."""
    found: list[int] = []
    for name in folders:
        for path in sorted((folder / "spool" / name).glob("[0-9]*[0-9]")):
            body = path.read_bytes()
            if body.startswith(MAGIC):
                journal = read_journal(body)
                if journal is not None and journal.items:
                    encoded = [item.encoded for item in journal.items]
                    found += values(joined_records(journal.head.kind, encoded))
            else:
                found += values(decode_frame(body).records)
    return found


def full(name: str = "it") -> DiskFull:
    return DiskFull(f"the disk of {name} is full")


def doubt(name: str = "it") -> OutcomeUnknown:
    return OutcomeUnknown(f"{name} could not be flushed")


async def until(condition: Callable[[], bool]) -> None:
    """Let others go on until something is so."""
    while not condition():  # noqa: ASYNC110 - what it waits for happens on threads, and tells nobody
        await asyncio.sleep(0.001)


async def turns() -> None:
    """Let everybody go on who can."""
    for _ in range(20):
        await asyncio.sleep(0)


async def filled(spool: Spool, count: int) -> int:
    """Append requests of so many samples until the spool is full. Returns how many were taken."""
    for taken in range(10_000):
        try:
            await spool.append(SAMPLES, numbered(taken * count, count), request(taken * count))
        except SpoolFull:
            return taken
    raise AssertionError("it is never full")
