"""Types of new columns hold every value, and types that are unified hold those of both."""

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakehead.consume.decode.decode import infer_columns, unify_columns
from tests.support.effort import effort
from tests.unit.consume.reading import ndjson, read


def inferred(*values: str) -> pa.DataType | None:
    body = "\n".join(f'{{"a":{value}}}' for value in values).encode()
    schema = infer_columns(pa.BufferReader(body), ndjson())
    return schema.field("a").type if len(schema) else None


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["1", "9223372036854775807"], pa.int64()),
        (["1", "1.5", "-9007199254740992"], pa.float64()),
        (["9007199254740993", "1.5"], pa.string()),
        (["9223372036854775808", "1"], pa.decimal128(38, 0)),
        (["9223372036854775808", "1.5"], pa.string()),
        (["1" * 39], pa.string()),
        (["1e400"], pa.string()),
        (["NaN", "1"], pa.float64()),
        (["1", '"x"'], pa.string()),
        (["1", "true"], pa.string()),
        (["true", "null"], pa.bool_()),
        (['"2024-01-01T00:00:00Z"'], pa.string()),
        (["[1]", "[]", "[2.5,null]"], pa.list_(pa.float64())),
        (["[1]", "1"], pa.string()),
        (['{"x":1}', "{}", '{"y":[true]}'], pa.struct([("x", pa.int64()), ("y", pa.list_(pa.bool_()))])),
        (
            ['{"x":1,"y":[],"z":{},"n":null}'],
            pa.struct([("x", pa.int64()), ("y", pa.list_(pa.string())), ("z", pa.string())]),
        ),
        (['{"x":1}', "[1]"], pa.string()),
        (["null"], None),
        (["[]", "[null]", "[[]]"], None),
        (["{}", '{"x":null}', '{"x":[]}'], None),
    ],
)
def test_an_inferred_type_holds_every_value(values: list[str], kind: pa.DataType | None) -> None:
    assert inferred(*values) == kind


json_values = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**65), 2**65),
        st.floats(),
        st.text(max_size=3),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(["x", "y", "é"]), inner, max_size=3)
    ),
    max_leaves=5,
)


@pytest.mark.slow
@settings(max_examples=effort(120, soak=3_000), deadline=None)
@given(st.lists(st.dictionaries(st.sampled_from(["a", "b"]), json_values), max_size=4))
def test_what_was_proposed_holds_everything_when_the_object_is_read_again(rows: list[dict[str, Any]]) -> None:
    body = "\n".join(map(json.dumps, rows)).encode()

    _, report = read(body, [], ndjson())
    again, _ = read(body, list(report.new_columns.items()), ndjson())

    rescued = {name for row in again for name in json.loads(row["_rescued"] or "{}")}
    assert not rescued & set(report.new_columns)
    assert infer_columns(pa.BufferReader(body), ndjson()) == pa.schema(list(report.new_columns.items()))


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        (pa.int32(), pa.int64(), pa.int64()),
        (pa.int64(), pa.float64(), pa.float64()),
        (pa.float32(), pa.float64(), pa.float64()),
        (pa.int64(), pa.decimal128(10, 2), pa.decimal128(21, 2)),
        (pa.decimal128(10, 2), pa.decimal128(8, 4), pa.decimal128(12, 4)),
        (pa.decimal128(38, 0), pa.decimal128(38, 10), pa.string()),
        (pa.decimal128(10, 2), pa.float64(), pa.string()),
        (pa.int64(), pa.string(), pa.string()),
        (pa.bool_(), pa.int64(), pa.string()),
        (pa.null(), pa.date32(), pa.date32()),
        (pa.timestamp("ms"), pa.timestamp("us"), pa.timestamp("us")),
        (pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.string()),
        (pa.date32(), pa.timestamp("us"), pa.string()),
        (pa.list_(pa.int64()), pa.list_(pa.string()), pa.list_(pa.string())),
        (pa.list_(pa.int64()), pa.int64(), pa.string()),
        (
            pa.struct([("x", pa.int32())]),
            pa.struct([("y", pa.bool_()), ("x", pa.int64())]),
            pa.struct([("x", pa.int64()), ("y", pa.bool_())]),
        ),
    ],
)
def test_two_types_become_one_that_holds_the_values_of_both(
    one: pa.DataType, other: pa.DataType, both: pa.DataType
) -> None:
    schemas = [pa.schema([("a", one)]), pa.schema([("b", pa.int64()), ("a", other)])]

    assert unify_columns(schemas) == pa.schema([("a", both), ("b", pa.int64())])
    if not pa.types.is_struct(both):
        assert unify_columns([pa.schema([("a", other)]), pa.schema([("a", one)])]).field("a").type == both
