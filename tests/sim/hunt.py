"""Looking for a seed that breaks a scenario, on every core."""

import gc
import multiprocessing
import sys
import time
from concurrent.futures import ProcessPoolExecutor

from tests.sim.scenarios import KNOWN
from tests.sim.world import Report, simulate

CHUNK = 500
PROGRESS_SECONDS = 2.0


def hunt(name: str, seeds: range) -> Report | None:
    """The first seed found that breaks the scenario, telling how far it has got meanwhile. Uses every core."""
    began = told = time.monotonic()
    chunks = [seeds[start : start + CHUNK] for start in range(0, len(seeds), CHUNK)]
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool:
        for done, broken in enumerate(pool.map(first_broken, [name] * len(chunks), chunks), 1):
            if broken is not None:
                pool.shutdown(wait=False, cancel_futures=True)
                return simulate(KNOWN[name], broken)
            if (now := time.monotonic()) - told > PROGRESS_SECONDS:
                told = now
                print(f"  {name}: {done * CHUNK:,} of {len(seeds):,} seeds", file=sys.stderr)
    rate = len(seeds) / (time.monotonic() - began)
    print(f"{name}: {len(seeds):,} seeds, nothing found ({rate:,.0f} seeds a second)")
    return None


def first_broken(name: str, seeds: range) -> int | None:
    """The first of some seeds that breaks the scenario."""
    gc.disable()  # a seed leaves little behind; collecting now and then is faster
    try:
        return next((seed for seed in seeds if simulate(KNOWN[name], seed).failure is not None), None)
    finally:
        gc.enable()
        gc.collect()
