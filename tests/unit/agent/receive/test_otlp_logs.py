"""OTLP's log records become log records: every column, and what is rejected."""

import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue, KeyValueList
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord

from lakehead.agent.receive.decoded import BadBody, BodyTooLarge, Decoded
from lakehead.agent.receive.otlp_logs import decode_otlp_logs
from lakehead.wire.record_schemas import LOGS_V1
from tests.unit.agent.receive.otlp_requests import NOON, NOW, attribute, attributes, logs_request

TRACE, SPAN = bytes(range(16)), bytes(range(8, 16))
RECORD = LogRecord(time_unix_nano=NOON)


def decoded(request: ExportLogsServiceRequest) -> Decoded:
    return decode_otlp_logs(request.SerializeToString(), is_json=False, now_ns=NOW)


def log(**fields: object) -> dict[str, object]:
    """The one record that comes of one."""
    record = LogRecord(**{"time_unix_nano": NOON, **fields})  # type: ignore[arg-type]
    [row] = rows(decoded(logs_request(record)))
    return row


def rows(found: Decoded) -> list[dict[str, object]]:
    records = found.records
    for place, name in enumerate(("time", "observed_time")):
        records = records.set_column(place, name, records.column(name).cast("int64"))
    return list(records.to_pylist())


def test_a_record_has_every_column() -> None:
    record = LogRecord(
        time_unix_nano=NOON,
        observed_time_unix_nano=NOON + 1,
        severity_number=17,  # type: ignore[arg-type]
        severity_text="ERROR",
        event_name="order.failed",
        body=AnyValue(string_value="No stock."),
        attributes=[attribute("order", 7), attribute("code", "x")],
        trace_id=TRACE,
        span_id=SPAN,
        flags=2**32 - 1,
        dropped_attributes_count=3,
    )
    scope = InstrumentationScope(name="shop.orders", version="1.2", attributes=attributes(team="a"))

    found = decoded(logs_request(record, resource=[attribute("service.name", "shop")], scope=scope))

    assert found.records.schema.equals(LOGS_V1, check_metadata=True)
    assert rows(found) == [
        {
            "time": NOON,
            "observed_time": NOON + 1,
            "severity_number": 17,
            "severity_text": "ERROR",
            "event_name": "order.failed",
            "body": "No stock.",
            "attributes": [("code", "x"), ("order", "7")],
            "trace_id": "000102030405060708090a0b0c0d0e0f",
            "span_id": "08090a0b0c0d0e0f",
            "flags": 2**32 - 1,
            "resource_attributes": [("service.name", "shop")],
            "scope_name": "shop.orders",
            "scope_version": "1.2",
            "scope_attributes": [("team", "a")],
        }
    ]


def test_what_is_not_told_is_null_or_empty() -> None:
    row = log()

    told = {name for name, value in row.items() if value is not None}
    assert told == {"time", "attributes", "flags", "resource_attributes", "scope_attributes"}
    assert row["flags"] == 0


@pytest.mark.parametrize(
    ("time", "observed", "expected", "is_own"),
    [(NOON, NOON + 1, NOON, True), (NOON, 0, NOON, True), (0, NOON + 1, NOON + 1, True), (0, 0, NOW, False)],
)
def test_the_time_is_when_it_happened_or_was_observed_or_came(
    time: int, observed: int, expected: int, *, is_own: bool
) -> None:
    found = decoded(logs_request(LogRecord(time_unix_nano=time, observed_time_unix_nano=observed)))

    [row] = rows(found)
    assert (row["time"], row["observed_time"]) == (expected, observed or None)
    assert found.have_own_times is is_own


@pytest.mark.parametrize(("told", "expected"), [(0, None), (1, 1), (24, 24), (25, None), (-1, None)])
def test_a_severity_outside_of_the_range_is_none(told: int, expected: int | None) -> None:
    assert log(severity_number=told)["severity_number"] == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (AnyValue(string_value="text"), "text"),
        (AnyValue(string_value=""), ""),
        (AnyValue(int_value=7), "7"),
        (AnyValue(bytes_value=b"\0"), "AA=="),
        (AnyValue(kvlist_value=KeyValueList(values=[attribute("a", 1.5)])), '{"a":1.5}'),
        (AnyValue(), None),
        (None, None),
    ],
)
def test_a_body_is_text_or_else_json(body: AnyValue | None, expected: str | None) -> None:
    assert log(body=body)["body"] == expected


@pytest.mark.parametrize("trace_id", [b"", bytes(16), TRACE[:-1], TRACE + b"\0"])
@pytest.mark.parametrize("span_id", [b"", bytes(8), SPAN[:-1], SPAN + b"\0"])
def test_an_invalid_id_is_none(trace_id: bytes, span_id: bytes) -> None:
    row = log(trace_id=trace_id, span_id=span_id)

    assert (row["trace_id"], row["span_id"]) == (None, None)


def test_the_last_value_of_an_attribute_counts_that_is_there_twice() -> None:
    """A log record is not lost for it: unlike a series, it is not found by its attributes."""
    twice: list[KeyValue] = [attribute("a", "1"), attribute("b", "2"), attribute("a", "3")]
    scope = InstrumentationScope(attributes=twice)

    [row] = rows(decoded(logs_request(LogRecord(time_unix_nano=NOON, attributes=twice), resource=twice, scope=scope)))

    for column in ("attributes", "resource_attributes", "scope_attributes"):
        assert row[column] == [("a", "3"), ("b", "2")]


@pytest.mark.parametrize(
    "late", [LogRecord(time_unix_nano=2**63), LogRecord(time_unix_nano=NOON, observed_time_unix_nano=2**64 - 1)]
)
def test_a_record_of_a_time_that_cannot_be_is_rejected(late: LogRecord) -> None:
    found = decoded(logs_request(RECORD, late, RECORD))

    assert (found.records.num_rows, found.rejected, found.have_own_times) == (2, 1, True)
    assert found.reason == "A log record was rejected: its time is after the year 2262."


def test_records_of_several_resources_and_scopes_have_their_own() -> None:
    request = ExportLogsServiceRequest()
    for resource, count in (("x", 2), ("y", 0), ("z", 1)):
        scope = InstrumentationScope(name=f"scope-{resource}")
        request.MergeFrom(logs_request(*[RECORD] * count, resource=attributes(host=resource), scope=scope))

    assert [(row["resource_attributes"], row["scope_name"]) for row in rows(decoded(request))] == [
        ([("host", "x")], "scope-x"),
        ([("host", "x")], "scope-x"),
        ([("host", "z")], "scope-z"),
    ]


@pytest.mark.parametrize("request_", [ExportLogsServiceRequest(), logs_request()])
def test_a_request_without_records_is_fine(request_: ExportLogsServiceRequest) -> None:
    found = decoded(request_)

    assert (found.records.num_rows, found.rejected, found.have_own_times) == (0, 0, True)


def test_a_body_that_is_not_of_logs_is_refused() -> None:
    good = logs_request(LogRecord(attributes=attributes(key="text"))).SerializeToString()

    for bad in (b"\xff", good[:-1], good.replace(b"text", b"te\xff\xff")):
        with pytest.raises(BadBody):
            decode_otlp_logs(bad, is_json=False, now_ns=NOW)


@pytest.mark.parametrize(
    "request_",
    [
        logs_request(*[RECORD] * 100, resource=[attribute("long", "x" * 1_000)]),
        logs_request(*[RECORD] * 100, scope=InstrumentationScope(name="x" * 1_000)),
        logs_request(*[RECORD] * 100, scope=InstrumentationScope(version="x" * 1_000)),
        logs_request(*[RECORD] * 100, scope=InstrumentationScope(attributes=[attribute("long", "x" * 1_000)])),
    ],
)
def test_what_is_said_once_and_stands_in_every_record_is_bounded(request_: ExportLogsServiceRequest) -> None:
    body = request_.SerializeToString()

    with pytest.raises(BodyTooLarge, match=r"more than 100,000 bytes\. Send fewer"):
        decode_otlp_logs(body, is_json=False, now_ns=NOW, max_bytes=100_000)

    assert decode_otlp_logs(body, is_json=False, now_ns=NOW, max_bytes=200_000).records.num_rows == 100
