"""A real session: quiet, in UTC, one for each thread, with jobs that know their table."""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from zipimport import zipimporter

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.sql import SparkSession

from lakehead.errors import Misconfigured
from lakehead.run.environment import spark_settings
from lakehead.spark.jobs import ThreadSessions, cancel_group, job_group
from lakehead.spark.session import build_session
from lakehead.spark.settings import embedded_catalog
from tests.support.spark import own_session

pytestmark = [
    pytest.mark.own_jvm,
    pytest.mark.timeout(300),  # the very first start fetches jars and prepares quicker ones
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),  # PySpark leaves them to the collector
]


COUNT_IN_PYTHON = """
from dataclasses import replace
from pathlib import Path
from lakehead.run.environment import spark_settings
from lakehead.spark.session import build_session, stop_session
session = build_session(replace(spark_settings(), lakehouse=Path("lakehouse"), master="local[8]"))
print(session.sparkContext.parallelize(range(8), 8).mapPartitions(lambda numbers: [sum(numbers)]).sum())
stop_session(session)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lakehouse")


@pytest.fixture(scope="module")
def spark(folder: Path) -> Iterator[SparkSession]:
    with own_session(replace(spark_settings(), lakehouse=folder)) as session:
        yield session


def test_the_embedded_catalog_is_one_that_pyiceberg_shares(spark: SparkSession, folder: Path) -> None:
    spark.sql("CREATE NAMESPACE lake.shared")
    spark.sql("CREATE TABLE lake.shared.t USING iceberg AS SELECT id FROM range(3)")

    properties = embedded_catalog(folder)
    catalog = SqlCatalog("lake", uri=f"sqlite:///{folder}/catalog.sqlite", warehouse=properties["warehouse"])
    try:
        assert sorted(catalog.load_table("shared.t").scan().to_arrow()["id"].to_pylist()) == [0, 1, 2]
    finally:
        catalog.close()


def test_workers_have_loaded_what_tasks_need_and_look_into_no_archive(spark: SparkSession) -> None:
    def look(_: Iterable[int]) -> Iterable[tuple[bool, list[str]]]:
        found = [path for path in sys.path if path.endswith((".jar", ".zip"))]
        found += [path for path, importer in sys.path_importer_cache.items() if isinstance(importer, zipimporter)]
        yield "pyarrow.parquet" in sys.modules, found

    assert spark.sparkContext.parallelize([0], 1).mapPartitions(look).collect() == [(True, [])]


def test_workers_are_met_where_only_this_user_may_enter_and_are_used_again(spark: SparkSession) -> None:
    def who(numbers: Iterable[int]) -> Iterable[int]:
        list(numbers)
        yield os.getpid()

    workers = {spark.sparkContext.parallelize([0], 1).mapPartitions(who).collect()[0] for _ in range(5)}
    folder = Path(spark.sparkContext._temp_dir).parent

    assert any(path.is_socket() for path in folder.iterdir())
    assert folder.stat().st_mode & 0o077 == 0
    assert len(workers) == 1


@pytest.mark.parametrize("depth", [0, 60], ids=["by sockets", "by TCP, where a socket's path would be too long"])
def test_python_tasks_and_their_end_print_nothing(depth: int, tmp_path: Path) -> None:
    folder = tmp_path / ("d" * depth) if depth else Path(tempfile.gettempdir())
    folder.mkdir(exist_ok=True)
    ran = subprocess.run(
        [sys.executable, "-c", COUNT_IN_PYTHON],
        env={**os.environ, "SPARK_LOCAL_DIRS": str(folder)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )

    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "28\n", "")


def test_time_is_utc_in_sql_in_the_jvm_and_in_tasks(spark: SparkSession) -> None:
    def zone(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        yield from (pa.RecordBatch.from_pydict({"zone": [time.tzname[0]]}) for _ in batches)

    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark._jvm is not None
    assert spark._jvm.java.util.TimeZone.getDefault().getID() == "UTC"
    assert {row.zone for row in spark.range(1).mapInArrow(zone, "zone string").collect()} == {"UTC"}


def test_tasks_run_on_this_python(spark: SparkSession) -> None:
    def executable(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        yield from (pa.RecordBatch.from_pydict({"it": [sys.executable]}) for _ in batches)

    assert {row.it for row in spark.range(1).mapInArrow(executable, "it string").collect()} == {sys.executable}


def test_each_thread_has_a_session_and_properties_of_its_own(spark: SparkSession) -> None:
    sessions = ThreadSessions(spark)
    key = "spark.sql.iceberg.snapshot-property.token"
    all_set = threading.Barrier(2)

    def work(token: str) -> tuple[str | None, bool, bool]:
        mine = sessions.mine()
        mine.conf.set(key, token)
        all_set.wait(60)
        return mine.conf.get(key), sessions.mine() is mine, mine.conf.get("spark.sql.session.timeZone") == "UTC"

    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(work, ["a", "b"])) == [("a", True, True), ("b", True, True)]
    assert spark.conf.get(key, None) is None


def test_the_job_groups_of_threads_do_not_leak_into_each_other(spark: SparkSession) -> None:
    sessions = ThreadSessions(spark)
    tracker = spark.sparkContext.statusTracker()
    both_inside = threading.Barrier(2)

    def work(table: str) -> str | None:
        mine = sessions.mine()
        with job_group(mine, f"leak-{table}", f"load {table}"):
            both_inside.wait(60)
            mine.range(10).count()
            both_inside.wait(60)
        mine.range(10).count()
        return mine.sparkContext.getLocalProperty("spark.jobGroup.id")

    before = set(tracker.getJobIdsForGroup(None))
    with ThreadPoolExecutor(2) as threads:
        afterwards = list(threads.map(work, ["a", "b"]))

    jobs_a, jobs_b = (set(tracker.getJobIdsForGroup(f"leak-{table}")) for table in "ab")
    assert jobs_a
    assert jobs_b
    assert not jobs_a & jobs_b
    assert afterwards == [None, None]
    assert len(set(tracker.getJobIdsForGroup(None)) - before) >= 2, "jobs after the groups belong to none"


def test_a_group_within_a_group_gives_the_outer_one_back_also_after_an_error(spark: SparkSession) -> None:
    context = spark.sparkContext

    with job_group(spark, "outer", "outside"):
        with suppress(ZeroDivisionError), job_group(spark, "inner", "inside", pool="p"):
            assert context.getLocalProperty("spark.scheduler.pool") == "p"
            _ = 1 / 0
        assert context.getLocalProperty("spark.jobGroup.id") == "outer"
        assert context.getLocalProperty("spark.job.description") == "outside"
        assert context.getLocalProperty("spark.scheduler.pool") == "outer"
    assert context.getLocalProperty("spark.scheduler.pool") is None


def test_cancelling_a_group_stops_its_job_and_the_next_and_no_other(spark: SparkSession, tmp_path: Path) -> None:
    sessions = ThreadSessions(spark)
    started = tmp_path / "started"
    os.mkfifo(started)

    def start_and_hang(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        started.write_text("started")
        signal.pause()
        yield from batches

    def held() -> None:
        mine = sessions.mine()
        with job_group(mine, "cancelled", "held"):
            mine.range(0, 1, 1, 1).mapInArrow(start_and_hang, "id long").collect()

    def another_of_the_group() -> None:
        mine = sessions.mine()
        with job_group(mine, "cancelled", "held"):
            mine.range(10).count()

    with ThreadPoolExecutor(2) as threads:
        hanging = threads.submit(held)
        assert started.read_text() == "started"
        cancel_group(spark, "cancelled")

        assert "cancelled" in str(hanging.exception(60))
        assert "cancelled" in str(threads.submit(another_of_the_group).exception(60))
        assert threads.submit(lambda: sessions.mine().range(10).count()).result(60) == 10


def test_a_second_session_in_one_process_is_refused(spark: SparkSession) -> None:
    with pytest.raises(Misconfigured, match="a Spark session already"):
        build_session(spark_settings())
    assert spark.range(1).count() == 1


CHILD = """
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from lakehead.run.environment import spark_settings
from lakehead.spark.session import build_session, stop_session
settings = replace(spark_settings(), lakehouse=Path("lakehouse"))
session = build_session(settings)
print(session.range(1000).count())
print(session.sql("SHOW NAMESPACES IN lake").collect())
stop_session(session)
session = build_session(settings)
print(session.range(10).count())
"""


def test_a_start_prints_nothing_and_leaves_nothing_in_the_working_directory(
    spark: SparkSession, tmp_path: Path
) -> None:
    del spark  # jars and archive are there

    ran = subprocess.run(
        [sys.executable, "-c", CHILD],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )

    assert (ran.returncode, ran.stderr, ran.stdout) == (0, "", "1000\n[]\n10\n")
    assert [path.name for path in tmp_path.iterdir()] == ["lakehouse"]
