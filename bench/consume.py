"""`make bench-consume`: what it costs to land objects beside Spark reading the same rows, and how fresh tables are.

Each part can be run alone: `python -m bench.consume rows`. What is compared takes turns within one run, on two cores.
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench.consume_queues import freshness, memory, messages
from bench.consume_support import COLUMNS, SPARK_COLUMNS, Lakehouse, open_lakehouse, write_objects
from bench.figures import figure
from lakehead.spark.settings import EMBEDDED

OBJECTS, ROWS = 1_000, 1_000
TURNS = 5
FORMATS = ("parquet", "key_value", "ndjson")


def seconds(work: Callable[..., object], *arguments: object) -> float:
    began = time.perf_counter()
    work(*arguments)
    return time.perf_counter() - began


def rows(lakehouse: Lakehouse) -> None:
    """A thousand objects of a thousand rows, in three formats, beside Spark's own readers of the same files."""
    for name in FORMATS:
        write_objects(lakehouse.folder, name, OBJECTS, ROWS)
    for reader in ("parquet", "json"):
        table = f"{EMBEDDED}.bench.spark_{reader}"
        lakehouse.session.sql(f"CREATE TABLE {table} ({SPARK_COLUMNS}) USING iceberg")
    turns = [
        {
            "land parquet": seconds(_land, lakehouse, "parquet", turn),
            "spark parquet": seconds(_append, lakehouse, "parquet", "parquet"),
            "land key_value": seconds(_land, lakehouse, "key_value", turn),
            "land ndjson": seconds(_land, lakehouse, "ndjson", turn),
            "spark json": seconds(_append, lakehouse, "json", "ndjson"),
        }
        for turn in range(TURNS + 1)
    ][1:]  # in the first one the workers had to start
    for table in (*FORMATS, "spark_parquet", "spark_json"):
        lakehouse.check_rows(f"bench.{table}", OBJECTS * ROWS * (TURNS + 1))
    for name in turns[0]:
        each = [turn[name] for turn in turns]
        print(f"{OBJECTS * ROWS:,} rows, {name}: {statistics.median(each):.2f} s ({min(each):.2f}-{max(each):.2f})")
    for name in ("parquet", "key_value"):
        ratio = statistics.median(turn["spark parquet"] / turn[f"land {name}"] for turn in turns)
        figure(f"consume.rows_vs_spark_parquet.{name}", ratio, ">=", 0.5)
    ratio = statistics.median(turn["spark json"] / turn["land ndjson"] for turn in turns)
    figure("consume.ndjson_vs_spark_json", ratio, ">=", 1)


def _land(lakehouse: Lakehouse, name: str, turn: int) -> None:
    again = lakehouse.folder / f"{name}-{turn}"  # the same objects under another name, so that they are new
    again.symlink_to(lakehouse.folder / name)
    pipeline = lakehouse.pipeline(
        {"type": "files", "uris": [path.as_uri() for path in sorted(again.iterdir())]},
        {"table": f"bench.{name}", "format": name, "value": "json", "columns": COLUMNS},
        max_messages=OBJECTS,
    )
    pipeline.run(lambda coordinator, _: coordinator.counts.acknowledged >= OBJECTS)


def _append(lakehouse: Lakehouse, reader: str, folder: str) -> None:
    read = lakehouse.session.read.schema(SPARK_COLUMNS).format(reader)
    read.load(str(lakehouse.folder / folder)).writeTo(f"{EMBEDDED}.bench.spark_{reader}").append()


ON_SPARK = {"rows": rows, "messages": messages, "freshness": freshness}
PARTS = [*ON_SPARK, "memory"]


def main() -> None:
    wanted = sys.argv[1:] or PARTS
    if unknown := set(wanted) - set(PARTS):
        sys.exit(f"There is no part {unknown.pop()}. Parts: {', '.join(PARTS)}.")
    with tempfile.TemporaryDirectory(prefix="lakehead-bench-") as name:
        folder = Path(name)
        if on_spark := [ON_SPARK[part] for part in wanted if part in ON_SPARK]:
            with open_lakehouse(folder) as lakehouse:
                for measure in on_spark:
                    measure(lakehouse)
        if "memory" in wanted:
            memory(folder)


if __name__ == "__main__":
    main()
