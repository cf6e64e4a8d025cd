"""The processes with an agent's spool that the crash tests start and kill.

They tell the test what they were promised, before anybody could know it otherwise: a line for each.
"""

import asyncio
import os
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa

from lakehead.agent.spool import Spool
from lakehead.agent.spool_disk import open_local_spool_disk
from lakehead.agent.spool_entry import ParkReason
from lakehead.agent.spool_settings import SpoolSettings
from lakehead.clock import SystemClock
from lakehead.ids import RandomIds
from lakehead.wire.frame import decode_frame
from lakehead.wire.record_schemas import SAMPLES_V2, FrameKind
from lakehead.wire.request_id import RequestId
from tests.faults.failpoints import die

AGENT = "agent-a"
STEPS = ("mkdir", "open", "write", "fsync", "rename", "unlink", "ftruncate")
"""The functions of `os` by which the spool changes anything."""

BY_HAND = SpoolSettings(batch_seconds=3600, reserve_bytes=1000)
QUICK = SpoolSettings(batch_seconds=0.005, batch_records=40, reserve_bytes=1000)
WHY = ParkReason("identity_conflict")


def tell(line: str) -> None:
    """One line to the test, at once."""
    os.write(1, f"{line}\n".encode())


def sample(value: int, rows: int = 1) -> pa.RecordBatch:
    """Samples of one request, which have its number as their value."""
    row = {"time": 0, "metric": "up", "labels": [], "type": "gauge", "value": float(value)}
    return pa.RecordBatch.from_pylist([row] * rows, schema=SAMPLES_V2)


def request(value: int) -> RequestId:
    return RequestId(value.to_bytes(16, "big"), bytes(16))


def open_spool(disk: Any, settings: SpoolSettings = BY_HAND) -> Spool:
    return Spool(disk, agent_id=AGENT, clock=SystemClock(), ids=RandomIds(), settings=settings)


async def append(spool: Spool, *values: int) -> None:
    """Append requests at once, and tell of each that it is promised."""

    async def one(value: int) -> None:
        await spool.append(FrameKind.SAMPLES, sample(value), request(value))
        tell(f"promised {value}")

    await asyncio.gather(*map(one, values))


async def tell_ready(spool: Spool) -> None:
    """Tell of each batch that can be sent what its bytes are, as if it were sent now."""
    for entry in (*spool.waiting(), *spool.parked()):
        if (batch := await spool.read(entry)) is not None:
            one = entry.identity
            values = decode_frame(batch.body).records.column("value").to_pylist()
            told = ",".join(str(int(value)) for value in values)
            tell(f"ready {one.boot_id} {one.seq_start} {one.seq_end} {batch.sha256} {told}")


# --- what is done while it is killed


async def appending(spool: Spool) -> None:
    await append(spool, 10, 11, 12)
    await append(spool, 13)
    await append(spool, 14, 15)


async def sealing(spool: Spool) -> None:
    await append(spool, 10, 11)
    await spool.seal_now()
    await tell_ready(spool)
    await append(spool, 12)
    await spool.seal_now()
    await tell_ready(spool)


async def requeueing(spool: Spool) -> None:
    await append(spool, 10)
    await spool.requeue(spool.waiting()[0])
    await tell_ready(spool)
    await append(spool, 11)
    await spool.requeue(spool.waiting()[0])
    await tell_ready(spool)


async def parking(spool: Spool) -> None:
    parked = await spool.park(spool.waiting()[0], WHY)
    assert parked is not None
    await append(spool, 10)
    parked = await spool.requeue(parked)
    assert parked is not None
    await tell_ready(spool)
    await spool.unpark(parked)
    await tell_ready(spool)


async def accepting(spool: Spool) -> None:
    await append(spool, 10)
    for entry in spool.waiting():
        batch = await spool.read(entry)
        assert batch is not None
        for value in decode_frame(batch.body).records.column("value").to_pylist():
            tell(f"accepted {int(value)}")
        await spool.accepted(entry)


async def starting(spool: Spool) -> None:
    """Nothing: what is left over, and damaged, was dealt with when it was opened."""
    await tell_ready(spool)


DEEDS: dict[str, Callable[[Spool], Awaitable[None]]] = {
    each.__name__: each for each in (appending, sealing, requeueing, parking, accepting, starting)
}


# --- killed at one chosen step


def serve_deaths() -> None:
    """For each line `deed step folder`, carry it out in a process of its own that dies before that step.

    Its lines are followed by `exit` and its exit code. Forking spares the start of an interpreter for each death.
    """
    for line in sys.stdin:
        deed, step, folder = line.rstrip("\n").split(" ", 2)
        process = os.fork()
        if process == 0:
            asyncio.run(carry_out(deed, int(step), Path(folder)))
            os._exit(0)
        _, status = os.waitpid(process, 0)
        tell(f"exit {os.waitstatus_to_exitcode(status)}")


async def carry_out(deed: str, step: int, folder: Path) -> None:
    """Steps count from the start for what is about that, else from when the spool is open."""
    if deed == starting.__name__:
        die_at(step)
    with open_local_spool_disk(folder) as disk:
        async with open_spool(disk) as spool:
            if deed != starting.__name__:
                die_at(step)
            await DEEDS[deed](spool)


def die_at(step: int) -> None:
    """Make the process die just before so many steps. What comes after one comes before the next."""
    steps, tells = count(1), os.write

    def reach(moment: str) -> None:
        if next(steps) == step:
            time.sleep(0.005)  # so that what is promised too early is told
            tells(1, f"died {moment}\n".encode())
            die()

    def call(name: str, real: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if name == "write" and args[0] != 1 and len(args[1]) > 1:
            file, data = args
            reach("write")
            half: int = real(file, data[: len(data) // 2])
            reach("in write")
            return half + real(file, data[half:])
        if name != "write":
            reach(name)
        return real(*args, **kwargs)

    for name in STEPS:
        setattr(os, name, partial(call, name, getattr(os, name)))


# --- killed under load


async def under_load(folder: Path, first: int, seed: int) -> None:
    """Append, send and void for ever. Each task repeats what it was not promised, as senders do."""
    random = Random(seed)
    numbers = count(first)
    with open_local_spool_disk(folder) as disk:
        async with open_spool(disk, QUICK) as spool:
            tell("ready - 0 0 - ")

            async def give() -> None:
                while True:
                    value = next(numbers)
                    await append(spool, value)

            async def take() -> None:
                while True:
                    for entry in spool.waiting(limit=5):
                        batch = await spool.read(entry)
                        if batch is None or random.random() < 0.3:
                            continue
                        if random.random() < 0.4:
                            await spool.requeue(entry)
                            continue
                        for value in decode_frame(batch.body).records.column("value").to_pylist():
                            tell(f"accepted {int(value)}")
                        await spool.accepted(entry)
                    await asyncio.sleep(0.002)

            await asyncio.gather(*(give() for _ in range(8)), take())


def main(words: list[str]) -> None:
    """Do what the words say."""
    match words:
        case ["serve-deaths"]:
            serve_deaths()
        case ["under-load", folder, first, seed]:
            asyncio.run(under_load(Path(folder), int(first), int(seed)))
        case _:
            raise ValueError(words)
