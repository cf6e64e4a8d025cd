"""The newest rows of changes, in memory or in pieces on disk: the same rows, and each key in one chunk."""

from collections.abc import Sequence
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from lakehead.lake.merge_changes import newest_changes
from lakehead.lake.merge_plan import NotByLane
from tests.unit.lake.test_merge_keys import KINDS, columns_of, rank, rows_of


def batches(
    random: Random, keys: Sequence[Any], order: Sequence[Any], kinds: tuple[list[pa.DataType], list[pa.DataType]]
) -> list[pa.RecordBatch]:
    columns = [*columns_of(keys, kinds[0]), *columns_of(order, kinds[1]), pa.array(range(len(keys)), pa.int64())]
    names = [*(f"k{n}" for n in range(len(kinds[0]))), *(f"o{n}" for n in range(len(kinds[1]))), "row"]
    whole, made, start = pa.RecordBatch.from_arrays(columns, names=names), [], 0
    while start < len(keys):
        size = random.choice((1, 7, 60))
        made.append(whole.slice(start, size))
        start += size
    return made


@pytest.mark.parametrize("seed", range(30))
def test_the_newest_rows_are_the_same_in_pieces_of_any_size(seed: int) -> None:
    random = Random(seed)
    key_kinds = [random.choice(KINDS) for _ in range(random.choice((1, 2, 3)))]
    keys = rows_of(random, key_kinds, 500)
    order = [(random.choice((None, *range(50))), number) for number in range(len(keys))]
    random.shuffle(order)
    best: dict[Any, int] = {}
    for number, key in enumerate(keys):
        if key not in best or rank(order[number]) > rank(order[best[key]]):
            best[key] = number
    given = batches(random, keys, order, (key_kinds, [pa.int64(), pa.int64()]))
    names = [f"k{n}" for n in range(len(key_kinds))]

    for chunk_rows in (10**6, 100, 9):
        chunks = list(newest_changes(iter(given), names, ["o0", "o1"], chunk_rows=chunk_rows))

        rows = [row for chunk in chunks for row in chunk.column("row").to_pylist()]
        assert sorted(rows) == sorted(best.values())
        assert chunk_rows > 100 or len(chunks) == 1 or max(map(len, chunks)) <= 2 * chunk_rows


@pytest.mark.parametrize("chunk_rows", [100, 3])
def test_of_equal_rows_none_is_chosen(chunk_rows: int) -> None:
    rows = [(1,), (2,), (3,), (1,), (4,), (5,), (6,)]
    given = batches(Random(0), rows, [(1,)] * len(rows), ([pa.int64()], [pa.int64()]))

    with pytest.raises(NotByLane, match="equal in every compared column"):
        list(newest_changes(given, ["k0"], ["o0"], chunk_rows=chunk_rows))


def test_equal_rows_that_a_later_piece_overtakes_do_no_harm() -> None:
    rows = [(1,), (1,), (2,), (3,), (1,), (4,)]
    given = batches(Random(0), rows, [(1,), (1,), (1,), (1,), (2,), (1,)], ([pa.int64()], [pa.int64()]))

    [*chunks] = newest_changes(given, ["k0"], ["o0"], chunk_rows=2)

    assert sorted(row for chunk in chunks for row in chunk.column("row").to_pylist()) == [2, 3, 4, 5]


def test_no_rows_are_no_chunks() -> None:
    assert list(newest_changes([], ["k"], ["o"])) == []
