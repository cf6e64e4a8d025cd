"""`make bench-agent`: how fast samples get into an agent's spool, what it holds, and how soon they are in Iceberg.

Each request has 1,000 samples. Parts: otlp, python, memory, freshness. Each can be run alone: `python -m bench.agent
otlp python`. What is compared takes turns within one run. The spool is on a real disk, in this folder.
"""

import argparse
import signal
import sys
from collections.abc import Callable

from bench.agent_path import freshness
from bench.agent_processes import AgentBench, open_bench
from bench.agent_soak import memory
from bench.agent_spool import otlp, python
from bench.kept_results import KeptResults


def in_this_process(bench: AgentBench, results: KeptResults) -> None:
    """The part that needs no servers."""
    del bench
    python(results)


PARTS: dict[str, Callable[[AgentBench, KeptResults], None]] = {
    "otlp": otlp,
    "python": in_this_process,
    "memory": memory,
    "freshness": freshness,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.agent", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}; all by default")
    parser.add_argument("--keep", action="store_true", help="append machine, date, versions and figures to RESULTS.md")
    given = parser.parse_args()
    wanted = given.parts or [*PARTS]
    if unknown := set(wanted) - {*PARTS}:
        sys.exit(f"There is no part {unknown.pop()}. Parts: {', '.join(PARTS)}.")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that servers and folders go, as on Ctrl-C
    results = KeptResults(
        "Agents",
        "`make bench-agent`: requests of 1,000 samples with six labels each, all on one machine. A floor has the same "
        "server, parses the same bytes, appends them to one file and flushes it, grouped as an agent does. An agent's "
        "rate counts until the batches are ready to be sent.",
        ("pyarrow", "protobuf", "uvicorn", "uvloop", "pyspark"),
    )
    for name, measure in PARTS.items():
        if name in wanted:
            with open_bench() as bench:  # servers of one part do not disturb the next
                measure(bench, results)
    if given.keep:
        results.keep()


if __name__ == "__main__":
    main()
