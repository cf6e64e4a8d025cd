"""Servers of benchmarks, each a process of its own on loopback, and what they cost."""

import os
import re
import statistics
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

START_SECONDS = 60.0
PAUSE = 0.01
_TICKS = os.sysconf("SC_CLK_TCK")


S = TypeVar("S", bound="Server")


class Server:
    """A process that listens on loopback."""

    def __init__(self, process: "subprocess.Popen[bytes]", ports: Sequence[int]) -> None:
        self._process = process
        self.ports = ports

    @property
    def port(self) -> int:
        """Where it is sent to first of all."""
        return self.ports[0]

    @property
    def pid(self) -> int:
        """The id of its process."""
        return self._process.pid

    def cpu_seconds(self) -> float:
        """What all its threads have used."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    def mib(self) -> float:
        """Its memory now: resident pages, those that it shares counted in part (PSS)."""
        lines = Path(f"/proc/{self._process.pid}/smaps_rollup").read_text().splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024

    def request(self, path: str, *, method: str = "GET", port: int | None = None) -> str:
        """The body of its answer."""
        connection = HTTPConnection("127.0.0.1", port or self.port, timeout=START_SECONDS)
        try:
            connection.request(method, path)
            return connection.getresponse().read().decode()
        finally:
            connection.close()

    def end(self) -> None:
        """Stop it, and wait for that. It can be called again."""
        self._process.terminate()
        try:
            self._process.wait(15)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def start_server(
    kind: type[S], command: Sequence[str], env: Mapping[str, str], *, folder: Path, addresses: int = 1
) -> S:
    """Start a process, and wait until it says at how many addresses it listens. Its log is in the folder."""
    log = folder / f"{uuid4().hex}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env={**os.environ, **env})
    server = kind(process, ())
    try:
        server.ports = _ports(process, log, addresses)
    except BaseException:
        server.end()
        raise
    return server


def _ports(process: "subprocess.Popen[bytes]", log: Path, addresses: int) -> list[int]:
    ends = time.monotonic() + START_SECONDS
    while len(found := re.findall(r"http://127\.0\.0\.1:(\d+)", log.read_text())) < addresses:
        if process.poll() is not None or time.monotonic() > ends:
            raise RuntimeError(f"{process.args!r} does not start: {log.read_text()[-2000:]}")
        time.sleep(PAUSE)
    return [int(port) for port in found]


def idle_seconds() -> float:
    """How long the cores of the machine had nothing to do since it was started, all together."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()
    return (int(fields[4]) + int(fields[5])) / _TICKS  # idle, and idle while a disk works


def idle_share(before: float, seconds: float) -> float:
    """The share of all cores that nobody used in these seconds, which began when so much had been idle."""
    return (idle_seconds() - before) / (seconds * (os.cpu_count() or 1))


@contextmanager
def watched_memory(server: Server) -> Iterator[list[float]]:
    """What the server holds, in MiB, ten times a second."""
    held, ended = [server.mib()], threading.Event()

    def watch() -> None:
        while not ended.wait(0.1):
            held.append(server.mib())

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        yield held
    finally:
        ended.set()
        watching.join()


def spread(values: Sequence[float]) -> str:
    """The median of some rates, and their range."""
    return f"{statistics.median(values):,.0f} ({min(values):,.0f} to {max(values):,.0f})"
