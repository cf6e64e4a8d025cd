"""`make bench-care`: what it costs to look after accepted batches, and how fast rows go the whole path.

Parts: scan, memory, gc, path. Each can be run alone: `python -m bench.care scan gc`; `--small` runs them with little
data, to see that they work. What is compared takes turns within one run.
"""

import argparse
import asyncio
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from bench.agent_processes import disk_folder, open_bench
from bench.care_authority import Authority
from bench.care_gc import requests
from bench.care_path import rows
from bench.care_scan import TURNS, cold_scan
from bench.care_scan import memory as scan_memory
from bench.kept_results import KeptResults
from tests.consumer import aws
from tests.servers.seaweed import BUCKET, Seaweed


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured with."""

    scanned: int = 3_000
    """Batches in a cold scan on an S3 server."""

    scanned_files: int = 1_000
    """The same, on local files, which take longer to write."""

    turns: int = TURNS
    generated: int = 1_000_000
    collected: int = 2_000
    """Batches beside which there are orphans."""

    requests: int = 800
    """Of a thousand samples each, along the whole path."""


SMALL = Size(scanned=300, scanned_files=300, turns=2, generated=40_000, collected=300, requests=40)


def scan(size: Size, results: KeptResults) -> None:
    """Batches a second of a cold scan, beside bare gets, on an S3 server and on local files."""

    async def measured(name: str, authority: Authority, batches: int) -> float:
        await authority.fill(batches)
        return await cold_scan(name, authority, results, turns=size.turns)

    with _on_seaweed() as authority:
        results.judge("reconcile.cold_scan", asyncio.run(measured("SeaweedFS", authority, size.scanned)), ">=", 0.5)
    with disk_folder() as folder:
        (folder / "store").mkdir()
        authority = Authority(folder, f"file://{folder}/store", {})
        ratio = asyncio.run(measured("local files", authority, size.scanned_files))
        results.tell(f"local files: {ratio:.2f} of the bare rate")


def memory(size: Size, results: KeptResults) -> None:
    """What a reconciler holds over very many keys."""
    scan_memory(size.generated, results)


def gc(size: Size, results: KeptResults) -> None:
    """Requests of garbage collection for each blob, on an S3 server."""

    async def measured(authority: Authority) -> None:
        await authority.fill(size.collected)
        await requests(authority, results)

    with _on_seaweed() as authority:
        asyncio.run(measured(authority))


def path(size: Size, results: KeptResults) -> None:
    """Rows a second of the whole path, all processes on this machine."""
    with open_bench() as bench:
        rows(bench, size.requests, results)


@contextmanager
def _on_seaweed() -> Iterator[Authority]:
    with tempfile.TemporaryDirectory(prefix="lakehead-bench-") as name:
        seaweed = Seaweed(Path(name) / "seaweed")
        try:
            seaweed.start()
            yield Authority(Path(name), f"s3://{BUCKET}/{uuid4().hex}", aws(seaweed))
        finally:
            seaweed.stop()


PARTS: dict[str, Callable[[Size, KeptResults], None]] = {"scan": scan, "memory": memory, "gc": gc, "path": path}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.care", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}; all by default")
    parser.add_argument("--keep", action="store_true", help="append machine, date, versions and figures to RESULTS.md")
    parser.add_argument("--small", action="store_true", help="use little data: its figures mean nothing")
    given = parser.parse_args()
    wanted = given.parts or [*PARTS]
    if unknown := set(wanted) - {*PARTS}:
        sys.exit(f"There is no part {unknown.pop()}. Parts: {', '.join(PARTS)}.")
    if given.small and given.keep:
        sys.exit("Figures of little data are not kept: leave out --small or --keep.")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that servers and folders go, as on Ctrl-C
    results = KeptResults(
        "Care",
        "`make bench-care`: frames of 1,000 samples with six labels each, everything on one machine. A cold scan looks "
        "at batches whose frames and indexes are all there; the bare one lists the same manifests and gets them and "
        "their frames through the same store, as many at once, and looks at nothing. Each request of garbage "
        "collection is counted, and each page of a listing.",
        ("pyarrow", "obstore", "pyspark", "pyiceberg"),
    )
    for name, measure in PARTS.items():
        if name in wanted:
            measure(SMALL if given.small else Size(), results)
    if given.keep:
        results.keep()


if __name__ == "__main__":
    main()
