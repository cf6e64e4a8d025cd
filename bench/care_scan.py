"""The part of the benchmark of care that is about the reconciler's cold scan: how fast it is, and what it holds."""

import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable

from bench.care_authority import Authority
from bench.kept_results import KeptResults
from bench.server_process import spread
from lakehead.wire import acceptance_keys as keys
from lakehead.wire.acceptance_records import IdentityManifest

TURNS = 4


async def cold_scan(name: str, authority: Authority, results: KeptResults, *, turns: int = TURNS) -> float:
    """Batches a second of a cold scan and of bare gets, in turns. Returns the median of their ratios."""
    batches = len(authority.frame_keys)
    async with authority.reconciling.opened() as reconciler:

        async def scan() -> None:
            report = await reconciler.cold_scan()
            if report.accepted != batches or report.done or report.wrong:
                raise RuntimeError(f"The cold scan of {batches:,} sound batches found other ones: {report}")

        async def bare() -> None:
            await get_all(authority, at_once=reconciler.settings.at_once)

        measured: dict[str, Callable[[], Awaitable[None]]] = {"cold scan": scan, "bare": bare}
        found = []
        for number in range(turns + 1):
            order = list(measured) if number % 2 else list(reversed(measured))
            found.append({each: await _rate(measured[each], batches) for each in order})
        del found[0]  # it warmed up
        verify, at_once = reconciler.settings.verify, reconciler.settings.at_once
    for each in measured:
        cpu = statistics.median(turn[each][1] for turn in found)
        results.tell(
            f"{name}, {each}: {spread([turn[each][0] for turn in found])} batches/s, each a manifest and a frame; "
            f"{cpu * 1e3:.2f} ms CPU of the process a batch ({batches:,} batches, {at_once} at once, verify {verify})"
        )
    return statistics.median(turn["cold scan"][0] / turn["bare"][0] for turn in found)


async def get_all(authority: Authority, *, at_once: int) -> None:
    """List all identity manifests, and get each and its frame: no more, through the same store."""
    store, limit = authority.store, asyncio.Semaphore(at_once)

    async def get(key: str) -> None:
        async with limit:
            manifest = await store.get(key, end=IdentityManifest.MAX_BYTES + 1)
            frame = await store.get(authority.frame_keys[key])
            if manifest is None or frame is None:
                raise RuntimeError(f"{key} or its frame is gone.")

    async for page in store.list(keys.ACCEPTED):
        await asyncio.gather(*(get(each.key) for each in page))


async def _rate(act: Callable[[], Awaitable[None]], batches: int) -> tuple[float, float]:
    """Batches a second, and the process's CPU seconds for each."""
    cpu, began = time.process_time(), time.perf_counter()
    await act()
    return batches / (time.perf_counter() - began), (time.process_time() - cpu) / batches


def memory(key_count: int, results: KeptResults) -> None:
    """What a reconciler holds while it scans very many keys: in the second half of them, and in the first."""
    command = [sys.executable, "-m", "bench.care_generated", str(key_count)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found = json.loads(done.stdout)
    first, second = found["peaks_mib"]
    results.tell(
        f"{key_count:,} accepted batches in a store that makes them up, verify size, as hashing would take hours: at "
        f"most {first:.0f} MiB in the first half, {second:.0f} MiB in the second (resident; {found['before_mib']:.0f} "
        f"MiB before the scan, medians {found['medians_mib'][0]:.0f} and {found['medians_mib'][1]:.0f}); "
        f"{key_count / found['seconds']:,.0f} batches/s"
    )
    results.judge("reconcile.memory_growth", second / first, "<=", 1.1)
