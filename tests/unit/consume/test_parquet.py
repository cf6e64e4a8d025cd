"""What Parquet does with columns of other types, and with damaged files."""

import io
import json
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from lakehead.consume.decode.decode import infer_columns, read_object
from lakehead.consume.decode.rows import FormatName, ObjectFormat, ObjectRefused, ReadReport, SchemaMode
from lakehead.errors import Unavailable
from tests.unit.consume.reading import column, read

PARQUET = ObjectFormat(name=FormatName.PARQUET)
PARQUET_RESCUE = ObjectFormat(name=FormatName.PARQUET, mode=SchemaMode.RESCUE)
NS = pa.timestamp("ns")


def naive(*parts: int) -> datetime:
    return datetime(*parts, tzinfo=UTC).replace(tzinfo=None)  # type: ignore[arg-type, misc]


def file(columns: dict[str, pa.Array], **settings: Any) -> bytes:
    buffer = io.BytesIO()
    pyarrow.parquet.write_table(pa.table(columns), buffer, **settings)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("values", "kind", "stored"),
    [
        (pa.array([1, None], pa.int32()), pa.int64(), [1, None]),
        (pa.array([1, 2**63 - 1], pa.uint64()), pa.int64(), [1, 2**63 - 1]),
        (pa.array([1], pa.int64()), pa.int32(), [1]),
        (pa.array([1], pa.int64()), pa.decimal128(3, 2), [Decimal("1.00")]),
        (pa.array([2**53]), pa.float64(), [2.0**53]),
        (pa.array([0.5], pa.float32()), pa.float64(), [0.5]),
        (pa.array([0.5], pa.float64()), pa.float32(), [0.5]),
        (pa.array([Decimal("1.50")], pa.decimal128(10, 2)), pa.decimal128(5, 1), [Decimal("1.5")]),
        (pa.array([Decimal("1.50")], pa.decimal128(10, 2)), pa.decimal128(38, 10), [Decimal("1.5")]),
        (pa.array([Decimal(7)], pa.decimal128(20, 0)), pa.int64(), [7]),
        (pa.array(["x", None]).dictionary_encode(), pa.string(), ["x", None]),
        (pa.array([b"x"]), pa.string(), ["x"]),
        (pa.array([b"ab"], pa.binary(2)), pa.binary(), [b"ab"]),
        (pa.array([1500], pa.timestamp("ms")), pa.timestamp("us"), [naive(1970, 1, 1, 0, 0, 1, 500_000)]),
        (pa.array([1000], NS), pa.timestamp("us"), [naive(1970, 1, 1, 0, 0, 0, 1)]),
        (
            pa.array([0], pa.timestamp("us", "Europe/Berlin")),
            pa.timestamp("us", "UTC"),
            [datetime(1970, 1, 1, tzinfo=UTC)],
        ),
        (pa.array(["2024-01-01"]), pa.date32(), [date(2024, 1, 1)]),
        (pa.array([1, None]), pa.string(), ["1", None]),
        (pa.array([0.1]), pa.string(), ["0.1"]),
        (pa.array([[1, None], None, []], pa.list_(pa.int32())), pa.list_(pa.int64()), [[1, None], None, []]),
        (
            pa.array([{"x": 1}, None], pa.struct([("x", pa.int32())])),
            pa.struct([("x", pa.int64()), ("y", pa.string())]),
            [{"x": 1, "y": None}, None],
        ),
        (
            pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int32())),
            pa.map_(pa.string(), pa.int64()),
            [[("k", 1)], None],
        ),
        (pa.array([{"x": 1}]), pa.string(), ['{"x":1}']),
        (pa.nulls(2), pa.date32(), [None, None]),
    ],
)
def test_a_column_of_another_type_fits_if_no_value_changes(
    values: pa.Array, kind: pa.DataType, stored: list[Any]
) -> None:
    assert column(file({"a": values}), kind, PARQUET) == [(value, None) for value in stored]


@pytest.mark.parametrize(
    ("values", "kind", "rescued"),
    [
        (pa.array([2**63], pa.uint64()), pa.int64(), 2**63),
        (pa.array([2**31]), pa.int32(), 2**31),
        (pa.array([1.0]), pa.int64(), 1.0),
        (pa.array([2**53 + 1]), pa.float64(), 2**53 + 1),
        (pa.array([0.1]), pa.float32(), 0.1),
        (pa.array([float("nan")]), pa.int64(), "NaN"),
        (pa.array([0.5]), pa.decimal128(5, 2), 0.5),
        (pa.array([Decimal("1.55")]), pa.decimal128(5, 1), 1.55),
        (pa.array([Decimal(10**37)], pa.decimal128(38, 0)), pa.decimal128(38, 10), 10**37),
        (pa.array([Decimal("1.5")]), pa.int64(), 1.5),
        (pa.array([1500], NS), pa.timestamp("us"), "1970-01-01 00:00:00.000001500"),
        (pa.array([0], pa.timestamp("us")), pa.timestamp("us", "UTC"), "1970-01-01 00:00:00.000000"),
        (pa.array([0], pa.timestamp("us", "UTC")), pa.timestamp("us"), "1970-01-01 00:00:00.000000Z"),
        (pa.array([1], pa.time64("ns")), pa.time64("us"), "00:00:00.000000001"),
        (pa.array([date(2024, 1, 1)]), pa.timestamp("us"), "2024-01-01"),
        (pa.array([b"\xff"]), pa.string(), "/w=="),
        (pa.array([b"abc"]), pa.binary(2), "YWJj"),
        (pa.array(["1"]), pa.int64(), "1"),
        (pa.array([True]), pa.int64(), True),
        (pa.array([{"x": 1, "z": 2}]), pa.struct([("x", pa.int64())]), {"x": 1, "z": 2}),
        (pa.array([[1, 2**40]]), pa.list_(pa.int32()), [1, 2**40]),
    ],
)
def test_a_value_that_does_not_fit_is_rescued_and_those_beside_it_are_not(
    values: pa.Array, kind: pa.DataType, rescued: Any
) -> None:
    body = file({"a": pa.concat_arrays([pa.nulls(3, values.type), values, pa.nulls(2, values.type)])})

    found = column(body, kind, PARQUET)

    assert [value for value, _ in found] == [None] * 6
    assert [json.loads(text) if text else None for _, text in found] == [None, None, None, {"a": rescued}, None, None]
    with pytest.raises(ObjectRefused, match=r"^Row 3: column 'a' of type .* cannot hold"):
        read(body, [("a", kind)], ObjectFormat(name=FormatName.PARQUET, mode=SchemaMode.FAIL))


def test_a_nested_value_that_does_not_fit_is_rescued_alone() -> None:
    kind = pa.struct([("x", pa.int32()), ("t", pa.timestamp("us")), ("m", pa.decimal128(5, 2)), ("b", pa.binary())])
    values = [
        {"x": 1, "t": naive(2024, 1, 1), "m": Decimal("1.50"), "b": b"\xff"},
        {"x": 2**40, "t": naive(2024, 1, 2), "m": Decimal("1.50"), "b": b"\xfe"},
        None,
    ]
    wider = pa.struct([("x", pa.int64()), ("t", pa.timestamp("us")), ("m", pa.decimal128(9, 3)), ("b", pa.binary())])

    found = column(file({"a": pa.array(values, wider)}), kind, PARQUET)

    assert [value for value, _ in found] == [values[0], None, None]
    assert [text for _, text in found] == [
        None,
        '{"a":{"x":1099511627776,"t":"2024-01-02 00:00:00.000000","m":1.500,"b":"/g=="}}',
        None,
    ]


def test_columns_that_the_file_lacks_are_null_and_those_that_the_table_lacks_are_proposed() -> None:
    body = file(
        {
            "a": pa.array([1, 2]),
            "u": pa.array([2**64 - 1, 1], pa.uint64()),
            "n": pa.nulls(2),
            "t": pa.array([1000, None], NS),
            "f": pa.array([1500, None], NS),
            "s": pa.array(["x", None], pa.large_string()),
            "_row": pa.array([9, 9]),
        }
    )

    rows, report = read(body, [("a", pa.int64()), ("q", pa.date32())], PARQUET)

    proposed = {"u": pa.decimal128(20, 0), "t": pa.timestamp("us"), "f": pa.string(), "s": pa.string()}
    assert report.new_columns == proposed
    assert [row["q"] for row in rows] == [None, None]
    assert json.loads(rows[0]["_rescued"])["u"] == 2**64 - 1
    again, report = read(body, [("a", pa.int64()), *proposed.items()], PARQUET)
    assert report.new_columns == {}
    assert [json.loads(row["_rescued"]) for row in again] == [{"_row": 9}, {"_row": 9}]
    assert infer_columns(pa.BufferReader(body), PARQUET) == pa.schema([("a", pa.int64()), *proposed.items()])


INT96 = {"use_deprecated_int96_timestamps": True}


def test_int96_is_a_moment_in_utc_to_the_nanosecond_or_rescued() -> None:
    whole = file({"a": pa.array([1000, None], NS)}, **INT96)
    finer = file({"a": pa.array([1000, 1500], NS)}, **INT96)
    moment = datetime(1970, 1, 1, 0, 0, 0, 1, tzinfo=UTC)

    assert column(whole, pa.timestamp("us", "UTC"), PARQUET) == [(moment, None), (None, None)]
    assert column(finer, pa.timestamp("us", "UTC"), PARQUET) == [
        (moment, None),
        (None, '{"a":"1970-01-01 00:00:00.000001500Z"}'),
    ]
    assert column(whole, pa.timestamp("us"), PARQUET)[0][1] is not None
    assert infer_columns(pa.BufferReader(whole), PARQUET).field("a").type == pa.timestamp("us", "UTC")


@pytest.mark.parametrize("year", [1, 1600, 2300, 9999])
def test_int96_outside_the_range_of_nanoseconds_does_not_wrap_around(year: int) -> None:
    moment = datetime(year, 5, 6, 7, 8, 9, 123456, tzinfo=UTC)
    # Arrow only writes INT96 of nanoseconds. So the day is patched, which is in four bytes of its own.
    of_day = naive(1970, 1, 1, 7, 8, 9, 123456)
    body = file(
        {"a": pa.array([of_day], NS)}, compression="none", use_dictionary=False, write_statistics=False, **INT96
    )
    stored = (2440588).to_bytes(4, "little")
    days = (moment.replace(tzinfo=None) - naive(1970, 1, 1)) // timedelta(days=1)
    assert body.count(stored) == 1

    patched = body.replace(stored, (2440588 + days).to_bytes(4, "little"))

    assert column(patched, pa.timestamp("us", "UTC"), PARQUET) == [(moment, None)]


def test_a_file_that_is_damaged_cut_off_or_something_else_is_refused() -> None:
    body = file({"a": pa.array(range(1000))}, compression="zstd", use_dictionary=False)
    for broken in [b"", b"PAR1", body[:-1], body[: len(body) // 2], body[:4] + b"\xff" * 40 + body[44:], b'{"a":1}\n']:
        with pytest.raises(ObjectRefused, match=r"cannot be read as Parquet"):
            read(broken, [("a", pa.int64())], PARQUET)


def test_an_encrypted_file_is_refused() -> None:
    body = file({"a": pa.array([1])})

    with pytest.raises(ObjectRefused, match=r"cannot be read as Parquet"):
        read(body[:-4] + b"PARE", [("a", pa.int64())], PARQUET)


def test_text_that_is_not_utf8_is_refused() -> None:
    text = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0"), pa.py_buffer(b"\xff")])

    with pytest.raises(ObjectRefused, match=r"UTF8"):
        read(file({"a": text}), [("a", pa.string())], PARQUET)


def test_several_columns_of_one_name_are_refused() -> None:
    buffer = io.BytesIO()
    pyarrow.parquet.write_table(pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"]), buffer)

    with pytest.raises(ObjectRefused, match=r"several columns named 'a'"):
        read(buffer.getvalue(), [("a", pa.int64())], PARQUET)


@pytest.mark.parametrize("error", [Unavailable("It does not answer."), OSError(5, "I/O error"), TimeoutError("late")])
def test_an_error_of_the_source_is_not_the_objects_fault(error: Exception) -> None:
    body = file({"a": pa.array(range(100_000))}, use_dictionary=False)

    class Failing(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            if 4 <= self.tell() < len(body) - 70_000:
                raise error
            return super().read(size)

    with pytest.raises(type(error)):
        infer_columns(pa.PythonFile(Failing(body), mode="r"), PARQUET)


def test_a_row_group_is_read_in_batches() -> None:
    text = "x" * 1000
    body = file({"a": pa.array([text + str(number) for number in range(30_000)])}, use_dictionary=False)
    assert pyarrow.parquet.ParquetFile(io.BytesIO(body)).num_row_groups == 1

    rows, _ = read(body, [("a", pa.string())], PARQUET)

    assert len(rows) == 30_000


@pytest.mark.slow
@pytest.mark.parametrize(
    ("columns", "rows"),
    [
        ({f"c{number}": pa.nulls(20_000, pa.int64()) for number in range(500)}, 4_194),
        ({"l": pa.array([[7] * 10_000] * 400)}, 209),
    ],
)
def test_values_that_take_no_bytes_make_small_batches_too(columns: dict[str, pa.Array], rows: int) -> None:
    batches = read_object(pa.BufferReader(file(columns)), PARQUET_RESCUE, pa.schema([]), ReadReport())

    assert next(iter(batches)).num_rows == rows


def test_a_small_file_of_huge_texts_is_read_piece_by_piece() -> None:
    often = pa.DictionaryArray.from_arrays(pa.array([0, None] * 50_000, pa.int32()), pa.array(["x" * 2**20]))
    bomb = file({"a": often, "b": pa.array(range(100_000))})
    assert len(bomb) < 2**21

    schema = pa.schema([("a", pa.string()), ("b", pa.int64())])
    batches = read_object(pa.BufferReader(bomb), PARQUET, schema, ReadReport())

    first, second = next(batches), next(batches)
    assert first.num_rows == second.num_rows
    assert first.nbytes < 20 * 2**20
    assert second.column("b").to_pylist() == list(range(first.num_rows, 2 * first.num_rows))
