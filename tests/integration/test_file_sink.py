"""The file sink with real Spark, and Hadoop's file systems held to the same suite as the disk of the crash tests."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PythonException
from pyspark.sql import DataFrame, SparkSession

from lakehead.clock import SystemClock
from lakehead.errors import Misconfigured
from lakehead.ids import RandomIds
from lakehead.lake.filesink.file_names import LANDED, SUCCESS
from lakehead.lake.filesink.file_sink import FileSink, PublishMode, Result
from lakehead.lake.filesink.frames import parquet_of
from lakehead.lake.filesink.hadoop import HadoopFiles
from lakehead.lake.filesink.port import Entry, Files, Outcome
from lakehead.lake.filesink.published import label_of, published
from lakehead.lake.filesink.staging_cleanup import Missing, leftovers, ttl_cleanup
from lakehead.lake.landing import Unit
from lakehead.run.environment import spark_settings
from tests.chaos.file_sink_child import FAR_AHEAD, DiskFiles, refuse
from tests.support.spark import shared_session

pytestmark = [
    pytest.mark.timeout(300),  # the very first start fetches jars and prepares quicker ones
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),  # PySpark leaves them to the collector
]

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def mounted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `viewfs://sink/disk` is: the same disk under a scheme that is not `file`, as HDFS and S3 are not."""
    return tmp_path_factory.mktemp("mounted")


@pytest.fixture(scope="module")
def spark(mounted: Path, tmp_path_factory: pytest.TempPathFactory) -> SparkSession:
    conf = {"spark.hadoop.fs.viewfs.mounttable.sink.link./disk": mounted.as_uri()}
    return shared_session(replace(spark_settings(), lakehouse=tmp_path_factory.mktemp("lakehouse"), conf=conf))


@dataclass(frozen=True)
class Place:
    """A folder as a file system calls it, and as the disk does."""

    files: Files
    root: str
    disk: Path

    def sink(self, way: PublishMode | None = None) -> FileSink:
        return FileSink(root=self.root, files=self.files, ids=RandomIds(), way=way)


KINDS = ["disk", "file", "file by its path", "viewfs", "viewfs that renames at once"]
EVERY = pytest.mark.parametrize("place", KINDS, indirect=True)


@pytest.fixture
def place(request: pytest.FixtureRequest, spark: SparkSession, mounted: Path, tmp_path: Path) -> Place:
    inside = mounted / RandomIds().uuid()
    match request.param:
        case "disk":
            return Place(DiskFiles(), str(tmp_path), tmp_path)
        case "file":
            return Place(HadoopFiles(spark, ids=RandomIds()), tmp_path.as_uri(), tmp_path)
        case "file by its path":
            folder = tmp_path / "a folder, ü"
            return Place(HadoopFiles(spark, ids=RandomIds()), str(folder), folder)
        case "viewfs":
            return Place(HadoopFiles(spark, ids=RandomIds()), f"viewfs://sink/disk/{inside.name}", inside)
        case _:
            files = HadoopFiles(spark, ids=RandomIds(), rename_at_once=frozenset({"viewfs"}))
            return Place(files, f"viewfs://sink/disk/{inside.name}", inside)


# --- one suite for every file system


@EVERY
def test_what_is_absent_is_absent_and_no_error(place: Place) -> None:
    files, nothing = place.files, f"{place.root}/nothing"

    assert (files.list(nothing), files.exists(nothing), files.read(nothing), files.modified_ns(nothing)) == (
        [],
        False,
        None,
        None,
    )
    files.delete(nothing)
    files.delete_if_empty(nothing)


@EVERY
def test_a_file_is_created_once_and_keeps_what_it_first_held(place: Place) -> None:
    files, file = place.files, f"{place.root}/folder/file"
    files.make_folder(f"{place.root}/folder")
    files.make_folder(f"{place.root}/folder")

    assert files.create(file, b"first \x00\xff") is Outcome.DONE
    assert files.create(file, b"second") is Outcome.TAKEN
    assert files.create(f"{place.root}/folder/empty", b"") is Outcome.DONE
    assert files.read(file) == b"first \x00\xff"
    assert files.read(f"{place.root}/folder/empty") == b""
    assert {each.name: each.is_folder for each in files.list(f"{place.root}/folder")} == {"file": False, "empty": False}
    assert files.list(place.root) == [Entry("folder", is_folder=True)]
    written = files.modified_ns(file)
    assert written is not None
    assert written // 10**6 == (place.disk / "folder" / "file").stat().st_mtime_ns // 10**6


@EVERY
def test_a_file_in_a_folder_that_is_gone_does_not_bring_the_folder_back(place: Place) -> None:
    place.files.make_folder(place.root)

    assert place.files.create(f"{place.root}/gone/file", b"body") is Outcome.ABSENT
    assert not place.files.exists(f"{place.root}/gone")


@EVERY
def test_a_folder_takes_a_free_name_and_never_goes_into_another(place: Place) -> None:
    files = place.files
    for name in ("one", "two"):
        files.make_folder(f"{place.root}/{name}")
        files.create(f"{place.root}/{name}/file", name.encode())

    assert files.rename(f"{place.root}/one", f"{place.root}/target") is Outcome.DONE
    assert files.rename(f"{place.root}/two", f"{place.root}/target") is Outcome.TAKEN
    assert files.rename(f"{place.root}/one", f"{place.root}/free") is Outcome.ABSENT
    assert files.read(f"{place.root}/target/file") == b"one"
    assert files.read(f"{place.root}/two/file") == b"two"
    assert sorted(each.name for each in files.list(place.root)) == ["target", "two"]


@EVERY
def test_a_folder_is_deleted_with_all_it_holds_or_only_if_it_holds_nothing(place: Place) -> None:
    files = place.files
    files.make_folder(f"{place.root}/full/inner")
    files.create(f"{place.root}/full/inner/file", b"body")
    files.make_folder(f"{place.root}/empty")

    files.delete_if_empty(f"{place.root}/full")
    files.delete_if_empty(f"{place.root}/empty")
    assert [each.name for each in files.list(place.root)] == ["full"]
    files.delete(f"{place.root}/full/inner/file")
    assert files.list(f"{place.root}/full/inner") == []
    files.delete(f"{place.root}/full")
    assert files.list(place.root) == []


@pytest.mark.parametrize("place", ["disk", "file"], indirect=True)  # elsewhere the disk below cannot promise it
def test_of_eight_threads_that_create_a_file_exactly_one_does(place: Place) -> None:
    place.files.make_folder(place.root)

    def create(number: int) -> list[Outcome]:
        return [place.files.create(f"{place.root}/{each}", bytes([number])) for each in range(20)]

    with ThreadPoolExecutor(8) as threads:
        outcomes = list(threads.map(create, range(8)))

    for each in range(20):
        [winner] = [number for number in range(8) if outcomes[number][each] is Outcome.DONE]
        assert place.files.read(f"{place.root}/{each}") == bytes([winner])


# --- Spark


def ids_in(frame: DataFrame) -> list[int]:
    return sorted(row.id for row in frame.select("id").collect())


def seen(place: Place, spark: SparkSession) -> list[int]:
    directories = published(place.root, files=place.files)
    return ids_in(spark.read.parquet(*directories)) if directories else []


@pytest.mark.parametrize(
    ("place", "way"),
    [
        ("file", PublishMode.RENAME),
        ("viewfs", PublishMode.POINTER),
        ("viewfs that renames at once", PublishMode.RENAME),
        # The other pairs: what a name is moved by and what a folder is named by have nothing to do with each other.
        pytest.param("file", PublishMode.POINTER, marks=pytest.mark.soak),
        pytest.param("file by its path", PublishMode.RENAME, marks=pytest.mark.soak),
        pytest.param("file by its path", PublishMode.POINTER, marks=pytest.mark.soak),
        pytest.param("viewfs", PublishMode.RENAME, marks=pytest.mark.soak),
        pytest.param("viewfs that renames at once", PublishMode.POINTER, marks=pytest.mark.soak),
    ],
    indirect=["place"],
)
def test_frames_land_once_are_replaced_whole_and_are_cleaned_up(
    place: Place, way: PublishMode, spark: SparkSession
) -> None:
    sink = place.sink(way)
    first = sink.land(Unit("orders/2024-02-29T00:00Z"), parquet_of(spark.range(0, 5, 1, 2)), watermark="w")
    other = sink.land(Unit("orders/2024-03-01T00:00Z"), parquet_of(spark.range(100, 103)))
    assert {first.result, other.result} == {Result.PUBLISHED}
    assert label_of(first.directory, files=place.files).watermark == "w"
    assert sink.land(Unit("orders/2024-02-29T00:00Z"), refuse).result is Result.FOUND
    assert seen(place, spark) == [0, 1, 2, 3, 4, 100, 101, 102]

    reload = Unit("orders/2024-02-29T00:00Z", 1)
    assert sink.land(reload, parquet_of(spark.range(10, 12))).result is Result.PUBLISHED
    assert seen(place, spark) == [10, 11, 100, 101, 102]
    if way is PublishMode.RENAME:
        assert ids_in(spark.read.parquet(f"{place.root}/published/*")) == [10, 11, 100, 101, 102]
    for each in published(place.root, files=place.files):
        assert {SUCCESS, LANDED} <= {entry.name for entry in place.files.list(each)}

    assert leftovers(place.root, files=place.files) == []
    young = ttl_cleanup(place.root, timedelta(hours=1), files=place.files, clock=SystemClock())
    aged = ttl_cleanup(place.root, timedelta(hours=1), files=place.files, clock=FAR_AHEAD)
    assert (len(young), len(aged)) == (0, 1)
    assert not place.files.exists(aged[0])
    assert seen(place, spark) == [10, 11, 100, 101, 102]
    assert leftovers(place.root, files=place.files) == []


@pytest.mark.parametrize("place", ["file"], indirect=True)
def test_the_way_is_the_file_systems_own(place: Place, spark: SparkSession) -> None:
    assert place.files.renames_at_once(str(place.disk))
    assert place.files.renames_at_once(place.root)
    assert not place.files.renames_at_once("viewfs://sink/disk")

    inside = f"viewfs://sink/disk/{RandomIds().uuid()}"
    replace(place.sink(), root=inside).land(Unit("a"), parquet_of(spark.range(1)))
    assert [each.name for each in place.files.list(f"{inside}/_pointers")] == ["a.g0"]


@pytest.mark.parametrize("place", ["file"], indirect=True)
@pytest.mark.parametrize("way", PublishMode)
def test_of_two_threads_with_one_unit_one_wins_and_the_other_drops_its_own(
    place: Place, way: PublishMode, spark: SparkSession
) -> None:
    both_staged = threading.Barrier(2)

    def land(number: int) -> Result:
        sink = place.sink(way)
        staged = sink.stage(Unit("a"), parquet_of(spark.range(number * 10, number * 10 + 2)))
        both_staged.wait(60)
        return sink.publish(staged).result

    with ThreadPoolExecutor(2) as threads:
        results = list(threads.map(land, range(2)))

    assert sorted(each.value for each in results) == ["found", "published"]
    winner = results.index(Result.PUBLISHED)
    assert seen(place, spark) == [winner * 10, winner * 10 + 1]
    assert leftovers(place.root, files=place.files) == []


@pytest.mark.parametrize("place", ["file"], indirect=True)
def test_an_empty_frame_lands_with_its_columns(place: Place, spark: SparkSession) -> None:
    place.sink().land(Unit("a"), parquet_of(spark.createDataFrame([], "id long, name string")))

    assert spark.read.parquet(*published(place.root, files=place.files)).dtypes == [
        ("id", "bigint"),
        ("name", "string"),
    ]


@pytest.mark.parametrize("place", ["file"], indirect=True)
def test_a_task_that_fails_is_raised_and_leaves_nothing(place: Place, spark: SparkSession) -> None:
    def fail(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        yield from batches
        raise ZeroDivisionError("on purpose")

    with pytest.raises(PythonException, match="on purpose"):
        place.sink().land(Unit("a"), parquet_of(spark.range(0, 10, 1, 1).mapInArrow(fail, "id long")))

    assert leftovers(place.root, files=place.files) == []
    assert seen(place, spark) == []


@pytest.mark.parametrize("url", ["s3a://bucket/folder", "nowhere://host/folder"])
def test_a_file_system_without_a_client_is_one_sentence(url: str, spark: SparkSession) -> None:
    sink = FileSink(root=url, files=HadoopFiles(spark, ids=RandomIds()), ids=RandomIds())

    with pytest.raises(Misconfigured, match=url.partition(":")[0]):
        sink.land(Unit("a"), parquet_of(spark.range(1)))


# --- Spark, killed

DOOMED = """
import signal, sys
from dataclasses import replace
from pathlib import Path
from lakehead.ids import RandomIds
from lakehead.lake.filesink.frames import parquet_of
from lakehead.lake.filesink.hadoop import HadoopFiles
from lakehead.lake.filesink.file_sink import FileSink
from lakehead.lake.landing import Unit
from lakehead.run.environment import spark_settings
from lakehead.spark.session import build_session

def first_rows_then_nothing(batches):
    for number, batch in enumerate(batches):
        yield batch
        if number == 3:
            print("writing", flush=True)
            signal.pause()

session = build_session(replace(spark_settings(), lakehouse=Path(sys.argv[1]) / "lakehouse"))
session.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "10")
frame = session.range(0, 100, 1, 1).mapInArrow(first_rows_then_nothing, "id long")
sink = FileSink(root=sys.argv[2], files=HadoopFiles(session, ids=RandomIds()), ids=RandomIds())
sink.land(Unit("a"), parquet_of(frame))
"""


@pytest.mark.parametrize("place", ["file"], indirect=True)
def test_spark_killed_while_it_writes_leaves_a_leftover_and_the_next_run_lands_the_unit(
    place: Place, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("doomed")
    command = [sys.executable, "-c", DOOMED, str(folder), place.root]
    with subprocess.Popen(
        command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as doomed:
        assert doomed.stderr is not None
        try:
            assert any("writing" in line for line in doomed.stderr), "it ended before it wrote"
        finally:
            # Its JVM is of the same group; the Python workers have one of their own and end with the JVM.
            with suppress(ProcessLookupError):
                os.killpg(doomed.pid, signal.SIGKILL)

    assert seen(place, spark) == []
    [left] = leftovers(place.root, files=place.files)
    assert left.missing is Missing.ROWS
    assert ttl_cleanup(place.root, timedelta(), files=place.files, clock=FAR_AHEAD) == []

    assert place.sink().land(Unit("a"), parquet_of(spark.range(100))).result is Result.PUBLISHED
    assert seen(place, spark) == list(range(100))
    assert ids_in(spark.read.parquet(f"{place.root}/published/*")) == list(range(100))
    assert leftovers(place.root, files=place.files) == [left]
