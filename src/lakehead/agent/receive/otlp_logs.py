"""A body of OTLP's `/v1/logs`, decoded to log records."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from lakehead.agent.receive.arrow_columns import bool_column, number_column, repeated, text_column
from lakehead.agent.receive.decoded import MAX_RECORD_BYTES, MAX_TIME_NS, BodyTooLarge, Decoded
from lakehead.agent.receive.otlp_json import logs_from_json
from lakehead.agent.receive.otlp_labels import AttributeSets, KnownAttributes, LabelSet, label_column, size_of
from lakehead.agent.receive.otlp_messages import LogsRequest, parse
from lakehead.agent.receive.otlp_parts import check_logs
from lakehead.agent.receive.otlp_values import optional_text_of
from lakehead.wire.record_schemas import FrameKind, newest_schema

_SCHEMA = newest_schema(FrameKind.LOGS)
_SEVERITIES = range(1, 25)
_TRACE_ID_BYTES, _SPAN_ID_BYTES = 16, 8
_SCOPE_BYTES, _ROW_BYTES = 1_000, 150
"""What a scope and a log record take besides their texts while they are decoded, about."""

_KNOWN = KnownAttributes()


def decode_otlp_logs(
    body: bytes, *, is_json: bool, now_ns: int, known: KnownAttributes = _KNOWN, max_bytes: int = MAX_RECORD_BYTES
) -> Decoded:
    """Return the log records of an `ExportLogsServiceRequest`.

    A record without a time has the time at which it was observed, or else `now_ns`. One whose time is after the year
    2262 is rejected. Raises `BadBody` if the body cannot be decoded, and `BodyTooLarge` if the records would take more
    than `max_bytes`.
    """
    content = logs_from_json(body) if is_json else body
    check_logs(content)
    request = parse(LogsRequest, content)
    records = _Records(known.sets(), max_bytes)
    for of_resource in request.resource_logs:
        for of_scope in of_resource.scope_logs:
            records.add(of_resource.resource, of_scope)
    return records.decoded(now_ns)


class _Records:
    """The log records of a request, as columns."""

    def __init__(self, attributes: AttributeSets, max_bytes: int) -> None:
        self._known = attributes
        self._max_bytes = self._bytes_left = max_bytes
        self._records: list[Any] = []
        self._resources: list[LabelSet] = []
        self._scopes: list[LabelSet] = []
        self._scope_names: list[str] = []
        self._scope_versions: list[str] = []
        self._counts: list[int] = []

    def add(self, resource: Any, of_scope: Any) -> None:
        """Add the records of a scope. Raises `BadBody` and `BodyTooLarge`."""
        count, scope = len(of_scope.log_records), of_scope.scope
        if not count:
            return
        of_resource, attributes = self._known[tuple(resource.attributes)], self._known[tuple(scope.attributes)]
        self._bytes_left -= _SCOPE_BYTES + count * (
            size_of(of_resource) + size_of(attributes) + len(scope.name) + len(scope.version) + _ROW_BYTES
        )
        if self._bytes_left < 0:
            raise BodyTooLarge(
                f"With the attributes of their resource and scope the log records of this body would take more than "
                f"{self._max_bytes:,} bytes. Send fewer records at once, or drop attributes of the resource."
            )
        self._records.extend(of_scope.log_records)
        self._resources.append(of_resource)
        self._scopes.append(attributes)
        self._scope_names.append(scope.name)
        self._scope_versions.append(scope.version)
        self._counts.append(count)

    def decoded(self, now_ns: int) -> Decoded:
        """Return them as records of their kind. Raises `BadBody`."""
        records, counts = self._records, np.array(self._counts, np.int64)
        told = np.array([record.time_unix_nano for record in records], np.uint64)
        observed = np.array([record.observed_time_unix_nano for record in records], np.uint64)
        times = np.where(told == 0, observed, told)
        severities = np.array([record.severity_number for record in records], np.int32)
        columns = {
            "time": number_column(_type("time"), np.where(times == 0, np.uint64(now_ns), times)),
            "observed_time": number_column(_type("observed_time"), observed, observed != 0),
            "severity_number": number_column(
                pa.int32(), severities, (severities >= _SEVERITIES.start) & (severities < _SEVERITIES.stop)
            ),
            "severity_text": _texts(record.severity_text for record in records),
            "event_name": _texts(record.event_name for record in records),
            "body": text_column([_body(record) for record in records]),
            "attributes": label_column(
                _type("attributes"), [self._known[tuple(record.attributes)] for record in records]
            ),
            "trace_id": _ids([record.trace_id for record in records], _TRACE_ID_BYTES),
            "span_id": _ids([record.span_id for record in records], _SPAN_ID_BYTES),
            "flags": number_column(pa.int64(), np.array([record.flags for record in records], np.int64)),
            "resource_attributes": repeated(label_column(_type("resource_attributes"), self._resources), counts),
            "scope_name": repeated(_texts(self._scope_names), counts),
            "scope_version": repeated(_texts(self._scope_versions), counts),
            "scope_attributes": repeated(label_column(_type("scope_attributes"), self._scopes), counts),
        }
        batch = pa.RecordBatch.from_arrays([columns[name] for name in _SCHEMA.schema.names], schema=_SCHEMA.schema)
        keep = (times <= MAX_TIME_NS) & (observed <= MAX_TIME_NS)
        if not keep.all():
            batch, times = batch.filter(bool_column(keep.tolist())), times[keep]
        _SCHEMA.check(batch)
        rejected = len(records) - len(batch)
        reason = "A log record was rejected: its time is after the year 2262." if rejected else ""
        return Decoded(batch, rejected, reason, bool((times != 0).all()))


def _body(record: Any) -> str | None:
    body = record.body
    return body.string_value or optional_text_of(body)


def _texts(texts: Iterable[str]) -> pa.StringArray:
    return text_column([text or None for text in texts])


def _ids(ids: Sequence[bytes], size: int) -> pa.StringArray:
    """Return ids in hex. One of another length, or of zeros alone, is none."""
    return text_column([each.hex() if len(each) == size and any(each) else None for each in ids])


def _type(column: str) -> pa.DataType:
    return _SCHEMA.schema.field(column).type
