"""Which pipeline owns the content of a message, and whether it has landed: a client of the state's shard table."""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Protocol, TypeVar

from lakehead.consume.queue import ListingQueue, Queue
from lakehead.consume.settings import PipelineSettings
from lakehead.consume.uris import object_of, uri_of_unknown_etag
from lakehead.lake.landing import Unit
from lakehead.lake.state_progress import StateProgress
from lakehead.state.model import FileOutcome, LandedShard, PruneLimits, ShardState
from lakehead.state.schema import EPOCH
from lakehead.state.state import State

T = TypeVar("T")

COMPARED_AT_ONCE = 20_000
"""Units that are compared with one listing of their folder, and held in memory."""

KEPT_AFTER_LANDING = timedelta(hours=1)
"""How long a unit of a folder is remembered although its file is gone: another process may still have its message."""

COMPARED_EVERY = timedelta(minutes=10)
"""How long after the end of a comparison of all units of a folder the next one begins."""


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

    async def count_try(self, table: str, tries: Mapping[str, int]) -> Mapping[str, int]:
        """Record durably, before units are read, which try of each it is: 1 is the first. Returns those that are ours.

        Calling again changes nothing.
        """
        ...

    async def take_back_try(self, table: str, tries: Mapping[str, int]) -> None:
        """Set the tries of units back to what they were: the last one failed for a reason that is not theirs."""
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

    async def remembered(self, table: str) -> int:
        """Return how many units of a table the state remembers."""
        ...


class QueueSharedState:
    """`SharedState` over the state database. Each pipeline has one, with a token that is new at each start."""

    def __init__(self, state: State, token: str, settings: PipelineSettings, queue: Queue | None = None) -> None:
        """`queue` is the pipeline's. Without it, an acknowledged message never comes again."""
        self._state = state
        self._token = token
        self._settings = settings
        self._listing = _listing(queue)
        self._queue_forgets = queue is None or queue.forgets
        self._compared: dict[str, LandedShard] = {}
        """Up to which unit the tables were compared with the listing."""
        self._compare_at: dict[str, datetime] = {}
        """When the next comparison of a table begins, after one has reached its last unit."""
        self._progress = StateProgress(state=state, owner=token, lease=settings.lease)

    async def open(self, table: str, units: Collection[str]) -> Opened:
        """Open shards for the units, and take those that are free or whose owner has shown no sign of life.

        A unit whose object is gone counts as done if some content of that object has landed.

        Two pipelines that acquire the same unit at once are told apart by the database, and if they were not, the loser
        would land nothing: a landing takes only units whose lease was extended after its fence.
        """

        def work() -> Opened:
            gone = self._gone_but_landed(table, units)
            opened = self._open(table, [unit for unit in units if unit not in gone])
            return replace(opened, done=opened.done | gone)

        return await _in_thread(work)

    def _open(self, table: str, units: Collection[str]) -> Opened:
        wanted = [Unit(unit) for unit in units]
        before = {each.unit for each in self._state.shards.read(table, units) if each.owner not in (None, self._token)}
        ours = {unit.id for unit in self._progress.take(table, wanted)}
        if self._revive(table, [unit.id for unit in wanted if unit.id not in ours]):
            ours |= {unit.id for unit in self._progress.take(table, wanted)}
        shards = {shard.unit: shard for shard in self._state.shards.read(table, units)}
        done = {unit for unit, shard in shards.items() if shard.state is ShardState.COMPLETED}
        # As long as messages announce a unit, it is remembered.
        (self._state.shards.renew_windows if self._queue_forgets else self._state.shards.keep)(table, done)
        mine = {unit: shards[unit].tries for unit in units if unit in ours and unit in shards and unit not in done}
        busy = frozenset(unit for unit in units if unit not in done | mine.keys())
        return Opened(mine, frozenset(done), busy, taken_over=len(mine.keys() & before))

    def _gone_but_landed(self, table: str, units: Collection[str]) -> set[str]:
        """Which units are of objects that do not exist any more, and of which a content has landed."""
        gone = {uri: unit for unit in units if (uri := uri_of_unknown_etag(unit)) is not None}
        return {gone[uri] for uri in self._state.shards.landed_contents(table, gone)} if gone else set()

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

    async def count_try(self, table: str, tries: Mapping[str, int]) -> Mapping[str, int]:
        """Record durably, before units are read, which try of each it is: 1 is the first. Returns those that are ours.

        Calling again changes nothing.
        """
        ours = await _in_thread(lambda: self._state.shards.set_tries(table, tries, owner=self._token))
        return {unit: tries[unit] for unit in ours}

    async def take_back_try(self, table: str, tries: Mapping[str, int]) -> None:
        """Set the tries of units back to what they were: the last one failed for a reason that is not theirs."""
        await _in_thread(lambda: self._state.shards.set_tries(table, tries, owner=self._token))

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

        The largest window of all pipelines of the table counts. Units of a folder are removed when they are gone.
        """
        settings, listing = self._settings, self._listing
        limits = PruneLimits(window=settings.deduplication_window, most_shards=settings.deduplication_max)
        if listing is not None and self._is_comparison_due(table):
            self._compare_at.setdefault(table, self._state.now())
            await _in_thread(lambda: self._state.pruning.keep_below(table, listing.folder))
        pruned = await _in_thread(
            lambda: self._state.pruning.prune(
                table, owner=self._token, pipeline=settings.name, limits=limits, every=settings.cleanup_interval
            )
        )
        if pruned is None:
            # Others may always be first. They prune what is old, but only we compare the units of our folder.
            is_overdue = listing is not None and self._is_comparison_due(table, COMPARED_EVERY)
            return await self._prune_gone(table) if is_overdue else None
        return pruned.expired + pruned.over_limit + await self._prune_gone(table)

    async def remembered(self, table: str) -> int:
        """Return how many units of a table the state remembers."""
        return await _in_thread(lambda: sum(self._state.shards.counts(table).values()))

    async def _prune_gone(self, table: str) -> int:
        """Remove the next units of a folder whose files are gone. A whole comparison takes as many calls as it needs.

        The units are read before the listing begins, so all of them had landed by then.
        """
        listing = self._listing
        if listing is None or not self._is_comparison_due(table):
            return 0
        pruning, after, before = self._state.pruning, self._compared.get(table), self._state.now() - KEPT_AFTER_LANDING
        landed = await _in_thread(
            lambda: pruning.not_acknowledged(table, listing.folder, before=before, after=after, limit=COMPARED_AT_ONCE)
        )
        uris = {each.unit: object_of(each.unit) for each in landed}
        gone = await listing.not_listed(set(uris.values())) if uris else frozenset()
        removed = await _in_thread(
            lambda: pruning.remove_landed(table, [each for each in landed if uris[each.unit] in gone])
        )
        if removed is None:
            return 0  # paused: the same units are compared again
        if len(landed) == COMPARED_AT_ONCE:
            self._compared[table] = landed[-1]
        else:
            self._compared.pop(table, None)
            self._compare_at[table] = self._state.now() + COMPARED_EVERY
        return removed

    def _is_comparison_due(self, table: str, overdue_by: timedelta = timedelta(0)) -> bool:
        return self._state.now() >= self._compare_at.get(table, EPOCH) + overdue_by


def _listing(queue: object) -> ListingQueue | None:
    return queue if isinstance(queue, ListingQueue) else None


async def _in_thread(work: Callable[[], T]) -> T:
    return await asyncio.to_thread(work)
