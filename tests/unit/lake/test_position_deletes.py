"""Position-delete files: what is written is what is read, for one data file."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow.fs import LocalFileSystem

from lakehead.lake.position_deletes import live_rows, merged, read_positions, read_shared, write_positions

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


def test_a_delete_file_of_several_data_files_is_read_once_for_all_of_them(tmp_path: Path) -> None:
    shared = tmp_path / "shared.parquet"
    rows = {"file_path": ["w", "x", "y", "x"], "pos": [3, 5, 1, 0], "row": [{"a": 1}] * 4}
    pq.write_table(pa.table(rows), shared, row_group_size=2)

    found = read_shared(FILES, str(shared), ["x", "w", "z"])

    assert {name: positions.tolist() for name, positions in found.items()} == {"x": [0, 5], "w": [3], "z": []}
