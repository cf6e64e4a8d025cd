"""Plain Spark, sensibly tuned and warm: JDBC reads appended to Iceberg, a staged MERGE, merge-on-read, full reads."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

from pyspark.sql import DataFrame, DataFrameReader, SparkSession

from bench.extract_checks import written
from bench.extract_source import NAMES, TABLE, WARM_UP, Shop, Sums
from lakehead.run.environment import spark_settings
from lakehead.spark.session import build_session, stop_session
from lakehead.spark.settings import EMBEDDED
from tests.servers.postgres import PASSWORD, USER

DRIVER = "org.postgresql:postgresql:42.7.7"
NAMESPACE = f"{EMBEDDED}.plain"
MERGED_ON_READ = {"format-version": "2", "write.merge.mode": "merge-on-read"}


@dataclass(frozen=True, slots=True)
class SparkMerged:
    """A MERGE of what had changed."""

    seconds: float
    """With the source read and staged."""

    alone: float
    """From the staged table only."""


@dataclass(frozen=True, slots=True)
class Spark:
    """A session that is warm: every kind of work has been done in it once."""

    session: SparkSession
    warehouse: Path
    shop: Shop
    numbers: Iterator[int]

    def append(self) -> tuple[float, Sums]:
        """The whole table read by JDBC and appended to a new Iceberg table: seconds, and what is there then."""
        name = f"{TABLE}_{next(self.numbers)}"
        took = self._append(TABLE, name)
        found = written(self.warehouse, name)
        self.session.sql(f"DROP TABLE {NAMESPACE}.{name}")
        return took, found

    def mirror(self, name: str, table: str = TABLE) -> None:
        """Make a merge-on-read copy of the source's table, to be merged into."""
        self.session.sql(f"DROP TABLE IF EXISTS {NAMESPACE}.{name}")
        writer = self._read(table).writeTo(f"{NAMESPACE}.{name}").using("iceberg")
        for key, value in MERGED_ON_READ.items():
            writer = writer.tableProperty(key, value)
        writer.create()

    def merge(self, name: str, since: datetime, table: str = TABLE) -> SparkMerged:
        """Stage what has changed since a moment as an Iceberg table, and merge it."""
        staged = f"{NAMESPACE}.{table}_staged_{next(self.numbers)}"
        began = time.perf_counter()
        changed = f"(SELECT * FROM {table} WHERE updated_at > '{since}') AS changed"  # noqa: S608 - ours
        self._jdbc(changed).load().writeTo(staged).using("iceberg").create()
        read = time.perf_counter()
        self.session.sql(
            f"MERGE INTO {NAMESPACE}.{name} t USING {staged} s ON t.id = s.id "
            "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
        )
        ended = time.perf_counter()
        return SparkMerged(ended - began, ended - read)

    def merged(self, name: str) -> Sums:
        """What a table that was merged into holds, as PyIceberg reads it."""
        return written(self.warehouse, name)

    def read(self, table: str) -> tuple[float, Sums]:
        """Read every column of an Iceberg table: seconds, and what it holds."""
        columns = ", ".join(NAMES)
        words = f"SELECT count(*), sum(quantity), sum(price), bit_xor(xxhash64({columns})) FROM {table}"  # noqa: S608 - ours
        began = time.perf_counter()
        [[rows, quantity, price, _]] = self.session.sql(words).collect()
        return time.perf_counter() - began, Sums(rows, int(quantity), price)

    def register(self, metadata: str) -> str:
        """Let the session's catalog know a table that another tool has made, and answer its name."""
        name = f"registered_{next(self.numbers)}"
        self.session.sql(
            f"CALL {EMBEDDED}.system.register_table(table => 'plain.{name}', metadata_file => '{metadata}')"
        )
        return f"{NAMESPACE}.{name}"

    def _append(self, table: str, name: str) -> float:
        began = time.perf_counter()
        self._read(table).writeTo(f"{NAMESPACE}.{name}").using("iceberg").create()
        return time.perf_counter() - began

    def _read(self, table: str) -> DataFrame:
        with self.shop.connect() as connection:
            bounds = connection.execute(f"SELECT min(id), max(id) + 1 FROM {table}").fetchone()  # noqa: S608 - ours
        low, high = bounds or (0, 1)
        reader = self._jdbc(table).option("partitionColumn", "id").option("lowerBound", low).option("upperBound", high)
        return reader.option("numPartitions", os.cpu_count() or 2).load()

    def _jdbc(self, table: str) -> DataFrameReader:
        # -1: binary transfer from the first row on, which saves seconds.
        url = f"jdbc:{self.shop.plain_url}?prepareThreshold=-1"
        reader = self.session.read.format("jdbc").option("url", url).option("dbtable", table)
        reader = reader.option("user", USER).option("password", PASSWORD).option("driver", "org.postgresql.Driver")
        return reader.option("fetchsize", 10_000).option("preferTimestampNTZ", "true")


@contextmanager
def warm_spark(shop: Shop, folder: Path) -> Iterator[Spark]:
    """A session that has read, written and merged before."""
    settings = replace(
        spark_settings(), lakehouse=folder / "plain", jars=(DRIVER,), class_data_archive=False, app_name="plain"
    )
    session = build_session(settings, say=print)
    try:
        session.sql(f"CREATE NAMESPACE IF NOT EXISTS {NAMESPACE}")
        spark = Spark(session, folder / "plain" / "warehouse", shop, count())
        spark._append(WARM_UP, f"{WARM_UP}_first")  # noqa: SLF001 - ours
        spark.mirror(f"{WARM_UP}_mirror", WARM_UP)
        spark.merge(f"{WARM_UP}_mirror", datetime(2000, 1, 1, tzinfo=UTC), WARM_UP)
        yield spark
    finally:
        stop_session(session)
