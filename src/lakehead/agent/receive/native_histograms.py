"""Prometheus's native histograms, of remote write 1.0 and 2.0, as distributions of docs/frames.md."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import inf, isnan
from typing import Any

CUSTOM_BUCKETS = -53
"""The schema of histograms whose bounds are told, and not powers of a base."""

EXPONENTIAL_SCHEMAS = range(-9, 53)
"""The schemas whose base is 2^(2^-schema), those that are reserved for this too."""

_RESET_HINTS = {1: "yes", 2: "no", 3: "gauge"}
_INDEXES = range(-(2**31), 2**31)


class InvalidSample(ValueError):
    """A sample that cannot be kept. The message says why."""


@dataclass(frozen=True, slots=True)
class NativeHistogram:
    """A native histogram as a record has it."""

    type: str
    """`exponential_histogram` or `histogram`."""

    distribution: dict[str, object]
    buckets: int

    @property
    def is_gauge(self) -> bool:
        """Whether it is no counter: it may fall."""
        return self.distribution["reset_hint"] == "gauge"


def native_histogram(message: Any) -> NativeHistogram:
    """Return a `Histogram` message as a distribution. Raises `InvalidSample`.

    What Prometheus itself refuses is refused: counts that do not add up, spans that do not fit their buckets.
    """
    is_float = message.WhichOneof("count") == "count_float"
    zero_kind = message.WhichOneof("zero_count")
    if zero_kind is not None and (zero_kind == "zero_count_float") != is_float:
        raise InvalidSample("The histogram has whole counts and fractions.")
    zero_count = message.zero_count_float if is_float else message.zero_count_int
    positive = _counts(message.positive_deltas, message.positive_counts, is_float=is_float)
    negative = _counts(message.negative_deltas, message.negative_counts, is_float=is_float)
    count = message.count_float if is_float else message.count_int
    if count < 0 or zero_count < 0 or any(each < 0 for each in (*positive, *negative)):
        raise InvalidSample("The histogram has a negative count.")
    if not is_float:
        _check_total(count, zero_count + sum(positive) + sum(negative), message.sum)
    common = {
        "count": float(count),
        "sum": message.sum,
        "reset_hint": _RESET_HINTS.get(message.reset_hint),
    }
    if message.schema == CUSTOM_BUCKETS:
        if zero_count or negative or message.negative_spans:
            raise InvalidSample("The histogram has custom buckets, and a zero bucket or negative ones.")
        bounds = list(message.custom_values)
        dense = _dense(bounds, message.positive_spans, positive)
        return NativeHistogram("histogram", {**common, "bounds": bounds, "counts": dense}, len(dense))
    if message.schema not in EXPONENTIAL_SCHEMAS:
        raise InvalidSample(f"The histogram has the schema {message.schema}, which is not known.")
    return NativeHistogram(
        "exponential_histogram",
        {
            **common,
            "scale": message.schema,
            "zero_count": float(zero_count),
            "zero_threshold": message.zero_threshold,
            "positive_indexes": _otlp_indexes(message.positive_spans, len(positive)),
            "positive_counts": [float(each) for each in positive],
            "negative_indexes": _otlp_indexes(message.negative_spans, len(negative)),
            "negative_counts": [float(each) for each in negative],
        },
        len(positive) + len(negative),
    )


def _counts(deltas: Sequence[int], counts: Sequence[float], *, is_float: bool) -> list[float]:
    """The count of each bucket: whole ones come as the difference to the one before."""
    if deltas if is_float else counts:
        raise InvalidSample("The histogram has whole counts and fractions.")
    return list(counts) if is_float else list(accumulate(deltas))


def _check_total(count: int, in_buckets: float, total: float) -> None:
    """Raise `InvalidSample` if the buckets do not have as many observations as there were. A NaN is in none of them."""
    if in_buckets > count or (in_buckets < count and not isnan(total)):
        raise InvalidSample(f"The histogram has {count} observations, and {in_buckets} of them in its buckets.")


def _indexes(spans: Sequence[Any], buckets: int) -> Iterator[int]:
    """Yield Prometheus's number of each bucket. Raises `InvalidSample` if there are not as many as counts."""
    if sum(span.length for span in spans) != buckets:
        raise InvalidSample("The spans of the histogram have another number of buckets than there are counts.")
    index = 0
    for place, span in enumerate(spans):
        if place and span.offset < 0:
            raise InvalidSample("A span of the histogram begins before the one before it ends.")
        index += span.offset
        yield from range(index, index + span.length)
        index += span.length


def _otlp_indexes(spans: Sequence[Any], buckets: int) -> list[int]:
    """The number of each bucket as docs/frames.md has it: one less than Prometheus's."""
    indexes = [index - 1 for index in _indexes(spans, buckets)]
    if indexes and (indexes[0] not in _INDEXES or indexes[-1] not in _INDEXES):
        raise InvalidSample("The histogram has a bucket whose number is too large.")
    return indexes


def _dense(bounds: Sequence[float], spans: Sequence[Any], counts: Sequence[float]) -> list[float]:
    """The count up to each bound, and beyond the last one."""
    if any(not lower < upper for lower, upper in zip((-inf, *bounds), bounds, strict=False)) or inf in bounds[-1:]:
        raise InvalidSample("The bounds of the histogram do not ascend, or one is infinite or no number.")
    dense = [0.0] * (len(bounds) + 1)
    for index, count in zip(_indexes(spans, len(counts)), counts, strict=True):
        if not 0 <= index < len(dense):
            raise InvalidSample("The histogram has a bucket without a bound.")
        dense[index] = float(count)
    return dense
