"""The messages of Prometheus's remote write, 1.0 and 2.0, made from a description of their fields at import.

The names and numbers of the fields are those of the public specification: `prometheus.WriteRequest` of 1.0, with the
native histograms, exemplars and metadata that Prometheus has added to it since, and `io.prometheus.write.v2.Request`
in both of its forms. Up to 2.0-rc.3 the time at which a series began to count is the series' (`created_timestamp`),
since then each sample's (`start_timestamp`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

_Field: TypeAlias = tuple[int, str, str]
"""Number, type, name. A type is protobuf's word for it, or another message; `*` before it: repeated. `count:uint64` is
a member of the oneof `count`."""

_HISTOGRAM: Sequence[_Field] = (
    (1, "count:uint64", "count_int"),
    (2, "count:double", "count_float"),
    (3, "double", "sum"),
    (4, "sint32", "schema"),
    (5, "double", "zero_threshold"),
    (6, "zero_count:uint64", "zero_count_int"),
    (7, "zero_count:double", "zero_count_float"),
    (8, "*BucketSpan", "negative_spans"),
    (9, "*sint64", "negative_deltas"),
    (10, "*double", "negative_counts"),
    (11, "*BucketSpan", "positive_spans"),
    (12, "*sint64", "positive_deltas"),
    (13, "*double", "positive_counts"),
    (14, "int32", "reset_hint"),  # an enum, which has the same bytes: an unknown number is kept
    (15, "int64", "timestamp"),
    (16, "*double", "custom_values"),
)
_BUCKET_SPAN: Sequence[_Field] = ((1, "sint32", "offset"), (2, "uint32", "length"))

_V1: Mapping[str, Sequence[_Field]] = {
    "WriteRequest": ((1, "*TimeSeries", "timeseries"), (3, "*MetricMetadata", "metadata")),
    "TimeSeries": (
        (1, "*Label", "labels"),
        (2, "*Sample", "samples"),
        (3, "*Exemplar", "exemplars"),
        (4, "*Histogram", "histograms"),
    ),
    "Label": ((1, "string", "name"), (2, "string", "value")),
    "Sample": ((1, "double", "value"), (2, "int64", "timestamp")),
    "Exemplar": ((1, "*Label", "labels"), (2, "double", "value"), (3, "int64", "timestamp")),
    "MetricMetadata": (
        (1, "int32", "type"),
        (2, "string", "metric_family_name"),
        (4, "string", "help"),
        (5, "string", "unit"),
    ),
    "Histogram": _HISTOGRAM,
    "BucketSpan": _BUCKET_SPAN,
}

_V2: Mapping[str, Sequence[_Field]] = {
    "Request": ((4, "*string", "symbols"), (5, "*TimeSeries", "timeseries")),
    "TimeSeries": (
        (1, "*uint32", "labels_refs"),
        (2, "*Sample", "samples"),
        (3, "*Histogram", "histograms"),
        (4, "*Exemplar", "exemplars"),
        (5, "Metadata", "metadata"),
        (6, "int64", "created_timestamp"),
    ),
    "Sample": ((1, "double", "value"), (2, "int64", "timestamp"), (3, "int64", "start_timestamp")),
    "Exemplar": ((1, "*uint32", "labels_refs"), (2, "double", "value"), (3, "int64", "timestamp")),
    "Metadata": ((1, "int32", "type"), (3, "uint32", "help_ref"), (4, "uint32", "unit_ref")),
    "Histogram": (*_HISTOGRAM, (17, "int64", "start_timestamp")),
    "BucketSpan": _BUCKET_SPAN,
}


def _message(package: str, name: str, fields: Sequence[_Field]) -> DescriptorProto:
    described = DescriptorProto(name=name)
    oneofs: list[str] = []
    for number, words, field_name in fields:
        oneof, _, kind = words.lstrip("*").rpartition(":")
        field = described.field.add(
            name=field_name,
            number=number,
            label=FieldDescriptorProto.LABEL_REPEATED if words[0] == "*" else FieldDescriptorProto.LABEL_OPTIONAL,
        )
        if kind[0].isupper():
            field.type, field.type_name = FieldDescriptorProto.TYPE_MESSAGE, f".{package}.{kind}"
        else:
            field.type = FieldDescriptorProto.Type.Value(f"TYPE_{kind.upper()}")
        if oneof:
            if oneof not in oneofs:
                oneofs.append(oneof)
                described.oneof_decl.add(name=oneof)
            field.oneof_index = oneofs.index(oneof)
    return described


def message_class(package: str, messages: Mapping[str, Sequence[_Field]], name: str) -> type[Any]:
    """Return the class of one of the messages of a package, which has a pool of its own."""
    described = FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3")
    described.message_type.extend(_message(package, each, fields) for each, fields in messages.items())
    pool = DescriptorPool()
    pool.AddSerializedFile(described.SerializeToString())
    made: type[Any] = GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}"))
    return made


WriteRequest = message_class("prometheus", _V1, "WriteRequest")
"""A request of remote write 1.0."""

Request = message_class("io.prometheus.write.v2", _V2, "Request")
"""A request of remote write 2.0."""


@dataclass(frozen=True, slots=True)
class WriteMessages:
    """The messages of one version as they are read: what a message repeats stays bytes until it was counted.

    A message of two bytes takes a hundred times as many when it is read, and a body can be millions of them.
    """

    request: type[Any]
    """Its series are bytes. What a request of the other version has is in `of_the_other` and `of_the_other_too`."""

    series: type[Any]
    """Its histograms and exemplars are bytes."""

    parts: type[Any]
    """The same series; its labels and samples are bytes too."""

    histogram: type[Any]


def _read_as(
    package: str, messages: Mapping[str, Sequence[_Field]], request: str, of_the_other: tuple[int, int]
) -> WriteMessages:
    """`of_the_other` are the numbers of the fields that only a request of the other version has."""
    everything = ("Label", "Sample", "Histogram", "Exemplar", "TimeSeries", "MetricMetadata")
    in_parts = _with_bytes(messages, *everything)
    first, second = of_the_other
    others: Sequence[_Field] = ((first, "*bytes", "of_the_other"), (second, "*bytes", "of_the_other_too"))
    return WriteMessages(
        message_class(package, {**in_parts, request: [*in_parts[request], *others]}, request),
        message_class(package, _with_bytes(messages, "Histogram", "Exemplar"), "TimeSeries"),
        message_class(package, in_parts, "TimeSeries"),
        message_class(package, messages, "Histogram"),
    )


def _with_bytes(messages: Mapping[str, Sequence[_Field]], *kinds: str) -> Mapping[str, Sequence[_Field]]:
    """Declare what is repeated of these kinds as bytes, which is the same on the wire."""
    return {
        name: [
            (number, "*bytes" if words.removeprefix("*") in kinds else words, field) for number, words, field in fields
        ]
        for name, fields in messages.items()
    }


V1 = _read_as("prometheus", _V1, "WriteRequest", (4, 5))
V2 = _read_as("io.prometheus.write.v2", _V2, "Request", (1, 3))
