"""The shared state as a backfill sees it: what landed long ago counts as landed, though its shards were pruned."""

import logging
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Protocol

from lakehead.consume.shared_state import Opened, SharedState
from lakehead.errors import LakeheadError
from lakehead.lake.landed_units import PauseLost, RestoredUnits
from lakehead.state.model import FileOutcome

LOG = logging.getLogger(__name__)


class RestoringLedger(Protocol):
    """Brings landed units back into the state while pruning is paused: `LandedUnits`."""

    async def restore(self, table: str, prefix: str = "") -> RestoredUnits:
        """Pause pruning, and bring back the landed units that begin with a prefix."""
        ...

    async def confirm(self, table: str) -> None:
        """Extend the pause. Raises `PauseLost` if it was over."""
        ...

    async def release(self, table: str) -> None:
        """End the pause."""
        ...


class BackfillSharedState:
    """`SharedState` for a listing, which names files again that the state has forgotten.

    Before the first units of a table are opened, all landed units below the prefix are brought back from the ledger,
    and pruning is paused. From then on the pause is confirmed after units were acquired, and before anybody is told:
    so none is ours that has landed. If the pause was lost, `open` gives the units back and raises `PauseLost`, and
    brings the landed ones back once more when it is called again. Pipelines on the same tables go on meanwhile.
    """

    def __init__(self, shared: SharedState, landed: RestoringLedger, prefix: str) -> None:
        """`prefix` is the beginning of all units that will be opened."""
        self._shared = shared
        self._landed = landed
        self._prefix = prefix
        self._restored: set[str] = set()
        """Tables whose landed units are in the state."""

    async def open(self, table: str, units: Collection[str]) -> Opened:
        """Open shards for the units, and take those that are free and have not landed, however long ago."""
        if table not in self._restored:
            restored = await self._landed.restore(table, self._prefix)
            LOG.info("Table %s: %d units below %s have landed", table, restored.units, self._prefix)
            self._restored.add(table)
        opened = await self._shared.open(table, units)
        try:
            await self._landed.confirm(table)
        except PauseLost:
            self._restored.discard(table)
            with suppress(LakeheadError):  # then others wait until the lease expires
                await self._shared.release(table, opened.ours)
            raise
        return opened

    async def close(self) -> None:
        """Let pruning go on. If that fails, the pause ends by time."""
        for table in self._restored:
            with suppress(LakeheadError):
                await self._landed.release(table)
        self._restored.clear()

    async def extend(self, table: str, units: Collection[str]) -> set[str]:
        """Show a sign of life for units. Returns those that are still ours."""
        return await self._shared.extend(table, units)

    async def release(self, table: str, units: Collection[str]) -> None:
        """Give units back, so that another pipeline can take them at once."""
        await self._shared.release(table, units)

    async def count_try(self, table: str, tries: Mapping[str, int]) -> Mapping[str, int]:
        """Record durably, before units are read, which try of each it is. Returns those that are ours."""
        return await self._shared.count_try(table, tries)

    async def take_back_try(self, table: str, tries: Mapping[str, int]) -> None:
        """Set the tries of units back to what they were: the last one failed for a reason that is not theirs."""
        await self._shared.take_back_try(table, tries)

    async def settled(self, table: str, units: Collection[str]) -> set[str]:
        """Return those of the units that have landed, or were given up."""
        return await self._shared.settled(table, units)

    async def acknowledge(self, table: str, units: Collection[str]) -> None:
        """Begin the deduplication window of landed units: a later backfill finds them in the ledger."""
        await self._shared.acknowledge(table, units)

    async def record(self, table: str, outcomes: Sequence[FileOutcome]) -> None:
        """Write what became of units to the history of files."""
        await self._shared.record(table, outcomes)

    async def prune(self, table: str) -> int | None:
        """Remove nothing of this table as long as the pause lasts."""
        return await self._shared.prune(table)

    async def remembered(self, table: str) -> int:
        """Return how many units of a table the state remembers."""
        return await self._shared.remembered(table)
