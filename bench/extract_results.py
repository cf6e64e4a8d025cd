"""What was measured, told as medians and figures, and kept in RESULTS.md if that is wanted."""

import os
import platform
import statistics
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from bench.extract_peers import DLT, INGESTR
from bench.figures import figure

KEPT = Path(__file__).parent / "RESULTS.md"
OURS = ("pyspark", "pyiceberg", "pyarrow", "adbc-driver-postgresql")


class Results:
    """Measurements of one size of table, in the order in which they were made."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self._seconds: dict[str, list[float]] = {}
        self._mib: dict[str, list[float]] = {}
        self._figures: list[tuple[str, float, str, float]] = []

    def add(self, name: str, seconds: float) -> None:
        """One turn of something that takes time."""
        self._seconds.setdefault(name, []).append(seconds)
        print(f"  {name}: {seconds:.2f} s", flush=True)

    def memory(self, name: str, mib: float) -> None:
        """The peak of one turn."""
        self._mib.setdefault(name, []).append(mib)
        print(f"  {name}: {mib:,.0f} MiB", flush=True)

    def fastest(self, names: Iterable[str]) -> str:
        """The one with the smallest median; an unknown name if none was measured."""
        known = [name for name in names if name in self._seconds]
        return min(known, key=lambda name: statistics.median(self._seconds[name]), default="")

    def ratio(self, name: str, over: str, under: str, op: str, target: float) -> None:
        """The median of one divided by the other, turn by turn; nothing if one of them was not measured."""
        if over in self._seconds and under in self._seconds:
            pairs = zip(self._seconds[over], self._seconds[under], strict=False)
            self._judge(name, statistics.median(one / other for one, other in pairs), op, target)

    def most(self, name: str, prefix: str, op: str, target: float) -> None:
        """The largest memory of all whose name begins so; nothing if none was measured."""
        found = [mib for who, turns in self._mib.items() if who.startswith(prefix) for mib in turns]
        if found:
            self._judge(name, max(found), op, target)

    def show(self) -> None:
        """Every median, one line each."""
        print("\n".join(self._lines()), flush=True)

    def keep(self) -> None:
        """Append all of it to RESULTS.md."""
        when = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
        peers = [INGESTR[0].replace("==", " "), DLT[0].replace("==", " ")]
        used = [f"Python {platform.python_version()}", *(f"{package} {version(package)}" for package in OURS), *peers]
        lines = [
            f"\n## {self.rows:,} rows, {when}\n",
            f"{processor()}, {os.cpu_count()} cores, {memory_size()}; PostgreSQL 16 beside it; {', '.join(used)}.\n",
            *(f"- {line}" for line in self._lines()),
            "",
            "| figure | value | target |\n|---|---|---|",
            *(f"| `{name}` | {value:.3g} | {op} {target:g} |" for name, value, op, target in self._figures),
        ]
        with KEPT.open("a") as file:
            file.write("\n".join(lines) + "\n")

    def _judge(self, name: str, value: float, op: str, target: float) -> None:
        self._figures.append((name, value, op, target))
        figure(name, value, op, target)

    def _lines(self) -> list[str]:
        return [
            *(
                f"{name}: {statistics.median(turns):.2f} s ({self.rows / statistics.median(turns):,.0f} rows/s)"
                if "merge" not in name
                else f"{name}: {statistics.median(turns):.2f} s"
                for name, turns in self._seconds.items()
            ),
            *(f"{name}: {max(turns):,.0f} MiB" for name, turns in self._mib.items()),
        ]


def processor() -> str:
    """The name of this machine's processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def memory_size() -> str:
    """How much memory this machine has."""
    return f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB"
