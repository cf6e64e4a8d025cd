"""The interfaces that the landing protocol uses: table, progress, ledger, stager and table leases."""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from lakehead.errors import LakeheadError
from lakehead.lake.landing import Fence, Head, Landing, NewWatermark, Pointer, Snapshot, SnapshotId, Unit, UnitRemainder
from lakehead.state.model import Watermark

Rows = TypeVar("Rows")

CONFIG_OPTION = "--config FILE"
"""A placeholder in the commands that messages suggest. Code that prints a message replaces it with the file's name."""


class HistoryBroken(LakeheadError):
    """A table's history does not lead from its head back to the last settled snapshot. An operator must decide."""


class SourceUnknown(HistoryBroken):
    """A snapshot was cherry-picked from an expired one, and no record is left of whether that was a landing."""


class Moved(LakeheadError):
    """The table's head has moved since it was fenced, so nothing was published. Fence again."""


class Overtaken(LakeheadError):
    """Another run has advanced the table since this landing was planned. Nothing was published; plan again."""


class AuditFailed(LakeheadError):
    """The staged rows failed a check. Nothing was published; the message says what to look at."""


class UnitsGone(LakeheadError):
    """The state has no row for a unit to land: it may have landed, and its row been removed since."""


@dataclass(frozen=True, slots=True)
class Staged(Generic[Rows]):
    """Rows that are written but not visible to readers, with the landing that their snapshot will record."""

    rows: Rows
    landing: Landing
    at: Head
    """The table's head when they were staged: a later sweep may have removed them."""


class Table(Protocol[Rows]):
    """One Iceberg table. Its main branch is moved by compare-and-set only."""

    @property
    def uuid(self) -> str:
        """The table's permanent identity: a table that is dropped and created again has another one."""
        ...

    async def head(self) -> Head:
        """The table's current head: both references as of one commit."""
        ...

    async def history(self, after: SnapshotId | None, upto: SnapshotId | None) -> Sequence[Snapshot]:
        """The snapshots after `after` up to and including `upto`, oldest first; from the first one if `after` is None.

        Raises `HistoryBroken` unless they form an unbroken chain of parents.
        """
        ...

    async def publish(self, staged: Staged[Rows], at: Head) -> Head:
        """Make staged rows main's next snapshot, in one commit that requires the table's head to be `at`.

        Returns the head after that commit. Raises `Moved` if the head is another one, `Unavailable` if nothing was
        changed, and `OutcomeUnknown` if the answer does not say whether the commit was made.
        """
        ...


class Progress(Protocol):
    """A table's landings as recorded in the state. Each method is one transaction."""

    async def pointer(self, table: str) -> Pointer:
        """The last settled snapshot of the table."""
        ...

    async def settle(self, table: str, *, seen: Pointer, to: Pointer, snapshots: Sequence[Snapshot]) -> bool:
        """Record the landings among the snapshots and move the pointer to `to`. False if it is no longer `seen`."""
        ...

    async def watermark(self, table: str) -> Watermark | None:
        """The table's watermark after the settled landings; None if no landing had one."""
        ...

    async def plan(self, table: str, *, at: SnapshotId | None, units: Sequence[Unit]) -> Sequence[UnitRemainder] | None:
        """What is still to be landed of these units, read in a transaction that sees the pointer at this snapshot.

        Extends our leases on the units and leaves out those that others hold. None if the pointer is at another
        snapshot.
        """
        ...


class Ledger(Protocol):
    """A permanent record of landings: it outlives the snapshots and the state."""

    async def record(self, table: str, snapshot: Snapshot) -> None:
        """Store a snapshot's landing. Recording it again is harmless."""
        ...


class Stager(Protocol[Rows]):
    """Writes the rows of units."""

    async def stage(
        self, remainders: Sequence[UnitRemainder], *, token: str, new_watermark: NewWatermark, fence: Fence
    ) -> Staged[Rows]:
        """Write the rows where no reader sees them, based on the head at which the table was fenced.

        The landing that is returned may leave out remainders that cannot be read; their units are then not landed, and
        the stager tells its caller why. Of a remainder that is too large it may hold only the next part.
        """
        ...

    def is_publishable_at(self, staged: Staged[Rows], at: Head) -> bool:
        """Whether rows staged for an earlier head may be published at this one."""
        ...

    async def is_still_stored(self, staged: Staged[Rows]) -> bool:
        """Whether everything that was staged still exists. Raises `Unavailable` if the store does not answer."""
        ...

    async def discard(self, staged: Staged[Rows]) -> None:
        """Remove what will not be published, if leaving it would disturb other writers. It never fails.

        A commit of it that is still in flight must stay safe: either it fails, or it publishes what was staged.
        """
        ...


class TableLeases(Protocol):
    """Advisory leases that keep long work on a table from starving. Correctness never depends on them."""

    def at(self, table: str, name: str) -> AbstractAsyncContextManager[None]:
        """Hold the lease on the table with this uuid; `name` is for messages.

        Raises `Unavailable` if another process keeps holding it.
        """
        ...
