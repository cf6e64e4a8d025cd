"""What all tables of a run share, and how each of them lands."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from typing import Any, TypeVar

from pyiceberg.catalog import Catalog
from pyspark.sql import SparkSession

from lakehead.clock import Clock
from lakehead.extract.rows import Ingest
from lakehead.ids import Ids, Random
from lakehead.lake.landing import Landing, Unit
from lakehead.lake.leased import LEASE
from lakehead.lake.ledger import StoreLedger
from lakehead.lake.ports import Stager
from lakehead.lake.progress import StateProgress
from lakehead.lake.protocol import LOOK_AFTER, Audit, Lander, Reaching, fence
from lakehead.lake.retries import Retries
from lakehead.lake.table import IcebergTable
from lakehead.lake.turns import Turns
from lakehead.spark.jobs import group_progress
from lakehead.state.model import ShardState
from lakehead.state.owners import is_on_this_machine, process_of
from lakehead.state.state import State
from lakehead.storage.backoff import Backoff

T = TypeVar("T")

LOOK_AGAIN_SECONDS = 1.0
"""How often somebody who waits for another run looks whether it is done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """What a table needs of the run, wherever it is kept."""

    pipeline: str
    run: str
    load_date: date
    session: SparkSession
    """This thread's own."""

    state: State
    owner: str
    """Who holds this run's leases in the state: see `owner_named`."""

    clock: Clock
    ids: Ids
    random: Random
    waiting: Callable[[str], None]
    """Told when the table is held up: by another run, by other writers, or by somebody who does not answer."""

    pause: Callable[[float], object]
    """Lets so many seconds pass in this thread; raises when the run is to end."""

    def ingest(self, source: str, number: int, generation: int) -> Ingest:
        """Which load it is that brings a slice of this number."""
        return Ingest(
            load_date=self.load_date,
            loaded_at=datetime.fromtimestamp(self.clock.now_ns() / 1e9, UTC),
            run=self.run,
            source=source,
            slice=number,
            generation=generation,
        )

    def turns(self) -> Turns:
        """Turns at tables, in the name of this run."""
        return Turns(
            state=self.state,
            owner=self.owner,
            clock=self.clock,
            random=self.random,
            work=group_progress(self.session),
            waiting=lambda holder: self.waiting(
                f"another run{process_named(holder)} is at work on the table. This one waits for its turn, "
                "some minutes at most"
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings(Shared):
    """What landings on Iceberg need besides. The protocol's steps run in the thread of the table, one at a time."""

    catalog: Catalog
    ledger: StoreLedger
    look_after: timedelta = LOOK_AFTER
    """The age at which staged files are looked for before they are published."""

    backoff: Backoff = field(default_factory=lambda: Backoff(attempts=20, first_seconds=0.1, cap_seconds=5.0))
    """Tries to publish what was staged when others are faster: it is staged once."""

    merges: Backoff = field(default_factory=lambda: Backoff(attempts=5, first_seconds=0.2, cap_seconds=30.0))
    """Tries of a merge when others are faster: each is a whole merge."""

    @property
    def retries(self) -> Retries:
        """For how long a catalog that does not answer is asked again."""
        return Retries(clock=self.clock, random=self.random, pause=self.pause, waiting=self.waiting)

    def settle(self, table: IcebergTable) -> None:
        """Let the state know everything that was published."""
        _wait(fence(table, self._progress, self.ledger))

    def land(
        self,
        table: IcebergTable,
        unit: Unit,
        stager: Stager[Any],
        reaching: Reaching,
        audits: Sequence[Audit[Any]],
        *,
        takes_turns: bool = False,
    ) -> Landing | None:
        """Land a unit, after whoever is at it. None if it has landed.

        A landing that has to be done all over when another one is faster, as a merge, takes turns with the others.
        """
        progress, told = replace(self._progress, work=group_progress(self.session)), False
        while not progress.take(table.uuid, [unit]):
            [shard] = self.state.shards.read(table.uuid, [unit.id], generation=unit.generation)
            if shard.state is ShardState.COMPLETED:
                return None
            if not told:
                self.waiting(
                    f"another run{process_named(shard.owner)} holds the lease of {table.name}. This one goes on when "
                    f"that run has done its work, or within {LEASE.total_seconds():.0f} s of its death"
                )
            told = True
            _wait(self._pause())
            self.settle(table)  # it may have published and died
        lander: Lander[Any] = Lander(
            pipeline=self.pipeline,
            table=table,
            progress=progress,
            ledger=self.ledger,
            stager=stager,
            audits=audits,
            clock=self.clock,
            random=self.random,
            backoff=self.merges if takes_turns else self.backoff,
            look_after=self.look_after,
            turns=self.turns() if takes_turns else None,
            waiting=self.waiting,
        )
        with progress.holding(table.uuid, [unit]):
            return _wait(lander.land([unit], reached=reaching))

    @property
    def _progress(self) -> StateProgress:
        return StateProgress(state=self.state, owner=self.owner)

    async def _pause(self) -> None:
        await self.clock.sleep(LOOK_AGAIN_SECONDS)


def process_named(owner: str | None) -> str:
    """Which process an owner is, in parentheses, where that is known."""
    process = process_of(owner) if owner else None
    return f" (process {process.pid} of this machine)" if process and is_on_this_machine(process) else ""


def _wait(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)
