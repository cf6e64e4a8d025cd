"""The buffer among real processes that are killed at random, judged by what they told while they lived."""

import json
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from random import Random
from typing import Any
from uuid import uuid4

import pytest

from lakehead.buffer.config import CollectorMode
from lakehead.wire.compact import decode_batch
from tests.chaos.buffer_checker import Line, faults
from tests.chaos.buffer_child import TIMEOUT, Order, work
from tests.servers.seaweed import ACCESS_KEY, BUCKET, REGION, SECRET_KEY, Seaweed
from tests.support.costs import Mechanism, add
from tests.support.effort import effort
from tests.support.forks import FORKS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(effort(300, soak=1_300))]

KILLS = effort(30, soak=250)
"""How often a process is killed and another started in its place."""

ENOUGH = dict.fromkeys(("durable", "got", "acknowledged"), effort(50, soak=500))
"""How often each of these must at least have been told."""

SECONDS = effort(240.0, soak=1_200.0)
"""After how long something hangs: it takes a small part of this, however busy the machine is."""

INGESTORS, COLLECTORS = 3, 2


class Chaos:
    """Processes around one queue, and everything that they have told."""

    def __init__(self, place: dict[str, Any]) -> None:
        self.lines: list[Line] = []
        self.words: Counter[str] = Counter()
        self.running: dict[ForkServerProcess, Order] = {}
        self._place = place
        self._told, self._theirs = FORKS.Pipe(duplex=False)
        self._started = 0
        self._until = time.monotonic() + SECONDS

    def start(self, **order: Any) -> ForkServerProcess:
        self._started += 1
        order = {**self._place, **order, "name": f"s{self._started}"}
        process = FORKS.Process(target=work, args=(order, self._theirs), daemon=True)
        process.start()
        self.running[process] = order
        return process

    def kill(self, process: ForkServerProcess) -> Order:
        """As in a power cut; what the process had been told to do."""
        process.kill()
        self._hear_until_it_ends(process)
        add(Mechanism.KILLS)
        return self._forget(process)

    def finish(self, process: ForkServerProcess) -> None:
        """Wait until a process ends by itself."""
        self._hear_until_it_ends(process)
        assert process.exitcode == 0
        self._forget(process)

    def hear(self, lines: int = 1) -> None:
        """Wait until so many more lines were told."""
        for _ in range(lines):
            assert self._told.poll(self._until - time.monotonic()), f"nothing happens any more: {self.words}"
            self._hear_one()

    def close(self) -> None:
        for process in list(self.running):
            self.kill(process)
        self._told.close()
        self._theirs.close()

    def _hear_one(self) -> None:
        line: Line = json.loads(self._told.recv_bytes())
        self.lines.append(line)
        self.words[line["word"]] += 1

    def _hear_until_it_ends(self, process: ForkServerProcess) -> None:
        """A process that tells more than a pipe holds must be heard, or it does not come to its end."""
        while process.exitcode is None:
            assert time.monotonic() < self._until, f"a process does not end: {self.words}"
            if self._told.poll(0.01):
                self._hear_one()
        while self._told.poll():
            self._hear_one()

    def _forget(self, process: ForkServerProcess) -> Order:
        process.close()
        return self.running.pop(process)


@contextmanager
def chaos(place: dict[str, Any]) -> Iterator[Chaos]:
    scene = Chaos(place)
    try:
        yield scene
    finally:
        scene.close()


@pytest.fixture(params=["local", "seaweed"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    if request.param == "local":
        return {"url": f"file://{tmp_path}/store"}
    seaweed: Seaweed = request.getfixturevalue("seaweed")
    credentials = {"access_key_id": ACCESS_KEY, "secret_access_key": SECRET_KEY}
    settings = {
        "endpoint": seaweed.endpoint,
        "region": REGION,
        "credentials": credentials,
        "connect_timeout": TIMEOUT.total_seconds() / 3,
    }
    return {"url": f"s3://{BUCKET}/{uuid4()}", "settings": settings}


def be_unkind(scene: Chaos, random: Random) -> None:
    """Kill a process now and then, and start another with the same order under a new name, until enough has happened.

    When a process is killed goes by how much was told meanwhile: a slow machine takes longer, and shows as much.
    """
    kills = 0
    while kills < KILLS or not all(scene.words[word] >= number for word, number in ENOUGH.items()):
        scene.hear(random.randrange(1, 30))
        scene.start(**scene.kill(random.choice(list(scene.running))))
        kills += 1


@pytest.mark.parametrize("mode", list(CollectorMode))
def test_processes_that_are_killed_at_random_lose_and_double_nothing(
    place: dict[str, Any], mode: CollectorMode
) -> None:
    with chaos(place) as scene:
        for _ in range(INGESTORS):
            scene.start(role="ingest")
        for _ in range(COLLECTORS):
            scene.start(role="collect", mode=mode.value)
        scene.start(role="gc")
        be_unkind(scene, Random(mode.value))
        for process in list(scene.running):
            scene.kill(process)
        scene.finish(scene.start(role="collect", mode=mode.value, until_empty=True))

    assert faults(scene.lines, ordered=mode is CollectorMode.ORDERED) == []


@pytest.mark.parametrize(
    ("planted", "seen"),
    [("confirms early", "is durable and never came"), ("acknowledges early", "is durable and never came")],
)
def test_the_checker_sees_a_fault_that_is_planted(tmp_path: Path, planted: str, seen: str) -> None:
    random = Random(1)
    found: list[str] = []
    with chaos({"url": f"file://{tmp_path}/store"}) as scene:
        while not found:  # or until something hangs
            scene.start(role="ingest", planted=planted)
            scene.start(role="collect", mode="competing", planted=planted)
            scene.hear(random.randrange(50, 150))  # so that they are killed in the middle of something
            for process in list(scene.running):
                scene.kill(process)
            scene.finish(scene.start(role="collect", mode="competing", until_empty=True))
            found = faults(scene.lines, ordered=False)

    assert any(seen in fault for fault in found), found


def test_many_producers_on_one_manifest_queue_each_batch_once_and_in_order(tmp_path: Path) -> None:
    """How much they get into each other's way is told in virtual time, with the tests of turns."""
    producers, flushes = 16, effort(20, soak=1_000)
    with chaos({"url": f"file://{tmp_path}/store"}) as scene:
        for _ in range(producers):
            scene.start(role="ingest", calls=flushes, flush_size_bytes=0, at_once=True)
        for process in list(scene.running):
            scene.finish(process)
    manifest = json.loads((tmp_path / "store" / "ingest" / "manifest.json").read_bytes())
    queued = [entry for location in manifest["pending"] for entry in entries_at(tmp_path / "store" / location)]

    assert len(set(manifest["pending"])) == len(manifest["pending"])
    assert sorted(queued) == sorted(line["entry"] for line in scene.lines if line["word"] == "durable")
    assert len(queued) == producers * flushes
    for number in range(1, producers + 1):
        ours = [entry for entry in queued if entry.startswith(f"s{number}.")]
        assert ours == [f"s{number}.{each}" for each in range(flushes)]


def entries_at(path: Path) -> list[str]:
    return [entry.value.decode() for entry in decode_batch(path.read_bytes())]
