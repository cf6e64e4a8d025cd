"""The messages of OTLP as this package reads them: what is read often stays bytes.

They are OpenTelemetry's own definitions with a few fields declared as bytes, which are the same on the wire. A request
then decodes several times as fast: attributes repeat and are read once for all of them, and the points of gauges and
sums have few forms and are read many at a time.
"""

from typing import Any

from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass
from opentelemetry.proto.collector.logs.v1 import logs_service_pb2
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2
from opentelemetry.proto.common.v1 import common_pb2
from opentelemetry.proto.logs.v1 import logs_pb2
from opentelemetry.proto.metrics.v1 import metrics_pb2
from opentelemetry.proto.resource.v1 import resource_pb2

from lakehead.agent.receive.decoded import BadBody

_FILES = (common_pb2, resource_pb2, metrics_pb2, metrics_service_pb2, logs_pb2, logs_service_pb2)
_PACKAGE = "opentelemetry.proto"
_NUMBER_POINT = f".{_PACKAGE}.metrics.v1.NumberDataPoint"
_KEY_VALUE = f".{_PACKAGE}.common.v1.KeyValue"
VALUE_FIELDS = {"start_time_unix_nano": 2, "time_unix_nano": 3, "as_double": 4, "as_int": 6}
"""The times and values of a point of a gauge or sum, each of eight bytes."""

_NOT_READ_AT_ONCE = frozenset({_NUMBER_POINT, f".{_PACKAGE}.metrics.v1.Exemplar"})


def _stays_bytes(field: FieldDescriptorProto) -> bool:
    if field.name in ("attributes", "metadata"):
        return str(field.type_name) == _KEY_VALUE
    return field.type_name in _NOT_READ_AT_ONCE


def _tail_of_a_point() -> FileDescriptorProto:
    """What a point of a gauge or sum ends with, and what stands before that, which should not be there."""
    file = FileDescriptorProto(name="lakehead/tail.proto", package="lakehead", syntax="proto2")  # knows what is there
    tail = file.message_type.add(name="Tail")
    field = FieldDescriptorProto
    tail.field.add(name="exemplars", number=5, label=field.LABEL_REPEATED, type=field.TYPE_BYTES)
    tail.field.add(name="attributes", number=7, label=field.LABEL_REPEATED, type=field.TYPE_BYTES)
    tail.field.add(name="flags", number=8, label=field.LABEL_OPTIONAL, type=field.TYPE_UINT32)
    for name, number in VALUE_FIELDS.items():
        tail.field.add(name=name, number=number, label=field.LABEL_OPTIONAL, type=field.TYPE_FIXED64)
    return file


def _definitions() -> DescriptorPool:
    pool = DescriptorPool()
    for module in _FILES:
        file = FileDescriptorProto()
        module.DESCRIPTOR.CopyToProto(file)
        for message in file.message_type:
            for field in message.field:
                if _stays_bytes(field):
                    field.type = FieldDescriptorProto.TYPE_BYTES
                    field.ClearField("type_name")
        pool.Add(file)
    pool.Add(_tail_of_a_point())
    return pool


_POOL = _definitions()


def _message(name: str) -> Any:
    return GetMessageClass(_POOL.FindMessageTypeByName(name))


MetricsRequest = _message(f"{_PACKAGE}.collector.metrics.v1.ExportMetricsServiceRequest")
"""Its attributes are bytes, each a `KeyValue`; so are the points of gauges and sums, each a `NumberPoint`."""

LogsRequest = _message(f"{_PACKAGE}.collector.logs.v1.ExportLogsServiceRequest")
"""Its attributes are bytes, each a `KeyValue`."""

NumberPoint = _message(_NUMBER_POINT.removeprefix("."))
Tail = _message("lakehead.Tail")


def parse(kind: type[Message], data: bytes) -> Any:
    """Return bytes as a message. Raises `BadBody` if they are none, have invalid UTF-8, or nest more than 100 deep."""
    try:
        return kind.FromString(data)
    except DecodeError:
        raise BadBody(
            f"The body cannot be decoded as protobuf: a {kind.DESCRIPTOR.name} in it is cut short or damaged, has text "
            "that is not UTF-8, or values nested too deep. Check that the sender speaks OTLP, and to this route."
        ) from None
