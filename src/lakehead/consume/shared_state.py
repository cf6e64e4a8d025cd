"""Which pipeline owns the content of a message, and whether it has landed: a client of the state's shard table."""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from lakehead.consume.settings import PipelineSettings
from lakehead.lake.landing import Unit
from lakehead.lake.state_progress import StateProgress
from lakehead.state.model import FileOutcome, PruneLimits, ShardState
from lakehead.state.state import State

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Opened:
    """What the shared state says of the units of some messages."""

    ours: Mapping[str, int]
    """Units that this pipeline owns from now on, each with the number of its tries so far."""

    done: frozenset[str]
    """Units that have landed, or were given up: their messages are acknowledged."""

    busy: frozenset[str]
    """Units that another pipeline is working on: their messages are dropped, and come again."""

    taken_over: int = 0
    """How many of ours were another pipeline's, which has shown no sign of life."""


class SharedState(Protocol):
    """What a coordinator asks of the shared state. A table is named by its uuid. Every call may raise `Unavailable`."""

    async def open(self, table: str, units: Collection[str]) -> Opened:
        """Open shards for the units, and take those that are free or whose owner has shown no sign of life."""
        ...

    async def extend(self, table: str, units: Collection[str]) -> set[str]:
        """Show a sign of life for units. Returns those that are still ours."""
        ...

    async def release(self, table: str, units: Collection[str]) -> None:
        """Give units back, so that another pipeline can take them at once."""
        ...

    async def count_try(self, table: str, units: Collection[str]) -> Mapping[str, int]:
        """Count one more try of units, durably, before they are read. Returns the counts of those that are ours."""
        ...

    async def take_back_try(self, table: str, units: Collection[str]) -> None:
        """Take back the last try of units: it failed for a reason that is not theirs."""
        ...

    async def settled(self, table: str, units: Collection[str]) -> set[str]:
        """Return those of the units that have landed, or were given up."""
        ...

    async def acknowledge(self, table: str, units: Collection[str]) -> None:
        """Record that the messages of landed units are acknowledged: their deduplication window begins."""
        ...

    async def record(self, table: str, outcomes: Sequence[FileOutcome]) -> None:
        """Write what became of units to the history of files."""
        ...

    async def prune(self, table: str) -> int | None:
        """Remove units that were acknowledged longer ago than the window; None if that was done a moment ago."""
        ...


class QueueSharedState:
    """`SharedState` over the state database. Each pipeline has one, with a token that is new at each start."""

    def __init__(self, state: State, token: str, settings: PipelineSettings) -> None:
        self._state = state
        self._token = token
        self._settings = settings
        self._progress = StateProgress(state=state, owner=token, lease=settings.lease)

    async def open(self, table: str, units: Collection[str]) -> Opened:
        """Open shards for the units, and take those that are free or whose owner has shown no sign of life.

        Two pipelines that acquire the same unit at once are told apart by the database, and if they were not, the loser
        would land nothing: a landing takes only units whose lease was extended after its fence.
        """

        def work() -> Opened:
            wanted = [Unit(unit) for unit in units]
            before = {
                each.unit for each in self._state.shards.read(table, units) if each.owner not in (None, self._token)
            }
            ours = {unit.id for unit in self._progress.take(table, wanted)}
            if self._revive(table, [unit.id for unit in wanted if unit.id not in ours]):
                ours |= {unit.id for unit in self._progress.take(table, wanted)}
            shards = {shard.unit: shard for shard in self._state.shards.read(table, units)}
            done = {unit for unit, shard in shards.items() if shard.state is ShardState.COMPLETED}
            self._state.shards.renew_windows(table, done)  # as long as messages announce a unit, it is remembered
            mine = {unit: shards[unit].tries for unit in units if unit in ours and unit in shards and unit not in done}
            busy = frozenset(unit for unit in units if unit not in done | mine.keys())
            return Opened(mine, frozenset(done), busy, taken_over=len(mine.keys() & before))

        return await _in_thread(work)

    def _revive(self, table: str, units: Collection[str]) -> bool:
        """Let units that were given up be tried again if an operator replays them. Returns whether there are any."""
        shards = self._state.shards.read(table, units) if units else []
        given_up = [each.unit for each in shards if each.state is ShardState.COMPLETED and each.snapshot is None]
        letters = self._state.history.letters_of(table, given_up) if given_up else []
        replayed = [each.unit for each in letters if each.replayed_at is not None and each.dropped_at is None]
        revived = [unit for unit in replayed if self._state.history.revive(table, unit)]
        return bool(revived)

    async def extend(self, table: str, units: Collection[str]) -> set[str]:
        """Show a sign of life for units. Returns those that are still ours."""
        until = self._state.now() + self._progress.lease
        return await _in_thread(
            lambda: self._state.shards.extend(table, units, owner=self._token, lease_until=until),
        )

    async def release(self, table: str, units: Collection[str]) -> None:
        """Give units back, so that another pipeline can take them at once."""
        await _in_thread(lambda: self._state.shards.release(table, units, owner=self._token))

    async def count_try(self, table: str, units: Collection[str]) -> Mapping[str, int]:
        """Count one more try of units, durably, before they are read. Returns the counts of those that are ours."""
        return await _in_thread(lambda: self._state.shards.count_try(table, units, owner=self._token))

    async def take_back_try(self, table: str, units: Collection[str]) -> None:
        """Take back the last try of units: it failed for a reason that is not theirs."""
        await _in_thread(lambda: self._state.shards.uncount_try(table, units, owner=self._token))

    async def settled(self, table: str, units: Collection[str]) -> set[str]:
        """Return those of the units that have landed, or were given up."""
        shards = await _in_thread(lambda: self._state.shards.read(table, units))
        return {shard.unit for shard in shards if shard.state is ShardState.COMPLETED}

    async def acknowledge(self, table: str, units: Collection[str]) -> None:
        """Record that the messages of landed units are acknowledged: their deduplication window begins."""
        await _in_thread(lambda: self._state.shards.acknowledge(table, units))

    async def record(self, table: str, outcomes: Sequence[FileOutcome]) -> None:
        """Write what became of units to the history of files."""
        await _in_thread(lambda: self._state.files.record(table, outcomes))

    async def prune(self, table: str) -> int | None:
        """Remove units that were acknowledged longer ago than the deduplication window; None if that was done lately.

        The largest window of all pipelines of the table counts.
        """
        settings = self._settings
        limits = PruneLimits(window=settings.deduplication_window, most_shards=settings.deduplication_max)
        pruned = await _in_thread(
            lambda: self._state.pruning.prune(
                table, owner=self._token, pipeline=settings.name, limits=limits, every=settings.cleanup_interval
            )
        )
        return None if pruned is None else pruned.expired + pruned.over_limit


async def _in_thread(work: Callable[[], T]) -> T:
    return await asyncio.to_thread(work)
