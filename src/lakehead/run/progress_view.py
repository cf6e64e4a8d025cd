"""Renders the progress of runs: a live view, a summary for people, and JSON."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from lakehead.run.observe.event_text import (
    counted,
    duration,
    event_text,
    one_line,
    shortened,
    slice_position,
    totals,
)
from lakehead.run.observe.run_status import TableOutcome, TableStatus
from lakehead.run.run_progress import FailureGroup, RunProgress, Runs, done_share, table_seconds_left
from lakehead.run.text_table import table_lines

STYLES = {"done": "green", "failed": "red", "silent": "yellow", "running": ""}
SHOWN_TABLES_OF_GROUP = 5
BAR_WIDTH = 12


def run_line(run: RunProgress, now: datetime, silence: timedelta | None = None) -> str:
    """Return one line about a run: what, how far, since when."""
    return "; ".join(part for part in (_heading(run, now, silence), _totals(run, now, silence)) if part)


def _heading(run: RunProgress, now: datetime, silence: timedelta | None) -> str:
    state, took = run.state(now, silence), duration(run.elapsed(now, silence))
    day = "" if run.load_date is None else f" for {run.load_date}"
    name = f"run {one_line(run.run)[:8]}" + (f" of {one_line(run.pipeline)}{day}" if run.pipeline else "")
    if state == "silent":
        return f"{name}: no heartbeat since {run.last_at:%Y-%m-%d %H:%M:%S} UTC, most likely killed"
    if state == "running":
        left = run.seconds_left(now, silence)
        return f"{name}: running for {took}" + ("" if left is None else f", about {duration(left)} left")
    return f"{name}: ended after {took}"


def _totals(run: RunProgress, now: datetime, silence: timedelta | None) -> str:
    state, counts = run.state(now, silence), run.status.counts()
    if not counts.total:
        return ""
    numbers = totals(counts).replace("running", "not finished") if state in {"silent", "failed"} else totals(counts)
    rows = counted(counts.rows, "row")
    return f"{counted(counts.total, 'table')}: {numbers}; {rows}{_rate(counts.rows, run.elapsed(now, silence))}"


def live_view(
    runs: Runs, now: datetime, width: int, height: int, *, garbage: int = 0, silence: timedelta | None = None
) -> RenderableType:
    """Render the newest runs in at most `height` lines: each with its running tables, and the failures in groups."""
    everything = runs.all()
    if not everything:
        return Text("Waiting for the first event …", style="dim")
    active = [run for run in everything if run.state(now, silence) == "running"]
    shown = active[-3:] or everything[-1:]
    groups = runs.failures()
    failures = [
        _cut(Text(line, style="red"), width) for line in failure_lines(groups[: max(height // 6, min(height // 5, 1))])
    ]
    room = max(height - 2 - len(failures) - 2 * len(shown) - bool(garbage), 1) // max(len(shown), 1)
    parts: list[RenderableType] = []
    for run in shown:
        state = run.state(now, silence)
        parts.append(_cut(Text(_heading(run, now, silence), style=f"bold {STYLES[state]}".strip()), width))
        parts.append(_cut(Text(_totals(run, now, silence)), width))
        parts += [_cut(Text(event_text(event)), width) for event in run.consumed.values()]
        if state in {"running", "silent"}:
            parts += _tables(run, run.last_at if state == "silent" else None, now, width, room)
    parts += failures
    if garbage:
        parts.append(_cut(Text(garbage_text(garbage), style="yellow"), width))
    return Group(*parts)


def summary_lines(
    runs: Runs, now: datetime, *, colour: bool, garbage: int = 0, silence: timedelta | None = None
) -> list[str]:
    """Return the summary: a line for each run, and each group of failures with its tables."""
    everything = runs.all()
    rows = [_run_cells(run, now, silence) for run in everything]
    styles = [STYLES[run.state(now, silence)] for run in everything]
    headers = ("run", "started (UTC)", "load date", "state", "tables", "done", "skipped", "failed", "rows", "time")
    right = {"tables", "done", "skipped", "failed", "rows", "time"}
    lines = table_lines(headers, rows, right=right, styles=styles, colour=colour) if rows else ["No events."]
    for run in everything:
        if run.state(now, silence) != "done":
            lines.append(run_line(run, now, silence))
        lines += [event_text(event) for event in run.consumed.values()]
    if groups := runs.failures():
        lines += ["", f"{counted(sum(each.count for each in groups), 'failure')} by stack hash:"]
        lines += failure_lines(groups)
    if garbage:
        lines += ["", garbage_text(garbage)]
    return lines


def failure_lines(groups: Sequence[FailureGroup]) -> list[str]:
    """Return two lines for each group: how many and where, and the last error message."""
    lines = []
    for group in groups:
        tables = ", ".join(map(one_line, group.tables[:SHOWN_TABLES_OF_GROUP]))
        more = len(group.tables) - SHOWN_TABLES_OF_GROUP
        tables += f" and {more:,} more" if more > 0 else ""
        runs = f" in {group.runs:,} runs" if group.runs > 1 else ""
        lines.append(f"{group.count:,} x {one_line(group.error_kind)} [{group.stack_hash}]{runs}: {tables}")
        lines.append(f"    {one_line(group.last_error)}")
    return lines


def garbage_text(garbage: int) -> str:
    """Say how many lines were no events."""
    return f"{counted(garbage, 'line')} could not be read as events and were passed over."


def summary_json(runs: Runs, now: datetime, *, garbage: int, silence: timedelta | None = None) -> dict[str, object]:
    """Return the summary as a JSON document."""
    return {
        "runs": [_run_json(run, now, silence) for run in runs.all()],
        "failures": [failure_json(group) for group in runs.failures()],
        "unreadable_lines": garbage,
    }


def failure_json(group: FailureGroup) -> dict[str, object]:
    """Return a group of failures as a JSON object."""
    return {
        "stack_hash": group.stack_hash,
        "error_kind": group.error_kind,
        "count": group.count,
        "runs": group.runs,
        "tables": list(group.tables),
        "first_at": group.first_at.isoformat(),
        "last_at": group.last_at.isoformat(),
        "last_error": group.last_error,
    }


def _run_json(run: RunProgress, now: datetime, silence: timedelta | None) -> dict[str, object]:
    counts = run.status.counts()
    return {
        "run": run.run,
        "pipeline": run.pipeline,
        "load_date": None if run.load_date is None else run.load_date.isoformat(),
        "state": run.state(now, silence),
        "started_at": None if run.started_at is None else run.started_at.isoformat(),
        "last_event_at": None if run.last_at is None else run.last_at.isoformat(),
        "seconds": run.elapsed(now, silence),
        "seconds_left": run.seconds_left(now, silence),
        "rows": counts.rows,
        "counts": {
            "total": counts.total,
            "done": counts.done,
            "skipped": counts.skipped,
            "failed": counts.failed,
            "running": counts.running,
            "waiting": counts.waiting,
        },
        "tables": [_table_json(table) for table in run.status.tables()],
    }


def _table_json(table: TableStatus) -> dict[str, object]:
    return {
        "table": table.table,
        "mode": table.mode,
        "outcome": table.outcome.value,
        "step": table.step,
        "slice": table.slice,
        "slices": table.slices,
        "rows": table.rows,
        "published": table.published,
        "seconds": table.seconds,
        "watermark": table.watermark,
        "message": table.message or None,
    }


def _run_cells(run: RunProgress, now: datetime, silence: timedelta | None) -> tuple[str, ...]:
    counts = run.status.counts()
    return (
        one_line(run.run)[:8],
        "" if run.started_at is None else f"{run.started_at:%Y-%m-%d %H:%M:%S}",
        "" if run.load_date is None else run.load_date.isoformat(),
        run.state(now, silence),
        *(f"{number:,}" for number in (counts.total, counts.done, counts.skipped, counts.failed, counts.rows)),
        duration(run.elapsed(now, silence)),
    )


def _tables(
    run: RunProgress, silent_since: datetime | None, now: datetime, width: int, room: int
) -> list[RenderableType]:
    running = run.status.tables(TableOutcome.RUNNING)
    shown = running if len(running) <= room else running[: max(room - 1, 0)]
    grid = Table.grid(padding=(0, 2, 0, 0), expand=True)
    grid.add_column(no_wrap=True)
    grid.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    grid.add_column(width=BAR_WIDTH)
    for _ in ("slice", "rows", "rate", "elapsed", "left"):
        grid.add_column(no_wrap=True, justify="right")
    for each in shown:
        elapsed = ((silent_since or now) - each.started_at).total_seconds()
        left = None if silent_since else table_seconds_left(each, now)
        bar = ProgressBar(total=1, completed=done_share(each), width=BAR_WIDTH) if slice_position(each) else ""
        grid.add_row(
            Text(f"  {shortened(one_line(each.table), max(width // 4, 12))}"),
            Text(one_line(each.step or each.mode), style="dim"),
            bar,
            slice_position(each).removeprefix("slice "),
            "" if each.rows is None else counted(each.rows, "row"),
            _rate(each.rows or 0, elapsed).removeprefix(", "),
            duration(elapsed),
            "" if left is None else f"{duration(left)} left",
        )
    parts: list[RenderableType] = [grid] if shown else []
    if len(shown) < len(running):
        parts.append(_cut(Text(f"  and {counted(len(running) - len(shown), 'table')} more", style="dim"), width))
    return parts


def _rate(rows: int, seconds: float) -> str:
    return f", {rows / seconds:,.0f}/s" if rows and seconds >= 1 else ""


def _cut(line: Text, width: int) -> Text:
    line.no_wrap = True
    line.truncate(width, overflow="ellipsis")
    return line
