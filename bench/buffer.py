"""`make bench-buffer`: how fast, how soon and how small the buffer is, on local files, real S3 and in memory.

"Far" is with an injected latency, 30 ms in the median of the round trips. `--only PART`, as often as wanted, runs parts
by themselves; each takes a few minutes at most.
"""

import argparse
import asyncio
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from random import Random
from typing import Any

from bench.buffer_support import (
    CLOCK,
    KIB,
    MIB,
    NO_WATERMARK,
    Open,
    drain,
    far,
    in_virtual_time,
    ingestor,
    local_places,
    paced,
    percentile,
    pour,
    round_trips,
    seaweed_places,
    some_entries,
    text,
)
from bench.figures import figure
from lakehead.buffer.collector import Collector
from lakehead.buffer.config import BatchFormat, CollectorConfig
from lakehead.buffer.layout import new_batch_key
from lakehead.clock import Clock
from lakehead.ids import RandomIds
from lakehead.storage.memory_store import MemoryStore
from lakehead.storage.port import Created, Exists, Store
from lakehead.wire.batch import KeyValueEntry
from lakehead.wire.queue_manifests import ProducerManifest

TURNS = 5
STORE_TURNS = 3
INTERVAL = 0.1
MANIFEST = "ingest/manifest.json"
UNFLUSHED = 256 * MIB
BUSY_BATCHES = 200


async def formats() -> None:
    """Both formats through `ingest` into memory, and back; the figure is for text of 10 KiB."""
    for title, size, count, call, make in (
        ("text", 100, 100_000, 1000, text),
        ("noise", 10 * KIB, 6_000, 50, Random.randbytes),
        ("text", 10 * KIB, 6_000, 50, text),
    ):
        entries = some_entries(size, count, make)
        mb = sum(entry.size for entry in entries) / 1e6
        rates: dict[BatchFormat, list[tuple[float, ...]]] = {each: [] for each in BatchFormat}
        for _ in range(TURNS):
            for batch_format in BatchFormat:
                store, cpu = MemoryStore(clock=CLOCK), time.process_time()
                took = await pour(store, entries, batch_format, call)
                cpu = time.process_time() - cpu
                out, _ = await drain(store)
                rates[batch_format].append((mb / took, mb / cpu, mb / out))
        for batch_format, turns in rates.items():
            told, alone, back = (statistics.median(each) for each in zip(*turns, strict=True))
            print(
                f"memory, {title} of {size:,} bytes, {batch_format.value}: in {told:,.0f} MB/s, "
                f"{told / mb * count:,.0f} entries/s ({alone:,.0f} MB a second of CPU); out {back:,.0f} MB/s, "
                f"{back / mb * count:,.0f} entries/s",
                flush=True,
            )
        pairs = zip(rates[BatchFormat.COMPACT], rates[BatchFormat.JSON], strict=True)
        ratio = statistics.median(ours[0] / theirs[0] for ours, theirs in pairs)
        print(f"memory, {title} of {size:,} bytes: compact is written at {ratio:.2f} of JSON's rate")
    figure("buffer.compact_mb_s", statistics.median(rate for rate, *_ in rates[BatchFormat.COMPACT]), ">=", 200)


async def stores() -> None:
    """Everything in and out of one process, near and far, and how soon a lone writer's entries are durable.

    Formats are compared where batches are meant to go: text of 10 KiB into S3, near.
    """
    for name, places in (("local files", local_places), ("S3", seaweed_places)):
        with places() as new:
            for distance in ("near", "far"):
                ratio = await _one_store(f"{name}, {distance}", new, is_far=distance == "far")
                if (name, distance) == ("S3", "near"):
                    figure("buffer.compact_vs_json", ratio, ">=", 3)


async def _one_store(title: str, new: Callable[[], Open], *, is_far: bool) -> float:
    """Print what is measured; how many times JSON's rate the compact format's is, into the store, for 10 KiB."""

    def opened() -> Store:
        store = new()()
        return far(store, 1) if is_far else store

    for size, count, call in ((100, 50_000, 500), (10 * KIB, 3_000, 50)):
        entries = some_entries(size, count)
        mb = sum(entry.size for entry in entries) / 1e6
        rates: dict[BatchFormat, list[tuple[float, float]]] = {each: [] for each in BatchFormat}
        for _ in range(STORE_TURNS):
            for batch_format in BatchFormat:
                store = opened()
                took = await pour(store, entries, batch_format, call)
                out, found = await drain(store)
                if found != count:
                    raise AssertionError(f"{found} entries of {count} came out")
                rates[batch_format].append((mb / took, mb / out))
        for batch_format, turns in rates.items():
            told, back = (statistics.median(each) for each in zip(*turns, strict=True))
            print(
                f"{title}, {size:,} bytes, {batch_format.value}: in {told:,.1f} MB/s, {told / mb * count:,.0f} "
                f"entries/s; out {back:,.1f} MB/s, {back / mb * count:,.0f} entries/s",
                flush=True,
            )
    took_each = await paced([ingestor(opened())], seconds=4, every=0.005)
    print(f"{title}, durable after {_spread(took_each)}", flush=True)
    pairs = zip(rates[BatchFormat.COMPACT], rates[BatchFormat.JSON], strict=True)
    return statistics.median(ours[0] / theirs[0] for ours, theirs in pairs)


async def durable() -> None:
    """Writers on one manifest, far: the 99th percentile against the interval and as many round trips' 99th as allowed.

    A write takes two round trips, and every writer may have to wait for all others: 2P, and 3 for its own batch.
    """
    count = 4
    allowed = 2 * count + 3

    async def measure(place: Open, clock: Clock) -> float:
        trips = await round_trips(far(place(), 0, clock), clock=clock)
        writers = [ingestor(far(place(), 1 + number, clock), clock=clock) for number in range(count)]
        took = await paced(writers, seconds=40, every=0.01, clock=clock)
        over = {
            percent: percentile(took, percent) / (INTERVAL + allowed * percentile(trips, percent))
            for percent in (50, 99)
        }
        print(
            f"round trips {_spread(trips)}; {count} writers, durable after {_spread(took)}: {over[50]:.2f} and "
            f"{over[99]:.2f} of the interval and {allowed} such round trips",
            flush=True,
        )
        return over[99]

    print("in virtual time: ", end="")
    await asyncio.to_thread(in_virtual_time, measure)
    with local_places() as new:
        print("on local files: ", end="")
        figure("buffer.durable_p99_over_bound", await measure(new(), CLOCK), "<=", 1)


async def contention() -> None:
    """How many manifest writes are refused for one that succeeds, with more and more writers, far."""

    async def measure(place: Open, clock: Clock, count: int) -> float:
        writers = [ingestor(far(place(), number, clock), clock=clock) for number in range(count)]
        took = await paced(writers, seconds=30, every=0.02, clock=clock)
        tries = sum(each.counts.manifest_writes["producer"] for each in writers)
        refused = sum(each.counts.manifest_conflicts["producer"] for each in writers)
        flushed = sum(each.counts.batches_flushed for each in writers)
        failed = sum(each.counts.flushes_failed for each in writers)
        print(
            f"{count} writers, {tries - refused:,} writes for {flushed:,} batches, {refused:,} refused, {failed} "
            f"batches given up; durable after {_spread(took)}",
            flush=True,
        )
        return refused / (tries - refused)

    with local_places() as new:
        for count in (1, 4, 16):
            print("in virtual time: ", end="")
            await asyncio.to_thread(in_virtual_time, lambda place, clock, count=count: measure(place, clock, count))
            print("on local files: ", end="")
            last = await measure(new(), CLOCK, count)
    figure("buffer.rejected_per_success_16", last, "<=", 2)


def _spread(seconds: Sequence[float]) -> str:
    return f"p50 {percentile(seconds, 50) * 1000:.0f} ms, p99 {percentile(seconds, 99) * 1000:.0f} ms"


class Stalled(MemoryStore):
    """A store that never takes a batch."""

    async def create(self, key: str, body: bytes) -> Created | Exists:
        if key.endswith(".batch"):
            await asyncio.get_running_loop().create_future()
        return await super().create(key, body)


async def stall(batch_format: BatchFormat) -> None:
    """In a process of its own: fill an ingestor until it takes no more, and print what is resident."""
    before = _resident()
    writer = ingestor(Stalled(clock=CLOCK), batch_format=batch_format, max_unflushed_bytes=UNFLUSHED)
    while True:
        entries = [KeyValueEntry(b"key", os.urandom(10 * KIB)) for _ in range(100)]  # nothing for zstd to gain
        try:
            await asyncio.wait_for(writer.ingest(entries), timeout=5)
        except TimeoutError:
            break
    print(json.dumps({"before": before, "peak": _resident("VmHWM"), "now": _resident()}), flush=True)
    os._exit(0)  # what is stalled would never be closed


def _resident(which: str = "VmRSS") -> int:
    # Not by getrusage, whose peak begins with that of the process that started this one.
    found = re.search(rf"{which}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    if found is None:
        raise OSError(f"This system does not tell {which} of a process, so its memory cannot be measured.")
    return int(found.group(1)) * KIB


async def memory() -> None:
    """The most that is resident while the store takes nothing, the interpreter and all libraries included."""
    bound, peaks = 1.5 * UNFLUSHED + 64 * MIB, []
    for batch_format in BatchFormat:
        child = [sys.executable, "-m", "bench.buffer", "--stall", batch_format.value]
        ran = await asyncio.to_thread(subprocess.run, child, check=True, capture_output=True, timeout=120)
        told = json.loads(ran.stdout)
        peaks.append(told["peak"])
        shown = ", ".join(f"{name} {value / MIB:,.0f} MiB" for name, value in told.items())
        print(f"{batch_format.value}, {UNFLUSHED / MIB:.0f} MiB unflushed: {shown}; bound {bound / MIB:,.0f} MiB")
    figure("buffer.memory_over_bound", max(peaks) / bound, "<=", 1)


async def backlog() -> None:
    """What a flush costs behind 10 and behind 10,000 locations that wait, far."""
    few, many = 10, 10_000
    took: dict[int, list[float]] = {few: [], many: []}
    with local_places() as new:
        writers = {}
        for pending in took:
            store = new()()
            locations = tuple(new_batch_key("ingest", RandomIds()) for _ in range(pending))
            await store.create(MANIFEST, ProducerManifest(pending=locations, data_path_prefix="ingest").encode())
            writers[pending] = ingestor(far(store, pending), interval=0.001)
        entry = some_entries(KIB, 1)
        for _ in range(150):
            for pending, writer in writers.items():
                began = time.perf_counter()
                await (await writer.ingest(entry)).await_durable()
                took[pending].append(time.perf_counter() - began)
        for writer in writers.values():
            await writer.close()
    for pending, each in took.items():
        print(f"behind {pending:,}: {_spread(each)}")
    figure("buffer.backlog_growth", percentile(took[many], 50) / percentile(took[few], 50), "<=", 2)


async def partitions() -> None:
    """How fast a queue of 64 partitions is read of which one is busy, against one that has only that, far."""
    entry = some_entries(KIB, 1)

    async def rate(place: Open, clock: Clock, count: int) -> float:
        """Batches a second, each acknowledged by itself."""
        near = ingestor(place(), clock=clock, interval=0.001, flush_size_bytes=0, partitions=count)
        async with near:
            for _ in range(BUSY_BATCHES):
                await near.ingest(entry)
        began, found = clock.monotonic(), 0
        async with Collector(
            CollectorConfig(object_store_config=NO_WATERMARK), clock, store=far(place(), 1, clock)
        ) as reader:
            while found < BUSY_BATCHES:
                batch = await reader.next_batch(timeout=None)
                if batch is not None:
                    found += 1
                    await reader.ack(batch)
            return found / (clock.monotonic() - began)

    async def measure(new: Callable[[], Open], clock: Clock) -> float:
        alone, busy = await rate(new(), clock, 1), await rate(new(), clock, 64)
        print(f"{alone:.1f} batches a second from one partition, {busy:.1f} from one of 64", flush=True)
        return busy / alone

    def in_memory(_: Open, clock: Clock) -> Coroutine[Any, Any, float]:
        def new() -> Open:
            inner = MemoryStore(clock=clock)
            return lambda: inner

        return measure(new, clock)

    print("in virtual time: ", end="")
    await asyncio.to_thread(in_virtual_time, in_memory)
    with local_places() as new:
        print("on local files: ", end="")
        figure("buffer.busy_of_64_partitions", await measure(new, CLOCK), ">=", 0.8)


PARTS: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {
    each.__name__: each for each in (formats, durable, contention, memory, backlog, partitions, stores)
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", choices=PARTS, help="a part to run; all of them by default")
    parser.add_argument("--stall", type=BatchFormat, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.stall is not None:
        asyncio.run(stall(chosen.stall))
    for name in chosen.only or PARTS:
        asyncio.run(PARTS[name]())


if __name__ == "__main__":
    main()
