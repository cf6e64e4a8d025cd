"""The code of merge tasks: matching a mirror's files with the changes, and writing the changes' rows.

Every worker imports it, so it must not import PyIceberg.
"""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from tempfile import TemporaryDirectory

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow.fs import FileSystem, LocalFileSystem

from lakehead.lake.conform import RowsRejected
from lakehead.lake.datafiles import DataFile, DataFiles, Target
from lakehead.lake.file_rows import BATCH_ROWS, CannotRead, FileReader, StoredFile
from lakehead.lake.key_bounds import KeyRange
from lakehead.lake.merge_keys import NOT_FOUND, KeyIndex, comparable, counts_over
from lakehead.lake.position_deletes import (
    DeleteFile,
    Positions,
    merged,
    read_positions,
    read_shared,
    write_positions,
)

CHUNK_ROWS = 2_000_000
"""Changes that a task matches at once; with more of them, it reads the files once for each chunk that they may have."""

REWRITE_AT = 0.3
"""A file is rewritten once this part of its rows is deleted: readers pay for each row of a file with deletes."""

Changes = npt.NDArray[np.uint32]
"""Numbers of changes."""

FILE, POSITION = " file", " position"
"""Columns of the changes: the number of the file that a row is in, and where in it."""


NONE: Positions = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeJob:
    """What all tasks of a merge need. It is pickled for them."""

    target: Target
    mirror: FileReader
    """Reads all columns of the mirror."""
    raw: FileReader
    """Reads all columns of raw; their names are those of the mirror."""
    keys: tuple[str, ...]
    order: tuple[str, ...]
    changes: str
    """The path of the file that has the changes' keys and order, in the mirror's file system."""
    rewrite_at: float = REWRITE_AT
    """0 for a table whose changed files are always rewritten."""


@dataclass(frozen=True, slots=True)
class MergeTask:
    """What one task does."""

    number: int
    match: tuple[StoredFile, ...] = ()
    write: tuple[tuple[int, StoredFile], ...] = ()
    """Files of raw, each with its number among the changes' files."""
    skip: Positions = field(default_factory=lambda: NONE)
    """Changes that are not written, because the mirror has newer rows."""


@dataclass(frozen=True, slots=True)
class MatchedFile:
    """What became of one file of the mirror that has rows which are changed or looked at."""

    uri: str
    seen: Changes
    """The changes whose keys are in the file, once for each row."""
    stale: Changes
    """Those of them that are not newer than the file's row."""
    deletes: DeleteFile | None = None
    rewritten: bool = False
    files: tuple[DataFile, ...] = ()
    """What a rewritten file became; nothing if no row of it is left."""


@dataclass(frozen=True, slots=True)
class MergeResult:
    """The result of one task."""

    matched: tuple[MatchedFile, ...] = ()
    files: tuple[DataFile, ...] = ()
    """The changes' rows."""
    written: int = 0
    refused: str | None = None
    """Why rows do not fit the table. Not raised in the task, because Spark would retry it in vain."""
    unreadable: str | None = None
    """Why the files cannot be merged here, so that Spark has to."""


def run_task(job: MergeJob, task: MergeTask, name: str) -> MergeResult:
    """Match and write. No other attempt of any task may use the name."""
    try:
        with opened(job.mirror.filesystem, job.changes) as changes:
            matched = [
                _changed(job, file, *found, f"{name}-{task.number}-{number}")
                for number, (file, found) in enumerate(_match(job, task.match, changes))
            ]
            files, written = _write(job, task, changes, f"{name}-{task.number}-new") if task.write else ([], 0)
            return MergeResult(tuple(matched), tuple(files), written)
    except RowsRejected as error:
        return MergeResult(refused=str(error))
    except CannotRead as error:
        return MergeResult(unreadable=str(error))


@contextmanager
def opened(filesystem: FileSystem, path: str) -> Iterator[pa.RecordBatchFileReader]:
    """The changes' file, mapped into memory; one that is not on this machine is copied to it first."""
    if isinstance(filesystem, LocalFileSystem):
        with pa.memory_map(path) as mapped:
            yield pa.ipc.open_file(mapped)
        return
    with TemporaryDirectory(prefix="lakehead-merge-") as folder:
        local = f"{folder}/changes.arrow"
        with filesystem.open_input_stream(path) as source, open(local, "wb") as copy:  # noqa: PTH123 - a plain copy
            shutil.copyfileobj(source, copy, 1 << 20)
        with pa.memory_map(local) as mapped:
            yield pa.ipc.open_file(mapped)


Found = tuple[Positions, Positions, Changes, Changes]
"""Of one file: its deleted rows, the rows that are changed, the changes seen, and those of them that are stale."""


def _match(
    job: MergeJob, files: Sequence[StoredFile], changes: pa.RecordBatchFileReader
) -> Iterator[tuple[StoredFile, Found]]:
    if not files:
        return
    reader = FileReader(job.mirror.filesystem, _columns(job.mirror.schema, [*job.keys, *job.order]))
    kinds = {each.name: each.type for each in reader.schema}
    deleted = _deleted(reader.filesystem, files)
    found: dict[str, list[tuple[Positions, Changes, Changes]]] = {}
    start = 0
    for number in range(changes.num_record_batches):
        chunk = changes.get_batch(number)
        keys = [chunk.column(key) for key in job.keys]
        index, wanted = KeyIndex.of(keys), KeyRange.of(keys)
        # Looking for the keys of a batch costs what there are of both.
        batch_rows = min(max(BATCH_ROWS, chunk.num_rows // 2), 8 * BATCH_ROWS)
        for file in files:
            for rows in reader.read(file, deleted[file.uri], keys=job.keys, wanted=wanted, batch_rows=batch_rows):
                places = index.find([comparable(rows.columns.column(key), kinds[key]) for key in job.keys])
                hits = np.flatnonzero(places != NOT_FOUND)
                if not len(hits):
                    continue
                take = pa.array(hits)
                newer = counts_over(
                    [chunk.column(each).take(pa.array(places[hits])) for each in job.order],
                    [comparable(rows.columns.column(each).take(take), kinds[each]) for each in job.order],
                )
                seen = (places[hits] + start).astype(np.uint32)
                found.setdefault(file.uri, []).append((rows.positions[hits[newer]], seen, seen[~newer]))
        start += chunk.num_rows
    for file in files:
        if file.uri in found:
            changed, seen, stale = (np.concatenate(each) for each in zip(*found[file.uri], strict=True))
            yield file, (deleted[file.uri], np.sort(changed), seen, stale)


def _deleted(filesystem: FileSystem, files: Sequence[StoredFile]) -> dict[str, Positions]:
    """The deleted rows of each file. A delete file that names several of them is read once."""
    own = {file.uri: read_positions(filesystem, file.own_deletes, file.uri) for file in files}
    shared = dict.fromkeys(path for file in files for path in file.shared_deletes)
    of: dict[str, list[str]] = {path: [] for path in shared}
    for file in files:
        for path in file.shared_deletes:
            of[path].append(file.uri)
    found = [read_shared(filesystem, path, uris) for path, uris in of.items()]
    return {uri: merged([there, *(each[uri] for each in found if uri in each)]) for uri, there in own.items()}


def _changed(
    job: MergeJob,
    file: StoredFile,
    deleted: Positions,
    changed: Positions,
    seen: Changes,
    stale: Changes,
    name: str,
) -> MatchedFile:
    """Delete the changed rows of one file: by position, or by writing the others again."""
    if not len(changed):
        return MatchedFile(file.uri, seen, stale)
    gone = merged([deleted, changed])
    if len(gone) >= job.rewrite_at * file.rows:
        try:
            return MatchedFile(file.uri, seen, stale, rewritten=True, files=_rewrite(job, file, gone, name))
        except CannotRead:
            if job.rewrite_at == 0:  # the user wants it rewritten
                raise
    target = job.target
    own = read_positions(job.mirror.filesystem, file.own_deletes, file.uri) if file.shared_deletes else deleted
    made = write_positions(target.filesystem, target.folder, target.uri, name, file.uri, merged([own, changed]))
    return MatchedFile(file.uri, seen, stale, deletes=made)


def _rewrite(job: MergeJob, file: StoredFile, gone: Positions, name: str) -> tuple[DataFile, ...]:
    with DataFiles(job.target, name) as files:
        for rows in job.mirror.read(file, gone):
            files.write(rows.columns)
        return tuple(files.close())


def _write(job: MergeJob, task: MergeTask, changes: pa.RecordBatchFileReader, name: str) -> tuple[list[DataFile], int]:
    """Write the rows of the changes that are in the task's files of raw."""
    wanted = _wanted(changes, task)
    written = 0
    with DataFiles(job.target, name) as files:
        for number, file in task.write:
            is_wanted = wanted[number]
            for rows in job.raw.read(file, NONE):
                here, first = rows.columns, int(rows.positions[0]) if len(rows.positions) else 0
                kept = is_wanted[first : first + here.num_rows]
                if not kept.all():
                    here = here.filter(pa.array(kept))
                if here.num_rows:
                    files.write(here)
                    written += here.num_rows
        return files.close(), written


def _wanted(changes: pa.RecordBatchFileReader, task: MergeTask) -> dict[int, npt.NDArray[np.bool_]]:
    """For each of the task's files of raw, which of its rows are changes. The changes are read once for all files."""
    starts = np.full(max((number for number, _ in task.write), default=0) + 1, -1)
    total = 0
    for number, file in task.write:
        starts[number] = total
        total += file.rows
    is_wanted, start = np.zeros(total, bool), 0
    for batch in range(changes.num_record_batches):
        chunk = changes.get_batch(batch)
        files, positions = chunk.column(FILE).to_numpy(), chunk.column(POSITION).to_numpy()
        here = np.where(files < len(starts), starts[np.minimum(files, len(starts) - 1)], -1)
        is_here = here >= 0
        low, high = np.searchsorted(task.skip, [start, start + chunk.num_rows])
        is_here[task.skip[low:high] - start] = False
        is_wanted[(here + positions)[is_here]] = True
        start += chunk.num_rows
    return {number: is_wanted[starts[number] : starts[number] + file.rows] for number, file in task.write}


def _columns(schema: pa.Schema, names: Sequence[str]) -> pa.Schema:
    return pa.schema([schema.field(name) for name in dict.fromkeys(names)])
