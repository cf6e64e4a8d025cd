"""The part of the agent's benchmark that is about the whole path: from a sample given to a row that readers see.

Every step is a process of its own: an agent, a gateway, `lakehead consume` with a JVM, and a reader of the table.
"""

import json
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from bench.agent_processes import LAKEHEAD, AgentBench, AgentServer, request_head
from bench.buffer_support import percentile
from bench.http_load import Loaded
from bench.kept_results import KeptResults
from bench.server_process import Server
from bench.table_watch import TableWatch

TABLE = "bench.samples"
SAMPLES = 100
"""Samples in a request."""

CONNECTIONS = 16
SKIPPED_SECONDS, MEASURED_SECONDS = 10, 30
START_SECONDS, LATE_SECONDS = 180.0, 120.0


def freshness(bench: AgentBench, results: KeptResults) -> None:
    """From a request to an agent until a reader of the Iceberg table sees its samples, with a steady stream."""
    bench.authority()
    bench.gateway()
    lakehouse = bench.folder / "lakehouse"
    lakehouse.mkdir()  # so that the catalog can be opened before there is a table
    watch = TableWatch(lakehouse, TABLE, "value")
    path = _Path(bench, watch)
    with consuming(bench), watch:
        path.warm_up()
        results.tell(path.measured(20, batch_seconds=1.0)[1])
        p99, told = path.measured(20, batch_seconds=0.02)
        results.tell(told)
        results.judge("path.freshness_p99_seconds", p99, "<=", 6)
        results.tell(path.measured(100, batch_seconds=0.005)[1])


@dataclass(frozen=True, slots=True)
class JsonLoad:
    """Requests of some samples each, as JSON lines."""

    ports: Sequence[int]
    connections: int
    per_second: float
    first: int
    """The value of the samples of the first request. The next one's is one more."""

    bodies: int

    def requests(self) -> list[list[Any]]:
        """The requests, each in parts."""
        return [_request(float(self.first + number)) for number in range(self.bodies)]


def _request(value: float) -> list[Any]:
    now = time.time_ns()
    body = b"\n".join(
        msgspec.json.encode(
            {"time": now + each, "metric": "fresh", "labels": {"series": f"{each}", "host": "a"}, "value": value}
        )
        for each in range(SAMPLES)
    )
    return [request_head("/v1/json/samples", "application/x-ndjson", body), body]


class _Path:
    """Gives samples to agents, and knows when they became visible: each request has a value of its own."""

    def __init__(self, bench: AgentBench, watch: TableWatch) -> None:
        self._bench = bench
        self._watch = watch
        self._next = 0

    def warm_up(self) -> None:
        """Return when the first sample is in the table: Spark has started, and has made it."""
        agent = self._bench.agent()
        given, _ = self._give(agent, requests=1, per_second=1)
        self._wait(given, START_SECONDS)
        agent.end()

    def measured(self, per_second: int, *, batch_seconds: float) -> tuple[float, str]:
        """Give so many requests a second. Returns the 99th percentile of seconds until they are visible, and words."""
        agent = self._bench.agent(batch_seconds=batch_seconds)
        skipped, requests = per_second * SKIPPED_SECONDS, per_second * (SKIPPED_SECONDS + MEASURED_SECONDS)
        given, loaded = self._give(agent, requests, per_second)
        self._wait(given, LATE_SECONDS)
        batches = agent.counts()["accepted_batches_total"] / loaded.seconds
        agent.end()
        late = [self._watch.seen[value] - at for value, at in list(given.items())[skipped:]]
        p99 = percentile(late, 99)
        return p99, (
            f"{per_second} requests/s of {SAMPLES} samples, batch_seconds {batch_seconds:g}, so {batches:.0f} "
            f"batches/s: visible in Iceberg after p50 {percentile(late, 50):.2f} s, p99 {p99:.2f} s, at most "
            f"{max(late):.2f} s; the machine {loaded.idle:.0%} idle"
        )

    def _give(self, agent: AgentServer, requests: int, per_second: int) -> tuple[dict[float, float], Loaded]:
        """Give samples. Returns when each request was to be sent, by the value of its samples."""
        load = JsonLoad([agent.port], CONNECTIONS, per_second, first=self._next, bodies=requests)
        self._next += requests
        loaded = self._bench.clients.apply(load)
        return {float(load.first + number): loaded.began + number / per_second for number in range(requests)}, loaded

    def _wait(self, given: dict[float, float], seconds: float) -> None:
        ends = time.monotonic() + seconds
        while not self._watch.seen.keys() >= given.keys():
            self._watch.check()
            if time.monotonic() > ends:
                missing = len(given.keys() - self._watch.seen.keys())
                raise TimeoutError(f"{missing:,} of {len(given):,} requests are not visible after {seconds:.0f} s.")
            time.sleep(0.05)


@contextmanager
def consuming(bench: AgentBench) -> Iterator[Server]:
    """`lakehead consume` of what the gateway accepts, by the configuration `consume.json`."""
    config = bench.folder / "consume.json"
    queue = {
        "type": "manifest",
        "store": bench.store,
        "manifest_path": "landing-queue/manifest.json",
        "data_path_prefix": "landing-queue/data",
    }
    pipeline = {
        "queue": queue,
        "messages": "accepted",
        "tables": [{"table": TABLE, "format": "frames", "kind": "samples"}],
        "commit_timeout_seconds": 1,
    }
    config.write_text(
        json.dumps(
            {
                "runtime": {"state": {"url": f"sqlite:///{bench.folder}/state.sqlite"}},
                "spark": {"lakehouse": str(bench.folder / "lakehouse"), "master": "local[2]"},
                "pipelines": {"bench": pipeline},
            }
        )
    )
    log = bench.folder / "consume.log"
    with log.open("wb") as output:
        process = subprocess.Popen([LAKEHEAD, "consume", str(config)], stdout=output, stderr=output)
    server = Server(process, ())
    try:
        yield server
    except TimeoutError as error:
        raise RuntimeError(f"{error} lakehead consume says: {_end_of(log)}") from error
    finally:
        server.end()


def _end_of(log: Path) -> str:
    return log.read_text(errors="replace")[-2000:]
