"""Ranges of numbers, such as the sequence numbers of records: half-open, so that `(10, 21)` is 10 to 20."""

from collections.abc import Iterable

Span = tuple[int, int]
Spans = tuple[Span, ...]

_FAR = 2**64
"""Beyond all numbers."""


def merged(spans: Iterable[Span]) -> Spans:
    """Return the same numbers in order, in spans that neither overlap nor touch."""
    whole: list[Span] = []
    for start, end in sorted(spans):
        if whole and start <= whole[-1][1]:
            whole[-1] = (whole[-1][0], max(end, whole[-1][1]))
        elif start < end:
            whole.append((start, end))
    return tuple(whole)


def common(one: Iterable[Span], other: Iterable[Span]) -> Spans:
    """Return the numbers that both have."""
    ours, theirs, found = merged(one), merged(other), list[Span]()
    mine = yours = 0
    while mine < len(ours) and yours < len(theirs):
        start, end = max(ours[mine][0], theirs[yours][0]), min(ours[mine][1], theirs[yours][1])
        if start < end:
            found.append((start, end))
        if ours[mine][1] < theirs[yours][1]:
            mine += 1
        else:
            yours += 1
    return tuple(found)


def without(one: Iterable[Span], other: Iterable[Span]) -> Spans:
    """Return the numbers that the first have and the second do not."""
    edges = [-_FAR, *(edge for span in merged(other) for edge in span), _FAR]
    return common(one, zip(edges[::2], edges[1::2], strict=True))


def count(spans: Iterable[Span]) -> int:
    """Return how many numbers spans have, each counted once."""
    return sum(end - start for start, end in merged(spans))
