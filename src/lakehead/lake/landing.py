"""The words of a landing: units of work, what of them is landed, and the token under which it is found."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from hashlib import sha256

from lakehead.state.model import ReadBy, Value

SnapshotId = int
Span = tuple[int, int]
"""A half-open range of record numbers."""


@dataclass(frozen=True, slots=True)
class Numbers:
    """The consecutive numbers that a unit's records have in a stream. Other units may hold some of the same."""

    stream: str
    start: int
    end: int


@dataclass(frozen=True, slots=True, order=True)
class Unit:
    """One unit of work: a shard of a queue or a slice of a table. A reload is a new generation of its units."""

    id: str
    generation: int = 0
    numbers: Numbers | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Share:
    """What of a unit is to be landed: the records that no landing holds yet, or the whole unit."""

    unit: Unit
    spans: tuple[Span, ...] | None = None
    """The numbers of its own records; None means the whole unit."""


@dataclass(frozen=True, slots=True)
class Reached:
    """How far a table is after a landing, for tables that are read in order."""

    watermark: Value | None = None
    slice: int | None = None
    load_date: date | None = None
    read_by: ReadBy | None = None
    """What the rows up to the watermark were chosen by."""


NOWHERE = Reached()


@dataclass(frozen=True, slots=True)
class Landing:
    """What a snapshot says about the units that it brought to the table."""

    token: str
    shares: tuple[Share, ...]
    before: SnapshotId | None = None
    """The landing before this one: with it the landings form a chain that outlives snapshots and state."""

    reached: Reached = NOWHERE
    counts: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One state of a table, as its history tells it."""

    id: SnapshotId
    parent: SnapshotId | None
    sequence: int
    landing: Landing | None = None
    source: SnapshotId | None = None
    """The snapshot that this landing was cherry-picked from. What is before it on main is not what was before that."""


@dataclass(frozen=True, slots=True)
class Head:
    """Where a table stands: what a landing is fenced at, and what its publication requires."""

    snapshot: SnapshotId | None
    """Main's snapshot; None where nothing has been published."""

    sweep: SnapshotId | None
    """The snapshot that the last sweep's tag is on: what was staged before it may be gone. Main does not tell of it."""


@dataclass(frozen=True, slots=True)
class Fence:
    """Where a table stood when all of its landings were settled, and the last of them."""

    head: Head
    last_landing: SnapshotId | None
    settled: frozenset[str] = frozenset()
    """The tokens of the landings that this fence settled."""


@dataclass(frozen=True, slots=True)
class Pointer:
    """How far the state has settled a table's history."""

    snapshot: SnapshotId | None
    last_landing: SnapshotId | None
    """The newest landing at or before that snapshot: the next one names it."""


BEGINNING = Pointer(None, None)


def chained(snapshots: Iterable[Snapshot], last: SnapshotId | None) -> list[Snapshot]:
    """Main's snapshots, oldest first, where a landing that was cherry-picked names the one before it on main.

    `last` is the last landing before them all.
    """
    chain = []
    for snapshot in snapshots:
        landing = snapshot.landing
        if landing is not None and snapshot.source is not None:
            chain.append(replace(snapshot, landing=replace(landing, before=last)))
        else:
            chain.append(snapshot)
        last = snapshot.id if landing is not None else last
    return chain


def token_of(pipeline: str, table_uuid: str, units: Iterable[Unit]) -> str:
    """The commit token: the same units give the same token, whoever lands them and in whichever order they come."""
    digest = sha256()
    for word in (pipeline, table_uuid, *(f"{unit.generation}:{unit.id}" for unit in sorted(units))):
        digest.update(f"{len(word)}:{word}".encode())
    return digest.hexdigest()


def shares_of(units: Iterable[Unit], landed: Mapping[str, Sequence[Span]]) -> tuple[Share, ...]:
    """Give each unit the records that no landing has, nor a unit before it: a record lands once, whatever holds it.

    `landed` are the numbers that each stream's landings hold. A unit whose records have all landed has no span left; it
    stays in the plan, so that it is known to be done.
    """
    taken = {stream: _Taken(spans) for stream, spans in landed.items()}
    shares = []
    for unit in units:
        if unit.numbers is None:
            shares.append(Share(unit))
            continue
        whole = (unit.numbers.start, unit.numbers.end)
        own = taken.setdefault(unit.numbers.stream, _Taken(())).take(whole)
        shares.append(Share(unit, None if own == (whole,) else own))
    return tuple(shares)


class _Taken:
    """The numbers of one stream that somebody has, as few spans as can hold them, in order."""

    def __init__(self, spans: Iterable[Span]) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        for span in spans:
            self.take(span)

    def take(self, whole: Span) -> tuple[Span, ...]:
        """Take the numbers of a span; those of them that nobody had."""
        start, end = whole
        first, last = bisect_left(self._ends, start), bisect_right(self._starts, end)
        theirs = list(zip(self._starts[first:last], self._ends[first:last], strict=True))
        if start < end:
            hull = [*theirs, whole]
            self._starts[first:last] = [min(span[0] for span in hull)]
            self._ends[first:last] = [max(span[1] for span in hull)]
        edges = [start, *(edge for span in theirs for edge in span), end]
        gaps = zip(edges[::2], edges[1::2], strict=True)
        return tuple((left, right) for left, right in gaps if left < right)
