"""Writing a whole table in Arrow: Spark's tasks copy rows of another table, and one commit replaces everything.

Either all rows are copied, or the newest of each key. Then the keys are read first and spread over tasks, so that
neither the driver nor any task holds all of them. These tasks tell those that write which rows to leave out.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.table import Table as Iceberg
from pyspark.sql import SparkSession

from lakehead.ids import Ids
from lakehead.lake import stagers
from lakehead.lake.copy_tasks import (
    CannotCopy,
    CopyJob,
    CopyResult,
    Message,
    NumberedFile,
    find_superseded,
    shares_of,
    spread_keys,
    write_rows,
)
from lakehead.lake.file_rows import FileReader
from lakehead.lake.iceberg_table import IcebergTable, head_of
from lakehead.lake.key_bounds import KeyRange
from lakehead.lake.landing import Fence, Head, NewWatermark, UnitRemainder
from lakehead.lake.merge import MergeStager
from lakehead.lake.merge_changes import ColumnRange
from lakehead.lake.merge_keys import is_comparable
from lakehead.lake.merge_plan import NotByLane, PlannedFile, bounds_of, plan_files
from lakehead.lake.ports import AuditFailed, Moved, Staged
from lakehead.lake.staged_rows import Branch, Change, NewFiles
from lakehead.lake.stagers import filesystem_of, run_tasks, staged_files, staged_name, target_of
from lakehead.lake.tasks import TaskResult, attempt

BUCKET_ROWS = 2_000_000
"""Keys that one task compares, on average."""

TASK_ROWS = 32_000_000
"""Rows that one task writes, about, if there are more files than tasks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSource:
    """Rows of another table, which become all rows of the table that is written."""

    table: IcebergTable
    snapshot: int
    conditions: tuple[ColumnRange, ...]
    not_null: tuple[str, ...] = ()
    """Rows with NULL in one of these columns are left out."""

    keys: tuple[str, ...] = ()
    """Only the newest row of each key is taken, where NULL equals NULL; every row if there are none."""

    order: tuple[str, ...] = ()
    """The columns by which rows of one key are compared, in order; the larger value wins, and NULL is the smallest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeTableStager:
    """Stages the files that replace all of a table's rows; what tasks cannot copy is staged with Spark's statement."""

    session: SparkSession
    table: IcebergTable
    ids: Ids
    source: RowSource
    fallback: MergeStager
    check: Callable[[], None] = lambda: None
    """Raises if the tables do not match, whose columns may have been altered since."""

    async def stage(
        self, remainders: Sequence[UnitRemainder], *, token: str, new_watermark: NewWatermark, fence: Fence
    ) -> Staged[NewFiles] | Staged[Branch]:
        """Write the rows as data files that no snapshot refers to. Raises `Moved` if the table has moved."""
        iceberg = self.table.seen()
        if head_of(iceberg.metadata) != fence.head:
            iceberg = self.table.load()
            if head_of(iceberg.metadata) != fence.head:
                raise Moved(f"The table {self.table.name} has moved since it was fenced.")
        self.check()
        try:
            results = self._copy(iceberg, staged_name(token, self.ids))
        except NotByLane:
            return await self.fallback.stage(remainders, token=token, new_watermark=new_watermark, fence=fence)
        wrote = [TaskResult(files=result.files, refused=result.refused) for result in results]
        staged = staged_files(wrote, remainders, iceberg, Change.REPLACE, token, new_watermark, fence)
        self._check_counts(staged.rows, results)
        return staged

    def is_publishable_at(self, staged: Staged[NewFiles] | Staged[Branch], at: Head) -> bool:
        """Files are good wherever main is, because they replace all of it, until a sweep may have removed them or the
        table's columns or partitions have changed. A branch is good where it was made."""
        if isinstance(staged.rows, Branch):
            return self.fallback.is_publishable_at(staged, at)
        same_columns = self.table.seen().schema().schema_id == staged.rows.schema_id
        return same_columns and stagers.is_publishable_at(self.table, staged, at)

    async def is_still_stored(self, staged: Staged[NewFiles] | Staged[Branch]) -> bool:
        """Whether every file is still where it was written, and as long as it was."""
        return isinstance(staged.rows, Branch) or stagers.is_still_stored(self.table, staged)

    async def discard(self, staged: Staged[NewFiles] | Staged[Branch]) -> None:
        """Remove the branch of a statement. Files that no snapshot refers to disturb no writer."""
        if isinstance(staged.rows, Branch):
            await self.fallback.discard(staged)

    def _copy(self, iceberg: Iceberg, name: str) -> list[CopyResult]:
        source = self.source.table.seen()
        if source.metadata.snapshot_by_id(self.source.snapshot) is None:
            source = self.source.table.load()
        reader = FileReader(filesystem_of(source, source.location())[0], schema_to_pyarrow(source.schema()))
        for column in (*self.source.keys, *self.source.order):
            if column not in reader.schema.names:
                raise NotByLane(f"{column!r} is not a column of its own")
            if not is_comparable(reader.schema.field(column).type):
                raise NotByLane(f"the column {column!r} is {reader.schema.field(column).type}")
        job = CopyJob(
            target=target_of(iceberg),
            source=reader,
            ranges=tuple((each.column, each.low, each.high) for each in self.source.conditions),
            not_null=self.source.not_null,
            keys=self.source.keys,
            order=self.source.order,
        )
        files = self._files(source, reader.schema)
        results = run_tasks(lambda: self._results(job, files, name), iceberg) if files else []
        if cannot := next((result.cannot for result in results if result.cannot is not None), None):
            raise NotByLane(cannot)
        return results

    def _files(self, source: Iceberg, schema: pa.Schema) -> list[NumberedFile]:
        """The files that may have wanted rows, those with smaller keys first: then neighbours share few keys."""
        snapshot = source.metadata.snapshot_by_id(self.source.snapshot)
        if snapshot is None:
            raise NotByLane("the rows' snapshot has expired")
        ids = {each.name: each.field_id for each in source.schema().fields}
        columns = [(ids[each.column], pa.int64()) for each in self.source.conditions]
        wanted = KeyRange(tuple((each.low, each.high) for each in self.source.conditions))
        plan = plan_files(source, snapshot, lambda file: wanted.may_be_in(bounds_of(file, columns)))
        keys = [(ids[key], schema.field(key).type) for key in self.source.keys]

        def first(file: PlannedFile) -> tuple[object, ...]:
            return tuple((bounds is not None, bounds[0] if bounds else 0) for bounds in bounds_of(file.entry, keys))

        return list(enumerate(file.stored for file in sorted(plan.files, key=first)))

    def _results(self, job: CopyJob, files: Sequence[NumberedFile], name: str) -> list[CopyResult]:
        context = self.session.sparkContext
        shares = shares_of(files, TASK_ROWS, context.defaultParallelism)
        writers = len(shares)

        def write(number: int, messages: Iterable[Message]) -> CopyResult:
            return write_rows(job, shares[number], messages, attempt(name))

        if not job.keys:
            return context.parallelize(range(writers), writers).map(lambda number: write(number, ())).collect()
        buckets = max(1, -(-sum(file.rows for _, file in files) // BUCKET_ROWS))
        writer_of = [number for number, share in enumerate(shares) for _ in share]

        def spread(numbers: Iterable[int]) -> Iterator[tuple[int, bytes | CannotCopy]]:
            return spread_keys(job, (file for number in numbers for file in shares[number]), buckets)

        def find(pieces: Iterable[tuple[int, bytes | CannotCopy]]) -> Iterator[tuple[int, Message]]:
            return find_superseded(job, (piece for _, piece in pieces), writer_of, writers)

        def write_share(number: int, messages: Iterable[tuple[int, Message]]) -> Iterator[CopyResult]:
            yield write(number, (message for _, message in messages))

        keys = context.parallelize(range(writers), writers).mapPartitions(spread).partitionBy(buckets, int)
        return keys.mapPartitions(find).partitionBy(writers, int).mapPartitionsWithIndex(write_share).collect()

    def _check_counts(self, rows: NewFiles, results: Sequence[CopyResult]) -> None:
        """Raise `AuditFailed` unless each key has one row, and each row that was read is in a file."""
        written, keys = (sum(getattr(result, which) for result in results) for which in ("written", "keys"))
        if rows.rows != written or (self.source.keys and keys != written):
            raise AuditFailed(
                f"{rows.rows} rows were written for {self.table.name}, and {keys if self.source.keys else written} "
                "were to be written. Nothing was published. Run it again."
            )
