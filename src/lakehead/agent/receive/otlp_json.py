r"""Bodies of OTLP in JSON, as the protobuf that they stand for.

OTLP's JSON is that of protobuf, but trace ids and span ids are hex. What it does not allow but senders do is taken too:
names of enum values, original names of fields, and halves of surrogate pairs, as JavaScript leaves when it cuts a text.
"""

import base64
import binascii
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import msgspec
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import Exemplar

from lakehead.agent.receive.decoded import BadBody
from lakehead.agent.receive.otlp_parts import check_json

_MAX_DEPTH = 100
"""How deep messages may nest, as in protobuf."""

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_ESCAPE = re.compile(rb"\\(?:(u[dD][89abAB]..\\u[dD][c-fC-F]..)|(u[dD][89a-fA-F]..)|.)", re.DOTALL)
_WHOLE = re.compile(r"-?[0-9]{1,20}")
_HEX = re.compile(r"(?:[0-9a-fA-F]{2})*")
_NUMBER = re.compile(r"NaN|-?Infinity|-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")


def metrics_from_json(body: bytes) -> bytes:
    """Return an `ExportMetricsServiceRequest` in protobuf, without exemplars. Raises `BadBody` if the body is none."""
    return _from_json(ExportMetricsServiceRequest, body)


def logs_from_json(body: bytes) -> bytes:
    """Return an `ExportLogsServiceRequest` in protobuf. Raises `BadBody` if the body is none."""
    return _from_json(ExportLogsServiceRequest, body)


def _from_json(kind: type[Message], body: bytes) -> bytes:
    check_json(body)
    try:
        told = msgspec.json.decode(_ESCAPE.sub(_whole_escape, body) if _SURROGATE.search(body) else body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise BadBody(f"The body is not valid JSON: {error}.") from None
    fields = _arguments(kind.DESCRIPTOR, told, 0)
    try:
        return bytes(kind(**fields).SerializeToString())
    except ValueError as error:  # a number that its field cannot hold
        raise BadBody(f"The body is not OTLP: {error}.") from None


def _whole_escape(escape: re.Match[bytes]) -> bytes:
    """Return an escape of JSON, or that of the replacement character for half of a surrogate pair."""
    return rb"\ufffd" if escape[2] else escape[0]


class _Field(NamedTuple):
    """How a field is read."""

    name: str
    message: Descriptor | None
    """None: it is a scalar, which `read` takes."""

    read: Callable[[Any], object]
    is_repeated: bool


def _arguments(of: Descriptor, told: object, depth: int) -> dict[str, object]:
    """Return a JSON object as the arguments of a message. Raises `BadBody`."""
    if not isinstance(told, dict):
        name = _JSON_NAMES.get(type(told), "a number")
        raise BadBody(f"The body is not OTLP: it has {name} where an object for {of.name} must be.")
    if depth > _MAX_DEPTH:
        raise BadBody(f"The body has values nested more than {_MAX_DEPTH} deep.")
    fields = _fields(of)
    found: dict[str, object] = {}
    for name, value in told.items():
        field = fields.get(name)
        if field is None or value is None:
            continue
        if not field.is_repeated:
            found[field.name] = _value(of, field, value, depth)
        elif isinstance(value, list):
            found[field.name] = [_value(of, field, each, depth) for each in value]
        else:
            raise BadBody(f"The body is not OTLP: {name} of {of.name} is not an array.")
    return found


def _value(of: Descriptor, field: _Field, value: object, depth: int) -> object:
    if field.message is not None:
        return _arguments(field.message, value, depth + 1)
    try:
        return field.read(value)
    except (ValueError, OverflowError):
        what = repr(value[:80]) if isinstance(value, str) else _JSON_NAMES.get(type(value), str(value))
        raise BadBody(f"The body is not OTLP: {field.name} of {of.name} cannot be {what}.") from None


_KNOWN_FIELDS: dict[str, Mapping[str, _Field]] = {}


def _fields(of: Descriptor) -> Mapping[str, _Field]:
    """Return the fields of a message by their names in JSON, and by their original ones."""
    found = _KNOWN_FIELDS.get(of.full_name)
    if found is None:
        fields = [(each, _field(each)) for each in of.fields if each.message_type is not Exemplar.DESCRIPTOR]
        found = {name: field for each, field in fields for name in (each.name, each.json_name)}
        _KNOWN_FIELDS[of.full_name] = found
    return found


def _field(of: FieldDescriptor) -> _Field:
    read: Callable[[Any], object] = _SCALARS.get(of.type, _whole)
    if of.enum_type is not None:
        read = partial(_enum, {name: value.number for name, value in of.enum_type.values_by_name.items()})
    elif of.name in ("trace_id", "span_id"):
        read = _id
    return _Field(of.name, of.message_type, read, of.is_repeated)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError  # noqa: TRY004 - `_value` tells what and where
    return value


def _truth(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError  # noqa: TRY004 - see `_text`
    return value


def _whole(value: object) -> int:
    """Return a whole number, which may be text."""
    if isinstance(value, str) and _WHOLE.fullmatch(value):
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value):
        raise ValueError
    return int(value)


def _enum(numbers: Mapping[str, int], value: object) -> int:
    """Return the number of an enum's value, which may be told by its name."""
    found = numbers.get(value) if isinstance(value, str) else None
    return _whole(value) if found is None else found


def _number(value: object) -> float:
    """Return a number, which may be text."""
    if isinstance(value, bool) or not (
        isinstance(value, int | float) or (isinstance(value, str) and _NUMBER.fullmatch(value))
    ):
        raise ValueError
    return float(value)


def _bytes(value: object) -> bytes:
    """Return base64 of either alphabet, with or without padding, as bytes."""
    text = _text(value).replace("-", "+").replace("_", "/").rstrip("=")
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except binascii.Error:
        raise ValueError from None


def _id(value: object) -> bytes:
    """Return hex as bytes. What is no hex is no id, which is as good as none."""
    text = _text(value)
    return bytes.fromhex(text) if _HEX.fullmatch(text) else b""


_SCALARS: Mapping[int, Callable[[Any], object]] = {
    FieldDescriptor.TYPE_BOOL: _truth,
    FieldDescriptor.TYPE_BYTES: _bytes,
    FieldDescriptor.TYPE_DOUBLE: _number,
    FieldDescriptor.TYPE_STRING: _text,
}
"""How scalars are read that are not whole numbers, by the type of their field."""

_JSON_NAMES = {dict: "an object", list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
