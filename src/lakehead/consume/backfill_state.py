"""The shared state as a backfill sees it: what landed long ago counts as landed, though its shards were pruned."""

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress

from lakehead.consume.shared_state import Opened, QueueSharedState
from lakehead.errors import LakeheadError
from lakehead.lake.landed_units import LandedUnits, PauseLost
from lakehead.state.model import FileOutcome

LOG = logging.getLogger(__name__)


class BackfillSharedState:
    """`SharedState` for a listing, which names files again that the state has forgotten.

    Before the first units of a table are opened, all landed units below the prefix are brought back from the ledger,
    and pruning is paused. From then on the shards of units are opened, the pause is confirmed, and only then are units
    acquired: so none is acquired that has landed. If the pause was lost, `open` raises `PauseLost`, and brings them
    back once more when it is called again. Pipelines on the same tables go on meanwhile.
    """

    def __init__(self, shared: QueueSharedState, landed: LandedUnits, token: str, prefix: str) -> None:
        """`token` is the publish token of `shared`; `prefix` is the beginning of all units that will be opened."""
        self._shared = shared
        self._landed = landed
        self._token = token
        self._prefix = prefix
        self._restored: set[str] = set()
        """Tables whose landed units are in the state."""

    async def open(self, table: str, units: Collection[str]) -> Opened:
        """Open shards for the units, and take those that are free and have not landed, however long ago."""
        if table not in self._restored:
            restored = await self._landed.restore(table, self._prefix)
            LOG.info("Table %s: %d units below %s have landed", table, restored.units, self._prefix)
            self._restored.add(table)
        try:
            await asyncio.to_thread(self._open_and_confirm, table, units)
        except PauseLost:
            self._restored.discard(table)
            raise
        return await self._shared.open(table, units)

    def _open_and_confirm(self, table: str, units: Collection[str]) -> None:
        self._landed.state.shards.open(table, units, token=self._token)
        self._landed.confirm(table)

    async def close(self) -> None:
        """Let pruning go on. If that fails, the pause ends by time."""
        for table in self._restored:
            with suppress(LakeheadError):
                await asyncio.to_thread(self._landed.release, table)
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
