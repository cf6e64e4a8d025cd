"""A program run from its start to its exit, with the time it takes and the memory that it and its children hold."""

import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

EVERY = 0.2
"""Seconds between two looks at the memory."""


@dataclass(frozen=True, slots=True)
class Ran:
    """What a program that succeeded has cost."""

    seconds: float
    """From the start of the process to its exit."""

    peak_mib: float
    """The most that all its processes held together: resident pages, those that several share counted once (PSS)."""

    output: str
    began_at: datetime
    """When the process was started."""


def run(command: Sequence[str], folder: Path, environment: Mapping[str, str] | None = None) -> Ran:
    """Run a program in a folder until it exits. Raises `OSError` with its last words if it fails."""
    with tempfile.TemporaryFile() as output:
        began, began_at = time.perf_counter(), datetime.now(UTC)
        process = subprocess.Popen(
            command,
            cwd=folder,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={
                **os.environ,
                "TMPDIR": str(folder),
                **(environment or {}),
            },  # what it leaves behind goes with the folder
        )
        watch = _Watch(process.pid)
        try:
            watch.start()
            code = process.wait()
            took = time.perf_counter() - began
        finally:
            watch.stop()
            _end(process)
        output.seek(0)
        said = output.read().decode(errors="replace")
    if code:
        raise OSError(f"{Path(command[0]).name} ended with code {code}: {said[-3000:]}")
    return Ran(took, watch.peak / 2**20, said, began_at)


class _Watch(threading.Thread):
    """Looks at a process and all its descendants again and again, and keeps the largest sum."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.peak = 0
        self._pid = pid
        self._ended = threading.Event()

    def run(self) -> None:
        while not self._ended.wait(EVERY):
            self.peak = max(self.peak, sum(_held(pid) for pid in _tree(self._pid)))

    def stop(self) -> None:
        self._ended.set()
        if self.is_alive():
            self.join()


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a program that was interrupted, with all its children."""
    if process.poll() is None:
        for pid in _tree(process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()


def _tree(root: int) -> list[int]:
    """The process and its descendants: those that are there at this moment."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
        except (OSError, IndexError, ValueError):
            continue  # it has ended meanwhile
        children.setdefault(parent, []).append(int(stat.parent.name))
    found = [root]
    for pid in found:
        found.extend(children.get(pid, ()))
    return found


def _held(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
