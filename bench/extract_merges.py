"""Parts of `make bench-extract` in a Spark session that is warm: loads and merges beside Spark's own and ingestr's."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from functools import partial
from itertools import count
from pathlib import Path

from bench.extract_checks import check, newest, sums
from bench.extract_lakehead import WarmLakehead
from bench.extract_peers import ingestr_in
from bench.extract_results import Results
from bench.extract_source import NAMES, WARM_UP, Changed, Shop
from bench.extract_spark import Spark, warm_spark
from bench.turns import alternate

MERGES = 10
"""How many merges a mirror has had when reading it is compared with reading a fresh one."""

GROWTH = {Changed.RANGE: "keys in one range", Changed.SPREAD: "spread keys"}
"""One range first: files of spread keys, from merges before it, would have to be opened for it too."""

Seconds = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class WarmParts:
    """What is measured in one session, in which plain Spark and Lakehead have done every kind of work once."""

    source: Shop
    results: Results
    turns: int
    folder: Path
    spark: Spark
    ours: WarmLakehead

    def spark_loads(self) -> None:
        """Whole loads by Spark's JDBC reader and by Lakehead."""

        def spark(_: int) -> Seconds:
            took, found = self.spark.append()
            check("Spark's JDBC read", found, self.source.sums())
            return {"spark load": took}

        def ours(_: int) -> Seconds:
            took, found = self.ours.load("full view")
            check("Lakehead (full view)", found, self.source.sums())
            return {"lakehead load in spark's session": took}

        alternate(self.results, self.turns, lambda turn: turn, [spark, ours])

    def merges(self) -> None:
        """The same changes, read from the source and merged by Lakehead and by Spark's MERGE, merge-on-read."""
        mine, theirs = "merged", "merged_by_spark"
        self.ours.mirror(mine)
        self.spark.mirror(theirs)

        def ours(_: datetime) -> Seconds:
            took = self.ours.merge(mine)
            check("Lakehead (scd1)", self.ours.mirrored(mine), self.source.sums())
            return {"lakehead merge": took.seconds, "lakehead merge alone": took.alone}

        def spark(since: datetime) -> Seconds:
            took = self.spark.merge(theirs, since)
            check("Spark's MERGE", self.spark.merged(theirs), self.source.sums())
            return {"spark merge": took.seconds, "spark merge alone": took.alone}

        alternate(self.results, self.turns, self.source.change, [ours, spark])

    def merges_and_reads(self) -> None:
        """The same changes merged by Lakehead and by ingestr, each with Spark's first full read of what it left."""
        tool = ingestr_in(self.source, self.folder / "ingestr")
        if tool is None:
            return
        tool.load()
        check("ingestr", tool.sums(), self.source.sums())
        mirror = self.ours.mirror("merged_and_read")

        def ours(_: datetime) -> Seconds:
            took = self.ours.merge("merged_and_read").seconds
            read, found = self.spark.read(mirror)
            check("Lakehead (scd1)", found, self.source.sums())
            return {
                "lakehead merge, then read": took,
                "lakehead first read": read,
                "lakehead merge and read": took + read,
            }

        def ingestr(since: datetime) -> Seconds:
            took = tool.merge(since, self.source.now())[1]
            read, found = self.spark.read(self.spark.register(tool.metadata()))
            check("ingestr's merge", found, self.source.sums())
            return {"ingestr merge": took, "ingestr first read": read, "ingestr merge and read": took + read}

        alternate(self.results, self.turns, self.source.change, [ours, ingestr])

    def reads_after_merges(self) -> None:
        """Every column read by PyIceberg and by Spark, of a mirror after many merges and of a fresh one."""
        names = {"after merges": "merged_often", "fresh": "fresh"}
        mirrors = {"after merges": self.ours.mirror("merged_often")}
        for turn in range(MERGES):
            self.source.change(turn)
            self.ours.merge("merged_often")
        mirrors["fresh"] = self.ours.mirror("fresh")

        def pyiceberg(which: str, _: int) -> Seconds:
            began = time.perf_counter()
            table = newest(self.ours.lakehouse / "warehouse" / "mirror", names[which])
            rows = table.scan(selected_fields=NAMES).to_arrow()
            took = time.perf_counter() - began
            check(f"PyIceberg ({which})", sums(rows.to_reader()), self.source.sums())
            return {f"PyIceberg's read, {which}": took}

        def spark(which: str, _: int) -> Seconds:
            took, found = self.spark.read(mirrors[which])
            check(f"Spark ({which})", found, self.source.sums())
            return {f"Spark's read, {which}": took}

        works = [partial(read, which) for read in (pyiceberg, spark) for which in names]
        alternate(self.results, self.turns, lambda turn: turn, works)

    def growth(self, large: Shop) -> None:
        """As many changes merged into this table and into a larger one: with keys in one range, and spread keys."""
        larger = replace(self.ours, shop=large, folder=self.folder / "larger")
        larger.folder.mkdir()
        sides = {"small": (self.source, self.ours), "large": (large, larger)}
        mirrors = {size: side.mirror(f"growth_{size}") for size, (_, side) in sides.items()}

        def merge(size: str, words: str, _: None) -> Seconds:
            source, side = sides[size]
            took = side.merge(f"growth_{size}")
            check(f"Lakehead ({size})", self.spark.read(mirrors[size])[1], source.sums())
            name = f"{words}, {source.rows:,} rows"
            return {f"merge of {name}": took.seconds, f"merge alone of {name}": took.alone}

        def change(changed: Changed, turn: int) -> None:
            self.source.change(turn, changed)
            large.change(turn, changed)

        for changed, words in GROWTH.items():
            alternate(
                self.results, self.turns, partial(change, changed), [partial(merge, size, words) for size in sides]
            )


@contextmanager
def warm_parts(source: Shop, results: Results, turns: int, folder: Path) -> Iterator[WarmParts]:
    """A session for all parts, in which small tables have been loaded, merged and read."""
    folder.mkdir()
    with warm_spark(source, folder) as spark:
        days = (date(2026, 1, 1) + timedelta(days=number) for number in count())
        ours = WarmLakehead(source, spark.session, folder, spark.warehouse.parent, days)
        ours.load("full view", WARM_UP)
        mirror = ours.mirror(f"{WARM_UP}_mirror", WARM_UP)
        source.change()
        ours.merge(f"{WARM_UP}_mirror", WARM_UP)
        spark.read(mirror)
        yield WarmParts(source, results, turns, folder, spark, ours)


PARTS: Mapping[str, Callable[[WarmParts], None]] = {
    "spark": WarmParts.spark_loads,
    "merge": WarmParts.merges,
    "merge_and_read": WarmParts.merges_and_reads,
    "merge_reads": WarmParts.reads_after_merges,
}
"""By the names under which each can be run alone. `WarmParts.growth` is another one, which needs a larger source."""
