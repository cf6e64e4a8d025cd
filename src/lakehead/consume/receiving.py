"""Receives messages, and asks the shared state whose the units are that they announce."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

from lakehead.consume.counts import ConsumeCounts
from lakehead.consume.local_state import UnitKey, Work
from lakehead.consume.objects import NotUnderstood
from lakehead.consume.pipeline_context import PipelineContext, set_within
from lakehead.consume.ports import Lookup
from lakehead.consume.queue import Message
from lakehead.errors import Unavailable

RECEIVED_AT_ONCE = 1_000
"""Messages that are received, and opened in the shared state, together."""

DIED = "The process that read it ended each time, without an error that names it."


class MessageParser(Protocol):
    """Says what a message announces."""

    def __call__(self, message: Message, counts: ConsumeCounts, /) -> Sequence[Work]:
        """Return the units of a message; none if there is nothing to land.

        Raises `NotUnderstood`, and `Unavailable` if that cannot be known now: then the message comes again.
        """
        ...


@dataclass(slots=True, kw_only=True)
class Receiving:
    """Receives as many messages as may be held."""

    pipeline: PipelineContext
    reader: MessageParser
    lookup: Lookup | None = None
    found_nothing_at: float | None = None
    """When the queue was last asked, if it had nothing."""

    async def receive_for_ever(self) -> None:
        """Receive messages whenever there is room for more, until this is cancelled."""
        pipeline = self.pipeline
        while True:
            settings = pipeline.settings
            room = pipeline.local.room(most=settings.max_held, most_bytes=settings.max_held_bytes)
            room = min(room, RECEIVED_AT_ONCE)
            if room <= 0 or pipeline.stopped.is_set():
                await set_within(pipeline.changed, None)
                continue
            messages = await pipeline.patience.answer(lambda room=room: self._receive(room))  # type: ignore[misc]
            if messages:
                try:
                    await self._take(messages)
                except BaseExceptionGroup as errors:
                    raise errors.exceptions[0] from None

    async def _receive(self, most: int) -> Sequence[Message]:
        """Receive messages, and keep them invisible from the moment at which they were asked for."""
        pipeline = self.pipeline
        asked_at, settings = pipeline.clock.monotonic(), pipeline.settings
        messages = await pipeline.queue.receive(most, visibility=settings.visibility, wait=settings.poll_wait)
        pipeline.visibility.start(messages, asked_at)
        self.found_nothing_at = None if messages else asked_at
        return messages

    async def _take(self, messages: Sequence[Message]) -> None:
        """Hold messages, and ask the shared state whose their units are."""
        pipeline = self.pipeline
        pipeline.counts.received += len(messages)
        if (lookup := self.lookup) is not None:
            await pipeline.patience.answer(lambda: lookup.look_up(messages))
        fresh: dict[str, list[Work]] = {}
        for message in messages:
            if not pipeline.local.has_room_for(message, most=pipeline.settings.max_held):
                pipeline.local.refuse(message, retry_after=timedelta(0))  # those before it announce more than expected
                continue
            try:
                works = self.reader(message, pipeline.counts)
            except NotUnderstood as error:
                await pipeline.settling.give_up_message(message, str(error))
                continue
            except Unavailable:
                pipeline.counts.failed += 1
                pipeline.local.refuse(message, retry_after=pipeline.settings.delay_after(message.deliveries))
                continue
            for work in pipeline.local.add(message, works):
                fresh.setdefault(work.key.table, []).append(work)
        async with asyncio.TaskGroup() as openings:
            for table, works in fresh.items():
                openings.create_task(self._open(table, works))
        await pipeline.acknowledge()

    async def _open(self, table: str, works: Sequence[Work]) -> None:
        pipeline, local, counts = self.pipeline, self.pipeline.local, self.pipeline.counts
        uuid = await pipeline.tables.uuid(table)
        by_unit = {work.key.unit: work for work in works}
        opened = await pipeline.patience.answer(lambda: pipeline.shared.open(uuid, list(by_unit)))
        counts.duplicates += len(opened.done)
        counts.busy += len(opened.busy)
        counts.taken_over += opened.taken_over
        local.complete(UnitKey(table, unit) for unit in by_unit if unit in opened.done)
        local.abandon(UnitKey(table, unit) for unit in by_unit if unit in opened.busy)
        held = {unit: tries for unit, tries in opened.ours.items() if local.holds(UnitKey(table, unit))}
        for unit, tries in held.items():
            if tries < pipeline.settings.max_tries:
                local.open(UnitKey(table, unit), tries)
        pipeline.changed.set()
        for unit, tries in held.items():
            if tries >= pipeline.settings.max_tries:  # never ready, so that it is not read while its letter is written
                await pipeline.settling.give_up(by_unit[unit], DIED, tries)
        if lost := [unit for unit in opened.ours if unit not in held]:  # their messages are another consumer's by now
            await pipeline.patience.answer(lambda: pipeline.shared.release(uuid, lost))
