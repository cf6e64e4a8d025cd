"""The words of a landing: units of work, what of them is landed, and the token under which it is found."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256

SnapshotId = int


@dataclass(frozen=True, slots=True, order=True)
class Unit:
    """One unit of work: a shard of a queue or a slice of a table. A reload is a new generation of its units."""

    id: str
    generation: int = 0


@dataclass(frozen=True, slots=True)
class Share:
    """What of a unit is to be landed: the spans of records that no landing holds yet, or the whole unit."""

    unit: Unit
    spans: tuple[tuple[int, int], ...] = ()
    """Half-open ranges of record numbers; empty means the whole unit."""


@dataclass(frozen=True, slots=True)
class Landing:
    """What a snapshot says about the units that it brought to the table."""

    token: str
    shares: tuple[Share, ...]
    before: SnapshotId | None = None
    """The landing before this one: with it the landings form a chain that outlives snapshots and state."""

    watermark: str | None = None
    counts: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One state of a table, as its history tells it."""

    id: SnapshotId
    parent: SnapshotId | None
    sequence: int
    landing: Landing | None = None


@dataclass(frozen=True, slots=True)
class Head:
    """Where a table stands: what a landing is fenced at, and what its publication requires."""

    snapshot: SnapshotId | None
    """Main's snapshot; None where nothing has been published."""

    sweep: SnapshotId | None
    """The empty snapshot of the last sweep: what was staged before it may be gone. A reference of its own keeps it,
    because a rollback can bring main back to where it was before the sweep."""


@dataclass(frozen=True, slots=True)
class Fence:
    """Where a table stood when all of its landings were settled, and the last of them."""

    head: Head
    last_landing: SnapshotId | None


@dataclass(frozen=True, slots=True)
class Pointer:
    """How far the state has settled a table's history."""

    snapshot: SnapshotId | None
    last_landing: SnapshotId | None
    """The newest landing at or before that snapshot: the next one names it."""


BEGINNING = Pointer(None, None)


def token_of(pipeline: str, table_uuid: str, units: Iterable[Unit]) -> str:
    """The commit token: the same units give the same token, whoever lands them and in whichever order they come."""
    digest = sha256()
    for word in (pipeline, table_uuid, *(f"{unit.generation}:{unit.id}" for unit in sorted(units))):
        digest.update(f"{len(word)}:{word}".encode())
    return digest.hexdigest()
