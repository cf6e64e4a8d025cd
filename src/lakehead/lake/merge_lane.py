"""Merging changes into a table in Arrow: Spark's tasks compare keys and write files, and no row enters the JVM.

The changes are rows of another table. Their keys, and what decides which of two rows is newer, become one file that
tasks map into memory. Tasks read those columns of the table's files and find the rows that are changed; others write
the changes' rows at the same time. Changed rows are deleted by position, or their file is written again without them.
"""

import heapq
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow.fs import FileType, LocalFileSystem
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.manifest import DataFile as IcebergDataFile
from pyiceberg.table import Table as Iceberg
from pyspark.sql import SparkSession

from lakehead.errors import DiskFull, Unavailable
from lakehead.ids import Ids
from lakehead.lake.conform import RowsRejected
from lakehead.lake.datafiles import Target
from lakehead.lake.file_rows import CannotRead, FileReader
from lakehead.lake.iceberg_table import IcebergTable, head_of
from lakehead.lake.key_bounds import KeyRange
from lakehead.lake.landing import Fence, Head, Landing, NewWatermark, UnitRemainder
from lakehead.lake.merge import MergeStager
from lakehead.lake.merge_changes import ColumnRange, StoredChanges, keys_of_files, newest_changes, store_changes
from lakehead.lake.merge_commit import delete_file
from lakehead.lake.merge_keys import comparable, is_comparable
from lakehead.lake.merge_plan import FilePlan, NotByLane, bounds_of, plan_files
from lakehead.lake.merge_tasks import (
    CHUNK_ROWS,
    FILE,
    POSITION,
    REWRITE_AT,
    MatchedFile,
    MergeJob,
    MergeResult,
    MergeTask,
    opened,
    run_task,
)
from lakehead.lake.merged_files import MergedFiles
from lakehead.lake.ports import AuditFailed, Moved, Staged
from lakehead.lake.staged_rows import Branch, Change, NewFiles
from lakehead.lake.stagers import filesystem_of, run_tasks, staged_name, target_of
from lakehead.lake.tasks import attempt

MERGE_MODE, COPY_ON_WRITE = "write.merge.mode", "copy-on-write"
SHOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """Rows of another table that are merged, and the rule by which they are."""

    table: IcebergTable
    snapshot: int
    conditions: tuple[ColumnRange, ...]
    keys: tuple[str, ...]
    order: tuple[str, ...]
    """The columns by which rows of one key are compared, in order; the larger value wins, and NULL is the smallest."""

    null_keys: bool = False
    """Whether rows with NULL in their key are merged, where NULL equals NULL."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneStager:
    """Stages a merge in Arrow; what that cannot merge is staged with Spark's MERGE."""

    session: SparkSession
    table: IcebergTable
    ids: Ids
    changes: Changes
    fallback: MergeStager
    check: Callable[[], None] = lambda: None
    """Raises if the tables do not match, whose columns may have been altered since."""

    async def stage(
        self, remainders: Sequence[UnitRemainder], *, token: str, new_watermark: NewWatermark, fence: Fence
    ) -> Staged[MergedFiles] | Staged[Branch]:
        """Write the files of the merge, for the fenced head only.

        Raises `Moved` if the table has moved since, and `AuditFailed` if a key of the changes is in the table twice.
        """
        try:
            merged = self._merge(token, fence.head)
        except NotByLane:
            return await self.fallback.stage(remainders, token=token, new_watermark=new_watermark, fence=fence)
        counts = {
            "units": len(remainders),
            "rows": merged.inserted + merged.updated,
            "files": len(merged.sizes),
            "bytes": sum(merged.sizes.values()),
        }
        landing = Landing(
            token, tuple(remainders), before=fence.last_landing, new_watermark=new_watermark, counts=counts
        )
        return Staged(merged, landing, fence.head)

    def is_publishable_at(self, staged: Staged[MergedFiles] | Staged[Branch], at: Head) -> bool:
        """True only at the head that it was made at: it knows nothing of later files and deletes."""
        if isinstance(staged.rows, Branch):
            return self.fallback.is_publishable_at(staged, at)
        return staged.at == at and self.table.seen().metadata.default_spec_id == staged.rows.new.spec_id

    async def is_still_stored(self, staged: Staged[MergedFiles] | Staged[Branch]) -> bool:
        """Whether every file is still where it was written, and as long as it was."""
        if isinstance(staged.rows, Branch):
            return True
        sizes, table = staged.rows.sizes, self.table.seen()
        try:
            found = [filesystem_of(table, uri)[0].get_file_info(filesystem_of(table, uri)[1]) for uri in sizes]
        except OSError as error:
            raise Unavailable(f"The files staged for table {self.table.name} cannot be checked ({error}).") from error
        return [info.size if info.type is FileType.File else None for info in found] == list(sizes.values())

    async def discard(self, staged: Staged[MergedFiles] | Staged[Branch]) -> None:
        """Remove the branch of a MERGE. Files that no snapshot refers to disturb no writer; the sweep removes them."""
        if isinstance(staged.rows, Branch):
            await self.fallback.discard(staged)

    def _merge(self, token: str, at: Head) -> MergedFiles:
        iceberg = self.table.seen()
        if head_of(iceberg.metadata) != at:
            iceberg = self.table.load()
            if head_of(iceberg.metadata) != at:
                raise Moved(f"The table {self.table.name} has moved since it was fenced.")
        snapshot = iceberg.metadata.snapshot_by_id(at.snapshot) if at.snapshot is not None else None
        if snapshot is None:
            raise NotByLane("it has no snapshot")
        self.check()
        mirror = reader_of(iceberg)
        kinds = self._kinds(mirror.schema)
        raw = self._raw()
        files = self._changed_files(raw)
        target, name = target_of(iceberg), staged_name(token, self.ids)
        if not target.filesystem.equals(mirror.filesystem):
            raise NotByLane("its new files go to another store")
        with self._stored(raw, files, kinds, target, name) as changes:
            ids = {each.name: each.field_id for each in iceberg.schema().fields}
            columns = [(ids[key], kinds[key]) for key in self.changes.keys]
            plan = plan_files(iceberg, snapshot, lambda file: _may_have(file, columns, changes.ranges))
            job = MergeJob(
                target=target,
                mirror=mirror,
                raw=reader_of(raw),
                keys=self.changes.keys,
                order=self.changes.order,
                changes=changes.path,
                rewrite_at=0.0 if iceberg.properties.get(MERGE_MODE) == COPY_ON_WRITE else REWRITE_AT,
            )
            return self._run(job, plan, files, changes, iceberg, name)

    def _kinds(self, schema: pa.Schema) -> dict[str, pa.DataType]:
        """The types of the compared columns. Raises `NotByLane` if they cannot be compared in Arrow."""
        kinds: dict[str, pa.DataType] = {}
        for name in (*self.changes.keys, *self.changes.order):
            if name not in schema.names:
                raise NotByLane(f"{name!r} is not a column of its own")
            kinds[name] = schema.field(name).type
            if not is_comparable(kinds[name]):
                raise NotByLane(f"the column {name!r} is {kinds[name]}")
        return kinds

    def _raw(self) -> Iceberg:
        table = self.changes.table.seen()
        if table.metadata.snapshot_by_id(self.changes.snapshot) is None:
            table = self.changes.table.load()
        return table

    def _changed_files(self, raw: Iceberg) -> FilePlan:
        snapshot = raw.metadata.snapshot_by_id(self.changes.snapshot)
        if snapshot is None:
            raise NotByLane("the changes' snapshot has expired")
        fields = {each.name: each for each in raw.schema().fields}
        conditions = self.changes.conditions
        columns = [(fields[each.column].field_id, pa.int64()) for each in conditions]
        wanted = KeyRange(tuple((each.low, each.high) for each in conditions))
        return plan_files(raw, snapshot, lambda file: wanted.may_be_in(bounds_of(file, columns)))

    @contextmanager
    def _stored(
        self, raw: Iceberg, files: FilePlan, kinds: dict[str, pa.DataType], target: Target, name: str
    ) -> Iterator[StoredChanges]:
        """Store the keys and the order of the newest row of each key, and where it is, for as long as tasks run."""
        changes, reader, filesystem = self.changes, reader_of(raw), target.filesystem
        needed = dict.fromkeys((*changes.keys, *changes.order, *(each.column for each in changes.conditions)))
        reader = replace(reader, schema=pa.schema([reader.schema.field(name) for name in needed]))
        batches = keys_of_files(reader, [file.stored for file in files.files], changes.conditions, kinds)
        if not changes.null_keys:
            batches = (_whole_keys(batch, changes.keys) for batch in batches)
        columns = [(name, comparable(pa.array([], kind), kind).type) for name, kind in kinds.items()]
        schema = pa.schema([*columns, (FILE, pa.int32()), (POSITION, pa.int64())])
        path = f"{target.folder}/{name}-changes.arrow"
        if isinstance(filesystem, LocalFileSystem):  # others create folders themselves, or have none
            filesystem.create_dir(target.folder, recursive=True)
        try:
            try:
                with closing(newest_changes(batches, changes.keys, changes.order, chunk_rows=CHUNK_ROWS)) as chunks:
                    stored = store_changes(chunks, changes.keys, schema, filesystem, path)
            except CannotRead as error:
                raise NotByLane(str(error)) from None
            except OSError as error:
                raise DiskFull.of(error, f"{target.folder}, or of this machine's temporary files,") or error from error
            yield stored
        finally:
            with suppress(OSError):  # the sweep removes what stays behind
                filesystem.delete_file(path)

    def _run(
        self, job: MergeJob, plan: FilePlan, files: FilePlan, found: StoredChanges, iceberg: Iceberg, name: str
    ) -> MergedFiles:
        tasks = self.session.sparkContext.defaultParallelism
        divided = _divided(plan, files, found.files, tasks)
        results = self._results(job, divided, iceberg, name)
        matched = [each for result in results for each in result.matched]
        self._check_once(matched, found.rows, job)
        seen = sum(len(each.seen) for each in matched)
        stale = np.sort(np.concatenate([np.zeros(0, np.uint32), *(each.stale for each in matched)]))
        if len(stale):  # rare: only now is it known which rows are not to be written
            again = [replace(each, match=(), skip=stale.astype(np.int64)) for each in divided]
            for old in (file for result in results for file in result.files):
                with suppress(OSError):  # the sweep removes what stays behind
                    job.target.filesystem.delete_file(old.path)
            written = self._results(job, [each for each in again if each.write], iceberg, name)
        else:
            written = results
        rows = sum(result.written for result in written)
        if rows != found.rows - len(stale):
            raise AuditFailed(
                f"{rows} rows were written for {self.table.name}, and {found.rows - len(stale)} were to be merged. "
                "Nothing was published. Run it again."
            )
        new = (
            *(file for result in written for file in result.files),
            *(file for each in matched for file in each.files),
        )
        entries = {file.entry.file_path: file for file in plan.files}
        replaced = [entries[each.uri] for each in matched if each.rewritten or each.deletes]
        return MergedFiles(
            new=NewFiles(
                files=new,
                change=Change.APPEND,
                schema_id=iceberg.schema().schema_id,
                spec_id=iceberg.spec().spec_id,
                sort_order_id=iceberg.sort_order().order_id or None,
            ),
            deletes=tuple(delete_file(each.deletes, entries[each.uri].entry) for each in matched if each.deletes),
            removed=(
                *((entries[each.uri].manifest, each.uri) for each in matched if each.rewritten),
                *((old.manifest, old.path) for file in replaced for old in file.own_deletes),
                *((old.manifest, old.path) for old in plan.dangling),
            ),
            inserted=found.rows - seen,
            updated=seen - len(stale),
        )

    def _results(self, job: MergeJob, tasks: Sequence[MergeTask], iceberg: Iceberg, name: str) -> list[MergeResult]:
        if not tasks:
            return []
        context = self.session.sparkContext
        results = run_tasks(
            lambda: (
                context.parallelize(tasks, len(tasks)).map(lambda task: run_task(job, task, attempt(name))).collect()
            ),
            iceberg,
        )
        for result in results:
            if result.refused is not None:
                raise RowsRejected(f"Table {self.table.name}: {result.refused}")
            if result.unreadable is not None:
                raise NotByLane(result.unreadable)
        return results

    def _check_once(self, matched: Sequence[MatchedFile], changes: int, job: MergeJob) -> None:
        """Raise `AuditFailed` if a key of the changes is in the table more than once."""
        is_seen, twice = np.zeros(changes, bool), list[int]()
        for each in matched:
            rows, times = np.unique(each.seen, return_counts=True)
            twice += rows[is_seen[rows] | (times > 1)][:SHOWN].tolist()
            is_seen[rows] = True
        if twice:
            with opened(job.mirror.filesystem, job.changes) as stored:
                shown = ", ".join(str(tuple(row.values())) for row in _rows_at(stored, sorted(twice)[:SHOWN], job.keys))
            raise AuditFailed(
                f"Some keys ({', '.join(self.changes.keys)}) of {self.table.name} are duplicated: {shown}. Nothing was "
                "published. Remove the rows that are too many, or load the table again with --reload."
            )


def reader_of(table: Iceberg) -> FileReader:
    """A reader of all columns of a table's data files."""
    return FileReader(filesystem_of(table, table.location())[0], schema_to_pyarrow(table.schema()))


def _may_have(file: IcebergDataFile, columns: Sequence[tuple[int, pa.DataType]], ranges: Sequence[KeyRange]) -> bool:
    bounds = bounds_of(file, columns)
    return any(wanted.may_be_in(bounds) for wanted in ranges)


def _whole_keys(batch: pa.RecordBatch, keys: Sequence[str]) -> pa.RecordBatch:
    for key in keys:
        if batch.column(key).null_count:
            batch = batch.filter(batch.column(key).is_valid())
    return batch


def _rows_at(stored: pa.RecordBatchFileReader, rows: Sequence[int], names: Sequence[str]) -> Iterator[dict[str, Any]]:
    start = 0
    for number in range(stored.num_record_batches):
        batch = stored.get_batch(number)
        here = [row - start for row in rows if start <= row < start + batch.num_rows]
        yield from batch.select(list(names)).take(pa.array(here, pa.int64())).to_pylist()
        start += batch.num_rows


def _divided(plan: FilePlan, files: FilePlan, numbers: frozenset[int], most: int) -> list[MergeTask]:
    """The work in so many tasks at most, about as much for each. Rows are written of files with these numbers."""
    work = [(file.stored.rows, "match", 0, file.stored) for file in plan.files]
    # A row that is written has all columns.
    work += [(4 * file.stored.rows, "write", n, file.stored) for n, file in enumerate(files.files) if n in numbers]
    work.sort(key=lambda each: -each[0])
    tasks = [MergeTask(number) for number in range(min(most, len(work)))]
    loads = [(0, number) for number in range(len(tasks))]
    for weight, kind, n, file in work:
        load, number = heapq.heappop(loads)
        task = tasks[number]
        tasks[number] = (
            replace(task, match=(*task.match, file))
            if kind == "match"
            else replace(task, write=(*task.write, (n, file)))
        )
        heapq.heappush(loads, (load + weight, number))
    return tasks
