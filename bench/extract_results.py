"""What was measured, told as medians with their ranges and as figures, and kept in RESULTS.md if that is wanted."""

import os
import platform
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from bench.extract_peers import DLT, INGESTR
from bench.figures import figure

KEPT = Path(__file__).parent / "RESULTS.md"
OURS = ("pyspark", "pyiceberg", "pyarrow", "adbc-driver-postgresql")


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure beside its target, with what it was in each turn."""

    name: str
    value: float
    turns: Sequence[float]
    op: str
    target: float

    def line(self) -> str:
        """A row of a table in Markdown."""
        return f"| `{self.name}` | {ranged(self.turns, self.value, '.3g')} | {self.op} {self.target:g} |"


class Results:
    """Measurements of one size of table, in the order in which they were made."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self._seconds: dict[str, list[float]] = {}
        self._mib: dict[str, list[float]] = {}
        self._figures: list[Figure] = []

    def add(self, name: str, seconds: float) -> None:
        """One turn of something that takes time."""
        self._seconds.setdefault(name, []).append(seconds)
        print(f"  {name}: {seconds:.2f} s", flush=True)

    def memory(self, name: str, mib: float) -> None:
        """The peak of one turn."""
        self._mib.setdefault(name, []).append(mib)
        print(f"  {name}: {mib:,.0f} MiB", flush=True)

    def median(self, name: str) -> float | None:
        """The median of what was measured under a name; None if nothing was."""
        return statistics.median(self._seconds[name]) if name in self._seconds else None

    def fastest(self, names: Iterable[str]) -> str:
        """The one with the smallest median; an unknown name if none was measured."""
        known = [name for name in names if name in self._seconds]
        return min(known, key=lambda name: statistics.median(self._seconds[name]), default="")

    def ratio(self, name: str, over: str, under: str, op: str, target: float) -> None:
        """The median of one divided by the other, turn by turn; nothing if one of them was not measured."""
        if over in self._seconds and under in self._seconds:
            pairs = zip(self._seconds[over], self._seconds[under], strict=False)
            turns = [one / other for one, other in pairs]
            self._judge(Figure(name, statistics.median(turns), turns, op, target))

    def peaks(self, names: Iterable[str]) -> list[float]:
        """The peaks of these, turn by turn; empty if none was measured."""
        return [mib for who in names for mib in self._mib.get(who, ())]

    def most(self, name: str, peaks: Sequence[float], op: str, target: float) -> None:
        """The largest of some peaks; nothing if there is none."""
        if peaks:
            self._judge(Figure(name, max(peaks), peaks, op, target))

    def show(self) -> None:
        """Every median, one line each."""
        print("".join(f"{line}\n" for line in self._lines()), end="", flush=True)

    def keep(self) -> None:
        """Append all of it to RESULTS.md, if there is anything."""
        if not self._lines():
            return
        when = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
        peers = [INGESTR[0].replace("==", " "), DLT[0].replace("==", " ")]
        used = [f"Python {platform.python_version()}", *(f"{package} {version(package)}" for package in OURS), *peers]
        lines = [
            f"\n# Loads and merges from databases, {self.rows:,} rows, {when}\n",
            "`make bench-extract`: medians and ranges of the turns; memory is that of all processes of a run.\n",
            f"{processor()}, {os.cpu_count()} cores, {memory_size()}; PostgreSQL 16 beside it; {', '.join(used)}.\n",
            *(f"- {line}" for line in self._lines()),
            *(["", "| figure | value | target |\n|---|---|---|"] if self._figures else []),
            *(each.line() for each in self._figures),
        ]
        with KEPT.open("a") as file:
            file.write("\n".join(lines) + "\n")

    def _judge(self, found: Figure) -> None:
        self._figures.append(found)
        if len(found.turns) > 1:
            print(f"{found.name} was {ranged(found.turns, found.value, '.3g')} in {len(found.turns)} turns", flush=True)
        figure(found.name, found.value, found.op, found.target)

    def _lines(self) -> list[str]:
        return [
            *(f"{name}: {ranged(turns, statistics.median(turns), '.2f')} s" for name, turns in self._seconds.items()),
            *(f"{name}: {ranged(turns, max(turns), ',.0f')} MiB" for name, turns in self._mib.items()),
        ]


def ranged(turns: Sequence[float], value: float, form: str) -> str:
    """A value, and the range of the turns that it stands for if there was more than one."""
    spread = f" ({min(turns):{form}} to {max(turns):{form}})" if len(turns) > 1 else ""
    return f"{value:{form}}{spread}"


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
