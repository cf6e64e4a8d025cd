"""The Arrow lane: Spark tasks turn units into data files, and no row crosses into the JVM.

Spark is the scheduler: it places the tasks, and runs them again where they fail. An attempt writes files that no other
attempt has; only those that came back from a task that succeeded are published.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyarrow.fs import FileSystem, FileType, LocalFileSystem
from pyiceberg.io.pyarrow import PyArrowFileIO, _get_parquet_writer_kwargs, schema_to_pyarrow
from pyiceberg.table import Table as Iceberg
from pyiceberg.table import TableProperties
from pyiceberg.table.sorting import NullOrder, SortDirection
from pyiceberg.utils.properties import property_as_int
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from lakehead.errors import DiskFull, LakeheadError, Misconfigured, Unavailable
from lakehead.ids import Ids
from lakehead.lake.conform import Refused
from lakehead.lake.datafiles import Key, Target
from lakehead.lake.landing import Fence, Head, Landing, Reached, Share, Unit
from lakehead.lake.ports import Staged
from lakehead.lake.rows import Change, NewFiles
from lakehead.lake.table import IcebergTable
from lakehead.lake.tasks import Part, Wrote, attempt, pickled, unpickled, write_batches, write_parts


class StagingFailed(LakeheadError):
    """The tasks that write rows failed, after Spark had tried them again. Nothing was published."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrowStager(Generic[Part]):
    """Stages units that a function can read as Arrow, wherever it runs."""

    session: SparkSession
    table: IcebergTable
    ids: Ids
    read: Callable[[Part], Iterable[pa.RecordBatch]]
    """Runs in the tasks. On a cluster, what it needs must be installed there."""

    split: Callable[[Share, Reached], Sequence[Part]]
    """What of a share is read by itself: parts of one share may be read side by side. It is told how far the table
    will be with them."""

    change: Change = Change.APPEND
    tasks: int | None = None
    """How many tasks at most. Default: as many as run side by side."""

    async def stage(self, shares: Sequence[Share], *, token: str, reached: Reached, fence: Fence) -> Staged[NewFiles]:
        """Write the rows of the shares as data files that no snapshot has."""
        parts = [
            (share.unit, number, part)
            for share in shares
            if share.spans != ()
            for number, part in enumerate(self.split(share, reached))
        ]
        context = self.session.sparkContext
        iceberg, name, read = self.table.seen(), _name(token, self.ids), self.read
        target = target_of(iceberg)

        def task(parts: Iterable[tuple[Unit, int, Part]]) -> Iterator[Wrote]:
            yield write_parts(target, attempt(name), read, parts)

        wrote: list[Wrote] = []
        if parts:
            tasks = min(len(parts), self.tasks or context.defaultParallelism)
            wrote = _run(lambda: context.parallelize(parts, tasks).mapPartitions(task).collect(), iceberg)
        return _staged(wrote, shares, iceberg, self.change, token, reached, fence, parts=len(parts))

    def still_good(self, staged: Staged[NewFiles], at: Head) -> bool:
        """Files are good wherever main is, until a sweep may have removed them or the partitions have changed."""
        return still_good(self.table, staged, at)

    async def is_there(self, staged: Staged[NewFiles]) -> bool:
        """Whether every file is still where it was written, and as long as it was."""
        return is_there(self.table, staged)

    async def discard(self, staged: Staged[NewFiles]) -> None:
        """Files that no snapshot has are in nobody's way: the sweep removes them when they are old."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameStager:
    """Stages what only Spark can read: the rows of a data frame, by the same writer."""

    session: SparkSession
    table: IcebergTable
    ids: Ids
    frame: Callable[[Sequence[Share], Reached], DataFrame]
    change: Change = Change.APPEND

    async def stage(self, shares: Sequence[Share], *, token: str, reached: Reached, fence: Fence) -> Staged[NewFiles]:
        """Write the frame's rows as data files that no snapshot has."""
        iceberg, name = self.table.seen(), _name(token, self.ids)
        target = target_of(iceberg)

        def run() -> list[Wrote]:
            frame = self.frame(shares, reached)
            names = frame.columns

            def task(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
                named = (batch.rename_columns(names) for batch in batches)
                yield pickled(write_batches(target, attempt(name), named))

            # By numbers: Spark's own way to its columns loses those with a dot in their names.
            numbered = frame.toDF(*(str(number) for number in range(len(names))))
            return [unpickled(row.wrote) for row in numbered.mapInArrow(task, "wrote binary").collect()]

        return _staged(_run(run, iceberg), shares, iceberg, self.change, token, reached, fence)

    def still_good(self, staged: Staged[NewFiles], at: Head) -> bool:
        """Files are good wherever main is, until a sweep may have removed them or the partitions have changed."""
        return still_good(self.table, staged, at)

    async def is_there(self, staged: Staged[NewFiles]) -> bool:
        """Whether every file is still where it was written, and as long as it was."""
        return is_there(self.table, staged)

    async def discard(self, staged: Staged[NewFiles]) -> None:
        """Files that no snapshot has are in nobody's way: the sweep removes them when they are old."""


def target_of(table: Iceberg) -> Target:
    """Where and how the table's data files are to be written, as its properties say."""
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
        parquet=_get_parquet_writer_kwargs(properties),
    )


def filesystem_of(table: Iceberg, uri: str) -> tuple[FileSystem, str]:
    """The file system of a place of the table, such as can be taken along to tasks, and the place in it."""
    if not isinstance(table.io, PyArrowFileIO):
        raise Misconfigured(f"The table {'.'.join(table.name())} is not read through PyArrow. Leave out 'py-io-impl'.")
    scheme, netloc, path = PyArrowFileIO.parse_location(uri, table.io.properties)
    # PyIceberg's own for local files would make every task import PyIceberg.
    return LocalFileSystem() if scheme == "file" else table.io.fs_by_scheme(scheme, netloc), path


def still_good(table: IcebergTable, staged: Staged[NewFiles], at: Head) -> bool:
    """Whether files that were staged for an earlier head may be published at this one."""
    return staged.at.sweep == at.sweep and table.seen().metadata.default_spec_id == staged.rows.spec_id


def is_there(table: IcebergTable, staged: Staged[NewFiles]) -> bool:
    """Whether every staged file is still in the store, whole. Raises `Unavailable` if the store does not tell."""
    files = staged.rows.files
    if not files:
        return True
    filesystem, _ = filesystem_of(table.seen(), files[0].uri)
    try:
        found = filesystem.get_file_info([file.path for file in files])
    except OSError as error:
        raise Unavailable(f"The files staged for table {table.name} cannot be looked at ({error}).") from error
    sizes = [info.size if info.type is FileType.File else None for info in found]
    return sizes == [file.size for file in files]


def _staged(
    wrote: Sequence[Wrote],
    shares: Sequence[Share],
    iceberg: Iceberg,
    change: Change,
    token: str,
    reached: Reached,
    fence: Fence,
    *,
    parts: int = 0,
) -> Staged[NewFiles]:
    for task in wrote:
        if task.refused is not None:
            raise Refused(f"Table {'.'.join(iceberg.name())}: {task.refused}")
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
    counts = {"units": len(shares), "rows": rows.rows, "files": len(files), "bytes": sum(file.size for file in files)}
    landing = Landing(token, tuple(shares), before=fence.last_landing, reached=reached, counts=counts)
    return Staged(rows, landing, fence.head)


def _run(job: Callable[[], list[Wrote]], table: Iceberg) -> list[Wrote]:
    try:
        return job()
    except (PySparkException, Py4JJavaError) as error:
        raise disk_full(error, table.location()) or StagingFailed(
            f"The tasks that write rows for {'.'.join(table.name())} failed: {task_reason(error)}. Nothing was "
            "published; mend the cause and run it again."
        ) from error


def disk_full(error: Exception, location: str) -> DiskFull | None:
    """Whether an error of Spark's means that a disk is full: the one that a task of ours names, or one of Spark's."""
    if f"{DiskFull.__module__}.{DiskFull.__qualname__}: " in str(error):
        return DiskFull(f"{task_reason(error)}.")
    return DiskFull.of(error, f"{location.removeprefix('file://')}, or of Spark's temporary files,")


def task_reason(error: Exception) -> str:
    """The last line that says something of a task's traceback, or of Java's causes; without the name of an error of
    ours, and without what Java has suppressed, which stands further in."""
    said = str(error)
    _, in_python, inside = said.rpartition("Traceback (most recent call last):")
    lines = inside.partition("\n\n")[0].splitlines()
    told = [line.strip() for line in lines if line.strip() and (in_python or not line[0].isspace())]
    last = next((line for line in reversed(told) if not line.startswith(("at ", "..."))), type(error).__name__)
    return re.sub(r"^(Caused by: |: )?(lakehead[.\w]*: )?", "", last).rstrip(".")


def _name(token: str, ids: Ids) -> str:
    return f"{token[:16]}-{ids.uuid()}"


def _column(table: Iceberg, source: int) -> str:
    name = table.schema().find_column_name(source)
    if name is None or name not in {field.name for field in table.schema().fields}:
        raise Misconfigured(
            f"The table {'.'.join(table.name())} is partitioned or sorted by {name!r}, which is inside another column. "
            "Landings need a column of the table itself."
        )
    return name


def _number(properties: dict[str, str], name: str) -> int:
    default: int = getattr(TableProperties, f"{name}_DEFAULT")
    return property_as_int(properties, getattr(TableProperties, name), default) or default
