"""A landing on a real cluster: workers write the files, and a task that runs twice lands its rows once."""

import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from lakehead.lake.landing import Share
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


def test_units_land_from_the_workers(lakehouse: Lakehouse) -> None:
    table = lakehouse.create("workers")

    def read(share: Share) -> Iterable[pa.RecordBatch]:
        place = next(part for part in Path.cwd().parts if part.startswith("work-"))
        yield pa.RecordBatch.from_pydict({"unit": [f"{share.unit.id} on {place}"] * ROWS, "number": list(range(ROWS))})

    lakehouse.land(table, *"abcd", stager=lakehouse.arrow_stager(table, read=read))

    assert sum(lakehouse.units_in(table).values()) == 4 * ROWS
    assert {name.partition(" ")[0] for name in lakehouse.units_in(table)} == set("abcd")
    assert {name.rpartition(" ")[2] for name in lakehouse.units_in(table)} <= {"work-0", "work-1"}
    assert lakehouse.session.table("lake.t.workers").count() == 4 * ROWS


def test_a_task_of_which_spark_starts_a_copy_lands_its_rows_once(lakehouse: Lakehouse, tmp_path: Path) -> None:
    table = lakehouse.create("copied")
    marks = str(tmp_path)

    def read(share: Share) -> Iterable[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"unit": [share.unit.id] * ROWS, "number": list(range(ROWS))})
        if share.unit.id != "slow":
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
