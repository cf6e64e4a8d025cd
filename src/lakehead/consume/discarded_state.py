"""The shared state of a pipeline that lands accepted batches: what operators have discarded counts as given up."""

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Protocol

from lakehead.consume.accepted_units import identity_of_unit
from lakehead.consume.shared_state import Opened, SharedState
from lakehead.errors import LakeheadError
from lakehead.state.model import DeadLetter, FileOutcome
from lakehead.state.state import State
from lakehead.wire.batch_identity import BatchIdentity

LOG = logging.getLogger(__name__)

REASON = "An operator has discarded this batch."


class Discarded(Protocol):
    """Knows which accepted batches shall not land: `DiscardedLookup`."""

    async def among(self, table: str, identities: Collection[BatchIdentity]) -> frozenset[BatchIdentity]:
        """Return those of the batches that shall not land in a table. Raises `Unavailable`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscardedSharedState:
    """`SharedState` that gives up what is discarded, also if the state knows nothing of it, as after it was lost.

    Units are looked up when they are ours. Whoever discards one looks afterwards whether a pipeline holds it: so
    either it is seen here, or the operator is told that it may still land.
    """

    shared: SharedState
    discarded: Discarded
    state: State
    store_url: str
    """The URL of the store of accepted batches, by which units are named."""

    async def open(self, table: str, units: Collection[str]) -> Opened:
        """Open shards for the units, and take those that are free and not discarded. Those that are count as done."""
        opened = await self.shared.open(table, units)
        batches = {identity: unit for unit in opened.ours if (identity := identity_of_unit(unit, self.store_url))}
        try:
            found = [batches[identity] for identity in await self.discarded.among(table, batches)]
            for unit in found:
                await asyncio.to_thread(self._give_up, table, unit)
        except BaseException:
            with suppress(LakeheadError):  # then others wait until the lease expires
                await self.shared.release(table, opened.ours)
            raise
        if not found:
            return opened
        LOG.warning("Accepted batches that operators have discarded, and that do not land: %d", len(found))
        ours = {unit: tries for unit, tries in opened.ours.items() if unit not in found}
        return replace(opened, ours=ours, done=opened.done.union(found))

    def _give_up(self, table: str, unit: str) -> None:
        now = self.state.now()
        self.state.history.drop(DeadLetter(table=table, unit=unit, reason=REASON, tries=0, at=now, dropped_at=now))

    async def extend(self, table: str, units: Collection[str]) -> set[str]:
        """Show a sign of life for units. Returns those that are still ours."""
        return await self.shared.extend(table, units)

    async def release(self, table: str, units: Collection[str]) -> None:
        """Give units back, so that another pipeline can take them at once."""
        await self.shared.release(table, units)

    async def count_try(self, table: str, tries: Mapping[str, int]) -> Mapping[str, int]:
        """Record durably, before units are read, which try of each it is. Returns those that are ours."""
        return await self.shared.count_try(table, tries)

    async def take_back_try(self, table: str, tries: Mapping[str, int]) -> None:
        """Set the tries of units back to what they were: the last one failed for a reason that is not theirs."""
        await self.shared.take_back_try(table, tries)

    async def settled(self, table: str, units: Collection[str]) -> set[str]:
        """Return those of the units that have landed, or were given up."""
        return await self.shared.settled(table, units)

    async def acknowledge(self, table: str, units: Collection[str]) -> None:
        """Record that the messages of landed units are acknowledged: their deduplication window begins."""
        await self.shared.acknowledge(table, units)

    async def record(self, table: str, outcomes: Sequence[FileOutcome]) -> None:
        """Write what became of units to the history of files."""
        await self.shared.record(table, outcomes)

    async def prune(self, table: str) -> int | None:
        """Remove units that were acknowledged longer ago than the window; None if that was done a moment ago."""
        return await self.shared.prune(table)

    async def remembered(self, table: str) -> int:
        """Return how many units of a table the state remembers."""
        return await self.shared.remembered(table)
