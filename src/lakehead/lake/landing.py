"""The records of a landing: units of work, what remains to be landed of them, and the commit token."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from enum import Enum
from hashlib import sha256

from lakehead.state.model import ObjectProgress, ReadBy, Value

SnapshotId = int
Span = tuple[int, int]
"""A half-open range of record numbers: the start is included, the end is not."""


@dataclass(frozen=True, slots=True)
class Numbers:
    """The consecutive numbers of a unit's records in a stream. Other units may hold some of the same records."""

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
class LandedPart:
    """Bytes of a unit's object that a landing adds, if more of it are to follow in others."""

    start: int
    end: int
    rows: int
    """How many records the object has up to `end`."""
    etag: str
    """The content that the bytes are of."""


@dataclass(frozen=True, slots=True)
class UnitRemainder:
    """The part of a unit that is still to be landed: the records that no landing holds yet, or the whole unit.

    The object of a unit may be too large for one landing. Then each landing adds a part that begins where the one
    before it ended, and the last one completes the unit. How large parts are is for each landing to say, so it may
    change at any time: what counts is how far the unit had landed at the head at which the landing was planned, and
    the landing is published only at that head. So of two landings that begin at the same byte, one is published.
    """

    unit: Unit
    spans: tuple[Span, ...] | None = None
    """The numbers of its own records; None means the whole unit."""

    landed: ObjectProgress | None = None
    """How much of its object had landed when it was planned; None: nothing. It is not stored with the landing."""

    part: LandedPart | None = None
    """What the landing adds of it, if that is not all that remains: then the unit is not complete."""

    @property
    def recorded(self) -> Unit:
        """The unit as snapshots name it; a part is `unit#start-end`."""
        if self.part is None:
            return self.unit
        return Unit(f"{self.unit.id}#{self.part.start}-{self.part.end}", self.unit.generation)


@dataclass(frozen=True, slots=True)
class NewWatermark:
    """A table's watermark after a landing, for tables that are read in order."""

    watermark: Value | None = None
    slice: int | None = None
    load_date: date | None = None
    read_by: ReadBy | None = None
    """The column and filter by which the rows up to the watermark were selected."""


NO_WATERMARK = NewWatermark()


class AnyWatermark(Enum):
    """The type of `ANY_WATERMARK`, for a landing that is published whatever the table's watermark is."""

    ANY_WATERMARK = "any"


ANY_WATERMARK = AnyWatermark.ANY_WATERMARK


@dataclass(frozen=True, slots=True)
class Landing:
    """What a snapshot records about the units that it added to the table."""

    token: str
    remainders: tuple[UnitRemainder, ...]
    before: SnapshotId | None = None
    """The snapshot of the landing before this one. It links the landings into a chain that outlives the snapshots and
    the state."""

    new_watermark: NewWatermark = NO_WATERMARK
    counts: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One snapshot of a table, with its landing if it has one."""

    id: SnapshotId
    parent: SnapshotId | None
    sequence: int
    landing: Landing | None = None
    source: SnapshotId | None = None
    """The snapshot that this landing was cherry-picked from. The landing before it on main may differ from the one
    before the source."""


@dataclass(frozen=True, slots=True)
class Head:
    """A table's current position: a landing is fenced at it, and its publication requires that it is unchanged."""

    snapshot: SnapshotId | None
    """Main's snapshot; None if nothing has been published."""

    sweep: SnapshotId | None
    """The snapshot that the last sweep tagged: files staged before it may be gone. Main alone does not show a sweep."""


@dataclass(frozen=True, slots=True)
class Fence:
    """The head up to which all landings of a table were settled, and the last of those landings."""

    head: Head
    last_landing: SnapshotId | None
    settled: frozenset[str] = frozenset()
    """The tokens of the landings that this fence settled."""


@dataclass(frozen=True, slots=True)
class Pointer:
    """The snapshot up to which the state has settled a table's history."""

    snapshot: SnapshotId | None
    last_landing: SnapshotId | None
    """The newest landing at or before that snapshot: the next landing refers to it."""


BEGINNING = Pointer(None, None)


def chained(snapshots: Iterable[Snapshot], last: SnapshotId | None) -> list[Snapshot]:
    """Return main's snapshots, given oldest first, with each cherry-picked landing linked to the one before it on main.

    `last` is the last landing before all of them.
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
    """The commit token: the same units give the same token, in any order and for every writer."""
    digest = sha256()
    for part in (pipeline, table_uuid, *(f"{unit.generation}:{unit.id}" for unit in sorted(units))):
        digest.update(f"{len(part)}:{part}".encode())
    return digest.hexdigest()


def remainders_of(units: Iterable[Unit], landed: Mapping[str, Sequence[Span]]) -> tuple[UnitRemainder, ...]:
    """What remains of each unit: its records that neither a landing nor an earlier unit has, so each lands once.

    `landed` has the numbers that the landings of each stream hold. A unit whose records have all landed has no span
    left; it stays in the plan so that it is recorded as done.
    """
    taken = {stream: _Taken(spans) for stream, spans in landed.items()}
    remainders = []
    for unit in units:
        if unit.numbers is None:
            remainders.append(UnitRemainder(unit))
            continue
        whole = (unit.numbers.start, unit.numbers.end)
        own = taken.setdefault(unit.numbers.stream, _Taken(())).take(whole)
        remainders.append(UnitRemainder(unit, None if own == (whole,) else own))
    return tuple(remainders)


class _Taken:
    """The numbers of one stream that are assigned, merged into as few spans as possible, in order."""

    def __init__(self, spans: Iterable[Span]) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        for span in spans:
            self.take(span)

    def take(self, whole: Span) -> tuple[Span, ...]:
        """Assign the numbers of a span. Returns those of them that were not assigned before."""
        start, end = whole
        first, last = bisect_left(self._ends, start), bisect_right(self._starts, end)
        overlapping = list(zip(self._starts[first:last], self._ends[first:last], strict=True))
        if start < end:
            merged = [*overlapping, whole]
            self._starts[first:last] = [min(span[0] for span in merged)]
            self._ends[first:last] = [max(span[1] for span in merged)]
        edges = [start, *(edge for span in overlapping for edge in span), end]
        gaps = zip(edges[::2], edges[1::2], strict=True)
        return tuple((left, right) for left, right in gaps if left < right)
