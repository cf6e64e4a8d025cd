"""Hashes of keys: equal for equal keys, wherever they stand, and spread."""

from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lakehead.lake.key_hashes import hashes_of
from lakehead.lake.merge_keys import comparable

KEYS: list[tuple[pa.DataType, list[Any]]] = [
    (pa.int64(), [0, 1, -1, 2**62, None, 7]),
    (pa.bool_(), [True, False, None]),
    (pa.string(), ["", "a", "b", "ab", "ba", None, "ä" * 50, "\x00", "\x00\x00"]),
    (pa.binary(3), [b"abc", b"\x00\x00\x00", None]),
    (pa.decimal128(38, 2), [Decimal("1.50"), Decimal("-1.50"), Decimal(10**30), None]),
]


@pytest.mark.parametrize(("kind", "values"), KEYS, ids=str)
def test_keys_have_the_same_hash_if_they_are_equal_and_another_if_not(kind: pa.DataType, values: list[Any]) -> None:
    column = comparable(pa.array([*values, *values[::-1]], kind), kind)

    found = hashes_of([column])

    assert list(found[: len(values)]) == list(found[len(values) :][::-1])
    assert len(set(found.tolist())) == len(values)
    assert hashes_of([column.slice(1)]).tolist() == found[1:].tolist(), "wherever they are in memory"


def test_columns_of_a_key_do_not_change_places() -> None:
    one, two = pa.array([1, 2]), pa.array([2, 1])

    assert hashes_of([one, two])[0] != hashes_of([one, two])[1]


def test_the_hash_is_the_same_in_every_process() -> None:
    assert hashes_of([pa.array([1]), pa.array(["a"], pa.large_string())]).tolist() == [KNOWN]


@pytest.mark.parametrize(
    "values", [pa.array(range(7_000)), pa.array([f"k{n}" for n in range(7_000)], pa.large_string())]
)
def test_keys_are_spread_evenly(values: pa.Array) -> None:
    counts = np.bincount((hashes_of([values]) % np.uint64(7)).astype(np.int64))

    assert counts.min() > 800


def test_of_no_keys_there_is_no_hash() -> None:
    assert len(hashes_of([pa.array([], pa.large_string())])) == 0


KNOWN = 3153179248614176230
