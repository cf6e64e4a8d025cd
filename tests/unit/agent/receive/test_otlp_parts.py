"""A body of OTLP is counted before it is read: millions of empty messages would take a hundred times their bytes."""

import subprocess
import sys
import tracemalloc
from collections.abc import Callable

import pytest

from lakehead.agent.receive.decoded import BodyTooLarge, Decoded
from lakehead.agent.receive.otlp_logs import decode_otlp_logs
from lakehead.agent.receive.otlp_metrics import decode_otlp_metrics
from lakehead.agent.receive.otlp_parts import MOST_PARTS

MANY = 2 * MOST_PARTS
EMPTY_FIRST, EMPTY_SECOND = b"\x0a\x00", b"\x12\x00"
JSON_PARTS = b",".join([b"{}"] * (2 * MANY))


def within(number: int, content: bytes) -> bytes:
    """A field of a message that has this content."""
    length, size = b"", len(content)
    while size >= 0x80:
        length, size = length + bytes([size & 0x7F | 0x80]), size >> 7
    return bytes([number << 3 | 2]) + length + bytes([size]) + content


def of_scope(content: bytes) -> bytes:
    return within(1, within(2, content))


def of_metric(data: int, content: bytes) -> bytes:
    return of_scope(within(2, within(1, b"m") + within(data, content)))


METRICS = {
    "resources": EMPTY_FIRST * MANY,
    "scopes": within(1, EMPTY_SECOND * MANY),
    "metrics": of_scope(EMPTY_SECOND * MANY),
    "histograms": of_metric(9, EMPTY_FIRST * MANY),
    "exponential histograms": of_metric(10, EMPTY_FIRST * MANY),
    "summaries": of_metric(11, EMPTY_FIRST * MANY),
    "quantiles": of_metric(11, within(1, b"\x32\x00" * MANY)),
    "scopes of many resources": within(1, EMPTY_SECOND * 1_000) * (MANY // 1_000),
    "values of an attribute": of_metric(5, within(1, within(7, within(2, within(5, EMPTY_FIRST * MANY))))),
}
LOGS = {
    "records": of_scope(EMPTY_SECOND * MANY),
    "values": of_scope(within(2, within(5, within(5, EMPTY_FIRST * MANY)))),
    "values in lists": of_scope(within(2, within(5, within(5, within(1, within(5, EMPTY_FIRST * MANY)))))),
    "pairs": of_scope(within(2, within(5, within(6, EMPTY_FIRST * MANY)))),
    "values of an attribute": of_scope(within(2, within(6, within(2, within(6, EMPTY_FIRST * MANY))))),
}
JSON = {
    "resources": b'{"resourceMetrics":[%s],"resourceLogs":[%s]}' % (JSON_PARTS, JSON_PARTS),
    "what is not known": b'{"x":[%s]}' % JSON_PARTS.replace(b"{}", b"[]"),
}


@pytest.mark.parametrize("body", METRICS.values(), ids=METRICS)
def test_metrics_with_millions_of_empty_messages_are_too_large(body: bytes) -> None:
    with pytest.raises(BodyTooLarge, match="more than 500,000 messages"):
        decode_otlp_metrics(body, is_json=False, now_ns=1)


@pytest.mark.parametrize("body", LOGS.values(), ids=LOGS)
def test_logs_with_millions_of_empty_messages_are_too_large(body: bytes) -> None:
    with pytest.raises(BodyTooLarge, match="more than 500,000 messages"):
        decode_otlp_logs(body, is_json=False, now_ns=1)


@pytest.mark.parametrize("decode", [decode_otlp_metrics, decode_otlp_logs])
@pytest.mark.parametrize("body", JSON.values(), ids=JSON)
def test_json_with_millions_of_empty_objects_is_too_large(decode: Callable[..., Decoded], body: bytes) -> None:
    with pytest.raises(BodyTooLarge, match="more than 500,000 messages"):
        decode(body, is_json=True, now_ns=1)


def test_millions_of_unknown_fields_of_a_point_are_never_listed() -> None:
    time_and_value = b"\x19" + bytes(7) + b"\x01\x21" + bytes(8)
    body = of_metric(5, within(1, time_and_value + b"\x78\x00" * 1_000_000))
    tracemalloc.start()
    try:
        assert decode_otlp_metrics(body, is_json=False, now_ns=1).records.num_rows == 1
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 10 * len(body)  # as Python has them, they took forty times


@pytest.mark.slow
def test_a_large_body_of_as_many_records_as_there_may_be_is_read() -> None:
    records = EMPTY_SECOND * 100_000
    assert decode_otlp_logs(of_scope(records), is_json=False, now_ns=1).records.num_rows == 100_000


@pytest.mark.slow
def test_a_body_of_the_largest_size_takes_no_hundred_times_its_bytes() -> None:
    script = """
from pathlib import Path
from lakehead.agent.receive.decoded import BodyTooLarge
from tests.unit.agent.receive.test_otlp_parts import EMPTY_SECOND, decode_otlp_logs, of_scope

def most_memory():
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))

body = of_scope(EMPTY_SECOND * (8 << 20))
before = most_memory()
try:
    decode_otlp_logs(body, is_json=False, now_ns=1)
except BodyTooLarge:
    print((most_memory() - before) >> 10)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True, text=True)
    assert int(done.stdout) < 400  # MiB; reading them took more than 1,000
