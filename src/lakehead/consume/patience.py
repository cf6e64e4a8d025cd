"""Calls that are repeated for as long as a service does not answer."""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from lakehead.clock import Clock
from lakehead.errors import OutcomeUnknown, Unavailable
from lakehead.ids import Random
from lakehead.retry import PollInterval

LOG = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Patience:
    """Repeats idempotent calls of one pipeline until they are answered. A pipeline never gives up on a service."""

    pipeline: str
    polling: PollInterval
    clock: Clock
    random: Random

    async def answer(self, call: Callable[[], Awaitable[T]]) -> T:
        """Return what the call returns, with growing pauses while it raises `Unavailable` or `OutcomeUnknown`."""
        pauses, reported = self.polling.pauses(self.random), False
        while True:
            try:
                return await call()
            except (Unavailable, OutcomeUnknown) as error:
                if not reported:
                    LOG.warning("Pipeline %s waits: %s", self.pipeline, error)
                reported = True
            await self.clock.sleep(next(pauses))
