"""`make bench-gateway`: how fast and how soon gateways accept batches, beside a server that checks nothing.

Each batch is a frame of 1,000 samples, on a real S3 server. Parts: rate, latency, scaling, memory, decode. Each can be
run alone: `python -m bench.gateway rate decode`. What is compared takes turns within one run.
"""

import argparse
import hashlib
import signal
import statistics
import sys
import time
from collections.abc import Callable, Coroutine, Sequence

import google_crc32c
import pyarrow as pa
import zstandard

from bench.buffer_support import percentile
from bench.gateway_frames import RECORDS, Frames
from bench.gateway_servers import BatchServer, GatewayBench, Turn, open_bench, store_round_trips
from bench.kept_results import KeptResults
from bench.server_process import watched_memory
from lakehead.gateway.frame_decoder import FrameDecoder
from lakehead.gateway.settings import IngestSettings
from lakehead.wire.frame import peek_frame

TURNS = 5
RATE_BATCHES = 400
LATENCY_MS, LATENCY_SECONDS = 30.0, 8.0
SCALING_MS, SCALING_CONNECTIONS, SCALING_BATCHES, SCALING_TURNS = 100.0, 16, 300, 3
SOAK_BATCHES, SOAK_PARTS = 4_000, 20
DECODED = 2_000
"""How often a frame is decoded, each time after the floor: in a gateway neither finds its code in the cache."""


def rate(bench: GatewayBench, results: KeptResults) -> None:
    """Batches a second over 8 and 64 connections, and how long each takes, of a gateway and a bare server in turns."""
    servers: dict[str, BatchServer] = {"gateway": bench.gateway(), "bare": bench.bare()}
    for connections in (8, 64):
        turns: list[dict[str, Turn]] = [
            {
                name: bench.turn([server], connections=connections, batches=RATE_BATCHES)
                for name, server in (servers.items() if number % 2 else reversed(servers.items()))
            }
            for number in range(TURNS + 1)
        ][1:]  # the first one warms up
        for name in servers:
            each = [turn[name] for turn in turns]
            answered = [seconds for turn in each for seconds in turn.loaded.latencies]
            results.tell(
                f"{name}, {connections} connections: {_rates(each)}; answers {_spread(answered)}; {_cpu(each)}"
            )
        ratio = statistics.median(turn["gateway"].rate / turn["bare"].rate for turn in turns)
        results.judge(f"gateway.rate_vs_bare.{connections}", ratio, ">=", 0.7)
    batches = 2 * (TURNS + 1) * RATE_BATCHES
    results.tell(
        f"{bench.objects() / batches:.2f} objects a batch: a blob, its entry and the identity manifest before the "
        "answer, two indexes after it, and the landing queue's; the bare server makes the first five"
    )


def latency(bench: GatewayBench, results: KeptResults) -> None:
    """How long answers take at half load while the store is 30 ms away."""
    endpoint = bench.far(LATENCY_MS)
    gateway = bench.gateway(endpoint)
    trip = percentile(store_round_trips(bench.url, bench.seaweed, endpoint), 50)
    bench.turn([gateway], connections=64, batches=RATE_BATCHES)
    full = bench.turn([gateway], connections=64, batches=2 * RATE_BATCHES)
    half = full.rate / 2
    turn = bench.turn([gateway], connections=128, batches=int(LATENCY_SECONDS * half), per_second=half)
    found = turn.loaded.latencies
    results.tell(
        f"the store {LATENCY_MS:.0f} ms away, its round trip {trip * 1e3:.0f} ms in the median; full load "
        f"{full.rate:,.0f} batches/s; at half of it answers {_spread(found)}; {_cpu([turn])}"
    )
    results.judge("gateway.p99_over_bound", percentile(found, 99) / (3 * trip + 0.05), "<=", 1)


def scaling(bench: GatewayBench, results: KeptResults) -> None:
    """Four gateways against one, with 16 connections each and the store 100 ms away."""
    endpoint = bench.far(SCALING_MS)
    gateways = [bench.gateway(endpoint) for _ in range(4)]

    def measured(count: int) -> Turn:
        return bench.turn(gateways[:count], connections=SCALING_CONNECTIONS, batches=count * SCALING_BATCHES)

    measured(4)  # which warms them up
    turns = [(measured(1), measured(4)) for _ in range(SCALING_TURNS)]
    for name, each in zip(("one gateway", "four gateways"), zip(*turns, strict=True), strict=True):
        answered = statistics.median(map(_answered_rate, each))
        results.tell(f"{name}, the store {SCALING_MS:.0f} ms away: {answered:,.0f} batches/s; {_cpu(each)}")
    more = statistics.median(_answered_rate(four) / _answered_rate(one) for one, four in turns)
    results.judge("gateway.scaling_4", more, ">=", 3.5)
    results.judge(
        "gateway.cpu_per_batch_4", statistics.median(four.cpu_ms / one.cpu_ms for one, four in turns), "<=", 1.15
    )


def _rates(turns: Sequence[Turn]) -> str:
    rates = [turn.rate for turn in turns]
    return f"{statistics.median(rates):,.0f} batches/s ({min(rates):,.0f} to {max(rates):,.0f})"


def _spread(seconds: Sequence[float]) -> str:
    return f"p50 {percentile(seconds, 50) * 1e3:,.0f} ms, p99 {percentile(seconds, 99) * 1e3:,.0f} ms"


def _cpu(turns: Sequence[Turn]) -> str:
    clients = max(turn.loaded.client_cpu for turn in turns)
    each = statistics.median(turn.cpu_ms for turn in turns)
    idle = statistics.median(turn.loaded.idle for turn in turns)
    return f"{each:.2f} ms CPU a batch, the clients at {clients:.0%} of a core, the machine {idle:.0%} idle"


def _answered_rate(turn: Turn) -> float:
    """Batches a second up to the last answer: what follows takes one queue a round trip more, whoever writes to it."""
    return turn.loaded.requests / turn.loaded.seconds


def memory(bench: GatewayBench, results: KeptResults) -> None:
    """How much a gateway holds while it accepts some thousand batches: in the second half, and in the first."""
    gateway = bench.gateway()
    bench.turn([gateway], connections=32, batches=SOAK_BATCHES // 4)
    with watched_memory(gateway) as held:
        halves = []
        for _ in range(2):
            held.clear()
            for _ in range(SOAK_PARTS // 2):
                bench.turn([gateway], connections=32, batches=SOAK_BATCHES // SOAK_PARTS)
            halves.append(statistics.median(held))
    first, second = halves
    results.tell(f"{SOAK_BATCHES:,} batches: {first:.0f} MiB in the first half, {second:.0f} MiB in the second (PSS)")
    results.judge("gateway.memory_growth", second / first, "<=", 1.1)


def decode(_: GatewayBench | None, results: KeptResults) -> None:
    """What a gateway does to a body, beside what cannot be left out: hash, checksum, decompression, IPC."""
    body = b"".join(Frames().frame("agent-00", "boot", 0))
    header, decoder = peek_frame(body), FrameDecoder(IngestSettings())
    payload = memoryview(body)[header.payload_at :]

    def floor() -> None:
        hashlib.sha256(body).hexdigest()
        google_crc32c.value(body)
        plain = zstandard.ZstdDecompressor().decompress(payload, max_output_size=header.payload_bytes)
        pa.ipc.open_stream(plain).read_next_batch()

    def ours() -> None:
        _run_at_once(decoder.decode(body))

    turns = [(_seconds(floor), _seconds(ours)) for _ in range(DECODED)]
    floors, decodings = zip(*turns, strict=True)
    results.tell(
        f"a frame of {RECORDS:,} samples, {len(body):,} bytes, {header.payload_bytes:,} decompressed: floor "
        f"{statistics.median(floors) * 1e6:.0f} µs, decoded in {statistics.median(decodings) * 1e6:.0f} µs"
    )
    ratio = statistics.median(floors) / statistics.median(decodings)
    results.judge("gateway.decode_vs_floor", ratio, ">=", 0.7)


def _run_at_once(work: Coroutine[None, None, object]) -> None:
    """Run what waits for nothing: a frame of this size is decoded on the event loop."""
    try:
        work.send(None)
    except StopIteration:
        return
    raise RuntimeError("The frame was handed to a thread.")


def _seconds(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


PARTS: dict[str, Callable[[GatewayBench, KeptResults], None]] = {
    each.__name__: each for each in (rate, latency, scaling, memory)
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.gateway", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join([*PARTS, 'decode'])}; all by default")
    parser.add_argument("--keep", action="store_true", help="append machine, date, versions and figures to RESULTS.md")
    given = parser.parse_args()
    wanted = given.parts or [*PARTS, "decode"]
    if unknown := set(wanted) - {*PARTS, "decode"}:
        sys.exit(f"There is no part {unknown.pop()}. Parts: {', '.join([*PARTS, 'decode'])}.")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that servers and folders go, as on Ctrl-C
    results = KeptResults(
        "Gateways",
        "`make bench-gateway`: frames of 1,000 samples with six labels each, SeaweedFS and clients beside it.",
        ("pyarrow", "obstore", "uvicorn", "uvloop"),
    )
    for name, measure in PARTS.items():
        if name in wanted:
            with open_bench() as bench:  # servers of one part do not disturb the next
                measure(bench, results)
    if "decode" in wanted:
        decode(None, results)
    if given.keep:
        results.keep()


if __name__ == "__main__":
    main()
