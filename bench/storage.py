"""`make bench-storage`: the stores beside what they are made of, and the simulator's speed.

Each figure compares two ways in one run, taking turns, and takes the median turn of each: the machine may be noisy,
the ratio less so.
"""

import asyncio
import gc
import os
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import obstore

from bench.figures import figure
from lakehead.storage.connect import Bucket, connect
from lakehead.storage.local_store import THREADS
from lakehead.storage.open_store import open_store
from tests.servers.seaweed import BUCKET, Seaweed
from tests.sim.scenarios import SOUND
from tests.support.simulation import simulate

IN_FLIGHT = 32
TURNS = 5
KIB = 1024
MIB = 1024 * KIB

Write = Callable[[str], Awaitable[object]]


async def rate(write: Write, count: int) -> float:
    """Writes per second with so many in flight."""
    names = iter([f"{uuid4()}" for _ in range(count)])

    async def worker() -> None:
        for name in names:
            await write(name)

    began = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(IN_FLIGHT)))
    return count / (time.perf_counter() - began)


async def compare(title: str, ours: Write, bare: Write, *, count: int) -> float:
    """Our rate as a part of the bare one: the median over turns, each of them a part of all writes."""
    await rate(ours, count // TURNS)  # connections, imports and caches are nobody's merit
    await rate(bare, count // TURNS)
    turns = [(await rate(ours, count // TURNS), await rate(bare, count // TURNS)) for _ in range(TURNS)]
    our_rate, bare_rate = (statistics.median(each) for each in zip(*turns, strict=True))
    print(f"{title}: {our_rate:,.0f} a second, bare {bare_rate:,.0f}")
    return statistics.median(ours / bare for ours, bare in turns)


@contextmanager
def seaweed() -> Iterator[Seaweed]:
    with tempfile.TemporaryDirectory() as folder:
        server = Seaweed(Path(folder))
        server.start()
        try:
            yield server
        finally:
            server.stop()


async def s3(server: Seaweed) -> None:
    store = open_store(f"s3://{BUCKET}/ours", server.settings())
    client = connect(Bucket("s3", BUCKET, "bare"), server.settings(), retries=0)
    small, large = os.urandom(KIB), os.urandom(MIB)

    async def bare_create(name: str) -> None:
        await obstore.put_async(client, name, small, mode="create")

    async def bare_put(name: str) -> None:
        await obstore.put_async(client, name, large)

    creates = await compare("S3, create 1 KiB", lambda name: store.create(name, small), bare_create, count=2_000)
    figure("storage.s3.create_1k", creates, ">=", 0.85)
    puts = await compare("S3, put 1 MiB", lambda name: store.put(name, large), bare_put, count=200)
    figure("storage.s3.put_1m", puts, ">=", 0.85)


async def local(folder: Path) -> None:
    """The bare way writes, forces and renames, in as many threads as our store has."""
    store = open_store(f"file://{folder}/ours")
    bare = folder / "bare"
    (bare / "tmp").mkdir(parents=True)
    body = os.urandom(KIB)

    def write(name: str) -> None:
        file = os.open(bare / "tmp" / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        os.write(file, body)
        os.fsync(file)
        os.close(file)
        (bare / "tmp" / name).rename(bare / name)

    with ThreadPoolExecutor(THREADS) as threads:

        async def bare_write(name: str) -> None:
            await asyncio.get_running_loop().run_in_executor(threads, write, name)

        creates = await compare("local, create 1 KiB", lambda name: store.create(name, body), bare_write, count=4_000)
    figure("storage.local.create", creates, ">=", 0.7)


def simulator() -> None:
    """Seeds per second of 4 clients and 20 store operations."""
    scenario, seeds, rates = SOUND["twenty_operations"], 1_000, []
    gc.disable()
    for turn in range(TURNS):
        began = time.perf_counter()
        for seed in range(turn * seeds, (turn + 1) * seeds):
            if (failure := simulate(scenario, seed).failure) is not None:
                raise failure
        rates.append(seeds / (time.perf_counter() - began))
        gc.collect()
    gc.enable()
    figure("sim.seeds_per_second", statistics.median(rates), ">=", 1000)


def main() -> None:
    with seaweed() as server:
        asyncio.run(s3(server))
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:  # a real disk; the usual place may be memory
        asyncio.run(local(Path(folder)))
    simulator()


if __name__ == "__main__":
    main()
