"""Keeps what a pipeline holds: messages invisible to others, units its own; and lets the state forget old ones."""

import asyncio
import logging
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from lakehead.consume.local_state import UnitKey, UnitState
from lakehead.consume.pipeline_context import PipelineContext, set_within
from lakehead.consume.ports import Replays
from lakehead.consume.queue import Message
from lakehead.errors import OutcomeUnknown, Unavailable

LOG = logging.getLogger(__name__)

_LANDING = (UnitState.READING, UnitState.AWAITING_COMMIT)


@dataclass(slots=True, kw_only=True)
class Keeping:
    """Keeps the messages and units of one pipeline until they are settled."""

    pipeline: PipelineContext
    replays: Replays | None = None
    read: list[UnitKey] = field(default_factory=list)
    """Units that were read since messages were last extended for the last time."""

    orphaned: list[UnitKey] = field(default_factory=list)
    """Units that no held message announces any more, to be released."""

    remembered: dict[str, int] = field(default_factory=dict)
    """Units that the state remembers of each table, counted after it was last pruned."""

    _was_read_some: asyncio.Event = field(default_factory=asyncio.Event)
    _was_orphaned_some: asyncio.Event = field(default_factory=asyncio.Event)

    def is_held(self, key: UnitKey) -> bool:
        """Whether a message that announces the unit is surely invisible to others: after a pause it may not be."""
        visibility, local = self.pipeline.visibility, self.pipeline.local
        return any(visibility.is_current(message) for message in local.messages_of([key]))

    def was_read(self, keys: Sequence[UnitKey]) -> None:
        """Units were read to their end: messages that announce no others are extended for the last time."""
        local = self.pipeline.local
        read = [key for key in keys if local.state_of(key) is UnitState.READING]
        local.end_read(read)
        self.read += read
        self._was_read_some.set()

    async def keep_messages_for_ever(self) -> None:
        """Extend the visibility of messages while they are held. It waits for the queue alone, never for the state."""
        pipeline, visibility = self.pipeline, self.pipeline.visibility
        while True:
            await set_within(self._was_read_some, visibility.pause)
            read, self.read = pipeline.local.messages_read(self.read), []
            self._lose(await visibility.extend_for_last_time(read, pipeline.settings.last_visibility))
            self._lose(await visibility.extend_due())

    async def keep_units_for_ever(self) -> None:
        """Show a sign of life for the units of held messages, and release those whose messages were lost."""
        clock, interval = self.pipeline.clock, self.pipeline.settings.lease.total_seconds() / 4
        due_at = clock.monotonic() + interval
        while True:
            await set_within(self._was_orphaned_some, due_at - clock.monotonic())
            await self._release_orphaned()
            if clock.monotonic() >= due_at:
                due_at = clock.monotonic() + interval
                await self._show_life()
                await self._deliver_replayed()

    async def prune_for_ever(self) -> None:
        """Let the state forget units whose deduplication window is over."""
        pipeline = self.pipeline
        while True:
            await pipeline.clock.sleep(pipeline.settings.cleanup_interval.total_seconds())
            for uuid in pipeline.tables.known():
                with suppress(Unavailable, OutcomeUnknown):
                    pipeline.counts.pruned += await pipeline.shared.prune(uuid) or 0
                    self.remembered[uuid] = await pipeline.shared.remembered(uuid)

    def _lose(self, messages: Collection[Message]) -> None:
        """Abandon messages that another consumer may have by now. Units that only they announce are not landed."""
        if not messages:
            return
        pipeline, local = self.pipeline, self.pipeline.local
        pipeline.counts.lost += len(messages)
        pipeline.settling.expect_again()
        LOG.warning(
            "Pipeline %s: messages that could not be kept invisible, and come again: %d.",
            pipeline.settings.name,
            len(messages),
        )
        reading = {work.key for state in _LANDING for work in local.in_state(state)}
        self.orphaned += [key for key in local.lose(messages) if key not in reading]
        self._was_orphaned_some.set()
        pipeline.changed.set()

    async def _release_orphaned(self) -> None:
        pipeline = self.pipeline
        orphaned, self.orphaned = self.orphaned, []
        for _, uuid, units in pipeline.tables.group(key for key in orphaned if not pipeline.local.holds(key)):
            with suppress(Unavailable, OutcomeUnknown):  # then they are free when the lease is over
                await pipeline.shared.release(uuid, units)

    async def _show_life(self) -> None:
        pipeline, local = self.pipeline, self.pipeline.local
        ready = {work.key for work in local.in_state(UnitState.READY)}  # one that is being opened is not ours yet
        for table, uuid, units in pipeline.tables.group(local.units):
            with suppress(Unavailable, OutcomeUnknown):
                kept = await pipeline.shared.extend(uuid, units)
                taken = [UnitKey(table, unit) for unit in units if unit not in kept]
                local.abandon(key for key in taken if key in ready and local.state_of(key) is UnitState.READY)
        await pipeline.acknowledge()

    async def _deliver_replayed(self) -> None:
        if self.replays is not None:
            with suppress(Unavailable, OutcomeUnknown):  # asked again soon
                await self.replays.deliver(self.pipeline.tables.known())
