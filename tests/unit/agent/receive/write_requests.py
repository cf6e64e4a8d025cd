"""Requests of remote write, as short to write as they can be."""

from collections.abc import Mapping, Sequence
from typing import Any

from lakehead.agent.receive.remote_write_messages import Request, WriteRequest

MS = 1_760_000_000_123
"""A time in milliseconds."""

NS = MS * 1_000_000
Labels = Mapping[str, str] | Sequence[tuple[str, str]]
UP: Labels = {"__name__": "up", "job": "a"}


def pairs(labels: Labels) -> Sequence[tuple[str, str]]:
    return list(labels.items()) if isinstance(labels, Mapping) else labels


def v1(*series: tuple[Labels, Sequence[tuple[int, float]]]) -> Any:
    """A request of 1.0: of each series its labels, and time and value of its samples."""
    request = WriteRequest()
    for labels, samples in series:
        add_v1(request, labels, samples)
    return request


def add_v1(request: Any, labels: Labels, samples: Sequence[tuple[int, float]] = ()) -> Any:
    added = request.timeseries.add()
    for name, text in pairs(labels):
        added.labels.add(name=name, value=text)
    for time, value in samples:
        added.samples.add(timestamp=time, value=value)
    return added


def v2(*series: tuple[Labels, Sequence[tuple[int, float]]]) -> Any:
    """A request of 2.0, likewise."""
    request = Request(symbols=[""])
    for labels, samples in series:
        add_v2(request, labels, samples)
    return request


def add_v2(request: Any, labels: Labels, samples: Sequence[tuple[int, float]] = ()) -> Any:
    added = request.timeseries.add()
    for pair in pairs(labels):
        added.labels_refs.extend(symbol(request, text) for text in pair)
    for time, value in samples:
        added.samples.add(timestamp=time, value=value)
    return added


def symbol(request: Any, text: str) -> int:
    if text not in request.symbols:
        request.symbols.append(text)
    return list(request.symbols).index(text)
