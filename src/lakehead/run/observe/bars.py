"""Renders a run for a terminal: a progress line for every running table, recent failures, and totals."""

from datetime import datetime

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from lakehead.run.observe.event_text import counted, duration, one_line, shortened, slice_position, totals
from lakehead.run.observe.run_status import RunStatus, TableOutcome, TableStatus

BAR_WIDTH = 12
MIN_WIDTH_FOR_BAR = 80
MIN_WIDTH_FOR_RATE = 100
"""Narrower terminals show no bar or no rate."""

SHOWN_FAILURES = 5
"""How many of the latest failures stay visible. All of them scroll by and are in the summary."""


def bars(status: RunStatus, now: datetime, width: int, height: int) -> RenderableType:
    """Render the run's status in at most `height` lines. The totals are always visible."""
    failures = _failures(status.tables(TableOutcome.FAILED), width, max(height // 3, 1))
    running = status.tables(TableOutcome.RUNNING)
    available = max(height - len(failures) - 2, 1)  # the last line is the cursor's
    shown = running if len(running) <= available else running[: max(available - 1, 0)]
    parts: list[RenderableType] = []
    if shown:
        parts.append(_lines(shown, now, width))
    if len(shown) < len(running):
        parts.append(Text(f"and {counted(len(running) - len(shown), 'table')} more", style="dim"))
    return Group(*parts, *failures, _totals(status, now, width))


def _lines(running: list[TableStatus], now: datetime, width: int) -> Table:
    grid = Table.grid(padding=(0, 2, 0, 0), expand=True)
    grid.add_column(no_wrap=True)
    grid.add_column(no_wrap=True, style="dim")
    grid.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    with_bar, with_rate = width >= MIN_WIDTH_FOR_BAR, width >= MIN_WIDTH_FOR_RATE
    if with_bar:
        grid.add_column(width=BAR_WIDTH)
    for _ in ("slice", "rows", *(["rate"] if with_rate else []), "elapsed"):
        grid.add_column(no_wrap=True, justify="right")
    for each in running:
        elapsed = (now - each.started_at).total_seconds()
        rate = "" if not each.rows or elapsed < 1 else f"{each.rows / elapsed:,.0f}/s"
        grid.add_row(
            Text(shortened(one_line(each.table), max(width // 4, 12))),
            each.mode,
            Text(one_line(each.step)),
            *([_bar(each)] if with_bar else []),
            slice_position(each).removeprefix("slice "),
            "" if each.rows is None else counted(each.rows, "row"),
            *([rate] if with_rate else []),
            duration(elapsed),
        )
    return grid


def _bar(status: TableStatus) -> RenderableType:
    """Render the share of slices that have landed; nothing for a table with at most one slice."""
    if not slice_position(status):
        return ""
    return ProgressBar(total=status.slices, completed=(status.slice or 1) - 1, width=BAR_WIDTH)


def _failures(failed: list[TableStatus], width: int, limit: int) -> list[Text]:
    latest = failed[-min(SHOWN_FAILURES, limit) :]
    lines = [Text(f"{one_line(each.table)} failed: {one_line(each.message)}", style="red") for each in latest]
    if len(latest) < len(failed):
        lines.insert(0, Text(f"{counted(len(failed) - len(latest), 'table')} failed before", style="red"))
    for line in lines:
        line.no_wrap = True
        line.truncate(width, overflow="ellipsis")
    return lines


def _totals(status: RunStatus, now: datetime, width: int) -> Text:
    counts = status.counts()
    rows = sum(each.rows or 0 for each in status.tables())
    elapsed = "" if status.started_at is None else f", {duration((now - status.started_at).total_seconds())}"
    line = Text(
        f"{counted(counts.total, 'table')}: {totals(counts)}; {counted(rows, 'row')}{elapsed}",
        style="bold",
        no_wrap=True,
    )
    line.truncate(width, overflow="ellipsis")
    return line
