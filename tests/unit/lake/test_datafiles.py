"""Data files in a folder: each row once, in its partition's file, sorted, rolled, and truly told of."""

import errno
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow.fs import LocalFileSystem
from pyiceberg.transforms import parse_transform
from pyiceberg.types import (
    BinaryType,
    DateType,
    DecimalType,
    IcebergType,
    LongType,
    StringType,
    TimestampType,
    TimestamptzType,
    TimeType,
)
from pyiceberg.utils import datetime as times

from lakehead.errors import DiskFull
from lakehead.lake import datafiles
from lakehead.lake.conform import RowsRejected
from lakehead.lake.datafiles import DataFile, DataFiles, Key, Target, same_partition
from tests.support.effort import effort

COLUMNS = pa.schema(
    [
        pa.field("p", pa.large_string(), metadata={"PARQUET:field_id": "1"}),
        pa.field("v", pa.int64(), metadata={"PARQUET:field_id": "2"}),
    ]
)
NAN = float("nan")


def a_target(folder: Path, schema: pa.Schema = COLUMNS, **settings: Any) -> Target:
    return Target(
        filesystem=LocalFileSystem(), folder=f"{folder}/data", uri=f"file://{folder}/data", schema=schema, **settings
    )


def written(target: Target, *batches: pa.RecordBatch) -> list[DataFile]:
    files = DataFiles(target, "task-1")
    for batch in batches:
        files.write(batch)
    return files.close()


def rows(partitions: Iterable[str | None], values: Iterable[int] | None = None) -> pa.RecordBatch:
    theirs = list(partitions)
    numbers = list(values) if values is not None else list(range(len(theirs)))
    return pa.RecordBatch.from_pydict({"p": pa.array(theirs, pa.string()), "v": pa.array(numbers, pa.int64())})


def content(file: DataFile) -> list[dict[str, Any]]:
    read: list[dict[str, Any]] = pq.read_table(file.path).to_pylist()
    return read


def by_partition(files: Iterable[DataFile], column: str = "p") -> dict[Any, list[Any]]:
    """The values that the files of each partition hold."""
    found: dict[Any, list[Any]] = {}
    for file in files:
        found.setdefault(same_partition(file.partition), []).extend(row[column] for row in content(file))
    return found


def test_no_rows_make_no_file(tmp_path: Path) -> None:
    assert written(a_target(tmp_path)) == []
    assert written(a_target(tmp_path), rows([])) == []
    assert written(a_target(tmp_path, partition=(Key("p"),), order=(Key("v"),)), rows([])) == []
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_what_is_told_of_it(tmp_path: Path) -> None:
    (file,) = written(a_target(tmp_path), rows(["a", None, "c"]), rows(["d"]))

    path = Path(file.path)
    assert file.uri == path.as_uri() == f"file://{tmp_path}/data/task-1-00000.parquet"
    assert (file.rows, file.size, file.partition) == (4, path.stat().st_size, ())
    told, there = pq.read_metadata(pa.BufferReader(file.footer)), pq.read_metadata(path)
    for footer in (told, there):
        assert (footer.num_rows, footer.num_row_groups, footer.num_columns) == (4, 1, 2)
    for number in range(there.num_columns):
        column = told.row_group(0).column(number)
        assert column.to_dict() == there.row_group(0).column(number).to_dict()
        assert column.file_path == ""
    assert told.row_group(0).column(0).statistics.null_count == 1
    assert (told.row_group(0).column(1).statistics.min, told.row_group(0).column(1).statistics.max) == (0, 2)
    assert told.schema.to_arrow_schema().field("v").metadata == {b"PARQUET:field_id": b"2"}
    assert [row["p"] for row in content(file)] == ["a", None, "c", "d"]


def test_the_writers_settings_reach_the_file(tmp_path: Path) -> None:
    (file,) = written(a_target(tmp_path, parquet={"compression": "zstd"}, row_group_rows=10), rows(["a"] * 25))

    footer = pq.read_metadata(file.path)
    assert footer.row_group(0).column(0).compression == "ZSTD"
    assert [footer.row_group(number).num_rows for number in range(footer.num_row_groups)] == [10, 10, 5]


def test_decimals_are_stored_as_iceberg_asks(tmp_path: Path) -> None:
    kinds = {"d9": pa.decimal128(9, 2), "d18": pa.decimal128(18, 4), "d38": pa.decimal128(38, 10)}
    schema = pa.schema(list(kinds.items()))
    batch = pa.RecordBatch.from_pydict({name: pa.array([Decimal("-1.5")], kind) for name, kind in kinds.items()})

    (file,) = written(a_target(tmp_path, schema), batch)

    footer = pq.read_metadata(file.path)
    stored = [footer.row_group(0).column(number).physical_type for number in range(3)]
    assert stored == ["INT32", "INT64", "FIXED_LEN_BYTE_ARRAY"]
    assert content(file) == [dict.fromkeys(kinds, Decimal("-1.5"))]


def days(value: date) -> int:
    return times.date_to_days(value)


def micros(value: datetime) -> int:
    return times.datetime_to_micros(value.replace(tzinfo=None))


PLAIN_MOMENTS = [
    datetime(1969, 12, 31, 23, 59, 59, 999_999),  # noqa: DTZ001 - the zone is given where it is wanted
    datetime(1970, 1, 1),  # noqa: DTZ001
    datetime(1900, 1, 1, 0, 0, 0, 1),  # noqa: DTZ001
    datetime(2024, 2, 29, 12, 30),  # noqa: DTZ001
    datetime(1, 1, 1),  # noqa: DTZ001
    None,
]
DATES = [date(1969, 12, 31), date(1970, 1, 1), date(1900, 2, 28), date(1, 1, 1), date(2024, 2, 29), None]
DECIMALS = [Decimal("-1.05"), Decimal("10.50"), Decimal("0.00"), Decimal("-10.01"), None]
TEXTS = ["", "abcdef", "ünïcödé", "\U0001f600\U0001f600\U0001f600\U0001f600", None]
KINDS: dict[str, tuple[pa.DataType, IcebergType, list[Any], Callable[[Any], Any], str]] = {
    "long": (pa.int64(), LongType(), [-1, 0, 1, -10, -11, 2**62, None], lambda value: value, "bucket truncate"),
    "text": (pa.large_string(), StringType(), TEXTS, lambda value: value, "bucket truncate"),
    "binary": (
        pa.large_binary(),
        BinaryType(),
        [b"", b"abcdef", b"\xff" * 9, None],
        lambda value: value,
        "bucket truncate",
    ),
    "decimal": (pa.decimal128(9, 2), DecimalType(9, 2), DECIMALS, lambda value: value, "bucket truncate"),
    "date": (pa.date32(), DateType(), DATES, days, "bucket year month day"),
    "time": (
        pa.time64("us"),
        TimeType(),
        [time(1, 2, 3), time(), None],
        times.time_to_micros,
        "bucket",
    ),
    "moment": (pa.timestamp("us"), TimestampType(), PLAIN_MOMENTS, micros, "bucket year month day hour"),
    "moment in a zone": (
        pa.timestamp("us", "UTC"),
        TimestamptzType(),
        [moment and moment.replace(tzinfo=UTC) for moment in PLAIN_MOMENTS],
        micros,
        "bucket year month day hour",
    ),
}
TRANSFORMS = [
    (kind, {"bucket": "bucket[7]", "truncate": "truncate[3]"}.get(name, name))
    for kind, (*_, names) in KINDS.items()
    for name in ["identity", "void", *names.split()]
]


@pytest.mark.parametrize(("kind", "transform"), TRANSFORMS)
def test_each_row_is_in_the_partition_that_iceberg_says(tmp_path: Path, kind: str, transform: str) -> None:
    arrow, iceberg, values, stored, _ = KINDS[kind]
    expected: dict[Any, list[Any]] = {}
    apply = parse_transform(transform).transform(iceberg)
    for value in values:
        expected.setdefault((apply(None if value is None else stored(value)),), []).append(value)
    schema = pa.schema([("p", arrow), ("v", pa.int64())])
    batch = pa.RecordBatch.from_arrays([pa.array(values, arrow), pa.array(range(len(values)))], schema=schema)

    files = written(a_target(tmp_path, schema, partition=(Key("p", transform),)), batch, batch)

    found = by_partition(files)
    assert {place: found[place][: len(theirs)] for place, theirs in expected.items()} == expected
    assert {place: len(theirs) for place, theirs in found.items()} == {
        place: 2 * len(theirs) for place, theirs in expected.items()
    }
    assert len(files) == len(expected), "the rows of one partition stand in one file"


@given(st.dates(date(1, 1, 1)), st.integers(-(2**63) + 7, 2**63 - 1), st.text(max_size=9))
def test_transforms_are_icebergs_whatever_the_value(day: date, number: int, text: str) -> None:
    batch = pa.RecordBatch.from_pydict(
        {"day": pa.array([day]), "number": pa.array([number], pa.int64()), "text": pa.array([text], pa.large_string())}
    )
    for column, transform, value, kind in [
        *(("day", name, days(day), DateType()) for name in ("year", "month", "day", "bucket[16]")),
        *(("number", name, number, LongType()) for name in ("bucket[16]", "truncate[7]")),
        *(("text", name, text, StringType()) for name in ("bucket[16]", "truncate[2]")),
    ]:
        assert Key(column, transform).of(batch).to_pylist() == [parse_transform(transform).transform(kind)(value)]


def test_a_partition_of_several_fields_has_a_value_for_each(tmp_path: Path) -> None:
    keys = (Key("p"), Key("v", "truncate[10]"), Key("v", "void"))

    files = written(a_target(tmp_path, partition=keys), rows(["a", "a", None, "a"], [1, 11, 12, -1]))

    assert {file.partition: file.rows for file in files} == {
        ("a", 0, None): 1,
        ("a", 10, None): 1,
        (None, 10, None): 1,
        ("a", -10, None): 1,
    }


def test_uuids_fixed_bytes_and_truths_can_be_partitions(tmp_path: Path) -> None:
    one, other = UUID(int=1), UUID(int=2**127)
    schema = pa.schema([("u", pa.uuid()), ("f", pa.binary(2)), ("b", pa.bool_())])
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array([one.bytes, other.bytes, None, one.bytes], pa.uuid()),
            pa.array([b"ab", b"ab", None, b"ab"], pa.binary(2)),
            pa.array([True, False, None, True]),
        ],
        schema=schema,
    )

    files = written(a_target(tmp_path, schema, partition=(Key("u"), Key("f"), Key("b"))), batch)

    assert {file.partition: file.rows for file in files} == {
        (one.bytes, b"ab", True): 2,
        (other.bytes, b"ab", False): 1,
        (None, None, None): 1,
    }


def test_not_a_number_is_one_partition_and_the_two_zeros_are_two(tmp_path: Path) -> None:
    schema = pa.schema([("p", pa.float64())])
    batch = pa.RecordBatch.from_pydict({"p": [NAN, 0.0, -0.0, float("inf"), None]})

    files = written(a_target(tmp_path, schema, partition=(Key("p"),)), batch, batch)

    assert sorted(repr(file.partition[0]) for file in files) == ["-0.0", "0.0", "None", "inf", "nan"]
    for file in files:
        assert {repr(row["p"]) for row in content(file)} == {repr(file.partition[0])}


def values_in(files: list[DataFile], column: str = "v") -> list[Any]:
    (file,) = files
    return [row[column] for row in content(file)]


@pytest.mark.parametrize("nulls_first", [True, False])
@pytest.mark.parametrize("descending", [True, False])
def test_rows_are_sorted_and_nulls_go_where_the_order_says(
    tmp_path: Path, *, descending: bool, nulls_first: bool
) -> None:
    key = Key("p", descending=descending, nulls_first=nulls_first)

    files = written(a_target(tmp_path, order=(key,)), rows(["b", None, "c", "a"]), rows([None, "aa"]))

    there: list[str | None] = [*sorted(["b", "c", "a", "aa"], reverse=descending)]
    nulls: list[str | None] = [None, None]
    assert values_in(files, "p") == (nulls + there if nulls_first else there + nulls)


def test_a_second_key_decides_where_the_first_is_equal_and_nulls_are_equal(tmp_path: Path) -> None:
    order = (Key("p", nulls_first=False), Key("v", descending=True))

    files = written(a_target(tmp_path, order=order), rows(["a", None, "a", None, "a"], [1, 5, 3, 9, 2]))

    assert values_in(files) == [3, 2, 1, 9, 5]


def test_rows_can_be_sorted_by_what_a_transform_makes_of_them(tmp_path: Path) -> None:
    order = (Key("v", "truncate[10]"), Key("p"))

    files = written(a_target(tmp_path, order=order), rows(["b", "a", "c", "d"], [11, 19, 3, -1]))

    assert values_in(files) == [-1, 3, 19, 11]


@pytest.mark.parametrize("descending", [True, False])
def test_not_a_number_is_sorted_as_the_greatest(tmp_path: Path, *, descending: bool) -> None:
    schema = pa.schema([("v", pa.float64())])
    batch = pa.RecordBatch.from_pydict({"v": [1.0, NAN, float("inf"), None, float("-inf"), NAN]})

    files = written(a_target(tmp_path, schema, order=(Key("v", descending=descending),)), batch)

    there = ["-inf", "1.0", "inf", "nan", "nan"]
    assert [repr(value) for value in values_in(files)] == ["None", *(there[::-1] if descending else there)]


SORTED_KINDS = [
    (pa.uuid(), [UUID(int=2).bytes, None, UUID(int=1).bytes]),
    (pa.binary(2), [b"bb", None, b"aa"]),
    (pa.large_binary(), [b"b", None, b"a"]),
    (pa.bool_(), [True, None, False]),
    (pa.decimal128(9, 2), [Decimal(2), None, Decimal(1)]),
    (pa.date32(), [date(2000, 1, 1), None, date(1900, 1, 1)]),
    (pa.time64("us"), [time(2), None, time(1)]),
    (pa.timestamp("us", "UTC"), [datetime(2000, 1, 1, tzinfo=UTC), None, datetime(1900, 1, 1, tzinfo=UTC)]),
]


@pytest.mark.parametrize(("kind", "values"), SORTED_KINDS, ids=str)
def test_every_type_that_iceberg_orders_can_be_sorted_by(tmp_path: Path, kind: pa.DataType, values: list[Any]) -> None:
    schema = pa.schema([("k", kind), ("v", pa.int64())])
    batch = pa.RecordBatch.from_arrays([pa.array(values, kind), pa.array([2, 0, 1])], schema=schema)

    assert values_in(written(a_target(tmp_path, schema, order=(Key("k"),)), batch)) == [0, 1, 2]


def test_nested_columns_come_along_when_rows_are_parted_and_sorted(tmp_path: Path) -> None:
    nested = {
        "l": pa.large_list(pa.int64()),
        "s": pa.struct([("x", pa.large_string()), ("u", pa.uuid())]),
        "m": pa.map_(pa.large_string(), pa.int64()),
    }
    schema = pa.schema([("p", pa.int64()), *nested.items()])
    one, other = (
        pa.RecordBatch.from_arrays(
            [
                pa.array([number, number + 1]),
                pa.array([[number], None], nested["l"]),
                pa.StructArray.from_arrays(
                    [pa.array(["x", None], pa.large_string()), pa.array([UUID(int=number).bytes, None], pa.uuid())],
                    fields=list(nested["s"]),
                ),
                pa.array([[("k", number)], []], nested["m"]),
            ],
            schema=schema,
        )
        for number in (1, 2)
    )

    files = written(a_target(tmp_path, schema, partition=(Key("p"),), order=(Key("p", descending=True),)), one, other)

    read = sorted((row for file in files for row in content(file)), key=repr)
    assert read == sorted(one.to_pylist() + other.to_pylist(), key=repr)
    assert len(files) == 3


def test_a_file_is_ended_at_its_size_and_another_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datafiles, "ROW_GROUP_BYTES", 8_000)
    batches = [rows([None] * 500, range(start, start + 500)) for start in range(0, 10_000, 500)]

    files = written(a_target(tmp_path, file_bytes=6_000, parquet={"compression": "none"}), *batches)

    assert len(files) > 2
    assert len({file.uri for file in files}) == len(files)
    assert all(file.size >= 6_000 for file in files[:-1]), "none is ended before its size"
    assert max(file.size for file in files) < 6_000 + 2 * 10_000, "nor much after it"
    assert sorted(row["v"] for file in files for row in content(file)) == list(range(10_000))


def test_sorted_rows_beyond_what_memory_holds_are_several_files_each_sorted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datafiles, "ROW_GROUP_BYTES", 8_000)
    batches = [rows([None] * 500, range(start + 500, start, -1)) for start in range(0, 5_000, 500)]

    files = written(a_target(tmp_path, order=(Key("v"),)), *batches)

    assert len(files) > 2
    read = [[row["v"] for row in content(file)] for file in files]
    assert all(theirs == sorted(theirs) for theirs in read)
    assert sorted(value for theirs in read for value in theirs) == list(range(1, 5_001))


class Watched(DataFiles):
    """Notes the most files that were ever open, and the most bytes ever held after a batch."""

    most_open = most_bytes = 0

    def write(self, batch: pa.RecordBatch) -> None:
        super().write(batch)
        self.most_bytes = max(self.most_bytes, sum(partition.bytes for partition in self._open.values()))

    def _begin(self, partition: Any, rows: int) -> None:
        super()._begin(partition, rows)
        self.most_open = max(self.most_open, sum(each.writer is not None for each in self._open.values()))


def test_many_partitions_keep_few_files_open_and_little_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datafiles, "OPEN_FILES", 5)
    monkeypatch.setattr(datafiles, "BUFFERED_BYTES", 4_000)
    files = Watched(a_target(tmp_path, partition=(Key("v", "truncate[10]"),)), "task-1")

    for start in range(0, 600, 60):
        files.write(rows(["text"] * 200, [start + number % 200 for number in range(0, 1_000, 5)]))
    done = files.close()

    assert files.most_open == 5
    assert 0 < files.most_bytes <= 4_000
    assert sum(file.rows for file in done) == 2_000
    assert all(row["v"] // 10 * 10 == file.partition[0] for file in done for row in content(file))
    assert {Path(file.path).name for file in done} == {path.name for path in (tmp_path / "data").iterdir()}


def test_rows_that_do_not_fit_are_refused_before_a_file_is_begun(tmp_path: Path) -> None:
    files = DataFiles(a_target(tmp_path), "task-1")

    with pytest.raises(RowsRejected, match="has no column 'w'"):
        files.write(pa.RecordBatch.from_pydict({"w": [1]}))
    assert list(tmp_path.iterdir()) == []


partitions = st.lists(st.lists(st.tuples(st.sampled_from("abcdefgh"), st.integers(-50, 50)), max_size=20), max_size=6)


@pytest.mark.slow
@settings(max_examples=effort(50, soak=500))
@given(
    batches=partitions,
    parted=st.booleans(),
    ordered=st.booleans(),
    buffered=st.sampled_from([200, 10**6]),
    open_files=st.sampled_from([1, 64]),
)
def test_whatever_comes_each_row_is_written_once(
    tmp_path_factory: pytest.TempPathFactory,
    *,
    batches: list[list[tuple[str, int]]],
    parted: bool,
    ordered: bool,
    buffered: int,
    open_files: int,
) -> None:
    target = a_target(tmp_path_factory.mktemp("files"))
    target = replace(target, partition=(Key("p"),) if parted else (), order=(Key("v"),) if ordered else ())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datafiles, "BUFFERED_BYTES", buffered)
        patch.setattr(datafiles, "OPEN_FILES", open_files)
        files = written(target, *(rows((p for p, _ in batch), (v for _, v in batch)) for batch in batches))

    read = [(row["p"], row["v"]) for file in files for row in content(file)]
    assert sorted(read) == sorted(row for batch in batches for row in batch)
    for file in files:
        assert file.rows == len(content(file)) > 0
        assert not parted or {row["p"] for row in content(file)} == {file.partition[0]}
        assert not ordered or [row["v"] for row in content(file)] == sorted(row["v"] for row in content(file))


def test_a_partition_read_back_by_anyone_is_the_same_partition() -> None:
    assert same_partition([NAN, UUID(int=1)]) == same_partition([float("nan"), UUID(int=1).bytes])
    assert same_partition([0.0]) != same_partition([-0.0])
    assert same_partition([None]) != same_partition([NAN])


@pytest.mark.parametrize("error", [RuntimeError("the source is gone"), KeyboardInterrupt(), RowsRejected("no")])
def test_what_a_task_wrote_is_removed_when_it_fails(
    tmp_path: Path, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = replace(a_target(tmp_path), partition=(Key("p"),), order=(Key("v"),))
    monkeypatch.setattr(datafiles, "BUFFERED_BYTES", 0)  # so that all of it is written at once

    def fail_after_two_files() -> None:
        with DataFiles(target, "task-1") as files:
            files.write(rows(["a", "b", "a"]))
            assert len(list((tmp_path / "data").iterdir())) == 2
            raise error

    with pytest.raises(type(error)):
        fail_after_two_files()

    assert list((tmp_path / "data").iterdir()) == []


def test_a_full_disk_is_told_with_its_folder(tmp_path: Path) -> None:
    said = rf"The disk of {tmp_path}/data is full \(No space left on device\)\. Make room"

    with pytest.raises(DiskFull, match=said), DataFiles(a_target(tmp_path), "task-1"):
        raise OSError(errno.ENOSPC, "Error writing bytes to file")
