"""What the parts of one coordinator share: receiving, landing, and keeping what is held."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field

from lakehead.clock import Clock
from lakehead.consume.counts import ConsumeCounts
from lakehead.consume.local_state import QueueLocalState
from lakehead.consume.patience import Patience
from lakehead.consume.queue import Queue
from lakehead.consume.settings import PipelineSettings
from lakehead.consume.settling import Settling
from lakehead.consume.shared_state import SharedState
from lakehead.consume.tables import TableIds
from lakehead.consume.visibility import VisibilityTask


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineContext:
    """One pipeline: its settings, its queue, and what it holds."""

    settings: PipelineSettings
    queue: Queue
    shared: SharedState
    tables: TableIds
    local: QueueLocalState
    visibility: VisibilityTask
    settling: Settling
    patience: Patience
    counts: ConsumeCounts
    clock: Clock
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Something may be due: units are ready, messages were settled, or it is to stop."""

    stopped: asyncio.Event = field(default_factory=asyncio.Event)

    async def acknowledge(self) -> None:
        """Acknowledge the messages all of whose units are settled, and let the others come again."""
        await self.settling.acknowledge()
        self.changed.set()


async def set_within(event: asyncio.Event, seconds: float | None) -> None:
    """Wait until an event is set, at most so many seconds but a millisecond at least, and clear it."""
    with suppress(TimeoutError):
        async with asyncio.timeout(None if seconds is None else max(seconds, 0.001)):
            await event.wait()
    event.clear()
