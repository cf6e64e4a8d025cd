"""Parts of an object have each record once, wherever they are cut."""

import gzip
import io
from itertools import cycle, pairwise

import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakehead.consume.decode import lines as lines_module
from lakehead.consume.decode.decode import count_rows, split_object
from lakehead.consume.decode.rows import FormatName, ObjectFormat, ObjectPart, ObjectRefused
from tests.support.effort import effort
from tests.unit.consume.reading import Rows, csv, ndjson, read

COLUMNS = [("a", pa.int64())]

lines = st.sampled_from(['{"a":1}', '{"a":22}', '{"a":333}\r', "", "  ", "\r", '{"a":4,"b":"ü"}'])
objects = st.builds(
    lambda mark, found, end: (mark + "\n".join(found) + end).encode(),
    st.sampled_from(["", "\ufeff"]),
    st.lists(lines, max_size=12),
    st.sampled_from(["", "\n", "\n\n"]),
)


@pytest.mark.slow
@settings(max_examples=effort(100, soak=3_000), deadline=None)
@given(objects, st.integers(1, 40))
def test_parts_of_plain_ndjson_have_every_record_once_and_in_order(body: bytes, target: int) -> None:
    whole, _ = read(body, COLUMNS, ndjson())
    parts = split_object(pa.BufferReader(body), ndjson(), len(body), target)
    found: Rows = []
    for part in parts:
        rows, _ = read(body, COLUMNS, ndjson(), first_row=len(found), part=part)
        assert count_rows(pa.BufferReader(body), ndjson(), part) == len(rows)
        found += rows

    assert found == whole
    assert count_rows(pa.BufferReader(body), ndjson()) == len(whole)
    assert parts[0].start == 0
    assert [part.start for part in parts[1:]] == [part.end for part in parts[:-1]]
    assert parts[-1].end == len(body)


ODD_LINES = [
    b'{"a":9223372036854775808}',
    b'{"a":1e400}',
    b'{"a":NaN,"A":-0.0}',
    b'{"a":1,"a":2}',
    b'{"":1,"_row":7,"x.y":"\\u0000"}',
    b"[1]",
    b"null",
    b"\xff\xfe",
    b'\xef\xbb\xbf{"a":1}',
    b'{"a":1}\r{"a":2}',
    b'{"a":"\\ud800"}',
    b'{"b":' + b"[" * 120 + b"]" * 120 + b"}",
    b'{"b":"' + b"x" * 50 + b'"}',
    b"\x00",
    b"\x0b",
]


@settings(max_examples=effort(100, soak=3_000), deadline=None)
@given(
    st.lists(st.sampled_from([*ODD_LINES, b"", b" ", b"\r", b'{"a":1}\r', b'{"a":2}']), max_size=12),
    st.sampled_from([b"", b"\n"]),
    st.integers(1, 100),
    st.integers(1, 60),
)
def test_parts_of_odd_lines_have_the_rows_and_numbers_of_the_whole_wherever_reads_end(
    found: list[bytes], end: bytes, target: int, read_bytes: int
) -> None:
    body, form = b"\n".join(found) + end, ndjson(rescue_bad_rows=True)
    whole, _ = read(body, COLUMNS, form)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines_module, "_READ", read_bytes)
        rows: Rows = []
        for part in split_object(pa.BufferReader(body), form, len(body), target):
            rows += read(body, COLUMNS, form, first_row=len(rows), part=part)[0]

    assert repr(rows) == repr(whole)


@settings(max_examples=effort(100, soak=3_000), deadline=None)
@given(objects, st.lists(st.integers(1, 40), min_size=1, max_size=8))
def test_an_object_that_is_split_anew_after_each_part_has_every_record_once(body: bytes, targets: list[int]) -> None:
    """So does a pipeline that lands a part at a time, and whose limit is another one each time."""
    whole, _ = read(body, COLUMNS, ndjson())
    found: Rows = []
    start = 0
    for target in cycle(targets):
        part = split_object(pa.BufferReader(body), ndjson(), len(body), target, start=start)[0]
        found += read(body, COLUMNS, ndjson(), first_row=len(found), part=part)[0]
        start = part.stop
        if start == len(body):
            break

    assert found == whole


def test_every_cut_of_an_object_in_two_has_every_record_once() -> None:
    body = b'{"a":1}\n\n{"a":2}\r\n{"a":3}'
    for cut in range(len(body) + 1):
        parts = [ObjectPart(start=0, end=cut), ObjectPart(start=cut, end=len(body))] if cut else [None]
        found = [row["a"] for part in parts for row in read(body, COLUMNS, ndjson(), part=part)[0]]

        assert found == [1, 2, 3], cut


def test_parts_larger_than_what_is_read_at_a_time_are_whole() -> None:
    body = b"".join(b'{"a":%d,"b":"%s"}\n' % (number, b"x" * 700_000) for number in range(12))
    parts = split_object(pa.BufferReader(body), ndjson(), len(body), 3_000_000)
    found = [row["a"] for part in parts for row in read(body, COLUMNS, ndjson(), part=part)[0]]

    assert len(parts) == 3
    assert found == list(range(12))


def test_what_cannot_be_split_is_not_read_from_its_middle() -> None:
    packed = gzip.compress(b'{"a":1}\n')
    for body, form in ((b"a\n1\n2\n", csv()), (packed, ndjson()), (b"", ObjectFormat(name=FormatName.KEY_VALUE))):
        with pytest.raises(ObjectRefused, match="Its first 4 bytes have landed"):
            split_object(pa.BufferReader(body), form, len(body), 1, start=4)


def test_what_cannot_be_split_is_one_part() -> None:
    plain, packed = b"a\n1\n2\n", gzip.compress(b'{"a":1}\n' * 1000)

    assert split_object(pa.BufferReader(plain), csv(), len(plain), 1) == [ObjectPart(start=0, end=len(plain))]
    assert split_object(pa.BufferReader(packed), ndjson(), len(packed), 1) == [ObjectPart(start=0, end=len(packed))]
    assert count_rows(pa.BufferReader(packed), ndjson(), ObjectPart(start=0, end=len(packed))) == 1000
    assert count_rows(pa.BufferReader(plain), csv()) == 2


@pytest.mark.parametrize(("target", "parts"), [(1, 5), (10**9, 1)])
def test_parquet_is_split_by_row_groups_and_knows_their_rows(target: int, parts: int) -> None:
    buffer = io.BytesIO()
    pyarrow.parquet.write_table(pa.table({"a": range(50)}), buffer, row_group_size=10)
    body, form = buffer.getvalue(), ObjectFormat(name=FormatName.PARQUET)
    found: Rows = []
    split = split_object(pa.BufferReader(body), form, len(body), target)
    for part in split:
        assert part.rows == count_rows(pa.BufferReader(body), form, ObjectPart(start=part.start, end=part.end))
        rows, _ = read(body, COLUMNS, form, first_row=len(found), part=part)
        assert part.rows == len(rows)
        found += rows

    assert len(split) == parts
    assert [row["a"] for row in found] == list(range(50))
    assert split[-1].stop == len(body)
    for before, part in pairwise(split):
        later = split_object(pa.BufferReader(body), form, len(body), target, start=before.stop)
        assert later[0] == part
    assert split_object(pa.BufferReader(body), form, len(body), 10**9, start=split[0].stop)[0].end == 5


@pytest.mark.parametrize("start", [5, 10**6])
def test_parquet_is_not_read_from_the_middle_of_a_row_group_that_landed_in_another_format(start: int) -> None:
    buffer = io.BytesIO()
    pyarrow.parquet.write_table(pa.table({"a": range(50)}), buffer, row_group_size=10)
    body, form = buffer.getvalue(), ObjectFormat(name=FormatName.PARQUET)

    with pytest.raises(ObjectRefused, match="Set the format that the table had then"):
        split_object(pa.BufferReader(body), form, len(body), 1, start=start)
