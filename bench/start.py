"""`make bench-start`: from the start of a process to its first Spark job done, ours beside a plain session.

Both know Iceberg and have their jars already, so each turn is a second start or a later one. They take turns.
"""

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.figures import figure
from lakehead.spark.coordinates import needed
from lakehead.spark.settings import SparkSettings

TURNS = 5

OURS = """
from pathlib import Path
from lakehead.run.environment import spark_settings
from lakehead.spark.session import build_session
from dataclasses import replace
session = build_session(replace(spark_settings(), lakehouse=Path("lakehouse")))
assert session.range(1000).count() == 1000
print("done", flush=True)
"""

PLAIN = f"""
from pyspark.sql import SparkSession
catalog = "spark.sql.catalog.lake"
session = (
    SparkSession.builder.master("local[*]")
    .config("spark.jars.packages", "{",".join(map(str, needed(SparkSettings())))}")
    .config("spark.sql.extensions", "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions")
    .config(catalog, "org.apache.iceberg.spark.SparkCatalog")
    .config(catalog + ".type", "jdbc")
    .config(catalog + ".uri", "jdbc:sqlite:catalog.sqlite")
    .config(catalog + ".warehouse", "warehouse")
    .getOrCreate()
)
assert session.range(1000).count() == 1000
print("done", flush=True)
"""


def seconds(program: str) -> float:
    """From the start of a process with this program until it says that its job is done."""
    with tempfile.TemporaryDirectory() as folder, Path(folder, "noise").open("wb") as noise:
        began = time.perf_counter()
        with subprocess.Popen(
            [sys.executable, "-c", program], cwd=folder, stdout=subprocess.PIPE, stderr=noise
        ) as child:
            assert child.stdout is not None  # noqa: S101 - for the type checker
            if child.stdout.readline() != b"done\n":
                sys.exit(f"A session did not start: {Path(folder, 'noise').read_text()[-2000:]}")
            return time.perf_counter() - began


def main() -> None:
    print(f"first start: ours {seconds(OURS):.1f} s, plain {seconds(PLAIN):.1f} s (with whatever had to be fetched)")
    turns = [(seconds(OURS), seconds(PLAIN)) for _ in range(TURNS)]
    ours, plain = (statistics.median(each) for each in zip(*turns, strict=True))
    print(f"later starts: ours {ours:.1f} s, plain {plain:.1f} s")
    figure("start.first_job", statistics.median(mine / theirs for mine, theirs in turns), "<=", 0.5)


if __name__ == "__main__":
    main()
