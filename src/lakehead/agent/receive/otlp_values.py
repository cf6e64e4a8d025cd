"""Values of OTLP as text, in the form that OpenTelemetry recommends for systems without its types."""

import base64
import math
from typing import TypeAlias

import msgspec
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

from lakehead.agent.receive.otlp_messages import parse
from lakehead.agent.receive.otlp_parts import check_pair

_Plain: TypeAlias = "str | bool | int | float | bytes | list[_Plain] | dict[str, _Plain] | None"


def text_of(value: AnyValue) -> str:
    """Return text as it is, bytes as base64, nothing as empty text, and everything else as JSON.

    Not a number and infinity are `NaN`, `Infinity` and `-Infinity`; inside of a list or map they are text.
    """
    return optional_text_of(value) or ""


def optional_text_of(value: AnyValue) -> str | None:
    """Return what `text_of` does, but None if there is no value."""
    plain = _plain(value)
    match plain:
        case str() | None:
            return plain
        case bytes():
            return base64.b64encode(plain).decode()
        case _:
            return msgspec.json.encode(plain).decode()


def read_pair(raw: bytes) -> tuple[bytes, bytes]:
    """Return the key and the text of an attribute in UTF-8. Raises `BadBody` if the bytes are no `KeyValue`, and
    `BodyTooLarge`.
    """
    check_pair(raw)
    pair = parse(KeyValue, raw)
    value = pair.value
    return pair.key.encode(), (value.string_value or text_of(value)).encode()


def _plain(value: AnyValue) -> _Plain:
    """Return a value as JSON has it. What a map has twice is there once, with its last value."""
    match value.WhichOneof("value"):
        case "string_value":
            return value.string_value
        case "bool_value":
            return value.bool_value
        case "int_value":
            return value.int_value
        case "double_value":
            return _number(value.double_value)
        case "bytes_value":
            return value.bytes_value  # base64 in JSON too
        case "array_value":
            return [_plain(each) for each in value.array_value.values]
        case "kvlist_value":
            return {each.key: _plain(each.value) for each in value.kvlist_value.values}
        case "string_value_strindex" | None:  # the former is only of profiles: others shall treat it as absent
            return None


def _number(number: float) -> float | str:
    if math.isfinite(number):
        return number
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"
