"""The keys of a merge's changes: the newest row of each key, in chunks that fit into memory whatever their number.

The rows are collected in pieces. If there are several, each is sorted by key and put aside on disk; then they are read
side by side, one range of keys after the other.
"""

from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.fs import FileSystem

from lakehead.lake.file_rows import FileReader, StoredFile
from lakehead.lake.key_bounds import KeyRange
from lakehead.lake.merge_keys import comparable, counts_over, newest_rows
from lakehead.lake.merge_plan import NotByLane
from lakehead.lake.merge_tasks import CHUNK_ROWS, FILE, POSITION
from lakehead.lake.position_deletes import read_positions

_SPILLED_ROWS = 1 << 16
_SAMPLES = 1_000
"""Keys of each piece by which the ranges are chosen."""


@dataclass(frozen=True, slots=True)
class ColumnRange:
    """A condition on rows: a column of whole numbers is in a range, both ends included."""

    column: str
    low: int
    high: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredChanges:
    """The changes' keys as they are stored for the tasks."""

    path: str
    rows: int
    files: frozenset[int]
    """The numbers of the files that have them."""
    ranges: tuple[KeyRange, ...]
    """The range of each chunk's keys."""


def keys_of_files(
    reader: FileReader, files: Sequence[StoredFile], conditions: Sequence[ColumnRange], keys: dict[str, pa.DataType]
) -> Iterator[pa.RecordBatch]:
    """The columns `keys` of the rows that satisfy the conditions, in these types, and where each row is."""
    wanted = KeyRange(tuple((each.low, each.high) for each in conditions))
    names = [each.column for each in conditions]
    for number, file in enumerate(files):
        deleted = read_positions(reader.filesystem, (*file.own_deletes, *file.shared_deletes), file.uri)
        for rows in reader.read(file, deleted, keys=names, wanted=wanted):
            there = rows.columns
            columns = [comparable(there.column(name), kind) for name, kind in keys.items()]
            places = [pa.repeat(pa.scalar(number, pa.int32()), there.num_rows), pa.array(rows.positions)]
            batch = pa.RecordBatch.from_arrays([*columns, *places], names=[*keys, FILE, POSITION])
            is_wanted = np.ones(there.num_rows, bool)
            for each in conditions:
                value = there.column(each.column)
                here = pc.and_(pc.greater_equal(value, each.low), pc.less_equal(value, each.high))
                is_wanted &= pc.fill_null(here, fill_value=False).to_numpy(zero_copy_only=False)
            yield batch if is_wanted.all() else batch.filter(pa.array(is_wanted))


def newest_changes(
    batches: Iterable[pa.RecordBatch], keys: Sequence[str], order: Sequence[str], *, chunk_rows: int = CHUNK_ROWS
) -> Generator[pa.RecordBatch, None, None]:
    """The newest row of each key, in chunks of about so many rows at most, each of a range of keys.

    It holds files aside until it ends or is closed.
    Raises `NotByLane` if rows of one key are equal in every compared column.
    """
    with TemporaryDirectory(prefix="lakehead-merge-") as folder:
        pieces, last = list[_Piece](), list[pa.RecordBatch]()
        rows = 0
        for batch in batches:
            last.append(batch)
            rows += batch.num_rows
            if 2 * rows >= chunk_rows:
                pieces.append(_put_aside(_whole(last), keys, order, Path(folder) / str(len(pieces))))
                last, rows = [], 0
        if not pieces:
            if rows:
                yield _newest(_whole(last), keys, order)
            return
        if rows:
            pieces.append(_put_aside(_whole(last), keys, order, Path(folder) / str(len(pieces))))
        del last
        readers = [_Reader(piece.path, keys) for piece in pieces]
        for upto in (*_limits(pieces, keys, chunk_rows), None):
            if found := [part for reader in readers for part in reader.before(upto)]:
                yield _newest(_whole(found), keys, order)


def store_changes(
    chunks: Iterable[pa.RecordBatch], keys: Sequence[str], schema: pa.Schema, filesystem: FileSystem, path: str
) -> StoredChanges:
    """Store the chunks as one file, each as a batch of it."""
    rows, files, ranges = 0, set[int](), list[KeyRange]()
    with filesystem.open_output_stream(path) as sink, pa.ipc.new_file(sink, schema) as writer:
        for chunk in chunks:
            writer.write_batch(chunk)
            rows += chunk.num_rows
            files.update(pc.unique(chunk.column(FILE)).to_pylist())
            ranges.append(KeyRange.of([chunk.column(key) for key in keys]))
    return StoredChanges(path=path, rows=rows, files=frozenset(files), ranges=tuple(ranges))


@dataclass(frozen=True, slots=True)
class _Piece:
    """Rows on disk, sorted by key."""

    path: Path
    rows: int
    samples: pa.RecordBatch


def _whole(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _newest(rows: pa.RecordBatch, keys: Sequence[str], order: Sequence[str]) -> pa.RecordBatch:
    newest = newest_rows(_columns(rows, keys), _columns(rows, order))
    if newest.is_tied:
        raise NotByLane("rows of one key are equal in every compared column")
    return rows if len(newest.rows) == rows.num_rows else rows.take(pa.array(newest.rows))


def _put_aside(rows: pa.RecordBatch, keys: Sequence[str], order: Sequence[str], path: Path) -> _Piece:
    newest = newest_rows(_columns(rows, keys), _columns(rows, order))
    if not newest.is_tied and len(newest.rows) < rows.num_rows:  # of tied rows another piece may have a newer one
        rows = rows.take(pa.array(newest.rows))
    rows = rows.take(_by_key(rows, keys))
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, rows.schema) as writer:
        writer.write_table(pa.Table.from_batches([rows]), max_chunksize=_SPILLED_ROWS)
    step = max(1, rows.num_rows // _SAMPLES)
    return _Piece(path, rows.num_rows, rows.take(pa.array(np.arange(0, rows.num_rows, step))))


def _limits(pieces: Sequence[_Piece], keys: Sequence[str], chunk_rows: int) -> list[pa.RecordBatch]:
    """The keys at which a new range begins: one row each, ascending."""
    ranges = -(-sum(piece.rows for piece in pieces) * 4 // (chunk_rows * 3))  # room for ranges that turn out larger
    samples = _whole([piece.samples for piece in pieces])
    samples = samples.take(_by_key(samples, keys))
    places = np.unique(np.arange(1, ranges) * samples.num_rows // ranges)
    return [samples.slice(int(place), 1) for place in places]


def _by_key(rows: pa.RecordBatch, keys: Sequence[str]) -> pa.Array:
    """The order of the rows by key, NULL before all values."""
    columns: dict[str, pa.Array] = {}
    by: list[tuple[str, str]] = []
    for number, key in enumerate(keys):
        column = rows.column(key)
        if column.null_count:
            columns[f"{number} null"] = column.is_null()
            by.append((f"{number} null", "descending"))
        columns[f"{number}"] = column
        by.append((f"{number}", "ascending"))
    return pc.sort_indices(pa.table(columns), sort_keys=by)


def _columns(rows: pa.RecordBatch, names: Sequence[str]) -> list[pa.Array]:
    return [rows.column(name) for name in names]


class _Reader:
    """Reads a piece in the order of its keys."""

    def __init__(self, path: Path, keys: Sequence[str]) -> None:
        self._file = pa.ipc.open_file(pa.OSFile(str(path)))
        self._keys = keys
        self._next = 0
        self._left: pa.RecordBatch | None = None

    def before(self, limit: pa.RecordBatch | None) -> Iterator[pa.RecordBatch]:
        """The rows that were not read yet and whose key is below the limit's; all if there is none."""
        while True:
            if self._left is None:
                if self._next == self._file.num_record_batches:
                    return
                self._left = self._file.get_batch(self._next)
                self._next += 1
            batch = self._left
            count = batch.num_rows if limit is None else self._below(batch, limit)
            if count:
                yield batch.slice(0, count)
            self._left = batch.slice(count) if count < batch.num_rows else None
            if self._left is not None:
                return

    def _below(self, batch: pa.RecordBatch, limit: pa.RecordBatch) -> int:
        repeated = limit.take(pa.array(np.zeros(batch.num_rows, np.int64)))
        return int(counts_over(_columns(repeated, self._keys), _columns(batch, self._keys)).sum())
