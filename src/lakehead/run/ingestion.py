"""A run over many tables: side by side, each by itself, and none that fails stops the others."""

from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from datetime import date, timedelta

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
from lakehead.run.sentences import sentence_of
from lakehead.run.wiring import Wiring, table_settings
from lakehead.spark.jobs import ThreadSessions, cancel_group, job_group
from lakehead.state.buffered import BufferedState
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
        with ThreadPoolExecutor(runtime.max_parallel_tables, thread_name_prefix="lakehead-table") as pool:
            futures = [pool.submit(self._ingest_one_table, table, sessions) for table in tables]
            try:
                outcomes = _all(futures)
            except BaseException:  # somebody wants the run to end
                pool.shutdown(wait=False, cancel_futures=True)
                for table in tables:
                    cancel_group(self.session, self._group(table))
                raise
        done = RunDone(
            done=sum(isinstance(outcome, Done) for outcome in outcomes),
            skipped=sum(isinstance(outcome, Skipped) for outcome in outcomes),
            failed=outcomes.count(None),
            seconds=self.clock.monotonic() - started,
        )
        self._clean_up(tables)
        self.emitter.emit(done)
        return done

    def _clean_up(self, tables: Sequence[Table]) -> None:
        """Remove staging directories of sinks of files that have landed and had their time."""
        staging = self.wiring.config.runtime.staging
        for root in self.wiring.staging_roots(tables) if staging.enabled else ():
            files = HadoopFiles(self.session, ids=self.ids)
            gone: list[str] = []
            try:
                gone = ttl_cleanup(root, timedelta(hours=staging.ttl_hours), files=files, clock=self.clock)
                left = leftovers(root, files=files)
                self.emitter.emit(StagingCleaned(root=root, removed=len(gone), not_landed=len(left)))
            except LakeheadError as error:  # what is left is removed by the next run
                self.emitter.emit(StagingCleaned(root=root, removed=len(gone), error=str(error)))

    def _ingest_one_table(self, table: Table, sessions: ThreadSessions) -> Done | Skipped | None:
        """Load one table, in this thread. None if it failed."""
        emit, started = self.emitter.of(table.full_name), self.clock.monotonic()
        reload = self.reload or table.force_reload
        emit(TableStart(mode=table.mode, load_date=self.load_date, reload=reload))
        try:
            outcome = self._loaded(table, sessions.mine())
        except Exception as error:  # noqa: BLE001 - one table must never stop the others
            emit(
                TableFailed(
                    error=sentence_of(error),
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
            clock=self.clock,
            ids=self.ids,
            random=self.random,
            waiting=lambda reason: emit(TableWaits(reason=reason)),
        )
        sink = self.wiring.sink_of(table, settings, shared)
        try:
            context = ExecutionContext(
                table=settings,
                sink=sink,
                open_source=self.wiring.source_of(table, session),
                state=self.state,
                emit=emit,
                run=self.emitter.run,
                load_date=self.load_date,
                lag_seconds=self.lag_seconds,
                planner=self.planners.default,
                slicing=config.runtime.scd1_slicing.policy(),
                ids=self.ids,
            )
            with job_group(session, self._group(table), f"{table.full_name} ({table.mode})"):
                return strategy.run(context)
        finally:
            sink.close()

    def _group(self, table: Table) -> str:
        return group_of(self.emitter.run, table.full_name)


def _all(futures: Sequence[Future[Done | Skipped | None]]) -> list[Done | Skipped | None]:
    """What came of all; in steps, so that an interrupt is heard meanwhile."""
    waiting = set(futures)
    while waiting:
        _, waiting = wait(waiting, return_when=FIRST_COMPLETED)
    return [future.result() for future in futures]
