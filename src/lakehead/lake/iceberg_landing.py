"""Landings in Iceberg tables, both for slices of a source and for units of a queue."""

import asyncio
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

from pyiceberg.catalog import Catalog

from lakehead.clock import Clock
from lakehead.lake.iceberg_table import IcebergTable, head_of
from lakehead.lake.landing import ANY_WATERMARK, NO_WATERMARK, AnyWatermark, NewWatermark, Unit
from lakehead.lake.leased import LEASE
from lakehead.lake.ledger import StoreLedger
from lakehead.lake.merge_choice import MergeLane
from lakehead.lake.ports import Overtaken, Staged, Stager
from lakehead.lake.protocol import VERIFY_STAGED_AFTER, Audit, Lander, fence
from lakehead.lake.retries import Retries
from lakehead.lake.run_context import RunContext, process_named
from lakehead.lake.state_progress import StateProgress
from lakehead.retry import Backoff
from lakehead.spark.jobs import group_progress
from lakehead.state.model import ShardState, Watermark

T = TypeVar("T")

LOOK_AGAIN_SECONDS = 1.0
"""How often a run that waits for another run's lease checks it again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IcebergLanding:
    """Lands units of work in the tables of one catalog, for one table of one run.

    The protocol's steps run in the calling thread, one at a time.
    """

    run: RunContext
    catalog: Catalog
    ledger: StoreLedger
    verify_staged_after: timedelta = VERIFY_STAGED_AFTER
    """Staged files older than this are checked for existence before they are published."""

    backoff: Backoff = field(default_factory=lambda: Backoff(attempts=20, first_seconds=0.1, cap_seconds=5.0))
    """Attempts to publish when other writers commit first. The rows are staged once."""

    merges: Backoff = field(default_factory=lambda: Backoff(attempts=5, first_seconds=0.2, cap_seconds=30.0))
    """Attempts of a merge when other writers commit first. Each attempt is a whole merge."""

    merge_lane: MergeLane = MergeLane.ARROW

    @property
    def retries(self) -> Retries:
        """How calls to a catalog that does not answer are retried."""
        run = self.run
        return Retries(clock=run.clock, random=run.random, pause=run.pause, waiting=run.waiting)

    def find(self, name: str) -> IcebergTable | None:
        """Open the table `namespace.table`; None if there is none."""
        return IcebergTable.find(self.catalog, name, self.ledger, self.retries)

    def settle(self, table: IcebergTable, *, as_seen: bool = False) -> None:
        """Record every landing up to now in the state; with `as_seen`, up to when the table was last loaded."""
        head = head_of(table.seen().metadata) if as_seen else None
        _wait(fence(table, StateProgress(state=self.run.state, owner=self.run.owner), self.ledger, head))

    def has_landed(self, table: IcebergTable, unit: Unit) -> bool:
        """Whether the unit is in the table, as far as that is settled."""
        shards = self.run.state.shards.read(table.uuid, [unit.id], generation=unit.generation)
        return any(shard.state is ShardState.COMPLETED for shard in shards)

    def land(
        self,
        table: IcebergTable,
        units: Sequence[Unit],
        stager: Stager[Any],
        progress: StateProgress,
        *,
        new_watermark: NewWatermark = NO_WATERMARK,
        expected: Watermark | AnyWatermark | None = ANY_WATERMARK,
        audits: Sequence[Audit[Any]] = (),
        exclusive: bool = False,
    ) -> Staged[Any] | None:
        """Land units whose leases this run holds: see `Lander.land`.

        With `exclusive`, landings in the table wait for each other. Use it for those that must start over if another
        commit comes first, such as merges.
        """
        run = self.run
        lander: Lander[Any] = Lander(
            pipeline=run.pipeline,
            table=table,
            progress=progress,
            ledger=self.ledger,
            stager=stager,
            audits=audits,
            clock=run.clock,
            random=run.random,
            backoff=self.merges if exclusive else self.backoff,
            verify_staged_after=self.verify_staged_after,
            table_leases=run.table_leases() if exclusive else None,
            waiting=run.waiting,
        )
        return _wait(lander.land(units, new_watermark=new_watermark, expected=expected))

    @contextmanager
    def lease(self, table: IcebergTable, unit: Unit) -> Iterator["Lease | None"]:
        """Hold a unit's lease while it is read and landed, waiting for another holder. Yields None if it has landed."""
        run = self.run
        progress = StateProgress(state=run.state, owner=run.owner, work=group_progress(run.session))
        reported = False
        while not progress.take(table.uuid, [unit]):
            [shard] = run.state.shards.read(table.uuid, [unit.id], generation=unit.generation)
            if shard.state is ShardState.COMPLETED:
                yield None
                return
            if not reported:
                run.waiting(
                    f"another run{process_named(shard.owner)} holds the lease on {table.name} "
                    f"(expires within {LEASE.total_seconds():.0f} s if that run dies)"
                )
            reported = True
            _wait(_sleep(run.clock, LOOK_AGAIN_SECONDS))
            _wait(fence(table, progress, self.ledger))  # that run may have published and died
        with progress.holding(table.uuid, [unit]):
            yield Lease(self, table, unit, progress)


@dataclass(frozen=True, slots=True)
class Lease:
    """The lease on one unit of a table."""

    landing: IcebergLanding
    table: IcebergTable
    unit: Unit
    progress: StateProgress

    def land(
        self,
        stager: Stager[Any],
        *,
        new_watermark: NewWatermark = NO_WATERMARK,
        expected: Watermark | AnyWatermark | None = ANY_WATERMARK,
        audits: Sequence[Audit[Any]] = (),
        exclusive: bool = False,
    ) -> Staged[Any] | None:
        """Land the unit: see `IcebergLanding.land`. None means that it had landed.

        Raises `Overtaken` if another run has taken over the lease: it may not have landed the unit yet.
        """
        landing = self.landing
        staged = landing.land(
            self.table,
            [self.unit],
            stager,
            self.progress,
            new_watermark=new_watermark,
            expected=expected,
            audits=audits,
            exclusive=exclusive,
        )
        if staged is None and not landing.has_landed(self.table, self.unit):
            raise Overtaken(f"Another run has taken over the lease on {self.table.name}. Nothing was published.")
        return staged


async def _sleep(clock: Clock, seconds: float) -> None:
    await clock.sleep(seconds)


def _wait(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)
