"""Keys and orders in Arrow against the same in plain Python."""

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from random import Random
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest

from lakehead.lake.merge_keys import NOT_FOUND, KeyIndex, comparable, counts_over, is_comparable, newest_rows

START = datetime(2024, 2, 29, 23, 59, 59, 999_999, tzinfo=UTC)
VALUES: dict[pa.DataType, list[Any]] = {
    pa.int32(): [-(2**31), -1, 0, 1, 2**31 - 1],
    pa.int64(): [-(2**63), -1, 0, 1, 2**63 - 1],
    pa.string(): ["", "a", "A", "a ", "ä", "\U0001f600", "z" * 40],
    pa.binary(): [b"", b"\x00", b"\x7f", b"\x80", b"\xff"],
    pa.bool_(): [False, True],
    pa.date32(): [date(1969, 12, 31), date(1970, 1, 1), date(2024, 2, 29)],
    pa.timestamp("us"): [START.replace(tzinfo=None) + timedelta(microseconds=n) for n in (-1, 0, 1)],
    pa.timestamp("us", "UTC"): [START + timedelta(microseconds=n) for n in (-1, 0, 1)],
    pa.decimal128(38, 3): [Decimal("-0.001"), Decimal("0.000"), Decimal(10**34), Decimal("1.000")],
    pa.uuid(): [UUID(int=n).bytes for n in (0, 2**63, 2**127, 2**128 - 1)],
}
KINDS = list(VALUES)


def rows_of(random: Random, kinds: Sequence[pa.DataType], count: int, nulls: float = 0.2) -> list[tuple[Any, ...]]:
    def value(kind: pa.DataType) -> Any:
        return None if random.random() < nulls else random.choice(VALUES[kind])

    return [tuple(value(kind) for kind in kinds) for _ in range(count)]


def columns_of(rows: Sequence[tuple[Any, ...]], kinds: Sequence[pa.DataType]) -> list[pa.Array]:
    return [comparable(_array([row[n] for row in rows], kind), kind) for n, kind in enumerate(kinds)]


def _array(values: list[Any], kind: pa.DataType) -> pa.Array:
    if isinstance(kind, pa.BaseExtensionType):
        return kind.wrap_array(pa.array(values, kind.storage_type))
    return pa.array(values, kind)


def rank(row: tuple[Any, ...]) -> list[tuple[bool, Any]]:
    return [(value is not None, _bytes(value) if value is not None else 0) for value in row]


def _bytes(value: Any) -> Any:
    return value.encode() if isinstance(value, str) else value


@pytest.mark.parametrize("seed", range(40))
def test_keys_are_found_as_a_dictionary_finds_them(seed: int) -> None:
    random = Random(seed)
    kinds = random.choices(KINDS, k=random.choice((1, 1, 2, 3, 4)))
    known = list(dict.fromkeys(rows_of(random, kinds, random.choice((0, 1, 10, 200)))))
    asked = rows_of(random, kinds, 300) + known

    found = KeyIndex.of(columns_of(known, kinds)).find(columns_of(asked, kinds))

    places = {key: number for number, key in enumerate(known)}
    assert found.tolist() == [places.get(key, NOT_FOUND) for key in asked]


@pytest.mark.parametrize("seed", range(40))
def test_the_newest_row_of_each_key_is_the_one_that_python_ranks_first(seed: int) -> None:
    random = Random(seed)
    keys, order = random.choices(KINDS, k=random.choice((1, 2))), random.choices(KINDS, k=random.choice((1, 2, 3)))
    rows = list(zip(rows_of(random, keys, 200), rows_of(random, order, 200), strict=True))
    best: dict[Any, list[int]] = {}
    for number, (key, ordered) in enumerate(rows):
        there = best.get(key)
        if there is None or rank(ordered) > rank(rows[there[0]][1]):
            best[key] = [number]
        elif rank(ordered) == rank(rows[there[0]][1]):
            there.append(number)

    newest = newest_rows(columns_of([key for key, _ in rows], keys), columns_of([by for _, by in rows], order))

    assert newest.is_tied == any(len(each) > 1 for each in best.values())
    owners = {number: key for key, numbers in best.items() for number in numbers}
    assert sorted(map(repr, (owners[number] for number in newest.rows.tolist()))) == sorted(map(repr, best))
    assert newest.rows.tolist() == sorted(newest.rows.tolist())


def test_no_rows_have_no_newest_ones() -> None:
    empty = pa.array([], pa.int64())

    assert newest_rows([empty], [empty]).rows.tolist() == []


@pytest.mark.parametrize("seed", range(20))
def test_rows_are_compared_as_python_ranks_them(seed: int) -> None:
    random = Random(seed)
    kinds = random.choices(KINDS, k=random.choice((1, 2, 3)))
    one, two = rows_of(random, kinds, 200), rows_of(random, kinds, 200)

    found = counts_over(columns_of(one, kinds), columns_of(two, kinds))

    assert found.tolist() == [rank(a) > rank(b) for a, b in zip(one, two, strict=True)]


def test_composite_keys_of_many_values_do_not_overflow() -> None:
    count, columns = 5_000, 8
    numbers = np.random.default_rng(1).permuted(np.tile(np.arange(count), (columns, 1)), axis=1)
    known = [pa.array(column) for column in numbers]

    index = KeyIndex.of(known)

    assert index.find(known).tolist() == list(range(count))
    assert (index.find([*known[:-1], pa.array((numbers[-1] + 1) % count)]) == NOT_FOUND).all()


def test_a_narrower_type_is_compared_as_the_tables() -> None:
    assert comparable(pa.array([1], pa.int32()), pa.int64()).equals(pa.array([1], pa.int64()))
    wide = comparable(pa.array([Decimal("1.50")], pa.decimal128(9, 2)), pa.decimal128(18, 2))
    assert wide.type == pa.decimal128(18, 2)


@pytest.mark.parametrize("kind", [pa.float64(), pa.float32(), pa.list_(pa.int64()), pa.struct([("a", pa.int64())])])
def test_floats_and_nested_values_are_not_compared(kind: pa.DataType) -> None:
    assert not is_comparable(kind)
