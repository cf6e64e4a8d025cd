"""Renders the history of runs for people, and as JSON."""

from collections.abc import Sequence
from datetime import datetime

from lakehead.run.observe.event_text import counted, duration, one_line
from lakehead.run.progress_view import failure_json, failure_lines
from lakehead.run.run_history import Load, last_watermarks
from lakehead.run.run_progress import FailureGroup, RunProgress, Runs, group_failures
from lakehead.run.text_table import table_lines

STYLES = {"done": "green", "skipped": "dim", "failed": "red", "not finished": "yellow"}
RUN_HEADERS = ("run", "started (UTC)", "load date", "state", "tables", "done", "skipped", "failed", "rows", "time")
TABLE_HEADERS = (
    "table",
    "loads",
    "failed",
    "last outcome",
    "last load (UTC)",
    "rows",
    "usual",
    "growth",
    "time",
    "watermark",
)
LOAD_HEADERS = ("started (UTC)", "run", "mode", "outcome", "rows", "published", "usual", "growth", "time", "note")
NUMBERS = {"tables", "done", "skipped", "failed", "rows", "time", "loads", "usual", "growth", "published"}


def history_lines(runs: Runs, loads: Sequence[Load], *, table: str | None, failed: bool, colour: bool) -> list[str]:
    """Return the history as lines: runs and tables, or the loads of one table; then the failures in groups."""
    if table is None:
        shown = _chosen(runs, failed=failed)
        lines = _table(RUN_HEADERS, [(_run_cells(run), run_state(run)) for run in shown], colour=colour)
        lines += [""] if shown else []
        lines += _table(TABLE_HEADERS, [_table_cells(each) for each in _by_table(loads).values()], colour=colour)
    else:
        lines = _table(LOAD_HEADERS, [(_load_cells(load), load.outcome) for load in loads], colour=colour)
    if groups := _failures(runs, table):
        lines += ["", f"{counted(sum(each.count for each in groups), 'failure')} by stack hash:"]
        lines += failure_lines(groups)
    return lines if any(lines) else ["Nothing to show."]


def history_json(runs: Runs, loads: Sequence[Load], *, table: str | None, failed: bool) -> dict[str, object]:
    """Return the history as a JSON document."""
    watermarks = last_watermarks(loads)
    return {
        "runs": [_run_json(run) for run in _chosen(runs, failed=failed)],
        "tables": [
            {
                "table": name,
                "loads": len(some),
                "failed": sum(load.outcome == "failed" for load in some),
                "last_watermark": watermarks.get(name),
                "last": _load_json(some[-1]),
            }
            for name, some in _by_table(loads).items()
        ],
        "loads": [_load_json(load) for load in loads],
        "failures": [failure_json(group) for group in _failures(runs, table)],
    }


def run_state(run: RunProgress) -> str:
    """Return done, failed, or not finished: such a run is at work, or was killed."""
    if run.ended is None:
        return "not finished"
    return "failed" if run.ended.failed or run.ended.not_ended else "done"


def _chosen(runs: Runs, *, failed: bool) -> list[RunProgress]:
    return [run for run in runs.all() if not failed or run_state(run) != "done"]


def _failures(runs: Runs, table: str | None) -> list[FailureGroup]:
    found = (failure for run in runs.all() for failure in run.failures.values())
    return group_failures(failure for failure in found if table in {None, failure.table})


def _by_table(loads: Sequence[Load]) -> dict[str, list[Load]]:
    by_table: dict[str, list[Load]] = {}
    for load in loads:
        by_table.setdefault(load.table, []).append(load)
    return dict(sorted(by_table.items()))


def _table(headers: tuple[str, ...], rows: list[tuple[tuple[str, ...], str]], *, colour: bool) -> list[str]:
    if not rows:
        return []
    styles = [STYLES[state] for _, state in rows]
    return table_lines(headers, [cells for cells, _ in rows], right=NUMBERS, styles=styles, colour=colour)


def _run_cells(run: RunProgress) -> tuple[str, ...]:
    counts = run.status.counts()
    return (
        one_line(run.run)[:8],
        _time(run.started_at),
        "" if run.load_date is None else run.load_date.isoformat(),
        run_state(run),
        *(f"{number:,}" for number in (counts.total, counts.done, counts.skipped, counts.failed, counts.rows)),
        "" if run.ended is None else duration(run.ended.seconds),
    )


def _table_cells(loads: list[Load]) -> tuple[tuple[str, ...], str]:
    last, marks = loads[-1], last_watermarks(loads)
    cells = (
        one_line(last.table),
        f"{len(loads):,}",
        f"{sum(load.outcome == 'failed' for load in loads):,}",
        last.outcome,
        _time(last.started_at),
        *_figures(last),
        one_line(marks.get(last.table, "")),
    )
    return cells, last.outcome


def _load_cells(load: Load) -> tuple[str, ...]:
    rows, *figures = _figures(load)
    published = "" if load.published is None else f"{load.published:,}"
    note = f"up to {load.watermark}" if load.watermark is not None else load.message or ""
    return (_time(load.started_at), load.run[:8], load.mode, load.outcome, rows, published, *figures, one_line(note))


def _figures(load: Load) -> tuple[str, str, str, str]:
    return (
        "" if load.rows is None else f"{load.rows:,}",
        "" if load.usual_rows is None else f"{load.usual_rows:,.0f}",
        "" if load.growth is None else f"{load.growth - 1:+.0%}",
        "" if load.seconds is None else duration(load.seconds),
    )


def _time(at: datetime | None) -> str:
    return "" if at is None else f"{at:%Y-%m-%d %H:%M:%S}"


def _run_json(run: RunProgress) -> dict[str, object]:
    counts = run.status.counts()
    return {
        "run": run.run,
        "pipeline": run.pipeline,
        "load_date": None if run.load_date is None else run.load_date.isoformat(),
        "state": run_state(run),
        "started_at": None if run.started_at is None else run.started_at.isoformat(),
        "last_event_at": None if run.last_at is None else run.last_at.isoformat(),
        "seconds": None if run.ended is None else run.ended.seconds,
        "tables": counts.total,
        "done": counts.done,
        "skipped": counts.skipped,
        "failed": counts.failed,
        "rows": counts.rows,
    }


def _load_json(load: Load) -> dict[str, object]:
    return {
        "run": load.run,
        "table": load.table,
        "started_at": load.started_at.isoformat(),
        "mode": load.mode,
        "outcome": load.outcome,
        "rows": load.rows,
        "published": load.published,
        "seconds": load.seconds,
        "watermark": load.watermark,
        "message": load.message,
        "usual_rows": load.usual_rows,
        "growth": load.growth,
    }
