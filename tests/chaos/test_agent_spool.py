"""An agent's spool in processes that are killed, at each step and under load, and on a disk that is really full."""

import asyncio
import os
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest

from lakehead.agent.spool import Spool
from lakehead.agent.spool_disk import open_local_spool_disk
from lakehead.agent.spool_errors import SpoolFull
from lakehead.agent.spool_settings import SpoolSettings
from lakehead.wire.agent_journal import JournalHead, JournalItem, encode_records
from lakehead.wire.batch_identity import BatchIdentity
from lakehead.wire.frame import decode_frame
from lakehead.wire.record_schemas import SAMPLES_V2, FrameKind
from tests.chaos.agent_spool_child import AGENT, DEEDS, main, open_spool, request, sample
from tests.support.async_tests import run_bounded
from tests.support.costs import Mechanism, add
from tests.support.effort import effort
from tests.support.folders import folder_in_memory
from tests.support.forks import Forked, forked
from tests.unit.wire.journals import pieces_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(effort(120, soak=3_000))]

MOST_STEPS = 500
BLOWS = effort(4, soak=300)
LEFT = [0, 1, 2, 3]
"""What was promised before: the first and second are a frame, the others a journal that a crash left."""


@dataclass
class Told:
    """What processes told before they were killed."""

    promised: set[int] = field(default_factory=set)
    accepted: set[int] = field(default_factory=set)
    ready: dict[tuple[str, int, int], tuple[str, str]] = field(default_factory=dict)
    """The hash and the values of each batch that could be sent."""

    died: str = ""

    def read(self, line: str) -> None:
        word, _, rest = line.partition(" ")
        match word:
            case "promised":
                self.promised.add(int(rest))
            case "accepted":
                self.accepted.add(int(rest))
            case "ready":
                boot, first, last, digest, values = rest.split(" ")
                before = self.ready.setdefault((boot, int(first), int(last)), (digest, values))
                assert before == (digest, values), "the bytes of an identity changed"
            case "died":
                self.died = rest
            case _:
                raise AssertionError(line)


async def prepare(folder: Path) -> None:
    """A spool with a frame and a journal of an earlier start."""
    with open_local_spool_disk(folder) as disk:
        async with open_spool(disk) as spool:
            for value in LEFT[:2]:
                await spool.append(FrameKind.SAMPLES, sample(value), request(value))
    left = [
        JournalItem(number, encode_records(FrameKind.SAMPLES, sample(value)), request(value))
        for number, value in enumerate(LEFT[2:])
    ]
    head = JournalHead(FrameKind.SAMPLES, AGENT, "boot-of-the-crash", 0)
    (folder / "entries" / f"{7:020}").write_bytes(b"".join(pieces_of(left, head)))


async def look(folder: Path, told: Told) -> None:
    """See that the next start has all that was promised, once, in bytes that never change."""
    with open_local_spool_disk(folder) as disk:
        async with open_spool(disk) as spool:
            found: Counter[int] = Counter()
            identities: list[BatchIdentity] = []
            for entry in (*spool.waiting(), *spool.parked()):
                batch = await spool.read(entry)
                assert batch is not None
                identities.append(one := entry.identity)
                values = [int(each) for each in decode_frame(batch.body).records.column("value").to_pylist()]
                found.update(values)
                line = f"{one.boot_id} {one.seq_start} {one.seq_end} {batch.sha256} {','.join(map(str, values))}"
                told.read(f"ready {line}")
            assert set(found.values()) <= {1}, f"twice: {found}"
            assert told.promised <= found.keys() | told.accepted, "lost"
            for index, one in enumerate(identities):
                assert not any(one.overlaps(other) for other in identities[index + 1 :]), "a number was used again"
            assert spool.status().damaged == 0
            assert list((folder / "tmp").iterdir()) == []
            for value in found.keys() | told.promised:
                spooled = await spool.append(FrameKind.SAMPLES, sample(value), request(value))
                assert spooled.duplicate, f"{value} is on disk, and would be spooled again"
            new = max([*found, *told.promised], default=0) + 1
            assert not (await spool.append(FrameKind.SAMPLES, sample(new), request(new))).duplicate


@pytest.mark.parametrize("deed", DEEDS)
def test_a_process_killed_at_any_step_leaves_all_that_it_promised_once(deed: str) -> None:
    deaths: Counter[str] = Counter()
    with forked(main, "serve-deaths") as server, folder_in_memory() as root:
        run_bounded(prepare(root / "before"))
        for step in range(1, MOST_STEPS):
            folder, told = root / "spool", Told(set(LEFT))
            shutil.copytree(root / "before", folder)
            server.stdin.write(f"{deed} {step} {folder}\n")
            server.stdin.flush()
            code = read_until_exit(server, told)
            assert code == (-signal.SIGKILL if told.died else 0)
            asyncio.run(look(folder, told))
            shutil.rmtree(folder)
            if not told.died:
                break
            deaths[told.died] += 1
            add(Mechanism.KILLS)
        else:
            pytest.fail(f"{deed} never came to its end: {deaths}")
    assert {"open", "write", "fsync", "rename"} <= deaths.keys(), deaths
    assert deaths["in write"] > 1, deaths


def read_until_exit(server: Forked, told: Told) -> int:
    for line in iter(server.stdout.readline, ""):
        if line.startswith("exit "):
            return int(line.removeprefix("exit "))
        told.read(line[:-1])
    pytest.fail("the child ended before it said how")


def test_a_process_killed_under_load_leaves_all_that_it_promised_once(tmp_path: Path) -> None:
    folder, told, random = tmp_path / "spool", Told(), Random(1)
    for blow in range(BLOWS):
        with forked(main, "under-load", folder, str(blow * 1_000_000), str(blow)) as child:
            for _ in range(random.randrange(50, 1_500)):
                read_load(child.stdout.readline(), told)
            child.kill()
            for line in child.stdout.read().split("\n")[:-1]:
                read_load(f"{line}\n", told)
        run_bounded(look_at_load(folder, told))
    assert len(told.promised) > 10 * BLOWS
    assert told.accepted


def read_load(line: str, told: Told) -> None:
    assert line.endswith("\n"), "the child ended by itself"
    if not line.startswith("ready"):
        told.read(line[:-1])


async def look_at_load(folder: Path, told: Told) -> None:
    with open_local_spool_disk(folder) as disk:
        async with open_spool(disk) as spool:
            found: Counter[int] = Counter()
            identities: list[BatchIdentity] = []
            for entry in spool.waiting():
                batch = await spool.read(entry)
                assert batch is not None
                identities.append(entry.identity)
                found.update(int(each) for each in decode_frame(batch.body).records.column("value").to_pylist())
            assert set(found.values()) <= {1}, "twice"
            assert told.promised <= found.keys() | told.accepted, "lost"
            ends = sorted((one.boot_id, one.seq_start, one.seq_end) for one in identities)
            assert all(one[0] != other[0] or one[2] < other[1] for one, other in pairwise(ends)), (
                "a number was used again"
            )
            for value in sorted(told.promised)[-100:]:
                assert (await spool.append(FrameKind.SAMPLES, sample(value), request(value))).duplicate
            assert spool.status().damaged == 0


# --- a small disk


@contextmanager
def small_disk(folder: Path) -> Iterator[bool]:
    """A disk of 512 KiB at a folder, if this user may mount one. Yields whether it is there."""
    folder.mkdir()
    is_mounted = os.geteuid() == 0 and _run("mount", "-t", "tmpfs", "-o", "size=512k", "none", folder)
    try:
        yield is_mounted
    finally:
        if is_mounted:
            assert _run("umount", "-l", folder)


def _run(program: str, *words: object) -> bool:
    path = shutil.which(program)
    return path is not None and subprocess.run([path, *map(str, words)], check=False).returncode == 0


def test_a_disk_that_is_really_full_loses_nothing_and_gets_empty_again(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as is_mounted:
        if not is_mounted:
            pytest.skip("this user may not mount a small disk")
        run_bounded(_fill(tmp_path / "disk" / "spool"))


async def _fill(folder: Path) -> None:
    settings = SpoolSettings(batch_seconds=0.01, batch_bytes=64 << 10, reserve_bytes=100_000)
    promised: set[int] = set()
    value = 0
    for _ in range(3):
        with open_local_spool_disk(folder) as disk:
            async with open_spool(disk, settings) as spool:
                refused = 0
                while refused < 20:
                    records = await asyncio.to_thread(_random_samples, value, 50)
                    try:
                        await spool.append(FrameKind.SAMPLES, records, request(value))
                    except SpoolFull:
                        refused += 1
                        await asyncio.sleep(0.01)
                    else:
                        promised.add(value)
                    value += 1
                await spool.seal_now()
                assert await _values(spool) == promised
        with open_local_spool_disk(folder) as disk:
            async with open_spool(disk, settings) as spool:
                assert await _values(spool) == promised, "the next start has them too"
                for entry in spool.waiting():
                    await spool.accepted(entry)
                promised.clear()


async def _values(spool: Spool) -> set[int]:
    found: set[int] = set()
    for entry in spool.waiting():
        batch = await spool.read(entry)
        assert batch is not None
        found.update(int(each) for each in decode_frame(batch.body).records.column("value").to_pylist())
    return found


def _random_samples(value: int, rows: int) -> pa.RecordBatch:
    """Samples that cannot be compressed much."""
    random = Random(value)
    row = {"time": 0, "labels": [], "type": "gauge", "value": float(value)}
    rows_ = [{**row, "metric": random.randbytes(50).hex()} for _ in range(rows)]
    return pa.RecordBatch.from_pylist(rows_, schema=SAMPLES_V2)
