"""A session on a real cluster: tasks in Python, Iceberg's writers and landings run on the workers, copies once."""

import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pyarrow as pa
import pytest

from lakehead.lake.landing import UnitRemainder
from lakehead.run.environment import spark_settings
from lakehead.spark.java import find_java
from tests.lakehouse import ROWS, Lakehouse
from tests.servers.cluster import MEMORY, WORKERS, Cluster
from tests.support.spark import own_session

pytestmark = [
    pytest.mark.own_jvm,
    pytest.mark.timeout(300),
]  # the very first start fetches jars and prepares quicker ones

SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "50ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.minTaskRuntime": "50ms",
}
PATIENCE = 60.0


class TwoHosts(Cluster):
    """A cluster whose second worker has another host name: Spark runs a copy of a task on another host alone."""

    def _run(self, daemon: str, *arguments: str) -> None:
        host = ("--host", "localhost") if any(argument.endswith("work-1") for argument in arguments) else ()
        super()._run(daemon, *host, *arguments)


@pytest.fixture(scope="module")
def lakehouse(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lakehouse]:
    folder = tmp_path_factory.mktemp("cluster")
    cluster = TwoHosts(find_java(spark_settings()).command)
    try:
        cluster.start()
        settings = replace(
            Lakehouse.settings(folder),
            master=cluster.master,
            python=sys.executable,
            conf={
                "spark.driver.host": "127.0.0.1",
                "spark.driver.bindAddress": "127.0.0.1",
                "spark.executor.memory": MEMORY,
                "spark.executor.cores": "1",
                "spark.cores.max": str(WORKERS),
                # A copy of a task runs on another executor than the task: both must be there.
                "spark.scheduler.minRegisteredResourcesRatio": "1.0",
                "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
                **SPECULATION,
            },
        )
        with own_session(settings) as session:
            lakehouse = Lakehouse(folder, session, settings.catalogs)
            yield lakehouse
            lakehouse.close()
    finally:
        cluster.stop()


def test_python_tasks_run_on_the_workers_in_utc_with_the_python_of_the_settings(lakehouse: Lakehouse) -> None:
    def where(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        for _ in batches:
            it = {"folder": str(Path.cwd()), "python": sys.executable, "zone": time.tzname[0]}
            yield pa.RecordBatch.from_pylist([it])

    rows = (
        lakehouse.session.range(0, 100, 1, 8).mapInArrow(where, "folder string, python string, zone string").collect()
    )

    assert {(row.python, row.zone) for row in rows} == {(sys.executable, "UTC")}
    assert {part for row in rows for part in Path(row.folder).parts if part.startswith("work-")} == {"work-0", "work-1"}


def test_iceberg_appends_and_merges_from_the_workers(lakehouse: Lakehouse) -> None:
    lakehouse.session.sql("CREATE NAMESPACE lake.cluster")
    lakehouse.session.sql("CREATE TABLE lake.cluster.t (id BIGINT, name STRING) USING iceberg")
    lakehouse.session.sql("SELECT id, string(id) AS name FROM range(0, 1000, 1, 4)").writeTo("lake.cluster.t").append()
    lakehouse.session.sql("SELECT id, 'changed' AS name FROM range(500, 1500)").createOrReplaceTempView("changes")
    lakehouse.session.sql(
        "MERGE INTO lake.cluster.t t USING changes c ON t.id = c.id "
        "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    )

    counts = lakehouse.session.table("lake.cluster.t").selectExpr("count(*)", "count_if(name = 'changed')").collect()
    assert [tuple(row) for row in counts] == [(1500, 1000)]


def test_tasks_have_the_drivers_lakehead_whatever_the_workers_have_installed(lakehouse: Lakehouse) -> None:
    def found(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        for _ in batches:
            yield pa.RecordBatch.from_pydict({"file": [import_module("lakehead.spark.settings").__file__]})

    files = [Path(row.file) for row in lakehouse.session.range(0, 4, 1, 4).mapInArrow(found, "file string").collect()]

    assert {file.parts[-4:] for file in files} == {("lakehead.zip", "lakehead", "spark", "settings.py")}


def test_units_land_from_the_workers(lakehouse: Lakehouse) -> None:
    table = lakehouse.create("workers")

    def read(remainder: UnitRemainder) -> Iterable[pa.RecordBatch]:
        place = next(part for part in Path.cwd().parts if part.startswith("work-"))
        yield pa.RecordBatch.from_pydict(
            {"unit": [f"{remainder.unit.id} on {place}"] * ROWS, "number": list(range(ROWS))}
        )

    lakehouse.land(table, *"abcd", stager=lakehouse.arrow_stager(table, read=read))

    assert sum(lakehouse.units_in(table).values()) == 4 * ROWS
    assert {name.partition(" ")[0] for name in lakehouse.units_in(table)} == set("abcd")
    assert {name.rpartition(" ")[2] for name in lakehouse.units_in(table)} <= {"work-0", "work-1"}
    assert lakehouse.session.table("lake.t.workers").count() == 4 * ROWS


def test_a_task_of_which_spark_starts_a_copy_lands_its_rows_once(lakehouse: Lakehouse, tmp_path: Path) -> None:
    table = lakehouse.create("copied")
    marks = str(tmp_path)

    def read(remainder: UnitRemainder) -> Iterable[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"unit": [remainder.unit.id] * ROWS, "number": list(range(ROWS))})
        if remainder.unit.id != "slow":
            return
        first, copied = Path(marks) / "first", Path(marks) / "copied"
        try:
            first.touch(exist_ok=False)
        except FileExistsError:
            copied.touch()
            return
        deadline = time.monotonic() + PATIENCE
        while not copied.exists() and time.monotonic() < deadline:
            time.sleep(0.02)

    landing = lakehouse.land(table, "fast", "slow", stager=lakehouse.arrow_stager(table, read=read))

    assert (tmp_path / "copied").exists(), "Spark has started a copy"
    assert landing is not None
    assert landing.counts["rows"] == 2 * ROWS
    assert lakehouse.units_in(table) == {"fast": ROWS, "slow": ROWS}
