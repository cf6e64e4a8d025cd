"""How far a table's jobs are, as it is asked while they run: what keeps a lease."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lakehead.spark.jobs import all_progress, group_progress, job_group
from tests.pipeline import Pipeline
from tests.support.spark import shared_session

pytestmark = [
    pytest.mark.timeout(300),  # the very first start fetches jars and prepares quicker ones
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),  # PySpark leaves them to the collector
]


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> SparkSession:
    return shared_session(Pipeline.spark_settings(tmp_path_factory.mktemp("lakehouse")))


def waiting_for(folder: str) -> Callable[[Iterable[int]], Iterator[int]]:
    """Tasks that each end when a file of their number is there."""

    def task(numbers: Iterable[int]) -> Iterator[int]:
        for number in numbers:
            while not Path(folder, str(number)).exists():
                time.sleep(0.01)
            yield number

    return task


def changed(progress: Callable[[], object], before: object) -> object:
    """What it answers when that is no longer what it was before."""
    while (now := progress()) == before:
        time.sleep(0.01)  # how often is asked; the test's own time is the limit
    return now


def test_it_changes_when_a_task_ends_and_not_before(spark: SparkSession, tmp_path: Path) -> None:
    asked: list[Callable[[], object]] = []
    begun = threading.Event()

    def work() -> None:
        with job_group(spark, "a group of its own", "two tasks"):
            asked.append(group_progress(spark))
            begun.set()
            spark.sparkContext.parallelize([0, 1], 2).mapPartitions(waiting_for(str(tmp_path))).collect()

    thread = threading.Thread(target=work)
    thread.start()
    assert begun.wait(60)
    [progress] = asked
    seen = [progress()]

    seen.append(changed(progress, seen[-1]))  # the job has begun
    assert progress() == progress()
    (tmp_path / "0").touch()
    seen.append(changed(progress, seen[-1]))
    assert progress() == progress()
    (tmp_path / "1").touch()
    thread.join()

    assert progress() != seen[-1]
    assert None not in seen


def test_jobs_of_any_group_are_progress_of_a_process_with_one_piece_of_work(
    spark: SparkSession, tmp_path: Path
) -> None:
    progress, of_no_group = all_progress(spark), group_progress(spark)
    idle, before = progress(), of_no_group()

    def work() -> None:
        with job_group(spark, "as a procedure of Iceberg's names it", "two tasks"):
            spark.sparkContext.parallelize([0, 1], 2).mapPartitions(waiting_for(str(tmp_path))).collect()

    thread = threading.Thread(target=work)
    thread.start()
    begun = changed(progress, idle)
    (tmp_path / "0").touch()
    half = changed(progress, begun)
    (tmp_path / "1").touch()
    thread.join()

    assert None not in (idle, begun, half)
    assert of_no_group() == before
