"""One run over the tables of a configuration: everything opened, everybody told, everything closed."""

import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from datetime import date
from pathlib import Path

import typer
from pyspark.sql import SparkSession

from lakehead.clock import SystemClock
from lakehead.ids import RandomIds, system_random
from lakehead.run.config.tables import Table
from lakehead.run.ingestion import Ingestion
from lakehead.run.observe.display import display_for
from lakehead.run.observe.heartbeat import Heartbeat
from lakehead.run.observe.json_lines import StructuredLogSubscriber
from lakehead.run.observe.levels import Level
from lakehead.run.observe.state_events import StateEventSubscriber
from lakehead.run.observe.summary import Summary
from lakehead.run.revealed import Revealed
from lakehead.run.wiring import Wiring
from lakehead.state.buffered import BufferedState
from lakehead.telemetry.emitter import Emitter


def run_tables(
    revealed: Revealed,
    tables: Sequence[Table],
    session: Callable[[], SparkSession],
    *,
    load_date: date,
    reload: bool,
    lag_seconds: int,
    heartbeat_seconds: int,
    config_file: Path,
) -> int:
    """Load the tables and print what came of them; the exit code."""
    clock, ids, logging = SystemClock(), RandomIds(), revealed.config.runtime.logging
    wiring = Wiring(revealed.config, revealed.environment)
    run, summary, terminal = ids.uuid(), Summary(), sys.stdout.isatty()
    try:
        with ExitStack() as opened:
            state = opened.enter_context(wiring.open_state(clock, ids))
            buffered = opened.enter_context(BufferedState(state, clock))
            log = StructuredLogSubscriber(run=run, sink=logging.sink, level=Level.named(logging.level))
            opened.enter_context(log)
            display = display_for(logging, terminal=terminal, stream=sys.stdout, clock=clock)
            emitter = Emitter(
                run, clock, ids, [StateEventSubscriber(buffered), log, summary, display], load_date=load_date
            )
            started = session()
            with display, Heartbeat(emitter, heartbeat_seconds):
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
    finally:  # also where somebody has stopped it, or where the state did not take its last events
        if summary.standings.began is not None:
            lines_are_json = logging.as_json if logging.as_json is not None else not terminal
            typer.echo(summary.render(colour=terminal), nl=False, err=lines_are_json)
    if emitter.failures:
        typer.echo(
            f"lakehead: {emitter.failures} events of this run did not reach everybody who listens; the first because "
            f"of {emitter.first_failure!r}. What was loaded is not touched by it.",
            err=True,
        )
    return summary.exit_code
