"""A session on a real cluster: tasks in Python and Iceberg's writers run on the workers."""

import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from lakehead.run.environment import spark_settings
from lakehead.spark.java import find_java
from tests.servers.cluster import MEMORY, WORKERS, Cluster
from tests.support.spark import own_session

pytestmark = [
    pytest.mark.own_jvm,
    pytest.mark.timeout(300),  # the very first start fetches jars and prepares quicker ones
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),  # PySpark leaves them to the collector
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    cluster = Cluster(find_java(spark_settings()).command)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture(scope="module")
def spark(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    settings = replace(
        spark_settings(),
        master=cluster.master,
        lakehouse=tmp_path_factory.mktemp("lakehouse"),
        python=sys.executable,
        conf={
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.executor.memory": MEMORY,
            "spark.executor.cores": "1",
            "spark.cores.max": str(WORKERS),
            # The job of a test begins when every worker has an executor, and so runs on all of them.
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
            "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
        },
    )
    with own_session(settings) as session:
        yield session


def test_python_tasks_run_on_the_workers_in_utc_with_the_python_of_the_settings(spark: SparkSession) -> None:
    def where(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        for _ in batches:
            it = {"folder": str(Path.cwd()), "python": sys.executable, "zone": time.tzname[0]}
            yield pa.RecordBatch.from_pylist([it])

    rows = spark.range(0, 100, 1, 8).mapInArrow(where, "folder string, python string, zone string").collect()

    assert {(row.python, row.zone) for row in rows} == {(sys.executable, "UTC")}
    assert {part for row in rows for part in Path(row.folder).parts if part.startswith("work-")} == {"work-0", "work-1"}


def test_iceberg_appends_and_merges_from_the_workers(spark: SparkSession) -> None:
    spark.sql("CREATE NAMESPACE lake.cluster")
    spark.sql("CREATE TABLE lake.cluster.t (id BIGINT, name STRING) USING iceberg")
    spark.sql("SELECT id, string(id) AS name FROM range(0, 1000, 1, 4)").writeTo("lake.cluster.t").append()
    spark.sql("SELECT id, 'changed' AS name FROM range(500, 1500)").createOrReplaceTempView("changes")
    spark.sql(
        "MERGE INTO lake.cluster.t t USING changes c ON t.id = c.id "
        "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    )

    counts = spark.table("lake.cluster.t").selectExpr("count(*)", "count_if(name = 'changed')").collect()
    assert [tuple(row) for row in counts] == [(1500, 1000)]


def test_tasks_have_the_drivers_lakehead_whatever_the_workers_have_installed(spark: SparkSession) -> None:
    def found(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        for _ in batches:
            yield pa.RecordBatch.from_pydict({"file": [import_module("lakehead.spark.settings").__file__]})

    files = [Path(row.file) for row in spark.range(0, 4, 1, 4).mapInArrow(found, "file string").collect()]

    assert {file.parts[-4:] for file in files} == {("lakehead.zip", "lakehead", "spark", "settings.py")}
