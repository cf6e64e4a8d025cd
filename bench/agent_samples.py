"""Samples as senders of an agent have them: a thousand in a request, of forty metrics, with six attributes each."""

from dataclasses import dataclass
from random import Random
from typing import Any

import pyarrow as pa
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from bench.gateway_frames import RECORDS, sample_batch

SCRAPE_NS = 15_000_000_000
"""How much later a series is told again."""

REQUESTS = 8
"""How many requests are different but for their times and values, so 8,000 series."""

PlainSample = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class _Series:
    """The message of one request, and its points, which get other times and values each time."""

    message: Any
    points: list[Any]


class OtlpBodies:
    """Requests of OTLP that tell the same series again and again, as senders do, each time later."""

    def __init__(self, *, seed: int = 1) -> None:
        self._random = Random(seed)
        self._requests = [_series(sample_batch(self._random)) for _ in range(REQUESTS)]

    def body(self, number: int, *, new_series: bool = False) -> bytes:
        """The request with this number, which is like no other. With `new_series` nor is any of its points' labels."""
        series = self._requests[number % REQUESTS]
        later = number * SCRAPE_NS
        for each, (point, time) in enumerate(series.points):
            point.time_unix_nano = time + later
            point.as_double = self._random.random()
            if new_series:
                point.attributes[-1].value.string_value = f"{number}-{each}"
        body: bytes = series.message.SerializeToString()
        return body


def _series(batch: pa.RecordBatch) -> _Series:
    request = ExportMetricsServiceRequest()
    scope = request.resource_metrics.add().scope_metrics.add()
    points = []
    metric: Any = None
    for row in batch.to_pylist():
        if metric is None or metric.name != row["metric"]:
            metric = scope.metrics.add(name=row["metric"])
        if row["type"] == "sum":
            metric.sum.is_monotonic, metric.sum.aggregation_temporality = True, 2
        data = getattr(metric, row["type"])
        time = row["time"].value
        point = data.data_points.add(time_unix_nano=time, as_double=row["value"])
        if row["type"] == "sum":
            point.start_time_unix_nano = time
        for key, text in row["labels"]:
            point.attributes.add(key=key).value.string_value = text
        points.append((point, time))
    return _Series(request, points)


@dataclass(frozen=True, slots=True)
class GivenSamples:
    """The same samples in each form in which a program can have them."""

    otlp: bytes
    plain: list[PlainSample]
    arrow: pa.RecordBatch


def given_samples(*, seed: int = 1) -> list[GivenSamples]:
    """Requests of a thousand samples."""
    random = Random(seed)
    return [_given(sample_batch(random)) for _ in range(REQUESTS)]


def _given(batch: pa.RecordBatch) -> GivenSamples:
    plain: list[PlainSample] = [
        (row["time"].value, row["metric"], dict(row["labels"]), row["value"]) for row in batch.to_pylist()
    ]
    return GivenSamples(_series(batch).message.SerializeToString(), plain, batch)


__all__ = ["RECORDS", "GivenSamples", "OtlpBodies", "PlainSample", "given_samples"]
