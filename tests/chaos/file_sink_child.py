"""The processes that the file sink's crash tests start and kill, and the local disk without a JVM they work on."""

import os
import shutil
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from io import BytesIO
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lakehead.ids import RandomIds
from lakehead.lake.filesink.file_names import LANDED
from lakehead.lake.filesink.file_sink import FileSink, PublishMode, Write
from lakehead.lake.filesink.local import create_file, rename_folder
from lakehead.lake.filesink.port import Entry, Files, Outcome
from lakehead.lake.filesink.published import published
from lakehead.lake.filesink.staging_cleanup import ttl_cleanup
from lakehead.lake.landing import Unit

OLD = (1, 2, 3, 4)
NEW = (5, 6, 7)
UNIT = Unit("orders/2024-02-29")
RELOADED = Unit(UNIT.id, 1)
TTL = timedelta(hours=1)

STEPS = ("mkdir", "rename", "link", "unlink", "rmdir")
"""The functions of `os` by which anything changes."""


class DiskFiles:
    """A local disk as a file sink sees it, by the same two steps that the real one takes."""

    def renames_at_once(self, _: str) -> bool:
        return True

    def list(self, folder: str) -> Sequence[Entry]:
        with suppress(FileNotFoundError):
            return [Entry(each.name, each.is_dir()) for each in Path(folder).iterdir()]
        return []

    def exists(self, path: str) -> bool:
        return Path(path).exists()

    def read(self, file: str) -> bytes | None:
        with suppress(FileNotFoundError):
            return Path(file).read_bytes()
        return None

    def modified_ns(self, file: str) -> int | None:
        with suppress(FileNotFoundError):
            return Path(file).stat().st_mtime_ns
        return None

    def make_folder(self, folder: str) -> None:
        Path(folder).mkdir(parents=True, exist_ok=True)

    def create(self, file: str, body: bytes) -> Outcome:
        return create_file(Path(file), body, temporary=f".{RandomIds().uuid()}.tmp")

    def rename(self, folder: str, target: str) -> Outcome:
        return rename_folder(Path(folder), Path(target))

    def delete(self, path: str) -> None:
        if Path(path).is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            Path(path).unlink(missing_ok=True)

    def delete_if_empty(self, folder: str) -> None:
        with suppress(OSError):
            Path(folder).rmdir()


@dataclass(frozen=True)
class FixedClock:
    """A clock that stands still."""

    time_ns: int

    def now_ns(self) -> int:
        return self.time_ns

    def monotonic(self) -> float:
        return 0.0

    async def sleep(self, seconds: float) -> None:
        raise NotImplementedError


FAR_AHEAD = FixedClock(2**62)
"""So late that whatever has landed is older than any TTL."""


def sink_at(root: Path, way: PublishMode, files: Files | None = None) -> FileSink:
    """The sink that tests and children share: only its folder connects them."""
    return FileSink(root=str(root), files=files or DiskFiles(), ids=RandomIds(), way=way)


@cache
def parquet(rows: tuple[int, ...]) -> bytes:
    body = BytesIO()
    pq.write_table(pa.table({"id": list(rows)}), body)
    return body.getvalue()


def rows_of(*rows: int, reach: Callable[[str], None] = lambda _: None) -> Write:
    """Writes the rows as two files, the second of them in two pieces."""

    def write(directory: str) -> None:
        Path(directory).mkdir(parents=True)
        (Path(directory) / "part-0.parquet").write_bytes(parquet(rows[:1]))
        reach("after the first part")
        whole = parquet(rows[1:])
        with (Path(directory) / "part-1.parquet").open("wb", buffering=0) as part:
            part.write(whole[: len(whole) // 2])
            reach("within the second part")
            part.write(whole[len(whole) // 2 :])

    return write


def refuse(directory: str) -> None:
    raise AssertionError(f"a unit that is published is not written again: {directory}")


# --- what readers see


def rows_in(directories: list[str]) -> tuple[int, ...]:
    """Every row of every file that Spark would read: one half written would raise."""
    parts = [part for each in directories for part in Path(each).glob("[!._]*")]
    return tuple(sorted(row for part in parts for row in pq.ParquetFile(part).read()["id"].to_pylist()))


def seen(root: Path) -> tuple[int, ...]:
    """What readers see."""
    return rows_in(published(str(root), files=DiskFiles()))


def globbed(root: Path) -> tuple[int, ...]:
    """What a plain glob of the published place sees."""
    return rows_in([str(each) for each in (root / "published").glob("*")])


def tree(root: Path) -> list[Path]:
    return sorted(root.rglob("*"))


def tell(line: str) -> None:
    """One line to the test, at once."""
    print(line, flush=True)


# --- killed at one chosen step


def prepare(operation: str, way: PublishMode, root: Path) -> None:
    """What is there before an operation."""
    sink = sink_at(root, way)
    if operation != "land":
        directory = sink.land(UNIT, rows_of(*OLD)).directory
    if operation == "find":
        (Path(directory) / LANDED).unlink()
    if operation == "clean":
        sink.land(RELOADED, rows_of(*NEW))


def carry_out(operation: str, sink: FileSink, reach: Callable[[str], None] = lambda _: None) -> None:
    match operation:
        case "land" | "find":
            sink.land(UNIT, rows_of(*OLD, reach=reach))
        case "reload":
            sink.land(RELOADED, rows_of(*NEW, reach=reach))
        case "clean":
            ttl_cleanup(sink.root, TTL, files=sink.files, clock=FAR_AHEAD)
        case _:
            raise ValueError(operation)


def serve_deaths() -> None:
    """For each line `operation way step root`, carry the operation out in a process of its own that dies at that step.

    The answer is where it died, or `answered`, and then its exit code. Forking spares the start of an interpreter for
    each of the many deaths.
    """
    parquet(OLD), parquet(NEW)
    for line in sys.stdin:
        operation, way, step, root = line.rstrip("\n").split(" ", 3)
        process = os.fork()
        if process == 0:
            doomed(operation, PublishMode(way), int(step), Path(root))
            tell("answered")
            os._exit(0)
        _, status = os.waitpid(process, 0)
        tell(f"exit {os.waitstatus_to_exitcode(status)}")


def doomed(operation: str, way: PublishMode, step: int, root: Path) -> None:
    """Die at a step: each call of the file system counts as two, just before it and just after it."""
    steps = count(1)

    def reach(moment: str) -> None:
        if next(steps) == step:
            tell(moment)
            os.kill(os.getpid(), signal.SIGKILL)

    for name in STEPS:
        setattr(os, name, deadly(name, getattr(os, name), reach))
    carry_out(operation, sink_at(root, way, DeadlyFiles(reach)), reach)


def deadly(name: str, real: Callable[..., Any], reach: Callable[[str], None]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        reach(f"before {name}")
        answer = real(*args, **kwargs)
        reach(f"after {name}")
        return answer

    return call


class DeadlyFiles(DiskFiles):
    """The disk, for a process that may die before and after any change that the sink asks of it."""

    def __init__(self, reach: Callable[[str], None]) -> None:
        self.make_folder = deadly("make_folder", self.make_folder, reach)  # type: ignore[method-assign]  # a stand-in
        self.create = deadly("create", self.create, reach)  # type: ignore[method-assign]  # as above
        self.delete = deadly("delete", self.delete, reach)  # type: ignore[method-assign]  # as above


# --- racing


def race(root: Path, way: PublishMode, units: int) -> None:
    """Stage every unit, wait for the word, publish them all, and tell what each came to."""
    sink = sink_at(root, way)
    staged = [sink.stage(Unit(f"raced-{number}"), rows_of(*OLD)) for number in range(units)]
    tell("ready")
    sys.stdin.readline()
    for each in staged:
        tell(f"{each.unit.id} {sink.publish(each).result.value}")


def main(words: list[str]) -> None:
    """Do what the words say."""
    match words:
        case ["serve-deaths"]:
            serve_deaths()
        case ["race", root, way, units]:
            race(Path(root), PublishMode(way), int(units))
        case unknown:
            raise SystemExit(f"There is no role {unknown}.")
