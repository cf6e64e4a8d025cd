"""`make bench-extract`: PostgreSQL tables into Iceberg, by Lakehead, by plain Spark and by the tools used instead.

All of them run on this machine beside the server, take turns, and are checked for the rows and sums that they wrote.
The load alone is what each tells of itself, without the start of process and session; end to end is from process start
to exit. Memory is that of all processes of a run together, without the server's.
"""

import argparse
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from datetime import date, timedelta
from itertools import count
from pathlib import Path

from bench import extract_peers
from bench.extract_checks import check
from bench.extract_lakehead import Lakehead, WarmLakehead
from bench.extract_results import Results
from bench.extract_source import INSERTS, TABLE, UPDATES, WARM_UP, Shop, shop
from bench.extract_spark import warm_spark

SMALL, LARGE = 3_000_000, 12_000_000
PARTS = ("copy", "lakehead", "table", "ingestr", "dlt", "spark", "merge")
AT_LARGE = ("lakehead", "ingestr", "dlt")
"""What is run at the large size, where the figure is the time from end to end."""


def copy(source: Shop, results: Results) -> None:
    """The limit: binary COPY, read by a client and thrown away."""
    one, two = source.copied(1), source.copied(2)
    results.add("COPY, one connection", one)
    results.add("COPY, two connections", two)
    # Lakehead reads by several connections, so the limit is what several of them can have.
    results.add("copy load", min(one, two))


def lakehead(source: Shop, results: Results, folder: Path, kept: str = "full view") -> None:
    """A full load, as a user runs it; and again with warm workers, for the load alone."""
    for warm in (False, True) if source.rows < LARGE else (False,):
        lake = Lakehead(source, folder / f"lakehead-{warm}", kept)
        try:
            loaded = lake.load(warm=warm)
        finally:
            lake.drop()
        check(f"Lakehead ({kept})", loaded.sums, source.sums())
        name = "lakehead" if kept == "full view" else f"lakehead, {kept},"
        results.add(
            f"{name} load" if warm else f"{name} end to end", loaded.load_seconds if warm else loaded.ran.seconds
        )
        if not warm:
            results.memory(f"{name} memory", loaded.ran.peak_mib)


def peer(source: Shop, results: Results, name: str, load: Callable[[Shop], extract_peers.Loaded | None]) -> None:
    """A full load by another tool."""
    loaded = load(source)
    if loaded is None:
        return
    check(name, loaded.sums, source.sums())
    results.add(f"{name} load", loaded.load_seconds)
    results.add(f"{name} end to end", loaded.ran.seconds)
    results.memory(f"{name} memory", loaded.ran.peak_mib)


def spark_and_merges(source: Shop, results: Results, folder: Path, parts: Sequence[str], turns: int) -> None:
    """Appends and merges by plain Spark and by Lakehead, in turns and in one session that is warm for both."""
    with warm_spark(source, folder) as spark:
        days = (date(2026, 1, 1) + timedelta(days=number) for number in count())
        ours = WarmLakehead(source, spark.session, folder, spark.warehouse.parent, days)
        for kept in ("full view", "scd1"):
            ours.load(kept, WARM_UP)
        for _ in range(turns if "spark" in parts else 0):
            took, found = spark.append()
            check("Spark's JDBC read", found, source.sums())
            results.add("spark load", took)
            took, found = ours.load("full view")
            check("Lakehead (full view)", found, source.sums())
            results.add("lakehead load in spark's session", took)
        if "merge" not in parts:
            return
        check("Lakehead (scd1)", ours.load("scd1", TABLE)[1], source.sums())
        mirror = spark.mirror()
        for _ in range(turns):
            since = source.change()
            took, found = ours.load("scd1", TABLE)
            check("Lakehead (scd1)", found, source.sums())
            results.add("lakehead merge", took)
            took, found = spark.merge(mirror, since)
            check("Spark's MERGE", found, source.sums())
            results.add("spark merge", took)


def measure(rows: int, parts: Sequence[str], turns: int) -> Results:
    """Everything that is wanted, on one table of so many rows."""
    results = Results(rows)
    with shop(rows) as source, tempfile.TemporaryDirectory(prefix="lakehead-bench-") as name:
        folder = Path(name)
        for _ in range(turns):
            if "copy" in parts:
                copy(source, results)
            if "lakehead" in parts:
                lakehead(source, results, folder)
            if "table" in parts:
                lakehead(source, results, folder, "full table")
            for tool, load in (("ingestr", extract_peers.ingestr), ("dlt", extract_peers.dlt)):
                if tool in parts:
                    peer(source, results, tool, load)
        if "spark" in parts or "merge" in parts:
            spark_and_merges(source, results, folder, parts, turns)
    return results


def judge(results: Results) -> None:
    """The figures that can be told from what was measured."""
    ours, peers = "lakehead load", ("ingestr", "dlt")
    if results.rows < LARGE:
        results.ratio("extract.load_vs_spark_jdbc", "spark load", "lakehead load in spark's session", ">=", 4)
        fastest = results.fastest(f"{tool} load" for tool in peers)
        results.ratio("extract.load_vs_fastest_peer", fastest, ours, ">=", 1)
        results.ratio("extract.load_vs_copy", "copy load", ours, ">=", 0.5)
        results.ratio("extract.merge_vs_spark_merge", "lakehead merge", "spark merge", "<=", 1.3)
    else:
        fastest = results.fastest(f"{tool} end to end" for tool in peers)
        results.ratio("extract.end_to_end_12m_vs_fastest_peer", "lakehead end to end", fastest, "<=", 1)
    results.most("extract.memory_mib", "lakehead", "<=", 2048)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.extract", description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[SMALL, LARGE], help="sizes of the table")
    parser.add_argument("--only", nargs="+", choices=PARTS, help="measure only these; figures need both of their sides")
    parser.add_argument("--turns", type=int, default=3, help="how often each is measured; medians are told")
    parser.add_argument("--keep", action="store_true", help="append machine, date, versions and figures to RESULTS.md")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that servers and folders go, as on Ctrl-C
    print(f"{UPDATES:,} updates and {INSERTS:,} inserts are merged in each turn.")
    for rows in given.rows:
        parts = given.only or (PARTS if rows < LARGE else AT_LARGE)
        results = measure(rows, parts, given.turns)
        results.show()
        judge(results)
        if given.keep:
            results.keep()


if __name__ == "__main__":
    main()
