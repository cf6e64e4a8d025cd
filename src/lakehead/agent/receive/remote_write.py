"""Prometheus's remote write, 1.0 and 2.0, decoded to samples.

Samples that are wrong are left out and counted, and the others are kept: a request with a wrong sample is answered 400,
and no sender sends it again. Labels that are not in order are put in order, and a label without a value is the same as
none, as in Prometheus. Exemplars are not kept.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.message import DecodeError

from lakehead.agent.receive.decoded import BadBody, BodyTooLarge, Decoded
from lakehead.agent.receive.native_histograms import InvalidSample, NativeHistogram, native_histogram
from lakehead.agent.receive.remote_write_messages import V1, V2, WriteMessages
from lakehead.agent.receive.sample_columns import RecordLimits, SampleColumns, Series
from lakehead.wire.errors import BadFrame

_DEFAULT_LIMITS = RecordLimits()
_NAME = "__name__"
_MS = 1_000_000
_MOST_MS = (2**63 - 1) // _MS
_SHOWN, _SHOWN_LABELS = 40, 5
"""The most characters of a text, and the most labels of a series, that stand in a message."""

_MOST_LABELS = 10_000
_MOST_SYMBOLS = 2_000_000
_COUNTED_BYTES = 64 << 10
"""A series that has more bytes is counted before it is read."""

_HISTOGRAM_BYTES = 1 << 20
"""The largest native histogram. One of 160 buckets takes less than a thousandth of it."""

_COUNTER, _GAUGE_HISTOGRAM = 1, 4
_GAUGES = frozenset({2, 6, 7})
"""Types of 2.0's metadata: gauges, infos and sets of states. A number of a histogram or of a summary has none of its
own: its family's numbers are counters and gauges."""


@dataclass(frozen=True, slots=True)
class _Metadata:
    """What 2.0 says of a series beside its labels."""

    type: int = 0
    unit: str | None = None
    created: int = 0
    """When it began to count, in milliseconds; 0 if that is not told."""


_NO_METADATA = _Metadata()


@dataclass(frozen=True)
class DecodedWrite(Decoded):
    """The samples of one request of remote write."""

    samples: int = 0
    """How many of the records are numbers."""

    histograms: int = 0
    """How many of the records are native histograms."""

    exemplars: int = 0
    """How many exemplars the request has, none of which is kept."""


def decode_remote_write_v1(body: bytes, limits: RecordLimits = _DEFAULT_LIMITS) -> DecodedWrite:
    """Decode a `prometheus.WriteRequest`, decompressed. Each sample is of the type `unknown`: 1.0 does not say it.

    Raises `BadBody`, `BodyTooLarge`.
    """
    request = _request(V1.request, body, other="2.0")
    samples = _Samples(V1, SampleColumns(limits), have_start_times=False)
    for series in samples.series(request.timeseries):
        samples.add(series, [(label.name, label.value) for label in series.labels], _NO_METADATA)
    return samples.decoded()


def decode_remote_write_v2(body: bytes, limits: RecordLimits = _DEFAULT_LIMITS) -> DecodedWrite:
    """Decode an `io.prometheus.write.v2.Request`, decompressed. Raises `BadBody`, `BodyTooLarge`."""
    request = _request(V2.request, body, other="1.0")
    if len(request.symbols) > _MOST_SYMBOLS:
        raise BodyTooLarge(f"The request has more than {_MOST_SYMBOLS:,} symbols. Send fewer samples in one request.")
    symbols = list(request.symbols)
    if symbols and symbols[0]:
        raise BadBody("The first of the symbols is not empty, as remote write 2.0 wants it: all others may be wrong.")
    samples = _Samples(V2, SampleColumns(limits), have_start_times=True)
    for series in samples.series(request.timeseries):
        try:
            labels = _referred(symbols, series.labels_refs)
            [unit] = _texts(symbols, [series.metadata.unit_ref])
        except InvalidSample as error:
            samples.reject(len(series.samples) + len(series.histograms), str(error))
        else:
            samples.add(series, labels, _Metadata(series.metadata.type, unit or None, series.created_timestamp))
    return samples.decoded()


def _request(message: type[Any], body: bytes, *, other: str) -> Any:
    """Parse a request. Raises `BadBody` also for one of the other version, which would seem to be empty.

    Fields that are not known are never listed: a body can be millions of them, and each takes fifty times its bytes.
    """
    request = _parsed(message, body)
    if len(request.of_the_other) or len(request.of_the_other_too):
        raise BadBody(
            f"The body is not a {message.DESCRIPTOR.full_name}: it seems to be a request of remote write {other}. "
            "Set the Content-Type that goes with it."
        )
    if body and not request.ListFields():
        raise BadBody(f"The body is not a {message.DESCRIPTOR.full_name}: nothing in it is known.")
    return request


def _parsed(message: type[Any], data: bytes) -> Any:
    try:
        return message.FromString(data)
    except DecodeError as error:
        raise BadBody(f"The body has no valid {message.DESCRIPTOR.full_name} ({error}).") from None


def _texts(symbols: Sequence[str], refs: Iterable[int]) -> list[str]:
    try:
        return [symbols[ref] for ref in refs]
    except IndexError:
        raise InvalidSample(f"A series refers to a symbol that is not among the {len(symbols):,} given.") from None


def _referred(symbols: Sequence[str], refs: Sequence[int]) -> list[tuple[str, str]]:
    """The labels that references stand for, in turn to a name and to a value."""
    if len(refs) > 2 * _MOST_LABELS:
        raise BodyTooLarge(f"A series has more than {_MOST_LABELS:,} labels.")
    if len(refs) % 2:
        raise InvalidSample("A series has a label without a reference to its value.")
    texts = _texts(symbols, refs)
    return list(zip(texts[::2], texts[1::2], strict=True))


@dataclass(slots=True)
class _Samples:
    """Takes series, and leaves out what is wrong with them."""

    messages: WriteMessages
    columns: SampleColumns
    have_start_times: bool
    """Whether samples can have a `start_timestamp`, as in 2.0."""

    exemplars: int = field(default=0, init=False)
    _numbers: int = field(default=0, init=False)
    _histograms: int = field(default=0, init=False)
    _rejected: int = field(default=0, init=False)
    _reason: str = field(default="", init=False)

    def series(self, raw: Sequence[bytes]) -> Iterator[Any]:
        """Yield each series that has samples. Raises `BodyTooLarge` before more are read than a request may have."""
        most = self.columns.limits.records
        if len(raw) > most:
            raise self.columns.too_large()
        for each in raw:
            if len(each) > _COUNTED_BYTES and self._is_too_large(_parsed(self.messages.parts, each)):
                raise self.columns.too_large()
            series = _parsed(self.messages.series, each)
            self.exemplars += len(series.exemplars)
            if series.samples or series.histograms:
                yield series

    def _is_too_large(self, parts: Any) -> bool:
        labels = len(parts.labels) if self.messages is V1 else 0
        most = self.columns.limits.records
        return max(len(parts.samples) + len(parts.histograms), len(parts.exemplars)) > most or labels > _MOST_LABELS

    def reject(self, count: int, reason: str) -> None:
        """Leave out so many samples."""
        self._rejected += count
        self._reason = self._reason or reason

    def add(self, series: Any, labels: list[tuple[str, str]], metadata: _Metadata) -> None:
        """Add the samples of a `TimeSeries` of either version."""
        try:
            metric, labels = _without_name(labels)
            start_time = _ns(metadata.created) if metadata.created else None
        except InvalidSample as error:
            self.reject(len(series.samples) + len(series.histograms), f"{_shown(labels)}: {error}")
            return
        if series.samples:
            self.columns.begin(_series_of_numbers(metric, labels, metadata))
        for sample in series.samples:
            try:
                time, began = self._times(sample, start_time)
            except InvalidSample as error:
                self.reject(1, f"{metric}{_shown(labels)}: {error}")
            else:
                self.columns.add_number(time, sample.value, began)
                self._numbers += 1
        for raw in series.histograms:
            if len(raw) > _HISTOGRAM_BYTES:
                raise self.columns.too_large()
            sample = _parsed(self.messages.histogram, raw)
            try:
                time, began = self._times(sample, start_time)
                histogram = native_histogram(sample)
            except InvalidSample as error:
                self.reject(1, f"{metric}{_shown(labels)}: {error}")
            else:
                self.columns.begin(_series_of_histogram(metric, labels, metadata, histogram))
                self.columns.add_distribution(time, histogram.distribution, buckets=histogram.buckets, start_time=began)
                self._histograms += 1

    def _times(self, sample: Any, start_time: int | None) -> tuple[int, int | None]:
        """When a sample was taken, and when it began to count: by its own word, or else by its series'."""
        own = sample.start_timestamp if self.have_start_times else 0
        return _ns(sample.timestamp), _ns(own) if own else start_time

    def decoded(self) -> DecodedWrite:
        """Return what was added."""
        try:
            records = self.columns.record_batch()
        except BadFrame as error:  # which the checks before should have prevented
            raise BadBody(f"The request has samples that cannot be kept: {error}") from None
        return DecodedWrite(
            records,
            self._rejected,
            self._reason,
            samples=self._numbers,
            histograms=self._histograms,
            exemplars=self.exemplars,
        )


def _series_of_numbers(metric: str, labels: Sequence[tuple[str, str]], metadata: _Metadata) -> Series:
    if metadata.type == _COUNTER:
        return Series(metric, labels, "sum", metadata.unit, temporality="cumulative", monotonic=True)
    return Series(metric, labels, "gauge" if metadata.type in _GAUGES else "unknown", metadata.unit)


def _series_of_histogram(
    metric: str, labels: Sequence[tuple[str, str]], metadata: _Metadata, histogram: NativeHistogram
) -> Series:
    is_gauge = histogram.is_gauge or metadata.type == _GAUGE_HISTOGRAM
    return Series(metric, labels, histogram.type, metadata.unit, temporality=None if is_gauge else "cumulative")


def _without_name(labels: list[tuple[str, str]]) -> tuple[str, list[tuple[str, str]]]:
    """Return the name of the metric, and the other labels by ascending names. Raises `InvalidSample`."""
    labels = sorted(labels)  # by code points, which is the order of their UTF-8 bytes too
    names = {name for name, _ in labels}
    if len(names) != len(labels):
        raise InvalidSample("A label is there twice.")
    if "" in names:
        raise InvalidSample("A label has no name.")
    metric = next((value for name, value in labels if name == _NAME), "")
    if not metric:
        raise InvalidSample(f"It has no {_NAME}.")
    return metric, [(name, value) for name, value in labels if value and name != _NAME]


def _ns(milliseconds: int) -> int:
    if not -_MOST_MS <= milliseconds <= _MOST_MS:
        raise InvalidSample(f"The time {milliseconds} (ms) is not from 1677 to 2262.")
    return milliseconds * _MS


def _shown(labels: Sequence[tuple[str, str]]) -> str:
    """The first labels for a message, as Prometheus writes them, and not much of each."""
    shown = ", ".join(f'{name[:_SHOWN]}="{value[:_SHOWN]}"' for name, value in labels[:_SHOWN_LABELS])
    return f"{{{shown}{', …' if len(labels) > _SHOWN_LABELS else ''}}}"
