"""Parts of `make bench-extract` in which every tool is a process of its own: loads, start-up, merges' memory."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from bench import extract_peers, start
from bench.extract_checks import check
from bench.extract_lakehead import Lakehead
from bench.extract_results import Results
from bench.extract_source import TABLE, WARM_UP, Shop
from bench.turns import alternate, rotated

FAR_BEHIND = 2
"""A peer that took so many times as long as the fastest one is not measured again: its turns would be the longest."""

PEERS: Mapping[str, Callable[[Shop], extract_peers.Loaded | None]] = {
    "ingestr": extract_peers.ingestr,
    "dlt": extract_peers.dlt,
}


@dataclass(frozen=True, slots=True)
class Loads:
    """Whole loads of one table."""

    source: Shop
    results: Results
    folder: Path

    def measure(self, parts: list[str], turns: int) -> None:
        """Measure these parts, in turns. A way to keep a table that has no figure but its memory has one turn."""
        for turn in range(turns):
            for part in rotated(parts, turn):
                match part:
                    case "copy":
                        self.copy()
                    case "lakehead":
                        self.lakehead("full view", warm=True)
                    case "end_to_end":
                        self.lakehead("full view", warm=False)
                    case "table" if turn == 0:
                        self.lakehead("full table", warm=False)
                    case "ingestr" | "dlt" if not self._is_far_behind(part):
                        self.peer(part)

    def copy(self) -> None:
        """The limit: binary COPY, read by a client and thrown away."""
        one, two = self.source.copied(1), self.source.copied(2)
        self.results.add("COPY, one connection", one)
        self.results.add("COPY, two connections", two)
        # Lakehead reads by several connections, so the limit is what several of them can have.
        self.results.add("copy load", min(one, two))

    def lakehead(self, kept: str, *, warm: bool) -> None:
        """A full load, as a user runs it, and again with warm workers for the load alone if that is wanted."""
        name = "lakehead" if kept == "full view" else f"lakehead, {kept},"
        for tables in ((TABLE,), (WARM_UP, TABLE)) if warm else ((TABLE,),):
            lake = Lakehead(self.source, self.folder / "lakehead", kept)
            try:
                loaded = lake.load(*tables)
            finally:
                lake.drop()
            check(f"Lakehead ({kept})", loaded.sums, self.source.sums())
            if len(tables) > 1:
                self.results.add(f"{name} load", loaded.load_seconds)
            else:
                self.results.add(f"{name} end to end", loaded.ran.seconds)
                self.results.memory(f"{name} memory", loaded.ran.peak_mib)

    def peer(self, name: str) -> None:
        """A full load by another tool."""
        loaded = PEERS[name](self.source)
        if loaded is None:
            return
        check(name, loaded.sums, self.source.sums())
        self.results.add(f"{name} load", loaded.load_seconds)
        self.results.add(f"{name} end to end", loaded.ran.seconds)
        self.results.memory(f"{name} memory", loaded.ran.peak_mib)

    def _is_far_behind(self, name: str) -> bool:
        mine = self.results.median(f"{name} load")
        fastest = self.results.median(self.results.fastest(f"{each} load" for each in PEERS))
        return mine is not None and fastest is not None and mine > FAR_BEHIND * fastest


def merge_memory(source: Shop, results: Results, folder: Path, turns: int) -> None:
    """Merges as a user runs them, each in a process of its own: the time from start to exit, and the memory."""
    lake = Lakehead(source, folder / "lakehead-merges", "scd1")
    try:
        loaded = lake.load(TABLE)
        check("Lakehead (scd1)", loaded.sums, source.sums())
        results.memory("mirror's first load, memory", loaded.ran.peak_mib)
        for turn in range(turns):
            source.change(turn)
            loaded = lake.load(TABLE)
            check("Lakehead (scd1)", loaded.sums, source.sums())
            results.add("lakehead merge end to end", loaded.ran.seconds)
            results.memory("lakehead merge memory", loaded.ran.peak_mib)
    finally:
        lake.drop()


def first_row(source: Shop, results: Results, folder: Path, turns: int) -> None:
    """From the start of a process to its first rows landed in a new lakehouse; a plain session to its first job done.

    The rows are those of a small table, and have landed when the `phase` event of raw says so: they are committed then.
    """

    def ours(turn: int) -> Mapping[str, float]:
        lake = Lakehead(source, folder / f"lakehead-first-{turn}", "full view")
        try:
            return {"lakehead first row": lake.load(WARM_UP).first_landed_seconds}
        finally:
            lake.drop()

    def plain(_: int) -> Mapping[str, float]:
        return {"plain session, first job": start.seconds(start.PLAIN)}

    alternate(results, turns, lambda turn: turn, [ours, plain])
