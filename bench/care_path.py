"""The part of the benchmark of care that is about the whole path: rows a second, and which process works for them.

Every step is a process of its own: an agent, a gateway, a reconciler, and `lakehead consume` with a JVM and workers.
"""

import json
import os
import subprocess
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from bench.agent_path import START_SECONDS, TABLE, consuming
from bench.agent_processes import LAKEHEAD, AgentBench, AgentServer, OtlpLoad
from bench.agent_samples import RECORDS
from bench.http_load import Loaded
from bench.kept_results import KeptResults
from bench.server_process import Server, idle_seconds, idle_share
from lakehead.lake.catalog import open_catalog
from lakehead.spark.settings import EMBEDDED, embedded_catalog

CONNECTIONS = 8
WARMING = 20
"""Requests before the clock starts: Spark has started, has made the table, and has compiled what it runs often."""

PASS_SECONDS = 5
"""The pause between two passes of the reconciler: shorter than usual, or it would do nothing in so short a time."""

LATE_SECONDS = 120.0
LOOK_SECONDS = 0.1
_TICKS = os.sysconf("SC_CLK_TCK")


def rows(bench: AgentBench, requests: int, results: KeptResults) -> None:
    """Give samples to an agent as fast as it takes them, until all are in the Iceberg table."""
    bench.authority()
    gateway = bench.gateway()
    lakehouse = bench.folder / "lakehouse"
    lakehouse.mkdir()  # so that the catalog can be opened before there is a table
    agent = bench.agent()
    with consuming(bench) as consumer:
        reconciler = _reconciler(bench)
        try:
            _give(bench, agent, WARMING, first=0)
            _await_rows(lakehouse, WARMING * RECORDS, START_SECONDS)
            processes = {"agent": agent, "gateway": gateway, "reconciler": reconciler}
            before = _cpu(processes, consumer)
            given = _give(bench, agent, requests, first=WARMING)
            idle, given_at = idle_seconds(), time.perf_counter()
            _await_rows(lakehouse, (WARMING + requests) * RECORDS, LATE_SECONDS)
            after = time.perf_counter() - given_at
            free = (given.idle * given.seconds + idle_share(idle, after) * after) / (given.seconds + after)
            used = {name: each - before[name] for name, each in _cpu(processes, consumer).items()}
            reconciler.check_running()
        finally:
            reconciler.end()
    total, seconds = requests * RECORDS, given.seconds + after
    shares = ", ".join(
        f"{name} {each:.1f} s" for name, each in sorted(used.items(), key=lambda item: item[1], reverse=True)
    )
    results.tell(
        f"path.rows_per_second {total / seconds:,.0f}: {total:,} samples visible in Iceberg {seconds:.1f} s after the "
        f"first was given, the last taken by the agent after {given.seconds:.1f} s; no target"
    )
    results.tell(
        f"CPU of it: {shares}; together {sum(used.values()) / total * 1e6:.1f} µs a row; the machine {free:.0%} idle; "
        f"the reconciler makes a pass every {PASS_SECONDS} s"
    )


class _Reconciler(Server):
    """`lakehead reconcile`, which listens nowhere."""

    def check_running(self) -> None:
        """Raise `RuntimeError` if it has ended."""
        if (code := self._process.poll()) is not None:
            raise RuntimeError(f"lakehead reconcile has ended with {code}.")


def _give(bench: AgentBench, agent: AgentServer, requests: int, *, first: int) -> Loaded:
    """Give samples to an agent."""
    load = OtlpLoad(ports=[agent.port], connections=CONNECTIONS, bodies=requests, first=first)
    return bench.clients.apply(load)


def _await_rows(lakehouse: Path, expected: int, seconds: float) -> None:
    """Return when readers of the table see so many rows."""
    ends, found = time.monotonic() + seconds, 0
    with closing(open_catalog(EMBEDDED, embedded_catalog(lakehouse))) as catalog:
        while found < expected:
            if time.monotonic() > ends:
                raise TimeoutError(f"{found:,} of {expected:,} rows are visible after {seconds:.0f} s.")
            time.sleep(LOOK_SECONDS)
            if catalog.table_exists(TABLE):
                snapshot = catalog.load_table(TABLE).current_snapshot()
                summary = snapshot.summary if snapshot else None
                found = int(summary["total-records"] or 0) if summary else 0
    if found != expected:
        raise RuntimeError(f"The table has {found:,} rows, and {expected:,} were given.")


def _reconciler(bench: AgentBench) -> "_Reconciler":
    """Start `lakehead reconcile` of the gateway's store, and of the pipeline that lands what is in it."""
    pipeline, gateway = (json.loads((bench.folder / name).read_text()) for name in ("consume.json", "gateway.json"))
    config = bench.folder / "reconcile.json"
    config.write_text(json.dumps({**pipeline, **gateway, "reconcile": {"pass_seconds": PASS_SECONDS}}))
    with (bench.folder / "reconcile.log").open("wb") as output:
        return _Reconciler(subprocess.Popen([LAKEHEAD, "reconcile", str(config)], stdout=output, stderr=output), ())


def _cpu(servers: Mapping[str, Server], consumer: Server) -> dict[str, float]:
    """CPU seconds of each process until now; those of a consumer apart, for its driver, its JVM and its workers."""
    used = {name: _cpu_seconds(server.pid) for name, server in servers.items()}
    used |= dict.fromkeys(("consumer's driver", "consumer's JVM", "consumer's workers"), 0.0)
    children = _children()
    waiting = [(consumer.pid, "consumer's driver")]
    while waiting:
        pid, name = waiting.pop()
        if _command(pid) == "java":
            name = "consumer's JVM"
        elif name == "consumer's JVM":  # what a JVM starts are Python workers
            name = "consumer's workers"
        used[name] += _cpu_seconds(pid)
        waiting += [(child, name) for child in children.get(pid, ())]
    return used


def _cpu_seconds(pid: int) -> float:
    """What a process has used, and those of its children that have ended; nothing if it has ended itself."""
    fields = _stat(pid)
    return sum(map(int, fields[11:15])) / _TICKS if fields else 0.0


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except FileNotFoundError:
        return ""


def _children() -> dict[int, list[int]]:
    """The processes that each process of the machine has started."""
    found: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        if fields := _stat(int(folder.name)):
            found.setdefault(int(fields[1]), []).append(int(folder.name))
    return found


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat after the command; none if the process has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []
