"""A turn at a table: an advisory lease that keeps long work and landings from starving each other."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta

from lakehead.clock import Clock
from lakehead.errors import Unavailable
from lakehead.ids import Random
from lakehead.lake.leased import LEASE, Progress, no_sign, renewed
from lakehead.state.owners import is_gone
from lakehead.state.state import State
from lakehead.storage.backoff import Backoff

KIND = "table"
"""The lease's kind, the same for whoever takes turns at a table."""


def silent(_: str) -> None:
    """Tell nobody."""


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

    work: Progress = no_sign
    """How far the work at the table is: a turn is renewed only while it goes on."""

    waiting: Callable[[str], None] = silent
    """Told the owner when somebody else's turn is waited for, once for each wait."""

    @asynccontextmanager
    async def at(self, table: str, name: str) -> AsyncIterator[None]:
        """Have the turn at the table of this uuid. Raises `Unavailable` if somebody else has it all the time."""
        for pause in self.patience.pauses(self.random):
            if pause:
                await self.clock.sleep(pause)
            if self._take(table) or self._take_from_the_dead(table):
                break
            if not pause and (holder := self.state.leases.holder(KIND, table=table)):
                self.waiting(holder[0])
        else:
            holder = self.state.leases.holder(KIND, table=table)
            until = f" (its lease: until {holder[1]:%Y-%m-%d %H:%M:%S} UTC, longer if it goes on)" if holder else ""
            raise Unavailable(
                f"Somebody else is at work on table {name}{until}. Nothing was changed; run it again later."
            )
        try:
            with renewed(lambda: self._take(table), self.hold, progress=self.work):
                yield
        finally:
            self.state.leases.drop(KIND, self.owner, table=table)

    def _take(self, table: str) -> bool:
        return self.state.leases.take(KIND, self.owner, self.state.now() + self.hold, table=table)

    def _take_from_the_dead(self, table: str) -> bool:
        """Take the turn of a process of this machine that is known to have ended, without waiting until it is over."""
        holder = self.state.leases.holder(KIND, table=table)
        if holder is None or not is_gone(holder[0]):
            return False
        self.state.leases.drop(KIND, holder[0], table=table)
        return self._take(table)
