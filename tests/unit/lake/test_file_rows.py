"""Rows of data files of other writers: read as the table has them now, or not at all."""

from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow.fs import LocalFileSystem

from lakehead.lake.file_rows import CannotRead, FileReader, StoredFile

NONE = np.zeros(0, np.int64)


def column(name: str, kind: pa.DataType, number: int) -> pa.Field:
    return pa.field(name, kind, metadata={"PARQUET:field_id": str(number)})


def stored(path: Path, field: pa.Field, values: Any, **options: Any) -> StoredFile:
    table = pa.table([pa.array(values, field.type)], schema=pa.schema([field]))
    pq.write_table(table, path, **options)
    return StoredFile("file:///x", str(path), len(table))


def read(file: StoredFile, *fields: pa.Field) -> list[dict[str, Any]]:
    reader = FileReader(LocalFileSystem(), pa.schema(fields))
    return [row for rows in reader.read(file, NONE) for row in rows.columns.to_pylist()]


@pytest.mark.parametrize("year", [1500, 2024, 2500])
@pytest.mark.parametrize("zone", [None, "UTC"])
def test_the_old_form_of_timestamps_is_read_for_every_year(tmp_path: Path, year: int, zone: str | None) -> None:
    moment = datetime(year, 2, 3, 4, 5, 6, 789)  # noqa: DTZ001 - without a zone on purpose
    file = tmp_path / "a.parquet"
    there = stored(file, column("at", pa.timestamp("us"), 1), [moment], use_deprecated_int96_timestamps=True)

    [row] = read(there, column("at", pa.timestamp("us", zone), 1))

    assert row["at"].replace(tzinfo=None) == moment


@pytest.mark.parametrize(
    ("have", "value", "now"),
    [
        (pa.timestamp("ns"), 1, pa.timestamp("us")),
        (pa.int64(), 2**40, pa.int32()),
        (pa.binary(), b"\xff", pa.string()),
        (pa.string(), "a", pa.int64()),
        (pa.int64(), 1, pa.uuid()),
    ],
)
def test_values_that_are_not_of_the_tables_type_are_not_read(
    tmp_path: Path, have: pa.DataType, value: Any, now: pa.DataType
) -> None:
    there = stored(tmp_path / "a.parquet", column("v", have, 1), [value])

    with pytest.raises(CannotRead, match="the column 'v' of a data file is"):
        read(there, column("v", now, 1))


def test_fields_inside_a_column_are_told_apart_by_their_ids(tmp_path: Path) -> None:
    was, now = (pa.struct([column("a", pa.int64(), number)]) for number in (5, 6))
    there = stored(tmp_path / "a.parquet", column("s", was, 1), [{"a": 1}])

    assert read(there, column("s", was, 1)) == [{"s": {"a": 1}}]
    with pytest.raises(CannotRead, match="the column 's' of a data file is"):
        read(there, column("s", now, 1))


@pytest.mark.parametrize("kind", [pa.large_string(), pa.dictionary(pa.int32(), pa.string())])
def test_text_in_other_forms_is_read(tmp_path: Path, kind: pa.DataType) -> None:
    there = stored(tmp_path / "a.parquet", column("v", kind, 1), ["a", None, "a"])

    assert read(there, column("v", pa.string(), 1)) == [{"v": "a"}, {"v": None}, {"v": "a"}]


def test_a_file_without_field_ids_is_not_read(tmp_path: Path) -> None:
    there = stored(tmp_path / "a.parquet", pa.field("v", pa.int64()), [1])

    with pytest.raises(CannotRead, match="no field ids"):
        read(there, column("v", pa.int64(), 1))


def test_a_column_whose_value_is_only_in_the_metadata_is_not_taken_for_null(tmp_path: Path) -> None:
    plain = stored(tmp_path / "a.parquet", column("v", pa.int64(), 1), [1])
    partitioned = StoredFile(plain.uri, plain.path, plain.rows, constants=frozenset({2}))
    both = column("v", pa.int64(), 1), column("day", pa.date32(), 2)

    assert read(plain, *both) == [{"v": 1, "day": None}]
    assert read(partitioned, both[0]) == [{"v": 1}]
    with pytest.raises(CannotRead, match="lacks the column 'day'"):
        read(partitioned, *both)
