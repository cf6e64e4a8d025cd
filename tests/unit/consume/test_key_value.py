"""Batches of an Ingestor."""

import pyarrow as pa
import pytest

from lakehead.consume.decode.decode import count_rows, infer_columns
from lakehead.consume.decode.rows import FormatName, ObjectFormat, ObjectRefused, SchemaMode
from lakehead.wire.batch import KeyValueEntry, encode_json
from lakehead.wire.compact import encode_compact
from lakehead.wire.errors import NewerFormat
from tests.unit.consume.reading import read

RAW = ObjectFormat(name=FormatName.KEY_VALUE)
JSON = ObjectFormat(name=FormatName.KEY_VALUE, value_json=True)
BOTH = [("key", pa.binary()), ("value", pa.binary())]


def batch(*entries: tuple[bytes, bytes]) -> bytes:
    return encode_compact([KeyValueEntry(key, value) for key, value in entries])


@pytest.mark.parametrize("encode", [encode_json, encode_compact])
def test_keys_and_values_are_binary_columns(encode: object) -> None:
    assert callable(encode)
    body = encode([KeyValueEntry(b"k\xff", b"v"), KeyValueEntry(b"", b"")])

    rows, _ = read(body, BOTH, RAW, first_row=3)

    assert [(row["key"], row["value"], row["_rescued"]) for row in rows] == [(b"k\xff", b"v", None), (b"", b"", None)]
    assert infer_columns(pa.BufferReader(body), RAW) == pa.schema(BOTH)
    assert count_rows(pa.BufferReader(body), RAW) == 2


def test_bytes_fit_text_if_they_are_utf8_and_are_rescued_in_base64_if_not() -> None:
    body = batch((b"k", "ü".encode()), (b"k", b"\xff"))

    rows, report = read(body, [("value", pa.string()), ("other", pa.int64())], RAW)

    assert [(row["value"], row["_rescued"]) for row in rows] == [
        ("ü", '{"key":"aw=="}'),
        (None, '{"value":"/w==","key":"aw=="}'),
    ]
    assert report.new_columns == {"key": pa.binary()}
    with pytest.raises(ObjectRefused, match=r"^Entry 2: column 'value' of type string cannot hold"):
        read(body, [("key", pa.string()), ("value", pa.string())], ObjectFormat(name=RAW.name, mode=SchemaMode.FAIL))
    with pytest.raises(ObjectRefused, match=r"^Entry 1: the table has no column 'key'"):
        read(body, [("value", pa.binary())], ObjectFormat(name=RAW.name, mode=SchemaMode.FAIL))


def test_values_that_are_json_become_rows_and_keys_a_column_that_no_field_hides() -> None:
    body = batch(
        (b"k1", b'{"key":"mine","n":1}'), (b"k2", b'{\n "n": 9223372036854775808\n}'), (b"", b'{"n":2,"x":true}')
    )
    columns = [("n", pa.int64()), ("_key", pa.binary()), ("key", pa.string())]

    rows, report = read(body, columns, JSON)

    assert [(row["_key"], row["key"], row["n"], row["_rescued"]) for row in rows] == [
        (b"k1", "mine", 1, None),
        (b"k2", None, None, '{"n":9223372036854775808}'),
        (b"", None, 2, '{"x":true}'),
    ]
    assert report.new_columns == {"x": pa.bool_()}
    assert infer_columns(pa.BufferReader(body), JSON) == pa.schema(
        [("_key", pa.binary()), ("key", pa.string()), ("n", pa.decimal128(38, 0)), ("x", pa.bool_())]
    )


def test_keys_without_a_column_are_proposed_and_rescued_beside_json() -> None:
    rows, report = read(batch((b"k", b'{"n":1}'), (b"", b'{"n":2}')), [("n", pa.int64())], JSON)

    assert [(row["n"], row["_rescued"]) for row in rows] == [(1, '{"_key":"aw=="}'), (2, None)]
    assert report.new_columns == {"_key": pa.binary()}
    with pytest.raises(ObjectRefused, match=r"^Entry 1: '_key' is"):
        read(batch((b"k", b'{"_key":1}')), [("n", pa.int64())], JSON)


@pytest.mark.parametrize("value", [b"", b" ", b"[]", b'{"n":"a\nb"}', b'{"n":1}\n{"n":2}', b'{"n":1}{"n":2}'])
def test_a_value_that_is_no_json_object_refuses_its_batch_or_is_rescued_whole(value: bytes) -> None:
    body = batch((b"", b'{"n":1}'), (b"", value))

    with pytest.raises(ObjectRefused, match=r"^Entry 2"):
        read(body, [("n", pa.int64())], JSON)
    rows, _ = read(body, [("n", pa.int64())], ObjectFormat(name=JSON.name, value_json=True, rescue_bad_rows=True))
    assert rows[0]["n"] == 1
    assert '"_bad_row"' in rows[1]["_rescued"]


def test_a_damaged_batch_is_refused_and_a_newer_one_is_for_a_newer_reader() -> None:
    body = batch((b"k", b"v"))

    for damaged in [b"", body[:-1], body[:9] + b"x" + body[10:], b'[{"key":1}]']:
        with pytest.raises(ObjectRefused):
            read(damaged, BOTH, RAW)
    with pytest.raises(NewerFormat):
        read(b"LKB2" + body[4:], BOTH, RAW)


def test_a_large_batch_is_several_record_batches() -> None:
    rows, _ = read(batch(*((b"%d" % number, b"x" * 2**20) for number in range(20))), BOTH, RAW)

    assert [row["key"] for row in rows] == [b"%d" % number for number in range(20)]
    with pytest.raises(ObjectRefused, match=r"^Entry 1 has .* max_row_bytes"):
        read(batch((b"k", b"v" * 100)), BOTH, ObjectFormat(name=RAW.name, max_row_bytes=50))
