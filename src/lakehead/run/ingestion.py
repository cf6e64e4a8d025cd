"""A run over many tables: side by side, each by itself, and none that fails stops the others."""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date, timedelta
from pathlib import Path
from typing import TypeAlias

from pyspark.sql import SparkSession

from lakehead.clock import Clock
from lakehead.errors import LakeheadError
from lakehead.extract.full import FullRefreshStrategy
from lakehead.extract.incremental import AppendStrategy, Scd1Strategy
from lakehead.extract.planning.registry import PlannerRegistry
from lakehead.extract.strategy import Done, ExecutionContext, Skipped, StrategyRegistry
from lakehead.extract.surroundings import Shared
from lakehead.ids import Ids, Random
from lakehead.lake.filesink.cleanup import leftovers, ttl_cleanup
from lakehead.lake.filesink.hadoop import HadoopFiles
from lakehead.run.config.tables import Table
from lakehead.run.observe.stack_hash import stack_hash
from lakehead.run.sentences import sentence_of, with_config
from lakehead.run.stopping import Stop, StoppableClock, stopped_by
from lakehead.run.wiring import Wiring, table_settings
from lakehead.spark.jobs import ThreadSessions, cancel_group, job_group
from lakehead.spark.launch import DEATH_SECONDS, SparkDied, death_of
from lakehead.spark.reasons import SPARKS_ERRORS
from lakehead.state.buffered import BufferedState
from lakehead.state.owners import owner_named
from lakehead.telemetry.emitter import Emitter
from lakehead.telemetry.emitter import job_group as group_of
from lakehead.telemetry.events import (
    RunDone,
    RunStart,
    StagingCleaned,
    TableDone,
    TableFailed,
    TableSkipped,
    TableStart,
    TableWaits,
)

STRATEGY_REGISTRY = StrategyRegistry()
STRATEGY_REGISTRY.register("full", FullRefreshStrategy())
STRATEGY_REGISTRY.register("scd1", Scd1Strategy())
STRATEGY_REGISTRY.register("append", AppendStrategy())

PLANNER_REGISTRY = PlannerRegistry()

STOP_SECONDS = 10.0
"""How long a run that is to end waits for what its tables are doing."""

Outcome: TypeAlias = Future[Done | Skipped | None]
"""What comes of a table; None if it fails."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ingestion:
    """One run: what it is told, and what all of its tables share."""

    wiring: Wiring
    session: SparkSession
    state: BufferedState
    emitter: Emitter
    clock: Clock
    ids: Ids
    random: Random
    load_date: date
    lag_seconds: int = 0
    reload: bool = False
    config_file: Path | None = None
    """Where the configuration is, for commands that messages suggest."""

    stop: Stop = field(default_factory=Stop)
    strategies: StrategyRegistry = STRATEGY_REGISTRY
    planners: PlannerRegistry = PLANNER_REGISTRY

    def run(self, tables: Sequence[Table]) -> RunDone:
        """Load the tables, as many side by side as the configuration says. What fails is told, not raised."""
        runtime = self.wiring.config.runtime
        started = self.clock.monotonic()
        self.emitter.emit(RunStart(pipeline=runtime.pipeline, tables=len(tables), load_date=self.load_date))
        self.state.flush()
        self.state.preload(self.wiring.known_ids(tables), self.load_date)
        sessions = ThreadSessions(self.session)
        pool = ThreadPoolExecutor(runtime.max_parallel_tables, thread_name_prefix="lakehead-table")
        futures = [pool.submit(self._ingest_one_table, table, sessions) for table in tables]
        try:
            wait(futures)
        except BaseException as interrupt:  # somebody wants the run to end
            self._stop_tables(tables, futures, pool, by=stopped_by(interrupt))
            self.emitter.emit(self._done(futures, started))
            raise
        pool.shutdown()
        done = self._done(futures, started)
        self._clean_up(tables)
        self.emitter.emit(done)
        return done

    def _stop_tables(
        self, tables: Sequence[Table], futures: Sequence[Outcome], pool: ThreadPoolExecutor, *, by: str
    ) -> None:
        """End what tables wait for and what Spark does for them, and wait a little until they have said so."""
        self.stop.set(by)
        pool.shutdown(wait=False, cancel_futures=True)
        with suppress(*SPARKS_ERRORS, OSError):  # Spark may be gone itself
            for table, future in zip(tables, futures, strict=True):
                if not future.done():  # Spark remembers only so many groups that were cancelled
                    cancel_group(self.session, self._group(table))
        # A thread that waits for a source's answer cannot be ended: the process does not wait for it.
        wait([future for future in futures if not future.cancelled()], STOP_SECONDS)

    def _done(self, futures: Sequence[Outcome], started: float) -> RunDone:
        """What has come of the tables so far."""
        outcomes = [future.result() for future in futures if future.done() and not future.cancelled()]
        return RunDone(
            done=sum(isinstance(outcome, Done) for outcome in outcomes),
            skipped=sum(isinstance(outcome, Skipped) for outcome in outcomes),
            failed=outcomes.count(None),
            not_ended=len(futures) - len(outcomes),
            seconds=self.clock.monotonic() - started,
        )

    def _clean_up(self, tables: Sequence[Table]) -> None:
        """Remove staging directories of sinks of files that have landed and had their time."""
        staging = self.wiring.config.runtime.staging
        if not staging.enabled or self._spark_died() is not None:
            return
        for root in self.wiring.staging_roots(tables):
            gone: list[str] = []
            try:
                files = HadoopFiles(self.session, ids=self.ids)
                gone = ttl_cleanup(root, timedelta(hours=staging.ttl_hours), files=files, clock=self.clock)
                left = leftovers(root, files=files)
                self.emitter.emit(StagingCleaned(root=root, removed=len(gone), not_landed=len(left)))
            except (LakeheadError, OSError, *SPARKS_ERRORS) as error:  # what is left is removed by the next run
                reason = sentence_of(self._reason(error))
                self.emitter.emit(StagingCleaned(root=root, removed=len(gone), error=reason))

    def _ingest_one_table(self, table: Table, sessions: ThreadSessions) -> Done | Skipped | None:
        """Load one table, in this thread. None if it failed."""
        emit, started = self.emitter.of(table.full_name), self.clock.monotonic()
        reload = self.reload or table.force_reload
        emit(TableStart(mode=table.mode, load_date=self.load_date, reload=reload))
        try:
            outcome = self._loaded(table, sessions.mine())
        except Exception as raised:  # noqa: BLE001 - one table must never stop the others
            error = self._reason(raised)
            emit(
                TableFailed(
                    error=sentence_of(error, self.config_file),
                    error_kind=type(error).__name__,
                    stack_hash=stack_hash(error),
                    seconds=self.clock.monotonic() - started,
                )
            )
            return None
        match outcome:
            case Skipped():
                emit(TableSkipped(reason=outcome.reason))
            case Done():
                seconds = self.clock.monotonic() - started
                emit(
                    TableDone(
                        rows=outcome.rows,
                        published=outcome.published,
                        seconds=seconds,
                        slices=outcome.slices,
                        watermark=outcome.watermark,
                    )
                )
        return outcome

    def _reason(self, raised: Exception) -> Exception:
        """Why a table has failed: whatever was raised after the run was to end, or after Spark died, is due to that."""
        if self.stop:
            return self.stop.error
        lost = isinstance(raised, (*SPARKS_ERRORS, OSError, EOFError))
        return self._spark_died(within=DEATH_SECONDS if lost else 0) or raised

    def _spark_died(self, *, within: float = 0.0) -> SparkDied | None:
        gateway = self.session.sparkContext._gateway  # noqa: SLF001 - PySpark has no word for it
        return death_of(gateway, within=within)

    def _loaded(self, table: Table, session: SparkSession) -> Done | Skipped:
        config, emit = self.wiring.config, self.emitter.of(table.full_name)
        strategy = self.strategies.of(table.mode)
        settings = table_settings(table, finalizes=config.runtime.finalize_full_refresh, reload=self.reload)
        shared = Shared(
            pipeline=config.runtime.pipeline,
            run=self.emitter.run,
            load_date=self.load_date,
            session=session,
            state=self.state.state,
            owner=owner_named(self.emitter.run),
            clock=StoppableClock(self.clock, self.stop),
            ids=self.ids,
            random=self.random,
            waiting=lambda reason: emit(TableWaits(reason=with_config(reason, self.config_file))),
            pause=self.stop.pause,
        )
        sink = self.wiring.sink_of(table, settings, shared)
        try:
            context = ExecutionContext(
                table=settings,
                sink=sink,
                open_source=self.wiring.source_of(table, session),
                state=self.state,
                emit=emit,
                sentence=lambda error: sentence_of(self._reason(error), self.config_file),
                run=self.emitter.run,
                load_date=self.load_date,
                lag_seconds=self.lag_seconds,
                planner=self.planners.default,
                slicing=config.runtime.scd1_slicing.policy(),
                clock=self.clock,
                ids=self.ids,
            )
            with job_group(session, self._group(table), f"{table.full_name} ({table.mode})"):
                return strategy.run(context)
        finally:
            sink.close()

    def _group(self, table: Table) -> str:
        return group_of(self.emitter.run, table.full_name)
