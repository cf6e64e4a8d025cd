"""The code that reads objects in Spark's tasks and writes them as data files. It must not import PyIceberg."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import pyarrow as pa

from lakehead.consume.decode.decode import count_rows, read_object, split_object
from lakehead.consume.decode.frames import AcceptedFrame
from lakehead.consume.decode.rows import (
    LANDED_AT,
    OWN_COLUMNS,
    URI,
    ObjectFormat,
    ObjectPart,
    ObjectRefused,
    ReadReport,
)
from lakehead.consume.large_objects import MAX_OBJECT_BYTES, UnfinishedObject, next_parts
from lakehead.consume.object_reader import ObjectReader, OpenedObject, ReplacedWhileRead
from lakehead.consume.ports import Failure
from lakehead.errors import DiskFull, Misconfigured, Unavailable
from lakehead.lake.conform import RowsRejected, conform
from lakehead.lake.datafiles import DataFile, DataFiles, Target
from lakehead.lake.landing import Unit
from lakehead.state.model import ObjectProgress
from lakehead.storage.connect import StoreSettings
from lakehead.wire.errors import NewerFormat

HELD_BYTES = 64 * 2**20
"""Rows of one object that are held in memory. Up to here an object shares data files with others, and none of its rows
is written before all of them were read; a larger one has data files of its own, which are dropped if it fails."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectToRead:
    """One object, or a part of one, for a task to read."""

    unit: Unit
    number: int = 0
    """Which part of its unit."""

    uri: str
    version: str | None = None
    etag: str | None = None
    """The ETag that it must have, if it is part of its unit's id; all parts are read of the same content."""

    content: bytes | None = field(default=None, repr=False)
    """The content itself, if it came in the message."""

    frame: AcceptedFrame | None = None
    """Which frame it must be, and which of its records are to be read, if it is that of an accepted batch."""

    landed: ObjectProgress | None = None
    """How much of it has landed before: the rest is read, of the same ETag."""

    part: ObjectPart | None = None
    first_row: int = 0
    size: int = 0
    """Its bytes as far as they are known, to give tasks equal work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingJob:
    """What the tasks of one landing have in common. Pickled for them."""

    target: Target
    format: ObjectFormat
    stores: Mapping[str, StoreSettings] = field(repr=False)
    landed_at_us: int
    """The time of the landing, in microseconds since 1970."""

    split_bytes: int
    """A larger object is split into parts of about this size, if its format allows it."""

    max_object_bytes: int = MAX_OBJECT_BYTES
    """Of a larger object only so many bytes are read for one landing, if its format allows it."""

    @property
    def part_bytes(self) -> int:
        """About how large the parts are that an object is split into."""
        return min(self.split_bytes, self.max_object_bytes)

    @property
    def columns(self) -> pa.Schema:
        """The table's columns without those that every pipeline adds."""
        return pa.schema([each for each in self.target.schema if each.name not in OWN_COLUMNS])


@dataclass(frozen=True, slots=True)
class ObjectRead:
    """What a task read of one object or part."""

    unit: Unit
    number: int
    rows: int
    bytes: int
    rescued: int


@dataclass(slots=True)
class TaskReport:
    """What one task did."""

    files: list[DataFile] = field(default_factory=list)
    """Files with rows of several objects, all of which were read to their end."""

    own_files: dict[Unit, list[DataFile]] = field(default_factory=dict)
    """Files with rows of one unit each: of large objects, and of parts of objects."""

    read: list[ObjectRead] = field(default_factory=list)
    split: list[ObjectToRead] = field(default_factory=list)
    """Parts of objects that were too large for one task: they were not read."""

    unfinished: dict[Unit, UnfinishedObject] = field(default_factory=dict)
    """Objects that `split` has only some parts of: the others are left to later landings."""

    failed: dict[Unit, Failure] = field(default_factory=dict)
    new_columns: dict[str, list[pa.DataType]] = field(default_factory=dict)
    """Columns that the table lacks, each with the types that were seen. Then nothing of the task is to be landed."""

    newer_format: str | None = None
    """Which object only a newer Lakehead can read. It is not the object's fault: the pipeline has to stop."""

    died: bool = False
    """Whether the task ended without an answer."""


class _NotWritten(Exception):
    """Rows of an object could not be added to the files that it shares with others."""

    def __init__(self, reason: Exception) -> None:
        super().__init__(reason)
        self.reason = reason


def read_objects(job: ReadingJob, name: str, objects: Iterable[ObjectToRead]) -> TaskReport:
    """Read objects and write their rows as data files. An object that cannot be read costs itself alone.

    Raises whatever prevents shared files from being written: then it is not known which rows they hold.
    """
    report = TaskReport()
    with DataFiles(job.target, name) as shared:

        def read(each: ObjectToRead, opened: OpenedObject, number: int) -> None:
            _read_one(job, each, opened, shared, f"{name}-{number:05}", report)

        _for_each(job, objects, report, read)
        if report.new_columns:
            shared.discard()
        else:
            report.files += shared.close()
    return report


def count_parts(job: ReadingJob, parts: Iterable[ObjectToRead]) -> TaskReport:
    """Count the rows of parts of objects, so that each part knows the number of its first one. Nothing is written."""
    report = TaskReport()

    def count(each: ObjectToRead, opened: OpenedObject, number: int) -> None:
        del number
        rows = count_rows(opened.source, job.format, each.part)
        report.read.append(ObjectRead(each.unit, each.number, rows, 0, 0))

    _for_each(job, parts, report, count)
    return report


def _for_each(
    job: ReadingJob,
    objects: Iterable[ObjectToRead],
    report: TaskReport,
    act: Callable[[ObjectToRead, OpenedObject, int], None],
) -> None:
    """Open each object and do something with it. What goes wrong is the failure of its unit."""
    reader, silent = ObjectReader(job.stores), dict[str, str]()
    for number, each in enumerate(objects):
        bucket = each.uri.split("/", 3)[2] if each.content is None else ""
        if bucket and bucket in silent:
            report.failed[each.unit] = Failure(silent[bucket], temporary=True)
            continue
        try:
            opened = _open(each, reader)
            with opened.source:
                act(each, opened, number)
        except NewerFormat as error:
            report.newer_format = f"{each.uri}: {error}"
            return
        except Exception as error:  # noqa: BLE001 - a mistake of a decoder costs its object alone
            report.failed[each.unit] = _failure(error, each)
            if isinstance(error, Unavailable) and not isinstance(error, ReplacedWhileRead):
                silent[bucket] = str(error)  # others of this bucket would only wait as long


def _failure(error: Exception, each: ObjectToRead) -> Failure:
    """Why an object could not be read. Raises the error if it is not the object's, and the whole task fails."""
    failure = _failure_of_object(error)
    # A unit of an accepted batch is named by its identity manifest, and not by the object that was read.
    return failure if each.frame is None else replace(failure, reason=f"Its frame {each.uri}: {failure.reason}")


def _failure_of_object(error: Exception) -> Failure:
    match error:
        case _NotWritten():
            raise error.reason from None
        case DiskFull():
            raise error
        case Unavailable() | Misconfigured():
            return Failure(str(error), temporary=True)
        case ObjectRefused() | RowsRejected():
            return Failure(str(error))
        case _:
            return Failure(f"{type(error).__name__}: {error}")


def _open(each: ObjectToRead, reader: ObjectReader) -> OpenedObject:
    if each.content is None:
        try:
            return reader.open(each.uri, version=each.version, etag=each.etag)
        except ReplacedWhileRead:
            if each.part is not None:
                raise
            raise ObjectRefused(_gone(each)) from None
    return OpenedObject(pa.BufferReader(each.content), len(each.content), None)


def _gone(each: ObjectToRead) -> str:
    if each.landed is None:
        return "It was replaced before it was read: the announced content is gone."
    return "It was replaced before all of it had landed: the rest of that content is gone."


def _read_one(
    job: ReadingJob, each: ObjectToRead, opened: OpenedObject, shared: DataFiles, own_name: str, report: TaskReport
) -> None:
    if each.part is None and each.content is None and (each.landed or opened.size > job.part_bytes):
        parts = split_object(
            opened.source, job.format, opened.size, job.part_bytes, start=each.landed.bytes if each.landed else 0
        )
        if each.landed or len(parts) > 1:
            _add_parts(job, each, opened, parts, report)
            return
        opened.source.seek(0)
    found = ReadReport()
    batches = read_object(
        opened.source, job.format, job.columns, found, first_row=each.first_row, part=each.part, accepted=each.frame
    )
    ours = (_with_our_columns(batch, each, job) for batch in _of_one_content(batches, opened))
    files = _write(job.target, ours, shared, own_name, at_most=HELD_BYTES if each.part is None else 0)
    if found.new_columns:
        for column, kind in found.new_columns.items():
            report.new_columns.setdefault(column, []).append(kind)
        return
    report.own_files.setdefault(each.unit, []).extend(files)
    bytes_ = opened.size if each.part is None else each.size
    report.read.append(ObjectRead(each.unit, each.number, found.rows, bytes_, found.rescued))


def _of_one_content(batches: Iterable[pa.RecordBatch], opened: OpenedObject) -> Iterator[pa.RecordBatch]:
    """Return the batches. Raises `ReplacedWhileRead` at their end if the object has changed meanwhile."""
    yield from batches
    opened.check_unchanged()


def _add_parts(
    job: ReadingJob, each: ObjectToRead, opened: OpenedObject, parts: list[ObjectPart], report: TaskReport
) -> None:
    """Leave the next parts of an object to other tasks. They require the ETag that it has now."""
    start = each.landed.bytes if each.landed else 0
    if opened.etag is not None:
        parts, end = next_parts(parts, start=start, limit=job.max_object_bytes)
        if end is not None:
            report.unfinished[each.unit] = UnfinishedObject(start, end, opened.etag)
    first_row = each.landed.rows if each.landed else 0
    for number, part in enumerate(parts):
        size = part.stop - (parts[number - 1].stop if number else start)
        report.split.append(
            replace(each, number=number, part=part, etag=opened.etag, first_row=first_row, landed=None, size=size)
        )


def _write(
    target: Target, batches: Iterable[pa.RecordBatch], shared: DataFiles, own_name: str, *, at_most: int
) -> list[DataFile]:
    """Write an object's rows when all were read, or to files of its own if they are more than so many bytes.

    Returns its own files.
    """
    held, size, remaining = list[pa.RecordBatch](), 0, iter(batches)
    for batch in remaining:
        held.append(conform(batch, target.schema))
        size += batch.nbytes
        if size > at_most:
            break
    else:
        try:
            for batch in held:
                shared.write(batch)
        except Exception as error:
            raise _NotWritten(error) from error
        return []
    with DataFiles(target, own_name) as own:
        while held:
            own.write(held.pop(0))
        for batch in remaining:
            own.write(batch)
        return own.close()


def _with_our_columns(batch: pa.RecordBatch, each: ObjectToRead, job: ReadingJob) -> pa.RecordBatch:
    rows = batch.num_rows
    uri = pa.repeat(pa.scalar(each.uri, pa.string()), rows)
    landed_at = pa.repeat(pa.scalar(job.landed_at_us, pa.timestamp("us", "UTC")), rows)
    return batch.append_column(URI, uri).append_column(LANDED_AT, landed_at)
