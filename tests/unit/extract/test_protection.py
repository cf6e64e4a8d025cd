"""Columns that are left out, masked or hashed: what is stored of them, and that nothing else is shown of them."""

import hmac
import pickle
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest

from lakehead.errors import Misconfigured
from lakehead.extract.protection import exact_names, hidden, protected, protected_schema
from lakehead.extract.protection_rules import Hashed, LeftOut, Masked
from lakehead.source.errors import NotExact
from lakehead.source.exact_values import exact_batch
from lakehead.source.port import Column, TableInfo

SECRET = "pepper"


def of(text: str | bytes) -> str:
    return hmac.digest(SECRET.encode(), text if isinstance(text, bytes) else text.encode(), "sha256").hex()


VALUES: list[tuple[pa.DataType, object, str | bytes]] = [
    (pa.string(), "ann@example.org", "ann@example.org"),
    (pa.string(), "", ""),
    (pa.int32(), -7, "-7"),
    (pa.int64(), 2**40, str(2**40)),
    (pa.decimal128(10, 2), Decimal("1.10"), "1.10"),
    (pa.float64(), 0.1, "0.1"),
    (pa.bool_(), True, "true"),
    (pa.binary(), b"\xff\x00", b"\xff\x00"),
    (pa.date32(), date(2026, 1, 2), "2026-01-02"),
    (pa.timestamp("us", "UTC"), datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC), "2026-01-02 03:04:05.000006Z"),
]


@pytest.mark.parametrize(("kind", "value", "text"), VALUES)
def test_a_hash_is_that_of_the_values_text_and_null_stays_null(kind: pa.DataType, value: object, text: str) -> None:
    batch = pa.record_batch({"c": pa.array([value, None, value], kind)})

    [column] = protected(batch, {"c": Hashed(SECRET)}).columns

    assert column.type == pa.string()
    assert column.to_pylist() == [of(text), None, of(text)]


def test_text_is_masked_by_text_and_other_values_by_null() -> None:
    batch = pa.record_batch({"t": pa.array(["a", None]), "n": pa.array([1, None]), "kept": pa.array([1, 2])})

    rows = protected(batch, {"t": Masked("***"), "n": Masked("***")})

    assert rows.to_pylist() == [{"t": "***", "n": None, "kept": 1}, {"t": None, "n": None, "kept": 2}]
    assert rows.schema == batch.schema


def test_what_is_left_out_has_no_column() -> None:
    columns = pa.schema([("a", pa.int32()), ("b", pa.int32()), ("c", pa.int32())])

    assert protected_schema(columns, {"a": LeftOut(), "b": Hashed(SECRET)}) == pa.schema(
        [("b", pa.string()), ("c", pa.int32())]
    )


def test_empty_batches_have_the_same_columns() -> None:
    batch = pa.record_batch({"c": pa.array([], pa.int32())})

    assert protected(batch, {"c": Hashed(SECRET)}).schema == pa.schema([("c", pa.string())])


def test_a_secret_reaches_tasks_and_no_message() -> None:
    assert SECRET not in repr(Hashed(SECRET))
    assert pickle.loads(pickle.dumps(Hashed(SECRET))) == Hashed(SECRET)  # noqa: S301 - our own


ADDRESS = Column(name="Address", declared="text", arrow=pa.string(), splits=True)
INFO = TableInfo(schema=None, name="t", quoted="t", columns=(ADDRESS,), unique_keys=(("Address",),))


def test_a_protected_column_is_found_in_other_letter_case_and_must_be_there() -> None:
    [column] = hidden(INFO, {"address": Masked("x")}).columns

    assert (column.secret, column.splits) == (True, False), "no value of it is in a part's condition"
    assert exact_names(INFO, {"ADDRESS": Masked("x")}) == {"Address": Masked("x")}
    with pytest.raises(Misconfigured, match="has no column 'email'"):
        hidden(INFO, {"email": Masked("x")})


@pytest.mark.parametrize("secret", [True, False])
def test_a_value_that_is_refused_is_shown_only_if_its_column_is_not_protected(secret: bool) -> None:  # noqa: FBT001 - a parameter
    column = Column(name="n", declared="numeric", arrow=pa.decimal128(4, 2), secret=secret)

    with pytest.raises(NotExact) as refused:
        exact_batch(pa.record_batch({"c0": pa.array(["123456.789"])}), [column], "t")

    assert ("123456" in str(refused.value)) != secret
    assert refused.value.__cause__ is None
    assert "column 'n' of type numeric" in str(refused.value)
