"""The data points of histograms, exponential histograms and summaries."""

import math
from array import array
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from lakehead.agent.receive.arrow_columns import Numbers, list_column, number_column
from lakehead.agent.receive.decoded import STALE_MARKER
from lakehead.agent.receive.otlp_labels import NO_RECORDED_VALUE, LabelSet, SeriesLabels
from lakehead.wire.record_schemas import SAMPLES_V2

_TYPE = SAMPLES_V2.field("distribution").type
_INT32 = range(-(2**31), 2**31)


class Distributions:
    """Distributions, collected as the columns that they become."""

    def __init__(self) -> None:
        self.times: list[int] = []
        """In nanoseconds since the Unix epoch, up to 64 bits. 0: it has none."""

        self.starts: list[int] = []
        self.labels: list[LabelSet] = []
        self._numbers: defaultdict[str, _Column] = defaultdict(lambda: _Column("d"))
        self._scales = _Column("i")
        self._lists: defaultdict[str, _Column] = defaultdict(lambda: _Column("d"))
        self._indexes: defaultdict[str, _Column] = defaultdict(lambda: _Column("i"))
        self._good_bounds: Sequence[float] = ()

    def add(self, kind: str, point: Any, series: SeriesLabels) -> str:
        """Add a data point of one of the three types. Return why it cannot be a record, as the end of a sentence; empty
        if it can. Raises `BadBody` if its attributes are none.
        """
        fault = self._fault(kind, point)
        if fault:
            return fault
        row = len(self.times)
        self.times.append(point.time_unix_nano)
        self.starts.append(point.start_time_unix_nano)
        self.labels.append(series.sets[tuple(point.attributes)])
        self._numbers["count"].add(row, point.count)
        if point.flags & NO_RECORDED_VALUE:
            self._numbers["sum"].add(row, STALE_MARKER)
        elif kind == "summary" or point.HasField("sum"):
            self._numbers["sum"].add(row, point.sum)
        if kind == "summary":
            self._add_quantiles(row, point.quantile_values)
            return ""
        for name in ("min", "max"):
            if point.HasField(name):
                self._numbers[name].add(row, getattr(point, name))
        if kind == "histogram":
            self._lists["bounds"].extend(row, point.explicit_bounds)
            self._lists["counts"].extend(row, point.bucket_counts)
        else:
            self._add_exponential_buckets(row, point)
        return ""

    def column(self, before: int) -> pa.StructArray:
        """Return them as the column `distribution`, with this many nulls before them."""
        rows = before + len(self.times)
        if not self.times:
            return pa.nulls(rows, _TYPE)
        children = [self._child(part, before, rows) for part in _TYPE]
        valid = np.arange(rows) >= before
        bitmap = pa.py_buffer(np.packbits(valid, bitorder="little"))
        return pa.Array.from_buffers(_TYPE, rows, [bitmap], children=children)

    def _child(self, part: pa.Field, before: int, rows: int) -> pa.Array:
        if part.name in self._numbers:
            return self._numbers[part.name].numbers(part.type, before, rows)
        if part.name == "scale":
            return self._scales.numbers(part.type, before, rows)
        if part.name in self._lists:
            return self._lists[part.name].lists(part.type, before, rows)
        if part.name in self._indexes:
            return self._indexes[part.name].lists(part.type, before, rows)
        return pa.nulls(rows, part.type)

    def _fault(self, kind: str, point: Any) -> str:
        if kind == "histogram":
            return self._fault_of_buckets(point)
        if kind == "exponential_histogram":
            for buckets in (point.positive, point.negative):
                if buckets.bucket_counts and buckets.offset + len(buckets.bucket_counts) - 1 not in _INT32:
                    return "the number of a bucket is above 2^31 - 1"
        return ""

    def _fault_of_buckets(self, point: Any) -> str:
        bounds, counts = list(point.explicit_bounds), len(point.bucket_counts)
        if counts != len(bounds) + 1 and (counts or bounds):
            return f"it has {len(bounds)} bounds and {counts} bucket counts, not one more"
        if bounds != self._good_bounds:
            if not all(math.isfinite(bound) for bound in bounds):
                return "a bound is not a number, or infinite"
            if any(one >= next_one for one, next_one in pairwise(bounds)):
                return "its bounds do not ascend"
            self._good_bounds = bounds
        return ""

    def _add_exponential_buckets(self, row: int, point: Any) -> None:
        self._scales.add(row, point.scale)
        self._numbers["zero_count"].add(row, point.zero_count)
        self._numbers["zero_threshold"].add(row, point.zero_threshold)
        for sign, buckets in (("positive", point.positive), ("negative", point.negative)):
            counts = list(buckets.bucket_counts)
            used = [place for place, count in enumerate(counts) if count]
            self._indexes[f"{sign}_indexes"].extend(row, [buckets.offset + place for place in used])
            self._lists[f"{sign}_counts"].extend(row, [counts[place] for place in used])

    def _add_quantiles(self, row: int, told: Sequence[Any]) -> None:
        self._lists["quantiles"].extend(row, [each.quantile for each in told])
        self._lists["quantile_values"].extend(row, [each.value for each in told])


def buckets_of(kind: str, point: Any) -> int:
    """Return how many buckets or quantiles a data point has."""
    if kind == "histogram":
        return len(point.bucket_counts) + len(point.explicit_bounds)
    if kind == "exponential_histogram":
        return len(point.positive.bucket_counts) + len(point.negative.bucket_counts)
    return len(point.quantile_values)


class _Column:
    """Numbers, or lists of them, of some of the rows."""

    def __init__(self, code: str) -> None:
        self._rows: list[int] = []
        self._lengths: list[int] = []
        self._items: Any = array(code)

    def add(self, row: int, number: float) -> None:
        self._rows.append(row)
        self._items.append(number)

    def extend(self, row: int, numbers: Sequence[float]) -> None:
        self._rows.append(row)
        self._lengths.append(len(numbers))
        self._items.extend(numbers)

    def numbers(self, of: pa.DataType, before: int, rows: int) -> pa.Array:
        places = before + np.array(self._rows, np.int64)
        found = np.zeros(rows, self._items.typecode)
        found[places] = self._items
        return number_column(of, found, _are(places, rows))

    def lists(self, of: pa.DataType, before: int, rows: int) -> pa.Array:
        places = before + np.array(self._rows, np.int64)
        lengths = np.zeros(rows, np.int64)
        lengths[places] = self._lengths
        items = number_column(of.value_type, np.frombuffer(self._items, self._items.typecode))
        return list_column(of, lengths, items, _are(places, rows))


def _are(places: Numbers, rows: int) -> Numbers:
    valid = np.zeros(rows, np.bool_)
    valid[places] = True
    return valid
