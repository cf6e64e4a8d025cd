"""The buffer among real processes that are killed at random, judged by what they told while they lived."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any
from uuid import uuid4

import pytest

from lakehead.buffer.consumer import Mode
from lakehead.wire.compact import decode_batch
from tests.chaos.buffer_checker import Line, faults
from tests.servers.seaweed import ACCESS_KEY, BUCKET, REGION, SECRET_KEY, Seaweed

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

REPOSITORY = Path(__file__).parents[2]
SECONDS = 60.0
"""How long processes are killed and started again."""

INGESTORS, COLLECTORS = 3, 2


@dataclass
class Chaos:
    """Processes around one queue, and everything that they have told."""

    folder: Path
    place: dict[str, Any]
    running: dict[subprocess.Popen[bytes], dict[str, Any]] = field(default_factory=dict)
    started: int = 0

    def start(self, **order: Any) -> subprocess.Popen[bytes]:
        self.started += 1
        order = {**self.place, **order, "name": f"s{self.started}"}
        paths = [self.folder / f"{self.started}.{kind}" for kind in ("jsonl", "err")]
        with paths[0].open("wb") as told, paths[1].open("wb") as errors:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.chaos.buffer_child", json.dumps(order)],
                cwd=REPOSITORY,
                stdout=told,
                stderr=errors,
                start_new_session=True,
            )
        self.running[process] = order
        return process

    def kill(self, process: subprocess.Popen[bytes]) -> dict[str, Any]:
        """As in a power cut; what the process had been told to do."""
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return self.running.pop(process)

    def finish(self, process: subprocess.Popen[bytes]) -> None:
        """Wait until a process ends by itself."""
        assert process.wait(timeout=120) == 0, self.last_words()
        self.running.pop(process)

    def lines(self) -> list[Line]:
        """All that was told; a line that a killed process did not finish was not told."""
        found = []
        for path in sorted(self.folder.glob("*.jsonl")):
            whole = path.read_bytes().rpartition(b"\n")[0]
            found += [json.loads(line) for line in whole.splitlines()]
        return found

    def last_words(self) -> str:
        return "\n".join(path.read_text()[-2000:] for path in self.folder.glob("*.err"))


@contextmanager
def chaos(folder: Path, place: dict[str, Any]) -> Iterator[Chaos]:
    folder.mkdir()
    scene = Chaos(folder, place)
    try:
        yield scene
    finally:
        for process in list(scene.running):
            scene.kill(process)


@pytest.fixture(params=["local", "seaweed"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    if request.param == "local":
        return {"url": f"file://{tmp_path}/store"}
    seaweed: Seaweed = request.getfixturevalue("seaweed")
    credentials = {"access_key_id": ACCESS_KEY, "secret_access_key": SECRET_KEY}
    settings = {"endpoint": seaweed.endpoint, "region": REGION, "credentials": credentials}
    return {"url": f"s3://{BUCKET}/{uuid4()}", "settings": settings}


def be_unkind(scene: Chaos, random: Random, seconds: float) -> None:
    """Kill a process now and then, and start another with the same order under a new name."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(random.uniform(0.1, 1.0))
        order = scene.kill(random.choice(list(scene.running)))
        scene.start(**order)


@pytest.mark.parametrize("mode", list(Mode))
def test_processes_that_are_killed_at_random_lose_and_double_nothing(
    tmp_path: Path, place: dict[str, Any], mode: Mode
) -> None:
    with chaos(tmp_path / "told", place) as scene:
        for _ in range(INGESTORS):
            scene.start(role="ingest", calls=2_000)
        for _ in range(COLLECTORS):
            scene.start(role="collect", mode=mode.value)
        scene.start(role="gc")
        be_unkind(scene, Random(mode.value), SECONDS)
        for process in list(scene.running):
            scene.kill(process)
        scene.finish(scene.start(role="collect", mode=mode.value, until_empty=True))
        lines = scene.lines()

    words = {word: sum(line["word"] == word for line in lines) for word in ("durable", "got", "acknowledged")}
    assert faults(lines, ordered=mode is Mode.ORDERED) == []
    assert min(words.values()) > 50, f"too little happened to show anything: {words}"


@pytest.mark.parametrize(
    ("planted", "seen"),
    [("confirms early", "is durable and never came"), ("acknowledges early", "is durable and never came")],
)
def test_the_checker_sees_a_fault_that_is_planted(tmp_path: Path, planted: str, seen: str) -> None:
    random = Random(1)
    with chaos(tmp_path / "told", {"url": f"file://{tmp_path}/store"}) as scene:
        found: list[str] = []
        for _ in range(20):
            scene.start(role="ingest", calls=2_000, planted=planted)
            scene.start(role="collect", mode="competing", planted=planted)
            time.sleep(random.uniform(1.0, 1.5))  # so that they are killed in the middle of something
            for process in list(scene.running):
                scene.kill(process)
            scene.finish(scene.start(role="collect", mode="competing", until_empty=True))
            if found := faults(scene.lines(), ordered=False):
                break

    assert any(seen in fault for fault in found), found


def test_many_producers_on_one_manifest_queue_each_batch_once_and_in_order(tmp_path: Path) -> None:
    producers, flushes = 16, 1_000
    with chaos(tmp_path / "told", {"url": f"file://{tmp_path}/store"}) as scene:
        for _ in range(producers):
            scene.start(role="ingest", calls=flushes, flush_size_bytes=0, at_once=True)
        for process in list(scene.running):
            scene.finish(process)
        lines = scene.lines()
    manifest = json.loads((tmp_path / "store" / "ingest" / "manifest.json").read_bytes())
    queued = [entry for location in manifest["pending"] for entry in entries_at(tmp_path / "store" / location)]

    assert len(set(manifest["pending"])) == len(manifest["pending"])
    assert sorted(queued) == sorted(line["entry"] for line in lines if line["word"] == "durable")
    assert len(queued) == producers * flushes
    for number in range(1, producers + 1):
        ours = [entry for entry in queued if entry.startswith(f"s{number}.")]
        assert ours == [f"s{number}.{each}" for each in range(flushes)]
    conflicts, writes = (
        sum(line["count"] for line in lines if line["word"] == word) for word in ("conflicts", "writes")
    )
    print(f"{writes} writes of the manifest, {conflicts} of them refused")
    assert conflicts < 5 * (writes - conflicts), "producers starve each other"


def entries_at(path: Path) -> list[str]:
    return [entry.value.decode() for entry in decode_batch(path.read_bytes())]
