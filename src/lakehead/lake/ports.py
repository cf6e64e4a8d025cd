"""What the landing protocol asks of a table, of the state, of the ledger and of whoever writes the rows."""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from lakehead.errors import LakeheadError
from lakehead.lake.landing import Fence, Head, Landing, Pointer, Reached, Share, Snapshot, SnapshotId, Unit

Rows = TypeVar("Rows")

CONFIG_OPTION = "--config FILE"
"""In a command that a message suggests: whoever prints the message and knows the configuration puts its name here."""


class HistoryBroken(LakeheadError):
    """A table's history does not lead from its head back to where it was last settled. An operator must decide."""


class SourceUnknown(HistoryBroken):
    """A snapshot was cherry-picked from one of which nothing tells any more whether it was a landing."""


class Moved(LakeheadError):
    """The table's head is no longer where it was fenced, so nothing was published. Fence again."""


class AuditFailed(LakeheadError):
    """What was staged is not what should be published. Nothing was published; the message says what to look at."""


class UnitsGone(LakeheadError):
    """The state has no row for a unit that is to be landed: it may have landed and been forgotten since."""


@dataclass(frozen=True, slots=True)
class Staged(Generic[Rows]):
    """Rows that are written and that no reader sees, with what their snapshot will say."""

    rows: Rows
    landing: Landing
    at: Head
    """Where the table stood: a sweep after that may have removed them."""


class Table(Protocol[Rows]):
    """One Iceberg table. Its main branch is moved by compare-and-set alone."""

    @property
    def uuid(self) -> str:
        """What names the table for good: a table dropped and made again is another."""
        ...

    async def head(self) -> Head:
        """Where the table stands now: both of its references as one commit left them."""
        ...

    async def history(self, after: SnapshotId | None, upto: SnapshotId | None) -> Sequence[Snapshot]:
        """The snapshots after one up to another, oldest first; from the first one on for None.

        Raises `HistoryBroken` unless they form an unbroken chain of parents.
        """
        ...

    async def publish(self, staged: Staged[Rows], at: Head) -> None:
        """Make staged rows main's next snapshot, in one commit that requires the table to stand there.

        Raises `Moved` if it stands elsewhere, `Unavailable` if nothing was changed, and `OutcomeUnknown` for whatever
        is not a definite answer.
        """
        ...


class Progress(Protocol):
    """What the state knows of a table's landings. Each method is one transaction."""

    async def pointer(self, table: str) -> Pointer:
        """How far the table is settled."""
        ...

    async def settle(self, table: str, *, seen: Pointer, to: Pointer, snapshots: Sequence[Snapshot]) -> bool:
        """Record the landings among the snapshots and move the pointer, if it is still where it was seen."""
        ...

    async def plan(self, table: str, *, at: SnapshotId | None, units: Sequence[Unit]) -> Sequence[Share] | None:
        """Of these units, what is still to be landed, in a transaction that sees the pointer at this snapshot.

        It extends our leases on them and leaves out what others hold. None if the pointer is elsewhere.
        """
        ...


class Ledger(Protocol):
    """Landings for good: it outlives the snapshots and the state."""

    async def record(self, table: str, snapshot: Snapshot) -> None:
        """Store a snapshot's landing. Recording it again is harmless."""
        ...


class Stager(Protocol[Rows]):
    """Whoever turns shares into rows."""

    async def stage(self, shares: Sequence[Share], *, token: str, reached: Reached, fence: Fence) -> Staged[Rows]:
        """Write the rows where no reader sees them, from where the table was fenced."""
        ...

    def still_good(self, staged: Staged[Rows], at: Head) -> bool:
        """Whether rows staged for an earlier head may be published at this one."""
        ...

    async def is_there(self, staged: Staged[Rows]) -> bool:
        """Whether all that was staged is still where it was written. Raises `Unavailable` if the store is silent."""
        ...

    async def discard(self, staged: Staged[Rows]) -> None:
        """Remove what is not going to be published, where it would be in somebody's way. It never fails.

        A commit of it that is still under way must not be harmed: it comes to nothing, or to what was staged.
        """
        ...


class Turns(Protocol):
    """Keeps long work on a table from starving. Correctness never depends on it."""

    def at(self, table: str, name: str) -> AbstractAsyncContextManager[None]:
        """Have the turn at the table of this uuid. Raises `Unavailable` if somebody else has it all the time."""
        ...
