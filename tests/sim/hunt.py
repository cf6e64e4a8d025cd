"""Searching for a seed that breaks a scenario: in this process, or in a pool of processes."""

import gc
import logging
import sys
import time
from collections.abc import Iterable
from concurrent.futures import Executor

from tests.sim.scenarios import KNOWN
from tests.support.costs import Mechanism, add
from tests.support.simulation import simulate

CHUNK = 500
PROGRESS_SECONDS = 2.0


def first_broken(name: str, seeds: Iterable[int]) -> int | None:
    """Return the first of the seeds that breaks the scenario."""
    began, tried, scenario = time.perf_counter(), 0, KNOWN[name]
    logging.disable(logging.WARNING)  # faults are injected by the thousand
    gc.disable()  # a seed leaves little behind; collecting now and then is faster
    try:
        for tried, seed in enumerate(seeds, 1):
            if simulate(scenario, seed).failure is not None:
                return seed
            if tried % CHUNK == 0:
                gc.collect()
        return None
    finally:
        logging.disable(logging.NOTSET)
        gc.enable()
        gc.collect()
        add(Mechanism.SEEDS, tried, time.perf_counter() - began)


def hunt(name: str, seeds: range, pool: Executor) -> int | None:
    """Return the first seed found that breaks the scenario; print progress meanwhile."""
    began = printed_at = time.monotonic()
    chunks = [seeds[start : start + CHUNK] for start in range(0, len(seeds), CHUNK)]
    chunks_running = [pool.submit(first_broken, name, chunk) for chunk in chunks]
    for done, each in enumerate(chunks_running, 1):
        if (broken := each.result()) is not None:
            for other in chunks_running[done:]:
                other.cancel()
            return broken
        if (now := time.monotonic()) - printed_at > PROGRESS_SECONDS:
            printed_at = now
            print(f"  {name}: {done * CHUNK:,} of {len(seeds):,} seeds", file=sys.stderr)
    rate = len(seeds) / (time.monotonic() - began)
    print(f"{name}: {len(seeds):,} seeds, nothing found ({rate:,.0f} seeds a second)")
    return None
