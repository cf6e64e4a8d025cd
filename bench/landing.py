"""`make bench-landing`: what a landing costs beside writing the same files, and beside what Spark does by itself.

Rows are made in the tasks, so no source is measured. What is compared takes turns within one run.
"""

import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog
from pyspark.sql import SparkSession

from bench.figures import figure
from lakehead.clock import SystemClock
from lakehead.ids import RandomIds, system_random
from lakehead.lake.audits import every_row_once
from lakehead.lake.catalog import open_catalog
from lakehead.lake.iceberg_table import IcebergTable
from lakehead.lake.landing import Unit, UnitRemainder
from lakehead.lake.ledger import StoreLedger
from lakehead.lake.merge import MergeStager
from lakehead.lake.protocol import Lander
from lakehead.lake.stagers import ArrowStager
from lakehead.lake.state_progress import StateProgress
from lakehead.lake.tables import create_table
from lakehead.maintain.expiry import ExpiryLimits, expire
from lakehead.retry import Backoff
from lakehead.run.environment import spark_settings
from lakehead.spark.session import build_session, stop_session
from lakehead.spark.settings import EMBEDDED
from lakehead.state.model import StoredLanding, StoredPointer
from lakehead.state.opening import open_state
from lakehead.storage.open_store import open_store

ROWS = 3_000_000
PARTS = 6
BATCH = 50_000
TURNS = 5
CHANGED = 150_000
"""Rows of which two thirds are there already."""
OLD, YOUNG = 1_000, 10
EXPIRE_EVERY = 100

COLUMNS = (
    "id bigint, customer bigint, product int, quantity int, price decimal(12,2), paid boolean, "
    "ordered timestamp, day date, status string, note string"
)
STATES = pa.array(["new", "paid", "sent", "returned"])


def made(first: int, rows: int) -> Iterator[pa.RecordBatch]:
    """Rows of an order table, about 120 bytes each: the same for the same numbers."""
    for start in range(first, first + rows, BATCH):
        ids = np.arange(start, min(start + BATCH, first + rows), dtype=np.int64)
        mixed = (ids * 2654435761) % 2**32
        yield pa.RecordBatch.from_pydict(
            {
                "id": ids,
                "customer": mixed % 100_000,
                "product": (mixed % 5_000).astype(np.int32),
                "quantity": (mixed % 9 + 1).astype(np.int32),
                "price": pa.array(mixed % 1_000_000, pa.int64()).cast(pa.decimal128(19, 0)).cast(pa.decimal128(12, 2)),
                "paid": pa.array(mixed % 2 == 0),
                "ordered": pa.array(1_700_000_000_000_000 + ids * 1_000_000, pa.timestamp("us", "UTC")),
                "day": pa.array((19_700 + ids // 100_000).astype(np.int32), pa.int32()).cast(pa.date32()),
                "status": STATES.take(pa.array(mixed % 4)),
                "note": pa.array(mixed, pa.int64()).cast(pa.string()),
            }
        )


SCHEMA = next(made(0, 1)).schema


def rows_of(remainder: UnitRemainder) -> Iterable[pa.RecordBatch]:
    """A unit is named by its first row and its number of rows."""
    first, rows = remainder.unit.id.split("+")[:2]
    return made(int(first), int(rows))


class Scene:
    """A lakehouse in a folder, as a pipeline would have it."""

    def __init__(self, folder: Path, session: SparkSession, catalog: Catalog) -> None:
        self.session, self.catalog = session, catalog
        self.state = open_state(f"sqlite:///{folder}/state.sqlite", SystemClock(), RandomIds())
        self.ledger = StoreLedger(open_store(f"file://{folder}/records"))
        self.progress = StateProgress(state=self.state, owner="bench")
        self.numbers = count()

    def table(self, properties: dict[str, str] | None = None) -> IcebergTable:
        """A new table of orders."""
        name = f"bench.orders_{next(self.numbers)}"
        create_table(self.catalog, name, SCHEMA, properties=properties)
        return IcebergTable(self.catalog, name, self.ledger)

    def lander(self, table: IcebergTable, stager: Any = None) -> Lander[Any]:
        arrow = ArrowStager(
            session=self.session, table=table, ids=RandomIds(), read=rows_of, split=lambda remainder: [remainder]
        )
        return Lander(
            pipeline="bench",
            table=table,
            progress=self.progress,
            ledger=self.ledger,
            stager=stager or arrow,
            audits=[] if stager else [every_row_once],
            clock=SystemClock(),
            random=system_random(),
            backoff=Backoff(),
        )

    def land(self, table: IcebergTable, units: list[str], stager: Any = None) -> None:
        """Take the units and land them."""
        ours = self.progress.take(table.uuid, [Unit(unit) for unit in units])
        asyncio.run(self.lander(table, stager).land(ours))


def parts(name: object) -> list[str]:
    """The units of three million rows."""
    each = ROWS // PARTS
    return [f"{number * each}+{each}+{name}" for number in range(PARTS)]


def seconds(work: Callable[..., object], *arguments: object) -> float:
    began = time.perf_counter()
    work(*arguments)
    return time.perf_counter() - began


def bare(scene: Scene, folder: Path, turn: object) -> None:
    """The same rows written by tasks as Parquet, without any table."""
    target = folder / f"bare-{turn}"
    target.mkdir()

    def task(number: int, units: Iterable[str]) -> Iterator[int]:
        rows = 0
        with pq.ParquetWriter(f"{target}/{number}.parquet", SCHEMA, compression="zstd") as writer:
            for unit in units:
                first, many = unit.split("+")[:2]
                buffered = list(made(int(first), int(many)))
                writer.write_table(pa.Table.from_batches(buffered))
                rows += sum(batch.num_rows for batch in buffered)
        yield rows

    context = scene.session.sparkContext
    units = context.parallelize(parts(turn), context.defaultParallelism)
    if sum(units.mapPartitionsWithIndex(task).collect()) != ROWS:
        sys.exit("The bare tasks did not write every row.")


def append(scene: Scene, table: IcebergTable) -> None:
    """The same rows as a data frame, appended by Spark itself."""

    def task(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for unit in batch.column("unit").to_pylist():
                first, many = unit.split("+")[:2]
                yield from made(int(first), int(many))

    units = scene.session.createDataFrame([(unit,) for unit in parts("")], "unit string")
    frame = units.repartition(scene.session.sparkContext.defaultParallelism).mapInArrow(task, COLUMNS)
    frame.writeTo(f"{EMBEDDED}.{table.name}").append()


def large(scene: Scene, folder: Path) -> None:
    """Three million rows: landed, written by bare tasks, and appended by Spark."""
    landed, appended = scene.table(), scene.table()
    turns = [
        {
            "land": seconds(scene.land, landed, parts(turn)),
            "bare": seconds(bare, scene, folder, turn),
            "append": seconds(append, scene, appended),
        }
        for turn in range(TURNS + 1)
    ][1:]  # in the first one the workers had to start
    for name in turns[0]:
        print(f"{ROWS:,} rows, {name}: {statistics.median(turn[name] for turn in turns):.2f} s")
    figure("landing.vs_bare_tasks", statistics.median(turn["land"] / turn["bare"] for turn in turns), "<=", 1.15)
    figure("landing.vs_spark_append", statistics.median(turn["land"] / turn["append"] for turn in turns), "<=", 0.7)


def small(scene: Scene) -> None:
    """A hundred rows, warm."""
    table = scene.table()
    times = [seconds(scene.land, table, [f"0+100+{number}"]) for number in range(25)]
    figure("landing.small_seconds", statistics.median(times[5:]), "<=", 0.3)


def ageing(scene: Scene) -> None:
    """A landing after many others, with expiry every hundred landings, as a pipeline would run it."""
    table = scene.table()
    times: list[float] = []
    for number in range(OLD + 10):
        times.append(seconds(scene.land, table, [f"0+100+{number}"]))
        if number % EXPIRE_EVERY == EXPIRE_EVERY - 1:
            asyncio.run(
                expire(table, scene.progress, scene.ledger, SystemClock(), limits=ExpiryLimits(older_than=timedelta()))
            )
            print(f"{number + 1} landings, the last ten in {statistics.median(times[-10:]):.3f} s each", flush=True)
    young, old = statistics.median(times[YOUNG : YOUNG + 10]), statistics.median(times[OLD : OLD + 10])
    figure("landing.age_growth", old / young, "<=", 2)


def settling(scene: Scene) -> None:
    """Ten thousand units settled, without Spark or a table."""
    units = tuple(f"s3://bucket/prefix/object-{number:06}.parquet" for number in range(10_000))
    landing, times = StoredLanding(snapshot=1, units=units), []
    for _ in range(3):
        table = RandomIds().uuid()
        scene.state.shards.open(table, units, token="bench")
        times.append(seconds(scene.state.landings.settle, table, None, StoredPointer(1, 1), [landing]))
    figure("landing.settle_10k_seconds", statistics.median(times), "<=", 2)


def merging(scene: Scene) -> None:
    """150,000 changed rows into 3,000,000: merge-on-read beside copy-on-write."""
    changes = scene.table()
    scene.land(changes, [f"{ROWS // 2}+{CHANGED * 2 // 3}", f"{ROWS}+{CHANGED // 3}"])

    def merge(session: SparkSession, target: str, _: object) -> None:
        session.sql(
            f"MERGE INTO {target} t USING {EMBEDDED}.{changes.name} s ON t.id = s.id "
            "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
        )

    took: dict[str, list[float]] = {"merge-on-read": [], "copy-on-write": []}
    for turn in range(3):
        for mode, times in took.items():
            table = scene.table({"write.merge.mode": mode})
            scene.land(table, parts("base"))
            session = scene.session.newSession()
            stager = MergeStager(session=session, table=table, ids=RandomIds(), merge=merge)
            times.append(seconds(scene.land, table, [f"merge {turn}"], stager))
    for mode, times in took.items():
        print(f"{CHANGED:,} rows merged into {ROWS:,}, {mode}: {statistics.median(times):.2f} s")
    medians = {mode: statistics.median(times) for mode, times in took.items()}
    figure("landing.merge_mor_vs_cow", medians["merge-on-read"] / medians["copy-on-write"], "<=", 1)


def main() -> None:
    wanted = sys.argv[1:] or ["large", "small", "settling", "merging", "ageing"]
    with tempfile.TemporaryDirectory(prefix="lakehead-bench-") as name:
        folder = Path(name)
        settings = replace(spark_settings(), lakehouse=folder / "lakehouse")
        session = build_session(settings, say=print)
        catalog = open_catalog(EMBEDDED, settings.all_catalogs[EMBEDDED])
        scene = Scene(folder, session, catalog)
        try:
            for what in wanted:
                {
                    "large": lambda: large(scene, folder),
                    "small": lambda: small(scene),
                    "settling": lambda: settling(scene),
                    "merging": lambda: merging(scene),
                    "ageing": lambda: ageing(scene),
                }[what]()
        finally:
            scene.state.close()
            catalog.close()
            stop_session(session)


if __name__ == "__main__":
    main()
