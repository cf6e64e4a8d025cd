"""The code of tasks that copy rows of one table into new files of another: all of them, or the newest of each key.

Every worker imports it, so it must not import PyIceberg.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakehead.lake.conform import RowsRejected
from lakehead.lake.datafiles import DataFile, DataFiles, Target
from lakehead.lake.file_rows import CannotRead, FileReader, RowBatch, StoredFile
from lakehead.lake.key_hashes import hashes_of
from lakehead.lake.merge_keys import comparable, newest_rows
from lakehead.lake.position_deletes import Positions, read_positions

_FILE, _POSITION = " file", " position"
"""Columns of keys: the number of the file that a row is in, and where in it."""

_TIED = "rows of one key are equal in every compared column"

Range: TypeAlias = tuple[str, int, int]
"""A column of whole numbers, and the lowest and highest value of the rows that are wanted."""

NumberedFile: TypeAlias = tuple[int, StoredFile]
"""A file with its number among all files that are read."""

_Mask: TypeAlias = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyJob:
    """What all tasks of a copy need. It is pickled for them."""

    target: Target
    source: FileReader
    """Reads all columns; their names are those of the target."""
    ranges: tuple[Range, ...]
    not_null: tuple[str, ...] = ()
    """Rows with NULL in one of these columns are left out."""
    keys: tuple[str, ...] = ()
    """Only the newest row of each key is copied; every row if there are none."""
    order: tuple[str, ...] = ()
    """The columns by which rows of one key are compared, in order; the larger value wins, and NULL is the smallest."""


@dataclass(frozen=True, slots=True)
class Superseded:
    """Rows of one file that have newer ones of the same key."""

    file: int
    positions: Positions


@dataclass(frozen=True, slots=True)
class Counted:
    """How many keys a task has seen: so many rows are to be written."""

    keys: int


@dataclass(frozen=True, slots=True)
class CannotCopy:
    """Why the rows cannot be copied here, so that Spark has to."""

    reason: str


Message: TypeAlias = Superseded | Counted | CannotCopy


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyResult:
    """The result of a task that writes."""

    files: tuple[DataFile, ...] = ()
    written: int = 0
    keys: int = 0
    """The keys that the messages to this task counted."""
    refused: str | None = None
    """Why rows do not fit the table. Not raised in the task, because Spark would retry it in vain."""
    cannot: str | None = None
    """Why the rows cannot be copied here."""


def spread_keys(job: CopyJob, files: Iterable[NumberedFile], buckets: int) -> Iterator[tuple[int, bytes | CannotCopy]]:
    """The keys of the wanted rows with what decides which is newer, in pieces: a key's rows are all in one bucket."""
    needed = dict.fromkeys((*job.keys, *job.order, *(name for name, _, _ in job.ranges), *job.not_null))
    reader = replace(job.source, schema=pa.schema([job.source.schema.field(name) for name in needed]))
    try:
        for number, file in files:
            for rows in reader.read(file, _deleted(reader, file)):
                for bucket, piece in _divided(_keys_of(job, rows, number), len(job.keys), buckets):
                    yield bucket, _encoded(piece)
    except CannotRead as error:
        yield 0, CannotCopy(str(error))


def find_superseded(
    job: CopyJob, pieces: Iterable[bytes | CannotCopy], writer_of: Sequence[int], writers: int
) -> Iterator[tuple[int, Message]]:
    """Which rows of a bucket have newer ones, for the writers of their files. `writer_of` has one for each file."""
    found: list[pa.RecordBatch] = []
    cannot: CannotCopy | None = None
    for piece in pieces:
        if isinstance(piece, CannotCopy):
            cannot = piece
        else:
            found += pa.ipc.open_stream(piece)
    if cannot is None and found:
        keys = pa.Table.from_batches(found).combine_chunks()
        columns = [_whole(keys, number) for number in range(keys.num_columns)]
        newest = newest_rows(columns[: len(job.keys)], columns[len(job.keys) : -2])
        if not newest.is_tied:
            yield 0, Counted(len(newest.rows))
            for file, positions in _others(columns[-2], columns[-1], newest.rows):
                yield writer_of[file], Superseded(file, positions)
            return
        cannot = CannotCopy(_TIED)
    if cannot is not None:
        yield from ((writer, cannot) for writer in range(writers))


def write_rows(job: CopyJob, files: Sequence[NumberedFile], messages: Iterable[Message], name: str) -> CopyResult:
    """Write the wanted rows of some files. No other attempt of any task may use the name.

    Memory holds one bit of information for each row of files with superseded rows, and what `DataFiles` holds.
    """
    rows_of = {number: file.rows for number, file in files}
    superseded: dict[int, _Mask] = {}
    keys = 0
    for message in messages:
        match message:
            case CannotCopy(reason):
                return CopyResult(cannot=reason)
            case Counted(seen):
                keys += seen
            case Superseded(file, positions):
                superseded.setdefault(file, np.zeros(rows_of[file], bool))[positions] = True
    try:
        with DataFiles(job.target, name) as made:
            written = sum(_write(job, file, superseded.get(number), made) for number, file in files)
            return CopyResult(files=tuple(made.close()), written=written, keys=keys)
    except RowsRejected as error:
        return CopyResult(refused=str(error))
    except CannotRead as error:
        return CopyResult(cannot=str(error))


def _write(job: CopyJob, file: StoredFile, superseded: _Mask | None, made: DataFiles) -> int:
    written = 0
    for rows in job.source.read(file, _deleted(job.source, file)):
        wanted = _wanted(job, rows.columns)
        if superseded is not None:
            wanted &= ~superseded[rows.positions]
        batch = rows.columns if wanted.all() else rows.columns.filter(pa.array(wanted))
        if batch.num_rows:
            made.write(batch)
            written += batch.num_rows
    return written


def _deleted(reader: FileReader, file: StoredFile) -> Positions:
    return read_positions(reader.filesystem, (*file.own_deletes, *file.shared_deletes), file.uri)


def _wanted(job: CopyJob, rows: pa.RecordBatch) -> _Mask:
    wanted = np.ones(rows.num_rows, bool)
    for name, low, high in job.ranges:
        column = rows.column(name)
        values = column.fill_null(low - 1).to_numpy(zero_copy_only=False)
        wanted &= (values >= low) & (values <= high)
    for name in job.not_null:
        wanted &= rows.column(name).is_valid().to_numpy(zero_copy_only=False)
    return wanted


def _keys_of(job: CopyJob, rows: RowBatch, number: int) -> pa.RecordBatch:
    """The keys and the order of the wanted rows, and where they are. Columns may come twice, so they have numbers."""
    wanted = np.flatnonzero(_wanted(job, rows.columns))
    here = rows.columns.take(pa.array(wanted))
    kinds = job.source.schema
    columns = [comparable(here.column(name), kinds.field(name).type) for name in (*job.keys, *job.order)]
    columns += [pa.repeat(pa.scalar(number, pa.int32()), len(wanted)), pa.array(rows.positions[wanted])]
    names = [*map(str, range(len(columns) - 2)), _FILE, _POSITION]
    return pa.RecordBatch.from_arrays(columns, names=names)


def _divided(keys: pa.RecordBatch, columns: int, buckets: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    if buckets == 1 or keys.num_rows == 0:
        yield 0, keys
        return
    places = (hashes_of(keys.columns[:columns]) % np.uint64(buckets)).astype(np.int64)
    ranked = np.argsort(places, kind="stable")
    ends = np.searchsorted(places[ranked], np.arange(buckets + 1))
    for bucket in range(buckets):
        if ends[bucket] < ends[bucket + 1]:
            yield bucket, keys.take(pa.array(ranked[ends[bucket] : ends[bucket + 1]]))


def _others(files: pa.Array, positions: pa.Array, kept: Positions) -> Iterator[tuple[int, Positions]]:
    """The rows that are not kept, by file."""
    is_other = np.ones(len(files), bool)
    is_other[kept] = False
    numbers, places = files.to_numpy()[is_other], positions.to_numpy()[is_other]
    ranked = np.argsort(numbers, kind="stable")
    found, starts = np.unique(numbers[ranked], return_index=True)
    parts = np.split(places[ranked], starts)[1:]
    yield from zip(found.tolist(), parts, strict=True)


def _encoded(piece: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, piece.schema) as writer:
        writer.write_batch(piece)
    return bytes(sink.getvalue().to_pybytes())


def _whole(table: pa.Table, number: int) -> pa.Array:
    column: Any = table.column(number)
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)


def shares_of(files: Sequence[NumberedFile], most_rows: int, tasks: int) -> list[list[NumberedFile]]:
    """Divide files among tasks, neighbours together: at least so many tasks, with about so many rows at most."""
    total = sum(file.rows for _, file in files)
    wanted = min(len(files), max(tasks, -(-total // most_rows)))
    shares: dict[int, list[NumberedFile]] = defaultdict(list)
    before = 0
    for number, file in files:
        middle = before + file.rows / 2
        shares[min(wanted - 1, int(middle * wanted / total)) if total else 0].append((number, file))
        before += file.rows
    return [shares[each] for each in sorted(shares)]
