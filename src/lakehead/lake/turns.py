"""A turn at a table: an advisory lease that keeps long work and landings from starving each other."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta

from lakehead.clock import Clock
from lakehead.errors import Unavailable
from lakehead.ids import Random
from lakehead.lake.leased import LEASE, renewed
from lakehead.state.state import State
from lakehead.storage.backoff import Backoff

KIND = "table"
"""The lease's kind, the same for whoever takes turns at a table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    """Takes turns at tables for one owner, which is one start of one process."""

    state: State
    owner: str
    clock: Clock
    random: Random
    hold: timedelta = LEASE
    """How long a turn lasts if its owner dies. Nothing depends on it for correctness."""

    patience: Backoff = field(default_factory=lambda: Backoff(attempts=12, first_seconds=0.5, cap_seconds=30.0))
    """How often somebody else's turn is waited for."""

    @asynccontextmanager
    async def at(self, table: str, name: str) -> AsyncIterator[None]:
        """Have the turn at the table of this uuid. Raises `Unavailable` if somebody else has it all the time."""
        for pause in self.patience.pauses(self.random):
            if pause:
                await self.clock.sleep(pause)
            if self._take(table):
                break
        else:
            holder = self.state.leases.holder(KIND, table=table)
            until = f" until {holder[1]:%Y-%m-%d %H:%M:%S} UTC at the latest" if holder else ""
            raise Unavailable(
                f"Somebody else is at work on table {name}{until}. Nothing was changed; run it again later."
            )
        try:
            with renewed(lambda: self._take(table), self.hold):
                yield
        finally:
            self.state.leases.drop(KIND, self.owner, table=table)

    def _take(self, table: str) -> bool:
        return self.state.leases.take(KIND, self.owner, self.state.now() + self.hold, table=table)
