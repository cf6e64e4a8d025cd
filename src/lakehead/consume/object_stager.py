"""Stages the objects of a landing: Spark's tasks read them and write data files that no snapshot refers to."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce

import pyarrow as pa  # noqa: TC002 - of no use to tell it apart
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from lakehead.clock import Clock
from lakehead.consume.decode.rows import OWN_COLUMNS, ObjectFormat, SchemaMode
from lakehead.consume.decode.seen_types import unify
from lakehead.consume.large_objects import MAX_OBJECT_BYTES, UnfinishedObject
from lakehead.consume.object_tasks import (
    ObjectToRead,
    ReadingJob,
    TaskReport,
    count_parts,
    read_objects,
)
from lakehead.consume.ports import Failure, ReadUnit
from lakehead.errors import Unavailable
from lakehead.ids import Ids, Random
from lakehead.lake.column_names import MOST_COLUMNS
from lakehead.lake.evolution import add_columns, addable, unless_too_many
from lakehead.lake.iceberg_table import IcebergTable
from lakehead.lake.landing import Fence, Head, LandedPart, NewWatermark, Unit, UnitRemainder
from lakehead.lake.ports import Staged
from lakehead.lake.staged_rows import Change, NewFiles, Read
from lakehead.lake.stagers import (
    disk_full,
    is_publishable_at,
    is_still_stored,
    staged_files,
    target_of,
    task_reason,
)
from lakehead.lake.tasks import TaskResult, attempt
from lakehead.state.model import ObjectProgress
from lakehead.storage.connect import StoreSettings
from lakehead.wire.errors import NewerFormat

MOST_EVOLUTIONS = 5
"""How often columns are added during one landing: other pipelines may add some at the same time."""

SPLIT_BYTES = 64 * 2**20
"""A larger object is split over tasks, if it is plain NDJSON or Parquet."""

_Work = Callable[[ReadingJob, str, Iterable[ObjectToRead]], TaskReport]
"""What a task does with objects; the text names the files that it writes."""


@dataclass(slots=True, kw_only=True)
class ObjectStager:
    """Stages the objects of one landing. What could not be read is left out, and `failed` says why."""

    session: SparkSession
    table: IcebergTable
    format: ObjectFormat
    stores: Mapping[str, StoreSettings] = field(repr=False)
    objects: Mapping[Unit, ObjectToRead]
    clock: Clock
    ids: Ids
    random: Random
    split_bytes: int = SPLIT_BYTES
    max_object_bytes: int = MAX_OBJECT_BYTES
    """A larger object lands in several landings, if it is plain NDJSON or Parquet: see `large_objects`."""

    failed: dict[Unit, Failure] = field(default_factory=dict)
    read: dict[Unit, ReadUnit] = field(default_factory=dict)
    """What was read of the units that were staged last."""

    async def stage(
        self, remainders: Sequence[UnitRemainder], *, token: str, new_watermark: NewWatermark, fence: Fence
    ) -> Staged[NewFiles]:
        """Read the objects of the remainders and write their rows as data files."""
        objects = [self._to_read(each) for each in remainders if each.spans != ()]
        reports, parts = await self._read(objects)
        self.read.clear()  # of what was staged before
        landed = {each.unit: each.landed for each in remainders}
        for report in reports:
            self.failed.update({unit: _told(failure, landed[unit]) for unit, failure in report.failed.items()})
            for each in report.read:
                before = self.read.get(each.unit, ReadUnit())
                self.read[each.unit] = ReadUnit(
                    before.rows + each.rows, before.bytes + each.bytes, before.rescued + each.rescued
                )
        unfinished = {unit: found for report in reports for unit, found in report.unfinished.items()}
        good = [self._landed(each, unfinished.get(each.unit)) for each in remainders if each.unit not in self.failed]
        return staged_files(
            [self._result(report) for report in reports],
            good,
            self.table.seen(),
            Change.APPEND,
            token,
            new_watermark,
            fence,
            parts=sum(each.unit not in self.failed for each in parts),
        )

    def _to_read(self, remainder: UnitRemainder) -> ObjectToRead:
        found, landed = self.objects[remainder.unit], remainder.landed
        if found.frame is not None:
            return replace(found, frame=replace(found.frame, spans=remainder.spans))
        if landed is None:
            return found
        return replace(found, landed=landed, etag=landed.etag, size=max(0, found.size - landed.bytes))

    def _landed(self, remainder: UnitRemainder, unfinished: UnfinishedObject | None) -> UnitRemainder:
        """What the landing holds of a remainder whose object was read: all of it, or its next part."""
        if unfinished is None:
            return remainder
        rows = (remainder.landed.rows if remainder.landed else 0) + self.read[remainder.unit].rows
        return replace(remainder, part=LandedPart(unfinished.start, unfinished.end, rows, unfinished.etag))

    def _result(self, report: TaskReport) -> TaskResult:
        """What a task wrote, without units that failed in this or another task."""
        own = [file for unit, files in report.own_files.items() if unit not in self.failed for file in files]
        read = [each for each in report.read if each.unit not in self.failed]
        return TaskResult((*report.files, *own), tuple(Read(each.unit, each.number, each.rows) for each in read))

    def is_publishable_at(self, staged: Staged[NewFiles], at: Head) -> bool:
        """Files are good wherever main is, until a sweep may have removed them or the partitions have changed."""
        return is_publishable_at(self.table, staged, at)

    async def is_still_stored(self, staged: Staged[NewFiles]) -> bool:
        """Whether every file is still where it was written, and as long as it was."""
        return is_still_stored(self.table, staged)

    async def discard(self, staged: Staged[NewFiles]) -> None:
        """Do nothing: a sweep removes the files. What was read is still told: it may have been published."""

    async def _read(self, objects: Sequence[ObjectToRead]) -> tuple[list[TaskReport], list[ObjectToRead]]:
        """Read the objects, and again after columns that they have were added to the table.

        Returns what the tasks report, and the objects and parts of objects that they were to read.
        """
        all_rescued = False
        for _ in range(MOST_EVOLUTIONS):
            job = self._job()
            if all_rescued:
                job = replace(job, format=replace(job.format, mode=SchemaMode.RESCUE))
            reports = self._run_in_halves(job, objects, read_objects)
            if newer := next((report.newer_format for report in reports if report.newer_format), None):
                raise NewerFormat(newer)
            split = [part for report in reports for part in report.split]
            if split and not any(report.new_columns for report in reports):
                reports += self._read_parts(job, split)
            new: dict[str, list[pa.DataType]] = {}
            for report in reports:
                for column, kinds in report.new_columns.items():
                    new.setdefault(column, []).extend(kinds)
            if not new:
                units = {part.unit for part in split}
                return reports, [*(each for each in objects if each.unit not in units), *split]
            proposed = {column: reduce(unify, kinds) for column, kinds in sorted(new.items())}
            columns = unless_too_many(self.table, proposed, MOST_COLUMNS + len(OWN_COLUMNS))
            all_rescued = not addable(self.table, columns)  # the table cannot have those that are left
            await add_columns(self.table, columns, self.clock, self.random)
        raise Unavailable(f"Objects for the table {self.table.name} have other columns each time they are read.")

    def _read_parts(self, job: ReadingJob, parts: Sequence[ObjectToRead]) -> list[TaskReport]:
        """Read parts of objects. Their rows are counted first, where that is not known: they are numbered through."""
        rows = {(each.unit, each.number): each.part.rows for each in parts if each.part is not None}
        counts = self._run_in_halves(
            job, [each for each in parts if rows[each.unit, each.number] is None], _count_parts
        )
        rows |= {(each.unit, each.number): each.rows for report in counts for each in report.read}
        failed = {unit: failure for report in counts for unit, failure in report.failed.items()}
        numbered: list[ObjectToRead] = []
        next_row: dict[Unit, int] = {}
        for each in parts:
            if each.unit not in failed:
                first = next_row.get(each.unit, each.first_row)
                numbered.append(replace(each, first_row=first))
                next_row[each.unit] = first + (rows[each.unit, each.number] or 0)
        return [TaskReport(failed=failed), *self._run_in_halves(job, numbered, read_objects)]

    def _job(self) -> ReadingJob:
        target = target_of(self.table.seen())
        is_empty = all(each.name in OWN_COLUMNS for each in target.schema)
        # A table without columns of its own takes those of its first objects, whatever the mode is from then on.
        shape = replace(self.format, mode=SchemaMode.ADD_COLUMNS) if is_empty else self.format
        return ReadingJob(
            target=target,
            format=shape,
            stores=self.stores,
            landed_at_us=self.clock.now_ns() // 1_000,
            split_bytes=self.split_bytes,
            max_object_bytes=self.max_object_bytes,
        )

    def _run_in_halves(self, job: ReadingJob, objects: Sequence[ObjectToRead], work: _Work) -> list[TaskReport]:
        """Read objects in one job. If the job dies, each half is tried by itself, down to the object that kills it."""
        if not objects:
            return []
        try:
            return self._run(job, objects, work)
        except (PySparkException, Py4JJavaError) as error:
            if full := disk_full(error, job.target.uri):
                raise full from error
            units = list(dict.fromkeys(each.unit for each in objects))
            if len(units) == 1:
                reason = f"The task that reads it dies: {task_reason(error)}."
                return [TaskReport(failed={units[0]: Failure(reason)}, died=True)]
            middle = set(units[: len(units) // 2])
            halves = [[each for each in objects if (each.unit in middle) is first] for first in (True, False)]
            reports = [report for half in halves for report in self._run_in_halves(job, half, work)]
            if all(report.died for report in reports):
                raise Unavailable(
                    f"No task that reads objects for {self.table.name} succeeds: {task_reason(error)}."
                ) from error
            return reports

    def _run(self, job: ReadingJob, objects: Sequence[ObjectToRead], work: _Work) -> list[TaskReport]:
        context = self.session.sparkContext
        name = f"{self.ids.uuid()}"
        groups = equal_groups(objects, min(len(objects), context.defaultParallelism))

        def task(groups: Iterable[list[ObjectToRead]]) -> Iterator[TaskReport]:
            for number, group in enumerate(groups):
                yield work(job, f"{attempt(name)}-{number}", group)

        return context.parallelize(groups, len(groups)).mapPartitions(task).collect()


def _told(failure: Failure, landed: ObjectProgress | None) -> Failure:
    """The failure of an object, which also says how much of it has landed before, if it lands in parts."""
    if landed is None:
        return failure
    return replace(
        failure,
        reason=f"{failure.reason} Its first {landed.bytes:,} bytes have landed before, and their {landed.rows:,} rows "
        "stay in the table: if you store a mended one under another name, store only what follows them.",
    )


def _count_parts(job: ReadingJob, _name: str, parts: Iterable[ObjectToRead]) -> TaskReport:
    return count_parts(job, parts)


def equal_groups(objects: Sequence[ObjectToRead], count: int) -> list[list[ObjectToRead]]:
    """Divide objects into groups of about the same number of bytes: each goes to the smallest so far, largest first."""
    groups: list[list[ObjectToRead]] = [[] for _ in range(count)]
    sizes = [0] * count
    for each in sorted(objects, key=lambda each: -each.size):
        smallest = sizes.index(min(sizes))
        groups[smallest].append(each)
        sizes[smallest] += max(each.size, 1)
    return [group for group in groups if group]
