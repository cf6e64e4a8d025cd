"""Stage units as data files: Spark tasks write the rows through Arrow, and no row enters the JVM.

Spark only schedules: it places the tasks and runs failed ones again. Each attempt of a task writes files under names of
its own, and only the files that a successful task returned are published.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyarrow.fs import FileSystem, FileType, LocalFileSystem
from pyiceberg.io.pyarrow import PyArrowFileIO, schema_to_pyarrow
from pyiceberg.table import Table as Iceberg
from pyiceberg.table import TableProperties
from pyiceberg.table.sorting import NullOrder, SortDirection
from pyiceberg.utils.properties import property_as_int
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from lakehead.errors import DiskFull, LakeheadError, Misconfigured, Unavailable
from lakehead.ids import Ids
from lakehead.lake.conform import RowsRejected
from lakehead.lake.datafiles import Key, Target
from lakehead.lake.iceberg_table import IcebergTable
from lakehead.lake.landing import Fence, Head, Landing, NewWatermark, Unit, UnitRemainder
from lakehead.lake.parquet_options import bloom_filters, writer_options
from lakehead.lake.ports import Staged
from lakehead.lake.staged_rows import Change, NewFiles
from lakehead.lake.tasks import Part, TaskResult, attempt, pickled, unpickled, write_batches, write_parts

Result = TypeVar("Result")


class StagingFailed(LakeheadError):
    """The tasks that write rows failed, also when Spark retried them. Nothing was published."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrowStager(Generic[Part]):
    """Stages units that a function can read as Arrow on any worker."""

    session: SparkSession
    table: IcebergTable
    ids: Ids
    read: Callable[[Part], Iterable[pa.RecordBatch]]
    """Runs in the tasks. On a cluster, its dependencies must be installed on the workers."""

    split: Callable[[UnitRemainder], Sequence[Part]]
    """Splits a unit's remainder into parts that may be read in parallel."""

    change: Change = Change.APPEND
    tasks: int | None = None
    """How many tasks at most. Default: Spark's default parallelism."""

    async def stage(
        self, remainders: Sequence[UnitRemainder], *, token: str, new_watermark: NewWatermark, fence: Fence
    ) -> Staged[NewFiles]:
        """Write the rows of the remainders as data files that no snapshot refers to."""
        parts = [
            (remainder.unit, number, part)
            for remainder in remainders
            if remainder.spans != ()
            for number, part in enumerate(self.split(remainder))
        ]
        context = self.session.sparkContext
        iceberg, name, read = self.table.seen(), staged_name(token, self.ids), self.read
        target = target_of(iceberg)

        def task(parts: Iterable[tuple[Unit, int, Part]]) -> Iterator[TaskResult]:
            yield write_parts(target, attempt(name), read, parts)

        wrote: list[TaskResult] = []
        if parts:
            tasks = min(len(parts), self.tasks or context.defaultParallelism)
            wrote = run_tasks(lambda: context.parallelize(parts, tasks).mapPartitions(task).collect(), iceberg)
        return staged_files(wrote, remainders, iceberg, self.change, token, new_watermark, fence, parts=len(parts))

    def is_publishable_at(self, staged: Staged[NewFiles], at: Head) -> bool:
        """Files are good wherever main is, until a sweep may have removed them or the partitions have changed."""
        return is_publishable_at(self.table, staged, at)

    async def is_still_stored(self, staged: Staged[NewFiles]) -> bool:
        """Whether every file is still where it was written, and as long as it was."""
        return is_still_stored(self.table, staged)

    async def discard(self, staged: Staged[NewFiles]) -> None:
        """Nothing to do: files that no snapshot refers to disturb no writer, and the sweep removes them later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameStager:
    """Stages the rows of a data frame, for sources that only Spark can read, with the same writer."""

    session: SparkSession
    table: IcebergTable
    ids: Ids
    frame: Callable[[Sequence[UnitRemainder]], DataFrame]
    change: Change = Change.APPEND

    async def stage(
        self, remainders: Sequence[UnitRemainder], *, token: str, new_watermark: NewWatermark, fence: Fence
    ) -> Staged[NewFiles]:
        """Write the frame's rows as data files that no snapshot refers to."""
        iceberg, name = self.table.seen(), staged_name(token, self.ids)
        target = target_of(iceberg)

        def run() -> list[TaskResult]:
            frame = self.frame(remainders)
            names = frame.columns

            def task(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
                named = (batch.rename_columns(names) for batch in batches)
                yield pickled(write_batches(target, attempt(name), named))

            # Columns by number: `mapInArrow` fails to resolve names that contain a dot.
            numbered = frame.toDF(*(str(number) for number in range(len(names))))
            return [unpickled(row.wrote) for row in numbered.mapInArrow(task, "wrote binary").collect()]

        return staged_files(run_tasks(run, iceberg), remainders, iceberg, self.change, token, new_watermark, fence)

    def is_publishable_at(self, staged: Staged[NewFiles], at: Head) -> bool:
        """Files are good wherever main is, until a sweep may have removed them or the partitions have changed."""
        return is_publishable_at(self.table, staged, at)

    async def is_still_stored(self, staged: Staged[NewFiles]) -> bool:
        """Whether every file is still where it was written, and as long as it was."""
        return is_still_stored(self.table, staged)

    async def discard(self, staged: Staged[NewFiles]) -> None:
        """Nothing to do: files that no snapshot refers to disturb no writer, and the sweep removes them later."""


def target_of(table: Iceberg) -> Target:
    """Where and how the table's data files are to be written, according to its properties."""
    properties, schema = table.metadata.properties, table.schema()
    uri = properties.get(TableProperties.WRITE_DATA_PATH, f"{table.location().rstrip('/')}/data").rstrip("/")
    filesystem, folder = filesystem_of(table, uri)
    return Target(
        filesystem=filesystem,
        folder=folder,
        uri=uri,
        schema=schema_to_pyarrow(schema),
        partition=tuple(Key(_column(table, field.source_id), str(field.transform)) for field in table.spec().fields),
        order=tuple(
            Key(
                _column(table, key.source_id),
                str(key.transform),
                descending=key.direction is SortDirection.DESC,
                nulls_first=key.null_order is NullOrder.NULLS_FIRST,
            )
            for key in table.sort_order().fields
        ),
        file_bytes=_number(properties, "WRITE_TARGET_FILE_SIZE_BYTES"),
        row_group_rows=_number(properties, "PARQUET_ROW_GROUP_LIMIT"),
        parquet=writer_options(table),
        bloom=bloom_filters(table),
    )


def filesystem_of(table: Iceberg, uri: str) -> tuple[FileSystem, str]:
    """The file system of a location of the table, which can be pickled for tasks, and the path in that file system."""
    if not isinstance(table.io, PyArrowFileIO):
        raise Misconfigured(f"The table {'.'.join(table.name())} is not read through PyArrow. Remove 'py-io-impl'.")
    scheme, netloc, path = PyArrowFileIO.parse_location(uri, table.io.properties)
    # PyIceberg's own class for local files would make every task import PyIceberg.
    return LocalFileSystem() if scheme == "file" else table.io.fs_by_scheme(scheme, netloc), path


def is_publishable_at(table: IcebergTable, staged: Staged[NewFiles], at: Head) -> bool:
    """Whether files that were staged for an earlier head may be published at this one."""
    return staged.at.sweep == at.sweep and table.seen().metadata.default_spec_id == staged.rows.spec_id


def is_still_stored(table: IcebergTable, staged: Staged[NewFiles]) -> bool:
    """Whether every staged file still exists with its size. Raises `Unavailable` if the store does not answer."""
    files = staged.rows.files
    if not files:
        return True
    filesystem, _ = filesystem_of(table.seen(), files[0].uri)
    try:
        found = filesystem.get_file_info([file.path for file in files])
    except OSError as error:
        raise Unavailable(f"The files staged for table {table.name} cannot be checked ({error}).") from error
    sizes = [info.size if info.type is FileType.File else None for info in found]
    return sizes == [file.size for file in files]


def staged_files(
    wrote: Sequence[TaskResult],
    remainders: Sequence[UnitRemainder],
    iceberg: Iceberg,
    change: Change,
    token: str,
    new_watermark: NewWatermark,
    fence: Fence,
    *,
    parts: int = 0,
) -> Staged[NewFiles]:
    """The files that tasks wrote, with the landing of these remainders. Raises `RowsRejected` if a task refused rows.

    `parts` is how many parts the remainders were split into.
    """
    for task in wrote:
        if task.refused is not None:
            raise RowsRejected(f"Table {'.'.join(iceberg.name())}: {task.refused}")
    files = tuple(file for task in wrote for file in task.files)
    rows = NewFiles(
        files=files,
        change=change,
        schema_id=iceberg.schema().schema_id,
        spec_id=iceberg.spec().spec_id,
        sort_order_id=iceberg.sort_order().order_id or None,
        reads=tuple(read for task in wrote for read in task.reads),
        parts=parts,
    )
    counts = {
        "units": len(remainders),
        "rows": rows.rows,
        "files": len(files),
        "bytes": sum(file.size for file in files),
    }
    landing = Landing(token, tuple(remainders), before=fence.last_landing, new_watermark=new_watermark, counts=counts)
    return Staged(rows, landing, fence.head)


def run_tasks(job: Callable[[], list[Result]], table: Iceberg) -> list[Result]:
    """Run a Spark job that writes files. Raises `StagingFailed`, or `DiskFull`, if it fails."""
    try:
        return job()
    except (PySparkException, Py4JJavaError) as error:
        raise disk_full(error, table.location()) or StagingFailed(
            f"The tasks that write rows for {'.'.join(table.name())} failed: {task_reason(error)}. Nothing was "
            "published; fix the cause and run it again."
        ) from error


def disk_full(error: Exception, location: str) -> DiskFull | None:
    """A `DiskFull` if Spark's error means that a disk is full, either the one our task names or one of Spark's."""
    if f"{DiskFull.__module__}.{DiskFull.__qualname__}: " in str(error):
        return DiskFull(f"{task_reason(error)}.")
    return DiskFull.of(error, f"{location.removeprefix('file://')}, or of Spark's temporary files,")


def task_reason(error: Exception) -> str:
    """The last meaningful line of a task's traceback, or of Java's causes.

    Without the class name of our own errors, and without Java's suppressed exceptions, which are indented.
    """
    text = str(error)
    _, in_python, traceback = text.rpartition("Traceback (most recent call last):")
    lines = traceback.partition("\n\n")[0].splitlines()
    candidates = [line.strip() for line in lines if line.strip() and (in_python or not line[0].isspace())]
    last = next((line for line in reversed(candidates) if not line.startswith(("at ", "..."))), type(error).__name__)
    return re.sub(r"^(Caused by: |: )?(lakehead[.\w]*: )?", "", last).rstrip(".")


def staged_name(token: str, ids: Ids) -> str:
    """A prefix of file names that no other landing has."""
    return f"{token[:16]}-{ids.uuid()}"


def _column(table: Iceberg, source: int) -> str:
    name = table.schema().find_column_name(source)
    if name is None or name not in {field.name for field in table.schema().fields}:
        raise Misconfigured(
            f"The table {'.'.join(table.name())} is partitioned or sorted by {name!r}, which is a nested field. "
            "Partition and sort it by top-level columns."
        )
    return name


def _number(properties: dict[str, str], name: str) -> int:
    default: int = getattr(TableProperties, f"{name}_DEFAULT")
    return property_as_int(properties, getattr(TableProperties, name), default) or default
