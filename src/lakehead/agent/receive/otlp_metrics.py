"""A body of OTLP's `/v1/metrics`, decoded to samples."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from lakehead.agent.receive.arrow_columns import Numbers, bool_column, number_column, repeated, text_column
from lakehead.agent.receive.decoded import MAX_RECORD_BYTES, MAX_TIME_NS, BodyTooLarge, Decoded
from lakehead.agent.receive.otlp_distributions import Distributions, buckets_of
from lakehead.agent.receive.otlp_json import metrics_from_json
from lakehead.agent.receive.otlp_labels import LabelSet, MetricLabels, SeriesLabels, label_column, shown
from lakehead.agent.receive.otlp_messages import MetricsRequest, parse
from lakehead.agent.receive.otlp_number_points import read_number_points
from lakehead.agent.receive.otlp_parts import check_metrics
from lakehead.wire.record_schemas import NUMBER_TYPES, FrameKind, newest_schema

_SCHEMA = newest_schema(FrameKind.SAMPLES)
_TEMPORALITIES = {1: "delta", 2: "cumulative"}
_SCOPE_BYTES, _ROW_BYTES, _BUCKET_BYTES = 1_000, 100, 32
"""What a scope, a sample and a bucket take besides their texts while they are decoded, about."""

_LABELS = MetricLabels()


def decode_otlp_metrics(
    body: bytes, *, is_json: bool, now_ns: int, labels: MetricLabels = _LABELS, max_bytes: int = MAX_RECORD_BYTES
) -> Decoded:
    """Return the data points of an `ExportMetricsServiceRequest` as samples: first those of gauges and sums.

    A point without a time gets `now_ns`. Points that cannot be samples are rejected, each for itself. Raises `BadBody`
    if the body cannot be decoded, and `BodyTooLarge` if the samples would take more than `max_bytes`.
    """
    content = metrics_from_json(body) if is_json else body
    check_metrics(content)
    request = parse(MetricsRequest, content)
    points = _Points(labels, max_bytes)
    for of_resource in request.resource_metrics:
        for of_scope in of_resource.scope_metrics:
            points.add(of_resource.resource, of_scope)
    return points.decoded(now_ns)


class _Metric(NamedTuple):
    """What all samples of a metric have in common."""

    name: str
    kind: str
    unit: str
    temporality: str | None
    monotonic: bool | None
    samples: int
    """How many samples it has in this request."""


class _Points:
    """The data points of a request."""

    def __init__(self, labels: MetricLabels, max_bytes: int) -> None:
        self._labels = labels
        self._max_bytes = self._bytes_left = max_bytes
        self._of_numbers: list[_Metric] = []
        self._of_distributions: list[_Metric] = []
        self._number_points: list[bytes] = []
        self._series: list[tuple[SeriesLabels, int]] = []
        self._distributions = Distributions()
        self._rejected = 0
        self._reason = ""

    def add(self, resource: Any, of_scope: Any) -> None:
        """Add the points of a scope. Raises `BadBody` and `BodyTooLarge`."""
        series: SeriesLabels | None = None
        before = len(self._number_points)
        for metric in of_scope.metrics:
            kind = metric.WhichOneof("data")
            if kind is None:
                self._reject(1, metric.name, "it has no data of a type that is known here")
                continue
            data = getattr(metric, kind)
            points = data.data_points
            if not points:
                continue
            if not metric.name:
                self._reject(len(points), "", "the metric has no name")
                continue
            if series is None:
                series = self._labels.of(resource, of_scope.scope)
                self._claim(_SCOPE_BYTES)
            self._claim(len(points) * (series.common_bytes + len(metric.name) + len(metric.unit) + _ROW_BYTES))
            if kind in NUMBER_TYPES:
                self._number_points.extend(points)
                self._of_numbers.append(_common(metric, kind, data, len(points)))
            else:
                kept = self._add_distributions(metric.name, kind, points, series)
                self._of_distributions.append(_common(metric, kind, data, kept))
        if series is not None:
            self._series.append((series, len(self._number_points) - before))

    def _add_distributions(self, name: str, kind: str, points: Iterable[Any], series: SeriesLabels) -> int:
        kept = 0
        for point in points:
            self._claim(_BUCKET_BYTES * buckets_of(kind, point))
            fault = self._distributions.add(kind, point, series)
            if fault:
                self._reject(1, name, fault)
            else:
                kept += 1
        return kept

    def decoded(self, now_ns: int) -> Decoded:
        """Return what was added as samples. Raises `BadBody`."""
        numbers, others = read_number_points(self._number_points, self._series), self._distributions
        labels = numbers.labels + others.labels
        times = np.concatenate([numbers.times, np.array(others.times, np.uint64)])
        starts = np.concatenate([numbers.starts, np.array(others.starts, np.uint64)])
        faults = numbers.faults | _faults(times, starts, labels, from_row=len(numbers.labels))
        metrics = self._of_numbers + self._of_distributions
        counts = np.fromiter((metric.samples for metric in metrics), np.int64, len(metrics))
        timed = times != 0
        columns = {
            "time": number_column(_type("time"), np.where(timed, times, np.uint64(now_ns))),
            "start_time": number_column(_type("start_time"), starts, starts != 0),
            "metric": repeated(text_column([metric.name for metric in metrics]), counts),
            "labels": label_column(_type("labels"), labels),
            "type": repeated(text_column([metric.kind for metric in metrics]), counts),
            "unit": repeated(text_column([metric.unit or None for metric in metrics]), counts),
            "temporality": repeated(text_column([metric.temporality for metric in metrics]), counts),
            "monotonic": repeated(bool_column([metric.monotonic for metric in metrics]), counts),
            "value": number_column(
                _type("value"),
                np.concatenate([numbers.values, np.zeros(len(others.times))]),
                np.arange(len(labels)) < len(numbers.labels),
            ),
            "distribution": others.column(before=len(numbers.labels)),
        }
        records = pa.RecordBatch.from_arrays([columns[name] for name in _SCHEMA.schema.names], schema=_SCHEMA.schema)
        if faults:
            first = min(faults)
            self._reject(len(faults), records.column("metric")[first].as_py(), faults[first])
            keep = np.ones(len(records), np.bool_)
            keep[[*faults]] = False
            records, timed = records.filter(bool_column(keep.tolist())), timed[keep]
        _SCHEMA.check(records)
        return Decoded(records, self._rejected, self._reason, bool(timed.all()))

    def _reject(self, points: int, name: str, why: str) -> None:
        self._rejected += points
        if points and not self._reason:
            whose = f"of the metric {shown(name)} " if name else ""
            self._reason = f"A data point {whose}was rejected: {why}."

    def _claim(self, size: int) -> None:
        self._bytes_left -= size
        if self._bytes_left < 0:
            raise BodyTooLarge(
                f"With the attributes of their resource and scope the samples of this body would take more than "
                f"{self._max_bytes:,} bytes. Send fewer data points at once, or drop attributes of the resource."
            )


def _common(metric: Any, kind: str, data: Any, samples: int) -> _Metric:
    temporality = None if kind in ("gauge", "summary") else _TEMPORALITIES.get(data.aggregation_temporality)
    return _Metric(metric.name, kind, metric.unit, temporality, data.is_monotonic if kind == "sum" else None, samples)


def _faults(times: Numbers, starts: Numbers, labels: Sequence[LabelSet], *, from_row: int) -> dict[int, str]:
    """Return which samples cannot be, and why: for their times, or for the labels of those from a row on."""
    found = {row: labels[row].fault for row in range(from_row, len(labels)) if labels[row].fault}
    for name, column in (("start time", starts), ("time", times)):
        found |= dict.fromkeys(np.flatnonzero(column > MAX_TIME_NS).tolist(), f"its {name} is after the year 2262")
    return found


def _type(column: str) -> pa.DataType:
    return _SCHEMA.schema.field(column).type
