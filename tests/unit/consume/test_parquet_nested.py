"""Nested values of Parquet: each is in its column as it was written, or in `_rescued`, and never changed."""

import io
import json
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lakehead.consume.decode.decode import infer_columns
from lakehead.consume.decode.rows import FormatName, ObjectFormat, ObjectRefused
from tests.support.effort import effort
from tests.unit.consume.reading import column, read

PARQUET = ObjectFormat(name=FormatName.PARQUET)
DOUBLE, SINGLE = pa.float64(), pa.float32()


def file(values: pa.Array) -> bytes:
    buffer = io.BytesIO()
    pyarrow.parquet.write_table(pa.table({"a": values}), buffer)
    return buffer.getvalue()


def struct(**fields: pa.DataType) -> pa.DataType:
    return pa.struct(list(fields.items()))


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (pa.array([{"x": 0.1}]), struct(x=SINGLE)),
        (pa.array([{"x": 0.5}]), struct(x=pa.decimal128(5, 2))),
        (pa.array([[("k", 0.1)]], pa.map_(pa.string(), DOUBLE)), pa.map_(pa.string(), SINGLE)),
        (pa.array([{"x": 1}]), pa.map_(pa.string(), pa.int64())),
        (pa.array([[("x", 1)]], pa.map_(pa.string(), pa.int64())), struct(x=pa.int64())),
        (pa.array([[[0.1]]]), pa.list_(pa.list_(SINGLE))),
    ],
)
def test_a_value_inside_another_is_not_rounded_and_no_kind_becomes_another(values: pa.Array, kind: pa.DataType) -> None:
    [(value, rescued)] = column(file(values), kind, PARQUET)

    assert value is None
    assert set(json.loads(rescued or "{}")) == {"a"}


def test_bytes_inside_a_value_are_the_same_text_whatever_stands_beside_them() -> None:
    values = [{"x": b"hi", "y": 1}, {"x": b"ho", "y": 2**40}, {"x": b"hu", "y": 3}]

    found = column(file(pa.array(values)), struct(x=pa.string(), y=pa.int32()), PARQUET)

    assert [value for value, _ in found] == [{"x": "hi", "y": 1}, None, {"x": "hu", "y": 3}]


def test_a_key_that_a_map_has_twice_keeps_both_values() -> None:
    twice = pa.array([[("k", 1), ("k", 2)]], pa.map_(pa.string(), pa.int32()))

    assert column(file(twice), pa.map_(pa.string(), pa.int64()), PARQUET) == [([("k", 1), ("k", 2)], None)]
    assert column(file(twice), pa.int64(), PARQUET) == [(None, '{"a":[["k",1],["k",2]]}')]
    assert column(file(twice), pa.string(), PARQUET) == [('[["k",1],["k",2]]', None)]


def test_maps_with_other_keys_than_texts_fit_wider_ones() -> None:
    values = pa.array([[(1, "x")], None, []], pa.map_(pa.int32(), pa.string()))

    found = column(file(values), pa.map_(pa.int64(), pa.string()), PARQUET)

    assert found == [([(1, "x")], None), (None, None), ([], None)]


def test_two_fields_of_one_name_inside_a_column_are_refused() -> None:
    twice = pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], names=["x", "x"])

    with pytest.raises(ObjectRefused, match=r"several columns named 'a\.x'"):
        read(file(twice), [], PARQUET)


def test_lists_that_do_not_tell_the_type_of_their_values_are_rescued_until_one_does() -> None:
    nothing = file(pa.array([[], [None]], pa.list_(pa.null())))
    beside = file(pa.array([{"x": 1, "y": [None]}], struct(x=pa.int64(), y=pa.list_(pa.null()))))

    rows, report = read(nothing, [], PARQUET)
    assert ([row["_rescued"] for row in rows], report.new_columns) == (['{"a":[]}', '{"a":[null]}'], {})
    assert infer_columns(pa.BufferReader(nothing), PARQUET) == pa.schema([])

    kind = struct(x=pa.int64(), y=pa.list_(pa.string()))
    assert read(beside, [], PARQUET)[1].new_columns == {"a": kind}
    assert column(beside, kind, PARQUET) == [({"x": 1, "y": [None]}, None)]


LEAVES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int32(): st.sampled_from([0, 1, -(2**31), 2**24 + 1]),
    pa.int64(): st.sampled_from([0, 7, 2**53 + 1, -(2**63), 2**31]),
    pa.uint64(): st.sampled_from([0, 2**63, 2**64 - 1]),
    SINGLE: st.sampled_from([0.5, -0.0, float("nan"), float("inf"), 3.4028234663852886e38]),
    DOUBLE: st.sampled_from([0.1, 0.5, -0.0, float("nan"), 1e300, 5e-324]),
    pa.decimal128(38, 3): st.sampled_from([Decimal("1.500"), Decimal("0.001"), Decimal(10**34), Decimal(7)]),
    pa.decimal128(5, 1): st.sampled_from([Decimal("1.5"), Decimal(7)]),
    pa.string(): st.sampled_from(["", "x", "1", "é", "\x00"]),
    pa.binary(): st.sampled_from([b"", b"x", b"\xff"]),
    pa.bool_(): st.booleans(),
}


def nested(inner: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    return st.one_of(
        st.builds(pa.list_, inner),
        st.dictionaries(st.sampled_from("xyz"), inner, min_size=1, max_size=2).map(lambda found: struct(**found)),
        st.builds(pa.map_, st.sampled_from([pa.string(), pa.int32(), pa.int64()]), inner),
    )


types = st.recursive(st.sampled_from(list(LEAVES)), nested, max_leaves=3)


def values_of(kind: pa.DataType) -> st.SearchStrategy[Any]:
    if pa.types.is_struct(kind):
        made: st.SearchStrategy[Any] = st.fixed_dictionaries({field.name: values_of(field.type) for field in kind})
    elif pa.types.is_map(kind):
        made = st.lists(st.tuples(LEAVES[kind.key_type], values_of(kind.item_type)), max_size=2)
    elif pa.types.is_list(kind):
        made = st.lists(values_of(kind.value_type), max_size=2)
    else:
        made = LEAVES[kind]
    return st.one_of(st.none(), made, made)


def like(kind: pa.DataType) -> st.SearchStrategy[pa.DataType]:
    """Types of the same shape, so that values have a chance to fit, and any other."""
    if pa.types.is_struct(kind):
        fields = st.fixed_dictionaries({field.name: like(field.type) for field in kind}, optional={"w": types})
        return st.one_of(fields.map(lambda found: struct(**found)), types)
    if pa.types.is_map(kind):
        return st.one_of(st.builds(pa.map_, like(kind.key_type), like(kind.item_type)), types)
    if pa.types.is_list(kind):
        return st.one_of(like(kind.value_type).map(pa.list_), types)
    return st.sampled_from(list(LEAVES))


def same(written: Any, stored: Any) -> bool:
    """Whether a stored value is the one that was written, in its own type."""
    if written is None or stored is None:
        return written is stored
    if isinstance(written, dict) and isinstance(stored, dict):
        names = written.keys() | stored.keys()
        return all(same(written.get(name), stored.get(name)) for name in names)
    if isinstance(written, list | tuple) and isinstance(stored, list | tuple):
        return len(written) == len(stored) and all(map(same, written, stored))
    if isinstance(written, float) and isinstance(stored, float):
        return repr(written) == repr(stored)
    if isinstance(written, bytes) and isinstance(stored, str):
        return written.decode() == stored
    if isinstance(written, bool) or isinstance(stored, bool) or isinstance(written, str | bytes):
        return type(written) is type(stored) and bool(written == stored)
    return not isinstance(stored, str | bytes) and Fraction(written) == Fraction(stored)


@st.composite
def written(draw: st.DrawFn) -> tuple[pa.Array, pa.DataType]:
    kind = draw(types)
    values = draw(st.lists(values_of(kind), min_size=1, max_size=4))
    return pa.array(values, kind), draw(like(kind).filter(lambda found: "string" not in str(found)))


@pytest.mark.slow
@settings(max_examples=effort(250, soak=5_000), deadline=None, suppress_health_check=list(HealthCheck))
@given(written())
def test_a_value_is_in_its_column_as_it_was_written_or_rescued(given: tuple[pa.Array, pa.DataType]) -> None:
    values, kind = given

    found = column(file(values), kind, PARQUET)

    for before, (stored, rescued) in zip(values.to_pylist(), found, strict=True):
        if rescued is not None:
            assert stored is None
            assert before is not None
        else:
            assert same(before, stored)


@pytest.mark.slow
@settings(max_examples=effort(100, soak=3_000), deadline=None, suppress_health_check=list(HealthCheck))
@given(written())
def test_the_type_that_a_column_gets_holds_all_of_its_values(given: tuple[pa.Array, pa.DataType]) -> None:
    values, _ = given
    body = file(values)

    for field in infer_columns(pa.BufferReader(body), PARQUET):
        assert {rescued for _, rescued in column(body, field.type, PARQUET)} == {None}
