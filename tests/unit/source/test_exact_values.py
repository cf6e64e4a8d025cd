"""Values are what their column says, or stop the read with its name."""

import re
from decimal import Decimal, localcontext
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehead.source.errors import NotExact
from lakehead.source.exact_values import exact_batch
from lakehead.source.port import Column


def converted(
    values: list[Any], want: pa.DataType, have: pa.DataType | None = None, *, as_text: bool = False
) -> list[Any]:
    column = Column(name="n", declared="number", arrow=want)
    made = pa.array(values, have)
    array = pa.Array.from_buffers(pa.string(), len(made), made.buffers()) if as_text else made
    batch = pa.RecordBatch.from_arrays([array], names=["c0"])
    exact = exact_batch(batch, [column], "t")
    assert exact.schema == pa.schema([pa.field("n", want)])
    return list(exact.column(0).to_pylist())


@st.composite
def numbers(draw: st.DrawFn) -> str:
    whole = draw(st.text("0123456789", min_size=1, max_size=50))
    part = draw(st.text("0123456789", max_size=50))
    return f"{draw(st.sampled_from(['', '-']))}{whole}{'.' if part else ''}{part}"


@given(numbers(), st.integers(1, 38), st.data())
def test_a_text_becomes_that_very_decimal_or_is_refused(text: str, precision: int, data: st.DataObject) -> None:
    scale = data.draw(st.integers(0, precision))
    with localcontext() as context:
        context.prec = 200
        number = Decimal(text)
        fits = number == number.quantize(Decimal(1).scaleb(-scale)) and abs(number) < Decimal(10) ** (precision - scale)

    if fits:
        assert converted([text, None], pa.decimal128(precision, scale)) == [number, None]
    else:
        with pytest.raises(NotExact, match="column 'n'"):
            converted([text, None], pa.decimal128(precision, scale))


@pytest.mark.parametrize(
    ("text", "scale"), [("9" * 39, 0), ("9" * 30, 38), ("1e39", 0), ("1.5e3", 0), (f"0.1{'0' * 60}", 2), ("1e-3", 2)]
)
def test_digits_that_arrow_would_lose_in_silence_are_kept_or_refused(text: str, scale: int) -> None:
    try:
        [made] = converted([text], pa.decimal128(38, scale))
    except NotExact:
        return
    assert made == Decimal(text)


@pytest.mark.parametrize(
    ("value", "have", "want"),
    [
        ("NaN", None, pa.decimal128(10, 2)),
        ("Infinity", None, pa.decimal128(10, 2)),
        ("", None, pa.decimal128(10, 2)),
        (2, None, pa.bool_()),
        (-1, None, pa.bool_()),
        ("0x10", None, pa.int64()),
        ("9223372036854775808", None, pa.int64()),
        (2**40, None, pa.int32()),
        ("1e400", None, pa.float64()),
        (0.1, None, pa.float32()),
        ("0000-00-00", None, pa.date32()),
        ("2023-02-29", None, pa.date32()),
        ("0000-12-31", None, pa.date32()),
        ("infinity", None, pa.timestamp("us")),
        ("2024-01-01 00:00:00.1234567", None, pa.timestamp("us")),
        ("2024-01-01 00:00:00+02", None, pa.timestamp("us")),
        (2**62, pa.timestamp("us"), pa.timestamp("us")),
        (2**31 - 1, pa.date32(), pa.date32()),
        ("xyz", None, pa.binary()),
        (5, None, pa.string()),
        ("x", None, pa.list_(pa.int32())),
    ],
)
def test_a_value_that_would_become_another_one_is_refused(value: object, have: Any, want: pa.DataType) -> None:
    with pytest.raises(NotExact, match=r"Table t: column 'n' of type number .*as_text"):
        converted([None, value], want, have)


@pytest.mark.parametrize("want", [pa.string(), pa.date32(), pa.int64(), pa.decimal128(9, 2)])
def test_bytes_that_are_no_text_are_refused_and_shown_as_bytes(want: pa.DataType) -> None:
    """As SQLite holds them, which does not look at the bytes of a text."""
    with pytest.raises(NotExact, match=re.escape(r"column 'n' of type number has the value b'\xff7e1'")) as refused:
        converted([None, b"\xff7e1"], want, as_text=True)

    assert ("as_text" in str(refused.value)) is (want != pa.string())  # as text it would be no text either


def test_a_long_value_is_cut_in_the_sentence() -> None:
    with pytest.raises(NotExact) as refused:
        converted(["x" * 10_000], pa.decimal128(10, 2))
    assert len(str(refused.value)) < 400


@given(st.floats(allow_nan=False))
def test_a_float_as_text_is_that_very_float(number: float) -> None:
    assert converted([repr(number)], pa.float64()) == [number]
