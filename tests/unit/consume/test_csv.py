"""What CSV does with odd input, and that both ways to read it agree."""

import csv as python_csv
import gzip
import io
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lakehead.consume.decode import csv_rows
from lakehead.consume.decode.csv_records import CsvDialect, Records, exact_records, quick_records
from lakehead.consume.decode.decode import infer_columns
from lakehead.consume.decode.rows import ObjectRefused, SchemaMode
from lakehead.errors import Misconfigured
from tests.support.effort import effort
from tests.unit.consume.reading import column, csv, read

AB = [("a", pa.int64()), ("b", pa.string())]
DIALECT = CsvDialect.of(csv())


def values(body: bytes, **settings: Any) -> list[tuple[Any, Any]]:
    return [(row["a"], row["b"]) for row in read(body, AB, csv(**settings))[0]]


@pytest.mark.parametrize(
    "body",
    [
        b"a,b\n1,x\n2,y\n",
        b"a,b\n1,x\n2,y",
        b"a,b\r\n1,x\r\n2,y\r\n",
        b"\xef\xbb\xbfa,b\n1,x\n2,y\n",
        b"\n\na,b\n\n1,x\n  \t\n2,y\n\r\n\n",
        b'"b","a"\n"x","1"\n"y","2"\n',
        gzip.compress(b"a,b\n1,x\n2,y\n"),
    ],
    ids=["plain", "no last newline", "CRLF", "BOM", "blank lines", "quoted, other order", "gzip"],
)
def test_records_are_matched_to_columns_by_the_header(body: bytes) -> None:
    assert values(body) == [(1, "x"), (2, "y")]


@pytest.mark.parametrize("body", [b"", b"\n", b"  \n\t\n", b"a,b", b"a,b\n", b"\xef\xbb\xbf"])
def test_an_object_without_records_gives_no_batch(body: bytes) -> None:
    assert values(body) == []


def test_newlines_delimiters_and_quotes_inside_quotes_are_part_of_the_value() -> None:
    body = b'a,b\n1,"x\ny"\n2,"x\r\n,""y"""\n3,"""\n"\n4,z\n'

    assert values(body) == [(1, "x\ny"), (2, 'x\r\n,"y"'), (3, '"\n'), (4, "z")]


def test_null_text_is_null_unless_it_is_quoted() -> None:
    assert values(b'a,b\n1,\n2,""\n') == [(1, None), (2, "")]
    assert values(b'a,b\n1,NULL\n2,"NULL"\n3,\n', null_text="NULL") == [(1, None), (2, "NULL"), (3, "")]


def test_without_a_header_columns_are_the_tables_in_order() -> None:
    assert values(b"1,x\n2,y\n", header=False) == [(1, "x"), (2, "y")]
    assert infer_columns(pa.BufferReader(b"1,x\n"), csv(header=False)).names == ["column_1", "column_2"]


def test_without_a_header_a_table_without_columns_gets_those_of_the_object_in_their_order() -> None:
    body, form = b"a,b,c,d,e,f,g,h,i,j,k\n", csv(header=False)

    rows, report = read(body, [], form)
    names = sorted(report.new_columns)
    again, _ = read(body, [(name, pa.string()) for name in names], form)

    assert list(json.loads(rows[0]["_rescued"]).values()) == list("abcdefghijk")
    assert [again[0][name] for name in names] == list("abcdefghijk")
    assert infer_columns(pa.BufferReader(body), form).names == names


def test_a_column_may_be_called_as_null_is_written() -> None:
    assert read(b"a,NA\n1,NA\n", [("a", pa.string()), ("NA", pa.string())], csv(null_text="NA"))[0] == [
        {"a": "1", "NA": None, "_row": 0, "_rescued": None}
    ]


def test_other_delimiters_and_quotes_and_none() -> None:
    assert values(b"a;b\n1;'x;''y'\n", delimiter=";", quote="'") == [(1, "x;'y")]
    assert values(b'a\tb\n1\t"x\n', delimiter="\t", quote="") == [(1, '"x')]
    for settings_ in [{"delimiter": ";;"}, {"delimiter": "ü"}, {"quote": ","}, {"delimiter": "\n"}]:
        with pytest.raises(Misconfigured):
            values(b"a,b\n", **settings_)


BAD = [
    (b"1", "the record has 1 fields and not 2"),
    (b"1,x,y", "the record has 3 fields and not 2"),
    (b'1,x"y', "a quote inside a field without quotes (column 4)"),
    (b'1,"x"y', "text after a closing quote (column 6)"),
    (b'1, "x"', "a quote inside a field without quotes (column 4)"),
    (b'"1"\r,x', "text after a closing quote (column 4)"),
    (b"1,\xff", "the text is not UTF-8"),
]


@pytest.mark.parametrize(("record", "reason"), BAD, ids=[reason for _, reason in BAD])
def test_a_record_that_cannot_be_taken_apart_refuses_its_object_or_is_rescued_whole(record: bytes, reason: str) -> None:
    body = b'a,b\n1,"x\ny"\n' + record + b"\n2,z\n"

    with pytest.raises(ObjectRefused) as refused:
        values(body)
    assert str(refused.value) == f"Line 4: {reason}." or str(refused.value) == f"Line 4: there is {reason}."
    rows, _ = read(body, AB, csv(rescue_bad_rows=True))
    assert [row["a"] for row in rows] == [1, None, 2]
    assert list(json.loads(rows[1]["_rescued"])) == ["_bad_row_base64" if b"\xff" in record else "_bad_row"]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"a,b,a\n", "Line 1: the header has the name 'a' twice"),
        (b"a,,b\n", "Line 1: the header has no name for column 2"),
        (b'\na,""\n', "Line 2: the header has no name for column 2"),
        (b'a,b"c\n', "Line 1: there is a quote inside a field"),
        (b'a,b\n1,x\n2,"y\n3,z\n', "Line 3: A quoted field begins in this record and never ends"),
    ],
)
def test_what_makes_every_record_doubtful_refuses_the_object_always(body: bytes, reason: str) -> None:
    with pytest.raises(ObjectRefused) as refused:
        values(body, rescue_bad_rows=True)
    assert reason in str(refused.value)


def test_unknown_columns_are_text_and_columns_that_lack_are_null() -> None:
    rows, report = read(b"x,a,_row,y\n007,1,5,\n", AB, csv())

    assert (rows[0]["a"], rows[0]["b"], rows[0]["_row"]) == (1, None, 0)
    assert json.loads(rows[0]["_rescued"]) == {"x": "007", "_row": "5"}
    assert report.new_columns == {"x": pa.string()}
    with pytest.raises(ObjectRefused, match=r"^Line 2: the table has no column 'x'"):
        read(b"x,a\n007,1\n", AB, csv(mode=SchemaMode.FAIL))


@pytest.mark.parametrize(
    ("text", "kind", "stored"),
    [
        ("+7", pa.int64(), 7),
        ("007", pa.int64(), 7),
        ("1.0", pa.int64(), None),
        (" 1", pa.int64(), None),
        ("1_0", pa.int64(), None),
        ("9223372036854775808", pa.int64(), None),
        ("1.5", pa.float64(), 1.5),
        ("9007199254740993", pa.float64(), None),
        ("1e400", pa.float64(), None),
        ("Infinity", pa.float64(), float("inf")),
        ("inf", pa.float64(), None),
        ("0x1p3", pa.float64(), None),
        ("1.50", pa.decimal128(5, 2), Decimal("1.50")),
        ("1e2", pa.decimal128(5, 2), Decimal("100.00")),
        ("1000", pa.decimal128(5, 2), None),
        ("1.005", pa.decimal128(5, 2), None),
        ("TRUE", pa.bool_(), True),
        ("1", pa.bool_(), None),
        ('"[1,2]"', pa.list_(pa.int64()), [1, 2]),
        ("[", pa.list_(pa.int64()), None),
        ('""', pa.int64(), None),
        ("2024-02-30", pa.date32(), None),
    ],
)
def test_text_is_parsed_exactly_or_rescued(text: str, kind: pa.DataType, stored: Any) -> None:
    rescued = None if stored is not None else json.dumps({"a": text.strip('"')}, separators=(",", ":"))

    assert column(f"a\n{text}\n".encode(), kind, csv()) == [(stored, rescued)]
    if stored is None:
        with pytest.raises(ObjectRefused, match=r"^Line 3: column 'a' of type .* cannot hold"):
            read(f"a\n\n{text}\n".encode(), [("a", kind)], csv(mode=SchemaMode.FAIL))


def test_a_record_over_the_limit_is_refused() -> None:
    body = b"a,b\n1," + b"x" * 2**21 + b"\n2,y\n"

    assert [len(text) for _, text in values(body)] == [2**21, 1]
    with pytest.raises(ObjectRefused, match=r"^Line 2.* max_row_bytes"):
        values(body, max_row_bytes=2**20)
    with pytest.raises(ObjectRefused, match=r"Is a quote missing"):
        values(b'a,b\n1,"' + b"x,y\n" * 2**22, max_row_bytes=2**20)


characters = st.text(st.sampled_from(list('ab1,"\r\n \t;ü')), max_size=40)


def taken_apart(text: bytes, width: int, *, size: int) -> Any:
    """All records, read with blocks of a size, each by Arrow if it can."""
    found: list[Any] = []
    at, end = 0, size
    while at < len(text):
        final = end >= len(text)
        part = text[at:end]
        records = quick_records(part, width, DIALECT, 3)
        try:
            records = records or exact_records(part, width, DIALECT, 3, final=final)
        except ObjectRefused as error:
            return [*found, str(error)]
        columns = [column.to_pylist() for column in records.columns]
        rows = [tuple(values[row] for values in columns) for row in range(records.rows)]
        found += [records.bad.get(row, value) for row, value in enumerate(rows)]
        at += records.consumed
        end = max(end, at) + (size if not records.consumed else 0)
    return found


@pytest.mark.slow
@settings(max_examples=effort(300, soak=3_000), deadline=None)
@given(characters.map(str.encode), st.integers(1, 3), st.integers(1, 50))
@example(b'a"b,c"d\n', 2, 50)
@example(b'"ab"c,d\n', 2, 50)
@example(b'"a\nb",c\n\xef\xbb\xbfx,y\n', 2, 5)
def test_both_ways_to_read_csv_give_the_same_records_wherever_blocks_are_cut(
    text: bytes, width: int, size: int
) -> None:
    exact: list[Any] = []
    at = 0
    while at < len(text):
        try:
            records = exact_records(text[at:], width, DIALECT, 1, final=True)
        except ObjectRefused as error:
            exact.append(str(error))
            break
        columns = [column.to_pylist() for column in records.columns]
        exact += [records.bad.get(row, tuple(values[row] for values in columns)) for row in range(records.rows)]
        at += records.consumed

    assert taken_apart(text, width, size=size) == exact


fields = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=5)


@pytest.mark.slow
@settings(max_examples=effort(100, soak=3_000), deadline=None)
@given(st.lists(st.tuples(fields, fields), min_size=1, max_size=5))
def test_what_python_writes_is_read_back(rows: list[tuple[str, str]]) -> None:
    written = io.StringIO(newline="")
    python_csv.writer(written, quoting=python_csv.QUOTE_ALL).writerows([("a", "b"), *rows])

    found, _ = read(written.getvalue().encode(), [("a", pa.string()), ("b", pa.string())], csv())

    assert [(row["a"], row["b"]) for row in found] == rows


def test_arrows_reader_is_used_for_ordinary_records_and_large_objects_are_read_in_blocks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    exact = []

    def noted(text: bytes, width: int | None, dialect: CsvDialect, most: int, *, final: bool) -> Records:
        exact.append(most)
        return exact_records(text, width, dialect, most, final=final)

    monkeypatch.setattr(csv_rows, "exact_records", noted)
    body = b"a,b\n" + b"".join(b'%d,"x, ""%s""\n"\r\n' % (number, b"y" * 500) for number in range(40_000))

    assert [number for number, _ in values(body)] == list(range(40_000))
    assert exact == [1], "only the header"
