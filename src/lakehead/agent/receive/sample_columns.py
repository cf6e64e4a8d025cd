"""Samples of series, collected column by column: what the samples of a series share is written down once."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from lakehead.agent.receive.arrow_columns import Numbers, bool_column, number_column, offsets, repeated, text_column
from lakehead.agent.receive.decoded import BodyTooLarge
from lakehead.wire.record_schemas import SAMPLES_V2, FrameKind, newest_schema

BUCKET_BYTES = 32
"""What a bucket of a distribution counts for in the size of records."""


@dataclass(frozen=True, slots=True)
class RecordLimits:
    """How much the records of one request may be. A small body can be many and large ones."""

    records: int = 500_000
    """The most records."""

    text_bytes: int = 32 << 20
    """The most characters of names, labels and units, counted for each record that has them; a bucket counts for 32."""


@dataclass(frozen=True, slots=True)
class Series:
    """What the samples of a series have in common."""

    metric: str
    labels: Sequence[tuple[str, str]]
    """Without the name of the metric, by ascending names."""

    type: str = "unknown"
    unit: str | None = None
    temporality: str | None = None
    monotonic: bool | None = None


@dataclass(slots=True)
class SampleColumns:
    """Collects samples. Raises `BodyTooLarge` before they take more memory than the limits allow."""

    limits: RecordLimits = field(default_factory=RecordLimits)
    _series: list[Series] = field(default_factory=list, init=False)
    _places: list[int] = field(default_factory=list, init=False)
    """Of each sample, which of the series it belongs to."""

    _times: list[int] = field(default_factory=list, init=False)
    _start_times: list[int | None] = field(default_factory=list, init=False)
    _values: list[float | None] = field(default_factory=list, init=False)
    _distributions: list[dict[str, object] | None] = field(default_factory=list, init=False)
    _row_bytes: int = field(default=0, init=False)
    _bytes_left: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._bytes_left = self.limits.text_bytes

    def begin(self, series: Series) -> None:
        """Take the samples that follow as those of a series."""
        self._series.append(series)
        self._row_bytes = len(series.metric) + len(series.unit or "") + sum(len(n) + len(v) for n, v in series.labels)

    def add_number(self, time: int, value: float, start_time: int | None = None) -> None:
        """Add a sample with a value. Times are nanoseconds since the Unix epoch."""
        self._add(time, start_time, 0)
        self._values.append(value)
        self._distributions.append(None)

    def add_distribution(
        self, time: int, distribution: dict[str, object], *, buckets: int, start_time: int | None = None
    ) -> None:
        """Add a sample with a distribution of so many buckets."""
        self._add(time, start_time, buckets)
        self._values.append(None)
        self._distributions.append(distribution)

    def _add(self, time: int, start_time: int | None, buckets: int) -> None:
        self._bytes_left -= self._row_bytes + buckets * BUCKET_BYTES
        if len(self._times) >= self.limits.records or self._bytes_left < 0:
            raise self.too_large()
        self._places.append(len(self._series) - 1)
        self._times.append(time)
        self._start_times.append(start_time)

    def too_large(self) -> BodyTooLarge:
        """Return the error of a request with more than the limits allow."""
        return BodyTooLarge(
            f"The request has more than {self.limits.records:,} samples, or their labels and buckets take more than "
            f"{self.limits.text_bytes:,} bytes. Send fewer samples in one request."
        )

    def record_batch(self) -> pa.RecordBatch:
        """Return the samples in the newest schema, checked. Raises `BadFrame` if one breaks a rule of its kind."""
        types = {column.name: column.type for column in SAMPLES_V2}
        columns = {
            "metric": text_column([each.metric for each in self._series]),
            "labels": self._labels(types["labels"]),
            "type": text_column([each.type for each in self._series]),
            "unit": text_column([each.unit for each in self._series]),
            "temporality": text_column([each.temporality for each in self._series]),
            "monotonic": bool_column([each.monotonic for each in self._series]),
        }
        counts = np.bincount(np.array(self._places, np.int64), minlength=len(self._series))
        if not (counts == 1).all():
            columns = {name: repeated(column, counts) for name, column in columns.items()}
        columns |= {
            "time": number_column(types["time"], np.array(self._times, np.int64)),
            "start_time": number_column(types["start_time"], *_with_nulls(self._start_times, np.int64)),
            "value": number_column(types["value"], *_with_nulls(self._values, np.float64)),
            "distribution": self._distribution_column(types["distribution"]),
        }
        batch = pa.RecordBatch.from_arrays([columns[column.name] for column in SAMPLES_V2], schema=SAMPLES_V2)
        newest_schema(FrameKind.SAMPLES).check(batch)
        return batch

    def _labels(self, map_type: pa.DataType) -> pa.MapArray:
        pairs = [pair for series in self._series for pair in series.labels]
        ends = offsets(np.array([len(series.labels) for series in self._series], np.int64))
        names, texts = text_column([name for name, _ in pairs]), text_column([text for _, text in pairs])
        return pa.MapArray.from_arrays(ends, names, texts, map_type)

    def _distribution_column(self, of: pa.DataType) -> pa.StructArray:
        if all(each is None for each in self._distributions):
            return pa.nulls(len(self._distributions), of)
        return pa.array(self._distributions, of)


def _with_nulls(values: Sequence[float | None], of: type[np.generic]) -> tuple[Numbers, Numbers | None]:
    """Return numbers, and which of them are there; None for the latter if all are."""
    if None not in values:
        return np.array(values, of), None
    valid = np.array([each is not None for each in values], np.bool_)
    return np.array([0 if each is None else each for each in values], of), valid
