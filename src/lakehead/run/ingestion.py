"""Runs many tables in parallel. A table that fails does not stop the others."""

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
from lakehead.extract.modes import APPEND, FULL, MODES, SCD1
from lakehead.extract.planning.registry import PlannerRegistry
from lakehead.extract.strategy import Done, ExecutionContext, Skipped, Strategy, StrategyRegistry
from lakehead.ids import Ids, Random
from lakehead.lake.filesink.hadoop import HadoopFiles
from lakehead.lake.filesink.staging_cleanup import leftovers, ttl_cleanup
from lakehead.lake.run_context import RunContext
from lakehead.metadata.drift import TableSetAside
from lakehead.metadata.repository import MetadataRepository
from lakehead.metadata.runtime import build_metadata_access, collect_metadata
from lakehead.run.config.table_config import TableConfig
from lakehead.run.error_messages import error_message, with_config
from lakehead.run.observe.stack_hash import stack_hash
from lakehead.run.staleness import alert_stale_tables
from lakehead.run.stopping import StoppableClock, StopSignal, interrupt_name
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
    TableWaiting,
)

STRATEGY_REGISTRY = StrategyRegistry()
STRATEGY_REGISTRY.register(FULL, FullRefreshStrategy())
STRATEGY_REGISTRY.register(SCD1, Scd1Strategy())
STRATEGY_REGISTRY.register(APPEND, AppendStrategy())

PLANNER_REGISTRY = PlannerRegistry()

STOP_SECONDS = 10.0
"""How long a stopped run waits for its tables."""

FLUSH_SECONDS = 5.0
"""How long a run waits at its start until subscribers have its first event."""

TableFuture: TypeAlias = Future[Done | Skipped | None]
"""The result of a table; None if it failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ingestion:
    """One run: its options, and what all of its tables share."""

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
    """The configuration file, for commands that messages suggest."""

    stop: StopSignal = field(default_factory=StopSignal)
    strategies: StrategyRegistry = STRATEGY_REGISTRY
    planners: PlannerRegistry = PLANNER_REGISTRY

    def run(self, tables: Sequence[TableConfig]) -> RunDone:
        """Load the tables, up to `max_parallel_tables` at a time. A failed table is an event, not an exception."""
        runtime = self.wiring.config.runtime
        started = self.clock.monotonic()
        self.emitter.emit(RunStart(pipeline=runtime.pipeline, tables=len(tables), load_date=self.load_date))
        futures: list[TableFuture] = []
        pool = ThreadPoolExecutor(runtime.max_parallel_tables, thread_name_prefix="lakehead-table")
        try:
            self.emitter.flush(FLUSH_SECONDS)
            self.state.flush()  # the run is in the history, even if it is killed
            self.state.preload(self.wiring.loaded_table_ids(tables), self.load_date)
            metadata = self._collect_metadata(tables)
            self._alert_stale_tables(tables, "start")
            sessions = ThreadSessions(self.session)
            futures += [pool.submit(self._ingest_one_table, table, sessions, metadata) for table in tables]
            wait(futures)
            pool.shutdown()
            done = self._count_outcomes(futures, started, len(tables))
            self._clean_up(tables)
            self._alert_stale_tables(tables, "end")
        except BaseException as stopped:  # Ctrl-C or SIGTERM, or the state or a catalog is away
            self._stop_tables(tables, futures, pool, by=interrupt_name(stopped))
            self.emitter.emit(self._count_outcomes(futures, started, len(tables)))
            raise
        self.emitter.emit(done)
        return done

    def _alert_stale_tables(self, tables: Sequence[TableConfig], when: str) -> None:
        alert_stale_tables(self.wiring, tables, self.state, self.clock, self.emitter, when=when)

    def _stop_tables(
        self, tables: Sequence[TableConfig], futures: Sequence[TableFuture], pool: ThreadPoolExecutor, *, by: str
    ) -> None:
        """Interrupt waiting tables, cancel their Spark jobs, and wait up to `STOP_SECONDS` for them to end."""
        self.stop.set(by)
        pool.shutdown(wait=False, cancel_futures=True)
        with suppress(*SPARKS_ERRORS, OSError):  # Spark may have died
            for table, future in zip(tables, futures, strict=False):  # some may not have been submitted
                if not future.done():  # Spark keeps a limited number of cancelled groups
                    cancel_group(self.session, self._group(table))
        # A thread that waits for a source cannot be interrupted, so the process does not wait for it.
        wait([future for future in futures if not future.cancelled()], STOP_SECONDS)

    def _count_outcomes(self, futures: Sequence[TableFuture], started: float, tables: int) -> RunDone:
        """Count the tables by outcome so far, of so many."""
        outcomes = [future.result() for future in futures if future.done() and not future.cancelled()]
        return RunDone(
            done=sum(isinstance(outcome, Done) for outcome in outcomes),
            skipped=sum(isinstance(outcome, Skipped) for outcome in outcomes),
            failed=outcomes.count(None),
            not_ended=tables - len(outcomes),
            seconds=self.clock.monotonic() - started,
        )

    def _clean_up(self, tables: Sequence[TableConfig]) -> None:
        """Remove expired staging directories of file sinks."""
        staging = self.wiring.config.runtime.staging
        if not staging.enabled or self._spark_died() is not None:
            return
        for root in self.wiring.staging_roots(tables):
            removed: list[str] = []
            try:
                files = HadoopFiles(self.session, ids=self.ids)
                removed = ttl_cleanup(root, timedelta(hours=staging.ttl_hours), files=files, clock=self.clock)
                left = leftovers(root, files=files)
                self.emitter.emit(StagingCleaned(root=root, removed=len(removed), not_landed=len(left)))
            except (LakeheadError, OSError, *SPARKS_ERRORS) as error:  # the next run removes the rest
                reason = error_message(self._cause(error))
                self.emitter.emit(StagingCleaned(root=root, removed=len(removed), error=reason))

    def _ingest_one_table(
        self, table: TableConfig, sessions: ThreadSessions, metadata: MetadataRepository
    ) -> Done | Skipped | None:
        """Load one table in this thread. Returns None if it failed."""
        emit, started = self.emitter.for_table(table.full_name), self.clock.monotonic()
        reload = self.reload or table.force_reload
        emit(TableStart(mode=table.mode, load_date=self.load_date, reload=reload))
        try:
            outcome = self._load(table, sessions.mine(), metadata)
        except Exception as raised:  # noqa: BLE001 - a table must not stop the others
            error = self._cause(raised)
            emit(
                TableFailed(
                    error=error_message(error, self.config_file),
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

    def _cause(self, raised: Exception) -> Exception:
        """Return why a table failed: `Stopped` or `SparkDied` if the raised error only follows from that."""
        if self.stop:
            return self.stop.error
        lost = isinstance(raised, (*SPARKS_ERRORS, OSError, EOFError))
        return self._spark_died(within=DEATH_SECONDS if lost else 0) or raised

    def _spark_died(self, *, within: float = 0.0) -> SparkDied | None:
        gateway = self.session.sparkContext._gateway  # noqa: SLF001 - not in the public API of PySpark
        return death_of(gateway, within=within)

    def _collect_metadata(self, tables: Sequence[TableConfig]) -> MetadataRepository:
        """Snapshot the tables of the sources, if that is enabled. What fails here stops no table."""
        if not self.wiring.config.metadata.enabled:
            return MetadataRepository()
        return collect_metadata(
            self.wiring.wanted_catalogues(tables, self.session),
            self.wiring.metadata_cache(self.clock),
            self.emitter.emit,
            failures=(LakeheadError, *SPARKS_ERRORS),
        )

    def _load(self, table: TableConfig, session: SparkSession, metadata: MetadataRepository) -> Done | Skipped:
        config, emit = self.wiring.config, self.emitter.for_table(table.full_name)
        strategy = self.strategies.of(MODES[table.mode])
        settings = table_settings(
            table,
            finalizes=config.runtime.finalize_full_refresh,
            reload=self.reload,
            columns=self.wiring.protections(table),
        )
        run = RunContext(
            pipeline=config.runtime.pipeline,
            run=self.emitter.run,
            load_date=self.load_date,
            session=session,
            state=self.state.state,
            owner=owner_named(self.emitter.run),
            clock=StoppableClock(self.clock, self.stop),
            ids=self.ids,
            random=self.random,
            waiting=lambda reason: emit(TableWaiting(reason=with_config(reason, self.config_file))),
            pause=self.stop.pause,
        )
        sink = self.wiring.sink_of(table, settings, run)
        try:
            context = ExecutionContext(
                table=settings,
                sink=sink,
                open_source=self.wiring.source_of(table, session),
                state=self.state,
                metadata=build_metadata_access(metadata, *self.wiring.schema_rules(table)),
                emit=emit,
                sentence=lambda error: error_message(self._cause(error), self.config_file),
                run=self.emitter.run,
                load_date=self.load_date,
                lag_seconds=self.lag_seconds,
                planner=self.planners.default,
                slicing=config.runtime.scd1_slicing.policy(),
                clock=self.clock,
                ids=self.ids,
            )
            with job_group(session, self._group(table), f"{table.full_name} ({table.mode})"):
                return self._run_strategy(strategy, context)
        finally:
            sink.close()

    def _run_strategy(self, strategy: Strategy, context: ExecutionContext) -> Done | Skipped:
        """Run the strategy. What fails before a phase has begun is marked too."""
        try:
            return strategy.run(context)
        except TableSetAside as reason:
            return Skipped(str(reason))
        except Exception as error:
            context.fail_before_phase(error)
            raise

    def _group(self, table: TableConfig) -> str:
        return group_of(self.emitter.run, table.full_name)
