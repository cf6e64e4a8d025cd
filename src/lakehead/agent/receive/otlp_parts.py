"""Counts the messages inside of an OTLP body before they are read.

A message of two bytes takes up to a hundred times as many when it is read, and a body can be millions of them. Here
only one level is read at a time, and what it holds stays bytes.
"""

from collections.abc import Mapping
from typing import Any

from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from lakehead.agent.receive.decoded import BodyTooLarge
from lakehead.agent.receive.otlp_messages import parse

MOST_PARTS = 500_000
"""The most messages of one body: resources, scopes, metrics, log records, points that are not numbers, quantiles, and
values inside of a long list or map."""

_PART_BYTES = 2
"""The shortest message: what has so many bytes for each that it may have is not counted."""

_COUNTED_BYTES = 64 << 10
"""Values inside of a message that are shorter are not looked into: they take some ten times their bytes at most."""


class _Level:
    """A message: which of its fields are messages, and what is in those. None: they are not looked into."""

    def __init__(self, fields: Mapping[int, "_Level | None"], counted_bytes: int = 0) -> None:
        self.counted_bytes = counted_bytes
        """It is looked into if it has more bytes."""

        self.set_fields(fields)

    def set_fields(self, fields: Mapping[int, "_Level | None"]) -> None:
        """Set what is in it, which may be messages of its own kind."""
        self.fields = fields
        file = FileDescriptorProto(name="lakehead/parts.proto", package="lakehead", syntax="proto3")
        described = file.message_type.add(name="Parts")
        repeated, of_bytes = FieldDescriptorProto.LABEL_REPEATED, FieldDescriptorProto.TYPE_BYTES
        for number in fields:
            described.field.add(name=f"f{number}", number=number, label=repeated, type=of_bytes)
        pool = DescriptorPool()
        pool.AddSerializedFile(file.SerializeToString())
        self.message: Any = GetMessageClass(pool.FindMessageTypeByName("lakehead.Parts"))
        """The message with these fields alone, as bytes, however often they are there."""


_VALUE = _Level({}, _COUNTED_BYTES)
_PAIR = _Level({2: _VALUE}, _COUNTED_BYTES)
_VALUE.set_fields({5: _Level({1: _VALUE}, _COUNTED_BYTES), 6: _Level({1: _PAIR}, _COUNTED_BYTES)})

_RECORD = _Level({5: _VALUE}, _COUNTED_BYTES)
_LOGS = _Level({1: _Level({2: _Level({2: _RECORD})})})

_POINTS = _Level({1: None})
_METRIC = _Level({9: _POINTS, 10: _POINTS, 11: _Level({1: _Level({6: None})})})
_METRICS = _Level({1: _Level({2: _Level({2: _METRIC})})})


def check_metrics(body: bytes) -> None:
    """Raise `BodyTooLarge` if an `ExportMetricsServiceRequest` has too many messages, and `BadBody` if it is none."""
    _check(_METRICS, body)


def check_logs(body: bytes) -> None:
    """Raise `BodyTooLarge` if an `ExportLogsServiceRequest` has too many messages, and `BadBody` if it is none."""
    _check(_LOGS, body)


def check_pair(raw: bytes) -> None:
    """Raise `BodyTooLarge` if a `KeyValue` has too many values, and `BadBody` if it is none."""
    _check(_PAIR, raw)


def check_json(body: bytes) -> None:
    """Raise `BodyTooLarge` if a body in JSON has too many objects and arrays. Two of them are one attribute."""
    if len(body) > _PART_BYTES * MOST_PARTS and body.count(b"{") + body.count(b"[") > 2 * MOST_PARTS:
        raise _too_large()


def _check(level: _Level, data: bytes) -> None:
    if len(data) <= _PART_BYTES * MOST_PARTS:
        return
    count = 0
    left = [(level, data)]
    while left:
        level, data = left.pop()
        parts = parse(level.message, data)
        for number, inner in level.fields.items():
            found = getattr(parts, f"f{number}")
            count += len(found)
            if count > MOST_PARTS:
                raise _too_large()
            if inner is not None:
                left += [(inner, each) for each in found if len(each) > inner.counted_bytes]


def _too_large() -> BodyTooLarge:
    return BodyTooLarge(f"The body has more than {MOST_PARTS:,} messages in it. Send fewer records at once.")
