"""Position-delete files of Iceberg's format version 2 that name one data file each.

Tasks import this module, so it depends on PyArrow and NumPy alone.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow.fs import FileSystem, LocalFileSystem

Positions = npt.NDArray[np.int64]

PATH_ID, POSITION_ID = 2147483546, 2147483545
_SCHEMA = pa.schema(
    [
        pa.field("file_path", pa.string(), nullable=False, metadata={"PARQUET:field_id": str(PATH_ID)}),
        pa.field("pos", pa.int64(), nullable=False, metadata={"PARQUET:field_id": str(POSITION_ID)}),
    ]
)
_BATCH = 1 << 20


@dataclass(frozen=True, slots=True)
class DeleteFile:
    """A position-delete file that was written and is not visible to readers yet."""

    data_file: str
    """The only data file that it names, as the table's metadata names it."""

    uri: str
    path: str
    """The same, as its file system names it."""

    size: int
    rows: int
    first: int
    last: int
    """The lowest and the highest position."""


def write_positions(
    filesystem: FileSystem, folder: str, uri: str, name: str, data_file: str, positions: Positions
) -> DeleteFile:
    """Write a delete file for one data file. The positions are sorted, each of them once, and at least one."""
    file = f"{name}-deletes.parquet"
    if isinstance(filesystem, LocalFileSystem):
        filesystem.create_dir(folder, recursive=True)
    with filesystem.open_output_stream(f"{folder}/{file}") as sink:
        with pq.ParquetWriter(sink, _SCHEMA, compression="zstd") as writer:
            for start in range(0, len(positions), _BATCH):
                part = pa.array(positions[start : start + _BATCH])
                paths = pa.repeat(pa.scalar(data_file), len(part))
                writer.write_table(pa.Table.from_arrays([paths, part], schema=_SCHEMA))
        size = sink.tell()
    return DeleteFile(
        data_file, f"{uri}/{file}", f"{folder}/{file}", size, len(positions), int(positions[0]), int(positions[-1])
    )


def read_positions(filesystem: FileSystem, paths: Iterable[str], data_file: str) -> Positions:
    """The positions that delete files have of one data file: sorted, each of them once."""
    return merged([read_shared(filesystem, path, [data_file])[data_file] for path in paths])


def read_shared(filesystem: FileSystem, path: str, data_files: Sequence[str]) -> dict[str, Positions]:
    """The positions that one delete file has of each of these data files: sorted, each of them once."""
    found: dict[str, list[Positions]] = {file: [] for file in data_files}
    names = pa.array(data_files, pa.large_string())
    with filesystem.open_input_file(path) as source:
        file = pq.ParquetFile(source)
        columns = _columns(file)
        for batch in file.iter_batches(columns=list(columns)):
            numbers = pc.index_in(batch.column(columns[0]).cast(pa.large_string()), value_set=names).fill_null(-1)
            places = numbers.to_numpy(zero_copy_only=False)
            positions = batch.column(columns[1]).to_numpy(zero_copy_only=False)
            for number in np.unique(places[places >= 0]).tolist():
                found[data_files[number]].append(positions[places == number])
    return {file: merged(parts) for file, parts in found.items()}


def _columns(file: pq.ParquetFile) -> tuple[str, str]:
    """The names of the two columns, which are found by their ids, and by name if the file has none."""
    ids = {
        int(field.metadata[b"PARQUET:field_id"]): field.name
        for field in file.schema_arrow
        if field.metadata and b"PARQUET:field_id" in field.metadata
    }
    return ids.get(PATH_ID, "file_path"), ids.get(POSITION_ID, "pos")


def path_column(file: pq.ParquetFile) -> str:
    """The name of the column that names data files."""
    return _columns(file)[0]


def merged(positions: Sequence[Positions]) -> Positions:
    """All of these positions: sorted, each of them once."""
    if not positions:
        return np.zeros(0, np.int64)
    return np.unique(np.concatenate(positions).astype(np.int64))


def live_rows(start: int, count: int, deleted: Positions) -> npt.NDArray[np.bool_]:
    """Which of the rows from a position on are not deleted."""
    live = np.ones(count, bool)
    low, high = np.searchsorted(deleted, [start, start + count])
    live[deleted[low:high] - start] = False
    return live
