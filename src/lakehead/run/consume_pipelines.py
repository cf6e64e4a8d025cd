"""Runs the pipelines of a configuration in one process and one Spark session, until they are stopped."""

import asyncio
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from shlex import quote
from types import TracebackType
from typing import Self

import typer
from pyspark.sql import SparkSession

from lakehead.clock import SystemClock
from lakehead.consume.coordinator import QueueCoordinator
from lakehead.consume.metrics import ConsumeMetrics
from lakehead.consume.queue import LimitedQueue, Queue
from lakehead.consume.queues.file_list_queue import FileListQueue
from lakehead.consume.settings import PipelineSettings
from lakehead.errors import Unavailable
from lakehead.ids import RandomIds, system_random
from lakehead.lake.iceberg_table import IcebergTable
from lakehead.maintain.upkeep import Upkeep
from lakehead.run.config.consume_config import ConsumeConfig
from lakehead.run.consume_wiring import Backfill, ConsumeWiring, PipelineDeps, pipeline_settings
from lakehead.run.error_messages import error_message
from lakehead.run.log_sinks import open_log
from lakehead.run.metrics_server import serve_metrics
from lakehead.run.observe.display import Display, LineDisplay
from lakehead.run.observe.event_text import counted
from lakehead.run.observe.json_lines import StructuredLogSubscriber
from lakehead.run.observe.levels import Level
from lakehead.run.observe.outputs import warn_on_stderr
from lakehead.run.observe.state_events import StateEventSubscriber
from lakehead.run.resolved_config import ResolvedConfig
from lakehead.run.stop_signals import stop_signals
from lakehead.run.stopping import StopSignal
from lakehead.spark.jobs import ThreadSessions
from lakehead.state.buffered import BufferedState
from lakehead.state.owners import owner_named
from lakehead.state.state import State
from lakehead.telemetry.emitter import Emitter
from lakehead.telemetry.events import PipelineEnded, PipelineProgress, PipelineStarted

LOG = logging.getLogger(__name__)

IDLE_CHECK_SECONDS = 0.2
FEW_RECEIVES = 100
"""A message may be received so often in an outage of some hours, though its object is tried much less often."""

UNTIL_EMPTY_POLL = timedelta(seconds=1)
"""How long a queue is asked for a message before it is taken for empty."""


@dataclass(slots=True)
class _Running:
    """A pipeline that runs, and what was last reported of it."""

    name: str
    queue: Queue
    coordinator: QueueCoordinator
    started_at: float
    reported_at: float
    reported_rows: int = 0
    has_ended: bool = False
    was_idle: bool = False
    """Whether it was stopped because its queue was empty. More may have come since."""

    error: str | None = None

    @property
    def counts(self) -> Mapping[str, int]:
        return asdict(self.coordinator.counts)

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to do: a list of files has landed, or the queue is empty, or was when it ended."""
        if isinstance(self.queue, FileListQueue):
            return self.queue.drained
        return self.was_idle or self.coordinator.is_idle


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipelines:
    """The pipelines of one process."""

    wiring: ConsumeWiring
    deps: PipelineDeps
    emitter: Emitter
    clock: SystemClock
    heartbeat_seconds: float
    config_file: Path
    until_empty: bool = False
    metrics_port: int | None = None
    backfill: Backfill | None = None
    """If there is one, its files are landed, and the queues of pipelines are left alone."""

    running: list[_Running] = field(default_factory=list)
    stopping: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self, names: Sequence[str]) -> int:
        """Run pipelines until they are stopped or done. Returns the exit code.

        A pipeline whose queue does not answer waits for it, and the others do not wait with it.
        """
        async with AsyncExitStack() as opened:
            waiting = {name: error for name in names if (error := await self._open(name, opened))}
            if self.metrics_port is not None:
                metrics = ConsumeMetrics(lambda: {each.name: each.coordinator for each in self.running})
                opened.enter_context(serve_metrics(metrics, self.metrics_port))
            with stop_signals(self._stop):
                reporting = asyncio.ensure_future(self._report_for_ever())
                try:
                    async with asyncio.TaskGroup() as pipelines:
                        for each in self.running:
                            pipelines.create_task(self._run_one(each))
                        for name, error in waiting.items():
                            pipelines.create_task(self._run_later(name, error, opened))
                except BaseExceptionGroup as errors:
                    raise errors.exceptions[0] from None
                finally:
                    await _cancelled(reporting)
        return int(any(each.error for each in self.running) or bool(self.unfinished(names)))

    def unfinished(self, names: Sequence[str]) -> list[str]:
        """Which pipelines were stopped too early: they were to run until nothing is left to do. None of them failed."""
        ended = {each.name for each in self.running if each.is_done or each.error}
        return [name for name in names if name not in ended] if self.until_empty else []

    async def _run_later(self, name: str, error: Unavailable, opened: AsyncExitStack) -> None:
        """Open a pipeline as soon as its queue answers, and run it, unless it is to stop before that."""
        LOG.warning("Pipeline %s waits for its queue: %s", name, error)
        pauses = PipelineSettings(name=name).polling.pauses(self.deps.random)
        while not self.stopping.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(next(pauses)):
                    await self.stopping.wait()
            if not self.stopping.is_set() and await self._open(name, opened) is None:
                await self._run_one(next(each for each in self.running if each.name == name))
                return

    async def _open(self, name: str, opened: AsyncExitStack) -> Unavailable | None:
        """Open a pipeline, and add it to those that run. Returns the error if its queue does not answer now."""
        config = self.wiring.config.pipelines[name]
        try:
            self.running.append(await self._opened(name, config, opened))
        except Unavailable as error:
            return error
        return None

    async def _opened(self, name: str, config: ConsumeConfig, opened: AsyncExitStack) -> _Running:
        deps = self.deps
        queue = await self._open_queue(config)
        opened.push_async_callback(queue.close)
        settings = pipeline_settings(name, config)
        if self.until_empty:
            settings = replace(settings, poll_wait=UNTIL_EMPTY_POLL)
        coordinator = self.wiring.coordinator(settings, config, queue, deps, opened, backfill=self.backfill)
        now = self.clock.monotonic()
        warning = " ".join(filter(None, (window_warning(queue, config), receives_warning(queue)))) or None
        self.emitter.emit(PipelineStarted(pipeline=name, queue=queue.name, warning=warning))
        return _Running(name, queue, coordinator, started_at=now, reported_at=now)

    async def _open_queue(self, config: ConsumeConfig) -> Queue:
        clock, ids, random = self.deps.clock, self.deps.ids, self.deps.random
        if self.backfill is None:
            return await self.wiring.open_queue(config, clock, ids, random)
        listing = self.wiring.open_listing(self.backfill, clock, ids, random)
        # Its units may be forgotten after the deduplication window: the next backfill finds them in the ledger.
        listing.forgets = True
        return listing

    async def _run_one(self, each: _Running) -> None:
        """Run one pipeline. If it fails, the others go on."""
        ending = asyncio.ensure_future(self._stop_when_done(each))
        try:
            await each.coordinator.run()
        except Exception as error:  # noqa: BLE001 - a pipeline must not stop the others
            each.error = error_message(error, self.config_file)
        finally:
            await _cancelled(ending)
        each.has_ended = True
        seconds = self.clock.monotonic() - each.started_at
        self.emitter.emit(PipelineEnded(pipeline=each.name, counts=each.counts, seconds=seconds, error=each.error))

    async def _stop_when_done(self, each: _Running) -> None:
        if not self.until_empty and not isinstance(each.queue, FileListQueue):
            return
        while not each.is_done:
            await self.clock.sleep(IDLE_CHECK_SECONDS)
        each.was_idle = True
        each.coordinator.stop()

    def _stop(self, by: str) -> None:
        self.deps.stop.set(by)
        self.stopping.set()
        for each in self.running:
            each.coordinator.stop()

    async def _report_for_ever(self) -> None:
        while True:
            await self.clock.sleep(self.heartbeat_seconds)
            for each in self.running:
                if not each.has_ended:
                    self._report(each)

    def _report(self, each: _Running) -> None:
        now, rows = self.clock.monotonic(), each.coordinator.counts.rows
        rate = (rows - each.reported_rows) / max(now - each.reported_at, 1e-9)
        each.reported_at, each.reported_rows = now, rows
        self.emitter.emit(
            PipelineProgress(
                pipeline=each.name,
                counts=each.counts,
                held_messages=each.coordinator.held_messages,
                rows_per_second=round(rate, 1),
                lag_seconds=each.coordinator.lag_seconds,
            )
        )


def run_pipelines(
    resolved: ResolvedConfig,
    names: Sequence[str],
    session: Callable[[], SparkSession],
    *,
    config_file: Path,
    until_empty: bool,
    metrics_port: int | None = None,
    backfill: Backfill | None = None,
) -> int:
    """Run pipelines until they are stopped or done. Returns the exit code."""
    clock, ids, random, logging = SystemClock(), RandomIds(), system_random(), resolved.config.runtime.logging
    wiring, run, terminal = ConsumeWiring(resolved.config, resolved.environment), ids.uuid(), sys.stdout.isatty()
    emitter = Emitter(run, clock, ids)
    with ExitStack() as opened:
        state = opened.enter_context(wiring.open_state(clock, ids))
        buffered = opened.enter_context(BufferedState(state, clock))
        level = Level.named(logging.level)
        log = opened.enter_context(open_log(logging, run, clock, resolved.environment))
        as_json = logging.as_json if logging.as_json is not None else not terminal
        display: Display = (
            StructuredLogSubscriber(stream=sys.stdout, level=level)
            if as_json
            else LineDisplay(sys.stdout, level=level, warn=warn_on_stderr)
        )
        emitter.subscribe_slow(StateEventSubscriber(buffered), "the state")
        emitter.subscribe_slow(log, "the log")
        emitter.subscribe_slow(opened.enter_context(display), "the display")
        opened.enter_context(emitter)
        upkeeps = opened.enter_context(_Upkeeps(wiring, state, session(), clock))
        deps = PipelineDeps(
            state=state,
            sessions=ThreadSessions(session()),
            run=run,
            clock=clock,
            ids=ids,
            random=random,
            stop=StopSignal(),
            waiting=lambda reason: typer.echo(f"lakehead: {reason}", err=True),
            after_landing=upkeeps.after_landing,
        )
        pipelines = Pipelines(
            wiring=wiring,
            deps=deps,
            emitter=emitter,
            clock=clock,
            heartbeat_seconds=resolved.config.runtime.heartbeat_seconds,
            config_file=config_file,
            until_empty=until_empty,
            metrics_port=metrics_port,
            backfill=backfill,
        )
        code = asyncio.run(pipelines.run(names))
    for name in pipelines.unfinished(names):
        typer.echo(f"lakehead: {_stopped_early(name, deps.stop, backfill)}", err=True)
    for each in pipelines.running:
        if each.error:
            typer.echo(f"lakehead: Pipeline {each.name}: {each.error}", err=True)
        elif backfill is None or not each.is_done:
            continue
        elif incomplete := _incomplete(each, config_file):
            typer.echo(f"lakehead: {incomplete}", err=True)
            code = 1
        elif not each.coordinator.counts.received:
            typer.echo(f"lakehead: No files were found in {each.queue.name}.", err=True)
    return code


def _stopped_early(name: str, stop: StopSignal, backfill: Backfill | None) -> str:
    """Return that something is left to do, and what to do."""
    what, end = (f"Pipeline {name}", "its queue was empty") if backfill is None else ("The backfill", "its end")
    by = f" by {stop.by}" if stop else ""
    return f"{what} was stopped{by} before {end}. Run it again: what has landed is not landed twice."


def _incomplete(backfill: _Running, config_file: Path) -> str | None:
    """Return why a backfill that has come to its end has not landed everything, and what to do."""
    if count := backfill.coordinator.counts.dead_letters:
        see = f"lakehead dead-letters list {quote(str(config_file))}"
        return f"{counted(count, 'file')} could not be landed. See why: {see}"
    return None


def window_warning(queue: Queue, config: ConsumeConfig) -> str | None:
    """Return what to change if the queue may deliver a message again after its object was forgotten."""
    seconds = config.deduplication_window_duration_secs
    if not queue.forgets or queue.retention is None or queue.retention.total_seconds() < seconds:
        return None
    return (
        f"The queue keeps messages for {queue.retention.total_seconds():.0f} s, and landed objects are remembered for "
        f"{seconds} s: one that is announced again after that lands twice. Set deduplication_window_duration_secs to "
        "more than the queue's retention."
    )


def receives_warning(queue: Queue) -> str | None:
    """Return what to change if the queue may take a message away before its object has landed or is a dead letter."""
    most = queue.most_receives if isinstance(queue, LimitedQueue) else None
    if most is None or most >= FEW_RECEIVES:
        return None
    return (
        f"The queue moves a message that was received {most} times to its own dead-letter queue, and nothing lands it "
        "from there. Each try, restart and pause of an outage is a receive. Set maxReceiveCount of its redrive policy "
        "to 1000, or remove the policy: what cannot be landed is kept as a dead letter of the pipeline."
    )


class _Upkeeps:
    """Keeps the tables of each catalog fit, beside the landings on them."""

    def __init__(self, wiring: ConsumeWiring, state: State, session: SparkSession, clock: SystemClock) -> None:
        self._wiring = wiring
        self._state = state
        self._session = session
        self._clock = clock
        self._by_catalog: dict[str, Upkeep] = {}
        self._opened = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._opened.close()

    async def after_landing(self, table: IcebergTable) -> None:
        """Start what is due for a table that was landed on."""
        name = table.catalog.name
        if name not in self._by_catalog:
            self._by_catalog[name] = await asyncio.to_thread(self._open, name)
        report = await self._by_catalog[name].after_landing(table)
        if report is not None and report.error is not None and report.failures == 1:
            typer.echo(f"lakehead: Upkeep of {report.step.table} failed, and is tried again: {report.error}", err=True)

    def _open(self, name: str) -> Upkeep:
        catalog = self._wiring.open_catalog(name, self._clock)
        self._opened.callback(catalog.close)
        upkeep = Upkeep(
            catalog=catalog,
            ledger=self._wiring.open_ledger(),
            state=self._state,
            session=ThreadSessions(self._session).mine(),
            owner=owner_named(RandomIds().uuid()),
            clock=self._clock,
            random=system_random(),
        )
        return self._opened.enter_context(upkeep)


async def _cancelled(task: "asyncio.Future[None]") -> None:
    """Cancel a task, and wait for its end."""
    task.cancel()
    await asyncio.wait([task])
