"""Position-delete files: what is written is what is read, for one data file."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow.fs import LocalFileSystem

from lakehead.lake.position_deletes import live_rows, merged, read_positions, write_positions

FILES = LocalFileSystem()


def test_positions_are_read_as_they_were_written(tmp_path: Path) -> None:
    folder = str(tmp_path / "data")
    made = write_positions(FILES, folder, "file:///t/data", "a", "file:///t/data/x.parquet", np.array([1, 5, 9]))

    assert (made.rows, made.first, made.last, made.size) == (3, 1, 9, Path(made.path).stat().st_size)
    assert made.uri == "file:///t/data/a-deletes.parquet"
    assert read_positions(FILES, [made.path], "file:///t/data/x.parquet").tolist() == [1, 5, 9]
    assert read_positions(FILES, [made.path], "file:///t/data/y.parquet").tolist() == []


def test_positions_of_several_files_are_merged(tmp_path: Path) -> None:
    folder = str(tmp_path)
    mine = write_positions(FILES, folder, "u", "a", "x", np.array([1, 5]))
    others = tmp_path / "b.parquet"
    pq.write_table(pa.table({"file_path": ["w", "x", "x"], "pos": [3, 0, 5]}), others)

    assert read_positions(FILES, [mine.path, str(others)], "x").tolist() == [0, 1, 5]


@pytest.mark.parametrize("start", range(6))
def test_deleted_rows_of_a_batch_are_not_live(start: int) -> None:
    deleted = merged([np.array([4, 1]), np.array([1, 7])])

    assert live_rows(start, 3, deleted).tolist() == [n not in {1, 4, 7} for n in range(start, start + 3)]
