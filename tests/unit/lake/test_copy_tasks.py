"""What the tasks of a copy tell each other: which rows have newer ones, how many keys there are, and who cannot."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow.fs import LocalFileSystem

from lakehead.lake.copy_tasks import (
    CannotCopy,
    CopyJob,
    CopyResult,
    Counted,
    Message,
    NumberedFile,
    find_superseded,
    shares_of,
    spread_keys,
    write_rows,
)
from lakehead.lake.datafiles import Target
from lakehead.lake.file_rows import FileReader, StoredFile


def numbered(number: int, name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, metadata={"PARQUET:field_id": str(number)})


SCHEMA = pa.schema([numbered(1, "id", pa.int64()), numbered(2, "at", pa.int64()), numbered(3, "_slice", pa.int64())])
Rows = Sequence[tuple[int | None, int | None, int]]


@pytest.fixture
def job(tmp_path: Path) -> CopyJob:
    return CopyJob(
        target=Target(
            filesystem=LocalFileSystem(), folder=f"{tmp_path}/data", uri=f"file://{tmp_path}/data", schema=SCHEMA
        ),
        source=FileReader(LocalFileSystem(), SCHEMA),
        ranges=(("_slice", 1, 9),),
        not_null=("id",),
        keys=("id",),
        order=("at", "_slice"),
    )


def stored(folder: Path, *files: Rows) -> list[NumberedFile]:
    made = []
    for number, rows in enumerate(files):
        columns = [pa.array(column, pa.int64()) for column in zip(*rows, strict=True)]
        path = f"{folder}/{number}.parquet"
        pq.write_table(pa.Table.from_arrays(columns, schema=SCHEMA), path)
        made.append((number, StoredFile(f"file://{path}", path, len(rows))))
    return made


def copied(job: CopyJob, shares: Sequence[Sequence[NumberedFile]], buckets: int) -> list[CopyResult]:
    """Do what Spark does: bring each piece to its bucket, and each message to its writer."""
    writer_of = [number for number, share in enumerate(shares) for _ in share]
    pieces: dict[int, list[Any]] = defaultdict(list)
    for share in shares:
        for bucket, piece in spread_keys(job, share, buckets):
            pieces[bucket].append(piece)
    messages: dict[int, list[Message]] = defaultdict(list)
    for theirs in pieces.values():
        for writer, message in find_superseded(job, theirs, writer_of, len(shares)):
            messages[writer].append(message)
    return [write_rows(job, share, messages[number], f"task-{number}") for number, share in enumerate(shares)]


def rows_of(results: Sequence[CopyResult]) -> Iterator[tuple[Any, ...]]:
    for result in results:
        for file in result.files:
            yield from (tuple(row.values()) for row in pq.read_table(file.path).to_pylist())


@pytest.mark.parametrize("buckets", [1, 3])
def test_the_newest_row_of_each_key_is_written_once(job: CopyJob, tmp_path: Path, buckets: int) -> None:
    files = stored(
        tmp_path,
        [(1, 5, 1), (2, 5, 1), (3, None, 1), (None, 9, 1), (9, 9, 0), (8, 9, 10)],
        [(1, 4, 2), (2, 6, 2), (3, 1, 2)],
        [(1, 5, 3), (4, None, 3)],
    )

    results = copied(job, [files[:2], files[2:]], buckets)

    assert sorted(rows_of(results)) == [(1, 5, 3), (2, 6, 2), (3, 1, 2), (4, None, 3)]
    assert sum(result.keys for result in results) == sum(result.written for result in results) == 4


def test_rows_that_are_alike_in_all_that_is_compared_are_left_to_spark(job: CopyJob, tmp_path: Path) -> None:
    files = stored(tmp_path, [(1, 5, 1), (1, 5, 1)], [(2, 5, 1)])

    results = copied(job, [files[:1], files[1:]], 2)

    assert [result.cannot is not None for result in results] == [True, True]
    assert [result.files for result in results] == [(), ()]
    assert not Path(job.target.folder).exists()


def test_a_file_that_cannot_be_read_stops_every_writer(job: CopyJob, tmp_path: Path) -> None:
    files = stored(tmp_path, [(1, 5, 1)], [(2, 5, 1)])
    plain = pa.table({"id": [1], "at": [1], "_slice": [1]})
    pq.write_table(plain, files[1][1].path)

    results = copied(job, [files[:1], files[1:]], 2)

    assert [result.cannot for result in results] == ["a data file has no field ids"] * 2


def test_without_keys_every_wanted_row_is_written(job: CopyJob, tmp_path: Path) -> None:
    files = stored(tmp_path, [(1, 5, 1), (1, 5, 1), (None, 1, 1), (2, 2, 10)])

    result = write_rows(replace(job, keys=(), order=()), files, (), "task")

    assert list(rows_of([result])) == [(1, 5, 1), (1, 5, 1)]
    assert (result.written, result.keys) == (2, 0)


def test_keys_are_counted_where_they_are_told(job: CopyJob) -> None:
    assert write_rows(job, [], [Counted(2), Counted(3)], "task").keys == 5
    assert write_rows(job, [], [Counted(2), CannotCopy("why")], "task") == CopyResult(cannot="why")


@pytest.mark.parametrize(
    ("rows", "most", "tasks", "expected"),
    [
        ([], 10, 2, []),
        ([5], 10, 2, [[0]]),
        ([5, 5, 5, 5], 100, 2, [[0, 1], [2, 3]]),
        ([5, 5, 5, 5], 5, 2, [[0], [1], [2], [3]]),
        ([100, 1, 1], 100, 2, [[0], [1, 2]]),
        ([0, 0], 10, 2, [[0, 1]]),
        ([1, 100], 10, 2, [[0], [1]]),
    ],
)
def test_neighbours_are_divided_among_tasks(rows: list[int], most: int, tasks: int, expected: list[list[int]]) -> None:
    files = [(number, StoredFile(str(number), "", count)) for number, count in enumerate(rows)]

    assert [[number for number, _ in share] for share in shares_of(files, most, tasks)] == expected
