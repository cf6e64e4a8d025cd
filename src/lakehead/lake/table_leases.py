"""An advisory lease on a table, which keeps long work and landings from starving each other."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta

from lakehead.clock import Clock
from lakehead.errors import Unavailable
from lakehead.ids import Random
from lakehead.lake.leased import LEASE, WorkProgress, no_sign, renewed
from lakehead.retry import Backoff
from lakehead.state.owners import is_gone
from lakehead.state.state import State

KIND = "table"
"""The kind of these leases in the state. All work on a table uses the same kind."""


def silent(_: str) -> None:
    """Ignore the message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateTableLeases:
    """Takes leases on tables for one owner, which is one start of one process."""

    state: State
    owner: str
    clock: Clock
    random: Random
    hold: timedelta = LEASE
    """How long the lease stays valid after its owner dies. Correctness does not depend on it."""

    patience: Backoff = field(default_factory=lambda: Backoff(attempts=12, first_seconds=0.5, cap_seconds=30.0))
    """How often, and with which pauses, to try while another process holds the lease."""

    work: WorkProgress = no_sign
    """How far the work on the table is: the lease is renewed only while it makes progress."""

    waiting: Callable[[str], None] = silent
    """Called with the holder's owner name, once for each wait."""

    @asynccontextmanager
    async def at(self, table: str, name: str) -> AsyncIterator[None]:
        """Hold the lease on the table with this uuid; `name` is for messages.

        Raises `Unavailable` if another process keeps holding it.
        """
        for pause in self.patience.pauses(self.random):
            if pause:
                await self.clock.sleep(pause)
            if self._take(table) or self._take_from_the_dead(table):
                break
            if not pause and (holder := self.state.leases.holder(KIND, table=table)):
                self.waiting(holder[0])
        else:
            holder = self.state.leases.holder(KIND, table=table)
            until = f" (expires {holder[1]:%Y-%m-%d %H:%M:%S} UTC unless renewed)" if holder else ""
            raise Unavailable(
                f"Another process holds the lease on table {name}{until}. Nothing was changed; run it again later."
            )
        try:
            with renewed(lambda: self._take(table), self.hold, progress=self.work):
                yield
        finally:
            self.state.leases.drop(KIND, self.owner, table=table)

    def _take(self, table: str) -> bool:
        return self.state.leases.take(KIND, self.owner, self.state.now() + self.hold, table=table)

    def _take_from_the_dead(self, table: str) -> bool:
        """Take over the lease of a process of this machine that has ended, without waiting until it expires."""
        holder = self.state.leases.holder(KIND, table=table)
        if holder is None or not is_gone(holder[0]):
            return False
        self.state.leases.drop(KIND, holder[0], table=table)
        return self._take(table)
