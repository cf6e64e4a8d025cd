"""What runs in the tasks of the Arrow lane. Every worker loads it, like `datafiles`: PyIceberg stays out of it."""

import pickle
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as kinds
from pyarrow.fs import FileSystem
from pyspark import TaskContext

from lakehead.lake.conform import Refused
from lakehead.lake.datafiles import DataFile, DataFiles, Target
from lakehead.lake.landing import Unit
from lakehead.lake.rows import Read

Part = TypeVar("Part")
"""What a task is told of what it reads: anything that can be pickled."""


@dataclass(frozen=True, slots=True)
class Wrote:
    """What one task has done."""

    files: tuple[DataFile, ...] = ()
    reads: tuple[Read, ...] = ()
    refused: str | None = None
    """Why the rows do not fit the table: no reason to try again."""


def write_parts(
    target: Target,
    name: str,
    read: Callable[[Part], Iterable[pa.RecordBatch]],
    parts: Iterable[tuple[Unit, int, Part]],
) -> Wrote:
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
            return Wrote(tuple(files.close()), tuple(reads))
    except Refused as error:
        return Wrote(refused=str(error))


def write_batches(target: Target, name: str, batches: Iterable[pa.RecordBatch]) -> Wrote:
    """Write the batches of a data frame's partition as data files."""
    try:
        with DataFiles(target, name) as files:
            for batch in batches:
                files.write(batch)
            return Wrote(tuple(files.close()))
    except Refused as error:
        return Wrote(refused=str(error))


def read_columns(
    filesystem: FileSystem, columns: list[str], files: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Some columns of the data files whose paths come in. What Spark has no type for, as a uuid, comes as bytes."""
    for batch in files:
        for path in batch.column("path").to_pylist():
            with filesystem.open_input_file(path) as source:
                for rows in pq.ParquetFile(source).iter_batches(columns=columns):
                    yield pa.RecordBatch.from_arrays([_for_spark(column) for column in rows.columns], rows.schema.names)


def _for_spark(column: pa.Array) -> pa.Array:
    plain = column.storage if isinstance(column.type, pa.BaseExtensionType) else column
    return plain.cast(pa.binary()) if kinds.is_fixed_size_binary(plain.type) else plain


def attempt(name: str) -> str:
    """What begins the names of this attempt's files: no other attempt has it."""
    context = TaskContext.get()
    return f"{name}-{context.taskAttemptId()}" if context else name


def pickled(wrote: Wrote) -> pa.RecordBatch:
    """What a task has done, as the one row that a data frame's task may answer."""
    return pa.RecordBatch.from_pydict({"wrote": pa.array([pickle.dumps(wrote)], pa.binary())})


def unpickled(wrote: bytes) -> Wrote:
    """What our own task has answered."""
    told: Wrote = pickle.loads(bytes(wrote))  # noqa: S301 - from our own tasks, through Spark's own channel
    return told
