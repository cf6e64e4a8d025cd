"""What stands so far, at work: object storage that processes share without a server, and the simulator that tries it.

Run it with `python -m examples.storage_and_simulator`. It needs nothing but the installation, and removes what it made.
"""

import asyncio
import json
import multiprocessing
import os
import signal
import tempfile
import time
from pathlib import Path

from lakehead.ids import RandomIds
from lakehead.storage.open_store import open_store
from lakehead.storage.port import Created, Replaced, Store
from lakehead.storage.probe import probe
from tests.sim.scenarios import BROKEN, SOUND
from tests.support.simulation import simulate

PROCESSES, INCREMENTS = 4, 50
SEEDS = 1_000


async def increment(store: Store, who: str) -> None:
    """Add one to a shared counter by compare-and-set, as often as it takes to win."""
    while True:
        there = await store.get("counter.json")
        if there is None:
            raise LookupError("the counter is gone")
        counts: dict[str, int] = json.loads(there.body)
        counts[who] = counts.get(who, 0) + 1
        if isinstance(await store.replace("counter.json", json.dumps(counts).encode(), there.meta.version), Replaced):
            return


def work(url: str, who: str) -> None:
    """One process of its own, which shares nothing with the others but the store's URL."""

    async def increments() -> None:
        store = open_store(url)
        for _ in range(INCREMENTS):
            await increment(store, who)

    asyncio.run(increments())


async def show_storage(folder: Path) -> None:
    """Processes count together on local files, and one of them is killed on the way."""
    url = f"file://{folder}/store"
    store = open_store(url)
    await probe(store, ids=RandomIds())
    print(f"1. {url} honours both preconditions: create only if absent, replace only this version.")

    race = await asyncio.gather(*(store.create("winner", f"writer {n}".encode()) for n in range(16)))
    winner = await store.get("winner")
    won = sum(isinstance(answer, Created) for answer in race)
    print(f"2. 16 writers create one object at once: {won} wins ({winner.body.decode() if winner else '?'}).")

    await store.create("counter.json", b"{}")
    spawn = multiprocessing.get_context("spawn")
    processes = [spawn.Process(target=work, args=(url, f"process {n}")) for n in range(PROCESSES + 1)]
    for process in processes:
        process.start()
    doomed = processes[-1]
    while doomed.is_alive():  # until it has counted at least once
        there = await store.get("counter.json")
        if doomed.pid is not None and there is not None and f"process {PROCESSES}" in json.loads(there.body):
            os.kill(doomed.pid, signal.SIGKILL)
            break
        await asyncio.sleep(0.01)
    for process in processes:
        process.join()
    there = await store.get("counter.json")
    counts = json.loads(there.body) if there else {}
    lost = sum(INCREMENTS - counts.get(f"process {n}", 0) for n in range(PROCESSES))
    print(f"3. {PROCESSES} processes count to {INCREMENTS} each in one object, a fifth is killed with -9 on the way:")
    for who, count in sorted(counts.items()):
        print(f"     {who}: {count}{'  (killed)' if who == f'process {PROCESSES}' else ''}")
    files = sorted(path.name for path in (folder / "store").iterdir())
    print(f"   increments lost: {lost}. The files are plain: {', '.join(files)}")


def show_simulator() -> None:
    """A queue that is wrong in a way that tests rarely see, and the same queue done right."""
    print(f"4. A queue that appends again when it is not sure, under simulated faults and crashes ({SEEDS:,} seeds):")
    for seed in range(SEEDS):
        report = simulate(BROKEN["append_again_queue"], seed)
        if report.failure is not None:
            print(f"     caught by seed {seed}: {report.failure}")
            again = simulate(BROKEN["append_again_queue"], seed)
            print(f"     run again, it takes {'the same' if again.trace == report.trace else 'another'} course")
            print(f"     replay it: make sim SCENARIO=append_again_queue SEED={seed}")
            break
    began = time.monotonic()
    found = sum(simulate(SOUND["careful_queue"], seed).failure is not None for seed in range(SEEDS))
    rate = SEEDS / (time.monotonic() - began)
    print(f"5. The same queue, looking before it appends again: {found} of {SEEDS:,} seeds break it ({rate:,.0f}/s).")


def main() -> None:
    """Show both."""
    print("Lakehead's ground: object storage and simulator. (The table pipeline is not here yet.)\n")
    with tempfile.TemporaryDirectory(prefix="lakehead-demo-") as folder:
        asyncio.run(show_storage(Path(folder)))
    show_simulator()


if __name__ == "__main__":
    main()
