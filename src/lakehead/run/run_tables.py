"""One run: opens the state, log and display, loads the tables, prints the summary, and closes everything."""

import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from datetime import date
from pathlib import Path

import typer
from pyspark.sql import SparkSession

from lakehead.clock import SystemClock
from lakehead.ids import RandomIds, system_random
from lakehead.run.config.table_config import TableConfig
from lakehead.run.ingestion import Ingestion
from lakehead.run.log_sinks import open_log
from lakehead.run.observe.display import display_for
from lakehead.run.observe.heartbeat import HeartbeatEmitter
from lakehead.run.observe.state_events import StateEventSubscriber
from lakehead.run.observe.summary import RunSummary, delivery_warnings, emit_lost_events
from lakehead.run.resolved_config import ResolvedConfig
from lakehead.run.run_telemetry import RunTelemetry
from lakehead.run.wiring import Wiring
from lakehead.spark.app_metrics import SparkAppMetrics
from lakehead.state.buffered import BufferedState
from lakehead.telemetry.emitter import Emitter


def run_tables(  # noqa: PLR0913 - one argument for each option of the command
    resolved: ResolvedConfig,
    tables: Sequence[TableConfig],
    session: Callable[[], SparkSession],
    *,
    load_date: date,
    reload: bool,
    lag_seconds: int,
    heartbeat_seconds: int,
    config_file: Path,
    metrics_port: int | None = None,
    metrics_file: Path | None = None,
) -> int:
    """Load the tables and print the summary. Returns the exit code."""
    clock, ids, logging = SystemClock(), RandomIds(), resolved.config.runtime.logging
    wiring = Wiring(resolved.config, resolved.environment)
    run, summary, terminal = ids.uuid(), RunSummary(), sys.stdout.isatty()
    emitter = Emitter(run, clock, ids, [summary], load_date=load_date)
    telemetry: RunTelemetry | None = None
    try:
        with ExitStack() as opened:
            state = opened.enter_context(wiring.open_state(clock, ids))
            buffered = opened.enter_context(BufferedState(state, clock))
            log = opened.enter_context(open_log(logging, run, clock, resolved.environment))
            display = display_for(logging, terminal=terminal, stream=sys.stdout, clock=clock)
            emitter.subscribe_slow(StateEventSubscriber(buffered), "the state")
            emitter.subscribe_slow(log, "the log")
            emitter.subscribe_slow(display, "the display")
            telemetry = RunTelemetry(
                wiring, tables, emitter, buffered, clock, metrics_port=metrics_port, metrics_file=metrics_file
            )
            opened.enter_context(telemetry)
            started = session()
            heartbeat = HeartbeatEmitter(emitter, heartbeat_seconds, spark=SparkAppMetrics(started).read)
            with display, emitter, heartbeat, emit_lost_events(emitter, telemetry):
                Ingestion(
                    wiring=wiring,
                    session=started,
                    state=buffered,
                    emitter=emitter,
                    clock=clock,
                    ids=ids,
                    random=system_random(),
                    load_date=load_date,
                    lag_seconds=lag_seconds,
                    reload=reload,
                    config_file=config_file,
                ).run(tables)
    finally:  # also if the run was stopped, or the state could not store its last events
        if summary.status.started_at is not None:
            lines_are_json = logging.as_json if logging.as_json is not None else not terminal
            typer.echo(summary.render(colour=terminal), nl=False, err=lines_are_json)
        for warning in delivery_warnings(emitter, () if telemetry is None else telemetry.lost):
            typer.echo(f"lakehead: {warning}", err=True)
    return summary.exit_code
