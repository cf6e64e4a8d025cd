"""Upkeep: keeps a table fit that is landed on every second, beside the landings and without anybody's help.

Each landing adds a snapshot and some small files. Upkeep expires snapshots and compacts small files when there are
enough of them, in a thread of its own and for a bounded share of the time. It never raises: a step that fails is
reported, and tried again later.
"""

import asyncio
import logging
from collections import defaultdict
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from pyiceberg.catalog import Catalog
from pyspark.sql import SparkSession

from lakehead.clock import Clock
from lakehead.errors import LakeheadError
from lakehead.ids import Random
from lakehead.lake.iceberg_table import IcebergTable
from lakehead.lake.ledger import StoreLedger
from lakehead.lake.retries import Retries
from lakehead.lake.state_progress import StateProgress
from lakehead.lake.table_leases import StateTableLeases
from lakehead.maintain.compaction import Compacted, Compactor
from lakehead.maintain.expiry import Expired, ExpiryLimits, expire
from lakehead.maintain.small_files import SmallFileCounter
from lakehead.maintain.snapshot_files import SnapshotFiles
from lakehead.maintain.upkeep_schedule import Figures, UpkeepKind, UpkeepSchedule, UpkeepSettings, UpkeepStep
from lakehead.retry import Backoff, TimedBackoff
from lakehead.spark.jobs import all_progress, job_group
from lakehead.spark.reasons import reason_of
from lakehead.state.state import State

LOG = logging.getLogger("lakehead.maintain")

GROUP = "lakehead-upkeep"
"""The Spark job group and fair pool of upkeep, so that it shares executors with landings and does not hold them up."""

LARGEST_BYTES = 2**62
"""Larger than any file: Iceberg would also rewrite files that are too large, and upkeep leaves them alone."""

GIVES_WAY = Backoff(attempts=2, first_seconds=1.0, cap_seconds=1.0)
"""Attempts to take the table's lease: a merge or another process's upkeep goes first."""

MOST_SNAPSHOTS = 2_000
"""Snapshots that one step expires. What is left has its turn in the next step."""

COMMITS = Backoff(attempts=3, first_seconds=0.5, cap_seconds=2.0)
"""Attempts of a compaction, each with Iceberg's own retries of its commit."""

LONG_SECONDS = 5.0
"""Landings that follow each other at once may keep a compaction from committing. So when it takes longer than this …"""

TURN_SECONDS = 0.5
"""… the pipeline waits so long after each landing, until the step has ended."""

OUTAGE = TimedBackoff(seconds=10.0)
"""How long a step waits for a catalog that does not answer. It is tried again anyway."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpkeepReport:
    """What one step has done. A step that failed has an `error`, and nothing else but its time."""

    step: UpkeepStep
    seconds: float
    expired: Expired | None = None
    compacted: Compacted | None = None
    error: str | None = None
    failures: int = 0
    """How often this step has failed since it last succeeded."""


@dataclass(frozen=True, slots=True)
class _Done:
    """The result of a step, and the count of snapshots or data files from which it is due again."""

    due_from: int
    expired: Expired | None = None
    compacted: Compacted | None = None


@dataclass(frozen=True, slots=True)
class _Ended:
    """When a step ended, in seconds of the clock, and how."""

    at: float
    outcome: _Done | Exception


class Upkeep:
    """Keeps the tables fit that one process lands on. Use it as a context manager; call it from one thread at a time.

    Catalog, ledger and session are used by upkeep's own thread alone: landings have others. `owner` is the owner of
    upkeep's leases in the state, another one than that of the landings: else a merge of this process would not wait
    for a compaction.
    """

    def __init__(
        self,
        *,
        catalog: Catalog,
        ledger: StoreLedger,
        state: State,
        session: SparkSession,
        owner: str,
        clock: Clock,
        random: Random,
        settings: UpkeepSettings | None = None,
    ) -> None:
        self._catalog, self._ledger, self._state, self._session = catalog, ledger, state, session
        self._owner, self._clock, self._random = owner, clock, random
        self._settings = settings or UpkeepSettings()
        self._schedule = UpkeepSchedule(self._settings)
        self._small: dict[str, SmallFileCounter] = defaultdict(SmallFileCounter)
        self._files: defaultdict[str, SnapshotFiles] = defaultdict(SnapshotFiles)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=GROUP)
        self._running: tuple[UpkeepStep, float, Future[_Ended]] | None = None
        """The step, when it began, and its result to be."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    async def after_landing(self, table: IcebergTable) -> UpkeepReport | None:
        """Start a step of upkeep if one is due, and return the report of one that has ended meanwhile.

        Reads no more than the metadata that the landing has left in `table`, and never raises. Returns at once, but
        for a short wait while a step has been running for long: that gives it its turn to commit.
        """
        if self._running is not None and self._clock.monotonic() - self._running[1] > LONG_SECONDS:
            await asyncio.to_thread(wait, [self._running[2]], TURN_SECONDS)
        report = self._collect() if self._running is not None and self._running[2].done() else None
        self._schedule.landed(table.name, Figures.of(table.seen()))
        now = self._clock.monotonic()
        if step := self._schedule.due(now):
            self._schedule.started(step, now)
            self._running = step, now, self._thread.submit(self._run, step)
        return report

    def close(self) -> UpkeepReport | None:
        """Wait for the step that is running, if there is one, and return its report. No other is started."""
        report = self._collect()
        self._thread.shutdown()
        return report

    def _collect(self) -> UpkeepReport | None:
        """The report of the step that was started last, when it has ended; None if it is known already."""
        if self._running is None:
            return None
        step, _, future = self._running
        self._running, ended = None, future.result()
        if isinstance(ended.outcome, Exception):
            return self._failed(step, ended.at, ended.outcome)
        done = ended.outcome
        seconds = self._schedule.succeeded(ended.at, due_from=done.due_from)
        return UpkeepReport(step=step, seconds=seconds, expired=done.expired, compacted=done.compacted)

    def _failed(self, step: UpkeepStep, at: float, error: Exception) -> UpkeepReport:
        seconds, failures = self._schedule.failed(at)
        reason = reason_of(error)
        if failures == 1:  # the same is not logged again until it has worked
            LOG.warning(
                "Upkeep of %s (%s) failed and will be tried again; landings go on. %s",
                step.table,
                step.kind.value,
                reason,
                exc_info=None if isinstance(error, LakeheadError) else error,
            )
        return UpkeepReport(step=step, seconds=seconds, error=reason, failures=failures)

    def _run(self, step: UpkeepStep) -> _Ended:
        """Do a step, in upkeep's own thread."""
        outcome: _Done | Exception
        try:
            outcome = self._do(step)
        except Exception as error:  # noqa: BLE001 - whatever fails here must not stop landings
            outcome = error
        return _Ended(self._clock.monotonic(), outcome)

    def _do(self, step: UpkeepStep) -> _Done:
        retries = Retries(backoff=OUTAGE, clock=self._clock, random=self._random)
        table = IcebergTable(self._catalog, step.table, self._ledger, retries)
        with job_group(self._session, GROUP, f"{step.kind.value} {step.table}"):
            return asyncio.run(self._expire(table) if step.kind is UpkeepKind.EXPIRE else self._compact(table))

    async def _expire(self, table: IcebergTable) -> _Done:
        settings = self._settings
        async with self._table_leases().at(table.uuid, table.name):
            expired = await expire(
                table,
                StateProgress(state=self._state, owner=self._owner),
                self._ledger,
                self._clock,
                limits=ExpiryLimits(
                    older_than=settings.keep_for,
                    unpublished_older_than=settings.keep_unpublished_for,
                    most_for_age=settings.most_snapshots,
                    min_snapshots=settings.keep_snapshots,
                    most=MOST_SNAPSHOTS,
                ),
                files=self._files[table.uuid],
            )
        # What a tag or its age keeps is there next time too: only what comes on top of it makes an expiry worth while.
        enough = 0 if expired.waiting else settings.expire_at_once
        return _Done(max(settings.keep_snapshots, expired.kept) + enough, expired=expired)

    async def _compact(self, table: IcebergTable) -> _Done:
        """Compact the smallest size class that has enough files. A larger one has its turn in the next step."""
        enough, counter = self._settings.small_files, self._small[table.uuid]
        found = counter.count(table.load(), enough)
        if found.below_bytes is None:
            return _Done(found.data_files + enough - found.most)
        compacted = await self._compactor(found.below_bytes).compact(table)
        left = counter.count(table.load(), enough)
        # Nothing rewritten: Iceberg sees it differently than we do, and trying again at once would not change that.
        again_after = enough if compacted.data_files == 0 else max(0, enough - left.most)
        return _Done(left.data_files + again_after, compacted=compacted)

    def _compactor(self, below_bytes: int) -> Compactor:
        return Compactor(
            session=self._session,
            table_leases=self._table_leases(),
            clock=self._clock,
            random=self._random,
            backoff=COMMITS,
            options={
                "min-file-size-bytes": str(below_bytes),
                "max-file-size-bytes": str(LARGEST_BYTES),
                "min-input-files": str(self._settings.small_files),
                "max-concurrent-file-group-rewrites": "1",
            },
        )

    def _table_leases(self) -> StateTableLeases:
        return StateTableLeases(
            state=self._state,
            owner=self._owner,
            clock=self._clock,
            random=self._random,
            patience=GIVES_WAY,
            work=all_progress(self._session),
        )
