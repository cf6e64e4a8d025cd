"""Brings units that landed long ago back into the state, for sources that list what they have seen before.

A queue forgets a message that was acknowledged, so the state may forget its shard after a while. A backfill or a folder
does not forget: it names every file again. What has landed of them stands in the ledger, and is restored from there
before they are opened.
"""

import asyncio
from array import array
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from lakehead.errors import Unavailable
from lakehead.lake.documents import ledger_folder, ledger_place
from lakehead.lake.landing import Snapshot, SnapshotId
from lakehead.lake.ledger import StoreLedger
from lakehead.lake.state_progress import state_landings
from lakehead.state.keys import CHUNK, chunks
from lakehead.state.model import StoredLanding
from lakehead.state.schema import EPOCH
from lakehead.state.state import State
from lakehead.wire.errors import Unreadable

AT_ONCE = 32
"""Ledger objects that are read concurrently, and held in memory."""


_Recorded = tuple[StoredLanding, datetime]
"""A landing, and when it was recorded in the ledger."""


class PauseLost(Unavailable):
    """Restore the landed units again: pruning was not paused all the time, so some may be forgotten again."""


@dataclass(frozen=True, slots=True)
class RestoredUnits:
    """What the ledger has of a table below a prefix."""

    landings: int
    """Landings with such units."""

    units: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LandedUnits:
    """Keeps the landed units of tables in the state as long as one owner needs them.

    In this order: `restore`; then, for each part of the listing, open and acquire its shards, `confirm`, and only then
    use what was acquired; `release` at the end. What `confirm` has followed was opened while every landed unit had its
    shard. If the owner dies, its pause of pruning ends by time, and what it restored is pruned like everything else.
    """

    state: State
    ledger: StoreLedger
    owner: str
    """One start of one process."""

    hold: timedelta = timedelta(hours=1)
    """How long pruning stays paused after the last sign of the owner."""

    async def restore(self, table: str, prefix: str = "") -> RestoredUnits:
        """Pause pruning, and complete again the shards of all units of a table that begin with a prefix and landed.

        Only landings that main still has count, as far as the table is settled. Repeating it is harmless, and so is a
        crash in the middle. Memory is bounded by the largest landings. Raises `PauseLost` if the state was rebuilt
        meanwhile, and `Unreadable` if the ledger lacks a landing.
        """
        await asyncio.to_thread(self.state.pruning.pause, table, self.owner, self._until())
        pointer = await asyncio.to_thread(
            self.state.landings.pointer, table
        )  # not before the pause: what is settled later is not pruned
        waiting: list[_Recorded] = []
        landings = units = 0
        confirm_at = self.state.now() + self.hold / 4
        async for snapshot, recorded in settled_landings(self.ledger, table, pointer.last_landing if pointer else None):
            if self.state.now() >= confirm_at:  # a long ledger may have few units below the prefix to write
                await self.confirm(table)
                confirm_at = self.state.now() + self.hold / 4
            for landing in state_landings(snapshot):
                names = [unit for unit in landing.units if unit.startswith(prefix)]
                landings, units = landings + bool(names), units + len(names)
                for some in chunks(names):
                    if sum(len(each.units) for each, _ in waiting) + len(some) > CHUNK:
                        await asyncio.to_thread(self._write, table, waiting)
                        waiting = []
                    waiting.append((replace(landing, units=tuple(some)), recorded))
        if waiting:
            await asyncio.to_thread(self._write, table, waiting)
        return RestoredUnits(landings, units)

    async def confirm(self, table: str) -> None:
        """Extend the pause of pruning. Raises `PauseLost` if it was over: what was opened since must not be landed."""
        if not await asyncio.to_thread(self.state.pruning.extend_pause, table, self.owner, self._until()):
            raise _lost(table)

    async def release(self, table: str) -> None:
        """End the pause: the restored shards are pruned with the next ones."""
        await asyncio.to_thread(self.state.pruning.end_pause, table, self.owner)

    def _write(self, table: str, recorded: Sequence[_Recorded]) -> None:
        """Restore some units. Few at a time: a long transaction would block settling."""
        oldest_first = recorded[::-1]
        restored = self.state.landings.restore(
            table,
            [landing for landing, _ in oldest_first],
            [at for _, at in oldest_first],
            paused_by=self.owner,
            paused_until=self._until(),
        )
        if not restored:
            raise _lost(table)

    def _until(self) -> datetime:
        return self.state.now() + self.hold


async def settled_landings(
    ledger: StoreLedger, table: str, last: SnapshotId | None
) -> AsyncIterator[tuple[Snapshot, datetime]]:
    """Yield the landings from the last one back to the first, and when each was recorded by the store's clock.

    Those that were rolled back are not among them. Memory is bounded by the largest landings. Raises `Unavailable`, and
    `Unreadable` if the ledger lacks a landing.
    """
    if last is None:
        return
    # Numbers only: there may be a million landings.
    sequences, snapshots, recorded = array("q"), array("q"), array("q")
    async for page in ledger.store.list(ledger_folder(table)):
        for entry in page:
            snapshot, sequence = ledger_place(entry.key)
            sequences.append(sequence)
            snapshots.append(snapshot)
            recorded.append(entry.modified_ns)
    wanted: SnapshotId | None = last
    for end in range(len(snapshots), 0, -AT_ONCE):
        places = range(end - 1, max(end - AT_ONCE, 0) - 1, -1)
        reads = (ledger.read(table, snapshots[place], sequences[place]) for place in places)
        found = await asyncio.gather(*reads, return_exceptions=True)
        for place, entry_or_error in zip(places, found, strict=True):
            if snapshots[place] != wanted:
                continue  # not settled yet, or rolled back
            if isinstance(entry_or_error, BaseException):
                raise entry_or_error
            if entry_or_error is None or entry_or_error.landing is None:
                break
            yield entry_or_error, EPOCH + timedelta(microseconds=recorded[place] // 1000)
            wanted = entry_or_error.landing.before
    if wanted is not None:
        raise Unreadable(
            f"The ledger of table {table} lacks landing {wanted}, so it is not known which units have landed. "
            f"Bring its objects below {ledger_folder(table)}/ back from a backup."
        )


def _lost(table: str) -> PauseLost:
    return PauseLost(
        f"Landed units of table {table} may have been forgotten, because the pause of pruning was over or the state "
        "was rebuilt. What was not landed yet was left alone; run it again."
    )
