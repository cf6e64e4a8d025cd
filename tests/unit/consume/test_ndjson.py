"""What NDJSON does with odd input."""

import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from lakehead.consume.decode.decode import infer_columns, read_object
from lakehead.consume.decode.rows import ObjectRefused, ReadReport, SchemaMode
from lakehead.lake.column_names import MOST_COLUMNS
from tests.unit.consume.reading import column, ndjson, read

LONG = [("a", pa.int64())]
MIXED = [("a", pa.int64()), ("d", pa.float64()), ("s", pa.string())]


@pytest.mark.parametrize(
    "body",
    [
        b'{"a":1}\n{"a":2}\n',
        b'{"a":1}\n{"a":2}',
        b'{"a":1}\r\n{"a":2}\r\n',
        b'\xef\xbb\xbf{"a":1}\n{"a":2}\n',
        b'\n\n{"a":1}\n \t\r\n{"a":2}\n\n\n',
        b'  {"a" : 1 }  \n\t{ "a":2}',
    ],
    ids=["plain", "no last newline", "CRLF", "BOM", "blank lines", "spaces"],
)
def test_rows_are_the_lines_that_are_not_blank(body: bytes) -> None:
    rows, _ = read(body, LONG, ndjson(), first_row=7)

    assert [(row["_row"], row["a"]) for row in rows] == [(7, 1), (8, 2)]


@pytest.mark.parametrize("body", [b"", b"\n", b" \t\r\n\n ", b"\xef\xbb\xbf"])
def test_an_object_without_rows_gives_no_batch(body: bytes) -> None:
    assert read(body, LONG, ndjson())[0] == []


@pytest.mark.parametrize(
    ("value", "kind", "rescued"),
    [
        ("9223372036854775808", pa.int64(), "9223372036854775808"),
        ("-9223372036854775809", pa.int64(), "-9223372036854775809"),
        ("2147483648", pa.int32(), "2147483648"),
        ("1.0", pa.int64(), "1.0"),
        ("1e3", pa.int64(), "1e3"),
        ("9007199254740993", pa.float64(), "9007199254740993"),
        ("123456789012345678901234567890", pa.float64(), "123456789012345678901234567890"),
        ("16777217", pa.float32(), "16777217"),
        ("1e400", pa.float64(), "1e400"),
        ("1e39", pa.float32(), "1e39"),
        ('"1"', pa.int64(), '"1"'),
        ("true", pa.int64(), "true"),
        ("1", pa.bool_(), "1"),
        ("NaN", pa.int64(), '"NaN"'),
        ("[1]", pa.int64(), "[1]"),
        ("1.555", pa.decimal128(10, 2), "1.555"),
        ("123456789", pa.decimal128(10, 2), "123456789"),
        ('{"x":1,"y":2}', pa.struct([("x", pa.int64())]), '{"x":1,"y":2}'),
        ('{"x":"1"}', pa.struct([("x", pa.int64())]), '{"x":"1"}'),
        ("[1,1.50]", pa.list_(pa.int64()), "[1,1.50]"),
        ("1700000000", pa.timestamp("us"), "1700000000"),
        ('"2024-01-01T00:00:00Z"', pa.timestamp("us"), '"2024-01-01T00:00:00Z"'),
        ('"2024-01-01T00:00:00"', pa.timestamp("us", "UTC"), '"2024-01-01T00:00:00"'),
        ('"2024-01-01T00:00:00.123456789"', pa.timestamp("us"), '"2024-01-01T00:00:00.123456789"'),
        ('"2024-01-01"', pa.timestamp("us"), '"2024-01-01"'),
        ('"2023-02-29"', pa.date32(), '"2023-02-29"'),
        ('"24:00:00"', pa.time64("us"), '"24:00:00"'),
        ('"aGk"', pa.binary(), '"aGk"'),
        ('"12345678123412341234123456789012"', pa.uuid(), '"12345678123412341234123456789012"'),
    ],
)
def test_a_value_that_does_not_fit_is_rescued_as_it_was_written_or_its_object_is_refused(
    value: str, kind: pa.DataType, rescued: str
) -> None:
    body = f'{{"a":null}}\n{{"a":{value}}}\n'.encode()

    assert column(body, kind, ndjson()) == [(None, None), (None, f'{{"a":{rescued}}}')]
    with pytest.raises(ObjectRefused, match=r"^Line 2: column 'a' of type .* cannot hold "):
        read(body, [("a", kind)], ndjson(mode=SchemaMode.FAIL))


@pytest.mark.parametrize(
    ("value", "kind", "stored"),
    [
        ("9223372036854775807", pa.int64(), 2**63 - 1),
        ("-0", pa.int64(), 0),
        ("9007199254740992", pa.float64(), 2.0**53),
        ("1152921504606846976", pa.float64(), 2.0**60),
        ("0.1", pa.float64(), 0.1),
        ("9007199254740993.0", pa.float64(), 2.0**53),
        ("1e-400", pa.float64(), 0.0),
        ("Infinity", pa.float64(), float("inf")),
        ("7", pa.string(), "7"),
        ("1.50", pa.string(), "1.50"),
        ("true", pa.string(), "true"),
        ('{"x": [1.50, null]}', pa.string(), '{"x":[1.50,null]}'),
        ('"\\u0000\\ud83d\\ude00"', pa.string(), "\0😀"),
        ("{}", pa.struct([("x", pa.int64())]), {"x": None}),
        ('{"x":null,"y":null}', pa.struct([("x", pa.int64())]), {"x": None}),
        ('{"x":1,"y":null}', pa.map_(pa.string(), pa.int64()), [("x", 1), ("y", None)]),
        ('"aGk="', pa.binary(), b"hi"),
        ('"aGk="', pa.binary(2), b"hi"),
    ],
)
def test_a_value_that_fits_is_stored_exactly(value: str, kind: pa.DataType, stored: Any) -> None:
    assert column(f'{{"a":{value}}}\n'.encode(), kind, ndjson()) == [(stored, None)]


def test_not_a_number_is_one_in_a_double_column_and_text_in_what_is_rescued() -> None:
    [(value, rescued)] = column(b'{"a":NaN}', pa.float64(), ndjson())

    assert value != value  # noqa: PLR0124 - only NaN does that
    assert rescued is None
    assert column(b'{"b":NaN}', pa.float64(), ndjson()) == [(None, '{"b":"NaN"}')]


def test_minus_zero_stays_minus_zero_in_a_double() -> None:
    for body in [b'{"a":-0}', b'{"a":-0.0,"b":1}']:
        assert str(column(body, pa.float64(), ndjson())[0][0]) == "-0.0"


BAD_ROWS = [
    (b'{"a":1,"a":2}', 'the key "a" occurs twice'),
    (b'{"a":1,"b":{"x":1,"x":1}}', 'the key "x" occurs twice'),
    (b'{"a":1,"\\u0061":2}', 'the key "a" occurs twice'),
    (b"[1]", "a list and not a JSON object"),
    (b"null", "null and not a JSON object"),
    (b"17", "a number and not a JSON object"),
    (b'{"a":1} {"a":2}', "column 9: this is not JSON"),
    (b'{"a":1', "column 7: this is not JSON"),
    (b'{"a":1}\0', "column 8: this is not JSON"),
    (b'{"a":"x\0y"}', "column 8: this is not JSON"),
    (b'{"a":Inf}', "column 6: this is not JSON"),
    (b'{"a":"\\ud800"}', "half of a surrogate pair"),
    (b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested deeper than 100 levels"),
    (b'{"q":' + b'{"x":' * 100_000 + b"1" + b"}" * 100_000 + b"}", "nested deeper than 100 levels"),
]


@pytest.mark.parametrize(("row", "reason"), BAD_ROWS, ids=[reason for _, reason in BAD_ROWS])
def test_a_row_that_cannot_be_parsed_refuses_its_object_or_is_rescued_whole(row: bytes, reason: str) -> None:
    body = b'{"a":5}\n\n' + row + b'\n{"a":6}\n'

    with pytest.raises(ObjectRefused) as refused:
        read(body, LONG, ndjson())
    assert str(refused.value).startswith("Line 3")
    assert reason in str(refused.value)
    rows, _ = read(body, LONG, ndjson(rescue_bad_rows=True))
    assert [row["a"] for row in rows] == [5, None, 6]
    assert json.loads(rows[1]["_rescued"]) == {"_bad_row": row.decode()}


@pytest.mark.parametrize("row", [b'{"a":"\xff"}', b'{"a":"\xed\xa0\x80"}', b'{"a":"\xc0\x80"}', b'{"\xff":1}'])
def test_text_that_is_not_utf8_refuses_its_object_or_is_rescued_in_base64(row: bytes) -> None:
    body = b'{"a":"x"}\n' + row

    with pytest.raises(ObjectRefused, match=r"Line 2, column \d+: the text is not UTF-8"):
        read(body, [("a", pa.string())], ndjson())
    rows, _ = read(body, [("a", pa.string())], ndjson(rescue_bad_rows=True))
    assert list(json.loads(rows[1]["_rescued"])) == ["_bad_row_base64"]


def test_a_type_that_changes_in_the_middle_keeps_the_rows_that_fit() -> None:
    body = b"".join(b'{"a":%d,"d":1.5}\n' % number for number in range(50)) + b'{"a":"x"}\n{"a":3}\n'

    rows, report = read(body, MIXED, ndjson())

    assert [row["a"] for row in rows] == [*range(50), None, 3]
    assert report.rescued == 1


def test_a_line_of_two_mebibytes_is_read_and_one_over_the_limit_refused() -> None:
    body = json.dumps({"s": "x" * 2**21}).encode() + b'\n{"a":1}\n'

    rows, _ = read(body, MIXED, ndjson())
    assert [len(row["s"] or "") for row in rows] == [2**21, 0]
    with pytest.raises(ObjectRefused, match=r"max_row_bytes"):
        read(body, MIXED, ndjson(max_row_bytes=2**20))
    with pytest.raises(ObjectRefused, match=r"Line 2 has 7 bytes; max_row_bytes allows 6"):
        read(b'{}\n{"a":1}\n{}', MIXED, ndjson(max_row_bytes=6, rescue_bad_rows=True))


@pytest.mark.slow
def test_rows_and_lines_are_counted_over_blocks() -> None:
    lines = [json.dumps({"a": number, "s": "x" * 1000}) for number in range(20_000)]
    body = "\n\n".join(lines).encode()

    rows, _ = read(body, MIXED, ndjson())
    assert [row["a"] for row in rows] == list(range(20_000))
    with pytest.raises(ObjectRefused, match=r"^Line 39999: the row is a list"):
        read("\n\n".join([*lines[:-1], "[]"]).encode(), MIXED, ndjson())


def test_new_columns_are_proposed_with_a_type_for_all_values_and_their_values_rescued() -> None:
    body = b'{"a":1,"x":1,"y":null,"z":[]}\n{"a":2,"x":1.5,"y":null}\n{"a":3,"x":2,"w":{"q":"t"}}\n'

    rows, report = read(body, LONG, ndjson())

    assert report.new_columns == {"x": pa.float64(), "w": pa.struct([("q", pa.string())])}
    assert [row["_rescued"] for row in rows] == ['{"x":1,"z":[]}', '{"x":1.5}', '{"x":2,"w":{"q":"t"}}']
    again, report = read(body, [*LONG, *report.new_columns.items()], ndjson())
    assert report.new_columns == {}
    assert [row["_rescued"] for row in again] == ['{"z":[]}', None, None]


def test_nothing_is_proposed_by_other_modes() -> None:
    body = b'{"a":1,"x":1}\n'

    rows, report = read(body, LONG, ndjson(mode=SchemaMode.RESCUE))
    assert (report.new_columns, rows[0]["_rescued"]) == ({}, '{"x":1}')
    with pytest.raises(ObjectRefused, match=r"^Line 1: the table has no column 'x'"):
        read(body, LONG, ndjson(mode=SchemaMode.FAIL))
    assert read(b'{"a":1,"x":null}\n', LONG, ndjson(mode=SchemaMode.FAIL))[0][0]["_rescued"] is None


def test_columns_that_lakehead_adds_and_nameless_ones_are_rescued_and_never_proposed() -> None:
    rows, report = read(b'{"a":1,"_row":9,"_uri":"x","":2}\n', LONG, ndjson())

    assert (rows[0]["_row"], rows[0]["_rescued"]) == (0, '{"_row":9,"_uri":"x","":2}')
    assert report.new_columns == {}


def test_a_row_of_quotes_that_never_end_is_bad_and_takes_no_longer_than_others() -> None:
    row = b'{"a":' + b"[" * 101 + b'\\"' * 300_000

    rows, _ = read(row + b"\n", LONG, ndjson(rescue_bad_rows=True))

    assert [row["a"] for row in rows] == [None]


def test_a_number_of_more_characters_than_any_decimal_needs_is_rescued() -> None:
    assert column(b'{"a":0.%s}' % (b"0" * 400), pa.decimal128(5, 2), ndjson())[0][0] is None
    assert column(b'{"a":"1.5%s"}' % (b"0" * 300), pa.decimal128(5, 2), ndjson()) == [(Decimal("1.50"), None)]


@pytest.mark.parametrize("name", ["A", "_ROW", "_Rescued", "_file", "_POS", "_row_id", "n" * 1001])
def test_names_are_matched_exactly_and_none_is_proposed_that_makes_a_table_unreadable(name: str) -> None:
    rows, report = read(b'{"%s":1}\n' % name.encode(), LONG, ndjson())

    assert (rows[0]["a"], rows[0]["_rescued"], report.new_columns) == (None, f'{{"{name}":1}}', {})


def test_of_names_that_differ_in_case_the_first_one_is_proposed() -> None:
    _, report = read(b'{"B":1,"b":2}\n' + '{"\u212a":1,"k":2}'.encode(), LONG, ndjson())

    assert list(report.new_columns) == ["B", "\u212a"]


@pytest.mark.parametrize("value", ['{"x":1,"X":2}', '{"x.y":1,"x":{"y":2}}', '[{"x":1},{"X":2}]'])
def test_an_object_whose_fields_cannot_be_told_apart_is_proposed_as_text(value: str) -> None:
    body = f'{{"o":{value}}}'.encode()
    _, report = read(body, LONG, ndjson())

    assert report.new_columns == {"o": pa.string()}
    assert column(body, pa.string(), ndjson(), "o") == [(value, None)]


def test_a_column_of_more_fields_than_a_table_has_is_proposed_as_text_however_deep_they_are() -> None:
    deep = "".join(f'{{"o":{{"x{number % 20}":[{{"y{number}":1}}]}},"p":{number}}}\n' for number in range(2_000))

    _, report = read(deep.encode(), LONG, ndjson())

    assert report.new_columns == {"o": pa.string(), "p": pa.int64()}


def test_an_object_with_too_many_new_columns_proposes_none() -> None:
    body = json.dumps({f"k{number}": number for number in range(MOST_COLUMNS)}).encode()

    rows, report = read(body, LONG, ndjson())
    assert report.new_columns == {}
    assert len(json.loads(rows[0]["_rescued"])) == MOST_COLUMNS
    assert len(read(body, [], ndjson())[1].new_columns) == MOST_COLUMNS
    assert len(infer_columns(pa.BufferReader(body), ndjson())) == MOST_COLUMNS
    assert len(infer_columns(pa.BufferReader(body[:-1] + b',"more":1}'), ndjson())) == 0


def test_short_rows_of_a_wide_table_make_small_batches() -> None:
    columns = pa.schema([(f"c{number}", pa.int64()) for number in range(400)])

    batches = read_object(pa.BufferReader(b'{"c0":1}\n' * 12_000), ndjson(), columns, ReadReport())

    assert [batch.num_rows for batch in batches] == [5216, 5216, 1568]


def test_inferred_columns_are_in_order_of_their_first_value_and_those_without_a_value_are_left_out() -> None:
    body = b'{"b":null,"n":[]}\n{"c":1,"b":"2024-01-01"}\n{"t":true,"_row":1}\n'

    assert infer_columns(pa.BufferReader(body), ndjson()) == pa.schema(
        [("c", pa.int64()), ("b", pa.string()), ("t", pa.bool_())]
    )
    with pytest.raises(ObjectRefused, match=r"^Line 1: the row is a list"):
        infer_columns(pa.BufferReader(b"[]\n"), ndjson())
