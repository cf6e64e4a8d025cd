"""What is remembered of attributes is bounded, and never changes what they are."""

import gc
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import pytest
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.metrics.v1.metrics_pb2 import NumberDataPoint

from lakehead.agent.receive.decoded import Decoded
from lakehead.agent.receive.otlp_labels import KnownAttributes, MetricLabels
from lakehead.agent.receive.otlp_logs import decode_otlp_logs
from lakehead.agent.receive.otlp_metrics import decode_otlp_metrics
from tests.unit.agent.receive.otlp_oracle import comparable
from tests.unit.agent.receive.otlp_requests import NOON, NOW, attribute, gauge, metrics_request
from tests.unit.agent.receive.otlp_requests import logs_request as logs


def body(first: int, points: int = 100) -> bytes:
    """Points of as many series."""
    told = [
        NumberDataPoint(
            time_unix_nano=NOON, as_int=number, attributes=[attribute("number", number), attribute("zone", "a")]
        )
        for number in range(first, first + points)
    ]
    return bytes(metrics_request(gauge("a", *told), resource=[attribute("host", first % 7)]).SerializeToString())


def decoded(data: bytes, labels: MetricLabels) -> Decoded:
    return decode_otlp_metrics(data, is_json=False, now_ns=NOW, labels=labels)


def test_what_is_remembered_or_forgotten_makes_no_difference() -> None:
    remembers, forgets = MetricLabels(), MetricLabels(memory_bytes=10_000)

    for first in (0, 50, 0, 300, 7, 0):
        afresh = comparable(decoded(body(first), MetricLabels()).records)

        assert comparable(decoded(body(first), remembers).records) == afresh
        assert comparable(decoded(body(first), forgets).records) == afresh


@pytest.mark.slow
def test_memory_for_labels_that_never_come_again_is_bounded() -> None:
    labels, known = MetricLabels(memory_bytes=1 << 18), KnownAttributes(memory_bytes=1 << 18)

    def decode(rounds: range) -> int:
        for number in rounds:
            decoded(body(number * 50, 50), labels)
            record = LogRecord(attributes=[attribute("number", number), attribute("long", "x" * 3_000 + str(number))])
            decode_otlp_logs(
                logs(*[record] * 3, resource=[attribute("pid", number)]).SerializeToString(),
                is_json=False,
                now_ns=NOW,
                known=known,
            )
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        decode(range(1))
        before = tracemalloc.get_traced_memory()[0]
        after = decode(range(1, 100))
    finally:
        tracemalloc.stop()

    assert after - before < 1 << 20


def test_large_attributes_are_not_remembered() -> None:
    labels = MetricLabels()
    large = metrics_request(
        gauge("a", NumberDataPoint(time_unix_nano=NOON, as_int=1, attributes=[attribute("text", "x" * 5_000)]))
    ).SerializeToString()

    for _ in range(2):
        [row] = decoded(large, labels).records.column("labels").to_pylist()
        assert row == [("text", "x" * 5_000)]

    assert labels._used < 5_000


@pytest.mark.slow
def test_threads_may_share_what_is_remembered() -> None:
    labels = MetricLabels(memory_bytes=20_000)
    bodies = [body(first) for first in range(0, 200, 10)]
    alone = [comparable(decoded(each, MetricLabels()).records) for each in bodies]

    with ThreadPoolExecutor(4) as threads:
        together = [*threads.map(lambda each: comparable(decoded(each, labels).records), bodies * 3)]

    assert together == alone * 3
