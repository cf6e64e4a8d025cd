"""Arrow's reader is used only where it answers as the exact way does."""

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from lakehead.consume.decode.fast_json import FastJson
from lakehead.consume.decode.json_rows import JsonRows
from lakehead.consume.decode.lines import LineBlock
from lakehead.consume.decode.rows import FormatName, ObjectFormat, ObjectRefused, ReadReport
from tests.support.effort import effort

KINDS = {
    "i": pa.int64(),
    "n": pa.int32(),
    "d": pa.float64(),
    "f": pa.float32(),
    "b": pa.bool_(),
    "s": pa.string(),
    "m": pa.decimal128(12, 3),
    "w": pa.decimal128(38, 38),
    "t": pa.timestamp("us"),
    "z": pa.timestamp("us", "UTC"),
    "y": pa.date32(),
    "c": pa.time64("us"),
    "u": pa.uuid(),
    "x": pa.binary(),
    "l": pa.list_(pa.float64()),
    "o": pa.struct([("i", pa.int64()), ("z", pa.timestamp("us", "UTC")), ("l", pa.list_(pa.decimal128(5, 2)))]),
}

INTEGERS = ["0", "-0", "7", "-12", "2147483647", "2147483648", "-2147483649", "16777217", "9007199254740991"]
INTEGERS += ["9007199254740992", "9007199254740993", "9223372036854775807", "-9223372036854775808", "1" + "0" * 18]
INTEGERS += ["9223372036854775808", "1" + "0" * 37, "9" * 38, "9" * 39, "9" * 80, "01", "+1", "0x1", "1_0"]
FRACTIONS = [
    "1.5",
    "-0.0",
    "0.1",
    "1.0",
    "1e3",
    "1E-7",
    "1e22",
    "9007199254740993.0",
    "3.4e39",
    "1e400",
    "-1e400",
    "1e-400",
]
FRACTIONS += [
    "16777217.0",
    "0.30000001192092896",
    "1.17549435e-38",
    "1e-9",
    "123456789.125",
    "0.12345",
    "1.",
    ".5",
    "1e5",
]
FRACTIONS += ["NaN", "Infinity", "-Infinity", "Inf", "-Inf", "nan", "-NaN", "1e-99999"]
TEXTS = [
    '""',
    '"x"',
    '"1"',
    '"1.5"',
    '"true"',
    '"null"',
    '"\\u0041"',
    '"\\u0000"',
    '"\\ud83d\\ude00"',
    '"\\ud800"',
    '"ü€"',
]
TEXTS += ['"a\\/b\\n"', '"a\tb"', '"\\x"', '"NaN"', '"1e2"', '"1e-999999999"', '"+1.5"', '".5"', '"5."', '" 1"', '"{["']
TEXTS += [
    '"aGk="',
    '"aGk"',
    '"aGl="',
    '"12345678-1234-1234-1234-1234567890aB"',
    '"{12345678-1234-1234-1234-123456789012}"',
]
TIMES = [
    "2024-02-29",
    "2023-02-29",
    "0000-01-01",
    "9999-12-31",
    "12:34",
    "12:34:56.123456",
    "24:00:00",
    "12:34:56.1234567",
]
TIMES += [
    "2024-01-01T00:00:00",
    "2024-01-01 12:34:56.123456",
    "2024-01-01T00:00:00.1234567",
    "2024-01-01T00:00:00.1234560",
]
TIMES += ["2024-01-01T00:00:00Z", "2024-01-01T00:00:00+02:00", "2024-01-01T00:00:00-0230", "2024-01-01T00:00:00+02"]
TIMES += [
    "0001-01-01T00:00:00+01:00",
    "9999-12-31T23:59:59.999999-00:01",
    "2024-01-01T00:00",
    "2024-01-01T00",
    "2024-1-1",
]
TIMES += ["2024-01-01T00:00:60", "2024-01-01T25:00:00", "2024-01-01T00:00:00+24:00", "2024-01-01t00:00:00z", "20240101"]
SCALARS = ["null", "true", "false", *INTEGERS, *FRACTIONS, *TEXTS, *(f'"{text}"' for text in TIMES)]
FITTING = {
    "i": INTEGERS[:4],
    "n": INTEGERS[:4],
    "d": [*INTEGERS[:4], *FRACTIONS[:6]],
    "f": [*INTEGERS[:4], *FRACTIONS[:6]],
    "b": ["true", "false"],
    "s": TEXTS[:9],
    "m": ["1.5", '"1.5"', "-0", "123456789", "999999999.999"],
    "w": ["0", "0.5", "-0.1234567890123456789012345678", '"0.25"'],
    "t": ['"2024-01-01T00:00:00"', '"2024-01-01 12:34:56.123456"'],
    "z": ['"2024-01-01T00:00:00Z"', '"2024-01-01T00:00:00+02:00"'],
    "y": ['"2024-02-29"', '"9999-12-31"'],
    "c": ['"12:34"', '"12:34:56.123456"'],
    "u": ['"12345678-1234-1234-1234-1234567890aB"'],
    "x": ['"aGk="', '""'],
    "l": ["[]", "[1,null,2.5]"],
    "o": ["{}", '{"i":1,"z":"2024-01-01T00:00:00Z","l":["1.5",2]}'],
}

odd_values = st.recursive(
    st.sampled_from(SCALARS),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda items: f"[{','.join(items)}]"),
        st.lists(st.tuples(st.sampled_from(["i", "z", "l", "q"]), inner), max_size=3).map(
            lambda pairs: "{" + ", ".join(f'"{name}": {item}' for name, item in pairs) + "}"
        ),
    ),
    max_leaves=4,
)


@st.composite
def rows(draw: st.DrawFn, oddity: int) -> str:
    """One line; one in `oddity` values or lines is drawn from all that is odd."""

    def odd() -> bool:
        return draw(st.integers(1, oddity)) == 1

    names = draw(st.lists(st.sampled_from([*KINDS, "q"] if odd() else list(KINDS)), max_size=4, unique=not odd()))
    values = [draw(odd_values if odd() or name == "q" else st.sampled_from(FITTING[name])) for name in names]
    line = "{" + ",".join(f'"{name}":{value}' for name, value in zip(names, values, strict=True)) + "}"
    if odd():
        line = draw(
            st.sampled_from(
                [
                    f" {line}",
                    f"{line}\r",
                    f"{line}\t",
                    line.replace(",", ",\r"),
                    f"{line}{line}",
                    "",
                    " ",
                    "null",
                    "[]",
                    "1",
                ]
            )
        )
    return line


def objects(oddity: int) -> st.SearchStrategy[str]:
    return st.tuples(st.lists(rows(oddity), max_size=4).map("\n".join), st.sampled_from(["", "\n", "}"])).map("".join)


def read(text: bytes, columns: pa.Schema, *, fast: bool, bad_rows: bool) -> str:
    report = ReadReport()
    form = ObjectFormat(name=FormatName.NDJSON, rescue_bad_rows=bad_rows)
    decoder = JsonRows(columns, form, report, 5, fast_from=0 if fast else None)
    try:
        batch = decoder.block(LineBlock(text, 1))
    except ObjectRefused as error:
        return str(error)
    decoder.finish()
    if batch is None:
        return "nothing"
    batch.validate(full=True)
    assert [field.type for field in batch.schema][:-2] == [field.type for field in columns]
    return repr([{name: repr(value) for name, value in row.items()} for row in batch.to_pylist()]) + repr(report)


COLUMNS = pa.schema(list(KINDS.items()))


@pytest.mark.slow
@settings(max_examples=effort(250, soak=3_000), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.one_of(objects(1_000), objects(30), objects(4)), st.booleans())
@example('{"d":9007199254740993}\n', False)  # noqa: FBT003 - whether bad rows are rescued
@example('{"i":1}\nnull\n', True)  # noqa: FBT003
@example('{"i":\n1}{"i":2}\n', True)  # noqa: FBT003
@example('{"i":1}{"i":2}\n', True)  # noqa: FBT003
@example('{"m":"1e-999999999"}\n', False)  # noqa: FBT003
def test_both_ways_to_read_json_give_the_same_rows_or_the_same_refusal(text: str, bad_rows: bool) -> None:  # noqa: FBT001
    body = text.encode()

    assert read(body, COLUMNS, fast=True, bad_rows=bad_rows) == read(body, COLUMNS, fast=False, bad_rows=bad_rows)


@pytest.mark.parametrize("name", list(KINDS))
def test_both_ways_agree_on_each_odd_value_in_each_type_of_column(name: str) -> None:
    columns = pa.schema([(name, KINDS[name])])
    for value in SCALARS:
        body = f'{{"{name}":{value}}}\n'.encode()

        assert read(body, columns, fast=True, bad_rows=True) == read(body, columns, fast=False, bad_rows=True)


@pytest.mark.parametrize("name", list(KINDS))
def test_arrows_reader_is_used_for_values_that_fit(name: str) -> None:
    lines = "".join(f'{{"{name}":{value}}}\n' for value in FITTING[name])

    assert FastJson(pa.schema([(name, KINDS[name])])).read(lines.encode()) is not None


@pytest.mark.slow
@pytest.mark.parametrize("line", ['{"k%d":1}', '{"q":{"k%d":1}}', '{"o":{"k%d":1}}', '{"q":[{"k%d":1}]}'])
def test_keys_like_ids_take_no_more_memory_than_other_keys(line: str) -> None:
    text = "".join(line % number + "\n" for number in range(30_000)).encode()
    before = pa.default_memory_pool().max_memory()

    rows = JsonRows(COLUMNS, ObjectFormat(name=FormatName.NDJSON), ReadReport(), 0, fast_from=0)
    batch = rows.block(LineBlock(text, 1))

    assert batch is not None
    assert batch.num_rows == 30_000
    assert pa.default_memory_pool().max_memory() < max(before, 400 * 2**20)


def test_arrows_reader_is_also_used_for_lines_with_some_other_columns() -> None:
    lines = "".join(f'{{"i":{number},"q{number % 3}":{number}.0}}\n' for number in range(20_000))

    found = FastJson(COLUMNS).read(lines.encode())

    assert found is not None
    columns, extra = found
    assert columns[0].to_pylist() == list(range(20_000))
    assert extra == {number: {f"q{number % 3}": f"{number}.0"} for number in range(20_000)}
