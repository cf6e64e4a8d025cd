"""The data points of gauges and sums, many at a time.

Encoders write the fields of a message by ascending number: almost every point is its start time or none, its time, its
value, and then attributes and flags. Times and values of these are read as columns; what follows them, the tail, is
looked up among the tails that are known. Points of any other form are decoded one by one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from lakehead.agent.receive.arrow_columns import Numbers
from lakehead.agent.receive.decoded import STALE_MARKER
from lakehead.agent.receive.otlp_labels import NO_RECORDED_VALUE, LabelSet, SeriesLabels
from lakehead.agent.receive.otlp_messages import NumberPoint, parse

_START, _TIME, _DOUBLE, _INT = 0x11, 0x19, 0x21, 0x31
"""The bytes before each field: its number, and that it has eight bytes."""

_SHORT_HEAD, _LONG_HEAD = 18, 27
"""The bytes of time and value, and of start time, time and value."""


@dataclass(slots=True)
class NumberPoints:
    """Points as columns, in the order in which they were given."""

    times: Numbers
    """In nanoseconds since the Unix epoch, as unsigned numbers. 0: it has none."""

    starts: Numbers
    values: Numbers
    """Integers are the nearest double: beyond 2^53 some bits are lost."""

    labels: list[LabelSet]
    faults: dict[int, str] = field(default_factory=dict)
    """Points that cannot be records, and why, as the end of a sentence."""


def read_number_points(points: Sequence[bytes], series: Sequence[tuple[SeriesLabels, int]]) -> NumberPoints:
    """Return points as columns. `series` says whose labels how many of them get, from the first to the last.

    Raises `BadBody` if one cannot be decoded.
    """
    heads, usual, is_long = _heads(points)
    first, second, third = (_words(heads, begin) for begin in (1, 10, 19))
    tags = np.where(is_long, heads[:, _SHORT_HEAD], heads[:, 9])
    bits = np.where(is_long, third, second)
    bits = np.where(tags == _INT, bits.view(np.int64).astype(np.float64).view(np.uint64), bits)
    found = NumberPoints(
        times=np.where(is_long, second, first),
        starts=np.where(is_long, first, np.uint64(0)),
        values=bits.view(np.float64),
        labels=[],
    )
    labels = _tail_labels(points, series, np.where(usual, np.where(is_long, _LONG_HEAD, _SHORT_HEAD), 0))
    odd = [index for index, each in enumerate(labels) if each is None]
    if odd:
        _read_odd(odd, points, series, labels, found)
    found.labels = [each for each in labels if each is not None]
    for index in [index for index, each in enumerate(found.labels) if each.is_stale or each.fault]:
        own = found.labels[index]
        if own.is_stale:
            found.values[index] = STALE_MARKER
        if own.fault:
            found.faults[index] = own.fault
    return found


def _heads(points: Sequence[bytes]) -> tuple[Numbers, Numbers, Numbers]:
    """Return the first bytes of each point, which have the usual form, and which of those begin with a start time."""
    lengths = np.fromiter(map(len, points), np.int64, len(points))
    data = np.frombuffer(b"".join([*points, bytes(_LONG_HEAD)]), np.uint8)
    heads = np.lib.stride_tricks.sliding_window_view(data, _LONG_HEAD)[np.cumsum(lengths) - lengths]
    tags = heads[:, 0], heads[:, 9], heads[:, _SHORT_HEAD]
    is_long = (lengths >= _LONG_HEAD) & (tags[0] == _START) & (tags[1] == _TIME) & _is_value(tags[2])
    is_short = (lengths >= _SHORT_HEAD) & (tags[0] == _TIME) & _is_value(tags[1])
    return heads, is_long | is_short, is_long


def _is_value(tags: Numbers) -> Numbers:
    found: Numbers = (tags == _DOUBLE) | (tags == _INT)
    return found


def _words(heads: Numbers, begin: int) -> Numbers:
    return np.ascontiguousarray(heads[:, begin : begin + 8]).view("<u8")[:, 0]


def _tail_labels(
    points: Sequence[bytes], series: Sequence[tuple[SeriesLabels, int]], head_lengths: Numbers
) -> list[LabelSet | None]:
    """Return the labels of each point; None for those of an odd form, which have no head."""
    labels: list[LabelSet | None] = []
    begin = 0
    for each, count in series:
        tails = each.tails
        heads = head_lengths[begin : begin + count].tolist()
        labels += [
            tails[point[head:]] if head else None
            for point, head in zip(points[begin : begin + count], heads, strict=True)
        ]
        begin += count
    return labels


def _read_odd(
    odd: Sequence[int],
    points: Sequence[bytes],
    series: Sequence[tuple[SeriesLabels, int]],
    labels: list[LabelSet | None],
    found: NumberPoints,
) -> None:
    """Decode points one by one into the columns."""
    owners = np.repeat(np.arange(len(series)), [count for _, count in series])
    for index in odd:
        point = parse(NumberPoint, points[index])
        own = series[owners[index]][0].sets[tuple(point.attributes)]
        found.times[index] = point.time_unix_nano
        found.starts[index] = point.start_time_unix_nano
        labels[index] = own = own._replace(is_stale=bool(point.flags & NO_RECORDED_VALUE))
        which = point.WhichOneof("value")
        if which is not None:
            found.values[index] = getattr(point, which)
        elif not own.is_stale:
            found.faults[index] = "it has no value"
