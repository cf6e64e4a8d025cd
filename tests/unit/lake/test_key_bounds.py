"""What bounds leave out: never a file or row group that has a key that is looked for."""

from datetime import UTC, date, datetime
from decimal import Context, Decimal
from io import BytesIO
from random import Random
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.conversions import to_bytes
from pyiceberg.types import (
    DateType,
    DecimalType,
    IntegerType,
    LongType,
    PrimitiveType,
    StringType,
    TimestampType,
    UUIDType,
)

from lakehead.lake.key_bounds import KeyRange, row_groups, stored_bounds
from lakehead.lake.merge_keys import comparable

DAY = date(2024, 1, 10)
MOMENT = datetime(2024, 1, 10, 12, tzinfo=UTC)
FIRST, SECOND = (datetime(1970, 1, 1, 0, 0, n, tzinfo=UTC).replace(tzinfo=None) for n in (1, 2))
CASES: list[tuple[PrimitiveType, pa.DataType, Any, Any, Any, Any]] = [
    # type when it was written, the table's type now, lower, upper, a key inside, a key outside
    (IntegerType(), pa.int32(), -5, 5, 5, 6),
    (IntegerType(), pa.int64(), -5, 5, -5, -6),
    (LongType(), pa.int64(), -(2**40), 2**40, 0, 2**41),
    (DateType(), pa.date32(), 10, 20, date(1970, 1, 11), date(1970, 1, 22)),
    (TimestampType(), pa.timestamp("us"), 0, 10**6, FIRST, SECOND),
    (DecimalType(9, 2), pa.decimal128(18, 2), Decimal("-1.00"), Decimal("2.00"), Decimal("2.00"), Decimal("2.01")),
    (StringType(), pa.string(), "b", "d", "c", "e"),
]


def may_have(kind: pa.DataType, key: Any, lower: bytes | None, upper: bytes | None) -> bool:
    wanted = KeyRange.of([comparable(pa.array([key], kind), kind)])
    return wanted.may_be_in([stored_bounds(kind, lower, upper)])


@pytest.mark.parametrize(("was", "kind", "lower", "upper", "inside", "outside"), CASES)
def test_stored_bounds_leave_out_only_what_is_outside(
    was: PrimitiveType, kind: pa.DataType, lower: Any, upper: Any, inside: Any, outside: Any
) -> None:
    low, high = to_bytes(was, lower), to_bytes(was, upper)

    assert may_have(kind, inside, low, high)
    assert not may_have(kind, outside, low, high)
    assert may_have(kind, outside, None, high)
    assert may_have(kind, outside, low, None)


def test_text_that_may_be_cut_off_leaves_nothing_out() -> None:
    assert may_have(pa.string(), "zz", b"a" * 16, b"b" * 16)
    assert may_have(pa.string(), "zz", b"a", "ä".encode() * 8)
    assert not may_have(pa.string(), "zz", b"a" * 15, b"b" * 15)


def uuids(*values: int) -> pa.Array:
    stored = [UUID(int=value).bytes for value in values]
    return comparable(pa.uuid().wrap_array(pa.array(stored, pa.binary(16))), pa.uuid())


@pytest.mark.parametrize("seed", range(50))
def test_bounds_of_uuids_hold_whether_java_orders_them_as_signed_or_unsigned_numbers(seed: int) -> None:
    random = Random(seed)
    halves = [0, 1, 2**63 - 1, 2**63, 2**64 - 1]
    there = [random.choice(halves) << 64 | random.choice(halves) for _ in range(4)]

    def signed(value: int) -> tuple[int, int]:
        low, high = value & (2**64 - 1), value >> 64
        return high - 2**64 * (high >> 63), low - 2**64 * (low >> 63)

    for order in (signed, lambda value: value):
        lower, upper = (to_bytes(UUIDType(), UUID(int=edge(there, key=order))) for edge in (min, max))
        for key in there:
            assert KeyRange.of([uuids(key)]).may_be_in([stored_bounds(pa.uuid(), lower, upper)])


def test_bounds_of_uuids_leave_out_what_is_outside() -> None:
    lower, upper = (to_bytes(UUIDType(), UUID(int=value << 120)) for value in (0x10, 0x20))

    assert not KeyRange.of([uuids(0x30 << 120)]).may_be_in([stored_bounds(pa.uuid(), lower, upper)])


def test_a_key_that_may_be_null_leaves_nothing_out() -> None:
    wanted = KeyRange.of([pa.array([100, None], pa.int64())])

    assert wanted.may_be_in([(1, 2)])


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.int32(), [3, 1, 2, 9, 8, 7]),
        (pa.date32(), [DAY, date(2024, 1, 9), date(2024, 1, 1), date(2025, 1, 1), date(2026, 1, 1), date(2027, 1, 1)]),
        (pa.timestamp("us", "UTC"), [MOMENT.replace(year=year) for year in (1, 2000, 2001, 2020, 2030, 2040)]),
        (pa.decimal128(20, 2), [Decimal(number) for number in (1, 2, 3, 10, 11, 12)]),
        (pa.string(), ["a", "b", "c", "x", "y", "z"]),
        (pa.string(), ["a" * 20, "b", "c", "x", "y", "z"]),
        (pa.bool_(), [True, True, True, False, False, False]),
        (pa.binary(16), [UUID(int=number).bytes for number in (1, 2, 3, 10, 11, 12)]),
    ],
)
@pytest.mark.parametrize("statistics", ["with", "without"])
def test_row_groups_with_a_key_are_read(kind: pa.DataType, values: list[Any], statistics: str) -> None:
    written, has = BytesIO(), statistics == "with"
    pq.write_table(pa.table({"k": pa.array(values, kind)}), written, row_group_size=3, write_statistics=has)
    file = pq.ParquetFile(pa.BufferReader(written.getvalue()))

    for number, value in enumerate(values):
        wanted = KeyRange.of([comparable(pa.array([value], kind), kind)])
        assert number // 3 in row_groups(file, [(0, kind)], wanted)
    assert row_groups(file, [(-1, kind)], wanted) == [0, 1]
    if not has:
        assert row_groups(file, [(0, kind)], wanted) == [0, 1]
    elif kind == pa.int32():
        assert row_groups(file, [(0, pa.int64())], wanted) == [1]


@pytest.mark.parametrize("scale", [0, 10, 38])
@pytest.mark.parametrize("sign", [1, -1])
def test_bounds_of_decimals_with_more_digits_than_python_computes_with_are_exact(scale: int, sign: int) -> None:
    kind = pa.decimal128(38, scale)
    key = Decimal((int(sign < 0), (1, 2, 3, 4, 5, 6, 7, 8, 9) * 4 + (1, 2), -scale))
    bound = to_bytes(DecimalType(38, scale), key)

    assert may_have(kind, key, bound, bound)
    assert not may_have(kind, key.next_plus(Context(prec=38)), bound, bound)
    assert not may_have(kind, key.next_minus(Context(prec=38)), bound, bound)


def test_bounds_of_a_date_that_is_a_timestamp_now_leave_nothing_out() -> None:
    assert may_have(pa.timestamp("us"), SECOND, to_bytes(DateType(), 1), to_bytes(DateType(), 2))


@pytest.mark.parametrize("kind", [pa.date32(), pa.timestamp("us"), pa.timestamp("us", "UTC")])
def test_row_groups_with_times_that_python_does_not_know_are_read(kind: pa.DataType) -> None:
    whole = pa.int32() if kind == pa.date32() else pa.int64()
    days = 10_000_000 if kind == pa.date32() else 10_000_000 * 86_400_000_000
    keys = pa.array([days, days + 1], whole).cast(kind)
    written = BytesIO()
    pq.write_table(pa.table({"k": keys}), written, row_group_size=1)
    file = pq.ParquetFile(pa.BufferReader(written.getvalue()))

    assert 1 in row_groups(file, [(0, kind)], KeyRange.of([comparable(keys[1:], kind)]))


def test_text_is_ordered_by_code_points_as_its_bytes_are() -> None:
    last, astral = "\uffff", "\U0001f600"

    assert may_have(pa.string(), astral, last.encode(), astral.encode())
    assert not may_have(pa.string(), "\U0001f601", last.encode(), astral.encode())
    assert may_have(pa.string(), "z", b"", b"a"), "an empty bound may be a missing one"
