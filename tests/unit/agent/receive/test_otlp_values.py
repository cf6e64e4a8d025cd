"""Values of OTLP as text: as OpenTelemetry recommends for systems that have no other."""

import math

import pytest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue, KeyValueList

from lakehead.agent.receive.decoded import BadBody
from lakehead.agent.receive.otlp_values import optional_text_of, read_pair, text_of


def list_of(*values: AnyValue) -> AnyValue:
    return AnyValue(array_value=ArrayValue(values=values))


def map_of(*pairs: tuple[str, AnyValue]) -> AnyValue:
    return AnyValue(kvlist_value=KeyValueList(values=[KeyValue(key=key, value=value) for key, value in pairs]))


TEXT, EMPTY = AnyValue(string_value='say "é"\n'), AnyValue(string_value="")
NAN, LEAST = AnyValue(double_value=math.nan), AnyValue(double_value=-math.inf)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (TEXT, 'say "é"\n'),
        (EMPTY, ""),
        (AnyValue(bool_value=True), "true"),
        (AnyValue(bool_value=False), "false"),
        (AnyValue(int_value=0), "0"),
        (AnyValue(int_value=-(2**63)), "-9223372036854775808"),
        (AnyValue(double_value=0.0), "0.0"),
        (AnyValue(double_value=1.5e300), "1.5e300"),
        (NAN, "NaN"),
        (AnyValue(double_value=math.inf), "Infinity"),
        (LEAST, "-Infinity"),
        (AnyValue(bytes_value=b"hello world"), "aGVsbG8gd29ybGQ="),
        (AnyValue(bytes_value=b""), ""),
        (list_of(), "[]"),
        (map_of(), "{}"),
        (
            list_of(AnyValue(int_value=1), LEAST, TEXT, AnyValue(bool_value=True), AnyValue(), EMPTY),
            '[1,"-Infinity","say \\"é\\"\\n",true,null,""]',
        ),
        (
            map_of(("a", NAN), ("b", AnyValue(bytes_value=b"\0\1")), ("c", list_of(list_of(), map_of(("", EMPTY))))),
            '{"a":"NaN","b":"AAE=","c":[[],{"":""}]}',
        ),
        (map_of(("a", AnyValue(int_value=1)), ("a", AnyValue(int_value=2))), '{"a":2}'),
    ],
)
def test_a_value_as_text(value: AnyValue, text: str) -> None:
    assert text_of(value) == optional_text_of(value) == text
    assert read_pair(KeyValue(key="ü", value=value).SerializeToString()) == ("ü".encode(), text.encode())


@pytest.mark.parametrize("value", [AnyValue(), AnyValue(string_value_strindex=3)])
def test_no_value_is_empty_text_or_none(value: AnyValue) -> None:
    """An index into the texts of profiles means nothing elsewhere."""
    assert text_of(value) == ""
    assert optional_text_of(value) is None


def test_what_is_no_attribute_is_refused() -> None:
    with pytest.raises(BadBody):
        read_pair(b"\xff")
