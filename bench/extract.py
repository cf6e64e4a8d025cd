"""`make bench-extract`: PostgreSQL tables into Iceberg, by Lakehead, by plain Spark and by the tools used instead.

All of them run on this machine beside the server, take turns, and are checked for the rows and sums that they wrote.
The load alone is what each tells of itself, without the start of process and session; end to end is from process start
to exit. Memory is that of all processes of a run together, without the server's. Lakehead merges in Arrow
(`runtime.merge_lane`); Spark's MERGE merges on read. A merge alone is without the
source: from raw, or from what Spark staged of it, to the mirror.
"""

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench import extract_merges
from bench.extract_loads import PEERS, Loads, first_row, merge_memory
from bench.extract_merges import warm_parts
from bench.extract_results import Results
from bench.extract_source import INSERTS, UPDATES, Shop, shop

ROWS, TIMES_LARGER, TURNS = 3_000_000, 4, 5
LOADS = ("copy", "lakehead", "table", "ingestr", "dlt")
END_TO_END = ("end_to_end", "ingestr", "dlt")
"""What is run with the larger table, where the figure is the time from end to end."""

PARTS = (*LOADS, "first_row", *extract_merges.PARTS, "merge_memory", "merge_growth", "end_to_end")


def measure(results: Results, larger: Results, parts: Sequence[str], turns: int) -> None:
    """Everything that is wanted: of a table of so many rows, and of a larger one where a part needs one."""
    with tempfile.TemporaryDirectory(prefix="lakehead-bench-") as name, ExitStack() as opened:
        folder = Path(name)
        if {*parts} != {"end_to_end"}:
            source = opened.enter_context(shop(results.rows))
            of_this_size(source, results, folder, parts, turns)
        if {"merge_growth", "end_to_end"} & {*parts}:
            large = opened.enter_context(shop(larger.rows))
            if "end_to_end" in parts:
                with timed("end_to_end"):
                    Loads(large, larger, folder).measure([*END_TO_END], turns)
            if "merge_growth" in parts:
                with timed("merge_growth"), warm_parts(source, results, turns, folder / "growth") as warm:
                    warm.growth(large)


def of_this_size(source: Shop, results: Results, folder: Path, parts: Sequence[str], turns: int) -> None:
    """The parts that need no larger table."""
    if loads := [part for part in LOADS if part in parts]:
        with timed(", ".join(loads)):
            Loads(source, results, folder).measure(loads, turns)
    if "first_row" in parts:
        with timed("first_row"):
            first_row(source, results, folder, turns)
    if wanted := [part for part in extract_merges.PARTS if part in parts]:
        with warm_parts(source, results, turns, folder / "warm") as warm:
            for part in wanted:
                with timed(part):
                    extract_merges.PARTS[part](warm)
    if "merge_memory" in parts:
        with timed("merge_memory"):
            merge_memory(source, results, folder, turns)


@contextmanager
def timed(part: str) -> Iterator[None]:
    """Say how long a part took."""
    print(f"{part}:", flush=True)
    began = time.perf_counter()
    yield
    print(f"{part} took {time.perf_counter() - began:.0f} s", flush=True)


def judge(results: Results, larger: Results) -> None:
    """The figures that can be told from what was measured."""
    ours = "lakehead load"
    fastest = results.fastest(f"{tool} load" for tool in PEERS)
    results.ratio("extract.load_vs_spark_jdbc", "spark load", f"{ours} in spark's session", ">=", 4)
    results.ratio("extract.load_vs_fastest_peer", fastest, ours, ">=", 1.05)
    results.ratio("extract.load_vs_copy", "copy load", ours, ">=", 0.5)
    results.ratio("extract.merge_vs_spark_merge", "lakehead merge", "spark merge", "<=", 0.6)
    results.ratio("extract.merge_alone_vs_spark_merge", "lakehead merge alone", "spark merge alone", "<=", 0.25)
    results.ratio("extract.merge_and_read_vs_ingestr", "lakehead merge and read", "ingestr merge and read", "<=", 1)
    for name, keys, target in (("spread", "spread keys", 2.5), ("range", "keys in one range", 1.3)):
        over, under = (f"merge alone of {keys}, {rows:,} rows" for rows in (larger.rows, results.rows))
        results.ratio(f"extract.merge_growth.{name}", over, under, "<=", target)
    for name, reader in (("pyiceberg", "PyIceberg"), ("spark", "Spark")):
        over, under = (f"{reader}'s read, {which}" for which in ("after merges", "fresh"))
        results.ratio(f"extract.read_after_merges.{name}", over, under, "<=", 1.5)
    results.ratio("extract.first_row_vs_plain", "lakehead first row", "plain session, first job", "<=", 0.35)
    fastest = larger.fastest(f"{tool} end to end" for tool in PEERS)
    larger.ratio("extract.end_to_end_12m_vs_fastest_peer", "lakehead end to end", fastest, "<=", 1.25)
    results.most("extract.memory_mib", [*results.peaks(MEMORY), *larger.peaks(MEMORY)], "<=", 2048)


MEMORY = ("lakehead memory", "lakehead, full table, memory", "lakehead merge memory")


def main(arguments: Iterable[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.extract", description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS, help="size of the table")
    parser.add_argument(
        "--larger",
        type=int,
        help=f"size of the larger one, which end_to_end and merge_growth use; {TIMES_LARGER} times",
    )
    parser.add_argument(
        "--only",
        nargs="+",
        choices=PARTS,
        help="measure only these parts; a figure needs both of its sides",
    )
    parser.add_argument("--turns", type=int, default=TURNS, help="how often each is measured; medians are told")
    parser.add_argument("--keep", action="store_true", help="append machine, date, versions and figures to RESULTS.md")
    given = parser.parse_args(arguments and [*arguments])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that servers and folders go, as on Ctrl-C
    print(f"At most {UPDATES:,} updates and {INSERTS:,} inserts are merged in each turn.")
    results, larger = Results(given.rows), Results(given.larger or TIMES_LARGER * given.rows)
    measure(results, larger, given.only or PARTS, given.turns)
    for each in (results, larger):
        each.show()
    judge(results, larger)
    if given.keep:
        for each in (results, larger):
            each.keep()


if __name__ == "__main__":
    main()
