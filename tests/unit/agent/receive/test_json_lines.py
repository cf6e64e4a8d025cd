"""JSON lines as samples and log records."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehead.agent.receive.decoded import BadBody, BodyTooLarge, Decoded
from lakehead.agent.receive.json_lines import decode_json_lines
from lakehead.agent.receive.sample_columns import RecordLimits
from lakehead.wire.record_schemas import LOGS_V1, SAMPLES_V2, FrameKind

NOW = 1_763_454_600_000_000_000
OWN = 1_763_000_000_000_000_001


def samples(*lines: str, limits: RecordLimits | None = None) -> Decoded:
    body = "\n".join(lines).encode()
    return decode_json_lines(FrameKind.SAMPLES, body, now_ns=NOW, limits=limits or RecordLimits())


def logs(*lines: str) -> Decoded:
    return decode_json_lines(FrameKind.LOGS, "\n".join(lines).encode(), now_ns=NOW)


def times(found: Decoded) -> list[int]:
    return list(found.records["time"].cast("int64").to_pylist())


def test_each_line_is_a_sample() -> None:
    found = samples(
        f'{{"time": {OWN}, "metric": "up", "labels": {{"z": "1", "a": "2"}}, "value": 1}}',
        "",
        '{"time": "2026-11-18T09:30:00Z", "metric": "down", "type": "gauge", "value": "NaN"}\r',
        "   ",
    )

    assert found.records.schema.equals(SAMPLES_V2)
    assert found.records["metric"].to_pylist() == ["up", "down"]
    assert found.records["labels"].to_pylist() == [[("a", "2"), ("z", "1")], []]
    assert times(found)[0] == OWN
    assert (found.rejected, found.reason, found.have_own_times) == (0, "", True)


def test_each_line_is_a_log_record() -> None:
    found = logs(f'{{"time": {OWN}, "body": "hello", "attributes": {{"a": "b"}}}}')

    assert found.records.schema.equals(LOGS_V1)
    assert (found.records["body"].to_pylist(), times(found), found.have_own_times) == (["hello"], [OWN], True)


@pytest.mark.parametrize("time", ["", '"time": null, '], ids=["no time", "null"])
def test_a_record_without_a_time_has_that_of_the_request(time: str) -> None:
    found = samples(f'{{"time": {OWN}, "metric": "up", "value": 1}}', f'{{{time}"metric": "up", "value": 2}}')

    assert times(found) == [OWN, NOW]
    assert not found.have_own_times


def test_a_log_record_that_was_observed_has_a_time_of_its_own() -> None:
    found = logs(f'{{"observed_time": {OWN}, "body": "hello"}}')

    assert (times(found), found.have_own_times) == ([OWN], True)
    assert not logs('{"body": "hello"}', f'{{"observed_time": {OWN}}}').have_own_times


def test_an_empty_body_is_no_records() -> None:
    for body in ((), ("",), ("", "\r", " ")):
        assert samples(*body).records.num_rows == 0


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "Line 3: Input data was truncated"),
        ("[1]", "Line 3: It is not a JSON object."),
        ('{"value": 1}', "Line 3: It has no metric."),
        ('{"metric": "up", "value": "many"}', "Line 3: value is 'many'. Give a number."),
        ('{"metric": "up", "value": 1, "color": "red"}', "Line 3: There is no column color."),
        ('{"metric": "up"}', "Line 3: "),
        ('{"metric": "up", "value": 1, "labels": {"a": 1}}', "Line 3: labels has"),
        ('{"metric": "up", "value": 1} {}', "Line 3: "),
        ("[" * 100_000, "Line 3: "),
        ('\ufeff{"metric": "up", "value": 1}', "byte order mark"),
        ('{"time": "yesterday", "metric": "up", "value": 1}', "Line 3: time is 'yesterday'."),
    ],
)
def test_a_bad_line_refuses_all_with_its_number(line: str, reason: str) -> None:
    good = '{"metric": "up", "value": 1}'

    with pytest.raises(BadBody) as refused:
        samples(good, "", line, good)

    assert reason in refused.value.reason
    assert refused.value.reason.endswith("Nothing of the request was kept.")
    assert len(refused.value.reason) < 1_000


def test_text_that_is_not_utf_8_is_a_bad_line() -> None:
    with pytest.raises(BadBody, match="Line 1"):
        decode_json_lines(FrameKind.LOGS, b'{"body": "\xff"}', now_ns=NOW)


def test_more_records_than_a_request_may_have_are_too_many() -> None:
    line = '{"metric": "up", "value": 1}'
    limits = RecordLimits(records=2)

    assert samples(line, "", line, limits=limits).records.num_rows == 2
    with pytest.raises(BodyTooLarge):
        samples(line, line, line, limits=limits)


@given(st.binary(max_size=100))
def test_any_bytes_are_records_or_a_bad_body(body: bytes) -> None:
    for kind in FrameKind:
        try:
            found = decode_json_lines(kind, body, now_ns=NOW)
        except BadBody:
            continue
        assert found.rejected == 0
