"""What the receivers answer to each protocol."""

import gzip
from collections.abc import Mapping

import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest, ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)

from lakehead.agent.receive.receiver_settings import ReceiverSettings
from lakehead.agent.receive.sample_columns import RecordLimits
from lakehead.agent.spool_errors import KeyReused, RecordsTooLarge, SpoolFull, SpoolUnusable
from lakehead.errors import OutcomeUnknown, Unavailable
from lakehead.wire.record_schemas import FrameKind
from tests.support.async_tests import async_test
from tests.unit.agent.receive.app_support import (
    JSON,
    JSON_LOGS,
    JSON_SAMPLES,
    LOGS,
    METRICS,
    NDJSON,
    PROTOBUF,
    WRITE,
    WRITE_V1,
    WRITE_V2,
    Receivers,
    snappy,
)
from tests.unit.agent.receive.write_requests import MS, UP, v1, v2

NS = 1_760_000_000_000_000_000
OTLP = {"Content-Type": PROTOBUF}
OTLP_JSON = {"Content-Type": JSON}
LINES = {"Content-Type": NDJSON}
LINE = b'{"time": 1760000000000000000, "metric": "up", "value": 1}\n'
LOG_LINE = b'{"time": 1760000000000000000, "body": "hello"}\n'


def metrics_request(*times: int) -> bytes:
    request = ExportMetricsServiceRequest()
    metric = request.resource_metrics.add().scope_metrics.add().metrics.add(name="up")
    for time in times:
        metric.gauge.data_points.add(time_unix_nano=time, as_double=1.0)
    return bytes(request.SerializeToString())


def logs_request(*times: int) -> bytes:
    request = ExportLogsServiceRequest()
    records = request.resource_logs.add().scope_logs.add().log_records
    for time in times:
        records.add(time_unix_nano=time).body.string_value = "hello"
    return bytes(request.SerializeToString())


METRICS_JSON = (
    b'{"resourceMetrics": [{"scopeMetrics": [{"metrics": [{"name": "up", "gauge": {"dataPoints": '
    b'[{"timeUnixNano": "1760000000000000000", "asDouble": 1.0}]}}]}]}]}'
)
REQUESTS: Mapping[str, tuple[str, bytes, Mapping[str, str]]] = {
    "OTLP metrics": (METRICS, metrics_request(NS), OTLP),
    "OTLP metrics, gzip": (METRICS, gzip.compress(metrics_request(NS)), {**OTLP, "Content-Encoding": "gzip"}),
    "OTLP metrics, JSON": (
        METRICS,
        METRICS_JSON,
        {"Content-Type": "application/JSON; charset=utf-8"},
    ),
    "OTLP logs": (LOGS, logs_request(NS), OTLP),
    "OTLP logs, JSON": (
        LOGS,
        gzip.compress(
            b'{"resourceLogs": [{"scopeLogs": [{"logRecords": [{"timeUnixNano": "1760000000000000000", "body": '
            b'{"stringValue": "hello"}}]}]}]}'
        ),
        {**OTLP_JSON, "Content-Encoding": "GZIP"},
    ),
    "remote write 1.0": (WRITE, snappy(v1((UP, [(MS, 1)]))), WRITE_V1),
    "remote write 1.0, by name": (
        WRITE,
        snappy(v1((UP, [(MS, 1)]))),
        {**WRITE_V1, "Content-Type": 'application/x-protobuf; proto="prometheus.WriteRequest"'},
    ),
    "remote write 2.0": (WRITE, snappy(v2((UP, [(MS, 1)]))), WRITE_V2),
    "JSON samples": (JSON_SAMPLES, LINE, LINES),
    "JSON logs": (JSON_LOGS, LOG_LINE, LINES),
    "JSON logs, gzip": (JSON_LOGS, gzip.compress(LOG_LINE), {**LINES, "Content-Encoding": "gzip"}),
}
EACH = pytest.mark.parametrize("name", REQUESTS)


# --- what is taken


@EACH
@async_test
async def test_a_request_is_answered_when_its_records_are_on_disk(name: str) -> None:
    receivers = Receivers()
    path, body, headers = REQUESTS[name]

    answer = await receivers.post(path, body, headers)

    assert answer.status_code == (204 if path == WRITE else 200)
    assert "retry-after" not in answer.headers
    [(kind, records, known_by)] = receivers.recorder.appended
    is_logs = path in (LOGS, JSON_LOGS)
    assert kind is (FrameKind.LOGS if is_logs else FrameKind.SAMPLES)
    [row] = receivers.recorder.rows
    assert (row["body"] == "hello") if is_logs else (row["metric"] == "up" and row["value"] == 1)
    assert records.column("time").cast("int64").to_pylist() in ([NS], [MS * 1_000_000])
    assert known_by is not None


@EACH
@async_test
async def test_the_same_body_again_is_answered_and_not_kept_again(name: str) -> None:
    receivers = Receivers()
    path, body, headers = REQUESTS[name]

    first, again = await receivers.post(path, body, headers), await receivers.post(path, body, headers)

    assert (first.status_code, len(receivers.recorder.appended)) == (again.status_code, 1)
    if path.startswith("/v1/json"):
        assert [first.json(), again.json()] == [
            {"records": 1, "duplicate": False},
            {"records": 1, "duplicate": True},
        ]


@async_test
async def test_the_same_content_is_the_same_however_it_was_compressed() -> None:
    receivers = Receivers()

    await receivers.post(METRICS, metrics_request(NS), OTLP)
    for level in (1, 9):
        body = gzip.compress(metrics_request(NS), level)
        await receivers.post(METRICS, body, {**OTLP, "Content-Encoding": "gzip"})

    assert len(receivers.recorder.appended) == 1


@async_test
async def test_the_same_content_of_another_sender_or_at_another_route_is_another() -> None:
    receivers = Receivers()

    await receivers.post(JSON_LOGS, LOG_LINE, {**LINES, "User-Agent": "a"})
    await receivers.post(JSON_LOGS, LOG_LINE, {**LINES, "User-Agent": "b"})
    await receivers.request("POST", JSON_LOGS, LOG_LINE, {**LINES, "User-Agent": "a"}, client=("127.0.0.2", 1))
    await receivers.request("POST", JSON_LOGS, LOG_LINE, {**LINES, "User-Agent": "a"}, client=None)

    assert len(receivers.recorder.appended) == 4
    empty_time = b'{"time": 1760000000000000000, "metric": "m", "value": 1}'
    await receivers.post(JSON_SAMPLES, empty_time, LINES)
    assert len({each[2].dedupe_id for each in receivers.recorder.appended if each[2]}) == 5


@async_test
async def test_records_without_a_time_of_their_own_are_never_taken_for_the_same() -> None:
    receivers = Receivers()
    line = b'{"metric": "up", "value": 1}'

    for path, body, headers in ((JSON_SAMPLES, line, LINES), (METRICS, metrics_request(0), OTLP)):
        assert (await receivers.post(path, body, headers)).status_code == 200
        assert (await receivers.post(path, body, headers)).status_code == 200

    assert [known_by for _, _, known_by in receivers.recorder.appended] == [None] * 4


@async_test
async def test_a_key_makes_a_request_known_whatever_its_times() -> None:
    receivers = Receivers()
    keyed = {**LINES, "Idempotency-Key": "one"}
    line = b'{"metric": "up", "value": 1}'

    first = await receivers.post(JSON_SAMPLES, line, keyed)
    again = await receivers.post(JSON_SAMPLES, line, keyed)
    other_key = await receivers.post(JSON_SAMPLES, line, {**LINES, "Idempotency-Key": "two"})
    other_body = await receivers.post(JSON_SAMPLES, line + b"\n" + line, keyed)

    assert [each.status_code for each in (first, again, other_key, other_body)] == [200, 200, 200, 422]
    assert again.json() == {"records": 1, "duplicate": True}
    assert other_body.json()["error"]["code"] == "key_reused"
    assert len(receivers.recorder.appended) == 2


@pytest.mark.parametrize("key", ["", "x" * 257])
@async_test
async def test_a_key_that_is_none_is_refused(key: str) -> None:
    receivers = Receivers()

    answer = await receivers.post(JSON_SAMPLES, LINE, {**LINES, "Idempotency-Key": key})

    assert (answer.status_code, receivers.recorder.appended) == (400, [])


@pytest.mark.parametrize(
    ("path", "body", "headers"),
    [
        (METRICS, b"", OTLP),
        (METRICS, b"{}", OTLP_JSON),
        (LOGS, b"", OTLP),
        (WRITE, snappy(v1()), WRITE_V1),
        (WRITE, snappy(v1((UP, []))), WRITE_V1),
        (WRITE, snappy(v2((UP, []))), WRITE_V2),
        (JSON_SAMPLES, b"\n\n", LINES),
    ],
)
@async_test
async def test_a_request_without_records_is_fine_and_puts_nothing_on_disk(
    path: str, body: bytes, headers: Mapping[str, str]
) -> None:
    receivers = Receivers()

    answer = await receivers.post(path, body, headers)

    assert answer.status_code in (200, 204)
    assert receivers.recorder.appended == []


# --- OTLP


@async_test
async def test_otlp_is_answered_in_the_content_type_of_the_request() -> None:
    receivers = Receivers()

    binary = await receivers.post(METRICS, metrics_request(NS), OTLP)
    text = await receivers.post(METRICS, b'{"resourceMetrics": []}', OTLP_JSON)

    assert (binary.headers["content-type"], binary.content) == (PROTOBUF, b"")
    assert (text.headers["content-type"], text.json()) == (JSON, {})


@async_test
async def test_what_otlp_cannot_keep_is_told_in_a_partial_success() -> None:
    receivers = Receivers()

    metrics = await receivers.post(METRICS, metrics_request(NS, 2**64 - 1, NS + 1), OTLP)
    logs = await receivers.post(LOGS, logs_request(2**64 - 1, NS), OTLP)
    text = b'{"resourceLogs": [{"scopeLogs": [{"logRecords": [{"timeUnixNano": "18446744073709551615"}]}]}]}'
    as_json = await receivers.post(LOGS, text, OTLP_JSON)

    assert [each.status_code for each in (metrics, logs, as_json)] == [200] * 3
    told = ExportMetricsServiceResponse.FromString(metrics.content).partial_success
    assert told.rejected_data_points == 1
    assert told.error_message
    assert ExportLogsServiceResponse.FromString(logs.content).partial_success.rejected_log_records == 1
    assert as_json.json()["partialSuccess"]["rejectedLogRecords"] == "1"
    assert [len(records) for _, records, _ in receivers.recorder.appended] == [2, 1]
    assert receivers.metric("rejected_records_total", route=METRICS) == 1


@async_test
async def test_an_error_of_otlp_is_a_status_in_the_content_type_of_the_request() -> None:
    receivers = Receivers()

    binary = await receivers.post(METRICS, b"\xff\xff", OTLP)
    text = await receivers.post(LOGS, b"[]", OTLP_JSON)

    assert (binary.status_code, binary.headers["content-type"]) == (400, PROTOBUF)
    assert binary.content.startswith(b"\x08\x03\x12")  # code = 3, message
    assert (text.status_code, text.headers["content-type"]) == (400, JSON)
    assert text.json()["code"] == 3
    assert text.json()["message"]


# --- remote write


def written(headers: Mapping[str, str]) -> list[str | None]:
    kinds = ("Samples", "Histograms", "Exemplars")
    return [headers.get(f"X-Prometheus-Remote-Write-{kind}-Written") for kind in kinds]


@async_test
async def test_remote_write_2_0_is_told_how_much_was_written() -> None:
    receivers = Receivers()
    request = v2((UP, [(MS, 1), (MS + 1, 2)]))
    request.timeseries[0].histograms.add(timestamp=MS, count_int=0)
    request.timeseries[0].exemplars.add(value=1, timestamp=MS)

    answer = await receivers.post(WRITE, snappy(request), WRITE_V2)

    assert (answer.status_code, answer.content, written(answer.headers)) == (204, b"", ["2", "1", "0"])
    again = await receivers.post(WRITE, snappy(request), WRITE_V2)
    assert (again.status_code, written(again.headers)) == (204, ["2", "1", "0"])  # a duplicate is written too


@async_test
async def test_remote_write_1_0_is_not_told_what_it_does_not_know() -> None:
    answer = await Receivers().post(WRITE, snappy(v1((UP, [(MS, 1)]))), WRITE_V1)

    assert written(answer.headers) == [None] * 3


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@async_test
async def test_a_wrong_sample_is_400_and_all_others_are_on_disk(version: str) -> None:
    receivers = Receivers()
    made, headers = (v1, WRITE_V1) if version == "1.0" else (v2, WRITE_V2)
    request = made((UP, [(MS, 1)]), ({"job": "nameless"}, [(MS, 2), (MS, 3)]), (UP, [(MS, 4)]))

    answers = [await receivers.post(WRITE, snappy(request), headers) for _ in range(2)]

    for answer in answers:
        assert answer.status_code == 400
        assert answer.headers["content-type"].startswith("text/plain")
        assert answer.text == '2 of 4 samples were not kept. {job="nameless"}: It has no __name__.\n'
        assert written(answer.headers) == (["2", "0", "0"] if version == "2.0" else [None] * 3)
    assert [row["value"] for row in receivers.recorder.rows] == [1, 4]  # once, although it was sent twice


@async_test
async def test_a_request_of_remote_write_is_never_a_success_unless_all_of_it_is_on_disk() -> None:
    receivers = Receivers()
    nothing_valid = v2(({"job": "nameless"}, [(MS, 1)]))

    answer = await receivers.post(WRITE, snappy(nothing_valid), WRITE_V2)
    assert (answer.status_code, written(answer.headers)) == (400, ["0", "0", "0"])

    receivers.recorder.error = SpoolFull("The spool is full.")
    answer = await receivers.post(WRITE, snappy(v2((UP, [(MS, 1)]))), WRITE_V2)
    assert (answer.status_code, written(answer.headers)) == (503, ["0", "0", "0"])
    partly = await receivers.post(WRITE, snappy(v2((UP, [(MS, 1)]), ({}, [(MS, 1)]))), WRITE_V2)
    assert partly.status_code == 503  # the wrong one is told when the others are on disk


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        (WRITE_V2, v1((UP, [(MS, 1)]))),
        (WRITE_V1, v2((UP, [(MS, 1)]))),
    ],
    ids=["1.0 as 2.0", "2.0 as 1.0"],
)
@async_test
async def test_a_message_of_the_other_version_is_no_empty_request(headers: Mapping[str, str], body: object) -> None:
    answer = await Receivers().post(WRITE, snappy(body), headers)

    assert answer.status_code == 400
    assert "Content-Type" in answer.text


# --- types and encodings


@pytest.mark.parametrize(
    ("path", "content_type"),
    [
        (METRICS, ""),
        (METRICS, "text/plain"),
        (METRICS, "application/x-www-form-urlencoded"),
        (LOGS, NDJSON),
        (WRITE, ""),
        (WRITE, JSON),
        (WRITE, "image/png"),
        (WRITE, "application/x-protobuf;proto=io.prometheus.write.v3.Request"),
        (WRITE, "application/x-protobuf;proto=prometheus.writerequest"),
        (JSON_SAMPLES, ""),
        (JSON_SAMPLES, "text/plain"),
        (JSON_LOGS, "application/x-www-form-urlencoded"),
        (JSON_LOGS, "multipart/form-data; boundary=x"),
    ],
)
@async_test
async def test_another_content_type_is_415_and_nothing_is_read(path: str, content_type: str) -> None:
    receivers = Receivers()
    encoding = {"Content-Encoding": "snappy"} if path == WRITE else {}

    answer = await receivers.post(path, b"x", {"Content-Type": content_type, **encoding})

    assert answer.status_code == 415
    assert receivers.metric("body_bytes_total", route=path) == 0


@pytest.mark.parametrize(
    ("path", "headers", "encoding"),
    [
        (METRICS, OTLP, "snappy"),
        (METRICS, OTLP, "deflate"),
        (LOGS, OTLP_JSON, "zstd"),
        (LOGS, OTLP_JSON, "gzip, gzip"),
        (WRITE, WRITE_V1, "gzip"),
        (WRITE, WRITE_V2, "zstd"),
        (WRITE, WRITE_V1, ""),
        (WRITE, WRITE_V1, "identity"),
        (JSON_LOGS, LINES, "br"),
    ],
)
@async_test
async def test_another_encoding_is_415_and_the_known_ones_are_told(
    path: str, headers: Mapping[str, str], encoding: str
) -> None:
    receivers = Receivers()

    answer = await receivers.post(path, b"x", {**headers, "Content-Encoding": encoding})

    assert answer.status_code == 415
    assert answer.headers["accept-encoding"] == ("snappy" if path == WRITE else "identity, gzip")
    assert receivers.recorder.appended == []


@pytest.mark.parametrize(
    ("path", "body", "headers"),
    [
        (METRICS, b"\xff", OTLP),
        (METRICS, b"{", OTLP_JSON),
        (METRICS, b"no gzip", {**OTLP, "Content-Encoding": "gzip"}),
        (METRICS, gzip.compress(metrics_request(NS), mtime=0)[:-1], {**OTLP, "Content-Encoding": "gzip"}),
        (METRICS, gzip.compress(metrics_request(NS), mtime=0) + b"more", {**OTLP, "Content-Encoding": "gzip"}),
        (LOGS, b"\xff", OTLP),
        (WRITE, b"no snappy", WRITE_V1),
        (WRITE, b"", WRITE_V1),
        (WRITE, snappy(b"no protobuf"), WRITE_V1),
        (WRITE, b"\xff\x06\x00\x00sNaPpY", WRITE_V2),
        (JSON_SAMPLES, b"{", LINES),
        (JSON_LOGS, LOG_LINE + b"[]", LINES),
    ],
)
@async_test
async def test_a_body_that_is_not_what_its_headers_say_is_400_and_nothing_is_kept(
    path: str, body: bytes, headers: Mapping[str, str]
) -> None:
    receivers = Receivers()

    answer = await receivers.post(path, body, headers)

    assert answer.status_code == 400
    assert answer.content
    assert receivers.recorder.appended == []


@async_test
async def test_a_bad_line_is_told_with_its_number() -> None:
    receivers = Receivers()

    answer = await receivers.post(JSON_LOGS, LOG_LINE + b"\n[]\n", LINES)

    assert answer.json() == {
        "error": {
            "code": "bad_request",
            "message": "Line 3: It is not a JSON object. Nothing of the request was kept.",
        }
    }


# --- what the spool says


UNAVAILABLE = {
    "full": SpoolFull("The spool has 4 GiB, as many as it may."),
    "unusable": SpoolUnusable("The disk failed."),
    "unavailable": Unavailable("The disk is away."),
    "unknown": OutcomeUnknown("Nobody knows."),
    "a fault": RuntimeError("nobody foresaw it"),
}


@EACH
@pytest.mark.parametrize("why", UNAVAILABLE)
@async_test
async def test_what_is_not_on_disk_is_503_with_the_time_to_wait(name: str, why: str) -> None:
    receivers = Receivers(ReceiverSettings(retry_after_seconds=7))
    receivers.recorder.error = UNAVAILABLE[why]
    path, body, headers = REQUESTS[name]

    answer = await receivers.post(path, body, headers)

    assert (answer.status_code, answer.headers["retry-after"]) == (503, "7")
    assert receivers.recorder.appended == []
    receivers.recorder.error = None
    assert (await receivers.post(path, body, headers)).is_success
    assert len(receivers.recorder.appended) == 1


@EACH
@async_test
async def test_a_spool_that_takes_nothing_is_told_before_the_body_is_read(name: str) -> None:
    receivers = Receivers()
    receivers.recorder.full = SpoolFull("It is full.")
    path, body, headers = REQUESTS[name]

    answer = await receivers.post(path, body, headers)

    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    assert receivers.metric("body_bytes_total", route=path) == 0


@pytest.mark.parametrize(
    ("error", "status"), [(KeyReused("Use a new key."), 422), (RecordsTooLarge("Send less."), 413)]
)
@EACH
@async_test
async def test_what_would_fail_again_is_not_503(name: str, error: Exception, status: int) -> None:
    receivers = Receivers()
    receivers.recorder.error = error
    path, body, headers = REQUESTS[name]

    answer = await receivers.post(path, body, headers)

    assert (answer.status_code, answer.headers.get("retry-after")) == (status, None)


@async_test
async def test_more_records_than_a_request_may_have_are_413() -> None:
    receivers = Receivers(ReceiverSettings(records=RecordLimits(records=1)))

    lines = await receivers.post(JSON_LOGS, LOG_LINE * 2, LINES)
    samples = await receivers.post(WRITE, snappy(v1((UP, [(MS, 1)] * 2))), WRITE_V1)

    assert (lines.status_code, samples.status_code) == (413, 413)


# --- other requests


@async_test
async def test_other_paths_and_methods_are_told_so() -> None:
    receivers = Receivers()

    nowhere = await receivers.post("/v1/traces", b"", OTLP)
    wrong = await receivers.get(METRICS)
    control = await receivers.post("/v1/status")

    assert (nowhere.status_code, nowhere.json()["error"]["code"]) == (404, "not_found")
    assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST")
    assert (control.status_code, control.headers["allow"]) == (405, "GET")


@async_test
async def test_requests_are_counted_by_route_and_status_and_unknown_paths_together() -> None:
    receivers = Receivers()

    await receivers.post(JSON_LOGS, LOG_LINE * 3, LINES)
    await receivers.post(JSON_LOGS, b"{", LINES)
    for path in ("/a", "/b"):
        await receivers.get(path)
    for path in ("/c", "/d"):
        await receivers.get(path, host="evil.example")
    for number in (1, 2, 3):
        await receivers.get(f"/v1/parked/{number}")

    assert receivers.metric("requests_total", route=JSON_LOGS, status="200") == 1
    assert receivers.metric("requests_total", route=JSON_LOGS, status="400") == 1
    assert receivers.metric("requests_total", route="other", status="404") == 2
    assert receivers.metric("requests_total", route="other", status="403") == 2
    assert receivers.metric("requests_total", route="/v1/parked/{number}", status="404") == 3
    assert receivers.metric("received_records_total", route=JSON_LOGS) == 3
    assert receivers.metric("request_seconds_count", route=JSON_LOGS) == 2
    assert receivers.metric("body_bytes_total", route=JSON_LOGS) == 3 * len(LOG_LINE) + 1
