"""Follows logs that grow: a live view on a terminal, lines elsewhere."""

from collections.abc import Callable
from datetime import datetime, timedelta
from threading import Event
from typing import TextIO

from rich.console import Console, RenderableType
from rich.live import Live

from lakehead.clock import Clock, SystemClock
from lakehead.run.observe.event_text import event_line
from lakehead.run.observe.levels import Level, level_of
from lakehead.run.progress_log import Logs
from lakehead.run.progress_view import live_view, run_line
from lakehead.run.run_progress import Runs
from lakehead.telemetry.emitter import EPOCH

POLL_SECONDS = 0.25


def now_in_utc(clock: Clock) -> datetime:
    """Return the time."""
    return EPOCH + timedelta(microseconds=clock.now_ns() // 1000)


def follow_logs(
    logs: Logs,
    runs: Runs,
    *,
    silence: timedelta | None,
    until_done: bool,
    stream: TextIO,
) -> None:
    """Add events to the runs as they come, and show them. Returns only with `until_done`; Ctrl-C raises."""
    clock, wait = SystemClock(), Event().wait
    if stream.isatty():
        _follow_on_terminal(logs, runs, silence, wait, stream, clock, until_done=until_done)
    else:
        _follow_in_lines(logs, runs, silence, wait, stream, clock, until_done=until_done)


def _follow_on_terminal(
    logs: Logs,
    runs: Runs,
    silence: timedelta | None,
    wait: Callable[[float], object],
    stream: TextIO,
    clock: Clock,
    *,
    until_done: bool,
) -> None:
    console = Console(file=stream, force_terminal=True, highlight=False, markup=False)

    def render() -> RenderableType:
        return live_view(
            runs, now_in_utc(clock), console.size.width, console.size.height, garbage=logs.garbage, silence=silence
        )

    with Live(get_renderable=render, console=console, auto_refresh=False, transient=True) as live:
        while True:
            runs.add_all(logs.read())
            live.refresh()
            if until_done and _is_over(runs, now_in_utc(clock), silence):
                return
            wait(POLL_SECONDS)


def _follow_in_lines(
    logs: Logs,
    runs: Runs,
    silence: timedelta | None,
    wait: Callable[[float], object],
    stream: TextIO,
    clock: Clock,
    *,
    until_done: bool,
) -> None:
    """Print what is new as lines: events, and once for each run that it has become silent."""
    told: set[str] = set()

    def show(line: str) -> None:
        stream.write(f"{line}\n")
        stream.flush()

    for run in runs.all():
        show(run_line(run, now_in_utc(clock), silence))
    while True:
        for envelope in logs.read():
            runs.add(envelope)
            told.discard(envelope.run)
            if level_of(envelope.event) >= Level.INFO:
                show(event_line(envelope, None))
        now = now_in_utc(clock)
        for run in runs.all():
            if run.run not in told and run.is_silent(now, silence):
                told.add(run.run)
                show(run_line(run, now, silence))
        if until_done and _is_over(runs, now, silence):
            return
        wait(POLL_SECONDS)


def _is_over(runs: Runs, now: datetime, silence: timedelta | None) -> bool:
    everything = runs.all()
    return bool(everything) and all(run.is_over or run.is_silent(now, silence) for run in everything)
