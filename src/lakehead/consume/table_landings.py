"""Lands units when they are due: each table for itself, in groups of a limited size."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lakehead.consume.keeping import Keeping
from lakehead.consume.local_state import UnitState, Work
from lakehead.consume.pipeline_context import PipelineContext, set_within
from lakehead.consume.ports import UnitLander
from lakehead.consume.settings import PipelineSettings
from lakehead.errors import LakeheadError, Misconfigured, OutcomeUnknown, Unavailable
from lakehead.lake.ports import HistoryBroken, Overtaken, UnitsGone
from lakehead.wire.errors import NewerFormat

LOG = logging.getLogger(__name__)

MOST_TURNS = 16
"""How many landings accepted batches with common records are divided into, at most."""


@dataclass(slots=True, kw_only=True)
class TableLandings:
    """Lands the ready units of one pipeline, and settles them."""

    pipeline: PipelineContext
    landings: UnitLander
    keeping: Keeping
    _landing: set[str] = field(default_factory=set)
    """The tables that are landed in at this moment."""

    _ready_since: dict[str, float] = field(default_factory=dict)
    """Since when units of a table wait for its next landing."""

    async def land_for_ever(self) -> None:
        """Begin the landing of each table when it is due. No table waits for another."""
        pipeline = self.pipeline
        try:
            async with asyncio.TaskGroup() as landings:
                while not pipeline.stopped.is_set():
                    due, seconds = self._due()
                    for table, works in due.items():
                        self._landing.add(table)
                        landings.create_task(self._land_table(table, works))
                    await set_within(pipeline.changed, seconds)
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None

    def _due(self) -> tuple[dict[str, list[Work]], float | None]:
        """The units of the tables whose landing is due, and the seconds until the next is; None: until one is ready."""
        ready: dict[str, list[Work]] = {}
        for work in self.pipeline.local.in_state(UnitState.READY):
            if work.key.table not in self._landing:
                ready.setdefault(work.key.table, []).append(work)
        now = self.pipeline.clock.monotonic()
        self._ready_since = {table: self._ready_since.get(table, now) for table in ready}
        due, waiting = dict[str, list[Work]](), list[float]()
        for table, works in ready.items():
            if (seconds := self._seconds_until_due(works, since=self._ready_since[table])) <= 0:
                due[table] = works
            else:
                waiting.append(seconds)
        return due, min(waiting, default=None)

    def _seconds_until_due(self, ready: Sequence[Work], *, since: float) -> float:
        """How long to wait for more units of a table before its landing begins."""
        settings = self.pipeline.settings
        if any(work.is_begun for work in ready):
            return 0
        if len(ready) >= settings.max_messages or sum(work.size for work in ready) >= settings.max_bytes:
            return 0
        return since + settings.commit_timeout.total_seconds() - self.pipeline.clock.monotonic()

    async def _land_table(self, table: str, works: Sequence[Work]) -> None:
        pipeline = self.pipeline
        for group in groups_of(works, pipeline.settings):
            held = [work for work in group if pipeline.local.state_of(work.key) is UnitState.READY]
            if held and not pipeline.stopped.is_set():
                await self._land(table, held)
        self._landing.discard(table)
        pipeline.changed.set()

    async def _land(self, table: str, works: Sequence[Work]) -> None:
        pipeline, local = self.pipeline, self.pipeline.local
        uuid = await pipeline.tables.uuid(table)
        local.start_read(work.key for work in works)
        counted = {work.key.unit: work.tries + 1 for work in works}
        tries = await pipeline.patience.answer(lambda: pipeline.shared.count_try(uuid, counted))
        local.abandon(work.key for work in works if work.key.unit not in tries)  # another pipeline has taken it
        if ours := [work for work in works if local.holds(work.key)]:
            await self._land_ours(table, uuid, ours, tries)
        await pipeline.acknowledge()

    async def _land_ours(self, table: str, uuid: str, ours: Sequence[Work], tries: Mapping[str, int]) -> None:
        pipeline, keeping = self.pipeline, self.keeping
        began_at, before = pipeline.clock.monotonic(), {work.key.unit: work.tries for work in ours}
        try:
            report = await self.landings.land(table, ours, is_held=keeping.is_held, read=keeping.was_read)
        except UnitsGone as error:
            LOG.warning("Pipeline %s: %s", pipeline.settings.name, error)
            await pipeline.patience.answer(lambda: pipeline.shared.take_back_try(uuid, before))
            await pipeline.patience.answer(lambda: pipeline.shared.release(uuid, list(before)))
            pipeline.local.abandon(work.key for work in ours)
        except (Unavailable, OutcomeUnknown, Overtaken) as error:
            await self._try_again(table, uuid, ours, error)
        except asyncio.CancelledError:
            # It ends, and not because of these units: else a few restarts would make dead letters of good ones. But if
            # it was under way for very long, one of them may hang, and is to be found like one that kills its reader.
            hangs = pipeline.clock.monotonic() - began_at >= pipeline.settings.stuck_after.total_seconds()
            pipeline.settling.interrupted |= {work.key: work.tries + hangs for work in ours}
            raise
        except (Misconfigured, HistoryBroken, NewerFormat):
            pipeline.settling.interrupted |= {work.key: work.tries for work in ours}
            raise
        else:
            await pipeline.settling.settle(table, ours, report, tries)

    async def _try_again(self, table: str, uuid: str, works: Sequence[Work], error: LakeheadError) -> None:
        """The landing did not come about through no fault of its units: they are ready again."""
        pipeline, local = self.pipeline, self.pipeline.local
        LOG.warning("Pipeline %s: a landing in %s did not come about: %s", pipeline.settings.name, table, error)
        before = {work.key.unit: work.tries for work in works}
        await pipeline.patience.answer(lambda: pipeline.shared.take_back_try(uuid, before))
        if lost := [work.key.unit for work in works if not local.holds(work.key)]:
            await pipeline.patience.answer(lambda: pipeline.shared.release(uuid, lost))
        local.put_back(work.key for work in works)
        pipeline.visibility.resume(local.messages_of(work.key for work in works))
        if not isinstance(error, Overtaken):
            await pipeline.clock.sleep(next(pipeline.settings.polling.pauses(pipeline.patience.random)))


def groups_of(works: Sequence[Work], settings: PipelineSettings) -> list[list[Work]]:
    """Divide units into landings: those that failed before into smaller groups, and all by their bytes.

    Accepted batches with common records come into different ones. So what landed is known before the rest is compared
    with it, and cannot become another's after a crash. Of very many the rest comes into one: others wait for them. Then
    a batch may be in quarantine that lands after all, because a crash changed the order; none is lost.
    """
    by_limit: dict[tuple[int, int], list[Work]] = {}
    for work, turn in zip(works, _turns(works), strict=True):
        by_limit.setdefault((-settings.group_limit(work.tries), turn), []).append(work)
    groups: list[list[Work]] = []
    for (limit_below_0, _), theirs in sorted(by_limit.items(), key=lambda each: each[0]):
        limit, group, size = -limit_below_0, list[Work](), 0
        for work in theirs:
            if group and (len(group) >= limit or size + work.size > settings.max_bytes):
                groups.append(group)
                group, size = [], 0
            group.append(work)
            size += work.size
        groups.append(group)
    return groups


def _turns(works: Sequence[Work]) -> list[int]:
    """For each unit, how many others before it have records of its numbers, one after the other: mostly none."""
    turns = [0] * len(works)
    frames = [(each.frame.identity, number) for number, each in enumerate(works) if each.frame]
    ends: dict[tuple[str, str], list[int]] = {}
    for identity, number in sorted(frames):
        # The ends of each turn's last batch: the first turn whose batches all end before this one takes it.
        theirs = ends.setdefault((identity.agent_id, identity.boot_id), [])
        turn = next((turn for turn, end in enumerate(theirs) if end < identity.seq_start), len(theirs))
        turn = min(turn, MOST_TURNS - 1)
        theirs[turn : turn + 1] = [identity.seq_end]
        turns[number] = turn
    return turns
