"""The code that runs in staging tasks. Every worker imports it, like `datafiles`, so it must not import PyIceberg."""

import pickle
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as kinds
from pyarrow.fs import FileSystem
from pyspark import TaskContext

from lakehead.lake.conform import RowsRejected
from lakehead.lake.datafiles import DataFile, DataFiles, Target
from lakehead.lake.landing import Unit
from lakehead.lake.staged_rows import Read

Part = TypeVar("Part")
"""Describes what a task reads: anything that can be pickled."""


@dataclass(frozen=True, slots=True)
class TaskResult:
    """The result of one task."""

    files: tuple[DataFile, ...] = ()
    reads: tuple[Read, ...] = ()
    refused: str | None = None
    """Why the rows do not fit the table. Not raised in the task, because Spark would retry it in vain."""


def write_parts(
    target: Target,
    name: str,
    read: Callable[[Part], Iterable[pa.RecordBatch]],
    parts: Iterable[tuple[Unit, int, Part]],
) -> TaskResult:
    """Read parts and write them as data files."""
    reads = []
    try:
        with DataFiles(target, name) as files:
            for unit, number, part in parts:
                rows = 0
                for batch in read(part):
                    rows += batch.num_rows
                    files.write(batch)
                reads.append(Read(unit, number, rows))
            return TaskResult(tuple(files.close()), tuple(reads))
    except RowsRejected as error:
        return TaskResult(refused=str(error))


def write_batches(target: Target, name: str, batches: Iterable[pa.RecordBatch]) -> TaskResult:
    """Write the batches of a data frame's partition as data files."""
    try:
        with DataFiles(target, name) as files:
            for batch in batches:
                files.write(batch)
            return TaskResult(tuple(files.close()))
    except RowsRejected as error:
        return TaskResult(refused=str(error))


def read_columns(
    filesystem: FileSystem, columns: list[str], files: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Read some columns of the data files with the given paths. Types that Spark lacks, like uuid, become bytes."""
    for batch in files:
        for path in batch.column("path").to_pylist():
            with filesystem.open_input_file(path) as source:
                for rows in pq.ParquetFile(source).iter_batches(columns=columns):
                    yield pa.RecordBatch.from_arrays([_for_spark(column) for column in rows.columns], rows.schema.names)


def _for_spark(column: pa.Array) -> pa.Array:
    plain = column.storage if isinstance(column.type, pa.BaseExtensionType) else column
    return plain.cast(pa.binary()) if kinds.is_fixed_size_binary(plain.type) else plain


def attempt(name: str) -> str:
    """The prefix of this attempt's file names, which no other attempt has."""
    context = TaskContext.get()
    return f"{name}-{context.taskAttemptId()}" if context else name


def pickled(wrote: TaskResult) -> pa.RecordBatch:
    """A task's result as a batch of one row, which is what a task of a data frame can return."""
    return pa.RecordBatch.from_pydict({"wrote": pa.array([pickle.dumps(wrote)], pa.binary())})


def unpickled(wrote: bytes) -> TaskResult:
    """The result of a task, from `pickled`."""
    result: TaskResult = pickle.loads(bytes(wrote))  # noqa: S301 - from our own tasks, through Spark's own channel
    return result
