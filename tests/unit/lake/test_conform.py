"""Rows made to fit a table: the same values, or a refusal that names the column."""

from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehead.lake.conform import RowsRejected, conform

NOON = datetime(2026, 11, 16, 12)  # noqa: DTZ001 - without a zone on purpose
STRICT = pa.field("element", pa.int64(), nullable=False)


def rows(column: pa.Array, name: str = "c") -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([column], names=[name])


def a_table(kind: pa.DataType, *, nullable: bool = True) -> pa.Schema:
    return pa.schema([pa.field("c", kind, nullable, metadata={"PARQUET:field_id": "1"})])


def conformed(column: pa.Array, kind: pa.DataType, *, nullable: bool = True) -> list[Any]:
    schema = a_table(kind, nullable=nullable)
    batch = conform(rows(column), schema)
    batch.validate(full=True)
    assert batch.schema.equals(schema, check_metadata=True)
    values: list[Any] = batch.column("c").to_pylist()
    return values


@pytest.mark.parametrize(
    ("column", "kind", "values"),
    [
        (pa.array([1, None], pa.int8()), pa.int64(), [1, None]),
        (pa.array([2**63 - 1], pa.uint64()), pa.int64(), [2**63 - 1]),
        (pa.array([2**31 - 1], pa.int64()), pa.int32(), [2**31 - 1]),
        (pa.array([7], pa.int32()), pa.decimal128(18, 4), [Decimal("7.0000")]),
        (pa.array([Decimal("1.230")]), pa.decimal128(9, 2), [Decimal("1.23")]),
        (pa.array([Decimal("1.5")], pa.decimal256(40, 1)), pa.decimal128(38, 10), [Decimal("1.5000000000")]),
        (pa.array([0.5], pa.float16()), pa.float32(), [0.5]),
        (pa.array([0.5], pa.float32()), pa.float64(), [0.5]),
        (pa.array(["a", None], pa.string()), pa.large_string(), ["a", None]),
        (pa.array(["a"], pa.string_view()), pa.large_string(), ["a"]),
        (pa.array([b"a"], pa.binary()), pa.large_binary(), [b"a"]),
        (pa.array([b"abc"], pa.binary()), pa.binary(3), [b"abc"]),
        (pa.array([b"abc"], pa.binary(3)), pa.large_binary(), [b"abc"]),
        (pa.array(["a", None, "a"]).dictionary_encode(), pa.large_string(), ["a", None, "a"]),
        (pa.array([NOON], pa.timestamp("s")), pa.timestamp("us"), [NOON]),
        (pa.array([NOON], pa.timestamp("ns")), pa.timestamp("us"), [NOON]),
        (pa.array([NOON], pa.timestamp("ms", "+03:00")), pa.timestamp("us", "UTC"), [NOON.replace(tzinfo=UTC)]),
        (pa.array([date(1969, 1, 1)], pa.date64()), pa.date32(), [date(1969, 1, 1)]),
        (pa.array([time(1, 2, 3)], pa.time32("s")), pa.time64("us"), [time(1, 2, 3)]),
        (pa.array([b"\0" * 16, None], pa.binary(16)), pa.uuid(), [UUID(int=0), None]),
        (pa.array([b"\0" * 16], pa.binary()), pa.uuid(), [UUID(int=0)]),
        (pa.array([b"\0" * 16], pa.uuid()), pa.binary(16), [b"\0" * 16]),
        (pa.nulls(2), pa.uuid(), [None, None]),
        (pa.nulls(1), pa.map_(pa.string(), pa.int32()), [None]),
        (pa.array([[1], None, []], pa.list_(pa.int32())), pa.large_list(STRICT), [[1], None, []]),
        (pa.array([[["a"]]]), pa.large_list(pa.large_list(pa.large_string())), [[["a"]]]),
        (
            pa.array([["a"]], pa.list_(pa.dictionary(pa.int8(), pa.string()))),
            pa.large_list(pa.large_string()),
            [["a"]],
        ),
        (
            pa.array([{"b": 1, "a": 2}, None], pa.struct([("b", pa.int8()), ("a", pa.int8())])),
            pa.struct([("a", pa.int64()), ("b", pa.int32()), ("new", pa.uuid())]),
            [{"a": 2, "b": 1, "new": None}, None],
        ),
        (
            pa.array([None, {"a": 1}], pa.struct([("a", pa.int8())])),
            pa.struct([pa.field("a", pa.int64(), nullable=False)]),
            [None, {"a": 1}],
        ),
        (
            pa.StructArray.from_arrays(
                [pa.array([None, 1])],
                fields=[pa.field("a", pa.int64(), nullable=False)],
                mask=pa.array([True, False]),  # nobody asks what is inside where nothing is
            ),
            pa.struct([pa.field("a", pa.int64(), nullable=False)]),
            [None, {"a": 1}],
        ),
        (
            pa.array([[("k", 1)], None, []], pa.map_(pa.string(), pa.int32())),
            pa.map_(pa.large_string(), pa.field("value", pa.int64(), nullable=False)),
            [[("k", 1)], None, []],
        ),
    ],
    ids=str,
)
def test_a_type_is_widened_and_its_values_stay(column: pa.Array, kind: pa.DataType, values: list[Any]) -> None:
    assert conformed(column, kind) == values


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        (pa.array([2**63], pa.uint64()), pa.int64()),
        (pa.array([2**31], pa.int64()), pa.int32()),
        (pa.array([-1], pa.int64()), pa.decimal128(9, 2)),  # what 64 bits can hold might not fit
        (pa.array([Decimal("1.234")]), pa.decimal128(9, 2)),
        (pa.array([Decimal("99999999.5")]), pa.decimal128(9, 2)),
        (pa.array([b"ab"], pa.binary()), pa.binary(3)),
        (pa.array([b"ab"], pa.binary()), pa.uuid()),
        (pa.array([1_001], pa.timestamp("ns")), pa.timestamp("us")),
        (pa.array([2**62], pa.timestamp("s")), pa.timestamp("us")),
        (pa.array([3_600_000], pa.date64()), pa.date32()),
        (pa.array([1], pa.time64("ns")), pa.time64("us")),
        (pa.array([[2**40]]), pa.large_list(pa.int32())),
        (pa.array([{"a": 2**40}]), pa.struct([("a", pa.int32())])),
        (pa.array([[("k", 2**40)]], pa.map_(pa.string(), pa.int64())), pa.map_(pa.string(), pa.int32())),
        (pa.array([{"b": 1}]), pa.struct([pa.field("a", pa.int32(), nullable=False), pa.field("b", pa.int64())])),
    ],
    ids=str,
)
def test_a_value_that_does_not_fit_is_refused(column: pa.Array, kind: pa.DataType) -> None:
    with pytest.raises(RowsRejected, match="Column 'c' has a value that its type"):
        conformed(column, kind)


NO_ZONE, ZONE = pa.timestamp("us"), pa.timestamp("us", "UTC")


@pytest.mark.parametrize(
    ("have", "want"),
    [
        (pa.float64(), pa.float32()),
        (pa.int32(), pa.float64()),
        (pa.float64(), pa.int64()),
        (pa.float64(), pa.decimal128(38, 10)),
        (pa.decimal128(9, 0), pa.int64()),
        (pa.bool_(), pa.int32()),
        (pa.int32(), pa.bool_()),
        (pa.int32(), pa.large_string()),
        (pa.string(), pa.int32()),
        (pa.string(), pa.date32()),
        (pa.string(), pa.large_binary()),
        (pa.binary(), pa.large_string()),
        (pa.string(), pa.uuid()),
        (NO_ZONE, ZONE),
        (ZONE, NO_ZONE),
        (pa.date32(), NO_ZONE),
        (NO_ZONE, pa.date32()),
        (pa.int64(), NO_ZONE),
        (pa.duration("us"), pa.int64()),
        (pa.time64("us"), pa.int64()),
        (pa.int32(), pa.list_(pa.int32())),
        (pa.list_(pa.int32()), pa.map_(pa.int32(), pa.int32())),
        (pa.list_(pa.int32(), 2), pa.list_(pa.int32())),
        (pa.dictionary(pa.int8(), pa.string()), pa.int32()),
    ],
    ids=str,
)
@pytest.mark.parametrize("nest", ["itself", "list", "struct", "map", "keys"])
def test_a_type_of_another_kind_is_refused_wherever_it_stands(have: pa.DataType, want: pa.DataType, nest: str) -> None:
    wrap = {
        "itself": lambda kind: kind,
        "list": pa.large_list,
        "struct": lambda kind: pa.struct([("inside", kind)]),
        "map": lambda kind: pa.map_(pa.int32(), kind),
        "keys": lambda kind: pa.map_(kind, pa.int32()),
    }[nest]

    with pytest.raises(RowsRejected, match=r"Column 'c' has values of type .*, which a column of type .* cannot hold"):
        conformed(pa.array([], wrap(have)), wrap(want))


def test_a_struct_with_a_field_that_the_table_lacks_is_refused() -> None:
    with pytest.raises(RowsRejected, match="Column 'c' has values of type struct<a: int64, b: int64>"):
        conformed(pa.array([{"a": 1, "b": 2}]), pa.struct([("a", pa.int64())]))


def test_a_struct_with_a_field_twice_is_refused() -> None:
    twice = pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])

    with pytest.raises(RowsRejected, match="Column 'c' has values of type struct<a: int64, a: int64>"):
        conformed(twice, pa.struct([("a", pa.int64())]))


@pytest.mark.parametrize(
    ("column", "kind", "name"),
    [
        (pa.array([1, None]), pa.int64(), "c"),
        (pa.array([1, None], pa.int32()), pa.int64(), "c"),
        (pa.nulls(1), pa.int64(), "c"),
        (pa.array([[1, None]]), pa.large_list(STRICT), "c.element"),
        (pa.array([[None]], pa.large_list(STRICT)), pa.large_list(STRICT), "c.element"),
        (
            pa.array([[("k", None)]], pa.map_(pa.string(), pa.int64())),
            pa.map_(pa.string(), pa.field("value", pa.int64(), nullable=False)),
            "c.value",
        ),
        (
            pa.array([[{"a": [None]}]]),
            pa.large_list(pa.field("element", pa.struct([("a", pa.large_list(STRICT))]))),
            "c.element.a.element",
        ),
    ],
    ids=str,
)
def test_a_null_where_the_table_requires_a_value_is_refused(column: pa.Array, kind: pa.DataType, name: str) -> None:
    with pytest.raises(RowsRejected, match=f"Column '{name}' is required, and some of the rows have no value in it"):
        conformed(column, kind, nullable=False)


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        (pa.array([[None], [1]], pa.list_(pa.int64())), pa.large_list(STRICT)),
        (
            pa.array([[("k", None)], [("k", 1)]], pa.map_(pa.string(), pa.int64())),
            pa.map_(pa.string(), pa.field("value", pa.int64(), nullable=False)),
        ),
        (
            pa.array([{"a": None}, {"a": 1}], pa.struct([("a", pa.int64())])),
            pa.struct([pa.field("a", pa.int64(), nullable=False)]),
        ),
    ],
    ids=str,
)
def test_a_null_in_rows_that_were_cut_off_is_nobodys(column: pa.Array, kind: pa.DataType) -> None:
    assert conformed(column.slice(1), kind) == column.to_pylist()[1:]


def test_rows_that_have_the_tables_schema_are_still_looked_at_for_nulls() -> None:
    schema = a_table(pa.int64(), nullable=False)

    with pytest.raises(RowsRejected, match="Column 'c' is required"):
        conform(pa.RecordBatch.from_arrays([pa.array([None], pa.int64())], schema=schema), schema)


def test_columns_are_found_by_name_and_absent_ones_are_null() -> None:
    schema = pa.schema([("a", pa.int32()), ("b", pa.large_string()), ("u", pa.uuid()), ("l", pa.list_(pa.int32()))])

    batch = conform(pa.RecordBatch.from_pydict({"b": ["x"], "a": [1]}), schema)

    assert batch.schema.equals(schema)
    assert batch.to_pylist() == [{"a": 1, "b": "x", "u": None, "l": None}]


def test_an_absent_column_that_is_required_is_refused() -> None:
    schema = pa.schema([pa.field("a", pa.int32()), pa.field("b", pa.int32(), nullable=False)])

    with pytest.raises(RowsRejected, match="Column 'b' is required"):
        conform(pa.RecordBatch.from_pydict({"a": [1]}), schema)
    assert conform(pa.RecordBatch.from_pydict({"a": pa.array([], pa.int32())}), schema).num_rows == 0


def test_a_column_that_the_table_lacks_is_refused() -> None:
    with pytest.raises(RowsRejected, match=r"The table has no column 'extra'\. Add it to the table, or leave it out"):
        conform(pa.RecordBatch.from_pydict({"c": [1], "extra": [2]}), a_table(pa.int64()))


def test_a_column_that_comes_twice_is_refused() -> None:
    twice = pa.RecordBatch.from_arrays([pa.array([1]), pa.array([2])], names=["c", "c"])

    with pytest.raises(RowsRejected, match="several columns named 'c'"):
        conform(twice, a_table(pa.int64()))


PLAIN = [
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint32(), pa.uint64(), pa.bool_()),
    *(pa.float32(), pa.float64(), pa.decimal128(5, 2), pa.decimal128(18, 4), pa.decimal128(38, 10)),
    *(pa.string(), pa.large_string(), pa.binary(), pa.large_binary(), pa.binary(2), pa.date32(), pa.date64()),
    *(pa.timestamp(unit, zone) for unit in ("s", "ms", "us", "ns") for zone in (None, "UTC")),
    *(pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")),
]
TEXTS = [None, "", "a", "ab", "ü", "1"]
NUMBERS = [None, 0, 1, -1, 100, 86_399, 2**31 - 1, 2**31, -(2**31) - 1, 2**53 + 1, 2**63 - 1, 2**63, 10**16, 999_000]


def possible(kind: pa.DataType) -> list[Any]:
    """Of some awkward values, those that a type can hold."""
    tried: list[Any] = [b"", b"ab", b"abc", *TEXTS, *NUMBERS, 0.1, 0.5, float("inf"), Decimal("0.1"), True, NOON]
    values = []
    for value in tried:
        try:
            made = pa.array([value], kind)
            made.validate(full=True)
            made.to_pylist()
        except (pa.ArrowInvalid, pa.ArrowTypeError, ValueError, TypeError, OverflowError):
            continue
        values.append(value)
    return values


VALUES = {kind: possible(kind) for kind in PLAIN}
wraps = st.sampled_from(
    [
        (lambda kind: kind, lambda value: value),
        (pa.list_, lambda value: [value, None]),
        (lambda kind: pa.struct([("x", kind)]), lambda value: {"x": value}),
        (lambda kind: pa.map_(pa.string(), kind), lambda value: [("k", value)]),
        (lambda kind: pa.list_(pa.struct([("x", pa.list_(kind))])), lambda value: [{"x": [value]}, None]),
    ]
)


@given(st.data(), st.sampled_from(PLAIN), st.sampled_from(PLAIN), wraps)
def test_what_conforms_is_the_same_value_and_what_does_not_is_refused(
    data: st.DataObject, have: pa.DataType, want: pa.DataType, wrap: Any
) -> None:
    nest_type, nest_value = wrap
    drawn = data.draw(st.lists(st.sampled_from(VALUES[have]), max_size=4))
    column = pa.array([nest_value(value) for value in drawn], nest_type(have))

    try:
        batch = conform(rows(column), a_table(nest_type(want)))
    except RowsRejected as error:
        assert "'c'" in str(error)  # noqa: PT017 - either outcome is fine
        return

    assert batch.column("c").cast(column.type).equals(column)
